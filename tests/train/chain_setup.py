"""Small random models and windows for the tests of the chain."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from ocean_train.model import OceanConfig, OceanTransformer
from torch import Tensor


class Case(NamedTuple):
    """A model with no weight at its initial value, and one window for it."""

    model: OceanTransformer
    inputs: Tensor
    targets: Tensor
    ocean: Tensor
    reset: Tensor | None
    valid: Tensor | None


def make(
    B: int,
    T: int,
    D: int,
    L: int = 2,
    H: int = 2,
    *,
    kind: Any = "tokens",
    head: Any = "tokens",
    masked: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    max_time_constant: float = 1.0,
    learned: bool = False,
) -> Case:
    """Everything drawn from the seed; masked: a quarter of steps padded, a fifth begin an episode."""
    g = torch.Generator().manual_seed(seed)
    sizes = (7, 7) if head == "tokens" else (7 if kind == "tokens" else 3, 2)
    config = OceanConfig(
        *sizes,
        width=D,
        layers=L,
        heads=H,
        kind=kind,
        head=head,
        max_time_constant=max_time_constant,
        learn_time_constants=learned,
    )
    model = OceanTransformer(config, seed).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            scale = 0.3 / (math.sqrt(p.shape[1]) if p.dim() == 2 else 1)  # a contracting chain stays one
            p += scale * torch.randn(p.shape, generator=g).to(dtype)
    draw = torch.Generator().manual_seed(seed + 1)
    inputs = torch.randint(7, (B, T), generator=draw)
    if kind == "features":
        inputs = torch.randn(B, T, 3, generator=draw).to(dtype)
    targets = torch.randint(config.outputs, (B, T), generator=draw)
    if head == "regression":
        targets = torch.randn(B, T, 2, generator=draw).to(dtype)
    ocean = torch.randn(B, D, generator=draw).to(dtype)
    reset = torch.rand(B, T, generator=draw) < 0.2 if masked else None
    valid = torch.rand(B, T, generator=draw) < 0.75 if masked else None
    return Case(model, inputs, targets, ocean, reset, valid)


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest magnitude expected."""
    scale = max(expected.abs().max().item(), 1e-12)
    return (found - expected).abs().max().item() / scale
