"""The tape of a window: its memory, which is used again, and what is computed of all its tokens at once.

Axes: B batch, T steps, D width, L layers, H heads, F = 4D.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ocean_train.model import LAYER_NORM_EPS
from ocean_train.tape import Matrices, Tape


def hoist(matrices: Matrices, heads: int, x: Tensor, keep: bool, learned: bool) -> Tape:
    B, T, D = x.shape
    L, F = matrices.b1.shape
    slots, steps = (L, T) if keep else (1, 1)
    deep = max(slots, 2)  # layer 1's tensors and the others' are apart
    shapes = {
        "qkv0": (0 if keep else T, B, 3 * D), "hat1": (deep, steps, B, D), "inv1": (deep, steps, B),
        "qkv": (deep, steps, B, 3 * D), "kvo": (steps, B, L, 2 * D), "a": (slots, steps, B, heads),
        "y": (slots, steps, B, D), "hat2": (slots, steps, B, D), "inv2": (slots, steps, B),
        "g": (slots, steps, B, F), "slope": (slots, steps, B, F), "ohat": (steps, B, D), "oinv": (steps, B),
        "dmid": (slots if keep else 0, steps, B, D), "dout": (slots if keep else 0, steps, B, D),
        "change": (steps if keep and learned else 0, B, D),
    }  # fmt: skip
    sizes = [-(-math.prod(shape) // 16) * 16 for shape in shapes.values()]
    memory = _take_memory(sum(sizes), x)
    parts = torch.split(memory[: sum(sizes)], sizes)
    views = {
        name: part[: math.prod(shape)].view(shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
    x0 = x.transpose(0, 1).contiguous()
    hat0, mean0, inv0 = torch.native_layer_norm(x0, (D,), None, None, LAYER_NORM_EPS)
    if keep:
        views["hat1"][0] = hat0
        views["qkv0"] = views["qkv"][0]
        views["hat1"], views["qkv"], views["inv1"] = (views[name][:L] for name in ("hat1", "qkv", "inv1"))
    torch.addmm(matrices.bqkv[0], hat0.view(-1, D), matrices.wqkv[0].t(), out=views["qkv0"].view(-1, 3 * D))
    return Tape(keep=keep, x0=x0, mean0=mean0, inv0=inv0, memory=memory, **views)


_spare: list[Tensor] = []


def _take_memory(size: int, like: Tensor) -> Tensor:
    """Room for a tape, from the last one where it fits: fresh pages cost a tenth of a training step."""
    while _spare:
        memory = _spare.pop()
        if len(memory) >= size and memory.dtype == like.dtype and memory.device == like.device:
            return memory
    return like.new_empty(size)


def return_memory(tape: Tape) -> None:
    if tape.memory.device.type == "cpu":  # elsewhere torch's own allocator keeps memory
        _spare[:] = [max([*_spare, tape.memory], key=len)]
