"""A stream: what a step takes, gives and refuses."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_runtime import InputError, OceanModel, SnapshotError
from ocean_runtime.stream import OceanStream

tokens = st.lists(st.integers(0, 20), min_size=1, max_size=12)


def states_equal(a: OceanStream, b: OceanStream) -> bool:
    return a.steps == b.steps and np.array_equal(a.ocean, b.ocean)


def test_step_gives_logits_and_moves_the_state(tiny: OceanModel) -> None:
    stream = tiny.stream()
    logits = stream.step(3)
    assert logits.shape == (tiny.contract.sizes["outputs"],)
    assert logits.dtype == np.float32
    assert stream.steps == 1
    assert stream.ocean.shape == (16,)
    assert np.any(stream.ocean != 0)
    assert np.array_equal(stream.prediction, logits)  # type: ignore[arg-type]


def test_all_outputs_by_name_are_those_of_step(tiny: OceanModel) -> None:
    assert np.array_equal(tiny.stream().step_all({"token": 3})["logits"], tiny.stream().step(3))


@given(tokens)
@settings(deadline=None)
def test_run_is_step_again_and_again(tiny: OceanModel, xs: list[int]) -> None:
    one, other = tiny.stream(), tiny.stream()
    assert np.array_equal(one.run(xs), np.stack([other.step(x) for x in xs]))
    assert states_equal(one, other)


def test_run_of_nothing_has_the_shape_of_no_outputs(tiny: OceanModel) -> None:
    assert tiny.stream().run([]).shape == (0, tiny.contract.sizes["outputs"])


@given(st.lists(st.tuples(*[st.integers(0, 20)] * 3), min_size=1, max_size=12))
@settings(deadline=None)
def test_rows_of_a_batch_are_streams_of_their_own(tiny: OceanModel, xs: list[tuple[int, int, int]]) -> None:
    batched = tiny.stream(batch=3)
    together = np.stack([batched.step(np.array(x)) for x in xs])
    for row in range(3):
        alone = tiny.stream().run([x[row] for x in xs])
        assert np.allclose(together[:, row], alone, atol=1e-5)


@given(tokens, tokens)
@settings(deadline=None)
def test_streams_of_one_model_do_not_mix(tiny: OceanModel, xs: list[int], ys: list[int]) -> None:
    one, other = tiny.stream(), tiny.stream()
    mixed_one, mixed_other = [], []
    for i in range(max(len(xs), len(ys))):
        mixed_one += [one.step(x) for x in xs[i : i + 1]]
        mixed_other += [other.step(y) for y in ys[i : i + 1]]
    assert np.array_equal(np.stack(mixed_one), tiny.stream().run(xs))
    assert np.array_equal(np.stack(mixed_other), tiny.stream().run(ys))


@given(tokens, tokens)
@settings(deadline=None)
def test_reset_is_a_new_stream(tiny: OceanModel, xs: list[int], ys: list[int]) -> None:
    stream = tiny.stream()
    stream.run(xs)
    stream.reset()
    assert stream.prediction is None
    assert states_equal(stream, tiny.stream())
    assert np.array_equal(stream.run(ys), tiny.stream().run(ys))


def test_what_a_step_returned_stays_as_it_was(tiny: OceanModel) -> None:
    stream = tiny.stream()
    first = stream.step(1)
    kept = first.copy()
    stream.step(2)
    assert np.array_equal(first, kept)


def test_writing_to_what_a_step_returned_changes_nothing(tiny: OceanModel) -> None:
    stream, other = tiny.stream(), tiny.stream()
    for array in (stream.step(1), stream.ocean, stream.prediction, *stream.snapshot().states.values()):
        array[...] = np.nan  # type: ignore[index]
    other.step(1)
    assert np.array_equal(stream.prediction, other.prediction)  # type: ignore[arg-type]
    assert np.array_equal(stream.step(2), other.step(2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (-1, r"'token' is -1, outside the vocabulary"),
        (10_000, r"'token' is 10000, outside the vocabulary of \d+ tokens, 0 to \d+"),
        (2**63, r"'token'"),
        (1.0, r"'token' has dtype float64; the model takes int64"),
        (float("nan"), r"'token' has dtype float64"),
        (True, r"'token' has dtype bool"),
        ("a", r"'token' has dtype <U1"),
        (None, r"'token' has dtype object"),
        ([1], r"'token' has shape \[1\]; a step takes \[\]"),
        ([[1], [2, 3]], r"'token' is no array"),
        ({"word": 1}, r"'token' is missing; the model takes 'token'"),
        ({"token": 1, "word": 1}, r"'word' is unknown; the model takes 'token'"),
    ],
)
def test_a_wrong_input_is_named_and_changes_nothing(tiny: OceanModel, wrong: object, message: str) -> None:
    stream, untouched = tiny.stream(), tiny.stream()
    stream.step(1)
    untouched.step(1)
    with pytest.raises(InputError, match=message):
        stream.step(wrong)  # type: ignore[arg-type]
    assert states_equal(stream, untouched)
    assert np.array_equal(stream.step(2), untouched.step(2))


def test_a_batched_stream_wants_all_its_rows(tiny: OceanModel) -> None:
    with pytest.raises(InputError, match=r"has shape \[\]; a step takes \[2\]"):
        tiny.stream(batch=2).step(1)
    with pytest.raises(ValueError, match="at least one row"):
        tiny.stream(batch=0)


def test_resuming_needs_the_same_batch(tiny: OceanModel) -> None:
    with pytest.raises(SnapshotError, match="batch 2, the stream None"):
        tiny.stream().resume(tiny.stream(batch=2).snapshot())


def test_a_numpy_batch_can_be_saved_and_no_other_kind_of_number(tiny: OceanModel, tmp_path: Path) -> None:
    stream = tiny.stream(np.int64(2))  # type: ignore[arg-type]
    stream.save(tmp_path / "state")
    tiny.stream(2).restore(tmp_path / "state")
    for wrong in (True, 2.5, "2"):
        with pytest.raises(ValueError, match="whole number of rows"):
            tiny.stream(wrong)  # type: ignore[arg-type]
