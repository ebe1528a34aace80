"""Small features models for the node's tests: a leaky integrator, so that each step's numbers are known.

oceanₜ = 0.9 oceanₜ₋₁ + x W        prediction = oceanₜ V
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from ocean_runtime.contract import METADATA_KEY, Contract, Element, State, Tensor, digest
from onnx import TensorProto, helper, numpy_helper

DECAY = np.float32(0.9)


def weights(
    features: int, outputs: int, width: int, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """W (M, D) and V (D, N)."""
    generator = np.random.default_rng(seed)
    return (
        generator.normal(size=(features, width)).astype(np.float32),
        generator.normal(size=(width, outputs)).astype(np.float32),
    )


def leaky(
    path: Path,
    inputs: Sequence[str] = ("angular_velocity.x", "angular_velocity.y", "angular_velocity.z"),
    outputs: Sequence[str] | None = None,
    *,
    width: int = 8,
    seed: int = 0,
    rate_hz: float | None = None,
    max_age_s: float | None = None,
    work: int = 0,
    output: str = "prediction",
    reference: float = 0.0,
    high: float | None = None,
    note: str = "",
    lookups: Sequence[str] = (),
) -> Path:
    """Write such a model. outputs: names where it does not predict its next input.

    output: the name of the model's output; one that is called logits tells classes apart.
    reference: of every element, such as a UTM coordinate's. high: the largest value that it had in training.
    lookups: what each element is by name, where its own name has an index.
    work: the size of a square matrix that each step multiplies with ten times, for a step that takes long.
    """
    names = list(inputs if outputs is None else outputs)

    def elements(names: Sequence[str]) -> tuple[Element, ...]:
        known = dict(zip(inputs, lookups, strict=False))
        return tuple(Element(name, reference=reference, lookup=known.get(name, "")) for name in names)

    W, V = weights(len(inputs), len(names), width, seed)
    stored = {"W": W, "V": V, "decay": np.array(DECAY)}
    nodes = [
        helper.make_node("MatMul", ["observation", "W"], ["driven"]),
        helper.make_node("Mul", ["ocean", "decay"], ["kept"]),
        helper.make_node("Add", ["kept", "driven"], ["ocean_next"]),
        helper.make_node("MatMul", ["ocean_next", "V"], ["answer"]),
    ]
    if work:
        stored |= {
            "heavy": np.full((work, work), 1e-9, np.float32),
            "column": np.zeros((1, work), np.float32),
        }
        stored["zero"] = np.zeros((work, len(names)), np.float32)
        before = "column"
        for i in range(10):
            nodes.append(helper.make_node("MatMul", [before, "heavy"], [f"slow{i}"]))
            before = f"slow{i}"
        # Depends on the input, so that it can't be computed once when the model is loaded.
        nodes[4].input[0] = "started"
        nodes.insert(4, helper.make_node("ReduceSum", ["driven"], ["sum"], keepdims=0))
        nodes.insert(5, helper.make_node("Add", ["column", "sum"], ["started"]))
        nodes.append(helper.make_node("MatMul", [before, "zero"], ["nothing"]))
        nodes.append(helper.make_node("Add", ["answer", "nothing"], [output]))
    else:
        nodes.append(helper.make_node("Identity", ["answer"], [output]))
    graph = helper.make_graph(
        nodes,
        "leaky",
        [
            helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["B", len(inputs)]),
            helper.make_tensor_value_info("ocean", TensorProto.FLOAT, ["B", width]),
        ],
        [
            helper.make_tensor_value_info(output, TensorProto.FLOAT, ["B", len(names)]),
            helper.make_tensor_value_info("ocean_next", TensorProto.FLOAT, ["B", width]),
        ],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    contract = Contract(
        kind="features",
        inputs=(
            Tensor(
                "observation",
                "float32",
                ("B", len(inputs)),
                elements=tuple(replace(element, high=high) for element in elements(inputs)),
            ),
        ),
        outputs=(
            Tensor(
                output,
                "float32",
                ("B", len(names)),
                elements=elements(names),
                predicts="observation" if outputs is None else "",
            ),
        ),
        states=(State("ocean", "ocean_next", "float32", ("B", width)),),
        state_id=digest({"W": W, "V": V}),
        rate_hz=rate_hz,
        max_age_s=max_age_s,
        provenance={"note": note},
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, contract.to_json()
    path.write_bytes(model.SerializeToString())
    return path
