"""Exports in the oldest onnxruntime that is promised: the runtime there gives what it gives here."""

import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from ocean_export import cli, heldout
from ocean_runtime import OceanModel

OLDEST = "1.17.3"
ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
import numpy as np
from ocean_runtime import OceanModel
given = np.load(sys.argv[1])
for path in sys.argv[2:]:
    stream = OceanModel.load(path).stream(3)
    np.savez(path + ".npz", outputs=stream.run(given["tokens"]), ocean=stream.ocean)
"""


@pytest.mark.soak
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="onnxruntime 1.17 has no wheels for this Python")
def test_exports_run_in_the_oldest_onnxruntime(
    checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heldout, "STEPS", 300)
    forms = {
        "fp32": ["--prefill"],
        "int4": ["--precision", "int4"],
        "portable": ["--precision", "int8", "--portable"],
    }
    paths = []
    for name, options in forms.items():
        paths.append(tmp_path / f"{name}.onnx")
        arguments = [str(checkpoint_folder), "-o", str(paths[-1]), "--max-loss-increase", "9", *options]
        assert cli.main(arguments) == 0
    tokens = np.random.default_rng(0).integers(30, size=(2000, 3))
    np.savez(tmp_path / "given.npz", tokens=tokens)
    python = tmp_path / "venv" / "bin" / "python"
    venv.create(tmp_path / "venv", with_pip=True)
    needs = [f"onnxruntime=={OLDEST}", "numpy<2", "safetensors"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *needs], check=True, timeout=600)
    files = [str(tmp_path / "given.npz"), *map(str, paths)]
    environment = {"PYTHONPATH": str(ROOT / "runtime")}
    subprocess.run([python, "-c", SCRIPT, *files], env=environment, check=True, timeout=600)
    for path in paths:
        stream = OceanModel.load(path).stream(3)
        outputs, found = stream.run(tokens), np.load(f"{path}.npz")
        # Versions round activations differently, which an int4 model's closed loop shows.
        limit = 1e-4 if path.stem == "fp32" else 0.5
        scale = max(1.0, float(np.abs(outputs).max()))
        assert np.abs(found["outputs"] - outputs).max() <= limit * scale
        assert np.abs(found["ocean"] - stream.ocean).max() <= limit * max(
            1.0, float(np.abs(stream.ocean).max())
        )
