"""The trained model with its matrices, and what they are multiplied with, rounded as the file's are.

This is what an int8 or int4 file is verified against. onnxruntime's product rounds its input too (each block of a row
to 8 bits, symmetric), and the standard operators of a portable file round all rows of a call together (8 bits,
asymmetric). A processor without dot-product instructions leaves the input as it is; both are right.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from ocean_train.model import LAYER_NORM_EPS, OceanTransformer
from torch import Tensor, nn

from ocean_export.build import Array
from ocean_export.lean import Folded, blocks, decay_of, fold, token_table
from ocean_export.precision import BITS, dequantise, per_block, per_column


class Product(nn.Linear):
    """x W with W rounded as `precision` rounds it, and x rounded where `rounds_input`."""

    def __init__(self, W: Array, precision: str, portable: bool, rounds_input: bool) -> None:
        """W: (in, out)."""
        super().__init__(W.shape[0], W.shape[1], bias=False)
        self.portable, self.rounds_input = portable, rounds_input
        self.unsteady = 0.0
        """By how much of a code, at most, numbers are moved before they are rounded, at random."""
        if portable:
            codes, scale = per_column(W)
            rounded = (codes.astype(float) - 128) * scale
            self.block = len(W)
        else:
            blocks, scales, self.block = per_block(W, BITS[precision])
            rounded = dequantise(blocks, scales, len(W), BITS[precision])
        self.weight = nn.Parameter(torch.tensor(rounded.T.astype(float)))

    def forward(self, input: Tensor) -> Tensor:
        """(B, in) -> (B, out)."""
        if self.rounds_input:
            noise = self.unsteady * (2 * torch.rand_like(input) - 1) if self.unsteady else None
            input = _as_a_whole(input, noise) if self.portable else _by_blocks(input, self.block, noise)
        return F.linear(input, self.weight)


class RoundedOcean(nn.Module):
    """`OceanTransformer.step` with the lean graph's products, each rounded; all else as in the model."""

    def __init__(
        self, model: OceanTransformer, precision: str, portable: bool = False, rounds_input: bool = True
    ) -> None:
        super().__init__()
        self.config = model.config
        layers = [fold(block) for block in blocks(model)]
        decay = decay_of(model)
        self.decay = None if decay is None else nn.Parameter(torch.tensor(decay))
        if decay is not None:
            last, rest = layers[-1], 1 - decay
            layers[-1] = last._replace(second=last.second * rest, second_bias=last.second_bias * rest)
        table = token_table(model, layers[0])
        names = ("normalised", "query", "residual")
        self.table = None if table is None else nn.ParameterDict({n: _kept(getattr(table, n)) for n in names})
        self.embed = model.embed

        def product(W: Array) -> Product:
            return Product(W, precision, portable, rounds_input)

        self.layers = nn.ModuleList(RoundedBlock(layer, model.config.heads, product) for layer in layers)
        self.norm = model.norm
        self.head = product(model.head.weight.detach().double().numpy().T)

    def initial_ocean(self, batch: int) -> Tensor:
        """o₀ = 0, (B, D)."""
        return self.head.weight.new_zeros(batch, self.config.width)

    def step(self, inputs: Tensor, ocean: Tensor) -> tuple[Tensor, Tensor]:
        """inputs (B,) int64 or (B, M), ocean (B, D) -> outputs, next ocean."""
        m = F.layer_norm(ocean, ocean.shape[-1:], eps=LAYER_NORM_EPS)
        x = ocean
        for i, layer in enumerate(self.layers):
            block = cast(RoundedBlock, layer)
            if i == 0 and self.table is not None:
                n, q, residual = (self.table[name][inputs] for name in ("normalised", "query", "residual"))
            else:
                x = self.embed(inputs) if i == 0 else x
                n = F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS) + block.shift
                q, residual = block.query(n), block.value_out(n) + x
            x = block.attend(n, q, residual, m)
            residual = x
            if self.decay is not None and i == len(self.layers) - 1:
                residual = self.decay * ocean + (1 - self.decay) * x
            x = block.feed_forward(x) + residual
        return self.head(self.norm(x)), x


class RoundedBlock(nn.Module):
    """One layer, as the lean graph computes it."""

    def __init__(self, layer: Folded, heads: int, product: Callable[[Array], Product]) -> None:
        super().__init__()
        self.heads = heads
        self.shift = _kept(layer.shift)
        self.query, self.value_out = product(layer.query), product(layer.value_out)
        self.key, self.key_bias = product(layer.key), _kept(layer.key_bias)
        self.value, self.value_bias = product(layer.value), _kept(layer.value_bias)
        self.out = product(layer.out)
        self.first, self.first_bias = product(layer.first), _kept(layer.first_bias)
        self.second, self.second_bias = product(layer.second), _kept(layer.second_bias)

    def attend(self, n: Tensor, q: Tensor, residual: Tensor, m: Tensor) -> Tensor:
        """residual + (a (vᵒ − v)) Wo."""
        e = m - n
        dk, dv = self.key(e) + self.key_bias, self.value(e) + self.value_bias
        per_head = (len(n), self.heads, -1)
        scores = (q * dk).view(per_head).sum(-1, keepdim=True)
        y = torch.sigmoid(scores) * dv.view(per_head)
        out: Tensor = self.out(y.flatten(-2)) + residual
        return out

    def feed_forward(self, x: Tensor) -> Tensor:
        """W2 gelu(W1 LN2(x) + b1) + b2."""
        n = F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS)
        out: Tensor = self.second(F.gelu(self.first(n) + self.first_bias)) + self.second_bias
        return out


def _kept(values: Array) -> nn.Parameter:
    """What the file holds as float32."""
    return nn.Parameter(torch.tensor(values).float().double())


def unsteady(rounded: nn.Module) -> nn.Module:
    """A copy in which about one number of each product's input, in a row, takes the next code if it lies near."""
    copied = copy.deepcopy(rounded)
    for module in copied.modules():
        if isinstance(module, Product):
            module.unsteady = 1 / module.in_features
    return copied


def _by_blocks(x: Tensor, size: int, noise: Tensor | None) -> Tensor:
    """Each block of `size` numbers of a row, rounded to 8 bits: the largest magnitude has the code 127."""
    K = x.shape[-1]
    parts = _blocks(x, size)
    scale = parts.abs().amax(-1, keepdim=True) / 127
    codes = parts / torch.where(scale == 0, 1.0, scale)
    codes = torch.round(codes if noise is None else codes + _blocks(noise, size))
    return (codes * scale).flatten(1)[:, :K]


def _blocks(x: Tensor, size: int) -> Tensor:
    return F.pad(x, (0, -x.shape[-1] % size)).view(len(x), -1, size)


def _as_a_whole(x: Tensor, noise: Tensor | None) -> Tensor:
    """All rows together, rounded as DynamicQuantizeLinear does: 0 to 255 for the range with 0 in it."""
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = (high - low) / 255
    if scale == 0:
        return x
    zero = torch.round((-low / scale).clamp(0, 255))
    codes = torch.round(x / scale if noise is None else x / scale + noise)
    return ((codes + zero).clamp(0, 255) - zero) * scale
