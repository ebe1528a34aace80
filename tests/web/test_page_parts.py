"""The modules of the page against the runtime's own: what both read and write must be the same."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ocean_runtime import ContractError, OceanModel, SnapshotError
from ocean_runtime import snapshot as snapshots
from ocean_runtime.contract import METADATA_KEY
from ocean_runtime.sampling import sample
from ocean_runtime.tokenizer import Tokenizer

Ask = Callable[..., Any]
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

LOAD = """async ({file, name}) => {
  const { Model } = await import('/js/stream.js');
  const bytes = Uint8Array.from(atob(file), (c) => c.charCodeAt(0));
  try { await (await Model.load(bytes, name)).release(); } catch (error) { return `${error.name}: ${error.message}`; }
  return null;
}"""
RESTORE = """async ({model, state, name}) => {
  const { Model, Stream } = await import('/js/stream.js');
  const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Stream(await Model.load(decode(model), 'model.onnx'));
  try { stream.restore(decode(state), name); } catch (error) { return `${error.name}: ${error.message}`; }
  return null;
}"""


def text_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def refusal_by_runtime(content: bytes, folder: Path) -> str:
    path = folder / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(ContractError) as caught:
        OceanModel.load(path)
    return str(caught.value).replace(str(path), path.name)


def changed(path: Path, **values: Any) -> bytes:
    """The tiny model without a seal, with these values in its contract."""
    proto = onnx.load(path)
    contract = json.loads(proto.metadata_props[0].value)
    for name, value in values.items():
        if value is KeyError:
            del contract[name]
        else:
            contract[name] = value
    del proto.metadata_props[:]
    proto.metadata_props.add(key=METADATA_KEY, value=json.dumps(contract))
    return proto.SerializeToString()


def tensor(**values: Any) -> dict[str, Any]:
    return {"name": "token", "dtype": "int64", "shape": ["B"], **values}


STATE = {"input": "ocean", "output": "ocean_next", "dtype": "float32", "shape": ["B", 16]}
CONTRACTS: dict[str, dict[str, Any]] = {
    "newer": {"version": 2},
    "no version": {"version": KeyError},
    "no states": {"states": []},
    "lacks": {"state_id": KeyError},
    "not a list": {"inputs": 3},
    "not a dict": {"inputs": [3]},
    "lacks a name": {"inputs": [{"dtype": "int64", "shape": ["B"]}]},
    "type": {"inputs": [tensor(meaning=3)]},
    "kind": {"kind": "pictures"},
    "dtype": {"inputs": [tensor(dtype="complex64")]},
    "other dtype": {"inputs": [tensor(dtype="int32")]},
    "axis": {"inputs": [tensor(shape=["B", 0])]},
    "two batches": {"inputs": [tensor(shape=["B", "B"])]},
    "large": {"inputs": [tensor(shape=["B", 1 << 26])]},
    "rank": {"inputs": [tensor(shape=[1] * 9)]},
    "other shape": {"states": [{**STATE, "shape": ["B", 17]}]},
    "twice": {"inputs": [tensor(), tensor()]},
    "lacks an input": {"inputs": [tensor(), tensor(name="more")]},
    "unprintable": {"state_id": "sha\n256"},
    "quoted": {"inputs": [tensor(name="it's\u00e9\x07")]},
    "constant": {"inputs": [tensor(constant=1e30)]},
    "initial": {"states": [{**STATE, "initial": 1e39}]},
    "initial list": {"states": [{**STATE, "initial": [0.0, 1.0]}]},
    "initial texts": {"states": [{**STATE, "initial": ["a"]}]},
    "rate": {"rate_hz": -1},
    "elements": {"inputs": [tensor(elements=[{"name": "a"}, {"name": "b"}], shape=["B", 3])]},
    "element": {"inputs": [tensor(elements=[3])]},
    "no tokenizer": {"tokenizer": None},
    "tokenizer": {"tokenizer": {"kind": "char", "tokens": ["a", "b"]}},
    "tokenizer kind": {"tokenizer": {"kind": "syllable", "tokens": ["\ufffd", "b"]}},
    "token twice": {"tokenizer": {"kind": "char", "tokens": ["\ufffd", "b", "b"]}},
    "vocabulary": {"tokenizer": {"kind": "char", "tokens": ["\ufffd", "b"]}},
    "predicts": {
        "outputs": [{"name": "logits", "dtype": "float32", "shape": ["B", 30], "predicts": "weather"}]
    },
    "deep": {"provenance": {"a": json.loads("[" * 120 + "]" * 120)}},
}


@pytest.mark.parametrize("case", CONTRACTS)
def test_a_wrong_contract_gets_the_runtimes_sentence(
    case: str, ask: Ask, tiny_path: Path, tmp_path: Path
) -> None:
    content = changed(tiny_path, **CONTRACTS[case])
    expected = refusal_by_runtime(content, tmp_path)
    assert (
        ask(LOAD, {"file": text_of(content), "name": "broken.onnx"}).removeprefix("OceanError: ") == expected
    )


def damaged_files(path: Path) -> dict[str, bytes]:
    whole = path.read_bytes()
    proto = onnx.load(path)
    entry = proto.metadata_props[0]
    two = onnx.ModelProto()
    two.CopyFrom(proto)
    del two.metadata_props[1:]
    two.metadata_props.add(key=METADATA_KEY, value=entry.value)
    none = onnx.ModelProto()
    none.CopyFrom(proto)
    del none.metadata_props[:]
    no_graph = onnx.ModelProto()
    no_graph.metadata_props.add(key=METADATA_KEY, value=entry.value)
    at = len(whole) // 2
    return {
        "a bit fell": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
        "cut off": whole[: len(whole) // 2],
        "empty": b"",
        "text": b"Shall I compare thee to a summer's day?",
        "zeros": bytes(1000),
        "an endless number": b"\xff" * 100,
        "many fields": b"\x10\x01" * 300_000,
        "two contracts": two.SerializeToString(),
        "no contract": none.SerializeToString(),
        "no graph": no_graph.SerializeToString(),
    }


@pytest.mark.parametrize("case", damaged_files(Path(__file__).parents[1] / "fixtures" / "tiny.onnx"))
def test_a_broken_file_gets_the_runtimes_sentence(
    case: str, ask: Ask, tiny_path: Path, tmp_path: Path
) -> None:
    content = damaged_files(tiny_path)[case]
    expected = refusal_by_runtime(content, tmp_path)
    assert (
        ask(LOAD, {"file": text_of(content), "name": "broken.onnx"}).removeprefix("OceanError: ") == expected
    )


def test_a_graph_that_onnxruntime_refuses_is_refused_in_one_sentence(ask: Ask, tiny_path: Path) -> None:
    proto = onnx.load(tiny_path)
    del proto.metadata_props[1:]
    proto.graph.node[-1].op_type = "NoSuchOperator"
    said = ask(LOAD, {"file": text_of(proto.SerializeToString()), "name": "broken.onnx"})
    assert (
        said.startswith("OceanError: broken.onnx: it can't be loaded by onnxruntime-web") and "\n" not in said
    )


@pytest.mark.parametrize("name", ["raw.onnx", "tiny_sensors.onnx", "tiny_activity.onnx", "v0.1.0/model.onnx"])
def test_every_kind_of_file_loads(name: str, ask: Ask, tiny_path: Path) -> None:
    content = (tiny_path.parent / name).read_bytes()
    assert ask(LOAD, {"file": text_of(content), "name": name}) is None


def snapshot_of(model: OceanModel, steps: int = 3) -> bytes:
    stream = model.stream()
    for token in range(1, steps + 1):
        stream.step(token)
    return snapshots.to_bytes(stream.snapshot(), "state.safetensors")


def damaged_snapshots(whole: bytes) -> dict[str, bytes]:
    length = int.from_bytes(whole[:8], "little")
    return {
        "a bit fell": whole[:-1] + bytes([whole[-1] ^ 1]),
        "cut off": whole[:-4],
        "longer": whole + b"more",
        "empty": b"",
        "short": b"abc",
        "no header": whole[:8] + b"x" * length + whole[8 + length :],
        "newer": whole.replace(b'\\"format\\": 1', b'\\"format\\": 9'),
        "not a number": whole.replace(b'\\"format\\": 1', b'\\"format\\": x'),
        "a huge header": (1 << 40).to_bytes(8, "little") + whole[8:],
        "other steps": whole.replace(b'\\"steps\\": 3', b'\\"steps\\": 4'),
        "other dtype": whole.replace(b'"F32"', b'"I32"'),
        "unknown dtype": whole.replace(b'"F32"', b'"X32"'),
        "text": b"Shall I compare thee to a summer's day?",
    }


@pytest.mark.parametrize("case", damaged_snapshots(bytes(64)))
def test_a_broken_state_gets_the_runtimes_sentence(
    case: str, ask: Ask, tiny: OceanModel, tiny_path: Path, tmp_path: Path
) -> None:
    content = damaged_snapshots(snapshot_of(tiny))[case]
    path = tmp_path / "state.safetensors"
    path.write_bytes(content)
    with pytest.raises(SnapshotError) as caught:
        tiny.stream().restore(path)
    said = ask(
        RESTORE, {"model": text_of(tiny_path.read_bytes()), "state": text_of(content), "name": path.name}
    )
    assert said.removeprefix("OceanError: ") == str(caught.value).replace(str(path), path.name)


def test_a_state_of_another_model_or_batch_gets_the_runtimes_sentence(
    ask: Ask, tiny: OceanModel, tiny_path: Path, tmp_path: Path
) -> None:
    other = OceanModel.load(tiny_path.with_name("tiny_sensors.onnx")).stream()
    rows = tiny.stream(2)
    rows.step(np.array([1, 2]))
    for stream in (other, rows):
        path = tmp_path / "state.safetensors"
        stream.save(path)
        with pytest.raises(SnapshotError) as caught:
            tiny.stream().restore(path)
        said = ask(
            RESTORE,
            {
                "model": text_of(tiny_path.read_bytes()),
                "state": text_of(path.read_bytes()),
                "name": path.name,
            },
        )
        assert said == f"OceanError: {caught.value}"


@pytest.mark.parametrize("name", ["raw.onnx", "tiny.onnx", "tiny_sensors.onnx"])
def test_a_state_of_each_dtype_goes_to_the_browser_and_back(
    name: str, ask: Ask, tiny_path: Path, tmp_path: Path
) -> None:
    model = OceanModel.load(tiny_path.parent / name)
    stream = model.stream()
    x: dict[str, Any] = {
        "raw.onnx": {"x": np.ones(3, "f4"), "y": np.ones(2), "k": 3, "flag": True},
        "tiny.onnx": {"token": 3},
        "tiny_sensors.onnx": {"observation": np.array([1.0, 2.0, 4512346.0])},
    }[name]
    stream.step_all(x)
    stream.context = {"é\U0001f30a": [1, 2.0, -0.0, 1e16, 1e-5, 10**20, None, True, "\x7f\n"], "b": {"a": {}}}
    saved = stream.snapshot()
    path = tmp_path / "state.safetensors"
    returned = ask(
        """async ({model, state}) => {
          const { Model, Stream } = await import('/js/stream.js');
          const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
          const stream = new Stream(await Model.load(decode(model), 'model.onnx'));
          stream.restore(decode(state), 'state');
          return btoa(Array.from(stream.save('state.safetensors'), (b) => String.fromCharCode(b)).join(''));
        }""",
        {
            "model": text_of((tiny_path.parent / name).read_bytes()),
            "state": text_of(snapshots.to_bytes(saved, "state.safetensors")),
        },
    )
    path.write_bytes(base64.b64decode(returned))
    again = snapshots.read(path)
    assert (again.steps, again.state_id, again.context) == (saved.steps, saved.state_id, saved.context)
    for before, after in ((saved.states, again.states), (saved.predictions, again.predictions)):
        assert before.keys() == after.keys()
        for key in before:
            assert before[key].dtype == after[key].dtype and before[key].tobytes() == after[key].tobytes()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


@FEW
@given(JSON)
def test_json_is_spelled_as_python_spells_it(ask: Ask, value: Any) -> None:
    spelled = ask(
        """async (text) => {
          const { parse, dump } = await import('/js/python_json.js');
          return dump(parse(text), true);
        }""",
        json.dumps(value),
    )
    assert spelled == json.dumps(value, sort_keys=True)


@FEW
@given(
    st.integers(0, (1 << 53) - 1),
    st.integers(0, 10**9),
    st.sampled_from([None, 1, 5, 500]),
    st.floats(0.1, 3),
)
def test_the_draw_is_the_runtimes(
    ask: Ask, seed: int, step: int, top_k: int | None, temperature: float
) -> None:
    logits = np.sin(np.arange(81) ** 2 + seed % 7).astype(np.float32) * 3
    drawn = ask(
        "async ({logits, ...options}) => (await import('/js/sampling.js')).sample(Float32Array.from(logits), options)",
        {"logits": logits.tolist(), "step": step, "seed": seed, "topK": top_k, "temperature": temperature},
    )
    assert drawn == sample(logits, step=step, seed=seed, top_k=top_k, temperature=temperature)


# Characters that Python's Unicode does not know yet may be letters to a newer browser.
KNOWN = st.text(st.characters(exclude_categories=["Cn", "Cs"]))


@FEW
@given(st.lists(KNOWN, max_size=4))
def test_text_is_cut_into_the_runtimes_tokens(ask: Ask, texts: list[str]) -> None:
    """Text that arrives in pieces, characters and words."""
    for kind in ("char", "word"):
        tokenizer = Tokenizer.train("".join(texts) + "don't stop, é 3!", kind)  # type: ignore[arg-type]
        reader = tokenizer.reader()
        expected = [reader.feed(text) for text in texts] + [reader.flush()]
        found = ask(
            """async ({about, texts}) => {
              const { Tokenizer } = await import('/js/tokenizer.js');
              const tokenizer = new Tokenizer(about);
              return [...texts.map((text) => tokenizer.feed(text)), tokenizer.flush()];
            }""",
            {"about": tokenizer.to_dict(), "texts": texts},
        )
        assert found == expected
