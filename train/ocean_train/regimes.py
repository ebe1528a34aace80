"""The training regimes: how the oceans of a window are computed, and what gradient flows through them.

`full` trains the exact chain through time; `detach` computes the oceans first, without gradient, then
trains all T steps in parallel with the oceans as constants.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocean_train.model import OceanTransformer, Relay, plain_relay, position_loss


def detach_relay(
    model: OceanTransformer, x: Tensor, ocean: Tensor, reset: Tensor | None, valid: Tensor | None
) -> Tensor:
    """All T steps at once from oceans computed beforehand without gradient; the same values as `full`."""
    with torch.no_grad():
        oceans = plain_relay(model, x, ocean, reset, valid)
        before = torch.cat([ocean[:, None], oceans[:, :-1]], dim=1)
        if reset is not None:
            before = torch.where(reset[..., None], torch.zeros_like(before), before)
    after = model.advance(x, before)
    return after if valid is None else torch.where(valid[..., None], after, before)


RELAYS: dict[str, Relay] = {"full": plain_relay, "detach": detach_relay}


def relay(regime: str) -> Relay:
    """The relay of a regime; raises ValueError for an unknown one."""
    if regime not in RELAYS:
        raise ValueError(f"unknown regime {regime!r}; choose {' or '.join(RELAYS)}")
    return RELAYS[regime]


def backward(
    model: OceanTransformer,
    regime: str,
    inputs: Tensor,
    targets: Tensor,
    ocean: Tensor | None = None,
    reset: Tensor | None = None,
    valid: Tensor | None = None,
) -> tuple[float, Tensor]:
    """One window forward and backward: adds the loss's gradient to every `.grad`.

    inputs (B, T) or (B, T, M), targets (B, T) or (B, T, outputs), ocean (B, D) or None, reset and valid
    (B, T) bool or None. Returns the mean loss over the valid steps and the ocean after the window (B, D),
    cut from the graph.
    """
    outputs, ocean = model(inputs, ocean, reset=reset, valid=valid, relay=relay(regime))
    losses = position_loss(model.config, outputs, targets)
    loss = losses.mean() if valid is None else losses[valid].mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), ocean.detach()
