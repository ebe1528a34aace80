"""The verification that decides whether an export is good: long closed loops against the trained model.

Both sides start from the same random ocean and read the same random inputs; from there each is fed its own
state, as it will be on the robot, so an error that grows with the steps has every chance to show.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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

TOLERANCE: Mapping[str, float] = {"fp32": 1e-4}
"""Largest allowed error by precision. float32 rounds at 6e-8; a step adds some hundred roundings, and the
closed loop some more: 1e-6 to 1e-5 was seen. A weight that is wrong shows at 1e-3 and more."""


REFERENCES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Error:
    """The largest error of one tensor over a closed loop: max|Δ| / max(1, max|reference|), and its step."""

    largest: float
    step: int


@dataclass(frozen=True)
class Parity:
    """What verification measured, by reference (`float32`, `float64`) and tensor (`output`, `state`)."""

    steps: int
    batches: tuple[int, ...]
    tolerance: float
    errors: Mapping[str, Mapping[str, Error]]

    @property
    def largest(self) -> float:
        """The largest error of all; NaN where the graph gave one."""
        return float(np.max([e.largest for tensors in self.errors.values() for e in tensors.values()]))

    @property
    def passed(self) -> bool:
        """Whether every error is within the tolerance."""
        return self.largest <= self.tolerance

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
            f"(tolerance {self.tolerance:g}) against PyTorch in " + "; ".join(lines)
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
        return Trial(inputs, ocean, observations.unit)
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
    names = [(name, tensor) for name in REFERENCES for tensor in ("output", "state")]
    delta = {name: np.zeros(len(trial.inputs)) for name in names}
    scale = dict.fromkeys(names, 1.0)
    for t, (found, step) in enumerate(zip(closed_loop(exported, trial), expected, strict=True)):
        for name in REFERENCES:
            for tensor, got, wanted in zip(("output", "state"), found, step[name], strict=True):
                unit = trial.unit if tensor == "output" else 1.0
                delta[name, tensor][t] = (np.abs(got.astype(np.float64) - wanted) / unit).max()
                scale[name, tensor] = max(scale[name, tensor], float((np.abs(wanted) / unit).max()))
    errors = {
        name: {tensor: _largest(delta[name, tensor], scale[name, tensor]) for tensor in ("output", "state")}
        for name in REFERENCES
    }
    return Parity(len(trial.inputs), BATCHES, TOLERANCE[precision], errors)


def _copy(model: Stepper, dtype: torch.dtype) -> Stepper:
    return copy.deepcopy(model).to(dtype).eval()


def closed_loop(model: OceanModel, trial: Trial) -> Iterator[tuple[Array, Array]]:
    """The exported file's own closed loop: output (R, outputs) and state (R, D) of each step."""
    entry, state = model.contract.inputs[0].name, model.contract.states[0].input
    cuts = np.cumsum(BATCHES)[:-1]
    oceans = np.split(trial.ocean, cuts)
    for t, x in enumerate(trial.inputs):
        if t == trial.reset_at:
            oceans = [model.initial_state(batch)[state] for batch in BATCHES]
        results = [
            model.compute({entry: rows, state: ocean})
            for rows, ocean in zip(np.split(x, cuts), oceans, strict=True)
        ]
        oceans = [next_ocean for _, next_ocean in results]
        yield np.concatenate([output for output, _ in results]), np.concatenate(oceans)


def _largest(delta: Array, scale: float) -> Error:
    step = int(delta.argmax())  # the first NaN, where there is one
    return Error(float(delta[step] / scale), step + 1)
