"""A prefill file is used with the very step file that it was made for, and with no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from ocean_runtime import OceanModel
from ocean_runtime.prefill import PREFILL_KEY, binding, digest, path_beside
from ocean_runtime.seal import KEY
from onnx import numpy_helper


def say(path: Path, value: str) -> None:
    """Write what a prefill file says of its step file."""
    proto = onnx.load(path)
    kept = [entry for entry in proto.metadata_props if entry.key not in (PREFILL_KEY, KEY)]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    proto.metadata_props.add(key=PREFILL_KEY, value=value)
    onnx.save(proto, path)


@pytest.fixture
def pair(tiny_prefill: Path, tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(tiny_prefill.read_bytes())
    path_beside(path).write_bytes(path_beside(tiny_prefill).read_bytes())
    return path


def changed(path: Path, by: float) -> None:
    """Another export under the same contract: each of its matrices is rounded otherwise."""
    proto = onnx.load(path)
    random = np.random.default_rng(0)
    for weight in proto.graph.initializer:
        array = numpy_helper.to_array(weight)
        if array.dtype == np.float32 and array.ndim == 2:
            noise = 1 + by * random.standard_normal(array.shape).astype(np.float32)
            weight.CopyFrom(numpy_helper.from_array(array * noise, weight.name))
    kept = [entry for entry in proto.metadata_props if entry.key != KEY]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    onnx.save(proto, path)


def test_the_digest_of_the_step_file_decides(pair: Path, caplog: pytest.LogCaptureFixture) -> None:
    contract = OceanModel.load(pair).contract
    say(path_beside(pair), binding(contract, digest(pair.read_bytes())))
    assert OceanModel.load(pair).prefill is not None
    changed(pair, 0.0)  # written again, with the same numbers
    model = OceanModel.load(pair)
    assert model.prefill is None
    assert "was made for another export than the model beside it; export both again" in caplog.text
    xs = list(range(20))
    assert np.array_equal(
        model.stream().run(xs), np.stack([y for s in [model.stream()] for y in map(s.step, xs)])
    )


@pytest.mark.parametrize("by", [0.0, 0.02])
def test_one_of_an_earlier_version_is_compared(
    pair: Path, caplog: pytest.LogCaptureFixture, by: float
) -> None:
    assert OceanModel.load(pair).prefill is not None
    changed(pair, by)
    assert (OceanModel.load(pair).prefill is not None) == (by == 0.0)
    assert ("gives other numbers than the model beside it" in caplog.text) == (by != 0.0)
