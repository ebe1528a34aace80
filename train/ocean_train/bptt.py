"""Ocean BPTT, fast: the exact chain through time as one autograd function, x⁰ (B, T, D) -> oceans (B, T, D).

What makes it fast, in both versions of the two serial loops (PyTorch here, C++ in relay.cpp):
- LayerNorm's affine part is folded into the matrix after it: LN(x) W = x̂ (g∘W) + b W.
- Layer 1's x̂, q, k, v depend on the tokens alone and are computed for all T at once.
- The ocean is the same for each layer: one product a step gives its keys and values for all of them.
- Backward, only the state's gradient is on the serial path. What the weights need is left in the tape, and
  each weight's gradient becomes one product over T·B rows.
The equations are in docs/bptt.md. Tensors of a step are time-major, so that a step's rows lie together.

Axes: B batch, T steps, D width, L layers, H heads, K = D/H, F = 4D.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler here

from ocean_train import native
from ocean_train.folding import PARAMETERS, fold, stack, unfold
from ocean_train.leak import along_the_leak
from ocean_train.memory import hoist, return_memory
from ocean_train.model import LAYER_NORM_EPS, Block, OceanCore, plain_relay, traced, without_autocast
from ocean_train.tape import Gradients, Leak, Matrices, Tape

KEPT_BYTES = 2**31
"""Where the tape of a window would be larger, it is recomputed in chunks of steps that fit."""


def relay(
    model: OceanCore,
    x: Tensor,
    ocean: Tensor,
    reset: Tensor | None,
    valid: Tensor | None,
    *,
    truncate: int | None = None,
    keep: int | None = None,
    reads: bool = True,
    use_native: bool = True,
) -> Tensor:
    """All oceans of a window, (B, T, D), with the exact gradient.

    `truncate` cuts the ocean's gradient every so many steps: it is exactly zero beyond. `keep` is the number
    of steps whose intermediates are held at once (None: as many as fit in KEPT_BYTES); a longer window is
    recomputed from stored oceans, chunk by chunk, with the same gradient. Without `reads` no gradient passes from
    a token to the ocean that it read: between steps it follows the leak alone (none, where there is no leak).

    The backward pass is written out for `Block`. A model with blocks of its own goes through the plain loop,
    which has neither option: ValueError.
    """
    # torch.compile leaves its graph here and comes back to it afterwards.
    run = _run_uncompiled if torch.compiler.is_dynamo_compiling() else _run
    return run(model, x, ocean, reset, valid, truncate, keep, reads, use_native)


def _run(
    model: OceanCore,
    x: Tensor,
    ocean: Tensor,
    reset: Tensor | None,
    valid: Tensor | None,
    truncate: int | None,
    keep: int | None,
    reads: bool,
    use_native: bool,
) -> Tensor:
    own = not written_out(model)
    if own and (truncate, keep) != (None, None):
        raise ValueError("truncate and keep are for the model's own blocks, not for variants of them")
    if own or traced():
        return plain_relay(model, x, ocean, reset, valid)
    _check(model, x, ocean, reset, valid)
    parameters = [attrgetter(name)(block) for block in model.blocks for name in PARAMETERS]
    decay = model.decay()
    given = [x, ocean, *parameters] if decay is None else [x, ocean, decay, *parameters]
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    if keep is None:
        step_bytes = 20 * model.config.layers * x[:, 0].numel() * x.element_size()
        keep = max(1, KEPT_BYTES // max(step_bytes, 1))
    options = _Options(model.config.heads, truncate, keep, wanted, reads, use_native)
    with without_autocast(x):
        oceans: Tensor = _Chain.apply(x, ocean, decay, reset, valid, options, *parameters)  # type: ignore[no-untyped-call]
    return oceans


_run_uncompiled = _disable_dynamo(_run)


def written_out(model: OceanCore) -> bool:
    """Whether the backward pass here is that of the model's blocks, and not of others in their place.

    It reads the weights and calls no module of a block, so that each must be what it was built as, without hooks.
    """
    return all(type(block) is Block and all(map(_plain, block.modules())) for block in model.blocks)


def _plain(module: nn.Module) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return type(module) in (Block, nn.Linear, nn.LayerNorm) and not hooked and not module._backward_pre_hooks


class _Options(NamedTuple):
    heads: int
    truncate: int | None
    keep: int  # steps held at once
    wanted: bool  # whether a backward pass may come
    reads: bool  # whether the read path carries gradient from step to step
    use_native: bool


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        ocean: Tensor,
        decay: Tensor | None,
        reset: Tensor | None,
        valid: Tensor | None,
        options: _Options,
        *parameters: Tensor,
    ) -> Tensor:
        stacked = stack(parameters)
        matrices = fold(stacked)
        leak = None if decay is None else Leak(decay, 1 - decay, options.wanted and ctx.needs_input_grad[2])
        loops = native.loops(matrices, leak) if options.use_native else None
        pieces = _pieces(x.shape[1], options.keep)
        found: list[Tensor] = []
        for piece in pieces:
            before = found[-1][:, -1] if found else ocean
            keep = options.wanted and piece is pieces[-1]  # the backward pass begins with this one
            part, tape = _forward(
                matrices, leak, loops, options.heads, piece, x, before, reset, valid, keep=keep
            )
            found.append(part)
            if not keep:
                return_memory(tape)
        oceans = found[0] if len(found) == 1 else torch.cat(found, 1)
        ctx.save_for_backward(x, ocean, reset, valid, oceans)
        ctx.options, ctx.loops, ctx.stacked, ctx.matrices, ctx.leak = options, loops, stacked, matrices, leak
        ctx.tape = tape if options.wanted else None
        return oceans

    @staticmethod
    def backward(ctx: Any, d_oceans: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad(), without_autocast(d_oceans):
            found = _gradients(ctx, d_oceans)
        if not torch.is_grad_enabled():
            return found
        again = [None if d is None else d.requires_grad_() for d in found]
        refused: tuple[Tensor | None, ...] = _Once.apply(*again)  # type: ignore[no-untyped-call]
        return refused


class _Once(torch.autograd.Function):
    """Gradients taken with create_graph=True, which the chain can't differentiate once more."""

    @staticmethod
    def forward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(None if d is None else d.view_as(d) for d in gradients)

    @staticmethod
    def backward(ctx: Any, *args: Tensor) -> None:
        raise RuntimeError(
            "the Ocean's gradient can't be differentiated a second time: its backward pass is written out for first "
            "derivatives; for a gradient penalty, loop over step, which PyTorch differentiates as often as you like"
        )


