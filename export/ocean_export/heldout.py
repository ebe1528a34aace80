"""What fewer bits cost: the loss on held-out data, and how far the state drifts from float32's.

Both sides read the same held-out data in one closed loop, each fed its own state. The loss is what a user
of the model notices; the drift is the distance between the two states, relative to the state's own size,
and whether it grows tells if a robot that runs for days would notice more.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime.model import OceanModel
from ocean_train.checkpoint import Checkpoint
from ocean_train.model import position_loss
from ocean_train.observations import Stepper
from torch import Tensor

Array = NDArray[Any]

STEPS = 10_000
GROWTH = 1.5
"""The drift grows when its mean over the last quarter is so many times that over the second quarter. The
first one is left out: there every drift grows, from zero."""
LIMIT = {"tokens": "0.02", "classes": "0.02", "regression": "2%"}
"""Largest increase of the loss by head: nats, or a share of the RMSE."""


@dataclass(frozen=True)
class Drift:
    """|o − o_float32| / |o_float32| over the closed loop."""

    largest: float
    step: int
    """Where it was largest, from 1."""
    final: float
    second_quarter: float
    last_quarter: float
    grows: bool


@dataclass(frozen=True)
class Cost:
    """What a precision costs on held-out data."""

    steps: int
    unit: str
    """`nats`, or `RMSE` in standard deviations of the targets."""
    float32: float
    """Loss of the trained model."""
    exported: float
    """Loss of the file."""
    drift: Drift

    @property
    def increase(self) -> float:
        """How much the loss is worse; NaN where the file's is."""
        return self.exported - self.float32

    def within(self, limit: str) -> bool:
        """Whether the increase is at most `limit`: a number in the loss's unit, or a percentage of it."""
        if limit.endswith("%"):
            return self.increase <= float(limit[:-1]) / 100 * self.float32
        return self.increase <= float(limit)

    def to_dict(self) -> dict[str, Any]:
        """JSON values for the contract."""
        return {**dataclasses.asdict(self), "increase": self.increase}

    def __str__(self) -> str:
        tendency = "growing" if self.drift.grows else "not growing"
        return (
            f"over {self.steps:,} held-out steps the loss is {self.exported:.4f} {self.unit} against "
            f"{self.float32:.4f} in float32 ({self.increase:+.4f}); the state drifts by at most "
            f"{self.drift.largest:.1%} of its size (step {self.drift.step:,}), {self.drift.final:.1%} at the "
            f"end, {tendency}"
        )


class Heldout(NamedTuple):
    """Held-out data as the exported graph reads it."""

    inputs: Tensor
    """(N,) int64, or (N, M) float32 less the references."""
    targets: Tensor
    """(N,) int64, or (N, K) float32 less the references."""
    reset: Tensor
    """(N,) bool: where an episode begins."""
    unit: Tensor
    """(K,) in which errors of quantities are measured: standard deviations of the training data."""


def heldout_of(saved: Checkpoint) -> Heldout:
    """The checkpoint's held-out data. Raises ValueError where there is too little."""
    x, observations = saved.heldout, saved.observations
    if len(x) < 2:
        raise ValueError(
            "the checkpoint holds no held-out data to measure this precision on; train it again, or use fp32"
        )
    if observations is None:
        return Heldout(x[:-1], x[1:], torch.zeros(len(x) - 1, dtype=torch.bool), torch.ones(1))
    targets, reset = saved.heldout_targets, saved.heldout_reset
    assert targets is not None and reset is not None  # the checkpoint's loader checks that they are there
    inputs = torch.from_numpy(observations.relative(x.numpy())).float()
    if observations.target == "classes":
        return Heldout(inputs, targets[:, 0].long(), reset, torch.ones(1))
    relative = torch.from_numpy(observations.relative_target(targets.numpy())).float()
    return Heldout(inputs, relative, reset, torch.from_numpy(observations.unit).float())


@torch.no_grad()
def measure(exported: OceanModel, model: Stepper, data: Heldout) -> Cost:
    """One closed loop over the held-out data, repeated to 10,000 steps.

    The repetitions go on from the state that the end of the data left, unless an episode begins there.
    """
    config = model.config
    where = torch.arange(STEPS) % len(data.inputs)
    inputs, targets, reset = data.inputs[where], data.targets[where], data.reset[where]
    entry, state = exported.contract.inputs[0].name, exported.contract.states[0].input
    ocean, ours = model.initial_ocean(1), exported.initial_state(1)[state]
    outputs, outputs_ours, drift = [], [], np.zeros(STEPS)
    for t in range(STEPS):
        if reset[t]:
            ocean, ours = model.initial_ocean(1), exported.initial_state(1)[state]
        output, ocean = model.step(inputs[t : t + 1], ocean)
        output_ours, ours = exported.compute({entry: inputs[t : t + 1].numpy(), state: ours})
        outputs.append(output)
        outputs_ours.append(torch.from_numpy(output_ours))
        drift[t] = np.linalg.norm(ours - ocean.numpy()) / max(float(ocean.norm()), 1e-12)
    if config.head == "regression":
        targets = targets / data.unit
    float32, ours_loss = (
        float(position_loss(config, (torch.cat(y) / data.unit)[None], targets[None]).mean())
        for y in (outputs, outputs_ours)
    )
    if config.head == "regression":
        return Cost(STEPS, "RMSE", float32**0.5, ours_loss**0.5, _drift(drift))
    return Cost(STEPS, "nats", float32, ours_loss, _drift(drift))


def _drift(drift: Array) -> Drift:
    quarters = [float(quarter.mean()) for quarter in np.array_split(drift, 4)]
    step = int(drift.argmax())  # the first NaN, where there is one
    return Drift(
        largest=float(drift[step]),
        step=step + 1,
        final=float(drift[-1]),
        second_quarter=quarters[1],
        last_quarter=quarters[3],
        grows=not quarters[3] <= GROWTH * quarters[1],
    )
