"""Folding LayerNorm's affine part into the matrix after it, and the gradients of folded weights back out.

Axes: D width, L layers, F = 4D.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocean_train.tape import Matrices

PARAMETERS = (
    *("norm1.weight", "norm1.bias", "wq.weight", "wk.weight", "wv.weight", "wo.weight"),
    *("norm2.weight", "norm2.bias", "w1.weight", "w1.bias", "w2.weight", "w2.bias"),
)


def stack(parameters: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The parameters of all layers, in PARAMETERS' order for each, -> one tensor (L, ...) by name."""
    n = len(PARAMETERS)
    return {name: torch.stack(parameters[i::n]) for i, name in enumerate(PARAMETERS)}


def fold(w: dict[str, Tensor]) -> Matrices:
    """LN(x) Wᵀ = x̂ (W diag(g))ᵀ + W b, for the stacked weights of all layers."""
    w["wqkv"] = torch.cat([w["wq.weight"], w["wk.weight"], w["wv.weight"]], 1)
    g1, b1, g2, b2 = (w[f"norm{i}.{p}"] for i in (1, 2) for p in ("weight", "bias"))
    return Matrices(
        w["wqkv"] * g1[:, None],
        (w["wqkv"] @ b1[..., None])[..., 0],
        w["wo.weight"],
        w["w1.weight"] * g2[:, None],
        w["w1.bias"] + (w["w1.weight"] @ b2[..., None])[..., 0],
        w["w2.weight"],
        w["w2.bias"],
    )


def unfold(w: dict[str, Tensor], d: Matrices) -> list[Tensor]:
    """The folded weights' gradients -> the parameters', in PARAMETERS' order for each layer."""
    stacked: dict[str, Tensor] = {"wo.weight": d.wo, "w1.bias": d.b1, "w2.weight": d.w2, "w2.bias": d.b2}
    for norm, name, dw, db in (("norm1", "wqkv", d.wqkv, d.bqkv), ("norm2", "w1.weight", d.w1, d.b1)):
        stacked[f"{norm}.weight"] = (dw * w[name]).sum(1)
        stacked[f"{norm}.bias"] = (db[:, None] @ w[name])[:, 0]
        stacked[name] = dw * w[f"{norm}.weight"][:, None] + db[..., None] * w[f"{norm}.bias"][:, None]
    for name, part in zip(("wq.weight", "wk.weight", "wv.weight"), stacked["wqkv"].chunk(3, 1), strict=True):
        stacked[name] = part
    return [stacked[name][layer] for layer in range(len(d.wo)) for name in PARAMETERS]
