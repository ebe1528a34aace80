"""Signals at any instant: no stream stays locked, no state is lost, and what a handler raises is never swallowed."""

from __future__ import annotations

import gc
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ocean_runtime import BusyError, InputError, OceanModel, SnapshotError
from ocean_runtime.stream import Guard


def interrupts(model: Path, folder: Path, environment: dict[str, str], count: int) -> None:
    script = Path(__file__).with_name("interrupted.py")
    done = subprocess.run(
        [sys.executable, str(script), str(model), str(folder), str(count), "0"],
        env=environment,
        capture_output=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr.decode()
    met = json.loads(done.stdout)
    assert sum(met.values()) == count
    print(f"interrupted calls: {met}")


def test_ctrl_c_never_locks_loses_or_damages_anything(
    tiny_prefill: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    interrupts(tiny_prefill, tmp_path, environment, 200)


@pytest.mark.soak
def test_ctrl_c_2000_times(tiny_prefill: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    interrupts(tiny_prefill, tmp_path, environment, 2000)


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """A signal handler for a while."""
    before = signal.signal(number, handler)
    gc.disable()  # Python itself swallows what is raised in a callback of it, such as hypothesis has
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, before)
        gc.enable()


@pytest.mark.parametrize("guard", ["raise", "hold", "reset"])
@pytest.mark.parametrize(
    "kind", [ValueError, TimeoutError, RuntimeError, InputError, SnapshotError, SystemExit]
)
@pytest.mark.parametrize("once", [False, True])
def test_what_a_handler_raises_reaches_the_caller_under_every_guard(
    tiny_prefill: Path, tmp_path: Path, guard: Guard, kind: type[BaseException], once: bool
) -> None:
    """once: the handler takes itself away before it raises, as one that lets a second Ctrl-C kill does."""

    def handler(number: int, frame: Any) -> None:
        if once:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        raise kind("of the handler")

    stream, rng = OceanModel.load(tiny_prefill).stream(guard=guard), random.Random(0)
    xs = [np.array(3)] * 40
    stream.run(xs)
    stream.save(tmp_path / "state")  # what Python imports on the way, it imports now: that swallows by itself
    for _ in range(30):
        with pytest.raises(kind, match="of the handler"), handled(signal.SIGALRM, handler):
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 2e-3))
            for _ in range(1000):  # unless it is swallowed, a few will do
                stream.step(3)
                stream.run(xs)
                stream.save(tmp_path / "state", keep=2)
                stream.restore(tmp_path / "state")
    assert stream.counters.bad_inputs == stream.counters.bad_states == 0
    assert stream.fault is None


class Signals:
    """A token that a signal arrives with."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        signal.raise_signal(signal.SIGUSR1)
        return np.array(3)


def test_a_handler_may_read_and_save_within_a_step_and_a_change_is_refused(
    tiny: OceanModel, tmp_path: Path
) -> None:
    stream, alone = tiny.stream(guard="hold"), tiny.stream()
    stream.step(1)
    told: list[str] = []

    def handler(number: int, frame: Any) -> None:
        stream.save(tmp_path / "state")
        saved = stream.snapshot()
        for change in (
            lambda: stream.swap(tiny),
            lambda: stream.step(2),
            lambda: stream.run([2] * 9),
            lambda: stream.resume(saved),
            lambda: stream.restore(tmp_path / "state"),
            stream.reset,
        ):
            with pytest.raises(BusyError, match="the call that a signal handler interrupted") as refused:
                change()
            told.append(str(refused.value))

    with handled(signal.SIGUSR1, handler):
        found = stream.step(Signals())
    assert len(told) == 6
    assert np.array_equal(found, alone.run([1, 3])[-1])
    assert stream.valid

    with handled(signal.SIGUSR1, lambda *_: stream.swap(tiny)), pytest.raises(BusyError):
        stream.step(Signals())
    assert stream.steps == 2
    assert stream.swap(tiny)


def test_a_save_within_a_save_returns(tiny: OceanModel, tmp_path: Path) -> None:
    """A handler that saves, in the middle of a save: both return, and what is there is whole."""
    stream, rng, seen = tiny.stream(), random.Random(0), []
    stream.step(1)

    def handler(number: int, frame: Any) -> None:
        stream.save(tmp_path / "state", keep=2)
        seen.append(number)

    with handled(signal.SIGALRM, handler):
        for _ in range(30):
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 2e-3))
            stream.save(tmp_path / "state", keep=2)
    assert seen
    stream.save(tmp_path / "state", keep=2)
    stream.restore(tmp_path / "state")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state", "state.1"]


def test_a_step_that_meets_a_swap_waits(tiny: OceanModel, tiny_path: Path) -> None:
    stream, alone, other = tiny.stream(), tiny.stream(), OceanModel.load(tiny_path)
    stop, swaps, problems = threading.Event(), [0], []

    def swap() -> None:
        try:
            while not stop.is_set():
                assert stream.swap(other if stream.model is tiny else tiny)
                swaps[0] += 1
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        xs = random.Random(0).choices(range(20), k=3000)
        found = [stream.step(x) for x in xs]
    finally:
        stop.set()
        thread.join()
    assert not problems
    assert swaps[0] > 10
    assert stream.steps == len(xs)
    assert np.array_equal(np.stack(found), alone.run(xs))


def test_a_stream_is_never_copied(tiny: OceanModel) -> None:
    import copy

    for how in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"can't be copied: open another one"):
            how(tiny.stream())
