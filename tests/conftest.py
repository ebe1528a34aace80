"""What several areas' tests share. Imports no torch: the runtime's tests run without it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ocean_runtime import OceanModel

ROOT = Path(__file__).parent.parent
TINY = ROOT / "tests" / "fixtures" / "tiny.onnx"

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="session")
def tiny_path() -> Path:
    """A tokens model with d=16, L=2 and a vocabulary of some 30 characters; see fixtures/make_tiny.py."""
    return TINY


@pytest.fixture(scope="session")
def tiny() -> OceanModel:
    return OceanModel.load(TINY)


@pytest.fixture(scope="session")
def tiny_prefill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model in a folder where its prefill graph lies beside it."""
    folder = tmp_path_factory.mktemp("prefill")
    shutil.copy(TINY, folder / "tiny.onnx")
    shutil.copy(TINY.with_name("tiny_prefill.onnx"), folder / "tiny.prefill.onnx")
    return folder / "tiny.onnx"


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment of a command that runs this checkout's packages."""
    folders = [str(ROOT / name) for name in ("train", "export", "runtime")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def command(environment: dict[str, str]) -> Run:
    """Run `python -m MODULE ARGUMENT ...` to its end, in a process of its own."""

    def run(module: str, *arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        line = [sys.executable, "-m", module, *map(str, arguments)]
        return subprocess.run(
            line, input=stdin, capture_output=True, env=environment, timeout=120, check=False
        )

    return run
