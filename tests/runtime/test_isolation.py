"""Streams of one model do not mix, whatever the threads do; a stream has one user at a time."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_runtime import BusyError, InputError, OceanModel, OceanStream

STREAMS, THREADS = 64, 8


def inputs(seed: int, steps: int, size: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(size) for _ in range(steps)]


def interleaved(model: OceanModel, steps: int) -> None:
    """64 streams over 8 threads, each thread taking its streams' steps in a random order."""
    size = model.contract.sizes["inputs"]
    streams = [model.stream() for _ in range(STREAMS)]
    outputs: list[list[np.ndarray[Any, Any]]] = [[] for _ in streams]
    together = threading.Barrier(THREADS)

    def work(thread: int) -> None:
        mine = range(thread, STREAMS, THREADS)
        order = [i for i in mine for _ in range(steps)]
        random.Random(thread).shuffle(order)
        given = {i: iter(inputs(i, steps, size)) for i in mine}
        together.wait()
        for i in order:
            outputs[i].append(streams[i].step(next(given[i])))

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, thread) for thread in range(THREADS)]:
            done.result()
    for i, stream in enumerate(streams):
        alone = model.stream()
        assert np.array_equal(np.stack(outputs[i]), alone.run(inputs(i, steps, size)))
        assert np.array_equal(stream.ocean, alone.ocean)
        assert stream.steps == alone.steps == steps


def test_64_streams_over_8_threads_equal_their_runs_alone(tiny: OceanModel) -> None:
    interleaved(tiny, 50)


@pytest.mark.soak
def test_64_streams_over_8_threads_for_1000_steps(tiny: OceanModel) -> None:
    interleaved(tiny, 1000)


class Held:
    """A token that holds its step up until it is let go."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        self.reached.set()
        assert self.go.wait(30)
        return np.array(3)


def held_step(stream: OceanStream, held: Held) -> threading.Thread:
    """A thread in the middle of a step."""
    thread = threading.Thread(target=lambda: stream.step(held))
    thread.start()
    assert held.reached.wait(30)
    return thread


def test_a_second_thread_is_refused_and_nothing_is_corrupted(tiny: OceanModel) -> None:
    stream, alone = tiny.stream(), tiny.stream()
    stream.step(1)
    saved, ocean, held = stream.snapshot(), stream.ocean, Held()
    thread = held_step(stream, held)
    for change in (
        lambda: stream.step(2),
        lambda: stream.step_all(2),
        lambda: stream.run([2]),
        stream.reset,
        lambda: stream.resume(saved),
    ):
        with pytest.raises(BusyError, match="in use by another thread"):
            change()
    assert np.array_equal(stream.ocean, ocean)  # reading is free, and sees the state between two steps
    assert stream.snapshot().steps == 1
    held.go.set()
    thread.join()
    assert np.array_equal(stream.step(2), alone.run([1, 3, 2])[-1])


def test_a_swap_waits_for_the_step_in_progress_and_no_step_is_lost(tiny: OceanModel) -> None:
    stream, alone, held = tiny.stream(), tiny.stream(), Held()
    thread = held_step(stream, held)
    kept: list[bool] = []
    swapping = threading.Thread(target=lambda: kept.append(stream.swap(tiny)))
    swapping.start()
    held.go.set()
    thread.join()
    swapping.join()
    assert kept == [True]
    assert np.array_equal(stream.step(2), alone.run([3, 2])[-1])


def test_an_input_is_free_to_change_after_the_step(tiny: OceanModel) -> None:
    stream, alone = tiny.stream(2), tiny.stream(2)
    x = np.array([1, 2])
    stream.step(x)
    x[...] = 0
    alone.step([1, 2])
    assert np.array_equal(stream.step([3, 4]), alone.step([3, 4]))


@given(st.sets(st.integers(0, 3)), st.booleans())
@settings(deadline=None)
def test_resetting_rows_leaves_the_others(tiny: OceanModel, rows: set[int], as_mask: bool) -> None:
    stream, other, fresh = tiny.stream(4), tiny.stream(4), tiny.stream(4)
    for one in (stream, other):
        one.run([[1, 2, 3, 4], [5, 6, 7, 8]])
    mask = np.isin(np.arange(4), list(rows))
    stream.reset(mask if as_mask else sorted(rows))
    assert stream.steps == 2
    assert stream.prediction is not None
    assert other.prediction is not None
    assert np.array_equal(np.isnan(stream.prediction).all(axis=1), mask)
    assert np.array_equal(stream.prediction[~mask], other.prediction[~mask])
    after, untouched, start = (one.step([9, 9, 9, 9]) for one in (stream, other, fresh))
    assert np.array_equal(after[~mask], untouched[~mask])
    assert np.array_equal(after[mask], start[mask])


@pytest.mark.parametrize("rows", [[4], [-5], [True, False], ["a"], [0.5]])
def test_rows_that_are_not_there_are_refused(tiny: OceanModel, rows: Any) -> None:
    stream = tiny.stream(4)
    stream.step([1, 2, 3, 4])
    before = stream.ocean
    with pytest.raises(InputError, match="indices below 4 or a mask of 4"):
        stream.reset(rows)
    with pytest.raises(InputError, match="no rows to reset"):
        tiny.stream().reset([0])
    assert np.array_equal(stream.ocean, before)
