"""The trained module as a graph of few nodes: the same numbers as `OceanTransformer.step`, sooner.

A step is so small that onnxruntime's cost per node, and reading each weight once, are all of its time. So
weights are folded together beforehand (in float64), by identities of the module's own equations:

    LN1(x) W = n' (γ W)              n' = n̂ + δ, δ = β/γ, where n̂ is normalised without affine part
    kᵒ − k   = e (γ Wk) + β Wk       e = m̂ − n', the same m̂ for all layers: the ocean is normalised once
    vᵒ − v   = e (γ Wv) + β Wv
    y Wo     = v Wo + (a (vᵒ − v)) Wo,   and v Wo = n' (γ Wv Wo)
    q / √K   = n' (γ Wq / √K)
    LN2(x) W1 + b1 = n̂ (γ W1) + (β W1 + b1)
    u W2 + b2 = [u, 16] [W2; b2/16]
    λ o + (1 − λ)(x + u W2 + b2) = λ o + (1 − λ) x + u (W2 (1 − λ)) + (1 − λ) b2

and what layer 1 computes from a token alone is a row of a table. From a certain width on, reading weights
costs more than nodes do; then v and vᵒ − v are two rows of one product, so that Wv is read once.
docs/log.md has what else was tried, with figures.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from ocean_train.model import LAYER_NORM_EPS, Block, OceanConfig, OceanTransformer
from torch import Tensor

from ocean_export.build import GraphBuilder, heads
from ocean_export.graph import INPUT, OCEAN, OCEAN_NEXT, OUTPUT

Array = NDArray[Any]

OPSET = 20
IR_VERSION = 9
"""Opset 20 has gelu as one operator; onnxruntime 1.17 and newer load the pair."""

TWO_ROWS_FROM = 192
"""The width from which reading Wv twice costs more than the three nodes that stack and split rows."""
SQUARE_HEADS_UP_TO = 96
"""The width up to which summing over a head and spreading back is one D x D product, not D x H and H x D.

With D/2 heads and more it always is, since then the two products read as much."""
SMALLEST_GAMMA = 1e-7
"""A smaller |γ| is taken for this, so that β/γ exists; float32 can't see the difference."""

CONSTANT, UNITS = 16.0, 8
"""gelu(16) is 16 in float32; hidden units come by eights."""


class Folded(NamedTuple):
    """One layer's matrices, (in, out), with LayerNorm's affine parts and the scores' scale inside."""

    shift: Array
    """δ, (D,)."""
    query: Array
    key: Array
    key_bias: Array
    value: Array
    value_bias: Array
    value_out: Array
    """γ Wv Wo."""
    out: Array
    first: Array
    first_bias: Array
    second: Array
    second_bias: Array


class Read(NamedTuple):
    """Names of what a layer knows of the token before it looks at the ocean."""

    normalised: str
    """n'."""
    query: str
    residual: str
    """x, or where v Wo is already in it, x + v Wo."""
    holds_value: bool


class Table(NamedTuple):
    """What layer 1 computes from each token alone, (V, D) each: a step reads a row instead."""

    normalised: Array
    query: Array
    residual: Array


def lean_graph(model: OceanTransformer, precision: str = "fp32", portable: bool = False) -> onnx.ModelProto:
    """The graph of `model.step`, with the inputs and outputs of `ocean_export.graph.step_graph`.

    precision: `fp32`, `int8` or `int4`, of the weight matrices; all else stays float32.
    portable: only operators of the ONNX standard. At fp32 they are always used.
    """
    config = model.config
    g = GraphBuilder(precision, portable)
    entry = INPUT[config.kind]
    layers = [fold(block) for block in blocks(model)]
    token = read_token(g, model, layers[0], entry)
    x = advance(g, config, layers, token, decay_of(model), OCEAN, OCEAN_NEXT)
    read_out(g, model, x, OUTPUT[config.head])
    return g.model(
        "ocean_step",
        [
            (entry, "int64", ("B",)) if config.kind == "tokens" else (entry, "float32", ("B", config.inputs)),
            (OCEAN, "float32", ("B", config.width)),
        ],
        [
            (OUTPUT[config.head], "float32", ("B", config.outputs)),
            (OCEAN_NEXT, "float32", ("B", config.width)),
        ],
        OPSET,
        IR_VERSION,
    )


def blocks(model: OceanTransformer) -> list[Block]:
    """The model's blocks, typed."""
    return [block for block in model.blocks if isinstance(block, Block)]


