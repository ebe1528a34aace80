"""A model with several outputs, and a state of a single number: `step` gives all, and so do the commands."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ocean_runtime import OceanModel
from small_models import batch_of_one, scalar_model

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scalar_model(tmp_path_factory.mktemp("scalar"))


def test_step_and_run_give_all_outputs_by_name(path: Path) -> None:
    model = OceanModel.load(path)
    stream, other = model.stream(), model.stream()
    first = stream.step([1.0, 2.0])
    assert first["twice"].tolist() == [6.0] and first["both"].tolist() == [4.0, 5.0]
    assert stream.step_all([0.0, 1.0])["twice"].tolist() == [8.0]
    whole = other.run([[1.0, 2.0], [0.0, 1.0]])
    assert whole["twice"].tolist() == [[6.0], [8.0]]
    assert {name: array.shape for name, array in model.stream().run([]).items()} == {
        "twice": (0, 1),
        "both": (0, 2),
    }
    held = model.stream(guard="hold").step([np.nan, 0.0])
    assert np.isnan(held["twice"]).all() and np.isnan(held["both"]).all()


def test_a_state_of_a_single_number_is_restored(path: Path, tmp_path: Path) -> None:
    stream = OceanModel.load(path).stream()
    stream.step([1.0, 2.0])
    stream.save(tmp_path / "state", keep=2)
    other = OceanModel.load(path).stream()
    other.restore(tmp_path / "state")
    assert other.snapshot().states["s"].shape == ()
    assert other.step([0.0, 0.0])["twice"].tolist() == [6.0]


def test_each_output_has_its_columns(command: Run, path: Path, tmp_path: Path) -> None:
    done = command("ocean_runtime.cli", path, "--state", tmp_path / "state", stdin=b"a [m],b\n1,2\n,1\n")
    assert done.returncode == 0, done.stderr
    rows = list(csv.reader(done.stdout.decode().splitlines()))
    assert rows == [
        ["row", "twice[0]", "both.c [m]", "both.d"],
        ["1", "6.0", "4.0", "5.0"],
        ["2", "10.0", "6.0", "6.0"],
    ]
    more = command("ocean_runtime.cli", path, "--state", tmp_path / "state", stdin=b"a [m],b\n0,0\n")
    assert more.stdout.decode().splitlines()[1] == "1,10.0,5.0,5.0"


def test_a_batch_of_one_has_the_columns_of_its_vector(command: Run, tmp_path: Path) -> None:
    done = command("ocean_runtime.cli", batch_of_one(tmp_path), stdin=b"x,y,z\n1,2,3\n0,0,1\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == ["row,a,b,c", "1,1.0,2.0,3.0", "2,0.5,1.0,2.5"]
