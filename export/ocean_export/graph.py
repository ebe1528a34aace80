"""The trained module as an ONNX graph of one step."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

import onnx
import torch
from ocean_train.model import OceanTransformer
from torch import Tensor, nn

OPSET = 18
IR_VERSION = 8
"""The pair that onnxruntime 1.14 and newer load."""

INPUT = {"tokens": "token", "features": "observation"}
OUTPUT = {"tokens": "logits", "regression": "prediction", "classes": "logits"}
OCEAN, OCEAN_NEXT = "ocean", "ocean_next"


class _Step(nn.Module):
    """`OceanTransformer.step` as a module's forward, which is what the exporter takes."""

    def __init__(self, model: OceanTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, ocean: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.step(inputs, ocean)


def step_graph(model: OceanTransformer) -> onnx.ModelProto:
    """The graph of `model.step`: (token int64 [B] | observation float32 [B, M]), ocean [B, D] -> output, ocean_next.

    B is dynamic, all weights are inside, and the names are those of the module.
    """
    config = model.config
    # Two rows: the exporter would take a batch of one for a constant.
    inputs = torch.zeros(2, dtype=torch.int64) if config.kind == "tokens" else torch.zeros(2, config.inputs)
    batch = torch.export.Dim("B")
    with quiet():
        program = torch.onnx.export(
            _Step(model).eval(),
            (inputs, model.initial_ocean(2)),
            input_names=[INPUT[config.kind], OCEAN],
            output_names=[OUTPUT[config.head], OCEAN_NEXT],
            dynamic_shapes=({0: batch}, {0: batch}),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    proto: onnx.ModelProto = program.model_proto
    tidy(proto)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def tidy(proto: onnx.ModelProto, ir_version: int = IR_VERSION) -> None:
    """Keep what runs: the module's own names for weights, and no traces of the exporter's Python stack."""
    proto.ir_version = ir_version
    proto.producer_name, proto.producer_version = "ocean-export", ""
    graph = proto.graph
    graph.name, graph.doc_string = "ocean_step", ""
    del graph.metadata_props[:], proto.metadata_props[:], graph.value_info[:]
    new_names = {w.name: w.name.removeprefix("model.") for w in graph.initializer}
    for weight in graph.initializer:
        weight.name = new_names[weight.name]
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
        node.input[:] = [new_names.get(name, name) for name in node.input]
    for value in (*graph.input, *graph.output):
        del value.metadata_props[:]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The exporter warns of its own deprecated parts, and of packages that nothing here needs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
