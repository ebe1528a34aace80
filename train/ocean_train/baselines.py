"""What the Ocean Transformer is compared with: a standard Transformer, an LSTM and a GRU.

All take an `OceanConfig` and have the Ocean Transformer's interface: `forward(inputs, state, reset=, valid=)`
-> outputs, state, so that one training loop and one loss serve all four. The recurrent ones get the width
that brings their number of parameters closest to the Ocean Transformer's.

Axes: B batch, T steps, D width, L layers, H heads, K = D/H, F = 4D, M observation features.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocean_train.model import LAYER_NORM_EPS, OceanConfig, OceanTransformer, initialise

MODELS = ("ocean", "transformer", "lstm", "gru")


class StandardBlock(nn.Module):
    """The Ocean Transformer's block with causal self-attention over the window in place of the ocean."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.wqkv = nn.Linear(width, 3 * width, bias=False)  # one product: how a fast Transformer does it
        self.wo = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.w1 = nn.Linear(width, 4 * width)
        self.w2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        """(B, T, D), (B, 1, T, T) bool or None for plainly causal -> (B, T, D)."""
        qkv = self.wqkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, H, K)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, K) each
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)
        x = x + self.wo(y.transpose(1, 2).flatten(-2))
        added: Tensor = self.w2(F.gelu(self.w1(self.norm2(x))))
        return x + added


class StandardTransformer(nn.Module):
    """Same blocks, same head, learned positions. It remembers nothing beyond its window: its state is empty."""

    def __init__(self, config: OceanConfig, window: int, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.window = window
        D = config.width
        self.embed = _embedding(config, D)
        self.position = nn.Embedding(window, D)
        self.blocks = nn.ModuleList(StandardBlock(D, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(D, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(D, config.outputs, bias=False)
        initialise(self, seed)

    def forward(
        self,
        inputs: Tensor,
        state: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """inputs (B, T) or (B, T, M), T at most `window` -> outputs (B, T, ...), an empty state (B, 0).

        A step sees the steps of its own episode up to itself, padding left out; positions count from the
        episode's beginning.
        """
        B, T = inputs.shape[:2]
        if self.window < T:
            raise ValueError(
                f"the standard Transformer has positions for {self.window} steps but got {T}; "
                f"build it with window={T} or feed it shorter windows"
            )
        steps = torch.arange(T, device=inputs.device)
        visible = None
        if reset is not None or valid is not None:
            starts = torch.zeros(B, T, dtype=torch.bool, device=inputs.device) if reset is None else reset
            begin = torch.where(starts, steps, 0).cummax(1).values  # (B, T): where each step's episode began
            keys = steps[None, None, :]
            visible = (keys <= steps[None, :, None]) & (keys >= begin[..., None])
            if valid is not None:  # a padded step sees itself, so that its softmax is defined
                visible = visible & valid[:, None, :] | torch.eye(T, dtype=torch.bool, device=inputs.device)
            visible = visible[:, None]
            steps = steps - begin
        x = self.embed(inputs) + self.position(steps)
        for block in self.blocks:
            x = block(x, visible)
        return self.head(self.norm(x)), x.new_zeros(B, 0)


class Recurrent(nn.Module):
    """LSTM or GRU of L layers, LayerNorm before the head; its state is one tensor (B, S L W), S = 2 or 1."""

    def __init__(self, config: OceanConfig, cell: Literal["lstm", "gru"], width: int, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.width = width
        self.embed = _embedding(config, width)
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        with torch.random.fork_rng(devices=[]):  # torch's own initialisation, from our seed
            torch.manual_seed(seed)
            self.cell = kind(width, width, config.layers, batch_first=True)
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(width, config.outputs, bias=False)
        initialise(self, seed)

    def forward(
        self,
        inputs: Tensor,
        state: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """inputs (B, T) or (B, T, M), state (B, S L W) or None for zeros -> outputs (B, T, ...), state."""
        x = self.embed(inputs)
        B, T = x.shape[:2]
        if state is None:
            parts = 2 if isinstance(self.cell, nn.LSTM) else 1
            state = x.new_zeros(B, parts * self.config.layers * self.width)
        outputs = []
        for start, end in _runs(T, reset, valid):
            if reset is not None:
                state = torch.where(reset[:, start, None], 0.0, state)
            out, after = self._advance(x[:, start:end], state)
            state = after if valid is None else torch.where(valid[:, start, None], after, state)
            outputs.append(out)
        return self.head(self.norm(torch.cat(outputs, 1))), state

    def _advance(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        layered = state.view(len(state), -1, self.config.layers, self.width).permute(1, 2, 0, 3).contiguous()
        if isinstance(self.cell, nn.LSTM):
            out, (h, c) = self.cell(x, (layered[0], layered[1]))
            after = torch.stack([h, c])
        else:
            out, h = self.cell(x, layered[0])
            after = h[None]
        return out, after.permute(2, 0, 1, 3).flatten(1)  # (S, L, B, W) -> (B, S L W)


Model = OceanTransformer | StandardTransformer | Recurrent


def build(name: str, config: OceanConfig, window: int, seed: int = 0, first_weights: str = "normal") -> Model:
    """`ocean`, `transformer`, `lstm` or `gru` for a configuration; ValueError for any other name.

    `window` is the longest window that the standard Transformer can be given; the others take any length.
    `first_weights` are the Ocean Transformer's (see `initialise`).
    """
    if name == "ocean":
        return OceanTransformer(config, seed, first_weights)
    if name == "transformer":
        return StandardTransformer(config, window, seed)
    if name in ("lstm", "gru"):
        cell: Literal["lstm", "gru"] = "lstm" if name == "lstm" else "gru"
        return Recurrent(config, cell, equal_width(config, cell), seed)
    raise ValueError(f"unknown model {name!r}; choose {', '.join(MODELS[:-1])} or {MODELS[-1]}")


def equal_width(config: OceanConfig, cell: Literal["lstm", "gru"]) -> int:
    """The width at which an LSTM or GRU of this configuration comes closest to the Ocean's parameter count."""
    D, gates = config.width, 4 if cell == "lstm" else 3

    def ends(width: int) -> int:
        bias = width if config.kind == "features" else 0
        return config.inputs * width + bias + 2 * width + config.outputs * width

    wanted = ends(D) + config.layers * (12 * D * D + 9 * D)

    def excess(width: int) -> int:
        return abs(ends(width) + config.layers * gates * (2 * width * width + 2 * width) - wanted)

    return min(range(1, 4 * D + 8), key=excess)


def _embedding(config: OceanConfig, width: int) -> nn.Module:
    return nn.Embedding(config.inputs, width) if config.kind == "tokens" else nn.Linear(config.inputs, width)


def _runs(T: int, reset: Tensor | None, valid: Tensor | None) -> list[tuple[int, int]]:
    """Runs [start, end) of steps without a reset inside and with the same rows valid throughout."""
    new = torch.zeros(T, dtype=torch.bool)
    new[0] = True
    if reset is not None:
        new |= reset.any(0).cpu()
    if valid is not None:
        new[1:] |= (valid[:, 1:] != valid[:, :-1]).any(0).cpu()
    starts = [*new.nonzero().flatten().tolist(), T]
    return list(pairwise(starts))
