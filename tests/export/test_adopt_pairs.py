"""ocean-export adopt: no state is taken for an input, and rows that depend on each other are no batch."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from foreign_graphs import foreign_graph, node
from ocean_export import cli
from ocean_export.adopt import AdoptError, Said, Value, adopt, suggest, verify, warnings_of
from ocean_runtime import OceanModel
from onnx import TensorProto, numpy_helper

CELL = [
    node("Add", "h x", "hn"),
    node("Sub", "c x", "cell_out"),
    node("Add", "hn cell_out", "y"),
]
VECTOR = [1, 4]


def loaded(content: bytes, folder: Path) -> OceanModel:
    (folder / "adopted.onnx").write_bytes(content)
    return OceanModel.load(folder / "adopted.onnx")


def half_named() -> bytes:
    """h and hn are a pair by their names; c and cell_out by nothing but their type and shape."""
    return foreign_graph(
        CELL,
        dict.fromkeys(("x", "h", "c"), VECTOR),
        {"y": [1, 4], "hn": VECTOR, "cell_out": VECTOR},
    )


def test_a_left_over_input_that_fits_a_left_over_output_is_asked_about() -> None:
    with pytest.raises(AdoptError, match=r"'c' by 'y' or 'cell_out'.*--state IN:OUT.*--input IN"):
        adopt(half_named(), "cell", Said())
    with pytest.raises(AdoptError, match=r"'c' by 'y' or 'cell_out'"):  # also beside a pair that is said
        adopt(half_named(), "cell", Said(states={"h": "hn"}))


def test_once_it_is_said_the_file_is_adopted_as_said(tmp_path: Path) -> None:
    both = loaded(adopt(half_named(), "cell", Said(states={"c": "cell_out"})), tmp_path)
    assert {s.input: s.output for s in both.contract.states} == {"h": "hn", "c": "cell_out"}
    one = loaded(adopt(half_named(), "cell", Said(inputs=["c", "x"])), tmp_path)
    assert [t.name for t in one.contract.inputs] == ["x", "c"]


def test_the_only_input_left_is_the_input(tmp_path: Path) -> None:
    """A step is given something: x and y are of one shape, and there is nothing to ask."""
    content = foreign_graph(
        [node("Add", "h x", "hn"), node("Neg", "hn", "y")],
        {"x": VECTOR, "h": VECTOR},
        {"y": VECTOR, "hn": VECTOR},
    )
    model = loaded(adopt(content, "m", Said()), tmp_path)
    assert [t.name for t in model.contract.inputs] == ["x"]


def test_a_graph_whose_inputs_would_all_be_states_is_asked_about() -> None:
    content = foreign_graph(
        [node("Add", "h obs", "hn"), node("Neg", "hn", "next_obs")],
        {"obs": VECTOR, "h": VECTOR},
        {"next_obs": VECTOR, "hn": VECTOR},
    )
    with pytest.raises(AdoptError, match=r"every input would be a state .*say --input IN"):
        adopt(content, "m", Said())
    adopt(content, "m", Said(inputs=["obs"]))


@pytest.mark.parametrize("rank", [1, 2])
def test_an_output_without_a_shape_is_run_not_taken_for_a_scalar(tmp_path: Path, rank: int) -> None:
    shape = [1, 4][-rank:]
    content = foreign_graph(
        [
            node("Reshape", "s to", "s_"),
            node("Add", "s_ x", "s_next"),
            node("Neg", "s_next", "y"),
            node("Abs", "z", "z_"),
        ],
        {"x": shape, "s": shape, "z": shape},
        {"y": None, "s_next": None, "z_": None},
        [numpy_helper.from_array(np.array(shape), "to")],
    )
    with pytest.raises(AdoptError, match="'z' by 'y' or 'z_'"):
        adopt(content, "m", Said())
    model = loaded(adopt(content, "m", Said(inputs=["z", "x"])), tmp_path)
    assert {t.name: t.shape for t in model.contract.outputs} == {"y": tuple(shape), "z_": tuple(shape)}
    verify(model, content)


def test_an_input_without_a_shape_is_refused() -> None:
    content = foreign_graph(
        [node("Add", "s x", "s_next"), node("Neg", "s", "y")],
        {"x": None, "s": [2]},
        {"y": [2], "s_next": [2]},
    )
    with pytest.raises(AdoptError, match="gives the input 'x' no shape"):
        adopt(content, "m", Said())


def test_a_scalar_with_the_name_of_a_state_is_one() -> None:
    sides = [[Value("t", "float32", ())], [Value("t_next", "float32", ())]]
    assert suggest(*sides) == {"t": "t_next"}


def aliased() -> bytes:
    """What an exporter makes of a cell whose two states are one: `c` is there, and nothing reads it."""
    return foreign_graph(
        [
            node("Add", "h x", "h_out"),
            node("Identity", "h_out", "c_out"),
            node("Neg", "c", "nobody"),
            node("Neg", "h_out", "y"),
        ],
        dict.fromkeys(("x", "h", "c"), VECTOR),
        dict.fromkeys(("y", "h_out", "c_out"), VECTOR),
    )


def test_an_input_on_which_no_output_depends_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.onnx").write_bytes(aliased())
    assert cli.main(["adopt", str(tmp_path / "f.onnx"), "-o", str(tmp_path / "m.onnx")]) == 0
    said = capsys.readouterr().err
    assert "warning: no output depends on the input 'c'" in said
    assert "'h'" not in said
    assert "'x'" not in said


def test_an_input_that_only_a_branch_reads_is_used() -> None:
    branches = {
        name: onnx.helper.make_graph(
            [node(kind, "x", name)], name, [], [onnx.helper.make_tensor_value_info(name, 1, VECTOR)]
        )
        for name, kind in (("yes", "Neg"), ("no", "Abs"))
    }
    content = foreign_graph(
        [
            node("If", "flag", "y", then_branch=branches["yes"], else_branch=branches["no"]),
            node("Add", "s y", "s_next"),
        ],
        {"x": VECTOR, "s": VECTOR, "flag": []},
        {"y": VECTOR, "s_next": VECTOR},
        types={"flag": TensorProto.BOOL},
    )
    assert not warnings_of(content)


ROWS = ["B", 3]
DEPENDENT = {
    "a mean over the rows": [
        node("ReduceMean", "x", "m", axes=[0], keepdims=1),
        node("Add", "s m", "s_next"),
    ],
    "rows in the other order": [node("Slice", "x from to axis step", "r"), node("Add", "s r", "s_next")],
    "sums along the rows": [node("CumSum", "x zero", "r"), node("Add", "s r", "s_next")],
}
CONSTANTS = {"from": [-1], "to": [-(1 << 40)], "axis": [0], "step": [-1]}


@pytest.mark.parametrize("what", DEPENDENT)
def test_rows_that_depend_on_each_other_are_refused_as_a_batch(what: str, tmp_path: Path) -> None:
    weights = [numpy_helper.from_array(np.array(v), k) for k, v in CONSTANTS.items()]
    weights.append(numpy_helper.from_array(np.array(0), "zero"))
    content = foreign_graph(
        [*DEPENDENT[what], node("Neg", "s_next", "y")],
        {"x": ROWS, "s": ROWS},
        {"y": ROWS, "s_next": ROWS},
        weights,
        opset=17,
    )
    with pytest.raises(AdoptError, match=r"the rows of a batch depend on each other.*--pin NAME=1"):
        verify(loaded(adopt(content, "m", Said()), tmp_path), content)
    single = adopt(content, "m", Said(pins={"B": 1}))
    verify(loaded(single, tmp_path), content)


def test_what_a_row_gives_must_not_hang_on_its_place(tmp_path: Path) -> None:
    """Row i gets i added: no row reads another, and still each is another stream in a batch than alone."""
    content = foreign_graph(
        [
            node("Mul", "x nothing", "zeros"),
            node("Add", "zeros one", "ones"),
            node("CumSum", "ones axis", "places"),
            node("Sum", "s x places", "s_next"),
            node("Neg", "s_next", "y"),
        ],
        {"x": ROWS, "s": ROWS},
        {"y": ROWS, "s_next": ROWS},
        [
            numpy_helper.from_array(np.float32(0), "nothing"),
            numpy_helper.from_array(np.float32(1), "one"),
            numpy_helper.from_array(np.array(0), "axis"),
        ],
    )
    with pytest.raises(
        AdoptError, match="row 2 in a batch of two differs from what the same step gives alone"
    ):
        verify(loaded(adopt(content, "m", Said()), tmp_path), content)


def test_rows_that_differ_by_rounding_are_a_batch(tmp_path: Path) -> None:
    """A product of 300 terms: its kernel sums them in another order for two rows than for one."""
    weight = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32) / 10
    rows = ["B", 300]
    content = foreign_graph(
        [node("Add", "s x", "a"), node("MatMul", "a w", "b"), node("Tanh", "b", "s_next"), node("Neg", "s_next", "y")],
        {"x": rows, "s": rows},
        {"y": rows, "s_next": rows},
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    verify(loaded(adopt(content, "m", Said()), tmp_path), content)


def test_an_output_of_two_batch_axes_is_refused() -> None:
    content = foreign_graph(
        [node("Add", "s x", "s_next"), node("Reshape", "s_next flat", "y")],
        {"x": ROWS, "s": ROWS},
        {"y": ["n"], "s_next": ROWS},
        [numpy_helper.from_array(np.array([-1]), "flat")],
    )
    with pytest.raises(AdoptError, match=r"'y' has the shapes \[3\], \[6\], \[9\] for 1, 2 and 3 streams"):
        adopt(content, "m", Said())


def counter(name: str = "x") -> bytes:
    return foreign_graph(
        [node("Add", f"{name} s", "s_next"), node("Neg", "s_next", "y")],
        {name: [1, 3], "s": [1, 3]},
        {"y": [1, 3], "s_next": [1, 3]},
    )


@pytest.mark.parametrize("link", ["no", "symbolic", "hard"])
def test_the_source_is_never_overwritten(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(counter())
    source = Path("model.onnx" if link == "no" else "other.onnx")
    if link == "symbolic":
        source.symlink_to("model.onnx")
    elif link == "hard":
        source.hardlink_to("model.onnx")
    assert cli.main(["adopt", str(source)]) == 1
    assert (
        "model.onnx is the foreign file itself, which is kept; name another file with -o"
        in capsys.readouterr().err
    )
    assert Path("model.onnx").read_bytes() == counter()
    assert cli.main(["adopt", "model.onnx", "-o", "adopted.onnx"]) == 0


def test_in_a_c_locale_a_name_of_any_script_is_adopted(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "f.onnx").write_bytes(counter("gelenk_θ"))
    done = subprocess.run(
        [sys.executable, "-m", "ocean_export.cli", "adopt", tmp_path / "f.onnx", "-o", tmp_path / "m.onnx"],
        env={**environment, "LC_ALL": "C", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert rb"gelenk_\u03b8  float32 [1, 3]" in done.stdout
    assert OceanModel.load(tmp_path / "m.onnx").contract.inputs[0].name == "gelenk_θ"
