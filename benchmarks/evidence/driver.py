"""Runs a grid: each run once, resumed after a kill, its result in a JSON file of its own.

A run is a name, the settings that decide its result, and a function that computes it in a work folder, where
it leaves what it needs to go on after a kill. A run whose result stands under results/evidence/ with the same
settings is done. Several processes may work on one grid: each run is locked while one of them has it.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from machine import commit, processor
from ocean_runtime.files import write_atomically
from ocean_train.checkpoint import HeldError, held


@dataclass(frozen=True)
class Scale:
    """Where a grid runs, and whether at its full size or at a tiny one that only shows that it works."""

    quick: bool
    text: Path | None
    """tiny Shakespeare's file; None: where `ocean-train` would look."""
    results: Path
    work: Path
    """Checkpoints and whatever else a kill must leave; not for keeping."""


@dataclass(frozen=True)
class Run:
    """One result."""

    claim: str
    name: str
    settings: Mapping[str, Any]
    """JSON values."""
    compute: Callable[[Path], dict[str, Any]]
    """Work folder -> `result`, and where it trains `tokens`, `cpu_seconds` and `curve`."""

    def path(self, scale: Scale) -> Path:
        return scale.results / self.claim / f"{self.name}.json"


Result = dict[str, Any]


class ResultError(ValueError):
    """A file of results is damaged, or another run's; a sentence that says which, and what to do."""


def perform(runs: Sequence[Run], scale: Scale) -> None:
    """Compute whatever is missing of the runs, in their order; those that another process has come last."""
    provenance()  # as it is now: the checkout may move on while a run lasts
    while waiting := [run for run in runs if not done(run, scale)]:
        idle = True
        for run in waiting:
            folder = scale.work / run.claim / run.name
            try:
                with held(folder.with_name(f"{run.name}.held")):
                    if done(run, scale):
                        continue
                    say(f"{run.claim}/{run.name} ...")
                    record(run, scale, run.compute(folder))
                    idle = False
            except HeldError:  # the run, or a model that it needs
                continue
        if idle:
            time.sleep(10)  # the rest is in other hands


def done(run: Run, scale: Scale) -> bool:
    """Whether the run's result is there; ResultError where it is damaged or another run's."""
    path = run.path(scale)
    if not path.exists():
        return False
    found = _read(path)["settings"]
    if found != json.loads(json.dumps(run.settings)):
        raise ResultError(
            f"{path} holds a run with {found}, not {run.settings}; remove the file to run it anew"
        )
    return True


def record(run: Run, scale: Scale, found: Mapping[str, Any]) -> None:
    path = run.path(scale)
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "claim": run.claim,
        "name": run.name,
        "settings": run.settings,
        "provenance": provenance(),
        **found,
    }
    write_atomically(path, (json.dumps(report, indent=1, allow_nan=False) + "\n").encode())
    say(f"{run.claim}/{run.name}: {json.dumps(found.get('result'))[:200]}")


def results(claim: str, scale: Scale) -> dict[str, Result]:
    """All that is known of a claim, by run; ResultError where a file is damaged."""
    return {path.stem: _read(path) for path in sorted((scale.results / claim).glob("*.json"))}


def _read(path: Path) -> Result:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:  # no JSON, or no UTF-8
        found = None
    if not isinstance(found, dict) or not {"settings", "result"} <= found.keys():
        raise ResultError(f"{path} holds no result that `record` wrote; remove the file to run it anew")
    return found


class Ledger:
    """Numbers that a run gathers as it goes, kept in a file from save to save."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(self.values).encode())


@cache
def provenance() -> dict[str, Any]:
    """Command, commit, machine and versions, as they are when this process begins."""
    return {
        "command": "python benchmarks/claims.py " + " ".join(Path(a).name for a in sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit("train", "export", "runtime", "benchmarks"),
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
    }


def say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, file=sys.stderr, flush=True)
