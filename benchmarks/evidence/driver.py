"""Runs a grid: each run once, resumed after a kill, its result in a JSON file of its own.

A run is a name, the settings that decide its result, and a function that computes it in a work folder, where
it leaves what it needs to go on after a kill. A run whose result stands under results/evidence/ with the same
settings is done. Several processes may work on one grid: each run is locked while one of them has it.
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from machine import commit, processor
from ocean_export import export_checkpoint
from ocean_runtime.errors import OceanError
from ocean_runtime.files import write_atomically
from ocean_train.checkpoint import POINTER, Checkpoint, CheckpointError, HeldError, held
from ocean_train.loop import DivergedError


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
PRINTED = ("cpu", "torch", "onnxruntime", "python")
"""What the page says of where a result is from."""


class ResultError(ValueError):
    """A file of results is damaged, or another run's; a sentence that says which, and what to do."""


def perform(runs: Sequence[Run], scale: Scale) -> None:
    """Compute whatever is missing of the runs, in their order; those that another process has come last.

    One that fails is told, and the others go on. Raises ResultError at the end where any did, and at once
    where none can run.
    """
    provenance()  # as it is now: the checkout may move on while a run lasts
    failed: list[str] = []
    told = False
    while waiting := [run for run in runs if run.name not in failed and not done(run, scale)]:
        idle = True
        for run in waiting:
            run.path(scale).parent.mkdir(parents=True, exist_ok=True)
            folder = scale.work / run.claim / run.name
            try:
                with held(folder.with_name(f"{run.name}.held")):
                    if done(run, scale):
                        continue
                    say(f"{run.claim}/{run.name} ...")
                    record(run, scale, run.compute(folder))
            except HeldError:  # the run, or a model that it needs
                continue
            except CheckpointError as error:
                why = str(error).split("; ")[0]  # what follows is of ocean-train's own options
                say(f"{run.claim}/{run.name} failed: {why}; to begin it anew, remove {folder}")
                failed.append(run.name)
            except (DivergedError, OceanError, RuntimeError) as error:
                say(f"{run.claim}/{run.name} failed: {error}")
                failed.append(run.name)
            idle = False
        if idle:
            if not told:
                say(
                    f"other processes have the last {len(waiting)} ({waiting[0].name} first); waiting for their end"
                )
            told = True
            time.sleep(10)
    if failed:
        raise ResultError(f"{len(failed)} of {len(runs)} runs failed: {', '.join(failed)}; see above")


def done(run: Run, scale: Scale) -> bool:
    """Whether the run's result is there; ResultError where it is damaged or another run's."""
    return result_of(run, scale) is not None


def result_of(run: Run, scale: Scale) -> Result | None:
    """The run's result, or None; ResultError where the file is damaged or another run's."""
    path = run.path(scale)
    if not path.exists():
        return None
    result = read(path)
    found, wanted = result["settings"], json.loads(json.dumps(run.settings))
    if found != wanted:
        differing = [name for name in wanted | found if wanted.get(name) != found.get(name)]
        there, here = ({name: of.get(name) for name in differing} for of in (found, wanted))
        raise ResultError(
            f"{path} holds a run with {there}, not {here}; to run it anew, remove the file and "
            f"{scale.work / run.claim / run.name}"
        )
    return result


def record(run: Run, scale: Scale, found: Mapping[str, Any]) -> None:
    path = run.path(scale)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = f"python benchmarks/claims.py {run.claim} --only {run.name}"
    report = {
        "claim": run.claim,
        "name": run.name,
        "settings": run.settings,
        "provenance": {"command": command + (" --quick" if scale.quick else ""), **provenance()},
        **found,
    }
    write_atomically(path, (json.dumps(report, indent=1, allow_nan=False) + "\n").encode())
    say(f"{run.claim}/{run.name}: {json.dumps(found.get('result'))[:200]}")


def results(runs: Sequence[Run], claim: str, scale: Scale) -> dict[str, Result]:
    """All that is known of a claim, by run.

    Raises ResultError where a file is damaged, is of other settings, or of no run of the grid.
    """
    known = {run.name: run for run in runs if run.claim == claim}
    for path in (scale.results / claim).glob("*.json"):
        if path.stem not in known:
            raise ResultError(f"{path} is of no run that there is (--list shows them); remove it")
    found = {name: result_of(known[name], scale) for name in sorted(known)}
    return {name: result for name, result in found.items() if result is not None}


def read(path: Path) -> Result:
    """A file of `record`; ResultError where it is anything else."""
    try:
        found = json.loads(path.read_bytes())
        whole = (
            (found["claim"], found["name"]) == (path.parent.name, path.stem)
            and all(isinstance(found[name], dict) for name in ("settings", "provenance", "result"))
            and found["result"]
            and all(isinstance(found["provenance"][name], str) for name in PRINTED)
            and all(math.isfinite(number) for number in _numbers(found))
        )
    except (ValueError, KeyError, TypeError, RecursionError, OSError):  # no JSON, no UTF-8, no such thing
        whole = False
    if not whole:
        raise ResultError(
            f"{path} holds no result of {path.parent.name}/{path.stem} that `record` wrote; remove it, and run it "
            "anew"
        )
    return found  # type: ignore[no-any-return]


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)
    elif isinstance(value, float):
        yield value


def trained_by(checkpoint: Checkpoint) -> dict[str, Any]:
    """What trained a model, in its own words: the process that measures it may be another."""
    return {
        "commit": checkpoint.git_commit,
        "torch": checkpoint.versions.get("torch"),
        "weights_sha256": checkpoint.weights_sha256,
    }


def exported(source: Path, file: Path) -> Path:
    """`file`, which `ocean-export` makes of a checkpoint; made anew where that is younger."""
    stale = not file.exists() or file.stat().st_mtime < (source / POINTER).stat().st_mtime
    if stale:
        export_checkpoint(source, file, log=print)
    return file


class Ledger:
    """Numbers that a run gathers as it goes, kept in a file from save to save."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        """Nothing where the file is damaged."""
        if path.exists():
            with contextlib.suppress(ValueError):
                found = json.loads(path.read_bytes())
                self.values = found if isinstance(found, dict) else {}

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(self.values).encode())


@cache
def provenance() -> dict[str, Any]:
    """Commit, machine and versions, as they are when this process begins."""
    return {
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
