"""A foreign ONNX file as `adopt` sees it: one text of bytes, its inputs and outputs, and which of them are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from ocean_runtime import OceanError
from ocean_runtime.contract import DTYPES, METADATA_KEY

_DTYPE: dict[int, str] = {
    int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))): name for name, dtype in DTYPES.items()
}


class AdoptError(OceanError):
    """The file, or what was said of it, leaves something open or contradicts itself."""


@dataclass(frozen=True)
class Value:
    """An input or output of the foreign graph."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    """Sizes; the name of an axis whose size is not fixed, or TENSOR.AXIS where it has none. None: the graph
    gives no shape, and only running it tells."""


def parse(content: bytes, name: str) -> onnx.ModelProto:
    """The parsed file, without what lies in other files. Raises AdoptError where it can't be adopted."""
    try:
        proto = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's exceptions differ by its implementation
        raise AdoptError(f"{name} is no ONNX file, or is damaged ({str(error).splitlines()[0]})") from None
    if not proto.graph.input or not proto.graph.output:
        raise AdoptError(f"{name} holds no graph with inputs and outputs")
    if any(entry.key == METADATA_KEY for entry in proto.metadata_props):
        raise AdoptError(f"{name} has a contract already; adopt the file it was made of")
    return proto


def values(graph: onnx.GraphProto) -> tuple[dict[str, Value], dict[str, Value]]:
    """Inputs and outputs by name. Raises AdoptError where one is something that no step takes or gives."""
    stored = {weight.name for weight in graph.initializer}
    inputs = {v.name: _value(v) for v in graph.input if v.name not in stored}
    for value in inputs.values():
        if value.shape is None:
            raise AdoptError(
                f"the graph gives the input {value.name!r} no shape, so nobody can tell what to give it; "
                "export the model with the shapes of its inputs"
            )
    return inputs, {v.name: _value(v) for v in graph.output}


def unused(graph: onnx.GraphProto) -> list[str]:
    """The inputs on which no output depends, in the graph's order."""
    needed = {output.name for output in graph.output}
    for node in reversed(graph.node):  # in ONNX, a node stands after those whose outputs it reads
        if needed & set(node.output):
            needed |= set(_reads(node))
    stored = {weight.name for weight in graph.initializer}
    return [v.name for v in graph.input if v.name not in needed | stored]


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """All stored tensors, also those of nodes and of graphs within the graph."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in _graphs(attribute):
                yield from tensors(inner)


def fits(i: Value, o: Value) -> bool:
    """Whether an output may replace an input: same type, same rank, and no two fixed sizes that differ."""
    if i.dtype != o.dtype:
        return False
    if i.shape is None or o.shape is None:
        return True
    return len(i.shape) == len(o.shape) and all(
        a == b or isinstance(a, str) or isinstance(b, str) for a, b in zip(i.shape, o.shape, strict=True)
    )


def listed(names: Sequence[str] | Mapping[str, object]) -> str:
    """Names in a sentence."""
    return ", ".join(map(repr, names))


def _value(info: onnx.ValueInfoProto) -> Value:
    tensor = info.type.tensor_type
    if tensor.elem_type not in _DTYPE:
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
        raise AdoptError(f"{info.name!r} has the type {kind}; choose a model with {', '.join(DTYPES)}")
    if not tensor.HasField("shape"):
        return Value(info.name, _DTYPE[tensor.elem_type], None)
    axes = [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{info.name}.{axis}"
        for axis, dim in enumerate(tensor.shape.dim)
    ]
    return Value(info.name, _DTYPE[tensor.elem_type], tuple(axes))


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, also within its graphs."""
    yield from node.input
    for attribute in node.attribute:
        for graph in _graphs(attribute):
            yield from (output.name for output in graph.output)
            for inner in graph.node:
                yield from _reads(inner)


def _graphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs
