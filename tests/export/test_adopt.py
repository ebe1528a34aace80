"""Other people's recurrent models: adopted, they run as by a hand-written loop, bit for bit."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from ocean_export import cli
from ocean_export.adopt import AdoptError, Said, Value, adopt, suggest
from ocean_runtime import OceanModel
from onnx import TensorProto, helper

RATE = 16_000
FRAME, CONTEXT = 512, 64
SILERO = {
    "silero_vad.onnx": (
        "--const sr=16000 --pin input.0=1 --pin input.1=576 --pin state.1=1",
        {"state": "stateN"},
    ),
    "silero_vad_16k_op15.onnx": ("--const sr=16000 --pin sequence=576", {"state": "stateN"}),
    "silero_vad_half.onnx": ("--pin sequence=576", {"state": "stateN"}),
    "silero_vad_op18_ifless.onnx": (
        "--const sr=16000 --pin sequence=576 --pin batch=1",
        {"state": "stateN"},
    ),
    "silero_vad_openvino_16k.onnx": ("--elements output=speech", {"state": "stateN"}),
    "silero_vad_16k_sequence.onnx": ("--pin sequence_length=1", {"h": "hn", "c": "cn"}),
}


def silero(name: str) -> Path:
    found = find_spec("silero_vad")
    if found is None or found.origin is None:
        pytest.skip("needs silero-vad's files: pip install --no-deps silero-vad==6.2.3")
    return Path(found.origin).parent / "data" / name


def speech_like(seconds: float, seed: int) -> NDArray[np.float32]:
    """Syllables: a voice's harmonics under a moving formant, in bursts four a second, and pauses of noise."""
    random = np.random.default_rng(seed)
    t = np.arange(int(seconds * RATE)) / RATE
    pitch = 110 * (1 + 0.2 * np.sin(2 * np.pi * 0.7 * t + seed)) * (1 + seed)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formant = 700 + 400 * np.sin(2 * np.pi * 1.3 * t)
    voice = sum(np.exp(-(((k * pitch - formant) / 400) ** 2)) * np.sin(k * phase) for k in range(1, 20))
    bursts = np.clip(np.sin(2 * np.pi * 4 * t), 0, None) * (np.sin(2 * np.pi * 0.2 * t) > -0.3)
    return (0.3 * voice * bursts + 0.005 * random.standard_normal(len(t))).astype(np.float32)


