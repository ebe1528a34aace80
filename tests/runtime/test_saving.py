"""What `save` leaves in a folder: it can be restored, no other file is touched, and any number may save at once."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_runtime import OceanModel, SnapshotError
from ocean_runtime import snapshot as snapshots
from ocean_runtime.files import write_atomically
from small_models import scalar_model

RAW: dict[str, Any] = {"x": [0.5, -0.25, 0.125], "y": [1.0, 2.0], "k": 3, "flag": True}

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=8),
    st.binary(max_size=3),
    st.just(np.int64(3)),
    st.just(np.float64(0.5)),
    st.just(object()),
    st.just("\ud800"),
)
keys = st.one_of(st.text(st.characters(), max_size=4), st.integers(), st.booleans(), st.none())
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner), st.sets(st.integers()), st.dictionaries(keys, inner)
    ),
    max_leaves=8,
)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


contexts = st.one_of(
    st.dictionaries(st.text(max_size=4), values, max_size=3),
    st.dictionaries(keys, leaves, max_size=3),
    st.integers(1, 3000).map(lambda depth: {"deep": nested(depth)}),
    st.integers(150_000, 200_000).map(lambda size: {"long": "é" * size}),
    values,
)


@pytest.fixture(scope="module")
def models(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[OceanModel, Any]]:
    """Each with an input of a step: a vector as state, two states of two dtypes, and a single number."""
    scalar = OceanModel.load(scalar_model(tmp_path_factory.mktemp("scalar")))
    raw = OceanModel.load(tiny_path.with_name("raw.onnx"))
    return [(OceanModel.load(tiny_path), 3), (raw, RAW), (scalar, [1.0, 2.0])]


@given(st.integers(0, 2), st.sampled_from([None, 1, 2]), st.integers(0, 3), st.integers(1, 4), contexts)
@settings(deadline=None, max_examples=100)
def test_what_save_returned_from_can_be_restored_and_else_the_older_file_stays(
    models: list[tuple[OceanModel, Any]],
    tmp_path_factory: pytest.TempPathFactory,
    which: int,
    batch: int | None,
    steps: int,
    keep: int,
    context: Any,
) -> None:
    model, x = models[which]
    if which == 2:
        batch = None
    path = tmp_path_factory.mktemp("law") / "state"
    stream = model.stream(batch)
    stream.save(path)
    older = path.read_bytes()
    for _ in range(steps):
        if batch is None:
            stream.step(x)
        else:
            rows = {n: np.stack([v] * batch) for n, v in x.items()} if isinstance(x, dict) else [x] * batch
            stream.step(rows)
    stream.context = context
    try:
        stream.save(path, keep=keep)
    except SnapshotError as error:
        assert "context" in str(error)
        assert path.read_bytes() == older
        return
    other = model.stream(batch)
    other.restore(path)
    assert other.steps == stream.steps == steps
    assert json.dumps(other.context) == json.dumps(context)
    for name, array in stream.snapshot().states.items():
        found = other.snapshot().states[name]
        assert found.shape == array.shape and np.array_equal(found, array)
    assert (other.prediction is None) == (stream.prediction is None)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({1: 2}, "the key 1 is int, not str"),
        ({"a": {True: 2}}, "the key True is bool, not str"),
        ({"a": object()}, "not JSON serializable"),
        ({"a": np.arange(2)}, "not JSON serializable"),
        ({"a": nested(150)}, "more than 100 dicts and lists within each other"),
        ({"a": nested(5000)}, "nested too deeply"),
        ({"a": 10**5000}, "digits"),
        ([1, 2], "it is list, not dict"),
        (7, "it is int, not dict"),
        ({"a": "x" * (1 << 20)}, "keep less in the context"),
    ],
)
def test_a_context_that_json_would_alter_is_named(
    tiny: OceanModel, tmp_path: Path, context: Any, message: str
) -> None:
    stream = tiny.stream()
    stream.context = context
    with pytest.raises(SnapshotError, match=message):
        stream.save(tmp_path / "state")
    assert not list(tmp_path.iterdir())
    assert stream.step(1) is not None
    looped: dict[str, Any] = {}
    looped["me"] = looped
    with pytest.raises(SnapshotError, match="Circular"):
        tiny.stream().resume(dataclasses.replace(tiny.stream().snapshot(), context=looped))


def test_a_state_too_long_to_be_read_is_refused_before_it_is_written(
    tiny: OceanModel, tmp_path: Path
) -> None:
    big = np.broadcast_to(np.float32(0), (1 << 16, 1 << 10))  # 256 MiB if it were copied
    saved = dataclasses.replace(tiny.stream().snapshot(), states={"ocean": big})
    snapshots.write(tiny.stream().snapshot(), tmp_path / "state")
    older = (tmp_path / "state").read_bytes()
    with pytest.raises(SnapshotError, match=r"268,435,456 bytes, and a snapshot holds at most 267,386,880"):
        snapshots.write(saved, tmp_path / "state")
    with pytest.raises(SnapshotError, match="can't be"):
        snapshots.write(dataclasses.replace(tiny.stream().snapshot(), steps=1 << 63), tmp_path / "state")
    for wrong in (np.array([object()]), np.zeros(3, complex), np.array(["a"])):
        with pytest.raises(SnapshotError, match=r"can't be written|could not be read"):
            snapshots.write(dataclasses.replace(saved, states={"ocean": wrong}), tmp_path / "state")
    assert (tmp_path / "state").read_bytes() == older


def test_a_context_that_another_thread_changes_is_saved_as_it_was_at_one_instant(
    tiny: OceanModel, tmp_path: Path
) -> None:
    stream, stop, wrong = tiny.stream(), threading.Event(), []

    def change() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            if n % 100 == 0:
                stream.context.clear()
            stream.context[str(n % 300)] = {"n": n, "list": list(range(n % 50))}

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(40):
            stream.save(tmp_path / "state")
            try:
                tiny.stream().restore(tmp_path / "state")
            except SnapshotError as error:
                wrong.append(str(error))
    finally:
        stop.set()
        thread.join()
    assert not wrong


def test_no_context_is_shared(tiny: OceanModel) -> None:
    stream = tiny.stream()
    stream.context["a"] = [1]
    saved = stream.snapshot()
    stream.context["a"].append(2)
    assert saved.context == {"a": [1]}
    other = tiny.stream()
    other.resume(saved)
    other.context["a"].append(3)
    assert saved.context == {"a": [1]}


@pytest.mark.parametrize("keep", [1, 3])
def test_strangers_files_are_left_alone(tiny: OceanModel, tmp_path: Path, keep: int) -> None:
    names = ("run.1", "run.2", "run.7", ".run.settings.tmp", ".run.link.tmp", ".run.abcdefgh.tmp", "run.txt")
    for name in names:
        (tmp_path / name).write_text(f"of a stranger: {name}")
    (tmp_path / "run.3").mkdir()
    (tmp_path / ".run.ocean-0123abcd.tmp").mkdir()
    for name in ("run.4", ".run.fifofifo.tmp", ".run.ocean-01234567.tmp"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "run.5").symlink_to(tmp_path / "run.txt")
    tiny.stream().save(tmp_path / "run.6")  # a stream of its own, saved under a name with a number
    others = {p: (p.lstat().st_ino, p.lstat().st_mtime_ns) for p in tmp_path.iterdir()}
    stream = tiny.stream()
    for _ in range(5):
        stream.step(1)
        stream.save(tmp_path / "run", keep=keep)
    assert {p: (p.lstat().st_ino, p.lstat().st_mtime_ns) for p in others} == others
    assert {p.name for p in tmp_path.iterdir() if p not in others} == (
        {"run"} if keep == 1 else {"run", "run.8", "run.9"}
    )
    (tmp_path / "run").write_bytes(b"")
    other = tiny.stream()
    if keep == 1:
        with pytest.raises(SnapshotError, match="damaged"):
            other.restore(tmp_path / "run")
    else:
        other.restore(tmp_path / "run")
        assert other.steps == 4


@pytest.mark.parametrize("what", ["folder", "pipe"])
def test_what_is_no_file_is_never_replaced(tiny: OceanModel, tmp_path: Path, what: str) -> None:
    path = tmp_path / "state"
    path.mkdir() if what == "folder" else os.mkfifo(path)
    with pytest.raises(SnapshotError, match=r"can't be saved to .*(Is a directory|it is a pipe)"):
        tiny.stream().save(path, keep=2)
    with pytest.raises(OSError, match=r"Is a directory|it is a pipe"):
        write_atomically(path, b"")
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    assert not stat.S_ISREG(path.lstat().st_mode)


def test_a_leftover_of_a_killed_writer_is_removed(tiny: OceanModel, tmp_path: Path) -> None:
    (tmp_path / ".state.ocean-0123abcd.tmp").write_bytes(b"half")
    tiny.stream().save(tmp_path / "state")
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_permissions_are_those_of_the_older_file_or_the_umask(tiny: OceanModel, tmp_path: Path) -> None:
    def mode(name: str) -> int:
        return stat.S_IMODE((tmp_path / name).stat().st_mode)

    before = os.umask(0o077)
    try:
        tiny.stream().save(tmp_path / "private")
        assert mode("private") == 0o600
        os.umask(0o022)
        tiny.stream().save(tmp_path / "private", keep=2)
        tiny.stream().save(tmp_path / "public")
        assert (mode("private"), mode("private.1"), mode("public")) == (0o600, 0o600, 0o644)
        (tmp_path / "public").chmod(0o660)
        tiny.stream().save(tmp_path / "public")
        assert mode("public") == 0o660
    finally:
        os.umask(before)


def _save_often(model: str, path: str, keep: int, count: int) -> None:
    stream = OceanModel.load(model).stream()
    for _ in range(count):
        stream.step(1)
        stream.save(path, keep=keep)


@pytest.mark.parametrize("keep", [1, 3])
def test_any_number_may_save_to_one_path_at_once(tiny_path: Path, tmp_path: Path, keep: int) -> None:
    """Four threads here and one in another process: none of them fails, and a whole snapshot is there."""
    path = str(tmp_path / "state")
    process = multiprocessing.get_context("spawn").Process(
        target=_save_often, args=(str(tiny_path), path, keep, 60)
    )
    process.start()
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(_save_often, str(tiny_path), path, keep, 60) for _ in range(4)]
        for job in jobs:
            job.result()
    process.join(120)
    assert process.exitcode == 0
    OceanModel.load(tiny_path).stream().restore(path)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["state", *(f"state.{i}" for i in range(1, keep))]
