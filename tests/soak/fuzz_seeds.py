"""Small valid step graphs for the fuzzer to mutate: one for each group of operators that a model may use.

Each takes x (B, 8) and the state s (B, 8), and gives y (B, 8) and s_next (B, 8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from ocean_runtime.contract import BATCH, METADATA_KEY, Contract, State, Tensor
from onnx import TensorProto, helper, numpy_helper

WIDTH = 8


class Build:
    """A graph in the making: `op` adds a node and names what it gives."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        """Add a node; the name of its first output."""
        names = [f"{kind.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return names[0]

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        """Add an initializer."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """Add an initializer of small random numbers."""
        return self.const(self.random.standard_normal(shape) * 0.3)

    def ints(self, *values: int) -> str:
        """Add a list of int64."""
        return self.const(values, np.int64)


Recipe = Callable[[Build, str, str], str]


def model(recipe: Recipe) -> onnx.ModelProto:
    """A step graph around what a recipe makes of x and s, both (B, 8)."""
    build = Build()
    y = recipe(build, "x", "s")
    build.nodes.append(helper.make_node("Identity", [y], ["y"]))
    build.nodes.append(helper.make_node("Tanh", [y], ["s_next"]))
    info = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", WIDTH]) for n in ("x", "s", "y", "s_next")
    ]
    graph = helper.make_graph(build.nodes, recipe.__name__, info[:2], info[2:], build.weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    attach(proto, contract())
    return proto


def contract() -> Contract:
    """The contract of all these graphs."""
    shape = (BATCH, WIDTH)
    return Contract(
        kind="raw",
        inputs=(Tensor("x", "float32", shape),),
        outputs=(Tensor("y", "float32", shape, predicts="x"),),
        states=(State("s", "s_next", "float32", shape),),
        state_id="sha256:0",
    )


def attach(proto: onnx.ModelProto, contract: Contract | str) -> None:
    """Write a contract into a model's metadata."""
    del proto.metadata_props[:]
    text = contract if isinstance(contract, str) else contract.to_json()
    proto.metadata_props.add(key=METADATA_KEY, value=text)


def dense(b: Build, x: str, s: str) -> str:
    h = b.op("Add", b.op("Gemm", x, b.weight(8, 8), b.weight(8), transB=1), b.op("MatMul", s, b.weight(8, 8)))
    h = b.op("LayerNormalization", h, b.weight(8), b.weight(8), axis=-1)
    return b.op("Mul", b.op("Sigmoid", h), b.op("Div", b.op("Erf", h), b.const(2.0)))


def lstm(b: Build, x: str, s: str) -> str:
    x3, h0 = b.op("Unsqueeze", x, b.ints(0)), b.op("Unsqueeze", s, b.ints(0))
    b.op(
        "LSTM",
        x3,
        b.weight(1, 32, 8),
        b.weight(1, 32, 8),
        b.weight(1, 64),
        "",
        h0,
        h0,
        outputs=3,
        hidden_size=8,
    )
    return b.op("Squeeze", b.nodes[-1].output[1], b.ints(0))


def gru(b: Build, x: str, s: str) -> str:
    x3, h0 = b.op("Unsqueeze", x, b.ints(0)), b.op("Unsqueeze", s, b.ints(0))
    b.op(
        "GRU",
        x3,
        b.weight(1, 24, 8),
        b.weight(1, 24, 8),
        "",
        "",
        h0,
        outputs=2,
        hidden_size=8,
        linear_before_reset=1,
    )
    return b.op("Squeeze", b.nodes[-1].output[1], b.ints(0))


def rnn(b: Build, x: str, s: str) -> str:
    x3, h0 = b.op("Unsqueeze", x, b.ints(0)), b.op("Unsqueeze", s, b.ints(0))
    b.op("RNN", x3, b.weight(1, 8, 8), b.weight(1, 8, 8), "", "", h0, outputs=2, hidden_size=8)
    return b.op("Squeeze", b.nodes[-1].output[1], b.ints(0))


