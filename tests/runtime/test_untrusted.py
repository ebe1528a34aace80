"""Models, contracts and snapshots of strangers: refused with one sentence, in bounded memory and time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from ocean_runtime import Contract, ContractError, OceanModel, SnapshotError
from ocean_runtime import snapshot as snapshots
from ocean_runtime.contract import METADATA_KEY
from ocean_runtime.describe import describe
from onnx import TensorProto, helper

Run = Callable[..., subprocess.CompletedProcess[bytes]]
HOSTILE = Path(__file__).parent.parent / "fixtures" / "hostile"


def greedy(model: onnx.ModelProto, doublings: int) -> bytes:
    """The logits, after a tensor that has doubled that many times."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.metadata_props[1:]  # the seal
    nodes, last = made.graph.node, next(n for n in made.graph.node if "logits" in n.output)
    last.output[list(last.output).index("logits")] = "before"
    name = "ocean"
    for i in range(doublings):
        nodes.append(helper.make_node("Concat", [name, name], [f"twice{i}"], axis=1))
        name = f"twice{i}"
    nodes.append(helper.make_node("ReduceSum", [name], ["sum"], keepdims=0))
    nodes.append(helper.make_node("Add", ["before", "sum"], ["logits"]))
    return made.SerializeToString()


def test_untrusted_loads_what_is_sound(tiny_path: Path, tiny: OceanModel) -> None:
    model = OceanModel.load(tiny_path, untrusted=True)
    assert model.stream().step(3).tolist() == tiny.stream().step(3).tolist()


def test_a_file_of_the_working_folder_is_not_taken_for_a_package(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy.py", "onnxruntime.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('taken')")
    monkeypatch.chdir(tmp_path)
    OceanModel.load(tiny_path, untrusted=True)


def test_a_greedy_model_ends_in_a_process_of_its_own(tiny_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "greedy.onnx"
    path.write_bytes(greedy(onnx.load(tiny_path), 28))  # 16 GB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ContractError) as caught:
        OceanModel.load(path, untrusted=True)
    assert str(caught.value).isprintable()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    path.write_bytes(greedy(onnx.load(tiny_path), 8))
    OceanModel.load(path, untrusted=True)


@pytest.mark.soak
def test_a_slow_model_is_stopped(tiny_path: Path, tmp_path: Path) -> None:
    model = onnx.load(tiny_path)
    del model.metadata_props[1:]  # the seal
    for i in range(300):
        model.graph.node.append(helper.make_node("Einsum", ["w"] * 3, [f"slow{i}"], equation="ab,cd,ef->ace"))
        model.graph.node.append(helper.make_node("ReduceSum", [f"slow{i}"], [f"sum{i}"], keepdims=0))
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [200, 20], [1.0] * 4000))
    last = next(n for n in model.graph.node if "logits" in n.output)
    last.output[list(last.output).index("logits")] = "before"
    model.graph.node.append(helper.make_node("Sum", ["before", *(f"sum{i}" for i in range(300))], ["logits"]))
    path = tmp_path / "slow.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ContractError, match="took more than"):
        OceanModel.load(path, untrusted=True)


@pytest.mark.parametrize("path", sorted(HOSTILE.glob("*.onnx")), ids=lambda path: path.stem)
def test_what_once_ended_a_process_is_refused(path: Path) -> None:
    with pytest.raises(ContractError) as caught:
        OceanModel.load(path, untrusted=True)
    assert str(caught.value).isprintable()


def test_the_command_takes_untrusted_files(command: Run, tiny_path: Path, tmp_path: Path) -> None:
    done = command("ocean_runtime.cli", "--untrusted", "--info", tiny_path)
    assert done.returncode == 0
    (tmp_path / "bad.onnx").write_bytes(greedy(onnx.load(tiny_path), 28))
    done = command("ocean_runtime.cli", "--untrusted", "--info", tmp_path / "bad.onnx")
    assert done.returncode == 1
    assert len(done.stderr.decode().splitlines()) == 1


