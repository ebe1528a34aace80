"""A model that was trained by index knows the joints' names: a log with another order gives the same estimates."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bag_writer import named_joints, write_bag
from ocean_export.cli import main as export
from ocean_runtime import OceanModel
from ocean_train.cli import main
from ocean_train.logs import Request, read_log

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
SMALL = [
    "--width",
    "8",
    "--layers",
    "1",
    "--steps",
    "3",
    "--batch",
    "2",
    "--window",
    "4",
    "--feed",
    "windows",
]
ANGLES = np.sin(np.arange(60)[:, None] * [0.3, 0.7])


def write_log(path: Path, kind: str, order: tuple[str, str]) -> Path:
    columns = ANGLES if order[0] == "elbow" else ANGLES[:, ::-1]
    if kind == "bag":
        joints = [dict(zip(order, row, strict=True)) for row in columns.tolist()]
        return write_bag(path, [(0.1 * i, "/joints", named_joints(j)) for i, j in enumerate(joints)])
    if kind == "npz":
        np.savez(path.with_suffix(".npz"), name=np.array([order] * len(columns)), position=columns)
        return path.with_suffix(".npz")
    lines = [f"{order[0]},{order[1]},{a!r},{b!r}" for a, b in columns.tolist()]
    path.with_suffix(".csv").write_text("\n".join(["name[0],name[1],position[0],position[1]", *lines]) + "\n")
    return path.with_suffix(".csv")


@pytest.mark.parametrize("kind", ["csv", "npz", "bag"])
def test_another_order_of_joints_gives_the_same_estimates(
    command: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    logs = {
        order: write_log(tmp_path / "".join(order), kind, order)
        for order in (("elbow", "wrist"), ("wrist", "elbow"))
    }
    first, turned = logs.values()
    topic = "/joints:" if kind == "bag" else ""
    asked = ["--log", str(first), "--features", f"{topic}position[0]", f"{topic}position[1]"]
    asked += ["--rate", "10"] if kind == "bag" else []
    assert main([*asked, *SMALL, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert f"looked up by name in each row: {topic}position[0] is {topic}position[elbow], " in said
    assert export([str(tmp_path / "run"), "-o", str(tmp_path / "m.onnx")]) == 0
    model = OceanModel.load(tmp_path / "m.onnx")
    assert [e.lookup for e in model.contract.inputs[0].elements] == [
        f"{topic}position[{n}]" for n in ("elbow", "wrist")
    ]
    runs = [command("ocean_runtime.cli", tmp_path / "m.onnx", log) for log in (first, turned)]
    assert runs[0].returncode == 0 and runs[0].stdout.count(b"\n") >= 59, runs[0].stderr.decode()
    assert runs[1].stdout == runs[0].stdout


@pytest.mark.parametrize("kind", ["csv", "npz", "bag"])
def test_logs_of_several_orders_are_read_together(tmp_path: Path, kind: str) -> None:
    orders = (("elbow", "wrist"), ("wrist", "elbow"))
    paths = tuple(write_log(tmp_path / "".join(order), kind, order) for order in orders)
    topic, rate = ("/joints:", 10.0) if kind == "bag" else ("", None)
    log = read_log(Request(paths, (f"{topic}position[0]", f"{topic}position[1]"), rate_hz=rate))
    first, second = (log.rows[a:b] for a, b in zip(log.starts, log.starts[1:], strict=False))
    np.testing.assert_array_equal(first, second)


def test_every_column_of_a_table_is_read_by_its_name_too(tmp_path: Path) -> None:
    log = read_log(Request((write_log(tmp_path / "a", "csv", ("elbow", "wrist")),)))
    assert [e.lookup for e in log.features] == ["position[elbow]", "position[wrist]"]