def conv(b: Build, x: str, s: str) -> str:
    h = b.op("Concat", b.op("Unsqueeze", x, b.ints(1)), b.op("Unsqueeze", s, b.ints(1)), axis=1)  # (B, 2, 8)
    h = b.op("Pad", h, b.ints(0, 0, 1, 0, 0, 1), mode="reflect")
    h = b.op("Conv", h, b.weight(4, 1, 3), b.weight(4), strides=[1], group=2, dilations=[1], pads=[0, 0])
    h = b.op("BatchNormalization", h, b.weight(4), b.weight(4), b.weight(4), b.const([1, 1, 1, 1]))
    h = b.op("InstanceNormalization", b.op("Relu", h), b.weight(4), b.weight(4))
    return b.op("ReduceMean", h, b.ints(1), keepdims=0)


def shapes(b: Build, x: str, s: str) -> str:
    batch = b.op("Slice", b.op("Shape", x), b.ints(0), b.ints(1))
    zeros = b.op("ConstantOfShape", b.op("Concat", batch, b.ints(8), axis=0))
    h = b.op("Expand", b.op("Add", x, zeros), b.op("Concat", batch, b.ints(8), axis=0))
    b.op("Split", h, b.ints(3, 5), outputs=2, axis=1)
    h = b.op("Concat", b.nodes[-1].output[1], b.nodes[-1].output[0], axis=-1)
    h = b.op("Tile", b.op("Reshape", h, b.ints(-1, 2, 4)), b.ints(1, 1, 2))
    h = b.op("Transpose", h, perm=[0, 2, 1])
    h = b.op("Flatten", b.op("Slice", h, b.ints(0), b.ints(4), b.ints(1), b.ints(1)), axis=1)
    return b.op("Where", b.op("Greater", h, s), h, b.op("Cast", b.op("Cast", s, to=TensorProto.DOUBLE), to=1))


def places(b: Build, x: str, s: str) -> str:
    h = b.op("Gather", b.op("Add", x, s), b.ints(7, 6, 5, 4, 3, 2, 1, 0), axis=1)
    h = b.op("GatherElements", h, b.op("Cast", b.op("Sign", b.op("Abs", h)), to=7), axis=1)
    b.op("TopK", h, b.ints(8), outputs=2, axis=1)
    h = b.op("CumSum", b.nodes[-1].output[0], b.ints(1))
    h = b.op("ScatterElements", h, b.op("Cast", b.op("Sign", b.op("Abs", x)), to=7), x, axis=1)
    h = b.op("Trilu", b.op("Unsqueeze", h, b.ints(0)))
    h = b.op("Einsum", b.op("Squeeze", h, b.ints(0)), b.weight(8, 8), equation="ij,jk->ik")
    h = b.op("DepthToSpace", b.op("Reshape", h, b.ints(-1, 4, 1, 2)), blocksize=2)
    return b.op("Reshape", h, b.ints(-1, 8))


def nd(b: Build, x: str, s: str) -> str:
    h = b.op("Transpose", b.op("Add", x, s), perm=[1, 0])
    g = b.op("GatherND", h, b.const([[0], [1], [2], [3], [4], [5], [6], [7]], np.int64))
    h = b.op("ScatterND", h, b.const([[1], [3]], np.int64), b.op("Slice", g, b.ints(0), b.ints(2), b.ints(0)))
    h = b.op("ArgMax", h, axis=0, keepdims=1)
    return b.op("Add", x, b.op("Transpose", b.op("Cast", h, to=1), perm=[1, 0]))


