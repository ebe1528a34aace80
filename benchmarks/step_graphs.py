"""What benchmarks/step.py compares with: other models' steps as ONNX graphs, and the floor below any step."""

from __future__ import annotations

import io
import math
import warnings

import onnx
import torch
from ocean_export.build import GraphBuilder
from ocean_export.lean import IR_VERSION, OPSET, blocks, fold
from ocean_train.baselines import Recurrent, StandardTransformer
from ocean_train.model import OceanTransformer
from torch import Tensor, nn


class RecurrentStep(nn.Module):
    """An LSTM's or GRU's step with the state in the layout of ONNX's operator, so that no node rearranges it."""

    def __init__(self, model: Recurrent) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """token (1,), state (L, 1, W) each -> logits (1, V), next state."""
        x = self.model.embed(token)[None]  # (T = 1, B = 1, W)
        out, after = nn_forward(self.model.cell, x, state)
        return self.model.head(self.model.norm(out[0])), *after


def nn_forward(cell: nn.Module, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The cell on (T, B, W), whatever axis it was built to have first."""
    cell.batch_first = False
    if isinstance(cell, nn.LSTM):
        out, after = cell(x, (state[0], state[1]))
        return out, after
    out, h = cell(x, state[0])
    return out, (h,)


class CachedStep(nn.Module):
    """A standard Transformer's step over a cache of C positions, as favourable to the cache as can be.

    Keys lie as (B, H, K, C) and values as (B, H, C, K), so that both products read them in order; the cache is
    neither copied nor returned, only the new position's key and value are, for the caller to write in place.
    """

    def __init__(self, model: StandardTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, position: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
        """token (1,), position (1,), keys and values by layer -> logits (1, V), new keys and values by layer."""
        x = self.model.embed(token) + self.model.position(position)
        new = []
        for block, keys, values in zip(self.model.blocks, cache[::2], cache[1::2], strict=True):
            q, k, v = block.wqkv(block.norm1(x)).view(1, 3, block.heads, 1, -1).unbind(1)  # (1, H, 1, K)
            q = q / math.sqrt(q.shape[-1])
            scores = torch.cat([q @ keys, (q * k).sum(-1, keepdim=True)], -1).softmax(-1)  # (1, H, 1, C + 1)
            y = scores[..., :-1] @ values + scores[..., -1:] * v
            x = x + block.wo(y.flatten(1))
            x = x + block.w2(nn.functional.gelu(block.w1(block.norm2(x))))
            new += [k, v]
        return self.model.head(self.model.norm(x)), *new


def exported(
    step: nn.Module, inputs: tuple[Tensor, ...], free: dict[str, dict[int, str]] | None = None
) -> bytes:
    """What torch.onnx.export makes of a step; inputs are called in0, in1, ..."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            step.eval(),
            inputs,
            file,
            input_names=[f"in{i}" for i in range(len(inputs))],
            dynamic_axes=free or {},
            opset_version=18,
            dynamo=False,  # keeps GRU and LSTM as the operators that onnxruntime has kernels for
        )
    return file.getvalue()


def cached_inputs(model: StandardTransformer, context: int) -> tuple[Tensor, ...]:
    """A token, its position, and caches of `context` positions."""
    config = model.config
    H, K = config.heads, config.width // config.heads
    generator = torch.Generator().manual_seed(0)
    cache = []
    for _ in range(config.layers):
        cache.append(torch.randn(1, H, K, context, generator=generator))
        cache.append(torch.randn(1, H, context, K, generator=generator))
    return (torch.zeros(1, dtype=torch.int64), torch.tensor([context]), *cache)


def empty(model: OceanTransformer) -> bytes:
    """The step's inputs and outputs, and nothing in between: what calling onnxruntime costs."""
    g = GraphBuilder()
    g.op(
        "logits",
        "Gather",
        g.weight("table", torch.zeros(model.config.inputs, model.config.outputs).numpy()),
        "token",
    )
    g.op("ocean_next", "Identity", "ocean")
    return _finished(g, model)


def products(model: OceanTransformer) -> bytes:
    """The weights of the lean graph, each read once through a matrix-vector product, and a sum per layer."""
    g = GraphBuilder()
    x = "ocean"
    for i, block in enumerate(blocks(model)):
        w = fold(block)
        name = f"layer{i}"
        wide = g.product(f"{name}.first", x, f"{name}.first.weight", w.first)
        terms = [g.product(f"{name}.second", wide, f"{name}.second.weight", w.second)]
        for kind in ("query", "key", "value", "out"):
            terms.append(g.product(f"{name}.{kind}", x, f"{name}.{kind}.weight", getattr(w, kind)))
        x = g.op("ocean_next" if i == len(model.blocks) - 1 else f"{name}.sum", "Sum", *terms)
    g.product("logits", x, "head.weight", model.head.weight.detach().double().numpy().T)
    g.op("unused", "Cast", "token", to=onnx.TensorProto.FLOAT)
    return _finished(g, model)


def _finished(g: GraphBuilder, model: OceanTransformer) -> bytes:
    config = model.config
    inputs = [("token", "int64", ("B",)), ("ocean", "float32", ("B", config.width))]
    outputs = [("logits", "float32", ("B", config.outputs)), ("ocean_next", "float32", ("B", config.width))]
    content: bytes = g.model("floor", inputs, outputs, OPSET, IR_VERSION).SerializeToString()
    return content