def _gradients(ctx: Any, d_oceans: Tensor) -> tuple[Tensor | None, ...]:
    """What `_Chain` sends back. A tape serves one pass; where the graph is kept for another, that recomputes it."""
    options: _Options = ctx.options
    x, ocean, reset, valid, oceans = ctx.saved_tensors
    tape, ctx.tape = ctx.tape, None
    stop = _stops(x, reset, options.truncate)
    leak: Leak | None = ctx.leak
    sums: Matrices | None = None
    d_decay = torch.zeros_like(leak.decay) if leak is not None and leak.learned else None
    dx: list[Tensor] = []
    carry = torch.zeros_like(ocean)
    for piece in reversed(_pieces(x.shape[1], options.keep)):
        if tape is None:
            before = oceans[:, piece.start - 1] if piece.start else ocean
            _, tape = _forward(
                ctx.matrices, leak, ctx.loops, options.heads, piece, x, before, reset, valid, keep=True
            )
        d_part = d_oceans[:, piece].clone(memory_format=torch.contiguous_format)
        d_part[:, -1] += carry
        stops, lives = (None if m is None else m[:, piece] for m in (stop, valid))
        if not options.reads:
            d_part, carry = along_the_leak(leak, d_part, stops, lives)
        masks = [None if m is None else m.t().contiguous() for m in (stops, lives)]
        if options.truncate == 1 or not options.reads:
            run = partial(backward_at_once, ctx.matrices, leak)
        else:
            run = ctx.loops.backward if ctx.loops else partial(torch_backward, ctx.matrices, leak)
        gradients = run(tape, d_part, *masks)
        if options.reads:
            carry = gradients.d_ocean0
        if d_decay is not None and gradients.d_decay is not None:
            d_decay += gradients.d_decay
        dx.append(_token_gradient(ctx.matrices, tape, gradients).transpose(0, 1))
        sums = _add(sums, weight_gradients(tape, gradients))
        return_memory(tape)
        tape = None
    assert sums is not None
    back = [dx[0] if len(dx) == 1 else torch.cat(dx[::-1], 1), carry, d_decay, None, None, None]
    return (*back, *unfold(ctx.stacked, sums))


