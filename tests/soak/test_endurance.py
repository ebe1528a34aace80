"""Ten million steps in one process: memory, step time and state at the end as at the start.

`python tests/soak/test_endurance.py [STEPS] [MODEL.onnx]` prints the same as a table. Under `taskset` the second
half, which another process runs again from a snapshot, takes the other cores.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ocean_runtime import OceanModel, OceanStream

STEPS = 10_000_000
REPORTS = 20
PART = 10_000
"""Steps that are timed together: the quickest such part of a report says little of what else the machine does."""
TINY = Path(__file__).parent.parent / "fixtures" / "tiny.onnx"


def token(step: int, size: int) -> int:
    """The input of a step: a hash of its number, so that any process gives the same from anywhere on."""
    return (step * 2654435761 >> 7) % size


def resident_kb() -> int:
    """Resident memory of this process now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def advance(stream: OceanStream, until: int) -> tuple[float, float]:
    """Step up to that count; microseconds a step, on average and of the quickest part."""
    size, start, before = stream.model.contract.sizes["inputs"], time.perf_counter(), stream.steps
    quickest = float("inf")
    while stream.steps < until:
        began, first = time.perf_counter(), stream.steps
        for i in range(first, min(first + PART, until)):
            stream.step(token(i, size))
        quickest = min(quickest, (time.perf_counter() - began) / (stream.steps - first) * 1e6)
    return (time.perf_counter() - start) / max(1, until - before) * 1e6, quickest


def endure(model_path: Path, steps: int, folder: Path) -> tuple[list[int], float, bool, bool]:
    """Resident kB at each report, the drift of step time, finite at the end, and equal in two halves."""
    stream = OceanModel.load(model_path).stream()
    memory, other = [], None
    for i in range(1, REPORTS + 1):
        mean, quickest = advance(stream, steps * i // REPORTS)
        memory.append(resident_kb())
        print(
            f"{stream.steps:,}\t{memory[-1]:,} kB\t{mean:.1f} us a step, quickest {quickest:.1f}", flush=True
        )
        if i == REPORTS // 2:  # the second half, in another process, from the file
            stream.save(folder / "half")
            command = [sys.executable, __file__, "--from", str(folder / "half"), str(steps), str(model_path)]
            other = subprocess.Popen(command)
    assert other is not None
    assert other.wait() == 0
    halves = OceanModel.load(model_path).stream()
    halves.restore(folder / "half.end")
    mine, theirs = stream.snapshot(), halves.snapshot()
    equal = mine.steps == theirs.steps and all(
        np.array_equal(mine.states[name], theirs.states[name]) for name in mine.states
    )
    return memory, drift(stream), bool(np.isfinite(stream.ocean).all()), equal


@pytest.mark.soak
def test_ten_million_steps(tmp_path: Path) -> None:
    memory, slower, finite, equal = endure(TINY, STEPS, tmp_path)
    assert max(memory[1:]) - memory[1] < 1024
    assert finite
    assert equal
    assert slower < 1.1, "step time drifts"


def drift(old: OceanStream) -> float:
    """How much longer a step of this stream takes than one of a stream of a model loaded now, in turns."""
    new = OceanModel.load(old.model.path).stream()
    times: dict[OceanStream, list[float]] = {old: [], new: []}
    for i in range(100):
        for stream in (old, new)[:: 1 if i % 2 else -1]:
            times[stream].append(advance(stream, stream.steps + 2_000)[1])
    return statistics.median(times[old]) / statistics.median(times[new])


def main() -> None:
    """The table, or with --from the second half in a process of its own."""
    if sys.argv[1:2] == ["--from"]:
        others = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
        if others:
            os.sched_setaffinity(0, others)
        half, steps, path = Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
        stream = OceanModel.load(path).stream()
        stream.restore(half)
        advance(stream, steps)
        stream.save(half.with_name("half.end"))
        return
    import tempfile

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else TINY
    with tempfile.TemporaryDirectory() as folder:
        memory, slower, finite, equal = endure(path, steps, Path(folder))
    print(f"a step takes {slower:.3f} times as long as one of a stream made at the end")
    print(f"memory after the first report: +{max(memory[1:]) - memory[1]} kB at most")
    print(f"state finite: {finite}; equal to two halves through a snapshot, bit for bit: {equal}")


if __name__ == "__main__":
    main()
