"""`pip install oceanstate[cpu]` into an empty environment: no torch, and ocean-run works, in little memory."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEGABYTES = 90


def others() -> list[str]:
    """Python 3.10, 3.12 and 3.13, where this machine has them."""
    found = []
    for minor in (10, 12, 13):
        places = [
            *Path("/usr/bin").glob(f"python3.{minor}"),
            *Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"),
        ]
        found += [str(place) for place in places[:1]]
    return found


@pytest.mark.parametrize(
    "python", [sys.executable, *(pytest.param(p, marks=pytest.mark.soak) for p in others())]
)
def test_an_empty_environment_runs_the_model_without_torch(
    python: str, tmp_path: Path, tiny_path: Path
) -> None:
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    inside = tmp_path / "venv" / "bin"
    subprocess.run([inside / "pip", "install", "--quiet", f"{ROOT}[cpu]"], check=True, cwd=tmp_path)
    listed = subprocess.run([inside / "pip", "list"], capture_output=True, check=True).stdout.decode()
    assert "onnxruntime" in listed
    assert "torch" not in listed
    measured = (
        "import resource, subprocess, sys;"
        "code = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL).returncode;"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [inside / "python", "-c", measured, inside / "ocean-run", tiny_path, "--generate", "200"],
        capture_output=True,
        check=False,
        env={"PATH": str(inside)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert len(done.stdout.decode()) == 200
    assert int(done.stderr.split()[-1]) / 1024 <= MEGABYTES
    helpless = subprocess.run([inside / "ocean-train"], capture_output=True, check=False, cwd=tmp_path)
    assert helpless.returncode == 1
    assert helpless.stderr.decode().strip() == "ocean-train needs PyTorch: pip install 'oceanstate[train]'"
