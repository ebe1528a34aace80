"""Every numeric fault at every input under each policy: the state is what the policy says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from ocean_runtime import InputError, OceanModel, OceanStream, StateError
from ocean_runtime.stream import Guard

POLICIES: tuple[Guard, ...] = ("raise", "hold", "reset")
GOOD: dict[str, Any] = {
    "x": np.array([0.5, -0.25, 0.125], np.float32),
    "y": np.array([1.0, 2.0]),
    "k": np.int32(3),
    "flag": np.True_,
}
FLOATS, INTS = ("x", "y"), ("k",)

Make = Callable[[Any], Any]


def put(value: float) -> Make:
    def make(good: Any) -> Any:
        bad = np.array(good, np.float64)
        bad[-1] = value
        return bad

    return make


REFUSED: list[tuple[str, tuple[str, ...], Make]] = [
    ("NaN", FLOATS, put(np.nan)),
    ("inf", FLOATS, put(np.inf)),
    ("-inf", FLOATS, put(-np.inf)),
    ("too huge for float32", ("x",), put(1e39)),
    ("too huge for int32", INTS, lambda good: 1 << 40),
    ("too huge for int64", INTS, lambda good: np.uint64((1 << 64) - 1)),
    ("too huge for any", INTS, lambda good: 1 << 80),
    ("float for int", INTS, lambda good: 3.0),
    ("NaN for int", INTS, lambda good: np.nan),
    ("text", (*FLOATS, *INTS, "flag"), lambda good: "3"),
    ("None", (*FLOATS, *INTS, "flag"), lambda good: None),
    ("complex", (*FLOATS, *INTS, "flag"), lambda good: np.asarray(good, complex)),
    ("time", (*FLOATS, *INTS), lambda good: np.asarray(good).astype("datetime64[s]")),
    ("int for bool", ("flag",), lambda good: 1),
    ("an axis more", (*FLOATS, *INTS, "flag"), lambda good: np.asarray(good)[None]),
    ("an element more", FLOATS, lambda good: np.append(good, 1)),
    ("no element", FLOATS, lambda good: np.asarray(good)[:0]),
    ("ragged", FLOATS, lambda good: [[1], [2, 3], 4]),
    ("masked", (*FLOATS, *INTS, "flag"), lambda good: np.ma.MaskedArray(good, mask=True)),
    ("masked in part", FLOATS, lambda good: np.ma.MaskedArray(good, mask=np.arange(len(good)) == 0)),
]


def read_only(good: Any) -> Any:
    array = np.array(good)
    array.setflags(write=False)
    return array


TAKEN: list[tuple[str, Make]] = [
    ("as it is", lambda good: good),
    ("a list", lambda good: np.asarray(good).tolist()),
    ("big-endian", lambda good: np.asarray(good).astype(np.asarray(good).dtype.newbyteorder(">"))),
    ("read-only", lambda good: read_only(good)),
    ("not contiguous", lambda good: np.repeat(good, 2, axis=-1)[..., ::2] if np.ndim(good) else good),
    ("backwards", lambda good: np.asarray(good)[..., ::-1][..., ::-1] if np.ndim(good) else good),
]


@pytest.fixture(scope="module")
def raw(tiny_path: Any) -> OceanModel:
    return OceanModel.load(tiny_path.with_name("raw.onnx"))


def everything(stream: OceanStream) -> list[np.ndarray[Any, Any]]:
    saved = stream.snapshot()
    return [np.array(stream.steps), *saved.states.values(), *saved.predictions.values()]


def same(a: list[np.ndarray[Any, Any]], b: list[np.ndarray[Any, Any]]) -> bool:
    return len(a) == len(b) and all(
        np.array_equal(x, y, equal_nan=True) and x.dtype == y.dtype for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("name", "make"),
    [pytest.param(name, make, id=f"{fault}-{name}") for fault, names, make in REFUSED for name in names],
)
def test_a_refused_input_does_what_the_policy_says(
    raw: OceanModel, policy: Guard, name: str, make: Make
) -> None:
    stream = raw.stream(guard=policy)
    stream.step(GOOD)
    before, fresh = everything(stream), everything(raw.stream())
    bad = {**GOOD, name: make(GOOD[name])}
    if policy == "raise":
        with pytest.raises(InputError, match=repr(name)):
            stream.step(bad)
        assert stream.fault is None
    else:
        assert np.isnan(stream.step(bad)).all()
        assert not stream.valid
        assert stream.fault is not None
        assert repr(name) in stream.fault
    assert same(everything(stream), fresh if policy == "reset" else before)
    assert stream.counters.bad_inputs == 1
    assert stream.counters.held == (policy == "hold")
    assert stream.counters.resets == (policy == "reset")
    assert np.isfinite(stream.step(GOOD)).all()
    assert stream.valid
    assert stream.fault is None


@pytest.mark.parametrize(("how", "make"), TAKEN, ids=[how for how, _ in TAKEN])
def test_any_layout_of_the_same_numbers_gives_the_same_step(raw: OceanModel, how: str, make: Make) -> None:
    stream, expected = raw.stream(), raw.stream()
    for _ in range(2):
        given = {name: make(value) for name, value in GOOD.items()}
        assert np.array_equal(stream.step(given), expected.step(GOOD))
    assert same(everything(stream), everything(expected))


def test_subnormal_and_large_numbers_are_numbers(raw: OceanModel) -> None:
    stream = raw.stream()
    x = np.array([1e-45, -1e-45, 1e38], np.float32)
    stream.step({**GOOD, "x": x})
    assert np.array_equal(stream.snapshot().states["s"][0], np.float32(4 * 0.25) + x)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_state_that_is_not_finite_is_never_taken(raw: OceanModel, policy: Guard) -> None:
    stream = raw.stream(guard=policy)
    huge = {**GOOD, "x": np.full(3, 3e38, np.float32)}
    stream.step(huge)
    before, fresh = everything(stream), everything(raw.stream())
    if policy == "raise":
        with pytest.raises(StateError, match=r"step 2 gave a .* that is not finite"):
            stream.step(huge)
    else:
        assert np.isnan(stream.step(huge)).all()
        assert not stream.valid
    assert same(everything(stream), fresh if policy == "reset" else before)
    assert stream.counters.bad_states == 1


@pytest.mark.parametrize("policy", ["hold", "reset"])
@pytest.mark.parametrize("fault", ["input", "mask", "state"])
def test_in_a_batch_only_the_rows_at_fault_are_concerned(
    raw: OceanModel, policy: Literal["hold", "reset"], fault: str
) -> None:
    def batch(*rows: float) -> dict[str, Any]:
        good = {name: np.stack([value] * len(rows)) for name, value in GOOD.items()}
        good["x"][:, 0] = rows
        return good

    stream, sound = raw.stream(3, guard=policy), raw.stream(3)
    stream.step(batch(1.0, 3e38, 2.0))
    sound.step(batch(1.0, 0.0, 2.0))
    before = stream.snapshot()
    bad = batch(3.0, {"input": np.nan, "mask": 4.0, "state": 3e38}[fault], 5.0)
    if fault == "mask":
        bad["x"] = np.ma.masked_equal(bad["x"], 4.0)
    output, expected = stream.step(bad), sound.step(batch(3.0, 0.0, 5.0))
    assert np.array_equal(stream.valid, [True, False, True])
    assert np.isnan(output[1]).all()
    assert np.array_equal(output[[0, 2]], expected[[0, 2]])
    assert stream.steps == 2
    states, initial = stream.snapshot().states, raw.stream(3).snapshot().states
    for name, state in sound.snapshot().states.items():
        assert np.array_equal(states[name][[0, 2]], state[[0, 2]])
        assert np.array_equal(states[name][1], (before.states if policy == "hold" else initial)[name][1])
    assert stream.prediction is not None
    if policy == "hold":
        assert np.array_equal(stream.prediction[1], before.predictions["out"][1])
    else:
        assert np.isnan(stream.prediction[1]).all()
    stream.resume(stream.snapshot())  # with a row that has predicted nothing
    stream.reset([1])
    stream.step(batch(0.0, 0.0, 0.0))
    assert np.all(stream.valid)


def test_a_fault_of_the_whole_input_concerns_all_rows(raw: OceanModel) -> None:
    stream = raw.stream(2, guard="hold")
    before = everything(stream)
    assert np.isnan(stream.step({"x": 1.0})).all()
    assert np.array_equal(stream.valid, [False, False])
    assert same(everything(stream), before)


def test_the_error_names_the_rows_at_fault(tiny: OceanModel) -> None:
    with pytest.raises(InputError) as caught:
        tiny.stream(3).step([1, 99, -1])
    assert caught.value.rows is not None
    assert caught.value.rows.tolist() == [False, True, True]


def test_tokens_out_of_the_vocabulary_are_held_row_by_row(tiny: OceanModel) -> None:
    stream, alone = tiny.stream(2, guard="hold"), tiny.stream(2)
    stream.step([1, 2])
    alone.step([1, 2])
    stream.step([3, 10_000])
    alone.step([3, 5])
    assert np.array_equal(stream.valid, [True, False])
    assert np.array_equal(stream.ocean[0], alone.ocean[0])
    assert np.array_equal(stream.ocean[1], tiny_after(tiny, [1, 2])[1])


def tiny_after(tiny: OceanModel, tokens: list[int]) -> np.ndarray[Any, Any]:
    stream = tiny.stream(len(tokens))
    stream.step(tokens)
    return stream.ocean


def test_inputs_outside_the_training_range_are_taken_counted_and_told_once(
    raw: OceanModel, caplog: pytest.LogCaptureFixture
) -> None:
    stream = raw.stream()
    with caplog.at_level(logging.WARNING):
        for x in ([1.0, 9e9, 9e9], [1.5, 0.0, 0.0], [-7.0, 0.0, -3.0], [0.0, 0.0, -4.0]):
            assert np.isfinite(stream.step({**GOOD, "x": x})).all()
    assert stream.counters.out_of_range == 3
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "gyro.x was 1.5, and the model saw -1 to 1" in told[0]
    assert "gyro.z was -3" in told[1]


def test_an_unknown_policy_is_refused(tiny: OceanModel) -> None:
    with pytest.raises(ValueError, match="unknown guard 'keep'; choose raise, hold or reset"):
        tiny.stream(guard="keep")  # type: ignore[arg-type]


class Raises:
    """An input whose own method fails."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


@pytest.mark.parametrize("policy", POLICIES)
def test_an_input_that_raises_by_itself_is_a_bad_input(raw: OceanModel, policy: Guard) -> None:
    stream = raw.stream(guard=policy)
    bad = {**GOOD, "x": Raises()}
    if policy == "raise":
        with pytest.raises(InputError, match="requires grad"):
            stream.step(bad)
    else:
        assert np.isnan(stream.step(bad)).all()
        assert "requires grad" in str(stream.fault)
    assert stream.counters.bad_inputs == 1


def test_masked_rows_in_a_list_are_masked(raw: OceanModel) -> None:
    rows = [np.ma.MaskedArray(GOOD["x"], mask=[False, False, masked]) for masked in (False, True)]
    batch = {name: np.stack([value] * 2) for name, value in GOOD.items()}
    for x in (rows, tuple(rows)):
        stream = raw.stream(2, guard="hold")
        stream.step({**batch, "x": x})
        assert stream.valid.tolist() == [True, False]  # type: ignore[union-attr]
