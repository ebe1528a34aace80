"""The verification that decides whether an export is good: long closed loops against the trained model.

Both sides start from the same random ocean and read the same random inputs; from there each is fed its own
state, as it will be on the robot, so an error that grows with the steps has every chance to show.

Some models magnify any difference, rounding included: one that has learned to choose among states for good,
or an untrained one. Over their closed loop PyTorch's own float32 leaves its float64, and a graph without any
fault as far. So the loop is allowed a few times that drift where it is more than the tolerance, and each single
step, from the trained model's own oceans, has to be within the tolerance whatever the loop does.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime.model import OceanModel
from ocean_train.observations import Observations, Stepper

Array = NDArray[Any]

STEPS = 2000
RECORDED_STEPS = 10_000
"""Steps over a recording that is at least so long."""
BATCHES = (1, 2, 7)
"""Streams that step together: alone, a pair, and an odd number that no vector width divides."""
CUTS = tuple(accumulate(BATCHES[:-1]))
"""Where the rows of a trial are cut into these."""

TOLERANCE: Mapping[str, float] = {"fp32": 1e-4}
"""Largest allowed error by precision. float32 rounds at 6e-8; a step adds some hundred roundings, and the
closed loop some more: 1e-6 to 1e-5 was seen. A weight that is wrong shows at 1e-3 and more."""

DRIFTS = 4
"""How many times PyTorch's own drift a closed loop may show: two roundings of the same steps are as far from
each other as from the exact one, and the largest of thousands of differences varies by a small factor."""

MAGNITUDE = 0.01
"""How much of a quantity's size counts beside its standard deviation. A height of 100 ± 0.1 m has an error of one
in the tenth; but float32 rounds it by 1e-5 of a metre, and the tolerance times this is eight such roundings."""

REFERENCES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Error:
    """The largest error of one tensor over a closed loop, and its step.

    max|Δ| / max(1, max|reference|); for quantities, in their standard deviations, each by itself, and with 0.01 of
    |reference| in its place: what stays the same about a quantity must not hide what is wrong about its changes.
    """

    largest: float
    step: int


@dataclass(frozen=True)
class Parity:
    """What verification measured, by reference (`float32`, `float64`) and tensor (`output`, `state`)."""

    steps: int
    batches: tuple[int, ...]
    tolerance: float
    errors: Mapping[str, Mapping[str, Error]]
    one_step: Error
    """The largest error of a single step, output or state, from the oceans of PyTorch's float32 loop."""
    own_drift: float
    """The largest error of PyTorch's float32 loop against its float64 one."""

    @property
    def allowed(self) -> float:
        """What a closed loop may differ by."""
        return max(self.tolerance, DRIFTS * self.own_drift)

    @property
    def largest(self) -> float:
        """The largest error of all; NaN where the graph gave one."""
        return float(np.max([e.largest for tensors in self.errors.values() for e in tensors.values()]))

    @property
    def passed(self) -> bool:
        """Whether a step is within the tolerance, and the loop within what it is allowed."""
        return self.one_step.largest <= self.tolerance and self.largest <= self.allowed

    @property
    def failure(self) -> str:
        """What is wrong, where it did not pass."""
        one = self.one_step.largest > self.tolerance or not np.isfinite(self.one_step.largest)
        found, allowed = (self.one_step.largest, self.tolerance) if one else (self.largest, self.allowed)
        where = "in a single step" if one else "in a closed loop"
        return f"differs from the trained model by {found:.1e} {where}, more than {allowed:.1g}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values for the contract."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{reference}: {tensor} {error.largest:.1e} at step {error.step}"
            for reference, tensors in self.errors.items()
            for tensor, error in tensors.items()
        ]
        batches = ", ".join(map(str, self.batches))
        return (
            f"largest error over {self.steps:,} closed-loop steps at batch {batches} "
            f"(tolerance {self.tolerance:g}) against PyTorch in " + "; ".join(lines) + f"; of a single step "
            f"{self.one_step.largest:.1e}; PyTorch's float32 against its float64 {self.own_drift:.1e}"
            + (
                f", so the loop may differ by {DRIFTS} times that, {self.allowed:.1e}"
                if self.allowed > self.tolerance
                else ""
            )
        )


@dataclass(frozen=True)
class Trial:
    """What both sides of a closed loop read: R rows, the sum of BATCHES, for T steps."""

    inputs: Array
    """(T, R) int64, or (T, R, M) float32."""
    ocean: Array
    """(R, D): where each row starts."""
    unit: Array | float = 1.0
    """(outputs,): errors of the output are measured in these; for quantities, their standard deviations."""

    @property
    def reset_at(self) -> int:
        """Before this step every row's ocean becomes the initial one."""
        return len(self.inputs) // 2


