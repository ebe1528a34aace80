"""What the exported file says about itself, from the checkpoint it was made of."""

from __future__ import annotations

import platform
from typing import Any

import onnx
import torch
from ocean_runtime import __version__, seal
from ocean_runtime.contract import BATCH, METADATA_KEY, Contract, State, Tensor, digest
from ocean_train.checkpoint import Checkpoint
from ocean_train.model import OceanConfig, OceanCore, OceanTransformer
from ocean_train.observations import Observations

from ocean_export.graph import INPUT, OCEAN, OCEAN_NEXT, OUTPUT
from ocean_export.lean import IR_VERSION, OPSET


def state_id(model: OceanTransformer, observations: Observations | None = None) -> str:
    """Whose state fits: the digest of weights, configuration and normalisation, whatever the file's precision."""
    weights = {name: w.detach().cpu().numpy() for name, w in model.state_dict().items()}
    normalisation = () if observations is None else (observations.normalisation(),)
    return digest(weights, model.config.to_dict(), *normalisation)


def contract_of(checkpoint: Checkpoint, model: OceanTransformer) -> Contract:
    """The contract of a checkpoint's step graph, without the parity figures that verification adds."""
    config, observations = model.config, checkpoint.observations
    given, wanted = _tensors(config, observations)
    return Contract(
        kind=config.kind,
        inputs=(given,),
        outputs=(wanted,),
        states=(State(OCEAN, OCEAN_NEXT, "float32", (BATCH, config.width)),),
        state_id=state_id(model, observations),
        tokenizer=checkpoint.tokenizer,
        normalisation=observations.normalisation() if observations else None,
        rate_hz=observations.rate_hz if observations else None,
        max_age_s=observations.max_age_s if observations else None,
        max_time_constant=longest_time_constant(model),
        time=observations.time if observations else "",
        episode=observations.episode if observations else "",
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


def longest_time_constant(model: OceanCore) -> float:
    """τ = 1 / (1 − λ) of the slowest channel, in steps."""
    decay = model.decay()
    return 1.0 if decay is None else float(1 / (1 - decay.detach().double().max()))


MEANING = {
    "next": "the next observation",
    "columns": "estimate at this step",
    "classes": "unnormalised log-probability of each class",
}


def _tensors(config: OceanConfig, observations: Observations | None) -> tuple[Tensor, Tensor]:
    """The model's input and output."""
    entry, output = INPUT[config.kind], OUTPUT[config.head]
    shape = (BATCH, config.outputs)
    if observations is None:
        meaning = "unnormalised log-probability of each token"
        return (
            Tensor(entry, "int64", (BATCH,), meaning="token id"),
            Tensor(output, "float32", shape, meaning=meaning, predicts=entry),
        )
    return (
        Tensor(entry, "float32", (BATCH, config.inputs), "observation in its units", observations.inputs),
        Tensor(
            output,
            "float32",
            shape,
            MEANING[observations.target],
            observations.outputs,
            entry if observations.target == "next" else "",
        ),
    )


def attach(proto: onnx.ModelProto, contract: Contract) -> bytes:
    """The file: the graph, and the contract in its metadata in place of one that is there."""
    return with_metadata(proto, METADATA_KEY, contract.to_json())


def with_metadata(proto: onnx.ModelProto, key: str, value: str) -> bytes:
    """The file with one entry of metadata set, and sealed."""
    kept = [entry for entry in proto.metadata_props if entry.key not in (key, seal.KEY)]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    proto.metadata_props.add(key=key, value=value)
    proto.metadata_props.add(key=seal.KEY, value=seal.UNSEALED)
    content = seal.seal(proto.SerializeToString())
    proto.metadata_props.pop()  # the seal is the file's: what is made of the proto later has none that is wrong
    return content


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
