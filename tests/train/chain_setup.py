"""Small random models and windows for the tests of the chain."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from ocean_train import serial
from ocean_train.model import OceanConfig, OceanTransformer, Relay, position_loss
from torch import Tensor

ROUNDING = 2.0**-24  # of float32, relative
ROUNDINGS = 8  # that any float32 result may be off, however well its problem is conditioned
NEIGHBOURS = 4
FACTOR = 8
"""How many times the spread of float32 a float32 result may differ: two for the roundings inside a step, of which a
neighbour has none, two for the largest of some twenty results against a sample of five, and two to be far from the
edge. Of 480 random windows, computed in three ways each, the worst result was at 4.3 times the spread."""


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


Results = dict[str, Tensor]


def exact(case: Case) -> Case:
    """The same numbers in float64."""
    inputs, targets, ocean = (t.double() if t.is_floating_point() else t for t in case[1:4])
    return Case(copy.deepcopy(case.model).double(), inputs, targets, ocean, case.reset, case.valid)


def neighbour(case: Case, seed: int) -> Case:
    """The case in float64 with each weight and the ocean moved by up to one float32 rounding of their own.

    A float32 sum of products is the exact one of numbers moved by so much or a little more, in whichever order
    the processor takes it.
    """
    g = torch.Generator().manual_seed(seed)
    moved = exact(case)
    with torch.no_grad():
        for values in (*moved.model.parameters(), moved.ocean):
            values *= 1 + ROUNDING * (2 * torch.rand(values.shape, generator=g, dtype=torch.float64) - 1)
    return moved


def deviation(found: Tensor, expected: Tensor) -> float:
    """|found − expected| / |expected|, Euclidean: it varies less from one rounding to another than the largest."""
    size = ((found.double() - expected).norm() / expected.norm().clamp(min=1e-300)).item()
    return size if math.isfinite(size) else math.inf


def yardstick(case: Case, compute: Callable[[Case], Results]) -> tuple[Results, dict[str, float]]:
    """What `compute` gives in float64, and how far each float32 result of `case` may be from it.

    float32 itself must cost what the plain loop's own float32 costs, or what moving the weights by a rounding
    does: how much that is depends on the case. So the limits come from it, and no processor decides.
    """
    expected = compute(exact(case))
    others = [compute(case), *(compute(neighbour(case, seed)) for seed in range(NEIGHBOURS))]
    spread = {name: max(deviation(other[name], expected[name]) for other in others) for name in expected}
    return expected, {name: FACTOR * spread[name] + ROUNDINGS * ROUNDING for name in expected}


def share(found: Results, expected: Results, limits: dict[str, float]) -> tuple[float, str]:
    """The largest deviation as a share of its limit, and whose it is."""
    assert found.keys() == expected.keys()
    return max((deviation(found[name], expected[name]) / limits[name], name) for name in expected)


def oracle(case: Case, truncate: int | None = None) -> dict[str, Tensor]:
    """The serial reference: loss, last ocean, the initial ocean's gradient and every parameter's."""
    weights = {name: p.detach().double().numpy() for name, p in case.model.named_parameters()}
    masks = [None if m is None else m.numpy() for m in (case.reset, case.valid)]
    window = serial.run(
        case.model.config,
        weights,
        case.inputs.numpy(),
        case.targets.numpy(),
        case.ocean.numpy(),
        *masks,
        truncate,
    )
    found = {"loss": np.float64(window.loss), "last": window.ocean, "ocean": window.ocean_gradient}
    return {name: torch.as_tensor(value) for name, value in (found | window.gradients).items()}


def gradients(case: Case, relay: Relay) -> dict[str, Tensor]:
    """Loss, last ocean, the initial ocean's gradient and every parameter's, by autograd through `relay`."""
    case.model.zero_grad()
    ocean = case.ocean.clone().requires_grad_()
    outputs, last = case.model(case.inputs, ocean, reset=case.reset, valid=case.valid, relay=relay)
    losses = position_loss(case.model.config, outputs, case.targets)
    loss = losses.mean() if case.valid is None else losses[case.valid].sum() / case.valid.sum().clamp(min=1)
    loss.backward()
    found = {"loss": loss.detach(), "last": last.detach(), "ocean": ocean.grad}
    return found | {name: p.grad for name, p in case.model.named_parameters()}
