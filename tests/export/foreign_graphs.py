"""Small foreign graphs, written node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import NodeProto, TensorProto, helper

Shape = Sequence[int | str | None] | None


def foreign_graph(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    weights: Sequence[TensorProto] = (),
    *,
    types: Mapping[str, int] | None = None,
    opset: int = 18,
) -> bytes:
    """A file's bytes. Shapes by name (None: the graph gives none); types: where not float32."""
    values = {
        name: helper.make_tensor_value_info(name, (types or {}).get(name, TensorProto.FLOAT), shape)
        for name, shape in {**inputs, **outputs}.items()
    }
    graph = helper.make_graph(
        nodes, "foreign", [values[n] for n in inputs], [values[n] for n in outputs], list(weights)
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    content: bytes = model.SerializeToString()
    return content


def node(kind: str, inputs: str, outputs: str, **attributes: object) -> NodeProto:
    """A node whose inputs and outputs are named in texts, separated by spaces."""
    return helper.make_node(kind, inputs.split(" "), outputs.split(" "), **attributes)
