"""Another model in the middle of a stream: the same state_id keeps the state, anything else starts anew."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ocean_runtime import ContractError, OceanModel, SnapshotError, StateError

X: dict[str, Any] = {"x": [0.5, -0.25, 0.125], "y": [1.0, 2.0], "k": 3, "flag": True}


@pytest.fixture(scope="module")
def raw(tiny_path: Path) -> OceanModel:
    return OceanModel.load(tiny_path.with_name("raw.onnx"))


@pytest.fixture(scope="module")
def raw_int8(tiny_path: Path) -> OceanModel:
    return OceanModel.load(tiny_path.with_name("raw_int8.onnx"))


def test_another_export_of_the_same_weights_goes_on(raw: OceanModel, raw_int8: OceanModel) -> None:
    stream = raw.stream()
    stream.run([X, X])
    saved, prediction = stream.snapshot(), stream.prediction
    assert stream.swap(raw_int8)
    assert stream.model is raw_int8
    assert stream.steps == 2
    assert np.array_equal(stream.prediction, prediction)  # type: ignore[arg-type]
    other = raw_int8.stream()
    other.resume(saved)
    assert np.array_equal(stream.step(X), other.step(X))
    assert not np.array_equal(other.step(X), raw.stream().step(X))


def test_a_snapshot_of_another_precision_is_taken_with_a_note(
    raw: OceanModel, raw_int8: OceanModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = raw.stream()
    stream.step(X)
    stream.save(tmp_path / "state")
    other = raw_int8.stream()
    with caplog.at_level(logging.INFO):
        restored = other.restore(tmp_path / "state")
    assert restored.snapshot.precision == "fp32"
    assert "fp32 model and goes on in its int8 export" in caplog.text
    assert other.steps == 1


def test_another_model_starts_at_its_initial_state_and_says_so(
    raw: OceanModel, tiny: OceanModel, caplog: pytest.LogCaptureFixture
) -> None:
    stream = tiny.stream()
    stream.step(3)
    assert not stream.swap(raw)
    assert "another model than before" in caplog.text
    assert stream.steps == 0
    assert stream.prediction is None
    assert np.array_equal(stream.step(X), raw.stream().step(X))
    assert not stream.swap(tiny)
    assert np.array_equal(stream.step(3), tiny.stream().step(3))


def test_counters_survive_a_swap(raw: OceanModel, raw_int8: OceanModel) -> None:
    stream = raw.stream(guard="hold")
    stream.step({**X, "x": [9.0, 0.0, 0.0]})
    stream.step({**X, "x": [np.nan, 0.0, 0.0]})
    before = stream.counters
    stream.swap(raw_int8)
    assert stream.counters == before
    assert (before.out_of_range, before.bad_inputs, before.held) == (1, 1, 1)


def test_a_model_that_lies_about_its_state_id_changes_nothing(raw: OceanModel, tiny: OceanModel) -> None:
    liar = dataclasses.replace(tiny.contract, state_id=raw.contract.state_id)
    model = OceanModel(tiny._graph.session, liar, tiny.path)
    stream = raw.stream()
    expected = stream.run([X])
    with pytest.raises(SnapshotError, match="the model has"):
        stream.swap(model)
    assert stream.model is raw
    assert stream.steps == 1
    assert np.array_equal(stream.prediction, expected[-1])  # type: ignore[arg-type]


def test_errors_keep_to_a_printable_line() -> None:
    text = str(ContractError("\x1b[2J\n" + "a" * 5000))
    assert text.isprintable()
    assert len(text) < 1100
    assert str(StateError("plain")) == "plain"
