"""A step graph of normalised numbers becomes one of observations in their units (ocean_train.observations)."""

from __future__ import annotations

import numpy as np
import onnx
from ocean_train.observations import CLIP, Observations
from onnx import helper, numpy_helper


def in_units(proto: onnx.ModelProto, observations: Observations) -> onnx.ModelProto:
    """Put the normalisation before the graph's observation and behind its output; names stay as they were.

    Works on the last axis of any graph with one observation and one output besides the state, whatever its
    other axes. Changes `proto`, and returns it.
    """
    graph = proto.graph
    entry, output = graph.input[0].name, graph.output[0].name
    inside, y = f"{entry}.normalised", f"{output}.normalised"
    for node in graph.node:
        node.input[:] = [inside if name == entry else name for name in node.input]
        if observations.target != "classes":
            node.name = y if node.name == output else node.name
            node.output[:] = [y if name == output else name for name in node.output]
            node.name = y if node.name == output else node.name
            node.input[:] = [y if name == output else name for name in node.input]

    def constant(name: str, values: object) -> str:
        graph.initializer.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def op(kind: str, inputs: list[str], name: str) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], name=name))
        return name

    nodes: list[onnx.NodeProto] = []
    given = observations.input_scaling
    x = op("Sub", [entry, constant("units.offset", given.offset)], f"{entry}.centred")
    x = op("Div", [x, constant("units.scale", given.scale)], f"{entry}.scaled")
    op("Clip", [x, constant("units.low", -CLIP), constant("units.high", CLIP)], inside)
    nodes += graph.node
    if observations.target != "classes":
        wanted = observations.output_scaling
        moves = observations.target == "next"
        y = op("Mul", [y, constant("units.output_scale", wanted.scale)], f"{output}.scaled")
        y = op(
            "Add",
            [y, constant("units.output_offset", wanted.offset)],
            f"{output}.change" if moves else output,
        )
        if moves:
            op("Add", [entry, y], output)
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(proto)
    return proto
