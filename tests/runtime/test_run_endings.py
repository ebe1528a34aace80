"""ocean-run when it is stopped, or when one of its standard streams is closed, full or of another encoding."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_runtime import OceanModel, SnapshotError, Tokenizer
from ocean_runtime.contract import METADATA_KEY
from ocean_runtime.snapshot import read
from ocean_runtime.text import read_text

Run = Callable[..., subprocess.CompletedProcess[bytes]]
RUN = "ocean_runtime.cli"
ENDING = ["TERM", "INT", "HUP", "QUIT", "ALRM", "USR1", "USR2", "XCPU", "VTALRM", "PROF", "IO"]


def started(path: Path, *options: str | Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that reads text from a pipe, once it is reading."""
    process = subprocess.Popen(
        [sys.executable, "-m", RUN, str(path), *map(str, options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        bufsize=0,
    )
    assert process.stdout is not None
    assert process.stdout.read(4) == b"step"
    return process


def send(process: subprocess.Popen[bytes], text: bytes, lines: int) -> None:
    """Write text, and wait until so many lines of the table have come."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(text)
    for _ in range(lines):
        process.stdout.readline()


@pytest.mark.parametrize("name", ENDING)
def test_a_signal_that_would_end_the_process_saves_the_state(
    tiny_path: Path, tmp_path: Path, environment: dict[str, str], name: str
) -> None:
    with started(tiny_path, "--state", tmp_path / "state", environment=environment) as process:
        send(process, b"RO", 3)
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.wait(timeout=60) == 0
    assert read(tmp_path / "state").steps == 2


def test_a_signal_that_is_ignored_stays_so(
    tiny_path: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with started(tiny_path, "--state", tmp_path / "state", environment=environment) as process:
            send(process, b"RO", 3)
            process.send_signal(signal.SIGHUP)
            send(process, b"MEO", 3)
            process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert read(tmp_path / "state").steps == 5


def test_a_signal_within_a_character_splits_it_no_more_than_the_pipe_does(
    tiny: OceanModel, tiny_path: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    text, state = "RO雪é\nMEO".encode(), tmp_path / "state"
    whole = tiny.stream()
    list(read_text(whole, [text]))
    for cut in range(3, 8):
        state.unlink(missing_ok=True)
        for part in (text[:cut], text[cut:]):
            with started(tiny_path, "--state", state, environment=environment) as process:
                assert process.stdin is not None
                send(process, part, 2)
                if part == text[cut:]:
                    process.communicate(timeout=60)
                    continue
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=60) == 0
        other = tiny.stream()
        other.restore(state)
        assert other.steps == whole.steps == 8
        assert np.array_equal(other.ocean, whole.ocean)


@pytest.fixture(scope="module")
def wordy(tiny: OceanModel) -> OceanModel:
    """The tiny model, of words."""
    size = tiny.contract.sizes["inputs"]
    words = ("\ufffd", "a", " a", "ab", " ab", "abc", " é", "é", "éa", "\n", "雪")
    tokens = (*words, *(f"w{i}" for i in range(size - len(words))))
    contract = dataclasses.replace(tiny.contract, tokenizer=Tokenizer("word", tokens))
    return OceanModel(tiny._graph.session, contract, tiny.path)


@given(st.lists(st.text("abé雪 \n'", max_size=9), max_size=5), st.lists(st.integers(0, 60), max_size=4))
@settings(deadline=None)
def test_a_text_that_is_stopped_anywhere_goes_on_as_if_it_had_not_been(
    tiny: OceanModel, wordy: OceanModel, pieces: list[str], cuts: list[int]
) -> None:
    text = "".join(pieces).encode()
    for model in (tiny, wordy):
        whole = model.stream()
        expected = [item.token for item in read_text(whole, [text])]
        found, start, stream = [], 0, model.stream()
        for cut in sorted(min(cut, len(text)) for cut in cuts):
            found += [item.token for item in read_text(stream, [text[start:cut]], lambda: True)]
            start, saved = cut, stream.snapshot()
            stream = model.stream()
            stream.resume(saved)
        found += [item.token for item in read_text(stream, [text[start:]])]
        assert found == expected
        assert stream.steps == whole.steps
        assert "text" not in stream.context


def test_what_was_left_open_is_checked(tiny: OceanModel) -> None:
    for wrong in (3, {}, {"bytes": "zz", "word": ""}, {"bytes": 3, "word": ""}):
        stream = tiny.stream()
        stream.context = {"text": wrong}
        with pytest.raises(SnapshotError, match="read and not stepped"):
            list(read_text(stream, [b"a"]))


@pytest.mark.parametrize("model", ["tiny.onnx", "tiny_sensors.onnx"])
def test_sigterm_while_a_pipe_waits_for_its_writer(
    tiny_path: Path, tmp_path: Path, environment: dict[str, str], model: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    line = [sys.executable, "-m", RUN, str(tiny_path.with_name(model)), str(tmp_path / "pipe")]
    line += ["--state", str(tmp_path / "state")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        if model == "tiny.onnx":
            assert process.stdout.readline().startswith(b"step")
        else:  # wait until it has the pipe open: only then does a writer that does not wait succeed
            while True:
                try:
                    os.close(os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK))
                    break
                except OSError:
                    assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        assert process.returncode == (0 if model == "tiny.onnx" else process.returncode)
    assert read(tmp_path / "state").steps == 0


def test_a_named_pipe_is_read_to_its_end(
    tiny_path: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    line = [sys.executable, "-m", RUN, str(tiny_path), str(tmp_path / "pipe")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        with (tmp_path / "pipe").open("wb", buffering=0) as pipe:
            pipe.write(b"RO")
            assert process.stdout is not None
            for _ in range(3):
                process.stdout.readline()
            pipe.write(b"MEO")
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert len(rest.splitlines()) == 3


@pytest.mark.parametrize("count", [40_000, 400_000])
def test_a_header_of_many_names_is_one_sentence(
    tiny_path: Path, environment: dict[str, str], count: int
) -> None:
    header = ",".join(f"{i:x}g" for i in range(count)).encode()[: (1 << 20) - 9]
    done = subprocess.run(
        [sys.executable, "-m", RUN, str(tiny_path.with_name("tiny_sensors.onnx"))],
        input=header + b"\n1,2\n",
        capture_output=True,
        env=environment,
        timeout=120,  # what was quadratic took hours
        check=False,
    )
    assert done.returncode == 1
    assert b"has no column" in done.stderr and len(done.stderr) < 1200


def shell(line: str, environment: dict[str, str], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(line, shell=True, input=stdin, capture_output=True, env=environment, check=False)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2>/dev/null"])
@pytest.mark.parametrize("model", ["tiny.onnx", "tiny_sensors.onnx"])
def test_whatever_standard_error_is_the_output_is_whole(
    tiny_path: Path, tmp_path: Path, environment: dict[str, str], redirection: str, model: str
) -> None:
    path, stdin = tiny_path.with_name(model), b"ROMEO"
    if model == "tiny_sensors.onnx":
        names = [
            f"{e.name} [{e.unit}]" if e.unit else e.name
            for e in OceanModel.load(path).contract.inputs[0].elements
        ]
        stdin = "\n".join(
            [",".join(names), ",".join("0.1" for _ in names), ",".join("9e9" for _ in names)]
        ).encode()
    line = f'exec "{sys.executable}" -m {RUN} "{path}" --state "{tmp_path / "state"}"'
    expected = shell(f"{line} 2>/dev/null", environment, stdin)
    (tmp_path / "state").unlink()
    found = shell(f"{line} {redirection}", environment, stdin)
    assert found.returncode == expected.returncode == 0
    assert found.stdout == expected.stdout and b"saved" not in found.stdout
    assert read(tmp_path / "state").steps > 0


def test_output_is_utf8_in_a_c_locale(tiny_path: Path, environment: dict[str, str]) -> None:
    c = {**environment, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    c.pop("PYTHONIOENCODING", None)
    for options in ([], ["--info"]):
        line = [sys.executable, "-m", RUN, str(tiny_path), *options]
        done = subprocess.run(line, input="雪".encode(), capture_output=True, env=c, check=False)
        assert done.returncode == 0, done.stderr
        if not options:
            assert "'\ufffd'".encode() in done.stdout


def test_a_strangers_file_is_refused_in_a_c_locale_by_the_same_sentence(
    tiny_path: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """The trial process quotes the file, which may be of any script."""
    proto = onnx.load(tiny_path)
    entry = next(entry for entry in proto.metadata_props if entry.key == METADATA_KEY)
    contract = json.loads(entry.value)
    contract["inputs"].append({**contract["inputs"][0], "name": "雪"})
    del proto.metadata_props[:]
    proto.metadata_props.add(key=METADATA_KEY, value=json.dumps(contract))
    onnx.save(proto, tmp_path / "bad.onnx")
    c = {**environment, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    line = [sys.executable, "-m", RUN, "--untrusted", "--info", str(tmp_path / "bad.onnx")]
    said = [
        subprocess.run(line, capture_output=True, env=env, check=False).stderr for env in (environment, c)
    ]
    assert "雪".encode() in said[0]
    assert (
        said[1].decode().encode("ascii", "backslashreplace").decode()
        == said[0].decode().encode("ascii", "backslashreplace").decode()
    )