def fold(block: Block) -> Folded:
    """One block's weights as the lean graph uses them, float64."""
    gamma, beta = _array(block.norm1.weight), _array(block.norm1.bias)
    gamma = np.where(np.abs(gamma) < SMALLEST_GAMMA, SMALLEST_GAMMA, gamma)
    Wq, Wk, Wv, Wo, W1, W2 = (
        _array(linear.weight).T for linear in (block.wq, block.wk, block.wv, block.wo, block.w1, block.w2)
    )
    width = len(gamma) // block.heads
    return Folded(
        shift=beta / gamma,
        query=gamma[:, None] * Wq / np.sqrt(width),
        key=gamma[:, None] * Wk,
        key_bias=beta @ Wk,
        value=gamma[:, None] * Wv,
        value_bias=beta @ Wv,
        value_out=gamma[:, None] * Wv @ Wo,
        out=Wo,
        first=_array(block.norm2.weight)[:, None] * W1,
        first_bias=_array(block.norm2.bias) @ W1 + _array(block.w1.bias),
        second=W2,
        second_bias=_array(block.w2.bias),
    )


def token_table(model: OceanTransformer, layer: Folded) -> Table | None:
    """Layer 1's work for every token; None for other inputs, or where the table would outgrow the layer."""
    config = model.config
    if config.kind != "tokens" or config.inputs > 4 * config.width:
        return None
    x = _array(model.embed.weight)  # type: ignore[arg-type]
    centred = x - x.mean(-1, keepdims=True)
    n = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + LAYER_NORM_EPS) + layer.shift
    return Table(n, n @ layer.query, x + n @ layer.value_out)


def read_token(g: GraphBuilder, model: OceanTransformer, layer: Folded, entry: str) -> Read:
    """What layer 1 knows of the input before it looks at the ocean."""
    table = token_table(model, layer)
    if table is not None:
        for name, rows in table._asdict().items():
            g.op(f"layer0.{name}", "Gather", g.weight(f"token.{name}", rows.astype(np.float32)), entry)
        return Read("layer0.normalised", "layer0.query", "layer0.residual", holds_value=True)
    weight = _array(model.embed.weight)  # type: ignore[arg-type]
    if model.config.kind == "tokens":
        x = g.op("embedded", "Gather", g.weight("embed.weight", weight.astype(np.float32)), entry)
    else:
        bias = _array(model.embed.bias)  # type: ignore[arg-type]
        x = g.full_product("embedded", entry, "embed.weight", weight.T, bias)
    return read(g, 0, layer, x, two_rows=False)


def read(g: GraphBuilder, i: int, layer: Folded, x: str, two_rows: bool) -> Read:
    """What layer i knows of its input `x` before it looks at the ocean."""
    name = f"layer{i}"
    n = g.layer_norm(f"{name}.normalised", x, np.ones_like(layer.shift), layer.shift, LAYER_NORM_EPS)
    q = g.product(f"{name}.query", n, f"{name}.query.weight", layer.query)
    if two_rows:
        return Read(n, q, x, holds_value=False)
    residual = g.product(f"{name}.residual", n, f"{name}.value_out.weight", layer.value_out, plus=x)
    return Read(n, q, residual, holds_value=True)


def decay_of(model: OceanTransformer) -> Array | None:
    """λ, (D,), as float64; None for the relay."""
    decay = model.decay()
    return None if decay is None else _array(decay)


def advance(
    g: GraphBuilder,
    config: OceanConfig,
    layers: list[Folded],
    token: Read,
    decay: Array | None,
    ocean: str,
    ocean_next: str,
) -> str:
    """All layers, from what layer 1 knows of the token and the ocean to the next ocean."""
    ones, zeros = np.ones(config.width), np.zeros(config.width)
    m = g.layer_norm("ocean.normalised", ocean, ones, zeros, LAYER_NORM_EPS)
    x = ""
    two_rows = config.width >= TWO_ROWS_FROM and g.precision == "fp32"
    for i, layer in enumerate(layers):
        known = read(g, i, layer, x, two_rows) if i else token
        x = attend(g, config, i, layer, known, m)
        if i < len(layers) - 1:
            x = feed_forward(g, i, layer, x, f"layer{i}.output", plus=x)
        elif decay is None:
            x = feed_forward(g, i, layer, x, ocean_next, plus=x)
        else:
            x = integrate(g, i, layer, x, decay, ocean, ocean_next)
    return x


