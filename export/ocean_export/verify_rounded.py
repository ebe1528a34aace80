"""Verification of int8 and int4 files: the very file that is written, against the model rounded in the same way.

A product whose input is rounded jumps where a number lies on the border of two codes. Two right computations differ
there by a whole code, about 1e-2, and elsewhere by float32's rounding, about 1e-6. So errors are compared as a
distribution. Those of the file may be a few times those of a *neighbour*: a float32 copy of the same rounded model
whose weights are moved by a rounding each (`ocean_export.verify`). Most rows meet no border and show a fault of
1e-4. The largest error may be a few times that of a copy in which about one number of each product's input takes the
next code.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from ocean_runtime.model import OceanModel
from ocean_runtime.prefill import Prefill
from ocean_train.model import OceanTransformer
from ocean_train.observations import InUnits, Observations, Stepper
from torch import Tensor

from ocean_export.rounded import RoundedOcean, unsteady
from ocean_export.verify import BATCHES, CUTS, ROUNDING, Array, Trial, more_batches, neighbour_of

CALLS = 100
"""Places of the trial from which the file is run, at each batch size in BATCHES and at one more."""
FACTOR = 8
"""How many times the neighbour's error the file's may be: twice that of a float32 file, for the float32 sums over the
blocks of a product, which a neighbour does not have."""
JUMPS = 3
"""How many times as many rows may meet a border of two codes as in the neighbour."""
SHARES = (0.1, 0.25, 0.5, 1.0)
"""Which errors are compared: that which so many of the rows are below, and the largest."""
PREFILL_STEPS = 3
"""Steps of one call of a prefill file."""

Run = Callable[[Array, Array], tuple[Array, Array]]
"""inputs (W, B, ·), oceans (B, D) -> outputs (W, B, K), oceans (B, D)."""


@dataclass(frozen=True)
class RoundedParity:
    """What the verification of a rounded file measured."""

    calls: int
    rounded_inputs: bool
    """Whether this processor rounds the inputs of products; without dot-product instructions it may not."""
    typical: float
    """The median error of a row, relative to the largest output or state."""
    largest: float
    share: float
    """How much of its allowance an error takes at most; above 1 the file is refused."""
    place: str
    """Where that is."""

    @property
    def passed(self) -> bool:
        """Whether each error is within what is allowed."""
        return self.share <= 1

    @property
    def failure(self) -> str:
        """What is wrong, where it did not pass."""
        return (
            f"differs from the trained model rounded alike: {self.place} is {self.share:.2g} times what rounding can "
            "explain"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values for the contract."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        inputs = "" if self.rounded_inputs else "; this processor does not round the inputs of products"
        return (
            f"against the trained model rounded alike, {self.calls:,} calls: half of the rows differ by at most "
            f"{self.typical:.1e}, and the largest, where a number lies between two codes, by {self.largest:.1e} "
            f"({self.share:.0%} of what rounding explains){inputs}"
        )


def verify_rounded(
    run: Run, model: OceanTransformer, observations: Observations | None, trial: Trial, how: RoundingOf
) -> RoundedParity:
    """Run a file from the trained model's own oceans, and compare it with the model rounded as the file is.

    Where it does not equal the model with rounded inputs, it is compared with the one whose inputs stay as they are.
    """
    places = list(_places(_stepper(model, observations), trial, how.steps))
    sizes = more_batches(int(model.head.weight.detach().double().abs().sum() * 1e6))
    found = []
    for rounds_input in (True,) if how.portable else (True, False):
        rounded = RoundedOcean(model, how.precision, how.portable, rounds_input)
        measured = _measure(run, _stepper(rounded, observations), trial, places, how, sizes)
        found.append(_judge(measured, len(places), rounds_input))
        if found[-1].passed:
            break
    return found[-1] if found[-1].passed else found[0]


@dataclass(frozen=True)
class RoundingOf:
    """How a file is rounded, and how many steps one call of it takes."""

    precision: str
    portable: bool = False
    steps: int = 1


def step_of(exported: OceanModel) -> Run:
    """One step of a step file."""
    entry, state = exported.contract.inputs[0].name, exported.contract.states[0].input

    def run(inputs: Array, oceans: Array) -> tuple[Array, Array]:
        output, after = exported.compute({entry: inputs[0], state: oceans})
        return output[None], after

    return run


def steps_of(prefill: Prefill, exported: OceanModel) -> Run:
    """One call of the prefill file that belongs to `exported`."""
    entry, state = exported.contract.inputs[0].name, exported.contract.states[0].input

    def run(inputs: Array, oceans: Array) -> tuple[Array, Array]:
        outputs, after = prefill.compute({entry: inputs, state: oceans})
        return outputs, after

    return run


def _stepper(model: torch.nn.Module, observations: Observations | None) -> Any:
    return model if observations is None else InUnits(model, observations)


@torch.no_grad()
def _places(stepper: Stepper, trial: Trial, steps: int) -> Iterator[tuple[int, Array]]:
    """Steps of the trial, and the trained model's own oceans (R, D) float32 before them."""
    exact = copy.deepcopy(stepper).double().eval()
    ocean = torch.from_numpy(trial.ocean)
    every = max(1, (len(trial.inputs) - steps + 1) // CALLS)
    for t, x in enumerate(trial.inputs[: len(trial.inputs) - steps + 1]):
        if t % every == 0:
            yield t, ocean.numpy()
        inputs = torch.from_numpy(x)
        _, after = exact.step(inputs.double() if inputs.is_floating_point() else inputs, ocean.double())
        ocean = after.float()


class _Measured:
    """Errors of rows, (rows, 2) for output and state: those of the file by batch size, and what they are judged by."""

    def __init__(self) -> None:
        self.file: dict[int, list[Array]] = {}
        self.neighbour: list[Array] = []
        self.jumps = np.zeros(2)
        """The largest errors of the copy whose numbers take the next code."""
        self.scale = np.ones(2)
        """The largest output, in its units, and the largest state."""


@torch.no_grad()
@torch.random.fork_rng()
def _measure(
    run: Run,
    stepper: Stepper,
    trial: Trial,
    places: list[tuple[int, Array]],
    how: RoundingOf,
    sizes: list[int],
) -> _Measured:
    """The errors of a file against `stepper`, at each batch size in BATCHES and in `sizes`, in turn."""
    torch.manual_seed(0)
    exact = copy.deepcopy(stepper).double().eval()
    near, jumping = neighbour_of(exact, 0), cast(Stepper, unsteady(exact))
    rows = len(trial.ocean)
    measured = _Measured()
    for call, (t, oceans) in enumerate(places):
        groups = np.split(np.arange(rows), CUTS)[: len(BATCHES)]
        groups.append((np.arange(sizes[call % len(sizes)]) + call) % rows)
        # Rows that are rounded each by itself may be computed together, by the model; a portable file's may not.
        for together in [[group] for group in groups] if how.portable else [groups]:
            every = np.concatenate(together)
            x, before = trial.inputs[t : t + how.steps], oceans
            wanted = _loop(exact, x[:, every], before[every])
            size = np.abs(wanted[0] / trial.unit).max(), np.abs(wanted[1]).max()
            measured.scale = np.maximum(measured.scale, size)
            for other in (near, jumping):
                errors = _errors(_loop(other, x[:, every], before[every]), wanted, trial.unit)
                if other is near:
                    measured.neighbour.append(errors)
                else:
                    measured.jumps = np.maximum(measured.jumps, errors.max(axis=0))
            parts = [run(x[:, group], before[group]) for group in together]
            found = np.concatenate([p[0] for p in parts], axis=1), np.concatenate([p[1] for p in parts])
            cuts = np.cumsum([len(group) for group in together])[:-1]
            for errors in np.split(_errors(found, wanted, trial.unit), cuts):
                measured.file.setdefault(len(errors), []).append(errors)
    return measured


def _judge(measured: _Measured, calls: int, rounded_inputs: bool) -> RoundedParity:
    spread = np.concatenate(measured.neighbour)
    floor = 4 * ROUNDING * measured.scale
    worst, place, every_row = 0.0, "", []
    for size, errors in measured.file.items():
        at = np.concatenate(errors)
        every_row.append(at)
        for share in SHARES:
            allowed = np.quantile(spread, 1 - (1 - share) / JUMPS, axis=0)
            if share == 1:
                allowed = np.maximum(allowed, measured.jumps)
            used = np.quantile(at, share, axis=0) / (FACTOR * np.maximum(allowed, floor))
            used = np.where(np.isfinite(used), used, np.inf)
            if used.max() > worst:
                worst = float(used.max())
                what = ("output", "state")[int(np.argmax(used))]
                rank = "largest" if share == 1 else f"{share:.0%} quantile of the"
                place = f"the {rank} error of the {what} at batch {size}"
    relative = (np.concatenate(every_row) / measured.scale).max(axis=1)
    typical, largest = float(np.median(relative)), float(relative.max())
    return RoundedParity(calls, rounded_inputs, typical, largest, worst, place)


def _loop(stepper: Stepper, x: Array, oceans: Array) -> tuple[Array, Array]:
    """The steps of one call, by the model: outputs (W, B, K) and oceans (B, D), float64."""
    dtype = next(stepper.parameters()).dtype
    ocean = torch.from_numpy(oceans).to(dtype)
    outputs: list[Tensor] = []
    for inputs in map(torch.from_numpy, x):
        output, ocean = stepper.step(inputs.to(dtype) if inputs.is_floating_point() else inputs, ocean)
        outputs.append(output)
    return torch.stack(outputs).double().numpy(), ocean.double().numpy()


def _errors(found: tuple[Array, Array], wanted: tuple[Array, Array], unit: Array | float) -> Array:
    """Of each row the largest error of its outputs, in their units, and of its state: (B, 2)."""
    output = (np.abs(found[0].astype(np.float64) - wanted[0]) / unit).max(axis=(0, 2))
    state = np.abs(found[1].astype(np.float64) - wanted[1]).max(axis=1)
    return np.stack([output, state], axis=1)