def _pieces(T: int, keep: int) -> list[slice]:
    """The window in pieces of `keep` steps, the first of which may be shorter."""
    ends = [*range(T, 0, -keep)][::-1]
    return [slice(max(0, end - keep), end) for end in ends]


def _forward(
    matrices: Matrices,
    leak: Leak | None,
    loops: native.Loops | None,
    heads: int,
    piece: slice,
    x: Tensor,
    ocean: Tensor,
    reset: Tensor | None,
    valid: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tape]:
    """A piece's oceans (B, steps, D) from the ocean before it: token-only work at once, then the serial loop."""
    tape = hoist(matrices, heads, x[:, piece], keep, learned=leak is not None and leak.learned)
    masks = [None if m is None else m[:, piece].t().contiguous() for m in (reset, valid)]  # (T, B)
    run = loops.forward if loops else partial(torch_forward, matrices, leak)
    return run(tape, ocean.contiguous(), *masks), tape


def torch_forward(
    matrices: Matrices,
    leak: Leak | None,
    tape: Tape,
    ocean: Tensor,
    reset: Tensor | None,
    valid: Tensor | None,
) -> Tensor:
    """The serial loop forward: ocean (B, D), reset and valid (T, B) -> oceans (B, T, D); fills the tape."""
    T, B, D = tape.x0.shape
    L, H = len(matrices.wo), tape.a.shape[-1]
    root = 1 / math.sqrt(D // H)
    wkv = matrices.wqkv[:, D:].reshape(-1, D).t()  # (D, 2DL), all layers at once
    bkv = matrices.bqkv[:, D:].reshape(-1)
    oceans = ocean.new_empty(B, T, D)
    for t in range(T):
        if reset is not None:
            ocean = torch.where(reset[t, :, None], 0.0, ocean)
        at = t if tape.keep else 0
        tape.ohat[at], tape.oinv[at] = _normalise(ocean)
        kvo = torch.addmm(bkv, tape.ohat[at], wkv).view(B, L, 2, H, -1)
        tape.kvo[at] = kvo.view(B, L, -1)
        x = tape.x0[t]
        for layer in range(L):
            slot = (layer, t) if tape.keep else (0, 0)
            if layer == 0:
                qkv = tape.qkv0[t]
            else:
                deep = slot if tape.keep else (1, 0)
                tape.hat1[deep], tape.inv1[deep] = _normalise(x)
                qkv = torch.addmm(matrices.bqkv[layer], tape.hat1[deep], matrices.wqkv[layer].t())
                tape.qkv[deep] = qkv
            q, k, v = qkv.view(B, 3, H, -1).unbind(1)
            k_ocean, v_ocean = kvo[:, layer].unbind(1)
            a = torch.sigmoid((q * (k_ocean - k)).sum(-1, keepdim=True) * root)
            tape.a[slot] = a[..., 0]
            y = torch.lerp(v, v_ocean, a).view(B, D)
            tape.y[slot] = y
            x = torch.addmm(x, y, matrices.wo[layer].t())
            tape.hat2[slot], tape.inv2[slot] = _normalise(x)
            h = torch.addmm(matrices.b1[layer], tape.hat2[slot], matrices.w1[layer].t())
            cdf = 0.5 * (1 + torch.erf(h * math.sqrt(0.5)))
            g = h * cdf
            tape.g[slot] = g
            tape.slope[slot] = cdf + h * torch.exp(-0.5 * h * h) * (1 / math.sqrt(2 * math.pi))
            x = x + torch.addmm(matrices.b2[layer], g, matrices.w2[layer].t())
        if len(tape.change):
            tape.change[t] = ocean - x
        after = x if leak is None else leak.decay * ocean + leak.rest * x
        ocean = after if valid is None else torch.where(valid[t, :, None], after, ocean)
        oceans[:, t] = ocean
    return oceans


def torch_backward(
    matrices: Matrices,
    leak: Leak | None,
    tape: Tape,
    d_oceans: Tensor,
    stop: Tensor | None,
    valid: Tensor | None,
) -> Gradients:
    """The serial loop backward: d_oceans (B, T, D), stop (a reset or a cut) and valid (T, B)."""
    T, B, D = tape.x0.shape
    L, H = len(matrices.wo), tape.a.shape[-1]
    root = 1 / math.sqrt(D // H)
    dx0 = torch.empty_like(tape.x0)
    wkv = matrices.wqkv[:, D:].reshape(-1, D)  # (2DL, D)
    d_ocean = torch.zeros_like(d_oceans[:, 0])
    d_decay = d_oceans.new_zeros(D) if len(tape.change) else None
    for t in reversed(range(T)):
        d_ocean = d_ocean + d_oceans[:, t]
        dx = d_ocean if valid is None else torch.where(valid[t, :, None], d_ocean, 0.0)
        if d_decay is not None:
            d_decay += (dx * tape.change[t]).sum(0)
        if leak is not None:
            dx = leak.rest * dx
        for layer in reversed(range(L)):
            slot = (layer, t)
            tape.dout[slot] = dx
            dh = (dx @ matrices.w2[layer]).mul_(tape.slope[slot])
            tape.slope[slot] = dh
            dx = dx + _normalise_backward(dh @ matrices.w1[layer], tape.hat2[slot], tape.inv2[slot])
            tape.dmid[slot] = dx
            dy = (dx @ matrices.wo[layer]).view(B, H, -1)
            q, k, v = tape.qkv[slot].view(B, 3, H, -1).unbind(1)
            k_ocean, v_ocean = tape.kvo[t, :, layer].view(B, 2, H, -1).unbind(1)
            a = tape.a[slot][..., None]
            ds = a * (1 - a) * (dy * (v_ocean - v)).sum(-1, keepdim=True) * root
            dq, dk_ocean, dv_ocean = ds * (k_ocean - k), ds * q, a * dy
            tape.qkv[slot] = torch.stack([dq, -dk_ocean, dy - dv_ocean], 1).view(B, -1)
            tape.kvo[t, :, layer] = torch.stack([dk_ocean, dv_ocean], 1).view(B, -1)
            if layer > 0:
                d_hat = tape.qkv[slot] @ matrices.wqkv[layer]
                dx = dx + _normalise_backward(d_hat, tape.hat1[slot], tape.inv1[slot])
        dx0[t] = dx
        back = _normalise_backward(tape.kvo[t].view(B, -1) @ wkv, tape.ohat[t], tape.oinv[t])
        if leak is not None:
            back = back + leak.decay * d_ocean
        # A frozen row passes its gradient on untouched.
        d_ocean = back if valid is None else torch.where(valid[t, :, None], back, d_ocean)
        if stop is not None:
            d_ocean = torch.where(stop[t, :, None], 0.0, d_ocean)
    dbqkv = tape.qkv.sum((1, 2))
    dbqkv[:, D:] += tape.kvo.sum((0, 1))
    return Gradients(dx0, d_ocean, dbqkv, tape.slope.sum((1, 2)), tape.dout.sum((1, 2)), d_decay)


STEPS_FIRST = ("x0", "mean0", "inv0", "qkv0", "kvo", "ohat", "oinv")
LAYERS_FIRST = ("hat1", "inv1", "qkv", "a", "y", "hat2", "inv2", "g", "slope", "dmid", "dout")


def backward_at_once(
    matrices: Matrices,
    leak: Leak | None,
    tape: Tape,
    d_oceans: Tensor,
    stop: Tensor | None,
    valid: Tensor | None,
) -> Gradients:
    """`torch_backward` where `stop` lets nothing pass between steps: T·B rows of one step, and nothing serial."""
    T, B, D = tape.x0.shape
    one_step = replace(
        tape,
        change=tape.change.view(min(len(tape.change), 1), T * B, D),
        **{name: getattr(tape, name).view(1, T * B, *getattr(tape, name).shape[2:]) for name in STEPS_FIRST},
        **{name: getattr(tape, name).flatten(1, 2)[:, None] for name in LAYERS_FIRST},
    )
    masks = [None if m is None else m.view(1, T * B) for m in (stop, valid)]
    found = torch_backward(matrices, leak, one_step, d_oceans.transpose(0, 1).reshape(T * B, 1, D), *masks)
    return found._replace(dx0=found.dx0.view(T, B, D), d_ocean0=found.d_ocean0[:B])


def weight_gradients(tape: Tape, gradients: Gradients) -> Matrices:
    """The deferred part: each folded weight's gradient, one product over all T·B rows."""
    L, T, B, D = tape.y.shape

    def over_rows(d: Tensor, inputs: Tensor) -> Tensor:  # (L, T, B, N), (L, T, B, M) -> (L, N, M)
        rows, inputs = (t.view(L, T * B, t.shape[-1]) for t in (d, inputs))
        return torch.bmm(rows.transpose(1, 2), inputs)

    dwqkv = over_rows(tape.qkv, tape.hat1)
    d_ocean_side = tape.kvo.view(T * B, 2 * D * L).t() @ tape.ohat.view(T * B, D)  # (2DL, D)
    dwqkv[:, D:] += d_ocean_side.view(L, 2 * D, D)
    return Matrices(
        dwqkv,
        gradients.dbqkv,
        over_rows(tape.dmid, tape.y),
        over_rows(tape.slope, tape.hat2),
        gradients.db1,
        over_rows(tape.dout, tape.g),
        gradients.db2,
    )


def _token_gradient(matrices: Matrices, tape: Tape, gradients: Gradients) -> Tensor:
    """dx⁰ (T, B, D): the residual path, and layer 1's q, k, v for all T at once."""
    T, B, D = tape.x0.shape
    d_hat = tape.qkv[0].view(T * B, 3 * D) @ matrices.wqkv[0]
    through, _, _ = torch.ops.aten.native_layer_norm_backward(
        d_hat.view(T, B, D), tape.x0, (D,), tape.mean0, tape.inv0, None, None, (True, False, False)
    )
    dx: Tensor = gradients.dx0 + through
    return dx


def _normalise(x: Tensor) -> tuple[Tensor, Tensor]:
    hat, _, inv = torch.native_layer_norm(x, (x.shape[-1],), None, None, LAYER_NORM_EPS)
    return hat, inv[..., 0]


def _normalise_backward(d: Tensor, hat: Tensor, inv: Tensor) -> Tensor:
    """(dx̂ − mean(dx̂) − x̂ mean(dx̂ x̂)) / σ"""
    centred = d - d.mean(-1, keepdim=True) - hat * (d * hat).mean(-1, keepdim=True)
    dx: Tensor = centred * inv[..., None]
    return dx


def _stops(x: Tensor, reset: Tensor | None, truncate: int | None) -> Tensor | None:
    """(B, T): where no gradient passes to the previous ocean; a reset, or the edge of a truncated window."""
    if truncate is None or truncate >= x.shape[1]:
        return reset
    steps = torch.arange(x.shape[1], device=x.device)
    cut = ((steps > 0) & (steps % truncate == 0)).expand(x.shape[:2])
    return cut if reset is None else cut | reset


def _check(model: OceanCore, x: Tensor, ocean: Tensor, reset: Tensor | None, valid: Tensor | None) -> None:
    """The native loops trust shapes and dtypes."""
    B, T, D = x.shape
    if T < 1:
        raise ValueError("a window needs at least one step; got none")
    dtypes = {p.dtype for p in model.blocks.parameters()}
    if ocean.shape != (B, D) or {x.dtype, ocean.dtype} | dtypes != {x.dtype}:
        raise ValueError(
            f"the ocean must be ({B}, {D}) in the model's dtype {x.dtype}, "
            f"not {tuple(ocean.shape)} in {ocean.dtype}"
        )
    for name, mask in (("reset", reset), ("valid", valid)):
        if mask is not None and (mask.shape != (B, T) or mask.dtype != torch.bool):
            raise ValueError(f"{name} must be ({B}, {T}) bool, not {tuple(mask.shape)} {mask.dtype}")


def _add(total: Matrices | None, part: Matrices) -> Matrices:
    return part if total is None else Matrices(*(a.add_(b) for a, b in zip(total, part, strict=True)))
