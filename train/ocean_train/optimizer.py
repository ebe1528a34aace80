"""AdamW as a run uses it: what decays, the learning rate by step, and its state by name for a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ocean_train.checkpoint import CheckpointError

CLIP_NORM = 1.0
WARM_UP_STEPS = 100
# Decay pulls matrices towards zero, which their scale can absorb. Biases and LayerNorm have no such freedom,
# and an embedding row of a rare token would fade while it isn't trained.
WEIGHT_DECAY = 0.1
OPTIMIZER_SLOTS = ("step", "exp_avg", "exp_avg_sq")


def update(model: nn.Module, optimizer: torch.optim.Optimizer, loss: float, lr: float) -> bool:
    """One optimizer step, the gradient clipped. Where it or the loss isn't finite: False, nothing changes."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    if not (math.isfinite(loss) and norm.isfinite()):
        return False
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    return True


def learning_rate(step: int, steps: int, peak: float) -> float:
    """The rate of one training step, counted from 0, of so many.

    Linear from 0 to the peak over 100 steps (a tenth of a short run), then a half cosine down to 0.
    """
    warm_up = min(WARM_UP_STEPS, max(1, steps // 10))
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups for any optimizer of PyTorch: what weight decay pulls on, and what it leaves alone.

    It is on the matrices of linear maps only; biases, LayerNorm, embeddings and all other parameters are left alone.
    """
    decayed = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    return [
        {"params": [p for p in model.parameters() if id(p) in decayed], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if id(p) not in decayed], "weight_decay": 0.0},
    ]


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """AdamW as `ocean-train` uses it, with `parameter_groups`; give each step's rate by `learning_rate`."""
    return torch.optim.AdamW(parameter_groups(model), betas=(0.9, 0.99), fused=True)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """`<slot>.<parameter>` -> tensor, for all that AdamW remembers."""
    return {
        f"{slot}.{name}": value
        for name, parameter in model.named_parameters()
        for slot, value in optimizer.state[parameter].items()
    }


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` took; raises CheckpointError where it does not fit the model."""
    parameters = dict(model.named_parameters())
    slots = {key: value for key, value in tensors.items() if key != "carried"}
    expected = {f"{slot}.{name}" for slot in OPTIMIZER_SLOTS for name in parameters}
    if slots and slots.keys() != expected:  # before the first update there are none
        key = min(slots.keys() ^ expected)
        raise CheckpointError(f"the optimizer's {key} does not fit the model; the checkpoint is damaged")
    for key, value in slots.items():
        slot, _, name = key.partition(".")
        shape = () if slot == "step" else parameters[name].shape
        if value.shape != shape or value.dtype != torch.float32:
            raise CheckpointError(f"the optimizer's {key} does not fit the model; the checkpoint is damaged")
        optimizer.state[parameters[name]][slot] = value.to(parameters[name].device, copy=True)
