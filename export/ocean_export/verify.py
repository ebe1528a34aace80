"""The verification that decides whether an export is good: long closed loops against the trained model.

Both sides start from the same random ocean and read the same random inputs; from there each is fed its own
state, as it will be on the robot, so an error that grows with the steps has every chance to show.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime.model import OceanModel
from ocean_train.model import OceanTransformer

Array = NDArray[Any]

STEPS = 2000
BATCHES = (1, 2, 7)
"""Streams that step together: alone, a pair, and an odd number that no vector width divides."""

TOLERANCE: Mapping[str, float] = {"fp32": 1e-4}
"""Largest allowed error by precision. float32 rounds at 6e-8; a step adds some hundred roundings, and the
closed loop some more: 1e-6 to 1e-5 was seen. A weight that is wrong shows at 1e-3 and more."""


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
    """Inputs of a closed loop, and what the trained model makes of them."""

    inputs: Array
    """(T, R) int64, or (T, R, M): what each of the R rows reads."""
    ocean: Array
    """(R, D): where each row starts."""
    reset_at: int
    """Before this step every row's ocean becomes the initial one."""
    outputs: Mapping[str, Array]
    """(T, R, outputs) by reference dtype."""
    states: Mapping[str, Array]
    """(T, R, D) by reference dtype."""


def make_trial(model: OceanTransformer, steps: int = STEPS, seed: int = 0) -> Trial:
    """Random valid inputs, every token id among them, through the plain loop in float32 and in float64."""
    config, rows = model.config, sum(BATCHES)
    random = np.random.default_rng(seed)
    inputs: Array
    if config.kind == "tokens":
        steps = max(steps, -(-config.inputs // rows))
        inputs = random.integers(config.inputs, size=(steps, rows))
        inputs.reshape(-1)[: config.inputs] = random.permutation(config.inputs)
    else:
        inputs = random.standard_normal((steps, rows, config.inputs)).astype(np.float32)
    ocean = random.standard_normal((rows, config.width)).astype(np.float32)
    outputs, states = {}, {}
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        reference = _copy(model, dtype)
        outputs[name], states[name] = _closed_loop_torch(reference, inputs, ocean, steps // 2, dtype)
    return Trial(inputs, ocean, steps // 2, outputs, states)


def verify(exported: OceanModel, trial: Trial, precision: str = "fp32") -> Parity:
    """Run the exported file over the trial, at each batch size, and measure its largest errors."""
    outputs, states, first = [], [], 0
    for batch in BATCHES:
        rows = slice(first, first + batch)
        first += batch
        output, state = _closed_loop_onnx(exported, trial.inputs[:, rows], trial.ocean[rows], trial.reset_at)
        outputs.append(output)
        states.append(state)
    found = {"output": np.concatenate(outputs, axis=1), "state": np.concatenate(states, axis=1)}
    errors = {
        name: {
            "output": _largest_error(found["output"], trial.outputs[name]),
            "state": _largest_error(found["state"], trial.states[name]),
        }
        for name in trial.outputs
    }
    return Parity(len(trial.inputs), BATCHES, TOLERANCE[precision], errors)


def _copy(model: OceanTransformer, dtype: torch.dtype) -> OceanTransformer:
    copy = OceanTransformer(model.config)
    copy.load_state_dict(model.state_dict())
    return copy.to(dtype).eval()


@torch.no_grad()
def _closed_loop_torch(
    model: OceanTransformer, inputs: Array, start: Array, reset_at: int, dtype: torch.dtype
) -> tuple[Array, Array]:
    ocean = torch.from_numpy(start).to(dtype)
    outputs, states = [], []
    for t, x in enumerate(inputs):
        if t == reset_at:
            ocean = model.initial_ocean(len(start))
        now = torch.from_numpy(x)
        output, ocean = model.step(now if model.config.kind == "tokens" else now.to(dtype), ocean)
        outputs.append(output.numpy())
        states.append(ocean.numpy())
    return np.stack(outputs), np.stack(states)


def _closed_loop_onnx(model: OceanModel, inputs: Array, ocean: Array, reset_at: int) -> tuple[Array, Array]:
    entry, state = model.contract.inputs[0].name, model.contract.states[0].input
    outputs, states = [], []
    for t, x in enumerate(inputs):
        if t == reset_at:
            ocean = model.initial_state(len(ocean))[state]
        output, ocean = model.compute({entry: x, state: ocean})
        outputs.append(output)
        states.append(ocean)
    return np.stack(outputs), np.stack(states)


def _largest_error(found: Array, reference: Array) -> Error:
    """max|Δ| / max(1, max|reference|) over all steps and rows, and the step (from 1) where it occurred."""
    by_step = np.abs(found.astype(np.float64) - reference).max(axis=(1, 2))
    step = int(by_step.argmax())  # the first NaN, where there is one
    return Error(float(by_step[step] / max(1.0, np.abs(reference).max())), step + 1)
