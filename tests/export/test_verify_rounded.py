"""A right int8 or int4 file passes its verification, and each wrong one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from ocean_export import verify_rounded as rounding
from ocean_export.lean import lean_graph
from ocean_export.verify import Trial, make_trial
from ocean_export.verify_rounded import RoundingOf, Run
from ocean_export.verify_rounded import verify_rounded as verify
from ocean_train.model import OceanConfig, OceanTransformer
from onnx import numpy_helper

Array = NDArray[Any]
KINDS = [RoundingOf("int8"), RoundingOf("int8", portable=True), RoundingOf("int4")]


def small(width: int = 16, tau: float = 1.0) -> OceanTransformer:
    model = OceanTransformer(OceanConfig(30, 30, width, 2, 2, max_time_constant=tau), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return model


@pytest.fixture(scope="module", params=[1.0, 40.0], ids=["relay", "leak"])
def model(request: pytest.FixtureRequest) -> OceanTransformer:
    return small(tau=request.param)


@pytest.fixture(scope="module")
def trial(model: OceanTransformer) -> Trial:
    return make_trial(model, 300)


@pytest.fixture(autouse=True)
def _fewer_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "CALLS", 40)


def run_of(proto: onnx.ModelProto) -> Run:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])

    def run(inputs: Array, oceans: Array) -> tuple[Array, Array]:
        output, after = session.run(None, {"token": inputs[0], "ocean": oceans})
        return output[None], after

    return run


@pytest.mark.parametrize("how", KINDS, ids=["int8", "portable", "int4"])
def test_a_right_file_passes(model: OceanTransformer, trial: Trial, how: RoundingOf) -> None:
    found = verify(run_of(lean_graph(model, how.precision, how.portable)), model, None, trial, how)
    print(found)
    assert found.passed
    assert found.typical < 1e-5, "most rows meet no border of two codes"


@pytest.mark.parametrize("how", KINDS, ids=["int8", "portable", "int4"])
def test_another_rounding_is_refused(model: OceanTransformer, trial: Trial, how: RoundingOf) -> None:
    other = KINDS[(KINDS.index(how) + 1) % len(KINDS)]
    run = run_of(lean_graph(model, other.precision, other.portable))
    assert not verify(run, model, None, trial, how).passed


def changed(proto: onnx.ModelProto, name: str, values: Array) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for weight in copy.graph.initializer:
        if weight.name == name:
            weight.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), name))
    return copy


def wrong_files(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Each bias dropped, the scales of each matrix in reverse, a token's row in place of another's, other operators."""
    for weight in proto.graph.initializer:
        name, values = weight.name, numpy_helper.to_array(weight)
        if name.endswith(".bias") and values.any():
            yield f"{name} dropped", changed(proto, name, values * 0)
        if name.endswith(".scale") and values.ndim == 1 and len(set(values)) > 1:
            yield f"{name} reversed", changed(proto, name, values[::-1])
        if name.startswith("token."):
            yield f"row 0 of {name} replaced", changed(proto, name, np.concatenate([values[1:2], values[1:]]))
    for kind, attribute, value in (
        ("Gelu", "approximate", "tanh"),
        ("LayerNormalization", "epsilon", 1e-3),
        ("LayerNormalization", "epsilon", 1e-4),
    ):
        for i, node in enumerate(proto.graph.node):
            if node.op_type == kind:
                copy = onnx.ModelProto()
                copy.CopyFrom(proto)
                kept = [a for a in node.attribute if a.name != attribute]
                del copy.graph.node[i].attribute[:]
                copy.graph.node[i].attribute.extend([*kept, onnx.helper.make_attribute(attribute, value)])
                yield f"{node.name} with {attribute} {value}", copy


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("how", KINDS, ids=["int8", "portable", "int4"])
def test_each_wrong_file_is_refused(how: RoundingOf, every: int) -> None:
    model = small(tau=40.0)
    trial = make_trial(model, 300)
    right = lean_graph(model, how.precision, how.portable)
    missed, least = [], np.inf
    for name, wrong in islice(wrong_files(right), 0, None, every):
        found = verify(run_of(wrong), model, None, trial, how)
        least = min(least, found.share)
        if found.passed:
            missed.append(name)
    print(f"the wrong file that is nearest to its allowance takes {least:.1f} times of it")
    assert not missed


@pytest.mark.parametrize("size", [2, 3, 5, 8, 16, "drawn"])
def test_rows_that_are_mixed_up_at_one_batch_size_alone_are_refused(size: Any) -> None:
    model = small()
    right = run_of(lean_graph(model, "int8"))

    def mixed(inputs: Array, oceans: Array) -> tuple[Array, Array]:
        outputs, after = right(inputs, oceans)
        if len(oceans) == size or (size == "drawn" and len(oceans) > 16):
            return np.roll(outputs, 1, axis=1), np.roll(after, 1, axis=0)
        return outputs, after

    assert not verify(mixed, model, None, make_trial(model, 300), KINDS[0]).passed


def test_a_processor_that_leaves_inputs_as_they_are_is_right_too() -> None:
    """Without dot-product instructions onnxruntime multiplies float32 inputs with the rounded weights."""
    model = small()
    proto = lean_graph(model, "int8")
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1  # float32 products
    found = verify(run_of(proto), model, None, make_trial(model, 300), KINDS[0])
    assert found.passed and not found.rounded_inputs
    assert "does not round the inputs" in str(found)


def test_numbers_that_are_not_finite_are_refused() -> None:
    model = small()
    right = run_of(lean_graph(model, "int8"))

    def broken(inputs: Array, oceans: Array) -> tuple[Array, Array]:
        outputs, after = right(inputs, oceans)
        return outputs * np.nan, after

    found = verify(broken, model, None, make_trial(model, 300), KINDS[0])
    assert not found.passed
