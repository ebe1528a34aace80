"""The fuzzer itself, briefly at every change and at length in a soak: see fuzz.py for what must hold."""

from __future__ import annotations

from pathlib import Path

import fuzz
import fuzz_seeds
import numpy as np
import pytest
from ocean_runtime import OceanModel
from ocean_runtime.operators import MICROSOFT, STANDARD


@pytest.mark.parametrize("recipe", fuzz_seeds.RECIPES, ids=lambda recipe: recipe.__name__)
def test_operators_that_may_be_used_run(recipe: fuzz_seeds.Recipe, tmp_path: Path) -> None:
    """So the allow-list names operators that onnxruntime has, and the fuzzer starts from sound models."""
    proto = fuzz_seeds.model(recipe)
    assert {n.op_type for n in proto.graph.node} <= STANDARD | MICROSOFT
    (tmp_path / "seed.onnx").write_bytes(proto.SerializeToString())
    stream = OceanModel.load(tmp_path / "seed.onnx").stream(batch=2)
    for _ in range(3):
        assert np.isfinite(stream.step(np.full((2, fuzz_seeds.WIDTH), 0.1, np.float32))).all()


NOTES = {fuzz.LONGEST, fuzz.LONGEST_WALL, fuzz.AGAIN}


def hold(models: int, contracts: int, snapshots: int, seed: int, keep: Path) -> None:
    for found in (
        fuzz.fuzz_contracts(contracts, seed, keep),
        fuzz.fuzz_snapshots(snapshots, seed, keep),
    ):
        assert set(found) - NOTES <= {"read", "refused"}, found
    found = fuzz.fuzz_models(models, seed, keep)
    sessions = found["ran"] + found["refused by onnxruntime"]
    refused = {f"refused by {who}" for who in ("the scan", "the contract", "onnxruntime")}
    assert set(found) - NOTES <= {"ran", *refused}, found
    assert sessions >= models / 5
    assert found[fuzz.LONGEST] < 1000 * fuzz.SECONDS


def test_some_mutations_of_everything(tmp_path: Path) -> None:
    hold(60, 500, 500, 1, tmp_path)


@pytest.mark.soak
def test_100000_mutations(tmp_path: Path) -> None:
    hold(21_000, 40_000, 40_000, 2, tmp_path)