def test_pipes_devices_and_loops_of_links_are_no_files(tiny: OceanModel, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    for name in ("pipe", "to-pipe", "loop", "nowhere", "/dev/zero", "a\0b", "x" * 300):
        with pytest.raises(ContractError):
            OceanModel.load(tmp_path / name)
        with pytest.raises(SnapshotError):
            tiny.stream().restore(tmp_path / name)


def test_a_model_may_be_a_link_and_a_snapshot_replaces_one(
    tiny_path: Path, tiny: OceanModel, tmp_path: Path
) -> None:
    (tmp_path / "latest.onnx").symlink_to(tiny_path)
    OceanModel.load(tmp_path / "latest.onnx")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for keep in (1, 2):
        (tmp_path / "state").unlink(missing_ok=True)
        (tmp_path / "state").symlink_to(victim)
        tiny.stream().save(tmp_path / "state", keep=keep)
        assert victim.read_text() == "precious"
        assert not (tmp_path / "state").is_symlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["states"][0].update(shape=[1 << 30]), "over 2"),
        (lambda c: c["states"][0].update(shape=["B"] + [1 << 10] * 3), "elements together"),
        (lambda c: c["states"][0].update(shape=[1] * 9), "9 axes"),
        (lambda c: c["states"][0].update(initial=1e300), "can't hold"),
        (lambda c: c["states"][0].update(initial=10**400), "can't hold"),
        (lambda c: c["inputs"][0].update(constant=1 << 80), "can't hold"),
        (lambda c: c["inputs"][0].update(name="\x1b[2J"), "can't be printed"),
        (lambda c: c.update(state_id="a\nb"), "can't be printed"),
        (lambda c: c.update(states=c["states"] * 2000), "names more than 1,000"),
        (lambda c: c.update(version=10**30), "has version"),
        (lambda c: c.update(sizes=[]), "sizes is list"),
    ],
)
def test_contracts_of_strangers(
    tiny: OceanModel, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    values = json.loads(tiny.contract.to_json())
    change(values)
    with pytest.raises(ContractError, match=message):
        Contract.from_json(json.dumps(values))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        '{"a":' * 100_000,
        "{" + '"version":1,' * 100_000,
        "9" * 100_000,
        '{"version": NaN}',
        "",
        "null",
        "\0",
    ],
    ids=["deep list", "deep object", "cut", "long number", "NaN", "empty", "null", "NUL"],
)
def test_json_that_is_deep_huge_or_odd(text: str) -> None:
    with pytest.raises(ContractError, match="the contract"):
        Contract.from_json(text)


def test_a_huge_contract_is_not_read(tiny_path: Path, tmp_path: Path) -> None:
    model = onnx.load(tiny_path)
    del model.metadata_props[:]
    model.metadata_props.add(key=METADATA_KEY, value=" " * (9 << 20))
    (tmp_path / "huge.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ContractError, match="more than 8,388,608"):
        OceanModel.load(tmp_path / "huge.onnx")


def test_what_a_contract_says_can_not_command_the_terminal(tiny: OceanModel) -> None:
    odd = dataclasses.replace(tiny.contract, provenance={"note": "\x1b[31mred\x07"})
    assert "\x1b" not in describe(odd)
    assert r"\x1b[31mred\x07" in describe(odd)


def test_an_absurd_snapshot_is_not_read_into_memory(tiny: OceanModel, tmp_path: Path) -> None:
    path = tmp_path / "state"
    with path.open("wb") as file:
        file.truncate(8 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SnapshotError, match="has more than"):
        tiny.stream().restore(path)
    with pytest.raises(SnapshotError, match="has more than 268,435,456 bytes"):
        snapshots.read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


@pytest.mark.parametrize("length", [0, 1, 1 << 20, 1 << 40, (1 << 64) - 1])
def test_a_header_that_lies_about_its_length(tiny: OceanModel, tmp_path: Path, length: int) -> None:
    (tmp_path / "state").write_bytes(struct.pack("<Q", length) + b"{" * 64)
    with pytest.raises(SnapshotError, match="is no snapshot, or a damaged one"):
        tiny.stream().restore(tmp_path / "state")


def test_a_newer_generation_that_is_damaged_is_passed_over(tiny: OceanModel, tmp_path: Path) -> None:
    stream, path = tiny.stream(), tmp_path / "state"
    for token in (1, 2, 3):
        stream.step(token)
        stream.save(path, keep=3)
    assert stream.restore(path).snapshot.steps == 3
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / "state.1").unlink()
    restored = stream.restore(path)
    assert restored.path == tmp_path / "state.2"
    assert len(restored.passed_over) == 1
    assert "state is no snapshot" in restored.passed_over[0]
    assert stream.steps == restored.snapshot.steps == 1
    stream.save(path, keep=3)  # the damaged one is replaced, and takes no whole one's place
    assert [snapshots.read(p).steps for p in snapshots.generations(path)] == [1, 1]
    stream.save(path)
    assert snapshots.generations(path) == [path]
    with pytest.raises(ValueError, match="choose 1 to 100 generations"):
        stream.save(path, keep=0)


def test_saving_where_it_can_not_be_leaves_the_stream_going(tiny: OceanModel, tmp_path: Path) -> None:
    stream, alone = tiny.stream(), tiny.stream()
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "missing" / "state", tmp_path / "file" / "state", Path("/proc/state")):
        with pytest.raises(SnapshotError, match=r"can't be saved .* the stream goes on"):
            stream.save(place)
    assert stream.step(1).tolist() == alone.step(1).tolist()


def test_a_full_disk_leaves_the_older_snapshot_and_no_leftover(tiny: OceanModel, tmp_path: Path) -> None:
    stream, path = tiny.stream(), tmp_path / "state"
    stream.step(1)
    stream.save(path, keep=2)
    stream.step(2)
    child = os.fork()
    if child == 0:  # a limit on the size of files stands for the disk: the write fails midway
        status = 1
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
            with contextlib.suppress(SnapshotError):
                stream.save(path, keep=2)
                status = 2
            stream.step(3)
            status = 0 if status == 1 and stream.steps == 3 else status
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    assert snapshots.read(path).steps == 1
