"""Many steps in one call: token-only work before the loop, the head after it, only the ocean inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from ocean_runtime.contract import Contract
from ocean_runtime.errors import ContractError
from ocean_runtime.model import OceanModel
from ocean_runtime.prefill import PREFILL_KEY, Prefill, binding, digest
from ocean_runtime.scan import scan
from ocean_runtime.session import session_of
from ocean_train.model import OceanTransformer

from ocean_export.build import GraphBuilder
from ocean_export.contract import with_metadata
from ocean_export.graph import INPUT, OCEAN, OCEAN_NEXT, OUTPUT
from ocean_export.lean import IR_VERSION, OPSET, Read, advance, blocks, decay_of, fold, read_out, read_token
from ocean_export.verify import CUTS, Errors, Trial


def prefill_graph(
    model: OceanTransformer, precision: str = "fp32", portable: bool = False
) -> onnx.ModelProto:
    """T steps: (token int64 [T, B] | observation float32 [T, B, M]), ocean [B, D] -> output [T, B, ·], ocean_next.

    Each step computes what the step graph of the same precision computes.
    """
    config = model.config
    D = config.width
    layers = [fold(block) for block in blocks(model)]
    g = GraphBuilder(precision, portable, flat=False)
    entry, output = INPUT[config.kind], OUTPUT[config.head]
    token = read_token(g, model, layers[0], entry)
    known = Read("step.normalised", "step.query", "step.residual", holds_value=True)

    body = GraphBuilder(precision, portable)
    x = advance(body, config, layers, known, decay_of(model), "step.ocean", "step.ocean_next")
    body.op("step.ocean_kept", "Identity", x)
    rows = ("B", D)
    g.ops(
        (OCEAN_NEXT, "oceans"),
        "Scan",
        OCEAN,
        token.normalised,
        token.query,
        token.residual,
        num_scan_inputs=3,
        body=body.graph(
            "step",
            [(name, "float32", rows) for name in ("step.ocean", *known[:3])],
            [("step.ocean_next", "float32", rows), ("step.ocean_kept", "float32", rows)],
        ),
    )
    read_out(g, model, "oceans", output)
    return g.model(
        "ocean_prefill",
        [
            (entry, "int64", ("T", "B"))
            if config.kind == "tokens"
            else (entry, "float32", ("T", "B", config.inputs)),
            (OCEAN, "float32", rows),
        ],
        [(output, "float32", ("T", "B", config.outputs)), (OCEAN_NEXT, "float32", rows)],
        OPSET,
        IR_VERSION,
    )


def attach_prefill(proto: onnx.ModelProto, contract: Contract, step_file: bytes) -> bytes:
    """The file: the graph, and in its metadata the step file that it belongs to, with the digest of its bytes."""
    return with_metadata(proto, PREFILL_KEY, binding(contract, digest(step_file)))


def is_prefill(path: Path) -> bool:
    """Whether there is a prefill file of ours at `path`."""
    try:
        return path.is_file() and scan(path.read_bytes(), PREFILL_KEY) is not None
    except ContractError:
        return False


def loaded_prefill(content: bytes, contract: Contract, step_file: bytes) -> Prefill:
    """The prefill file as the runtime will load it beside its step file."""
    return Prefill(session_of(content, 1, None), contract, scan(content, PREFILL_KEY), digest(step_file))


def verify_prefill(prefill: Prefill, step: OceanModel, trial: Trial) -> float:
    """The largest difference between the prefill graph and its step graph, outputs and final state.

    From the trial's oceans, at each batch size in BATCHES and at the sum of them, measured as `verify` measures them.
    """
    entry, state = step.contract.inputs[0].name, step.contract.states[0].input
    errors = Errors(trial.unit)
    for rows in (*np.split(np.arange(len(trial.ocean)), CUTS), np.arange(len(trial.ocean))):
        outputs, ocean = [], trial.ocean[rows]
        for x in trial.inputs[:, rows]:
            output, ocean = step.compute({entry: x, state: ocean})
            outputs.append(output)
        found = prefill.compute({entry: trial.inputs[:, rows], state: trial.ocean[rows]})
        for output, wanted in zip(found[0], outputs, strict=True):
            errors.add((output, found[1]), (wanted, ocean))
    return float(np.max([error.largest for error in errors.largest().values()]))
