"""A model with leaky integration is exported and verified like any other, and its state fits no other model."""

from pathlib import Path

import numpy as np
import pytest
from make_tiny import tiny_checkpoint
from ocean_export import cli, heldout
from ocean_runtime import OceanModel, SnapshotError
from ocean_runtime.describe import describe


def export(folder: Path, name: str, *options: str) -> OceanModel:
    path = folder / name
    assert cli.main([str(folder), "-o", str(path), "--max-loss-increase", "9", *options]) == 0
    return OceanModel.load(path)


@pytest.fixture(autouse=True)
def _fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldout, "STEPS", 300)


@pytest.mark.parametrize("learned", [False, True])
def test_it_is_exported_at_every_precision(tmp_path: Path, learned: bool) -> None:
    tiny_checkpoint(tmp_path, max_time_constant=40.0, learned=learned)
    tokens = np.random.default_rng(0).integers(30, size=(200, 3))
    exact = export(tmp_path, "exact.onnx", "--prefill").stream(3)
    before = np.array([exact.step(row) for row in tokens])
    assert exact.model.contract.max_time_constant == pytest.approx(40, rel=0.3 if learned else 1e-4)
    rounded = [
        ("int8.onnx", ("--precision", "int8", "--prefill"), 0.1),
        ("portable.onnx", ("--precision", "int8", "--portable"), 0.1),
        ("int4.onnx", ("--precision", "int4"), 0.7),
    ]
    for name, options, share in [("exact.onnx", ("--prefill",), 1e-4), *rounded[: 1 if learned else None]]:
        stream = export(tmp_path, name, *options).stream(3)
        assert stream.model.contract.state_id == exact.model.contract.state_id
        missed = np.sqrt(((stream.run(tokens) - before) ** 2).mean()) / before.std()
        print(f"{name}: outputs differ by {missed:.2g} of their standard deviation, {share} is allowed")
        assert missed < share


def test_the_contract_says_how_slow_the_state_is(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, max_time_constant=40.0)
    assert "leaky integration, with time constants up to 40 steps" in describe(
        export(tmp_path, "a.onnx").contract
    )
    tiny_checkpoint(tmp_path)
    relay = export(tmp_path, "b.onnx").contract
    assert relay.max_time_constant == 1 and "leaky" not in describe(relay)


def test_a_state_of_other_time_constants_is_refused(tmp_path: Path) -> None:
    streams = []
    for tau in (1.0, 40.0, 41.0):
        folder = tmp_path / str(tau)
        folder.mkdir()
        tiny_checkpoint(folder, max_time_constant=tau)
        streams.append(export(folder, "model.onnx").stream())
    for i, saved in enumerate(streams):
        saved.step(1)
        saved.save(tmp_path / "state.safetensors")
        for j, other in enumerate(streams):
            if i == j:
                continue
            with pytest.raises(SnapshotError, match="another model"):
                other.restore(tmp_path / "state.safetensors")
