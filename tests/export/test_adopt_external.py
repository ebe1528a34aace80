"""ocean-export adopt: weights in a file beside the model become part of one file, and nothing else is read."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from foreign_graphs import foreign_graph, node
from ocean_export import cli
from ocean_export.adopt import AdoptError
from ocean_export.adopt_external import read_foreign
from ocean_runtime import OceanModel
from onnx import TensorProto, numpy_helper

OBSERVATIONS, HIDDEN, ACTIONS = 45, 16, 12


class Policy(torch.nn.Module):
    """A recurrent policy as rsl_rl exports one: normaliser, one recurrent layer, a small network."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](OBSERVATIONS, HIDDEN)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(HIDDEN, 24), torch.nn.ELU(), torch.nn.Linear(24, ACTIONS)
        )
        self.register_buffer("mean", torch.full((1, OBSERVATIONS), 0.1))

    def forward(self, obs: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = state if len(state) == 2 else state[0]
        x, after = self.rnn(((obs - self.mean) / 1.5).unsqueeze(0), given)
        return (self.mlp(x.squeeze(0)), *(after if len(state) == 2 else (after,)))


def exported(kind: str, folder: Path) -> Path:
    """The file and its .onnx.data, by torch's default call."""
    torch.manual_seed(0)
    names = ["h_in", "c_in"] if kind == "lstm" else ["h_in"]
    path = folder / "policy.onnx"
    torch.onnx.export(
        Policy(kind).eval(),
        (torch.zeros(1, OBSERVATIONS), *(torch.zeros(1, 1, HIDDEN) for _ in names)),
        str(path),
        opset_version=18,
        verbose=False,
        input_names=["obs", *names],
        output_names=["actions", *(name.replace("in", "out") for name in names)],
    )
    assert path.with_name("policy.onnx.data").exists()
    return path


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_policy_with_its_weights_beside_it_runs_as_a_plain_loop(kind: str, tmp_path: Path) -> None:
    """The loop reads both files by onnxruntime itself; the adopted file has moved to where there is no second one."""
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    source, target = exported(kind, tmp_path / "from"), tmp_path / "to" / "m.onnx"
    assert cli.main(["adopt", str(source), "-o", str(target)]) == 0
    assert [p.name for p in target.parent.iterdir()] == ["m.onnx"]
    stream = OceanModel.load(target).stream()
    session = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()][1:]
    state = {name: np.zeros((1, 1, HIDDEN), np.float32) for name in names}
    random = np.random.default_rng(1)
    for _ in range(600):
        obs = random.standard_normal((1, OBSERVATIONS)).astype(np.float32)
        wanted, *after = session.run(
            ["actions", *(n.replace("in", "out") for n in names)], {"obs": obs, **state}
        )
        state = dict(zip(names, after, strict=True))
        assert np.array_equal(stream.step(obs), wanted)


WEIGHT = np.arange(6, dtype=np.float32)


def beside(folder: Path, location: str = "w.data", **given: str) -> Path:
    """y = s' = s + x + w, with w in another file: six float32 from byte 8 on."""
    weight = numpy_helper.from_array(WEIGHT, "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": "8", "length": str(WEIGHT.nbytes), **given}
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    shape = [6]
    content = foreign_graph(
        [node("Sum", "s x w", "s_next"), node("Identity", "s_next", "y")],
        {"x": shape, "s": shape},
        {"y": shape, "s_next": shape},
        [weight],
    )
    (folder / "f.onnx").write_bytes(content)
    return folder / "f.onnx"


def data(folder: Path) -> Path:
    (folder / "w.data").write_bytes(bytes(8) + WEIGHT.tobytes())
    return folder / "w.data"


def adopt(path: Path) -> int:
    return cli.main(["adopt", str(path), "-o", str(path.with_name("out.onnx"))])


@pytest.mark.parametrize("link", [False, True])
def test_a_file_in_the_folder_is_read_also_by_a_link_within_it(link: bool, tmp_path: Path) -> None:
    data(tmp_path)
    if link:
        (tmp_path / "w.data").rename(tmp_path / "blob")
        (tmp_path / "w.data").symlink_to("blob")
    assert adopt(beside(tmp_path)) == 0
    content, files = read_foreign(beside(tmp_path))
    (weight,) = onnx.load_model_from_string(content).graph.initializer
    assert np.array_equal(numpy_helper.to_array(weight), WEIGHT)
    assert [p.name for p in files] == ["w.data"]


