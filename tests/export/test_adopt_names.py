"""ocean-export adopt: names of any kind, many caches, the batch's dimensions, first states, and a batch of 1."""

import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from foreign_graphs import foreign_graph, node
from numpy.typing import NDArray
from ocean_export import cli
from ocean_export.adopt import AdoptError, Said, Value, adopt, suggest
from ocean_export.adopt_initial import MAX_NUMBERS, read_initial
from ocean_export.adopt_pairs import read_pairs
from ocean_runtime import InputError, OceanModel
from ocean_runtime.contract import ContractError, State
from onnx import numpy_helper


def command(content: bytes, folder: Path, *options: str) -> int:
    (folder / "f.onnx").write_bytes(content)
    return cli.main(["adopt", str(folder / "f.onnx"), "-o", str(folder / "m.onnx"), *options])


def caches(before: str, after: str, count: int = 34) -> bytes:
    """Each cache takes what the one before it held, as of delays; `before` and `after` name them by number."""
    shape = [1, 3]
    nodes = [node("Identity", "x", after.format(0))]
    nodes += [node("Identity", before.format(i), after.format(i + 1)) for i in range(count - 1)]
    nodes += [node("Neg", before.format(count - 1), "y")]
    return foreign_graph(
        nodes,
        {"x": shape, **{before.format(i): shape for i in range(count)}},
        {"y": shape, **{after.format(i): shape for i in range(count)}},
    )


NAMED = [
    ("cached_len_{}", "new_cached_len_{}"),
    ("past_key_values.{}.key", "present.{}.key"),
    ("cache_{}_in", "cache_{}_out"),
    ("in_{}", "out_{}"),
]


@pytest.mark.parametrize(("before", "after"), NAMED)
def test_numbered_caches_are_paired_number_by_number(before: str, after: str, tmp_path: Path) -> None:
    assert command(caches(before, after), tmp_path) == 0
    model = OceanModel.load(tmp_path / "m.onnx")
    assert {s.input: s.output for s in model.contract.states} == {
        before.format(i): after.format(i) for i in range(34)
    }
    stream, given = model.stream(), np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    found = np.stack([stream.step(x) for x in given])[:, 0]
    assert np.array_equal(found[34:], -given[:6])
    assert not found[:34].any()


def test_a_star_stands_for_what_many_pairs_share(tmp_path: Path) -> None:
    content = caches("serving_{}:0", "StatefulPartitionedCall:{}")
    assert command(content, tmp_path, "--state", "serving_*:0:StatefulPartitionedCall:*") == 0
    model = OceanModel.load(tmp_path / "m.onnx")
    assert {s.input: s.output for s in model.contract.states} == {
        f"serving_{i}:0": f"StatefulPartitionedCall:{i}" for i in range(34)
    }
    stream = model.stream()
    stream.step(np.ones(3))
    stream.save(tmp_path / "state")
    other = model.stream()
    other.restore(tmp_path / "state")
    assert np.array_equal(other.ocean, stream.ocean)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h:0:Call:1", {"h:0": "Call:1"}),
        ("c:hn", {"c": "hn"}),
        ("c*:hn*", {"c": "hn", "c_1": "hn_1"}),
    ],
)
def test_names_with_colons_and_stars_are_read(text: str, found: dict[str, str]) -> None:
    assert read_pairs([text], ["h:0", "c", "c_1"], ["Call:1", "hn", "hn_1"]) == found


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["h"], "--state h is no IN:OUT of this graph; its inputs are a, a:b, c"),
        (["a:nowhere"], "names 'nowhere', which is no output; there is: b:c, c, d"),
        (["e:d"], "names 'e', which is no input"),
        (["e*:d*"], "is no IN:OUT of this graph"),
        (["a:b:c"], r"--state a:b:c can be read in 2 ways"),
        (["a:c", "a:d"], "gives the input 'a' two outputs, 'c' and 'd'"),
    ],
)
def test_pairs_that_are_none_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(AdoptError, match=message):
        read_pairs(texts, ["a", "a:b", "c"], ["b:c", "c", "d"])


def test_a_loose_reading_settles_nothing_that_a_close_one_leaves_open() -> None:
    sides = [
        [Value(n, "float32", (1, 8)) for n in names] for names in (["h", "past_h", "s"], ["h_out", "sN"])
    ]
    with pytest.raises(AdoptError, match="candidates: h:h_out, past_h:h_out"):
        suggest(*sides)
    assert suggest(*sides, {"h": "h_out"}) == {"h": "h_out", "s": "sN"}


def passing_on(shape: list[int | str]) -> bytes:
    """y = x - before, before' = x: the graph gives its input `x` as an output, which is the next `before`."""
    return foreign_graph(
        [node("Sub", "x before", "y")], {"x": shape, "before": shape}, {"y": shape, "x": shape}
    )


