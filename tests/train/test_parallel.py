"""Two processes under torchrun give the run that one process gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ocean_train.checkpoint import held, load

TEXT = "so shaken as we are, so wan with care, find we a time for frighted peace to pant. " * 8

WINDOWS = """
import json, sys, torch
from ocean_train import parallel, regimes
from ocean_train.model import OceanConfig, OceanTransformer
torch.set_num_threads(1)
parallel.start()
generator = torch.Generator().manual_seed(0)
found = []
for regime in regimes.REGIMES:
    model = OceanTransformer(OceanConfig(5, 5, width=8, layers=2, heads=2)).double()
    shared = parallel.shared(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = None
    for _ in range(3):
        tokens = torch.randint(5, (5, 4), generator=generator)
        reset, valid = (torch.rand(5, 4, generator=generator) < p for p in (0.2, 0.6))
        valid[3:] = False  # all but a row of the second process is padding
        optimizer.zero_grad()
        loss, state = regimes.backward(
            shared, regime, *(parallel.own_rows(t) for t in (tokens, tokens)), state,
            *(parallel.own_rows(t) for t in (reset, valid)),
        )
        optimizer.step()
        found.append(loss)
if parallel.leads():
    print(json.dumps(found))
parallel.finish()
"""


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def run(processes: int, *arguments: str) -> str:
    """One process as a user starts it, several as torchrun does."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else ()), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_masked_windows_of_every_regime(tmp_path: Path) -> None:
    program = tmp_path / "windows.py"
    program.write_text(WINDOWS)
    one, two = (json.loads(run(n, str(program)).splitlines()[-1]) for n in (1, 2))
    worst = max(abs(a - b) for a, b in zip(one, two, strict=True))
    print(f"largest difference of a loss: {worst:.1e}")
    assert worst < 1e-12


def test_ocean_train_with_two_processes_is_the_run_with_one(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    sizes = {"width": 8, "layers": 1, "heads": 2, "batch": 3, "window": 5, "steps": 8, "eval-every": 4}
    options = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    command = ["-m", "ocean_train.cli", "--text", str(tmp_path / "text.txt"), "--feed", "streams", *options]
    one, two = tmp_path / "one", tmp_path / "two"
    run(1, *command, "--out", str(one))
    run(2, *command, "--out", str(two))
    expected, found = load(one), load(two)
    assert found.step == expected.step == 8
    for a, b in zip(found.history, expected.history, strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    assert found.optimizer["carried"].shape == expected.optimizer["carried"].shape


def test_a_folder_that_is_held_refuses_all_processes(tmp_path: Path) -> None:
    """Only the first process takes the lock; the others end with it, in a sentence, and don't wait for it."""
    (tmp_path / "text.txt").write_text(TEXT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "ocean_train.cli", "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path)]
    command += ["--batch", "2", "--window", "5", "--width", "8", "--heads", "2"]
    with held(tmp_path):
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode != 0
    assert f"ocean-train: another ocean-train is writing to {tmp_path}" in done.stderr
    assert "ocean-train: the first process can't write the checkpoint" in done.stderr
    assert 'ocean_train/cli.py", line' not in done.stderr, "torchrun shows its own traceback, not ours"
