"""SIGKILL at random instants while saving back to back: a whole snapshot is there, none older than the last saved."""

from __future__ import annotations

import dataclasses
import os
import random
import select
import signal
import struct
import time
from pathlib import Path

import pytest
from ocean_runtime import OceanModel, Snapshot
from ocean_runtime import snapshot as snapshots


def save_forever(saved: Snapshot, path: Path, keep: int, told: int) -> None:
    """Save one step count after another, and tell each one once its save has returned."""
    steps = saved.steps
    while True:
        steps += 1
        snapshots.write(dataclasses.replace(saved, steps=steps), path, keep=keep)
        os.write(told, struct.pack("<Q", steps))


def kill_while_saving(saved: Snapshot, path: Path, keep: int, rng: random.Random) -> tuple[int, int]:
    """Start a writer that goes on from `saved`, kill it: the last count it told, and the one found on disk."""
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_forever(saved, path, keep, told)
        finally:
            os._exit(1)
    os.close(told)
    heard_of = b""
    for _ in range(rng.randrange(3)):  # after so many saves, and then some part of one
        select.select([heard], [], [], 30)
        heard_of += os.read(heard, 8)
    instant = time.perf_counter() + rng.uniform(0, 0.004)
    while time.perf_counter() < instant:
        pass
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the writer ended before it was killed"
    while chunk := os.read(heard, 65536):
        heard_of += chunk
    os.close(heard)
    last: int = struct.unpack("<Q", heard_of[-8:])[0] if heard_of else saved.steps
    return last, snapshots.read_newest(path).snapshot.steps


def kills(model: OceanModel, folder: Path, count: int, keep: int) -> None:
    rng, path = random.Random(0), folder / "state"
    stream = model.stream()
    stream.run([1, 2, 3])
    saved = dataclasses.replace(stream.snapshot(), steps=0)
    snapshots.write(saved, path, keep=keep)
    moved = 0
    for _ in range(count):
        last, found = kill_while_saving(saved, path, keep, rng)
        assert last <= found
        moved += found > saved.steps
        saved = dataclasses.replace(saved, steps=found)
        left = [p.name for p in folder.iterdir() if p.name.endswith(".tmp")]
        assert len(left) <= 2, f"leftovers pile up: {left}"
    assert moved > count // 2
    snapshots.write(saved, path, keep=keep)
    assert sorted(p.name for p in folder.iterdir()) == ["state", *(f"state.{i}" for i in range(1, keep))]


@pytest.mark.parametrize("keep", [1, 3])
def test_killed_while_saving(tiny: OceanModel, tmp_path: Path, keep: int) -> None:
    kills(tiny, tmp_path, 50, keep)


@pytest.mark.soak
@pytest.mark.parametrize("keep", [1, 3])
def test_killed_1000_times_while_saving(tiny: OceanModel, tmp_path: Path, keep: int) -> None:
    kills(tiny, tmp_path, 1000, keep)
