"""What Ocean BPTT's two serial loops share, in PyTorch (ocean_train.bptt) and in C++ (ocean_train.native).

Axes: B batch, T steps, D width, L layers, H heads, F = 4D. Tensors of a step are time-major, so that a step's
rows lie together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Matrices(NamedTuple):
    """All layers' weights with LayerNorm's affine part folded in; (out, in) as in PyTorch."""

    wqkv: Tensor  # (L, 3D, D)
    bqkv: Tensor  # (L, 3D)
    wo: Tensor  # (L, D, D)
    w1: Tensor  # (L, F, D)
    b1: Tensor  # (L, F)
    w2: Tensor  # (L, D, F)
    b2: Tensor  # (L, D)


class Leak(NamedTuple):
    """Leaky integration: oₜ = decay ⊙ oₜ₋₁ + rest ⊙ (the last layer's output)."""

    decay: Tensor  # (D,), λ
    rest: Tensor  # (D,), 1 − λ
    learned: bool  # whether the backward pass has to give λ's gradient


@dataclass
class Tape:
    """What a run of T steps leaves for its backward pass, which overwrites qkv, kvo and slope.

    Where `keep` is False only one slot exists for all steps and layers (no backward pass will come).
    """

    keep: bool
    x0: Tensor  # (T, B, D)
    mean0: Tensor  # (T, B, 1), of x0
    inv0: Tensor  # (T, B, 1), 1/σ of x0
    qkv0: Tensor  # (T, B, 3D), layer 1's
    hat1: Tensor  # (L, T, B, D), LN1's x̂
    inv1: Tensor  # (L, T, B)
    qkv: Tensor  # (L, T, B, 3D)
    kvo: Tensor  # (T, B, L, 2D)
    a: Tensor  # (L, T, B, H)
    y: Tensor  # (L, T, B, D)
    hat2: Tensor  # (L, T, B, D), LN2's x̂
    inv2: Tensor  # (L, T, B)
    g: Tensor  # (L, T, B, F), gelu(h)
    slope: Tensor  # (L, T, B, F), gelu'(h)
    ohat: Tensor  # (T, B, D), x̂ of the previous ocean
    oinv: Tensor  # (T, B)
    dmid: Tensor  # (L, T, B, D), written backward: the gradient after the attention
    dout: Tensor  # (L, T, B, D), written backward: the gradient after the layer
    change: Tensor  # (T, B, D), oₜ₋₁ minus the last layer's output; no steps where λ is not learned
    memory: Tensor  # what all but x0, mean0 and inv0 are views of


class Gradients(NamedTuple):
    """What the serial backward loop gives beside what it writes into the tape."""

    dx0: Tensor  # (T, B, D), without what layer 1's q, k, v send
    d_ocean0: Tensor  # (B, D)
    dbqkv: Tensor  # (L, 3D)
    db1: Tensor  # (L, F)
    db2: Tensor  # (L, D)
    d_decay: Tensor | None  # (D,), where λ is learned
