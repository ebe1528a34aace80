"""Ten million steps in one process: memory, step time and state at the end as at the start.

`python tests/soak/test_endurance.py [STEPS] [MODEL.onnx]` prints the same as a table.
"""

from __future__ import annotations

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
TINY = Path(__file__).parent.parent / "fixtures" / "tiny.onnx"


def token(step: int, size: int) -> int:
    """The input of a step: a hash of its number, so that any process gives the same from anywhere on."""
    return (step * 2654435761 >> 7) % size


def resident_kb() -> int:
    """Resident memory of this process now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def advance(stream: OceanStream, until: int) -> float:
    """Step up to that count; microseconds a step."""
    size, start, before = stream.model.contract.sizes["inputs"], time.perf_counter(), stream.steps
    for i in range(before, until):
        stream.step(token(i, size))
    return (time.perf_counter() - start) / max(1, until - before) * 1e6


def endure(model_path: Path, steps: int, folder: Path) -> tuple[list[int], list[float], bool, bool]:
    """Resident kB and microseconds a step at each report, finite at the end, and equal in two halves."""
    stream = OceanModel.load(model_path).stream()
    memory, times, other = [], [], None
    for i in range(1, REPORTS + 1):
        times.append(advance(stream, steps * i // REPORTS))
        memory.append(resident_kb())
        print(f"{stream.steps:,}\t{memory[-1]:,} kB\t{times[-1]:.1f} us a step", flush=True)
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
    return memory, times, bool(np.isfinite(stream.ocean).all()), equal


@pytest.mark.soak
def test_ten_million_steps(tmp_path: Path) -> None:
    memory, times, finite, equal = endure(TINY, STEPS, tmp_path)
    assert max(memory[1:]) - memory[1] < 1024
    assert finite
    assert equal
    first, last = statistics.median(times[1:6]), statistics.median(times[-5:])
    assert last < 1.5 * first, f"{first:.1f} us a step became {last:.1f}"


def main() -> None:
    """The table, or with --from the second half in a process of its own."""
    if sys.argv[1:2] == ["--from"]:
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
        memory, _, finite, equal = endure(path, steps, Path(folder))
    print(f"memory after the first report: +{max(memory[1:]) - memory[1]} kB at most")
    print(f"state finite: {finite}; equal to two halves through a snapshot, bit for bit: {equal}")


if __name__ == "__main__":
    main()