@pytest.mark.parametrize("batch", [None, 3])
def test_an_output_that_is_also_an_input(batch: int | None, tmp_path: Path) -> None:
    assert command(passing_on(["B", 2]), tmp_path, "--state", "before:x") == 0
    stream = OceanModel.load(tmp_path / "m.onnx").stream(batch)
    random, before = np.random.default_rng(0), np.zeros((batch or 1, 2), np.float32)
    for _ in range(5):
        x = random.standard_normal((batch or 1, 2)).astype(np.float32)
        assert np.array_equal(stream.step(x if batch else x[0]).reshape(x.shape), x - before)
        assert np.array_equal(stream.ocean.reshape(x.shape), x)
        before = x


def test_an_input_given_back_as_an_output(tmp_path: Path) -> None:
    content = foreign_graph(
        [node("Add", "s x", "s_next")], {"x": [2], "s": [2]}, {"x": [2], "s_next": [2], "s": [2]}
    )
    assert command(content, tmp_path) == 0
    stream = OceanModel.load(tmp_path / "m.onnx").stream()
    for i in range(3):
        found = stream.step([1.0, 2.0])
        assert found["x"].tolist() == [1.0, 2.0]
        assert found["s"].tolist() == [1.0 * i, 2.0 * i]


def two_names() -> bytes:
    """The batch is called otherwise at each input, and has no name at the state."""
    return foreign_graph(
        [node("Gather", "s first", "now", axis=0), node("Add", "now x", "y"), node("Unsqueeze", "y axes", "s_next")],
        {"x": ["rows", 3], "s": [1, None, 3]},
        {"y": None, "s_next": None},
        [numpy_helper.from_array(np.array(0), "first"), numpy_helper.from_array(np.array([0]), "axes")],
    )  # fmt: skip


def test_the_batch_is_named_where_its_dimensions_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(two_names(), tmp_path) == 1
    assert "here rows, s.1 (inputs: x [rows, 3]; s [1, s.1, 3])" in capsys.readouterr().err
    assert command(two_names(), tmp_path, "--batch", "rows", "--batch", "s.1") == 0
    model = OceanModel.load(tmp_path / "m.onnx")
    assert model.contract.states[0].shape == (1, "B", 3)
    stream = model.stream(2)
    stream.step(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    assert stream.ocean.tolist() == [[[1, 2, 3], [4, 5, 6]]]
    assert command(two_names(), tmp_path, "--batch", "x.0", "--batch", "s.1") == 0
    assert command(two_names(), tmp_path, "--batch", "rows", "--pin", "s.1=1") == 1
    assert command(two_names(), tmp_path, "--batch", "x.1", "--batch", "s.1", "--pin", "rows=1") == 1
    assert "dimension 1 of 'x' is the batch, and its size is fixed to 3" in capsys.readouterr().err


def decaying(shape: list[int | str | None]) -> bytes:
    """s' = s / 2 + x, y = s'."""
    return foreign_graph(
        [node("Mul", "s half", "h"), node("Add", "h x", "s_next"), node("Identity", "s_next", "y")],
        {"x": shape, "s": shape},
        {"y": shape, "s_next": shape},
        [numpy_helper.from_array(np.float32(0.5), "half")],
    )


FIRST = np.array([[0.1, -2.5, 3e-8]], np.float32)


@pytest.mark.parametrize("form", ["npy", "npz", "columns"])
@pytest.mark.parametrize("batch", [None, 2])
def test_a_first_state_from_a_file(form: str, batch: int | None, tmp_path: Path) -> None:
    array = np.asfortranarray(FIRST.astype(np.float64)) if form == "columns" else FIRST[0]
    path = tmp_path / f"first.{'npz' if form == 'npz' else 'npy'}"
    np.savez(path, s=array) if form == "npz" else np.save(path, array)
    shape = [1, 3] if batch is None else ["B", 3]
    option = str(path) if form == "npz" else f"s={path}"
    assert command(decaying(shape), tmp_path, "--initial", option) == 0
    stream = OceanModel.load(tmp_path / "m.onnx").stream(batch)
    state = np.repeat(FIRST, batch or 1, 0)
    assert np.array_equal(stream.ocean, state)
    for _ in range(3):
        found = stream.step(np.ones((batch or 1, 3), np.float32))
        state = state / np.float32(2) + np.float32(1)
        assert np.array_equal(found, state)
    stream.reset()
    assert np.array_equal(stream.ocean, np.repeat(FIRST, batch or 1, 0))


def test_what_is_said_of_a_first_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "s.npy", FIRST)
    assert command(decaying([1, 3]), tmp_path, "--initial", f"s={tmp_path / 's.npy'}") == 0
    assert "s -> s_next  float32 [1, 3], initially 3 numbers from -2.5 to 0.1" in capsys.readouterr().out


