"""Step graphs that the runtime's tests build themselves."""

from __future__ import annotations

from pathlib import Path

import onnx
from ocean_runtime.contract import METADATA_KEY, Contract, Element, State, Tensor
from onnx import TensorProto, helper


def scalar_model(folder: Path, name: str = "scalar.onnx") -> Path:
    """A state of a single number without axes, and two outputs.

    s' = s + x[0] + x[1], twice = 2 s', both = x + s'.
    """
    contract = Contract(
        kind="raw",
        inputs=(Tensor("x", "float32", (2,), elements=(Element("a", "m"), Element("b"))),),
        outputs=(
            Tensor("twice", "float32", (1,)),
            Tensor("both", "float32", (2,), elements=(Element("c", "m"), Element("d"))),
        ),
        states=(State("s", "s_next", "float32", ()),),
        state_id="sha256:of-scalar",
        opset=18,
        ir_version=8,
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Add", ["s", "sum"], ["s_next"]),
        helper.make_node("Add", ["s_next", "s_next"], ["doubled"]),
        helper.make_node("Unsqueeze", ["doubled", "zero"], ["twice"]),
        helper.make_node("Add", ["x", "s_next"], ["both"]),
    ]
    shapes = {"x": [2], "s": [], "twice": [1], "both": [2], "s_next": []}
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items()}
    graph = helper.make_graph(
        nodes,
        "scalar",
        [values["x"], values["s"]],
        [values["twice"], values["both"], values["s_next"]],
        [helper.make_tensor("zero", TensorProto.INT64, [1], [0])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    proto.metadata_props.add(key=METADATA_KEY, value=contract.to_json())
    onnx.save(proto, folder / name)
    return folder / name


def batch_of_one(folder: Path, name: str = "policy.onnx") -> Path:
    """A policy whose graph was exported for one robot: obs [1, 3], h [1, 1, 3] -> actions [1, 3], h_out [1, 1, 3].

    h_out = 0.5 h + obs, actions = h_out.
    """
    contract = Contract(
        kind="raw",
        inputs=(Tensor("obs", "float32", (1, 3), elements=tuple(map(Element, "xyz"))),),
        outputs=(Tensor("actions", "float32", (1, 3), elements=tuple(map(Element, "abc"))),),
        states=(State("h", "h_out", "float32", (1, 1, 3)),),
        state_id="sha256:of-policy",
        opset=18,
        ir_version=8,
    )
    shapes = {"obs": [1, 3], "h": [1, 1, 3], "actions": [1, 3], "h_out": [1, 1, 3]}
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items()}
    nodes = [
        helper.make_node("Mul", ["h", "half"], ["kept"]),
        helper.make_node("Add", ["kept", "obs"], ["h_out"]),
        helper.make_node("Reshape", ["h_out", "flat"], ["actions"]),
    ]
    graph = helper.make_graph(
        nodes,
        "policy",
        [values["obs"], values["h"]],
        [values["actions"], values["h_out"]],
        [
            helper.make_tensor("half", TensorProto.FLOAT, [], [0.5]),
            helper.make_tensor("flat", TensorProto.INT64, [2], [1, 3]),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    proto.metadata_props.add(key=METADATA_KEY, value=contract.to_json())
    onnx.save(proto, folder / name)
    return folder / name