def test_the_state_id_is_the_same_however_often_it_is_adopted(tmp_path: Path) -> None:
    data(tmp_path)
    path, ids = beside(tmp_path), set()
    for _ in range(2):
        assert adopt(path) == 0
        ids.add(OceanModel.load(tmp_path / "out.onnx").contract.state_id)
    assert len(ids) == 1


def link_out(folder: Path) -> None:
    (folder / "out").mkdir()
    data(folder / "out")
    (folder / "w.data").symlink_to("out/w.data")


def circle(folder: Path) -> None:
    (folder / "w.data").symlink_to("w.data")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "w.data")


def cut(folder: Path) -> None:
    (folder / "w.data").write_bytes(data(folder).read_bytes()[:-1])


@pytest.mark.parametrize(
    "given", ["/etc/hostname", "../w.data", "sub/w.data", "..", ".", "", "./w.data", "w\0"]
)
def test_a_place_outside_the_folder_is_refused(given: str, tmp_path: Path) -> None:
    with pytest.raises(AdoptError, match="only a file in its own folder is read"):
        read_foreign(beside(tmp_path, given))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "keeps its weights in w.data, and there is no such file beside it"),
        (link_out, "is a link to .* out of the model's folder"),
        (circle, "w.data can't be read"),
        (pipe, "no regular file"),
        (lambda folder: (folder / "w.data").mkdir(), "no regular file"),
        (cut, "w.data has 31 bytes, and the tensor 'w' is said to end at byte 32"),
    ],
)
def test_what_is_no_such_file_is_refused(
    make: Callable[[Path], None], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    assert adopt(beside(tmp_path)) == 1
    assert message.split(".*")[-1] in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": "23"}, r"gives the tensor 'w' 23 bytes of w.data for the shape \[6\], which has 24"),
        ({"length": str(1 << 62)}, "which has 24"),
        ({"length": "-24"}, "has the length '-24'"),
        ({"offset": str(1 << 62)}, "w.data has 32 bytes"),
        ({"offset": "9" * 5000}, "has the offset"),
        ({"offset": "1e3"}, "has the offset '1e3'"),
        ({"basepath": "/"}, "location, offset and length, each once"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(given: dict[str, str], message: str, tmp_path: Path) -> None:
    data(tmp_path)
    with pytest.raises(AdoptError, match=message):
        read_foreign(beside(tmp_path, **given))


def test_many_weights_from_the_same_bytes_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """A sparse file of 1 GiB that three weights share: 3 GiB in one file."""
    path = beside(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    size = 1 << 30
    weight = proto.graph.initializer[0]
    weight.dims[:] = [size // 4]
    weight.external_data[1].value, weight.external_data[2].value = "0", str(size)
    for i in range(2):
        again = proto.graph.initializer.add()
        again.CopyFrom(weight)
        again.name = f"w{i}"
    path.write_bytes(proto.SerializeToString())
    with (tmp_path / "w.data").open("wb") as file:
        file.truncate(size)
    with pytest.raises(
        AdoptError, match=r"have 3,2\d\d,\d\d\d,\d\d\d bytes, and one ONNX file holds at most"
    ):
        read_foreign(path)


def test_a_constant_node_may_keep_its_tensor_there_too(tmp_path: Path) -> None:
    data(tmp_path)
    path = beside(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    constant = onnx.helper.make_node("Constant", [], ["w"], value=proto.graph.initializer[0])
    del proto.graph.initializer[:]
    proto.graph.node.insert(0, constant)
    path.write_bytes(proto.SerializeToString())
    content, _ = read_foreign(path)
    tensor = onnx.load_model_from_string(content).graph.node[0].attribute[0].t
    assert np.array_equal(numpy_helper.to_array(tensor), WEIGHT)


def test_the_weights_are_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = data(tmp_path).read_bytes()
    assert cli.main(["adopt", str(beside(tmp_path)), "-o", str(tmp_path / "w.data")]) == 1
    assert "is the weights of f.onnx, which is kept" in capsys.readouterr().err
    assert (tmp_path / "w.data").read_bytes() == kept