def attend(g: GraphBuilder, config: OceanConfig, i: int, layer: Folded, known: Read, m: str) -> str:
    """x + y Wo: the token reads the ocean, whose normalised form is `m`."""
    name, H = f"layer{i}", config.heads
    n, q, residual = known.normalised, known.query, known.residual
    if known.holds_value:
        e = g.op(f"{name}.difference", "Sub", m, n)
        key_bias = layer.key_bias
        dv = g.product(f"{name}.value_difference", e, f"{name}.value.weight", layer.value, layer.value_bias)
    else:
        shifted = m
        if layer.shift.any():
            shifted = g.op(f"{name}.ocean", "Add", m, f"{name}.normalised.bias")
        e = g.op(f"{name}.difference", "Sub", shifted, n)
        key_bias = np.zeros(config.width)
        rows = g.op(f"{name}.rows", "Concat", n, e, axis=0)
        values = g.product(f"{name}.values", rows, f"{name}.value.weight", layer.value)
        v, dv = f"{name}.value", f"{name}.value_difference"
        g.ops((v, dv), "Split", values, axis=0, num_outputs=2)
    dk = g.product(f"{name}.key_difference", e, f"{name}.key.weight", layer.key, key_bias)
    scores = g.op(f"{name}.scores", "Mul", q, dk)
    to_heads = heads(config.width, H)
    if config.width == H:
        a = g.op(f"{name}.read_weight", "Sigmoid", scores)
    elif config.width <= SQUARE_HEADS_UP_TO or config.width <= 2 * H:
        summed = g.op(f"{name}.summed", "Gemm", scores, g.weight("heads", to_heads @ to_heads.T))
        a = g.op(f"{name}.read_weight", "Sigmoid", summed)
    else:
        summed = g.op(f"{name}.summed", "Gemm", scores, g.weight("heads", to_heads))
        per_head = g.op(f"{name}.read_weight_per_head", "Sigmoid", summed)
        a = g.op(f"{name}.read_weight", "MatMul", per_head, g.weight("heads.transposed", to_heads.T))
    y = g.op(f"{name}.from_ocean", "Mul", a, dv)
    if not known.holds_value:
        y = g.op(f"{name}.attended", "Add", v, y)
    return g.product(f"{name}.after_attention", y, f"{name}.out.weight", layer.out, plus=residual)


def feed_forward(g: GraphBuilder, i: int, layer: Folded, x: str, output: str, plus: str) -> str:
    """`plus` + W2 gelu(W1 LN2(x) + b1) + b2."""
    name = f"layer{i}"
    D = len(layer.shift)
    if g.precision == "fp32":
        layer = with_bias_unit(layer)
    n = g.layer_norm(f"{name}.normalised2", x, np.ones(D), np.zeros(D), LAYER_NORM_EPS)
    u = g.product(f"{name}.hidden", n, f"{name}.first.weight", layer.first, layer.first_bias)
    u = g.op(f"{name}.activated", "Gelu", u)
    return g.product(output, u, f"{name}.second.weight", layer.second, layer.second_bias, plus=plus)


def integrate(g: GraphBuilder, i: int, layer: Folded, x: str, decay: Array, ocean: str, output: str) -> str:
    """λ ⊙ ocean + (1 − λ) ⊙ (x + W2 gelu(W1 LN2(x) + b1) + b2), with 1 − λ inside W2 and b2."""
    name, rest = f"layer{i}", 1 - decay
    layer = layer._replace(second=layer.second * rest, second_bias=layer.second_bias * rest)
    kept = g.op(f"{name}.kept", "Mul", ocean, g.weight("decay", decay.astype(np.float32)))
    taken = g.op(f"{name}.taken", "Mul", x, g.weight("decay.rest", rest.astype(np.float32)))
    mixed = g.op(f"{name}.mixed", "Add", kept, taken)
    return feed_forward(g, i, layer, x, output, plus=mixed)


def with_bias_unit(layer: Folded) -> Folded:
    """The layer with b2 inside W2: one more hidden unit has the constant value 16 = gelu(16), and b2/16 as its row.

    Its product then adds x where it would add b2, which saves a node. It has seven empty neighbours, so that rows
    still fill the processor's registers.
    """
    if not layer.second_bias.any():
        return layer
    D = len(layer.second_bias)
    first_bias, second = np.zeros(UNITS), np.zeros((UNITS, D))
    first_bias[0], second[0] = CONSTANT, layer.second_bias / CONSTANT
    return layer._replace(
        first=np.hstack([layer.first, np.zeros((D, UNITS))]),
        first_bias=np.concatenate([layer.first_bias, first_bias]),
        second=np.vstack([layer.second, second]),
        second_bias=np.zeros(D),
    )


def read_out(g: GraphBuilder, model: OceanTransformer, x: str, output: str) -> None:
    """head(LNf(o))."""
    n = g.layer_norm("normalised", x, _array(model.norm.weight), _array(model.norm.bias), LAYER_NORM_EPS)
    g.product(output, n, "head.weight", _array(model.head.weight).T)


def _array(weight: Tensor) -> Array:
    array: Array = weight.detach().cpu().numpy().astype(np.float64)
    return array
