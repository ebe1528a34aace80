"""The Ocean Transformer: a Transformer whose only memory is one dense vector.

Attention at step t looks at two things: the current token, and the *ocean state*, which is the final
hidden state of step t - 1. There is no KV cache, no position, no causal mask and no added parameter:
the ocean's keys and values come from the token's own LayerNorm and matrices.

    x⁰ₜ = embed(inputₜ)
    for each layer:
        n, m = LN1(x), LN1(oₜ₋₁)                       the same LN1
        q, k, v = n Wq, n Wk, n Wv                     kᵒ, vᵒ = m Wk, m Wv       the same weights
        a = softmax([q·kᵒ, q·k] / √K)₀ = σ(q·(kᵒ − k) / √K)    per head: how much the token reads the ocean
        y = a vᵒ + (1 − a) v
        x ← x + y Wo
        x ← x + W2 gelu(W1 LN2(x) + b1) + b2
    oₜ = x after the last layer, raw                   outputsₜ = head(LNf(oₜ)),  o₀ = 0

Axes, in every shape comment: B batch (independent streams), T steps, D width, L layers, H heads,
K = D/H head width, V vocabulary, F feed-forward width (4D), M observation features.

That is the relay of the paper: each step replaces the state whole. **Leaky integration** is a variant of this
project, as in leaky recurrent networks and echo state networks (Jaeger et al., 2007). Each channel keeps a
constant share λ of what it was:

    oₜ = λ ⊙ oₜ₋₁ + (1 − λ) ⊙ (x after the last layer)      λ = 1 − 1/τ

with a time constant of τ steps. τ is 1 in one half of the channels, so that they are replaced whole, and log-spaced up
to `max_time_constant` in the other half. With `max_time_constant` = 1 it is the relay, bit for bit. It has no gate
and, with λ fixed, no parameter.

`OceanTransformer.step` is the definition. `forward` embeds all T inputs, relays the ocean from step to
step, and reads all oceans out; `relay` below is that loop written plainly, and every faster way to
compute it (ocean_train.regimes) has the same signature and is tested against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYER_NORM_EPS = 1e-5
EMBEDDING_STD = 0.1
LARGEST_TIME_CONSTANT = 1e6
"""In steps. float32 still holds 1 − λ = 1e-6 to 6%; with a larger one a channel would hardly move at all."""
SMALLEST_LEARNED_DECAY = 1 / 32
"""Where λ is learned it starts at least here: the sigmoid of no finite logit is 0."""
KINDS = ("tokens", "features")
HEADS = ("tokens", "regression", "classes")
FIRST_WEIGHTS = ("normal", "identity")


@dataclass(frozen=True)
class OceanConfig:
    """Sizes of an Ocean Transformer.

    Raises ValueError where a size is not a positive integer, or sizes do not fit together.
    """

    inputs: int
    """Vocabulary size V where kind is `tokens`; number of observation features M where it is `features`."""
    outputs: int
    """Number of logits (heads `tokens`, `classes`) or of estimated quantities (head `regression`)."""
    width: int = 64
    """D, the width of the residual stream and of the ocean state."""
    layers: int = 2
    """L."""
    heads: int = 4
    """H; must divide the width."""
    kind: Literal["tokens", "features"] = "tokens"
    """What one input is: a token id, or a vector of M numbers."""
    head: Literal["tokens", "regression", "classes"] = "tokens"
    """What one output is: next-token logits, real quantities, or class logits."""
    max_time_constant: float = 1.0
    """The longest time constant of leaky integration, in steps; 1 is the paper's relay, without a leak."""
    learn_time_constants: bool = False
    """Whether the decay λ is a parameter: D logits, trained with the weights."""

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "width", "layers", "heads"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} must be a positive integer, not {size!r}")
        if self.width % self.heads:
            raise ValueError(
                f"{self.heads} heads do not divide the width {self.width}; choose a number of heads that does"
            )
        if not isinstance(self.max_time_constant, (int, float)) or isinstance(self.max_time_constant, bool):
            raise ValueError(f"max_time_constant must be a number of steps, not {self.max_time_constant!r}")
        if not 1 <= self.max_time_constant <= LARGEST_TIME_CONSTANT:
            raise ValueError(
                f"max_time_constant must be from 1 step (no leak) to {LARGEST_TIME_CONSTANT:,.0f} steps, "
                f"not {self.max_time_constant:g}"
            )
        if not isinstance(self.learn_time_constants, bool):
            raise ValueError(f"learn_time_constants must be true or false, not {self.learn_time_constants!r}")
        if self.learn_time_constants and self.max_time_constant == 1:
            raise ValueError(
                "time constants can be learned only where there is a leak; give max_time_constant more than 1 step"
            )
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind {self.kind!r}; choose {' or '.join(KINDS)}")
        if self.head not in HEADS:
            raise ValueError(f"unknown head {self.head!r}; choose {', '.join(HEADS[:-1])} or {HEADS[-1]}")
        if self.head == "tokens" and (self.kind != "tokens" or self.inputs != self.outputs):
            raise ValueError(
                "head tokens predicts the next input, so kind must be tokens and outputs = inputs"
            )

    @property
    def leaky(self) -> bool:
        """Whether the state is integrated with a leak, and not replaced whole."""
        return self.max_time_constant > 1

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON values; `OceanConfig(**d)` reads it back.

        What a relay does not have is left out, so that the digests of older models stay what they were.
        """
        leak = ("max_time_constant", "learn_time_constants")
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in leak or getattr(self, field.name) != field.default
        }


def time_constants(config: OceanConfig) -> list[float]:
    """τ of each channel in steps, (D,); where λ is learned, its start.

    1 for the first half of the channels, which are replaced whole; log-spaced up to `max_time_constant` for the rest.
    """
    slow = (config.width + 1) // 2
    return [1.0] * (config.width - slow) + [config.max_time_constant ** ((i + 1) / slow) for i in range(slow)]


@lru_cache(maxsize=64)
def _fixed_decay(config: OceanConfig, dtype: torch.dtype, device: torch.device) -> Tensor:
    """λ = 1 − 1/τ, (D,): a float32 number in any dtype, so that float64 checks the very model that is exported."""
    with torch.inference_mode(False):  # one made inside it could never be trained with
        decay = torch.tensor(
            [1 - 1 / tau for tau in time_constants(config)], dtype=torch.float32, device="cpu"
        )
        return decay.to(device, dtype)


class Block(nn.Module):
    """One layer: attention over {ocean, token}, then the feed-forward network, each with its residual.

    Works on any leading axes: (B, D) in the plain loop, (B, T, D) where all T oceans are known.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width, bias=False)
        self.wv = nn.Linear(width, width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.w1 = nn.Linear(width, 4 * width)
        self.w2 = nn.Linear(4 * width, width)

    def read_weight(self, x: Tensor, ocean: Tensor) -> Tensor:
        """How much the token reads the ocean, per head: (..., D), (..., D) -> a of shape (..., H, 1)."""
        n, m = self.norm1(x), self.norm1(ocean)
        return self._attend(self._split(self.wq(n)), self._split(self.wk(n)), self._split(self.wk(m)))

    def forward(self, x: Tensor, ocean: Tensor) -> Tensor:
        """(..., D), (..., D) -> (..., D)."""
        n, m = self.norm1(x), self.norm1(ocean)
        q, k, v = self._split(self.wq(n)), self._split(self.wk(n)), self._split(self.wv(n))  # (..., H, K)
        k_ocean, v_ocean = self._split(self.wk(m)), self._split(self.wv(m))
        a = self._attend(q, k, k_ocean)
        y = a * v_ocean + (1 - a) * v
        x = x + self.wo(y.flatten(-2))
        out: Tensor = x + self.w2(F.gelu(self.w1(self.norm2(x))))
        return out

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1)  # (..., D) -> (..., H, K)

    @staticmethod
    def _attend(q: Tensor, k: Tensor, k_ocean: Tensor) -> Tensor:
        return torch.sigmoid((q * (k_ocean - k)).sum(-1, keepdim=True) / math.sqrt(q.shape[-1]))


class OceanCore(nn.Module):
    """What each model of the Ocean is made of: an input map, L blocks, the final norm, and the decay of a leak.

    The models differ in what they put in front and behind: `OceanTransformer` has a head, `ocean_train.Ocean` is a
    layer of somebody else's model.
    """

    def __init__(self, config: OceanConfig, embed: nn.Module) -> None:
        super().__init__()
        D = config.width
        self.config = config
        self.embed = embed
        self.blocks = nn.ModuleList(Block(D, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(D, eps=LAYER_NORM_EPS)
        self.decay_logit = nn.Parameter(torch.zeros(D)) if config.learn_time_constants else None

    def initial_ocean(self, batch: int) -> Tensor:
        """o₀ = 0, (B, D), on the weights' device and in their dtype."""
        return self.norm.weight.new_zeros(batch, self.config.width)

    def decay(self) -> Tensor | None:
        """λ, (D,): the share of its previous value that each channel keeps; None for the relay, which keeps none."""
        if self.decay_logit is not None:
            return torch.sigmoid(self.decay_logit)
        if not self.config.leaky:
            return None
        weight = self.norm.weight
        find = (
            _fixed_decay.__wrapped__ if traced() else _fixed_decay
        )  # what is traced must not be kept for later
        return find(self.config, weight.dtype, weight.device)

    def through_blocks(self, x: Tensor, ocean: Tensor) -> Tensor:
        """The embedded input and the previous ocean through all blocks: (..., D), (..., D) -> (..., D)."""
        for block in self.blocks:
            x = block(x, ocean)
        return x

    def advance(self, x: Tensor, ocean: Tensor) -> Tensor:
        """The embedded input and the previous ocean -> the next ocean: (..., D), (..., D) -> oₜ (..., D)."""
        x = self.through_blocks(x, ocean)
        decay = self.decay()
        return x if decay is None else decay * ocean + (1 - decay) * x


class OceanTransformer(OceanCore):
    """The model: an input map, L blocks, and a head. See the module's docstring for the equations."""

    def __init__(self, config: OceanConfig, seed: int | None = 0, first_weights: str = "normal") -> None:
        """Weights are drawn from `seed` as `initialise` describes; None leaves them to be loaded."""
        # The linear map of features has a bias: without one, LN1 would erase an observation's magnitude.
        of_tokens = config.kind == "tokens"
        super().__init__(config, (nn.Embedding if of_tokens else nn.Linear)(config.inputs, config.width))
        self.head = nn.Linear(config.width, config.outputs, bias=False)
        if seed is not None:
            initialise(self, seed, first_weights)

    def readout(self, ocean: Tensor) -> Tensor:
        """head(LNf(oₜ)): (..., D) -> (..., outputs)."""
        out: Tensor = self.head(self.norm(ocean))
        return out

    def step(self, inputs: Tensor, ocean: Tensor) -> tuple[Tensor, Tensor]:
        """One step, the definition: inputs (B,) int64 or (B, M), ocean (B, D) -> outputs, next ocean."""
        ocean = self.advance(self.embed(inputs), ocean)
        return self.readout(ocean), ocean

    def forward(
        self,
        inputs: Tensor,
        ocean: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        valid: Tensor | None = None,
        relay: Relay | None = None,
    ) -> tuple[Tensor, Tensor]:
        """T steps from `ocean` (zeros where None): inputs (B, T) or (B, T, M) -> outputs (B, T, ·), oT.

        `reset` (B, T) bool: before step t, row b's ocean becomes the initial one (a new episode begins).
        `valid` (B, T) bool: where it is False the input is padding and the ocean stays as it was; outputs
        there mean nothing. `relay` chooses how the oceans are computed (see ocean_train.regimes).
        """
        x = self.embed(inputs)  # (B, T, D)
        if ocean is None:
            ocean = self.initial_ocean(x.shape[0])
        oceans = (relay or plain_relay)(self, x, ocean, reset, valid)
        return self.readout(oceans), oceans[:, -1]


Relay = Callable[[OceanCore, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
"""(model, x⁰ (B, T, D), o₀ (B, D), reset (B, T) or None, valid (B, T) or None) -> all oceans (B, T, D)."""


def plain_relay(
    model: OceanCore, x: Tensor, ocean: Tensor, reset: Tensor | None, valid: Tensor | None
) -> Tensor:
    """The loop over steps, written plainly: the definition that every faster relay is tested against."""
    oceans = []
    for t in range(x.shape[1]):
        if reset is not None:
            ocean = torch.where(reset[:, t, None], torch.zeros_like(ocean), ocean)
        after = model.advance(x[:, t], ocean)
        ocean = after if valid is None else torch.where(valid[:, t, None], after, ocean)
        oceans.append(ocean)
    return torch.stack(oceans, dim=1)


def traced() -> bool:
    """Under torch.compile, torch.export, torch.jit.trace or torch.func, where tensors may hold no numbers."""
    transformed = torch._C._are_functorch_transforms_active
    return torch.compiler.is_compiling() or torch._C._is_tracing() or transformed()


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """A context in which torch.autocast leaves the dtypes alone: the state stays in that of the weights."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def initialise(model: nn.Module, seed: int, first_weights: str = "normal") -> None:
    """Draw all weights from `seed`.

    `normal`: matrices N(0, 1/fan_in), embeddings N(0, 0.1²), biases 0, LayerNorm 1 and 0. Matrices of this size
    let keys and queries differ, so that a varies from the start; at 0.02 it stays at ½ and the read path never
    wakes up. The token's embedding is small, because at N(0, 1) it drowns in the residual stream what was read
    from the ocean. docs/log.md has the comparison.

    `identity`, for blocks of the Ocean: as `normal`, then Wv is orthogonal and Wo its transpose, so that what is
    read passes through unchanged; W2 is 0.3 of its size, and so is a linear input map, so that no single observation
    outweighs what is read; and that map's bias is N(0, 1), without which LN1 would erase an observation's magnitude.

    Raises ValueError for another name.
    """
    if first_weights not in FIRST_WEIGHTS:
        raise ValueError(f"unknown first weights {first_weights!r}; choose {' or '.join(FIRST_WEIGHTS)}")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                std = 1 / math.sqrt(module.in_features)
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator, device="cpu") * std)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding):
                module.weight.copy_(
                    torch.randn(module.weight.shape, generator=generator, device="cpu") * EMBEDDING_STD
                )
        if isinstance(model, OceanCore):
            if model.decay_logit is not None:
                taus = torch.tensor(time_constants(model.config), dtype=torch.float64, device="cpu")
                model.decay_logit.copy_(torch.logit((1 - 1 / taus).clamp(min=SMALLEST_LEARNED_DECAY)))
            if first_weights == "identity":
                _pass_through(model, generator)


def _pass_through(model: OceanCore, generator: torch.Generator) -> None:
    """The first weights `identity`, over those drawn as `normal`."""
    for block in model.blocks:
        assert isinstance(block, Block)
        square, triangle = torch.linalg.qr(
            torch.randn(block.wv.weight.shape, generator=generator, dtype=torch.float64, device="cpu")
        )
        orthogonal = (
            square * triangle.diagonal().sign()
        )  # uniform over rotations and reflections (Mezzadri, 2007)
        block.wv.weight.copy_(orthogonal)
        block.wo.weight.copy_(orthogonal.T)
        block.w2.weight.mul_(0.3)
    if isinstance(model.embed, nn.Linear):
        model.embed.weight.mul_(0.3)
        model.embed.bias.copy_(torch.randn(model.embed.bias.shape, generator=generator, device="cpu"))


def position_loss(config: OceanConfig, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss at each step, (B, T): cross-entropy in nats, or the mean squared error over the targets.

    outputs (B, T, outputs); targets (B, T) int64 for logits, (B, T, outputs) for head `regression`.
    """
    if config.head == "regression":
        return (outputs - targets).square().mean(-1)
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
