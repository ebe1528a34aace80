"""The training regimes: how the oceans of a window are computed, and what gradient flows through them.

- `serial`: the chain by hand in NumPy float64 (ocean_train.serial). The oracle; slow, and trains.
- `full`: the exact chain through time, fast (ocean_train.bptt).
- `detach`: the same oceans as constants, so that no gradient passes from step to step.

Axes: B batch, T steps, D width, M observation features.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ocean_train import bptt, serial
from ocean_train.leak import leaky_scan
from ocean_train.model import OceanConfig, OceanCore, OceanTransformer, Relay, position_loss

REGIMES = ("serial", "full", "detach")


def relay(
    regime: str, *, truncate: int | None = None, keep: int | None = None, sweeps: int | None = None
) -> Relay:
    """The relay of `full` or `detach`; ValueError for an unknown regime, or an option that is another's.

    `truncate` (full): cut the ocean's gradient every so many steps. `keep` (full): hold the intermediates of
    so many steps at once and recompute the rest. `sweeps` (detach): see `detach_relay`.
    """
    check_options(regime, truncate, keep, sweeps)
    if regime == "detach":
        return partial(detach_relay, sweeps=sweeps)
    return partial(bptt.relay, truncate=truncate, keep=keep)


def detach_relay(
    model: OceanCore,
    x: Tensor,
    ocean: Tensor,
    reset: Tensor | None,
    valid: Tensor | None,
    *,
    sweeps: int | None = None,
) -> Tensor:
    """The oceans of `full`, read as constants: the backward pass is one over all T steps at once.

    With leaky integration the gradient still follows the leak from step to step, exactly: that path is a linear
    scan, which is parallel over time. Nothing passes through what the tokens read.

    With `sweeps` = K nothing is serial: K times, all T steps are computed at once from the oceans of the
    sweep before (the first sweep's are zero), and only the last sweep has a gradient. A sweep makes one more
    step exact, so that K = T is exact and fewer are an approximation.
    """
    if sweeps is None and bptt.written_out(model):
        return bptt.relay(model, x, ocean.detach(), reset, valid, reads=False)
    with torch.no_grad():
        if sweeps is None:
            oceans = bptt.relay(model, x, ocean, reset, valid)
        else:
            oceans = torch.zeros_like(x)
            for _ in range(sweeps - 1):
                oceans = _sweep(model, x, oceans, ocean, reset, valid)
    return _sweep(model, x, oceans, ocean.detach(), reset, valid)


def _before(oceans: Tensor, ocean: Tensor, reset: Tensor | None) -> Tensor:
    """oₜ₋₁ for each t, (B, T, D)."""
    before = torch.cat([ocean[:, None], oceans[:, :-1]], dim=1)
    return before if reset is None else torch.where(reset[..., None], 0.0, before)


def _sweep(
    model: OceanCore,
    x: Tensor,
    oceans: Tensor,
    ocean: Tensor,
    reset: Tensor | None,
    valid: Tensor | None,
) -> Tensor:
    """All T steps at once, each of which reads `oceans` (B, T, D) as they are; the leak is followed exactly."""
    before = _before(oceans, ocean, reset)
    out = model.through_blocks(x, before)
    decay = model.decay()
    if decay is None:
        return out if valid is None else torch.where(valid[..., None], out, before)
    share, added = decay.expand_as(out), (1 - decay) * out
    if valid is not None:
        share = torch.where(valid[..., None], share, 1.0)
        added = torch.where(valid[..., None], added, 0.0)
    if reset is not None:
        share = torch.where(reset[..., None], 0.0, share)
    first = share[:, :1] * ocean[:, None] + added[:, :1]
    return leaky_scan(share, torch.cat([first, added[:, 1:]], 1))


def backward(
    model: nn.Module,
    regime: str,
    inputs: Tensor,
    targets: Tensor,
    ocean: Tensor | None = None,
    reset: Tensor | None = None,
    valid: Tensor | None = None,
    *,
    truncate: int | None = None,
    keep: int | None = None,
    sweeps: int | None = None,
) -> tuple[float, Tensor]:
    """One window forward and backward: adds the loss's gradient to every `.grad`.

    inputs (B, T) or (B, T, M), targets (B, T) or (B, T, outputs), ocean (B, D) or None, reset and valid
    (B, T) bool or None; `relay` has the options. Returns the mean loss over the valid steps and the ocean
    after the window (B, D), cut from the graph. Whatever stands in padded inputs and targets is ignored.
    Raises ValueError where a tensor is not of that shape and kind, or a token is not one of the model's.

    The model may be a baseline (ocean_train.baselines), which has no regimes, and may be wrapped in
    DistributedDataParallel: then loss and gradient are those of all processes' rows together.
    """
    check_options(regime, truncate, keep, sweeps)
    shared = isinstance(model, DistributedDataParallel)
    module: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    config = module.config
    assert isinstance(config, OceanConfig)
    _check_window(config, inputs, targets, reset, valid)
    if isinstance(module, OceanTransformer) and ocean is not None:
        _check("ocean", ocean, (len(inputs), config.width), "real")
    if regime != "serial":  # which computes in float64 whatever it is given
        _check_dtypes(module, {"inputs": inputs, "targets": targets, "ocean": ocean})
    if valid is not None:
        inputs, targets = (_blank(t, valid) for t in (inputs, targets))
    count = torch.tensor(float(inputs.shape[0] * inputs.shape[1] if valid is None else valid.sum()))
    if shared:
        count = count.to(inputs.device)
        dist.all_reduce(count)
    if isinstance(module, OceanTransformer) and regime == "serial":
        loss, after = _serial_backward(module, inputs, targets, ocean, reset, valid, truncate, count, shared)
    else:
        options = {"reset": reset, "valid": valid}
        if isinstance(module, OceanTransformer):
            how = relay(regime, truncate=truncate, keep=keep, sweeps=sweeps)
            outputs, after = model(inputs, ocean, relay=how, **options)
        else:
            outputs, after = model(inputs, ocean, **options)
        losses = position_loss(config, outputs, targets)
        loss = (losses if valid is None else losses[valid]).sum() / count.clamp(min=1).to(losses)
        mean_of = dist.get_world_size() if shared else 1  # DDP takes the mean over processes
        (loss * mean_of).backward()  # type: ignore[no-untyped-call]
        loss = loss.detach()
    if shared:
        dist.all_reduce(loss)
    return loss.item(), after.detach()


def predict(
    model: nn.Module,
    inputs: Tensor,
    state: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs and state without gradient, the fastest way there is: model(inputs, state) for any model."""
    _check_dtypes(model, {"inputs": inputs, "state": state})
    with torch.no_grad():
        if isinstance(model, OceanTransformer):
            outputs, state = model(inputs, state, reset=reset, valid=valid, relay=bptt.relay)
        else:
            outputs, state = model(inputs, state, reset=reset, valid=valid)
    return outputs, state


def _serial_backward(
    model: OceanTransformer,
    inputs: Tensor,
    targets: Tensor,
    ocean: Tensor | None,
    reset: Tensor | None,
    valid: Tensor | None,
    truncate: int | None,
    count: Tensor,
    shared: bool,
) -> tuple[Tensor, Tensor]:
    def array(t: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        numbers = t.detach().cpu()
        return np.asarray(numbers.double() if numbers.is_floating_point() else numbers)

    parameters = dict(model.named_parameters())
    window = serial.run(
        model.config,
        {name: array(p) for name, p in parameters.items()},
        array(inputs),
        array(targets),
        None if ocean is None else array(ocean),
        None if reset is None else reset.cpu().numpy(),
        None if valid is None else valid.cpu().numpy(),
        truncate,
    )
    rows = inputs.shape[0] * inputs.shape[1] if valid is None else int(valid.sum())
    share = rows / max(count.item(), 1)  # of the mean over all processes
    for name, p in parameters.items():
        gradient = torch.from_numpy(window.gradients[name] * share).to(p)
        if shared:
            dist.all_reduce(gradient)
        p.grad = gradient if p.grad is None else p.grad + gradient
    like = model.head.weight
    loss = torch.tensor(window.loss * share, dtype=torch.float64)
    return loss.to(like.device) if shared else loss, torch.from_numpy(window.ocean).to(like)


def _blank(values: Tensor, valid: Tensor) -> Tensor:
    """Zeros where padded: a NaN there would otherwise reach the gradient as 0 · NaN."""
    return torch.where(valid.view(*valid.shape, *[1] * (values.dim() - 2)), values, 0)


def _check_window(
    config: OceanConfig, inputs: Tensor, targets: Tensor, reset: Tensor | None, valid: Tensor | None
) -> None:
    """ValueError where the window is not one: PyTorch would broadcast some of these and train on them."""
    if inputs.dim() < 2 or not inputs.shape[0] or not inputs.shape[1]:
        raise ValueError(f"inputs are {tuple(inputs.shape)}; a window has at least one row and one step")
    B, T = inputs.shape[:2]
    for name, mask in (("reset", reset), ("valid", valid)):
        if mask is not None:
            _check(name, mask, (B, T), "bool")
    tokens, numbers = config.kind == "tokens", config.head == "regression"
    _check("inputs", inputs, (B, T) if tokens else (B, T, config.inputs), "int64" if tokens else "real")
    _check("targets", targets, (B, T, config.outputs) if numbers else (B, T), "real" if numbers else "int64")
    for name, values, size in (("inputs", inputs, config.inputs), ("targets", targets, config.outputs)):
        seen = values if valid is None else values[valid]
        if values.dtype == torch.int64 and seen.numel() and not 0 <= seen.min() <= seen.max() < size:
            raise ValueError(
                f"{name} reach from {seen.min()} to {seen.max()}; the model's are 0 to {size - 1}"
            )


def _check_dtypes(model: nn.Module, given: Mapping[str, Tensor | None]) -> None:
    """ValueError where real numbers are not of the weights' dtype: PyTorch's own error names neither."""
    dtype = next(model.parameters()).dtype
    for name, values in given.items():
        if values is not None and values.is_floating_point() and values.dtype != dtype:
            found, wanted = (str(d).removeprefix("torch.") for d in (values.dtype, dtype))
            raise ValueError(
                f"{name} are {found} and the model's weights are {wanted}; convert the one or the other, as in "
                f"{name}.to(torch.{wanted})"
            )


def _check(name: str, found: Tensor, shape: tuple[int, ...], kind: str) -> None:
    fits = found.is_floating_point() if kind == "real" else found.dtype == getattr(torch, kind)
    if not fits or found.shape != shape:
        kind_found = str(found.dtype).removeprefix("torch.")
        raise ValueError(f"{name} must be {kind} of shape {shape}, not {kind_found} {tuple(found.shape)}")


def check_options(regime: str, truncate: int | None, keep: int | None, sweeps: int | None) -> None:
    """ValueError for an unknown regime, or an option that is another regime's."""
    if regime not in REGIMES:
        raise ValueError(f"unknown regime {regime!r}; choose {', '.join(REGIMES[:-1])} or {REGIMES[-1]}")
    allowed = {"serial": ("truncate",), "full": ("truncate", "keep"), "detach": ("sweeps",)}[regime]
    for name, value in (("truncate", truncate), ("keep", keep), ("sweeps", sweeps)):
        if value is None:
            continue
        if name not in allowed:
            raise ValueError(f"the regime {regime} has no option {name}; it has {' and '.join(allowed)}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a positive whole number or None, not {value}")
