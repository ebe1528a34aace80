"""What version 0.1.0 wrote still loads: a checkpoint, a model file and a snapshot, in tests/fixtures/v0.1.0.

Its `ocean-train` wrote the checkpoint after 8 of 12 steps; `next.npy` holds the logits that its runtime gave for
token 5 after the snapshot.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from ocean_export import cli
from ocean_runtime import OceanModel
from ocean_train import checkpoint
from test_loop import TINY, data

OLD = Path(__file__).parent.parent / "fixtures" / "v0.1.0"


def test_a_checkpoint_loads_is_trained_on_and_has_the_same_state_id(tmp_path: Path) -> None:
    from ocean_train.loop import train

    folder = tmp_path / "run"
    shutil.copytree(OLD / "checkpoint", folder)
    before = checkpoint.load(folder)
    assert before.best is None and before.best_weights is before.weights and not before.config.leaky
    assert cli.main([str(folder), "-o", str(tmp_path / "again.onnx")]) == 0
    again, old = OceanModel.load(tmp_path / "again.onnx"), OceanModel.load(OLD / "model.onnx")
    assert again.contract.state_id == old.contract.state_id
    done = train(TINY, data(), folder, eval_every=4, save_every=4)
    assert done.step == TINY.steps
    assert not torch.equal(done.weights["head.weight"], before.weights["head.weight"])


def test_a_model_file_and_a_snapshot_go_on_where_they_were() -> None:
    stream = OceanModel.load(OLD / "model.onnx").stream()
    stream.restore(OLD / "state.safetensors")
    assert stream.steps == 5
    # Both are float32 results of one step of 8 channels; another processor may sum in another order.
    np.testing.assert_allclose(stream.step(5), np.load(OLD / "next.npy"), rtol=0, atol=1e-5)
