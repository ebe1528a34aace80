"""examples/own_model.py, from its own training loop to the exported file, at a small size."""

import re
import subprocess
import sys
from pathlib import Path

from ocean_runtime import OceanModel

PROGRAM = Path(__file__).parents[2] / "examples" / "own_model.py"


def test_a_camera_and_a_gyroscope(environment: dict[str, str], tmp_path: Path) -> None:
    small = ["--steps", "4", "--rows", "4", "--verify", "20"]
    done = subprocess.run(
        [sys.executable, PROGRAM, "--folder", tmp_path, *small],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (difference,) = re.findall(r"over 120 steps: within (\S+) rad", done.stdout)
    assert float(difference) < 1e-4
    contract = OceanModel.load(tmp_path / "tracker.onnx").contract
    assert [t.name for t in contract.inputs] == ["image", "gyro"]
    assert [t.name for t in contract.outputs] == ["bearing", "direction"]
    assert contract.rate_hz == 20
