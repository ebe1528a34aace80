"""Other models than the paper's, for the controls: other blocks, another reading, other standard Transformers.

The oceans among them run through the plain loop over `step`: slow, and right for any block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from ocean_train.baselines import Model, StandardBlock, StandardTransformer
from ocean_train.loop import Settings
from ocean_train.model import LAYER_NORM_EPS, Block, OceanConfig, OceanTransformer, initialise
from ocean_train.regimes import detach_relay
from torch import Tensor, nn

KINDS = ("postnorm", "swiglu")
STARTS = {"gpt2": "GPT-2's", "pytorch": "PyTorch's own"}
"""First weights of a standard Transformer beside ours, which were chosen for the ocean."""


class OceanWith(OceanTransformer):
    """An Ocean Transformer with other blocks."""

    def __init__(self, block: Callable[[int, int], nn.Module], config: OceanConfig, seed: int) -> None:
        super().__init__(config, seed=None)
        self.blocks = nn.ModuleList(block(config.width, config.heads) for _ in range(config.layers))
        initialise(self, seed)


class StandardWith(StandardTransformer):
    """A standard Transformer with other blocks."""

    def __init__(
        self, block: Callable[[int, int], nn.Module], config: OceanConfig, window: int, seed: int
    ) -> None:
        super().__init__(config, window, seed)
        self.blocks = nn.ModuleList(block(config.width, config.heads) for _ in range(config.layers))
        initialise(self, seed)


class PostNorm(Block):
    """Normalised after each residual, as in Vaswani et al. 2017: x <- LN(x + f(x)). So is the ocean, then."""

    def forward(self, x: Tensor, ocean: Tensor) -> Tensor:
        q, k, v = (self._split(w(x)) for w in (self.wq, self.wk, self.wv))
        k_ocean, v_ocean = self._split(self.wk(ocean)), self._split(self.wv(ocean))
        a = self._attend(q, k, k_ocean)
        x = self.norm1(x + self.wo((a * v_ocean + (1 - a) * v).flatten(-2)))
        out: Tensor = self.norm2(x + self.w2(F.gelu(self.w1(x))))
        return out


class StandardPostNorm(StandardBlock):
    """The same with causal self-attention."""

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        q, k, v = self.wqkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)
        x = self.norm1(x + self.wo(y.transpose(1, 2).flatten(-2)))
        out: Tensor = self.norm2(x + self.w2(F.gelu(self.w1(x))))
        return out


class SwiGLU(nn.Module):
    """W2 (silu(W1 x) * W3 x), of 8D/3 hidden units so that it has a plain network's parameters (Shazeer 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = round(8 * width / 3)
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class Gated(Block):
    """RMSNorm and SwiGLU in place of LayerNorm and gelu."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        _gate(self, width)

    def forward(self, x: Tensor, ocean: Tensor) -> Tensor:
        n, m = self.norm1(x), self.norm1(ocean)
        q, k, v = (self._split(w(n)) for w in (self.wq, self.wk, self.wv))
        a = self._attend(q, k, self._split(self.wk(m)))
        x = x + self.wo((a * self._split(self.wv(m)) + (1 - a) * v).flatten(-2))
        out: Tensor = x + self.w2(self.norm2(x))
        return out


class StandardGated(StandardBlock):
    """The same with causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        _gate(self, width)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        q, k, v = self.wqkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)
        x = x + self.wo(y.transpose(1, 2).flatten(-2))
        out: Tensor = x + self.w2(self.norm2(x))
        return out


def _gate(block: Block | StandardBlock, width: int) -> None:
    del block.w1
    block.norm1 = nn.RMSNorm(width, eps=LAYER_NORM_EPS)  # type: ignore[assignment]
    block.norm2 = nn.RMSNorm(width, eps=LAYER_NORM_EPS)  # type: ignore[assignment]
    block.w2 = SwiGLU(width)  # type: ignore[assignment]


class Blind(Block):
    """a = 0: never reads the ocean, so that each token stands alone."""

    @staticmethod
    def _attend(q: Tensor, k: Tensor, k_ocean: Tensor) -> Tensor:
        return q.new_zeros(*q.shape[:-1], 1)


class Forced(Block):
    """a = 1: the ocean is literally the only thing attended to."""

    @staticmethod
    def _attend(q: Tensor, k: Tensor, k_ocean: Tensor) -> Tensor:
        return q.new_ones(*q.shape[:-1], 1)


class Handed(StandardTransformer):
    """A standard Transformer whose input has an embedding of the token before added.

    Of its own, so that the model can do all that a standard one can, at `inputs` x D more parameters. The
    previous token is what any ocean brings to the very first layer (the token shift of RWKV, Peng et al. 2023,
    is the same idea).
    """

    def __init__(self, config: OceanConfig, window: int, seed: int) -> None:
        super().__init__(config, window, seed)
        self.embed = WithTheOneBefore(config.inputs, config.width)
        initialise(self, seed)


