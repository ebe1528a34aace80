"""Training on a made-up task, for the claims that need one: sequences without end, drawn from seed and step.

A task may have a level (a delay, a length) that grows as the model learns: what is too hard from the start is
often easy from the level before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from ocean_runtime.tokenizer import REPLACEMENT, Tokenizer
from ocean_train import baselines, regimes
from ocean_train import checkpoint as checkpoints
from ocean_train.baselines import Model
from ocean_train.checkpoint import Checkpoint
from ocean_train.model import OceanConfig, OceanTransformer
from ocean_train.optimizer import make_optimizer, optimizer_tensors, restore_optimizer, update
from torch import Tensor

IGNORED = -100
"""A target that does not count."""
SAVE_EVERY = 250
LEARNT = 0.2
"""Running loss, nats, from which on the level grows."""


class Drawn(NamedTuple):
    """One batch of a task."""

    inputs: Tensor
    """(B, T) int64."""
    targets: Tensor
    """(B, T) int64: what the output at each step should be, or IGNORED."""


Draw = Callable[[np.random.Generator, int, int], Drawn]
"""(random numbers, batch, level) -> a batch."""


@dataclass(frozen=True)
class Task:
    """What is trained on, and how long."""

    name: str
    symbols: str
    """One character a token."""
    draw: Draw
    steps: int
    first_level: int
    last_level: int
    longest: int
    """T of the longest window that `draw` gives, for the standard Transformer's positions."""
    batch: int = 64
    lr: float = 1e-3

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer("char", (REPLACEMENT, *self.symbols))


def build(
    task: Task, kind: str, width: int, layers: int, heads: int, seed: int, max_time_constant: float = 1.0
) -> Model:
    V = task.tokenizer.size
    config = OceanConfig(V, V, width, layers, heads, max_time_constant=max_time_constant)
    return baselines.build(kind, config, task.longest, seed)


def forward(model: Model, inputs: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, V) with their gradient, and the state."""
    if isinstance(model, OceanTransformer):
        return model(inputs, state, relay=regimes.relay("full"))  # type: ignore[no-any-return]
    return model(inputs, state)  # type: ignore[no-any-return]


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def fit(task: Task, model: Model, kind: str, folder: Path, seed: int) -> Checkpoint:
    """Train to the end, from where `folder` holds a checkpoint; it holds the last one then."""
    optimizer = make_optimizer(model)
    step, level, running, seconds, curve = 0, task.first_level, float("inf"), 0.0, []
    if checkpoints.exists(folder):
        found = checkpoints.load(folder)
        model.load_state_dict(dict(found.weights))
        restore_optimizer(model, optimizer, found.optimizer)
        step, curve = found.step, list(found.history)
        level, running, seconds = (found.settings[name] for name in ("level", "running", "cpu_seconds"))
        if step == task.steps:
            return found
    began = time.process_time() - seconds
    while step < task.steps:
        batch = task.draw(np.random.default_rng((seed, step)), task.batch, level)
        model.zero_grad(set_to_none=True)
        loss = loss_of(forward(model, batch.inputs)[0], batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        update(model, optimizer, loss.item(), rate(step, task))
        running = loss.item() if running == float("inf") else 0.95 * running + 0.05 * loss.item()
        if running < LEARNT and level < task.last_level:
            level = min(task.last_level, level + max(1, level // 8))
            running = 2 * LEARNT  # the new level is to be learnt, too
        step += 1
        if step % SAVE_EVERY == 0 or step == task.steps:
            curve.append({"step": step, "loss": running, "level": level})
            state = {"level": level, "running": running, "cpu_seconds": time.process_time() - began}
            checkpoints.save(folder, _checkpoint(task, model, kind, optimizer, step, seed, curve, state))
    return checkpoints.load(folder)


def rate(step: int, task: Task) -> float:
    """Up over 100 steps, level, and down to 0 over the last quarter: a level may be reached late."""
    return task.lr * min(1.0, (step + 1) / 100, (task.steps - step) / (task.steps / 4))


def _checkpoint(
    task: Task,
    model: Model,
    kind: str,
    optimizer: torch.optim.Optimizer,
    step: int,
    seed: int,
    curve: list[Any],
    state: dict[str, Any],
) -> Checkpoint:
    rows = task.draw(np.random.default_rng((seed, 0)), 64, task.last_level).inputs
    return Checkpoint(
        config=model.config,
        weights=model.state_dict(),
        optimizer=optimizer_tensors(model, optimizer),
        heldout=rows.flatten(),
        tokenizer=task.tokenizer,
        step=step,
        seed=seed,
        regime="full",
        settings=state,
        data={"name": task.name, "sha256": ""},
        history=tuple(curve),
        model_kind=kind,
    )
