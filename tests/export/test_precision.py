"""Fewer bits: how matrices are rounded, what it costs, and that too much is refused."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from make_tiny_sensors import tiny_sensors
from ocean_export import cli, heldout
from ocean_export.heldout import Cost, Drift, heldout_of, measure
from ocean_export.lean import lean_graph
from ocean_export.precision import BLOCK, dequantise, per_block, per_column
from ocean_runtime import OceanModel
from ocean_train import checkpoint
from ocean_train.model import OceanTransformer

shapes = st.tuples(st.integers(1, 300), st.integers(1, 9))
matrices = shapes.flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-100, 100, allow_subnormal=False))
)


@given(matrices, st.sampled_from([4, 8]))
@settings(deadline=None)
def test_a_block_is_rounded_by_at_most_half_a_step_or_little_more(W: np.ndarray, bits: int) -> None:
    codes, scales, size = per_block(W, bits)
    found = dequantise(codes, scales, len(W), bits)
    N = W.shape[1]
    step = np.repeat(np.abs(scales.reshape(N, -1)), size, axis=1)[:, : len(W)].T
    # 4 bits choose the scale with the smallest squared error, which may clip the largest weights.
    allowed = 0.5 if bits == 8 else 8 / 0.7 - 8 + 1
    assert (np.abs(found - W) <= step * allowed * 1.001 + 1e-6).all()
    assert codes.shape[1] == -(-len(W) // size) and size <= max(16, BLOCK[bits])


@given(matrices)
@settings(deadline=None)
def test_a_column_is_rounded_by_at_most_half_a_step(W: np.ndarray) -> None:
    codes, scales = per_column(W)
    found = (codes.astype(np.float64) - 128) * scales
    assert (np.abs(found - W) <= scales * 0.501 + 1e-6).all()


@pytest.mark.parametrize(("precision", "portable"), [("int8", False), ("int8", True), ("int4", False)])
def test_onnxruntime_computes_with_the_rounded_matrices(
    model: OceanTransformer, tmp_path: Path, precision: str, portable: bool
) -> None:
    """The graph at each precision is near the float32 graph, and no weight matrix of it is float32."""
    proto = lean_graph(model, precision, portable)
    limit = {"int8": 0.05, "int4": 0.6}[precision]
    import onnxruntime

    random = np.random.default_rng(0)
    feed = {"token": random.integers(30, size=7), "ocean": random.standard_normal((7, 16)).astype("f")}
    one, other = (
        onnxruntime.InferenceSession(p.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, feed
        )
        for p in (proto, lean_graph(model))
    )
    for found, expected in zip(one, other, strict=True):
        assert 0 < np.linalg.norm(found - expected) <= limit * np.linalg.norm(expected)
    kept = {
        w.name for w in proto.graph.initializer if w.data_type == onnx.TensorProto.FLOAT and len(w.dims) > 1
    }
    assert kept == {"heads", "token.normalised", "token.query", "token.residual"}
    assert portable == ({node.domain for node in proto.graph.node} == {""})


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer held-out steps than an export takes."""
    monkeypatch.setattr(heldout, "STEPS", 500)


def test_portable_names_do_not_collide(model: OceanTransformer) -> None:
    """With a final norm that is not 1 and 0, its constants and the roundings of its output are all there."""
    proto = lean_graph(model, "int8", portable=True)
    names = [w.name for w in proto.graph.initializer] + [o for n in proto.graph.node for o in n.output]
    assert len(set(names)) == len(names)


