"""Many steps in one call end where single steps end, and are used only where they belong."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_tiny_sensors import INPUTS, NORTH, tiny_sensors
from ocean_export import export_checkpoint, heldout
from ocean_export.lean import lean_graph
from ocean_export.prefill import prefill_graph
from ocean_runtime import InputError, OceanModel
from ocean_runtime import cli as ocean_run
from ocean_runtime.prefill import STEPS, path_beside
from ocean_runtime.rows import step_rows
from ocean_runtime.tables import Row
from ocean_train.model import OceanConfig, OceanTransformer


@pytest.fixture(scope="module", params=["fp32", "int8"])
def exported(
    request: pytest.FixtureRequest, checkpoint_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "model.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heldout, "STEPS", 300)
        export_checkpoint(checkpoint_folder, path, precision=request.param, max_loss_increase=9, prefill=True)
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.onnx", "model.prefill.onnx"]
    return path


@pytest.fixture(scope="module")
def models(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[OceanModel, OceanModel]:
    """The model with its prefill graph, and alone."""
    alone = tmp_path_factory.mktemp("alone") / "model.onnx"
    shutil.copy(exported, alone)
    pair = OceanModel.load(exported), OceanModel.load(alone)
    assert pair[0].prefill is not None and pair[1].prefill is None
    return pair


@given(st.integers(0, 2 * STEPS + 5), st.sampled_from([None, 1, 3]), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=15)
def test_a_run_is_its_steps(
    models: tuple[OceanModel, OceanModel], count: int, batch: int | None, seed: int
) -> None:
    shape = (count,) if batch is None else (count, batch)
    tokens = np.random.default_rng(seed).integers(30, size=shape)
    streams = [model.stream(batch) for model in models]
    one, other = (stream.run(tokens) for stream in streams)
    np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(streams[0].ocean, streams[1].ocean, atol=1e-5)
    assert streams[0].steps == streams[1].steps == count
    if count:
        np.testing.assert_allclose(streams[0].prediction, one[-1])


def test_generators_are_stepped_one_by_one(models: tuple[OceanModel, OceanModel]) -> None:
    stream, seen = models[0].stream(), []

    def tokens() -> object:
        for token in range(20):
            seen.append(stream.steps)
            yield token

    stream.run(tokens())  # type: ignore[arg-type]
    assert seen == list(range(20))


def test_a_fault_in_between_is_the_guards(models: tuple[OceanModel, OceanModel]) -> None:
    tokens = [1] * 50 + [999] + [2] * 9
    for model in models:
        stream = model.stream()
        with pytest.raises(InputError):
            stream.run(tokens)
        assert stream.steps == 50
        held = model.stream(guard="hold")
        output = held.run(tokens)
        assert held.steps == 59 and held.counters.held == 1
        assert np.isnan(output[50]).all() and np.isfinite(np.delete(output, 50, 0)).all()


def test_values_out_of_range_are_counted_once(tmp_path: Path) -> None:
    """Also where steps that were to be taken together are taken singly, for one of them at fault."""
    tiny_sensors(tmp_path / "c")
    path = tmp_path / "model.onnx"
    export_checkpoint(tmp_path / "c", path, prefill=True)
    values = np.array([[0.0, 0.0, NORTH]] * 9)
    values[[1, 2], 0] = 1e3
    values[7, 1] = np.nan
    counted = []
    for end in (7, 8):
        stream = OceanModel.load(path).stream(guard="hold")
        stream.run(values[:end])
        counted.append(stream.counters.out_of_range)
    assert counted == [2, 2]


def test_a_prefill_graph_with_a_bit_that_fell_is_left_alone(exported: Path, tmp_path: Path) -> None:
    """Most of the bits are weights: the graph would run, and give other numbers."""
    path = Path(shutil.copy(exported, tmp_path / "model.onnx"))
    content = path_beside(exported).read_bytes()
    random = np.random.default_rng(0)
    for place in random.integers(len(content), size=40):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(random.integers(8))
        path_beside(path).write_bytes(damaged)
        assert OceanModel.load(path).prefill is None


def test_a_prefill_graph_of_another_model_is_left_alone(
    exported: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.onnx"
    shutil.copy(exported, path)
    for content in (exported.read_bytes(), b"", path_beside(exported).read_bytes()[:-40]):
        path_beside(path).write_bytes(content)
        model = OceanModel.load(path)
        assert model.prefill is None
        assert "is not used, and steps are taken one by one" in caplog.text
        assert len(model.stream().run([1] * 10)) == 10
    shutil.copy(path_beside(exported), path_beside(path))
    assert OceanModel.load(path).prefill is not None
    assert OceanModel.load(path, untrusted=True).prefill is None


@pytest.mark.parametrize(
    "config",
    [
        OceanConfig(900, 900, 16, 2, 2),
        OceanConfig(5, 3, 16, 1, 2, kind="features", head="regression"),
        OceanConfig(40, 40, 192, 2, 4),
    ],
)
def test_it_ends_where_steps_end_at_any_kind(config: OceanConfig) -> None:
    import onnxruntime

    model = OceanTransformer(config)
    one, many = (
        onnxruntime.InferenceSession(p.SerializeToString(), providers=["CPUExecutionProvider"])
        for p in (lean_graph(model), prefill_graph(model))
    )
    random = np.random.default_rng(0)
    x = (
        random.integers(config.inputs, size=(40, 3))
        if config.kind == "tokens"
        else random.standard_normal((40, 3, config.inputs)).astype(np.float32)
    )
    name = many.get_inputs()[0].name
    ocean = start = random.standard_normal((3, config.width)).astype(np.float32)
    outputs = []
    for row in x:
        output, ocean = one.run(None, {name: row, "ocean": ocean})
        outputs.append(output)
    found = many.run(None, {name: x, "ocean": start})
    np.testing.assert_allclose(found[0], np.stack(outputs), atol=1e-5)
    np.testing.assert_allclose(found[1], ocean, atol=1e-5)


def test_only_the_ocean_is_in_the_loop() -> None:
    """The token's table and the head are outside: the loop has no weight of either."""
    proto = prefill_graph(OceanTransformer(OceanConfig(65, 65, 64, 2, 4)))
    assert [node.op_type for node in proto.graph.node if node.op_type != "Gather"] == [
        "Scan",
        "LayerNormalization",
        "MatMul",
    ]
    (scan,) = (node for node in proto.graph.node if node.op_type == "Scan")
    body = next(a.g for a in scan.attribute if a.name == "body")
    assert not any(w.name.startswith(("token", "head.", "layer0.query")) for w in body.initializer)


