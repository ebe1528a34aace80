"""Building the native loops: cached, without a compiler, and complete in the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ocean_train
import pytest

PROGRAM = """
import warnings, torch
from ocean_train import native, regimes
from ocean_train.model import OceanConfig, OceanTransformer
model = OceanTransformer(OceanConfig(5, 5, width=8, layers=2, heads=2))
tokens = torch.arange(10).view(2, 5) % 5
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        loss, _ = regimes.backward(model, "full", tokens, tokens)
print(len(caught), native.available(), f"{loss:.5f}")
for warning in caught: print(warning.message)
"""


def run(tmp_path: Path, **environment: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=os.environ
        | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        | environment,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("cache")
    return folder, run(folder)


def test_it_is_built_once_and_then_found(built: tuple[Path, list[str]]) -> None:
    folder, lines = built
    assert lines[0].startswith("0 True")
    [library] = (folder / "oceanstate").iterdir()  # nothing left over from building
    before = library.stat().st_mtime_ns
    assert run(folder, PATH="") == lines  # needs no compiler any more
    assert library.stat().st_mtime_ns == before


@pytest.mark.parametrize("environment", [{"CXX": "/nowhere/c++"}, {"PATH": ""}])
def test_without_a_compiler_it_runs_and_says_so_once(
    built: tuple[Path, list[str]], tmp_path: Path, environment: dict[str, str]
) -> None:
    lines = run(tmp_path, **environment)
    assert lines[0].startswith("1 False")
    assert lines[0].split()[-1] == built[1][0].split()[-1]  # the same loss
    assert len(lines) == 2
    assert "native loops could not be built" in lines[1]
    assert "C++ compiler" in lines[1]


def test_a_damaged_library_is_said_not_raised(tmp_path: Path, built: tuple[Path, list[str]]) -> None:
    [library] = (built[0] / "oceanstate").iterdir()
    (tmp_path / "oceanstate").mkdir()
    (tmp_path / "oceanstate" / library.name).write_bytes(b"not a library")
    assert run(tmp_path)[0].startswith("1 False")


def test_the_source_lies_in_the_package() -> None:
    assert (Path(ocean_train.__file__).parent / "relay.cpp").is_file()
