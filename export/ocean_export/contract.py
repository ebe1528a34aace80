"""What the exported file says about itself, from the checkpoint it was made of."""

from __future__ import annotations

import platform
from typing import Any

import onnx
import torch
from ocean_runtime import __version__
from ocean_runtime.contract import BATCH, METADATA_KEY, Contract, State, Tensor, digest
from ocean_train.checkpoint import Checkpoint
from ocean_train.model import OceanTransformer

from ocean_export.graph import INPUT, IR_VERSION, OCEAN, OCEAN_NEXT, OPSET, OUTPUT


def state_id(model: OceanTransformer) -> str:
    """Whose state fits: the digest of weights and configuration, whatever the precision of the file."""
    weights = {name: w.detach().cpu().numpy() for name, w in model.state_dict().items()}
    return digest(weights, model.config.to_dict())


def contract_of(checkpoint: Checkpoint, model: OceanTransformer) -> Contract:
    """The contract of a checkpoint's step graph, without the parity figures that verification adds."""
    config = model.config
    entry = INPUT[config.kind]
    return Contract(
        kind=config.kind,
        inputs=(Tensor(entry, "int64", (BATCH,), meaning="token id"),),
        outputs=(
            Tensor(
                OUTPUT[config.head],
                "float32",
                (BATCH, config.outputs),
                meaning="unnormalised log-probability of each token",
                predicts=entry if config.head == "tokens" else "",
            ),
        ),
        states=(State(OCEAN, OCEAN_NEXT, "float32", (BATCH, config.width)),),
        state_id=state_id(model),
        tokenizer=checkpoint.tokenizer,
        sizes={
            "width": config.width,
            "layers": config.layers,
            "heads": config.heads,
            "inputs": config.inputs,
            "outputs": config.outputs,
            "parameters": sum(p.numel() for p in model.parameters()),
        },
        precision="fp32",
        opset=OPSET,
        ir_version=IR_VERSION,
        provenance=_provenance(checkpoint),
    )


def attach(proto: onnx.ModelProto, contract: Contract) -> None:
    """Write the contract into the file's metadata, in place of one that is there."""
    kept = [entry for entry in proto.metadata_props if entry.key != METADATA_KEY]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    proto.metadata_props.add(key=METADATA_KEY, value=contract.to_json())


def _provenance(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint": f"sha256:{checkpoint.weights_sha256}",
        "data": dict(checkpoint.data),
        "regime": checkpoint.regime,
        "training_steps": checkpoint.step,
        "seed": checkpoint.seed,
        "validation_loss": checkpoint.validation_loss,
        "git_commit": checkpoint.git_commit,
        "trained_with": dict(checkpoint.versions),
        "exported_with": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "oceanstate": __version__,
        },
    }