def frames(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N, 576): each frame with the 64 samples before it, as the models want."""
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), audio])
    count = len(audio) // FRAME
    return np.stack([padded[i * FRAME : i * FRAME + CONTEXT + FRAME] for i in range(count)])


def hand_written(path: Path, states: dict[str, str], given: NDArray[np.float32]) -> NDArray[np.float32]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    (output,) = set(names) - set(states.values())
    inputs = {i.name for i in session.get_inputs()}
    feed = {name: np.zeros((2, 1, 128) if name == "state" else (1, 1, 128), np.float32) for name in states}
    if "sr" in inputs:
        feed["sr"] = np.array(RATE, np.int64)
    outputs = []
    for frame in given:
        results = dict(zip(names, session.run(names, {"input": frame[None], **feed}), strict=True))
        feed |= {name: results[after] for name, after in states.items()}
        outputs.append(results[output])
    return np.stack(outputs)


@pytest.mark.parametrize("name", SILERO)
def test_silero_gives_the_outputs_of_a_hand_written_loop(name: str, tmp_path: Path) -> None:
    """A minute of speech-like audio in each of two interleaved streams."""
    options, states = SILERO[name]
    path, target = silero(name), tmp_path / "vad.onnx"
    assert cli.main(["adopt", str(path), "-o", str(target), *options.split()]) == 0
    model = OceanModel.load(target)
    assert {s.input: s.output for s in model.contract.states} == states
    given = [frames(speech_like(60, seed)) for seed in (0, 1)]
    streams = [model.stream(), model.stream()]
    single = model.contract.inputs[0].batch_axis is not None
    found: list[list[NDArray[np.float32]]] = [[], []]
    for pair in zip(*given, strict=True):
        for stream, frame, kept in zip(streams, pair, found, strict=True):
            kept.append(stream.step(frame if single else frame[None]))
    for kept, each in zip(found, given, strict=True):
        wanted = hand_written(path, states, each)
        assert np.array_equal(np.stack(kept).reshape(wanted.shape), wanted)
    assert np.ptp(found[0]) > 0.1  # it hears something, and not always the same


def counter(batch: str = "B", extra: bool = False) -> bytes:
    """y = x + s, s' = y: the smallest recurrent graph; with `extra`, a second state that looks the same."""
    vector = [batch, 3]
    nodes = [
        helper.make_node("Add", ["x", "s"], ["y"]),
        helper.make_node("Identity", ["y"], ["s_next"]),
    ]
    names_in, names_out = ["x", "s"], ["y", "s_next"]
    if extra:
        nodes.append(helper.make_node("Identity", ["past_s"], ["new_s"]))
        names_in, names_out = [*names_in, "past_s"], [*names_out, "new_s"]
    graph = helper.make_graph(
        nodes,
        "counter",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, vector) for n in names_in],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, vector) for n in names_out],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def test_a_free_dimension_that_all_share_is_the_batch(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(adopt(counter("rows"), "counter", Said(initial={"s": 2.0})))
    model = OceanModel.load(tmp_path / "m.onnx")
    assert model.contract.kind == "raw"
    assert model.contract.states[0].shape == ("B", 3)
    stream = model.stream(2)
    stream.step(np.ones((2, 3), np.float32))
    assert (stream.step(np.zeros((2, 3), np.float32)) == 3).all()


def test_the_state_id_is_the_foreign_files_digest_whatever_is_said(tmp_path: Path) -> None:
    ids = set()
    for said in (Said(), Said(pins={"B": 1}), Said(rate_hz=10.0)):
        (tmp_path / "m.onnx").write_bytes(adopt(counter(), "counter", said))
        ids.add(OceanModel.load(tmp_path / "m.onnx").contract.state_id)
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("content", "said", "message"),
    [
        (b"nothing", Said(), "is no ONNX file"),
        (counter(extra=True), Said(), "say --state IN:OUT for each .candidates: s:s_next"),
        (counter(), Said(states={"s": "nowhere"}), "'nowhere', which is no output; there is: s_next, y"),
        (counter(), Said(pins={"sequence": 3}), "'sequence', which is no free dimension; there is: B"),
        (counter(), Said(states={"s": "s_next"}, constants={"s": 1}), "both a state and a constant"),
        (counter(), Said(states={"s": "y", "x": "y"}), "one output to two inputs"),
        (adopt(counter(), "counter", Said()), Said(), "has a contract already"),
    ],
)
def test_what_is_open_or_wrong_is_said(content: bytes, said: Said, message: str) -> None:
    with pytest.raises(AdoptError, match=message):
        adopt(content, "counter", said)


def test_two_free_dimensions_are_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = silero("silero_vad_half.onnx")
    assert cli.main(["adopt", str(path), "-o", str(tmp_path / "m.onnx")]) == 1
    assert "--pin NAME=SIZE, here batch, sequence" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"h": (1, 8), "x": (1, 4)}, {"hn": (1, 8), "y": (1, 2)}, {"h": "hn"}),
        ({"h_in": (1, 8), "x": (1, 8)}, {"h_out": (1, 8), "y": (1, 8)}, {"h_in": "h_out"}),
        (
            {"past_k": (1, 8), "past_v": (1, 8)},
            {"present_k": (1, 8), "present_v": (1, 8)},
            {"past_k": "present_k", "past_v": "present_v"},
        ),
        ({"state": (2, 1, 128)}, {"stateN": ("a", "b", "c"), "output": (1, 1)}, {"state": "stateN"}),
        ({"input": (1, 8)}, {"output": (1, 8)}, None),
        ({"state": (1, 8)}, {"next_state": (1, 9)}, None),
    ],
)
def test_pairs_are_suggested_where_there_is_one_reading(
    before: dict[str, tuple[int, ...]],
    after: dict[str, tuple[int | str, ...]],
    found: dict[str, str] | None,
) -> None:
    sides = [[Value(n, "float32", tuple(s)) for n, s in side.items()] for side in (before, after)]
    if found is None:
        with pytest.raises(AdoptError, match="say --state IN:OUT"):
            suggest(*sides)
    else:
        assert suggest(*sides) == found


def test_the_graph_is_left_as_it_was() -> None:
    before, after = (onnx.load_model_from_string(c) for c in (counter(), adopt(counter(), "counter", Said())))
    assert before.graph == after.graph
