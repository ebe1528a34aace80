"""Writing ONNX graphs by hand: named values, weights stored once, and products at the chosen precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ocean_export.precision import BITS, per_block, per_column

Array = NDArray[Any]

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""

Axes = Sequence[int | str]


class GraphBuilder:
    """A graph as it grows: each method adds nodes and gives the name of the value they compute.

    A value is named by whoever asks for it, and its node after it, so that a reader of the graph meets the
    model's words. `portable` keeps to operators of the ONNX standard.
    """

    def __init__(self, precision: str = "fp32", portable: bool = False, flat: bool = True) -> None:
        """`flat`: values are matrices, as Gemm takes them; otherwise they may have more axes."""
        self.precision = precision
        self.portable = portable
        self.flat = flat
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    def weight(self, name: str, values: Array) -> str:
        """Store a constant under a name; the same name again means the same constant."""
        if name not in self.weights:
            self.weights[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def op(self, name: str, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """One node with one output, both called `name`."""
        self.ops((name,), kind, *inputs, domain=domain, **attributes)
        return name

    def ops(self, names: Sequence[str], kind: str, *inputs: str, domain: str = "", **attributes: Any) -> None:
        """One node with several outputs, called after its first named one; "" is an output nobody wants."""
        title = next(name for name in names if name)
        self.nodes.append(helper.make_node(kind, inputs, names, name=title, domain=domain, **attributes))

    def product(
        self, name: str, x: str, weight: str, W: Array, bias: Array | None = None, plus: str | None = None
    ) -> str:
        """`x` W + bias + `plus`, W of shape (in, out) stored under the name `weight`."""
        if bias is not None and not bias.any():
            bias = None
        b = None if bias is None else self.weight(f"{weight}.bias", bias.astype(np.float32))
        if self.precision == "fp32":
            w = self.weight(weight, W.astype(np.float32))
            inside = (b or plus) if self.flat else None
        else:
            inside = b if self.precision == "int8" and not self.portable else None
        after = [term for term in (b, plus) if term and term != inside]
        first = f"{name}.product" if after else name
        if self.precision != "fp32":
            y = self._quantised(first, x, weight, W, inside)
        elif inside:
            y = self.op(first, "Gemm", x, w, inside)
        else:
            y = self.op(first, "MatMul", x, w)
        for i, term in enumerate(after, start=1):
            y = self.op(name if i == len(after) else f"{name}.{i}", "Add", y, term)
        return y

    def full_product(self, name: str, x: str, weight: str, W: Array, bias: Array) -> str:
        """As `product`, float32 at every precision: for inputs in units of their own."""
        w, b = (self.weight(n, a.astype(np.float32)) for n, a in ((weight, W), (f"{weight}.bias", bias)))
        if self.flat:
            return self.op(name, "Gemm", x, w, b)
        return self.op(name, "Add", self.op(f"{name}.product", "MatMul", x, w), b)

    def layer_norm(self, name: str, x: str, scale: Array, bias: Array, epsilon: float = 1e-5) -> str:
        """LayerNorm over the last axis, with (D,) constants."""
        one = self._vector(f"{name}.scale", scale, 1.0, "ones")
        # Always with a bias: onnxruntime 1.17 aborts when it fuses a sum into one that has none.
        other = self._vector(f"{name}.bias", bias, 0.0, "zeros")
        return self.op(name, "LayerNormalization", x, one, other, axis=-1, epsilon=epsilon)

    def model(
        self,
        name: str,
        inputs: Sequence[tuple[str, str, Axes]],
        outputs: Sequence[tuple[str, str, Axes]],
        opset: int,
        ir_version: int,
    ) -> onnx.ModelProto:
        """The finished, checked file: inputs and outputs as (name, dtype, axes)."""
        graph = self.graph(name, inputs, outputs)
        used = {node.domain for node in _all_nodes(graph)}
        opsets = [helper.make_opsetid("", opset)]
        if MICROSOFT in used:
            opsets.append(helper.make_opsetid(MICROSOFT, 1))
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
        proto.producer_name = "ocean-export"
        onnx.checker.check_model(proto, full_check=MICROSOFT not in used)
        return proto

    def graph(
        self,
        name: str,
        inputs: Sequence[tuple[str, str, Axes]],
        outputs: Sequence[tuple[str, str, Axes]],
    ) -> onnx.GraphProto:
        """What was built so far, as the graph of a model or the body of a loop."""
        return helper.make_graph(
            self.nodes,
            name,
            [_value(*entry) for entry in inputs],
            [_value(*entry) for entry in outputs],
            list(self.weights.values()),
        )

    def _vector(self, name: str, values: Array, usual: float, usual_name: str) -> str:
        """A vector under its name, or the one that many share where it is constant."""
        return self.weight(usual_name if (values == usual).all() else name, values.astype(np.float32))

    def _quantised(self, name: str, x: str, weight: str, W: Array, bias: str | None) -> str:
        bits = BITS[self.precision]
        if not self.portable:
            blocks, scales, size = per_block(W, bits)
            return self.op(
                name,
                "MatMulNBits",
                x,
                self.weight(f"{weight}.int{bits}", blocks),
                self.weight(f"{weight}.scale", scales),
                *(["", "", bias] if bias else []),
                domain=MICROSOFT,
                K=W.shape[0],
                N=W.shape[1],
                bits=bits,
                block_size=size,
                accuracy_level=4,  # integer products; with float32 ones (level 0) each took some 30 times as long
            )
        columns, scale = per_column(W)
        rounded = f"{x}.uint8"
        if not any(rounded in node.output for node in self.nodes):  # one rounding serves all products of x
            self.ops((rounded, f"{rounded}.scale", f"{rounded}.zero"), "DynamicQuantizeLinear", x)
        total = self.op(
            f"{name}.int32",
            "MatMulInteger",
            rounded,
            self.weight(f"{weight}.uint8", columns),
            f"{rounded}.zero",
            self.weight("uint8.zero", np.uint8(128)),
        )
        real = self.op(f"{name}.float32", "Cast", total, to=TensorProto.FLOAT)
        # In this order onnxruntime recognises the pattern and computes it as one node.
        both = self.op(f"{name}.scale", "Mul", f"{rounded}.scale", self.weight(f"{weight}.scale", scale))
        return self.op(name, "Mul", real, both)


def heads(width: int, count: int) -> Array:
    """(D, H) of ones where an element belongs to a head: x @ heads sums per head, a @ headsᵀ spreads back."""
    return np.kron(np.eye(count), np.ones((width // count, 1))).astype(np.float32)


def _value(name: str, dtype: str, axes: Axes) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(axes))


def _all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    nodes = []
    for node in graph.node:
        nodes.append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                nodes += _all_nodes(attribute.g)
    return nodes