def make_trial(
    model: Stepper,
    steps: int = STEPS,
    seed: int = 0,
    observations: Observations | None = None,
    recording: Array | None = None,
) -> Trial:
    """A random non-zero ocean and random valid inputs, every token id among them.

    Or, where there is a recording (N, M) in its units, that: each row begins elsewhere in it, and at its end
    begins anew, for 10,000 steps where it has as many.
    """
    config, rows = model.config, sum(BATCHES)
    random = np.random.default_rng(seed)
    inputs: Array
    if observations is not None and recording is not None:
        steps = max(steps, min(len(recording), RECORDED_STEPS))
        places = np.arange(steps)[:, None] + np.arange(rows) * len(recording) // rows  # (T, R)
        inputs = observations.relative(recording)[places % len(recording)].astype(np.float32)
        ocean = random.standard_normal((rows, config.width)).astype(np.float32)
        return Trial(inputs, ocean, 1.0 if observations.target == "classes" else observations.unit)
    if config.kind == "tokens":
        steps = max(steps, -(-config.inputs // rows))
        inputs = random.integers(config.inputs, size=(steps, rows))
        inputs.reshape(-1)[: config.inputs] = random.permutation(config.inputs)
    else:
        inputs = random.standard_normal((steps, rows, config.inputs)).astype(np.float32)
    return Trial(inputs, random.standard_normal((rows, config.width)).astype(np.float32))


Step = Mapping[str, tuple[Array, Array]]
"""What one step gave: output (R, outputs) and state (R, D), by reference."""


@torch.no_grad()
def reference(model: Stepper, trial: Trial) -> Iterator[Step]:
    """The trained model's own closed loop, step by step, in float32 and in float64."""
    copies = {name: _copy(model, dtype) for name, dtype in REFERENCES.items()}
    oceans = {name: torch.from_numpy(trial.ocean).to(dtype) for name, dtype in REFERENCES.items()}
    for t, x in enumerate(trial.inputs):
        step = {}
        for name, dtype in REFERENCES.items():
            ocean = copies[name].initial_ocean(len(trial.ocean)) if t == trial.reset_at else oceans[name]
            inputs = torch.from_numpy(x)
            output, oceans[name] = copies[name].step(
                inputs.to(dtype) if x.dtype.kind == "f" else inputs, ocean
            )
            step[name] = output.numpy(), oceans[name].numpy()
        yield step


def verify(exported: OceanModel, trial: Trial, expected: Iterable[Step], precision: str = "fp32") -> Parity:
    """Run the exported file over the trial, at each batch size, and measure its errors against `expected`."""
    closed = {name: Errors(trial.unit) for name in REFERENCES}
    single, own, before = Errors(trial.unit), Errors(trial.unit), trial.ocean
    for t, (found, step) in enumerate(zip(closed_loop(exported, trial), expected, strict=True)):
        for name in REFERENCES:
            closed[name].add(found, step[name])
        own.add(step["float32"], step["float64"])
        oceans = _initial(exported) if t == trial.reset_at else np.split(before, CUTS)
        single.add(_step(exported, trial.inputs[t], oceans), step["float32"])
        before = step["float32"][1].astype(np.float32)
    return Parity(
        len(trial.inputs),
        BATCHES,
        TOLERANCE[precision],
        {name: errors.largest() for name, errors in closed.items()},
        max(single.largest().values(), key=_nan_first),
        max((e.largest for e in own.largest().values()), key=lambda e: np.inf if np.isnan(e) else e),
    )


class Errors:
    """The errors of output and state over a loop, measured as they come."""

    def __init__(self, unit: Array | float) -> None:
        self._units = {"output": unit, "state": 1.0}
        self._deltas: dict[str, list[Array]] = {"output": [], "state": []}
        self._scales: dict[str, Array] = {tensor: np.ones(1) for tensor in self._units}

    def add(self, found: tuple[Array, Array], wanted: tuple[Array, Array]) -> None:
        """A step's output (R, outputs) and state (R, D), and what they should be."""
        for (tensor, unit), got, reference in zip(self._units.items(), found, wanted, strict=True):
            share = MAGNITUDE if np.ndim(unit) else 1.0
            self._deltas[tensor].append(_largest(got.astype(np.float64) - reference, unit))
            self._scales[tensor] = np.maximum(self._scales[tensor], share * _largest(reference, unit))

    def largest(self) -> dict[str, Error]:
        """By tensor, over all steps that were added."""
        found = {}
        for tensor, deltas in self._deltas.items():
            errors = (np.array(deltas) / self._scales[tensor]).max(axis=1)
            step = int(np.argmax(errors))  # the first NaN, where there is one
            found[tensor] = Error(float(errors[step]), step + 1)
        return found


def _largest(values: Array, unit: Array | float) -> Array:
    """The largest of |values|, (..., K), in their units: of each quantity, (K,), or of all, (1,), without units."""
    sizes = np.abs(values) / unit
    return np.asarray(sizes.reshape(-1, sizes.shape[-1] if np.ndim(unit) else 1).max(axis=0))


def _nan_first(error: Error) -> float:
    return float("inf") if np.isnan(error.largest) else error.largest


def _copy(model: Stepper, dtype: torch.dtype) -> Stepper:
    return copy.deepcopy(model).to(dtype).eval()


def closed_loop(model: OceanModel, trial: Trial) -> Iterator[tuple[Array, Array]]:
    """The exported file's own closed loop: output (R, outputs) and state (R, D) of each step."""
    oceans = np.split(trial.ocean, CUTS)
    for t, x in enumerate(trial.inputs):
        output, ocean = _step(model, x, _initial(model) if t == trial.reset_at else oceans)
        oceans = np.split(ocean, CUTS)
        yield output, ocean


def _initial(model: OceanModel) -> list[Array]:
    return [model.initial_state(batch)[model.contract.states[0].input] for batch in BATCHES]


def _step(model: OceanModel, x: Array, oceans: list[Array]) -> tuple[Array, Array]:
    """One step of all rows, at each batch size by itself: output (R, outputs), state (R, D)."""
    entry, state = model.contract.inputs[0].name, model.contract.states[0].input
    results = [
        model.compute({entry: rows, state: ocean})
        for rows, ocean in zip(np.split(x, CUTS), oceans, strict=True)
    ]
    return np.concatenate([output for output, _ in results]), np.concatenate([after for _, after in results])