def quantised(b: Build, x: str, s: str) -> str:
    b.op("DynamicQuantizeLinear", b.op("Add", x, s), outputs=3)
    q, scale, zero = b.nodes[-1].output
    w = b.const(b.random.integers(0, 255, (8, 8)), np.uint8)
    h = b.op("Cast", b.op("MatMulInteger", q, w, zero, b.const(128, np.uint8)), to=1)
    h = b.op("Mul", h, scale)
    m = b.op(
        "MatMulIntegerToFloat",
        q,
        w,
        scale,
        b.const(0.01),
        zero,
        b.const(128, np.uint8),
        domain="com.microsoft",
    )
    d = b.op("DynamicQuantizeMatMul", x, w, b.const(0.01), b.const(128, np.uint8), domain="com.microsoft")
    q2 = b.op("QuantizeLinear", d, b.const(0.1), b.const(128, np.uint8))
    return b.op("Sum", h, m, b.op("DequantizeLinear", q2, b.const(0.1), b.const(128, np.uint8)))


def blocks(b: Build, x: str, s: str) -> str:
    h = b.op("Concat", x, s, axis=1)  # (B, 16)
    packed = b.const(b.random.integers(0, 255, (8, 1, 8)), np.uint8)
    scales = b.weight(8)
    n = {"K": 16, "N": 8, "bits": 4, "block_size": 16, "accuracy_level": 4}
    return b.op("MatMulNBits", h, packed, scales, domain="com.microsoft", **n)


def fused(b: Build, x: str, s: str) -> str:
    ms: dict[str, Any] = {"domain": "com.microsoft"}
    h = b.op("SkipLayerNormalization", x, s, b.weight(8), b.weight(8), epsilon=1e-5, **ms)
    h = b.op("FusedMatMul", h, b.weight(8, 8), alpha=0.5, transB=1, **ms)
    h = b.op("QuickGelu", b.op("BiasGelu", h, b.weight(8), **ms), alpha=1.7, **ms)
    h = b.op("FastGelu", b.op("Gelu", h, **ms), b.weight(8), **ms)
    h = b.op("FusedGemm", h, b.weight(8, 8), b.weight(8), activation="Relu", **ms)
    return b.op("SimplifiedLayerNormalization", h, b.weight(8), axis=-1, **{**ms, "domain": ""})


def branch(b: Build, x: str, s: str) -> str:
    def side(name: str, kind: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(kind, [x, s], [name])], name, [], [out])

    what = b.op("Greater", b.op("ReduceSum", x, keepdims=0), b.const(0.0))
    return b.op("If", what, then_branch=side("yes", "Add"), else_branch=side("no", "Sub"))


def scan(b: Build, x: str, s: str) -> str:
    names = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", 8]) for n in ("h", "v", "h2", "o")]
    nodes = [
        helper.make_node("Add", ["h", "v"], ["a"]),
        helper.make_node("Tanh", ["a"], ["h2"]),
        helper.make_node("Identity", ["h2"], ["o"]),
    ]
    body = helper.make_graph(nodes, "body", names[:2], names[2:])
    xs = b.op("Concat", b.op("Unsqueeze", x, b.ints(0)), b.op("Unsqueeze", s, b.ints(0)), axis=0)
    b.op("Scan", s, xs, outputs=2, body=body, num_scan_inputs=1)
    return b.nodes[-1].output[0]


def activations(b: Build, x: str, s: str) -> str:
    h = b.op("Clip", b.op("Add", x, s), b.const(-3.0), b.const(3.0))
    for kind in (
        "Elu",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Mish",
        "Selu",
        "Softplus",
        "Softsign",
        "Softmax",
    ):
        h = b.op(kind, h)
    h = b.op("PRelu", b.op("Max", h, s), b.weight(8))
    h = b.op("Mod", b.op("Round", h), b.const(3.0), fmod=1)
    g = b.op(
        "GroupNormalization", b.op("Reshape", h, b.ints(0, 4, 2)), b.weight(2), b.weight(2), num_groups=2
    )
    return b.op("LpNormalization", b.op("Reshape", g, b.ints(0, 8)))


RECIPES = (
    dense,
    lstm,
    gru,
    rnn,
    conv,
    shapes,
    places,
    nd,
    quantised,
    blocks,
    fused,
    branch,
    scan,
    activations,
)