class WithTheOneBefore(nn.Module):
    """(B, T) tokens -> (B, T, D): a token's embedding and, from another table, that of the one before, added."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.token, self.before = nn.Embedding(inputs, width), nn.Embedding(inputs, width)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.token(tokens) + F.pad(self.before(tokens[:, :-1]), (0, 0, 1, 0))
        return out


class Rotary(StandardTransformer):
    """A standard Transformer with rotary positions in place of learned ones (RoFormer, Su et al. 2021)."""

    def __init__(self, config: OceanConfig, window: int, seed: int) -> None:
        super().__init__(config, window, seed)
        self.position = Nowhere()  # type: ignore[assignment]
        self.blocks = nn.ModuleList(
            StandardRotary(config.width, config.heads, window) for _ in range(config.layers)
        )
        initialise(self, seed)


class Nowhere(nn.Module):
    """In the place of learned positions: adds nothing, and has no weights."""

    def forward(self, steps: Tensor) -> Tensor:
        return torch.zeros((), device=steps.device)


class StandardRotary(StandardBlock):
    """Queries and keys turned by an angle that grows with the position, each pair of numbers at its own rate."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__(width, heads)
        half = width // heads // 2
        rates = 10_000.0 ** (-torch.arange(half) / half)
        angles = torch.arange(window)[:, None] * rates
        self.register_buffer(
            "turn", torch.stack([angles.cos(), angles.sin()]), persistent=False
        )  # (2, T, K/2)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        q, k, v = self.wqkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self._turned(q), self._turned(k)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)
        x = x + self.wo(y.transpose(1, 2).flatten(-2))
        out: Tensor = x + self.w2(F.gelu(self.w1(self.norm2(x))))
        return out

    def _turned(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> the same, the pairs being (x[i], x[i + K/2])."""
        cos, sin = self.get_buffer("turn")[:, : x.shape[-2]]
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


BLOCKS: dict[str, tuple[type[Block], type[StandardBlock]]] = {
    "postnorm": (PostNorm, StandardPostNorm),
    "swiglu": (Gated, StandardGated),
}


class Nearsighted(OceanTransformer):
    """An Ocean Transformer whose every step sees the last few tokens alone, its own among them.

    Each ocean is computed anew from zero so many steps before: the sweeps of `detach_relay`.
    """

    def __init__(self, config: OceanConfig, seed: int, seen: int) -> None:
        super().__init__(config, seed)
        self.relay = partial(detach_relay, sweeps=seen)

    def forward(self, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        return super().forward(*args, **options | {"relay": self.relay})


def maker(kind: str, settings: Settings) -> Callable[[int], Model]:
    """Vocabulary -> the model of these settings with blocks of another kind."""
    ocean, standard = BLOCKS[kind]

    def make(vocabulary: int) -> Model:
        config = configuration(vocabulary, settings)
        if settings.model == "transformer":
            return StandardWith(standard, config, settings.window, settings.seed)
        return OceanWith(ocean, config, settings.seed)

    return make


def rotary(settings: Settings) -> Callable[[int], Model]:
    """Vocabulary -> the standard Transformer of these settings with rotary positions."""
    return lambda V: Rotary(configuration(V, settings), settings.window, settings.seed)


def started(kind: str, settings: Settings) -> Callable[[int], Model]:
    """Vocabulary -> the standard Transformer of these settings with other first weights.

    `gpt2`: matrices and embeddings N(0, 0.02²), those that end a residual branch smaller by sqrt(2 L) (Radford et
    al. 2019). `pytorch`: whatever PyTorch draws, embeddings N(0, 1).
    """

    def make(vocabulary: int) -> Model:
        model = StandardTransformer(configuration(vocabulary, settings), settings.window, settings.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            for name, module in model.named_modules():
                if not isinstance(module, nn.Linear | nn.Embedding):
                    continue
                module.reset_parameters()
                if kind == "gpt2":
                    ends = name.endswith((".wo", ".w2"))
                    nn.init.normal_(module.weight, std=0.02 / (math.sqrt(2 * settings.layers) if ends else 1))
                    if isinstance(module, nn.Linear) and module.bias is not None:
                        nn.init.zeros_(module.bias)
        return model

    return make


def nearsighted(settings: Settings) -> Callable[[int], Model]:
    """Vocabulary -> the ocean of these settings that sees as many tokens as there are sweeps."""
    assert settings.sweeps is not None
    seen = settings.sweeps
    return lambda V: Nearsighted(configuration(V, settings), settings.seed, seen)


def configuration(vocabulary: int, settings: Settings) -> OceanConfig:
    return OceanConfig(vocabulary, vocabulary, settings.width, settings.layers, settings.heads)