@pytest.mark.parametrize("target", ["next", "classes"])
def test_rows_that_are_all_there_are_stepped_together(target: str, tmp_path: Path) -> None:
    """Row by row and many at once give the same, through gaps, episodes and a row at fault."""
    tiny_sensors(tmp_path / "c", target)  # type: ignore[arg-type]
    path = tmp_path / "model.onnx"
    export_checkpoint(tmp_path / "c", path, prefill=True)
    values = np.array([0.0, 0.0, NORTH]) + np.random.default_rng(3).standard_normal((700, 3)) * [1, 1, 0.01]
    values[[0, 5, 300, 301], [2, 0, 1, 1]] = np.nan
    rows = [
        Row(i + 1, None, "a" if i < 290 else "b" if i < 293 else "c", list(x)) for i, x in enumerate(values)
    ]
    model, found = OceanModel.load(path), []
    for ahead in (1, STEPS):
        stream = model.stream()
        results = list(step_rows(stream, rows, ahead=ahead))
        assert [row for row, _ in results] == rows
        found.append([None if y is None else np.array(y) for _, y in results] + [stream.ocean])
        assert stream.steps == 407, "those of the last episode"
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, atol=1e-5)

    seen = []
    with pytest.raises(InputError, match="row 6 has no finite"):
        for row, _ in step_rows(model.stream(), rows[1:], "refuse", STEPS):
            seen.append(row.number)
    assert seen == [2, 3, 4, 5], "what comes before the fault is stepped before it is told"

    table = tmp_path / "rows.csv"
    names = ",".join(e.name for e in INPUTS)
    table.write_text(names + "\n" + "".join(",".join(map(repr, map(float, x))) + "\n" for x in values))
    (tmp_path / "alone").mkdir()
    alone = shutil.copy(path, tmp_path / "alone" / "model.onnx")
    printed = []
    for file in (path, alone):
        with pytest.MonkeyPatch.context() as patch:
            out = io.StringIO()
            out.reconfigure = lambda **_: None  # type: ignore[attr-defined]
            patch.setattr("sys.stdout", out)
            assert ocean_run.main([str(file), str(table)]) == 0
        printed.append([line.split(",") for line in out.getvalue().splitlines()])
    assert printed[0][0] == printed[1][0] and len(printed[0]) == 701
    for one, other in zip(printed[0][1:], printed[1][1:], strict=True):
        assert [c == "" for c in one] == [c == "" for c in other]
        numbers = [[float(c) for c in cells if c and c[0] in "-0123456789"] for cells in (one, other)]
        np.testing.assert_allclose(*numbers, atol=1e-5)