def exported(folder: Path, target: Path, *options: str) -> OceanModel:
    assert cli.main([str(folder), "-o", str(target), *options]) == 0
    return OceanModel.load(target)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_the_contract_says_what_the_precision_costs(
    checkpoint_folder: Path, tmp_path: Path, precision: str
) -> None:
    model = exported(
        checkpoint_folder, tmp_path / "m.onnx", "--precision", precision, "--max-loss-increase", "9"
    )
    contract = model.contract
    assert contract.precision == precision
    cost = contract.parity["heldout"]
    assert cost["steps"] == 500 and cost["unit"] == "nats"
    assert cost["increase"] == pytest.approx(cost["exported"] - cost["float32"])
    assert 0 < cost["drift"]["final"] <= cost["drift"]["largest"]
    assert contract.parity["float32_graph"]["single_step"]["state"]["share"] < 1
    plain = exported(checkpoint_folder, tmp_path / "plain.onnx")
    assert contract.state_id == plain.contract.state_id


def test_a_loss_that_grows_too_much_leaves_no_file(
    checkpoint_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(checkpoint_folder), "-o", str(tmp_path / "m.onnx"), "--precision", "int4"]
    assert cli.main([*arguments, "--max-loss-increase", "0"]) in (0, 1)
    told = capsys.readouterr()
    assert ("no file was written" in told.err) == (not (tmp_path / "m.onnx").exists())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--precision int4 --portable", "no 4-bit product"),
        ("--precision int8 --portable --prefill", "rounds over all that one call holds"),
    ],
)
def test_what_has_no_portable_form_is_said(
    checkpoint_folder: Path, tmp_path: Path, options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([str(checkpoint_folder), "-o", str(tmp_path / "m.onnx"), *options.split()]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def cost_of(float32: float, found: float) -> Cost:
    return Cost(10, "nats", float32, found, Drift(0.1, 1, 0.1, 0.1, 0.1, False))


@pytest.mark.parametrize(
    ("float32", "found", "limit", "within"),
    [
        (1.0, 1.02, "0.0201", True),
        (1.0, 1.03, "0.02", False),
        (1.0, 0.5, "0", True),
        (2.0, 2.039, "2%", True),
        (2.0, 2.041, "2%", False),
        (1.0, float("nan"), "9", False),
        (1.0, float("inf"), "9", False),
    ],
)
def test_the_limit_is_a_number_or_a_percentage(
    float32: float, found: float, limit: str, within: bool
) -> None:
    assert cost_of(float32, found).within(limit) == within


def test_the_float32_file_costs_nothing(
    checkpoint_folder: Path, model: OceanTransformer, tmp_path: Path
) -> None:
    saved = checkpoint.load(checkpoint_folder)
    cost = measure(exported(checkpoint_folder, tmp_path / "m.onnx"), model, heldout_of(saved))
    assert abs(cost.increase) < 1e-5 and cost.drift.largest < 1e-4 and not cost.drift.grows
    with torch.no_grad():
        inputs, targets = heldout_of(saved)[:2]
        where = torch.arange(500) % len(inputs)
        outputs, _ = model(inputs[where][None])
    expected = torch.nn.functional.cross_entropy(outputs[0], targets[where])
    assert cost.float32 == pytest.approx(float(expected), abs=1e-4)


def test_no_held_out_data_is_said(checkpoint_folder: Path) -> None:
    saved = dataclasses.replace(checkpoint.load(checkpoint_folder), heldout=torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="no held-out data"):
        heldout_of(saved)


@pytest.mark.parametrize("target", ["next", "columns", "classes"])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_models_of_sensors_have_fewer_bits_too(tmp_path: Path, target: str, precision: str) -> None:
    tiny_sensors(tmp_path / "c", target)  # type: ignore[arg-type]
    options = ["--precision", precision, "--max-loss-increase", "50%", "--prefill"]
    model = exported(tmp_path / "c", tmp_path / "m.onnx", *options)
    cost = model.contract.parity["heldout"]
    assert cost["unit"] == ("nats" if target == "classes" else "RMSE")
    assert model.prefill is not None
    saved = checkpoint.load(tmp_path / "c")
    x = saved.heldout.numpy()[:40]
    np.testing.assert_allclose(
        model.stream().run(x),
        np.stack([stream.step(row) for stream in [model.stream()] for row in x]),
        atol=1e-4,
    )
