"""Leaky integration over all steps of a window at once: a linear scan, parallel over time.

Axes: B batch, T steps, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocean_train.tape import Leak


def leaky_scan(share: Tensor, added: Tensor) -> Tensor:
    """oₜ = shareₜ ⊙ oₜ₋₁ + addedₜ with o₀ = 0, for all t: (B, T, D), (B, T, D) -> (B, T, D).

    By doubling (Hillis and Steele, 1986): log₂ T passes over all steps at once, each with a gradient.
    """
    reach, T = 1, added.shape[1]
    while reach < T:
        before = added[:, :-reach]
        added = torch.cat([added[:, :reach], added[:, reach:] + share[:, reach:] * before], 1)
        share = torch.cat([share[:, :reach], share[:, reach:] * share[:, :-reach]], 1)
        reach *= 2
    return added


def along_the_leak(
    leak: Leak | None, d_oceans: Tensor, stop: Tensor | None, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What each ocean's gradient becomes with what the leak sends back from later steps, and what leaves the window.

    d_oceans (B, T, D), stop and valid (B, T) -> (B, T, D), (B, D).
    """
    if leak is None:
        return d_oceans, torch.zeros_like(d_oceans[:, 0])
    passes = leak.decay.expand_as(d_oceans)
    if valid is not None:
        passes = torch.where(valid[..., None], passes, 1.0)
    if stop is not None:
        passes = torch.where(stop[..., None], 0.0, passes)
    later = torch.cat([passes[:, 1:], torch.zeros_like(passes[:, :1])], 1)  # from step t + 1 to t
    total = leaky_scan(later.flip(1), d_oceans.flip(1)).flip(1)
    return total, passes[:, 0] * total[:, 0]