def claimed(shape: tuple[int, ...], numbers: int = 0) -> bytes:
    """An .npy file whose header claims a shape."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue() + bytes(4 * numbers)


def npy(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=array.dtype == object)
    return stream.getvalue()


def npz(name: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.npy", b"nothing", "s.npy is no .npy file"),
        ("s.npy", claimed((1 << 40,)), "has more than 131,072 numbers"),
        ("s.npy", claimed((1 << 62, 4)), "has more than 131,072 numbers"),
        ("s.npy", claimed((3,), 2), "has not the 3 numbers that it claims"),
        ("s.npy", npy(np.array([None] * 3)), "holds object, and a state is of numbers"),
        ("s.npy", npy(np.array(["a"])), "holds <U1"),
        ("s.npy", npy(np.zeros((2, 3))), r"an array of shape \[2, 3\], and its state has \[1, 3\] for one stream"),
        ("s.npy", npy(np.zeros((3, 1))[:0]), r"an array of shape \[0, 1\]"),
        ("s.npy", npy(np.array([1.0, np.nan, 2])), "gives 's' nan, and it is float32: give a finite number"),
        ("s.npy", npy(np.array([1.0, 1e39, 2])), "gives 's' 1e"),
        ("s.npz", b"nothing", "s.npz is no .npz file"),
        ("s.npz", npz("s.npy", bytes(100_000_000)), r"s.npy in .*s.npz has more than"),
        ("s.npz", npz("t.npy", npy(FIRST)), "names 't', which is no input; there is: s, x"),
        ("s.npz", npz("x.npy", npy(FIRST)), "names 'x', which is no state; the states are s"),
        ("s.txt", b"1 2 3", "write it as IN=NUMBER, IN=FILE.npy or FILE.npz"),
    ],
)  # fmt: skip
def test_a_first_state_that_does_not_fit_is_refused(
    name: str, content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    option = str(tmp_path / name)
    assert (
        command(decaying([1, 3]), tmp_path, "--initial", option if name.endswith("npz") else f"s={option}")
        == 1
    )
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "m.onnx").exists()


def test_a_first_state_is_given_once() -> None:
    with pytest.raises(AdoptError, match="gives 's' twice"):
        read_initial(["s=1", "s=2"])
    with pytest.raises(AdoptError, match=r"there is no file nowhere\.npy"):
        read_initial(["s=nowhere.npy"])
    assert MAX_NUMBERS * 25 < 8 << 20  # as text in the contract, which has 8 MiB


def test_a_contract_whose_first_state_does_not_fit_is_refused(tmp_path: Path) -> None:
    model = adopt(decaying([1, 3]), "m", Said(initial={"s": FIRST}))
    (tmp_path / "m.onnx").write_bytes(model)
    contract = OceanModel.load(tmp_path / "m.onnx").contract
    text = contract.to_json()
    assert type(contract).from_json(text) == contract
    first = ", ".join(map(repr, contract.states[0].initial))  # type: ignore[arg-type]
    for wrong, message in (
        ("[0.5]", r"1 initial numbers for the shape \[1, 3\]"),
        ('[0.5, 1, "a"]', "has items that are no numbers"),
        ("[0.5, 1, 1e39]", "a value that float32 can't hold"),
        ("[[1], [2], [3]]", "has items that are no numbers"),
    ):
        with pytest.raises(ContractError, match=message):
            type(contract).from_json(text.replace(f"[{first}]", wrong))


def test_the_first_state_of_many_streams_is_that_of_one() -> None:
    state = State("s", "t", "float32", (2, "B", 3), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    assert state.first(1).shape == (2, 1, 3)
    assert state.first(4).shape == (2, 4, 3)
    for row in range(4):
        assert state.first(4)[:, row].ravel().tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("shape", [[1, 3], [1, 1, 3]])
def test_a_leading_axis_of_1_need_not_be_given(shape: list[int], tmp_path: Path) -> None:
    assert command(decaying(list(shape)), tmp_path) == 0
    streams = [OceanModel.load(tmp_path / "m.onnx").stream() for _ in range(3)]
    session = onnxruntime.InferenceSession(str(tmp_path / "f.onnx"), providers=["CPUExecutionProvider"])
    state = np.zeros(shape, np.float32)
    random = np.random.default_rng(0)
    for _ in range(5):
        x = random.standard_normal(3).astype(np.float32)
        wanted, state = session.run(["y", "s_next"], {"x": x.reshape(shape), "s": state})
        for stream, given in zip(streams, (x, x.reshape(shape), x.tolist()), strict=True):
            assert np.array_equal(stream.step(given), wanted)
    many = random.standard_normal((4, 3)).astype(np.float32)
    assert streams[0].run(many).shape == (4, *shape)
    for wrong in (many[:, :2], many[0, :2], many[None, None, None, :1], many[0, 0]):
        with pytest.raises(InputError, match="has shape"):
            streams[0].step(wrong)


def test_a_last_axis_of_1_is_kept(tmp_path: Path) -> None:
    assert command(decaying([1, 1]), tmp_path) == 0
    stream = OceanModel.load(tmp_path / "m.onnx").stream()
    assert stream.step([2.0]).tolist() == [[2.0]]
    with pytest.raises(InputError, match="has shape"):
        stream.step(2.0)
