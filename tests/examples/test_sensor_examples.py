"""The worked examples of docs/sensors.md, from the raw data to the exported file, at a small size."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, environment: dict[str, str], folder: Path, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, "--folder", folder, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(
    importlib.util.find_spec("seglearn") is None, reason="pip install --no-deps seglearn==1.2.5"
)
def test_activity_of_unseen_people(environment: dict[str, str], tmp_path: Path) -> None:
    small = ["--seconds", 4, "--steps", 3, "--seeds", 1, "--batch", 4, "--window", 16, "--width", 8]
    said = run("activity.py", environment, tmp_path, *small)
    assert "28,000 rows in 140 episodes" in said
    assert "to train on: 19,600 rows (70.0%) in 98 episodes, 19,600 steps: watch/person0" in said
    assert "in float64: a single step" in said
    assert "row,time,class,p(ABD)" in said  # the time as the log has it
    assert said.splitlines()[-1].startswith("gru    accuracy 0.")


@pytest.mark.parametrize(
    ("program", "missing", "told"),
    [
        ("examples/robot.py", "rosbags", "the recording needs rosbags"),
        (
            "examples/activity.py",
            "seglearn",
            "the recordings need seglearn: pip install --no-deps seglearn==1.2.5",
        ),
        ("benchmarks/step.py", "torch", "step.py needs torch: pip install '.[train,export]'"),
        ("benchmarks/regimes.py", "torch", "regimes.py needs torch: pip install '.[train]'"),
        ("benchmarks/claims.py", "torch", "claims.py needs torch: pip install '.[train,export]'"),
        ("benchmarks/ros_node.py", "rclpy", "ros_node.py needs rclpy: pip install '.[train,export,ros]'"),
    ],
)
def test_a_missing_package_is_one_sentence(
    environment: dict[str, str], tmp_path: Path, program: str, missing: str, told: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"""import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == {missing!r} else found(name, *a)

class Without:
    def find_spec(self, name, *_):
        if name == {missing!r}:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=name)

sys.meta_path.insert(0, Without())
"""
    )
    folders = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, EXAMPLES.parent / program],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": folders},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and told in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="pip install 'oceanstate[examples]'")
def test_a_robot_without_velocities(environment: dict[str, str], tmp_path: Path) -> None:
    said = run("robot.py", environment, tmp_path, "--runs", 8, "--seconds", 8, "--steps", 4)
    assert "/joint_states  sensor_msgs/msg/JointState, 1,280 messages, about 20 Hz" in said
    assert "7 gaps longer than 0.06 s; such a gap ends its episode" in said
    assert "/joint_states:position[5] [rad]" in said
    assert "below holding the last value" in said.splitlines()[-1]
