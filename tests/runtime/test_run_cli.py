"""ocean-run as its users meet it: a process of its own, files, pipes and signals."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ocean_runtime import OceanModel
from ocean_runtime.prefill import STEPS
from ocean_runtime.sampling import log_softmax, sample
from ocean_runtime.snapshot import read
from ocean_runtime.text import generate, read_text

Run = Callable[..., subprocess.CompletedProcess[bytes]]
RUN = "ocean_runtime.cli"
TEXT = "ROMEO:\nO, she doth teach é the torches\n".encode()


def test_each_token_has_its_loss_and_the_mean(command: Run, tiny: OceanModel, tiny_path: Path) -> None:
    done = command(RUN, tiny_path, stdin=TEXT)
    assert done.returncode == 0, done.stderr
    header, *lines = done.stdout.decode().splitlines()
    assert header.split("\t") == ["step", "token", "nats", "mean"]
    assert len(lines) == len(TEXT.decode())
    assert lines[0].split("\t") == ["1", "'R'", "", ""]
    ids = tiny.contract.tokenizer.encode(TEXT.decode())  # type: ignore[union-attr]
    outputs = tiny.stream().run(ids)
    losses = [-log_softmax(outputs[i])[token] for i, token in enumerate(ids[1:])]
    assert [float(line.split("\t")[2]) for line in lines[1:]] == pytest.approx(losses, abs=1e-4)
    assert float(lines[-1].split("\t")[3]) == pytest.approx(np.mean(losses), abs=1e-4)
    assert f"at {np.mean(losses):.4f} nats" in done.stderr.decode()


def test_text_from_a_file_is_text_from_a_pipe(command: Run, tiny_path: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    from_file = command(RUN, tiny_path, tmp_path / "text")
    assert from_file.stdout == command(RUN, tiny_path, stdin=TEXT).stdout


def test_a_character_cut_anywhere_is_never_mangled(tiny: OceanModel) -> None:
    whole = [step.token for step in read_text(tiny.stream(), [TEXT])]
    for cut in range(len(TEXT)):
        assert [s.token for s in read_text(tiny.stream(), [TEXT[:cut], b"", TEXT[cut:]])] == whole
    assert [s.token for s in read_text(tiny.stream(), [bytes([b]) for b in TEXT])] == whole


def test_bytes_that_are_no_utf8_and_unseen_characters_are_unknown(tiny: OceanModel) -> None:
    for text in (b"\xff", "雪".encode(), b"\xc3"):
        assert [s.token for s in read_text(tiny.stream(), [text])] == [0]


def test_text_is_read_as_it_arrives(tiny_path: Path, environment: dict[str, str]) -> None:
    line = [sys.executable, "-m", RUN, str(tiny_path)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"R")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"step")
        assert process.stdout.readline().split(b"\t")[:2] == [b"1", b"'R'"]  # before the pipe is closed
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def test_generated_text_is_the_pythons(command: Run, tiny: OceanModel, tiny_path: Path) -> None:
    done = command(RUN, tiny_path, "--generate", "30", "--seed", "5", "--top-k", "9", stdin=b"ROMEO:")
    stream = tiny.stream()
    list(read_text(stream, [b"ROMEO:"]))
    assert done.stdout.decode() == "".join(generate(stream, 30, seed=5, top_k=9))
    assert stream.steps == 36


def test_generating_from_nothing_works(command: Run, tiny_path: Path) -> None:
    done = command(RUN, tiny_path, "--generate", "10", "--temperature", "0")
    assert done.returncode == 0
    assert len(done.stdout.decode()) == 10


def test_state_file_continues_the_text(command: Run, tiny_path: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    whole = command(RUN, tiny_path, "--generate", "40", stdin=TEXT).stdout
    first = command(RUN, tiny_path, "--state", state, "--generate", "15", stdin=TEXT)
    second = command(RUN, tiny_path, "--state", state, "--generate", "25")
    assert b"going on from step" in second.stderr
    assert first.stdout + second.stdout == whole


def test_losses_go_on_across_a_restart(command: Run, tiny_path: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    losses = [row.split(b"\t")[:3] for row in command(RUN, tiny_path, stdin=TEXT).stdout.splitlines()[1:]]
    parts = [command(RUN, tiny_path, "--state", state, stdin=part) for part in (TEXT[:9], TEXT[9:])]
    rows = [row.split(b"\t")[:3] for part in parts for row in part.stdout.splitlines()[1:]]
    assert rows == losses


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_text_goes_on_where_it_was(
    command: Run, tiny_path: Path, tmp_path: Path, environment: dict[str, str], number: signal.Signals
) -> None:
    state = tmp_path / "state"
    line = [sys.executable, "-m", RUN, str(tiny_path), "--state", str(state), "--generate", "100000000"]
    with subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        bufsize=0,
    ) as process:
        assert process.stdout is not None
        written = process.stdout.read(50)
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    written += rest
    count = len(written.decode())
    after = command(RUN, tiny_path, "--state", state, "--generate", "20")
    whole = command(RUN, tiny_path, "--generate", str(count + 20))
    assert written + after.stdout == whole.stdout


def test_a_signal_while_waiting_for_a_pipe_saves(
    tiny: OceanModel, tiny_path: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    line = [sys.executable, "-m", RUN, str(tiny_path), "--state", str(tmp_path / "state")]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"RO")
        process.stdin.flush()
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    stream = tiny.stream()
    stream.restore(tmp_path / "state")
    assert stream.steps == 2


@pytest.mark.parametrize("model", ["tiny.onnx", "tiny_sensors.onnx"])
def test_a_terminal_is_told_that_it_is_read(tiny_path: Path, environment: dict[str, str], model: str) -> None:
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", RUN, str(tiny_path.with_name(model))]
    with subprocess.Popen(
        line, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"ocean-run: reading standard input; end it with Ctrl-D\n"
        os.write(ours, b"\x04")
        process.wait(timeout=30)
    os.close(ours)
    os.close(theirs)


def test_a_pipe_is_read_without_a_word(command: Run, tiny_path: Path) -> None:
    assert b"reading standard input" not in command(RUN, tiny_path, stdin=b"RO").stderr


def test_info_says_what_the_model_is(command: Run, tiny_path: Path) -> None:
    told = command(RUN, tiny_path, "--info").stdout.decode()
    for part in ("ocean -> ocean_next  float32 [B, 16]", "token  int64 [B]", "width 16", "float64", "char"):
        assert part in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.onnx",), "ocean-run: there is no model file at none.onnx"),
        (("MODEL", "none.txt"), "none.txt can't be read: No such file"),
        (("MODEL", "/"), "/ can't be read: Is a directory"),
        (
            ("MODEL", "--state", "/nowhere/state"),
            "can't be saved to /nowhere/state: there is no folder /nowhere",
        ),
        (
            ("MODEL", "--state", "MODEL"),
            "the file there is no snapshot; name a snapshot, or a file that does not exist yet",
        ),
        (("README.md",), "README.md is no ONNX file, or is damaged ("),
        (("MODEL", "--generate", "-1"), "must be 0 or more"),
        (("MODEL", "--generate", "x"), "invalid int value"),
        (("MODEL", "--temperature", "nan"), "must be 0.0 or more"),
        (("MODEL", "--top-k", "0"), "must be 1 or more"),
        (("MODEL", "--seed", "99999999999999999999999"), "below 2^64"),
        (("MODEL", "--state", ""), "is no name for a snapshot"),
        (("MODEL", "--state", "/"), "is no name for a snapshot"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    command: Run, tiny_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = command(RUN, *(str(tiny_path) if a == "MODEL" else a for a in arguments))
    assert done.returncode in (1, 2)
    assert message in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_a_reader_that_leaves_is_no_traceback(tiny_path: Path, environment: dict[str, str]) -> None:
    line = [sys.executable, "-m", RUN, str(tiny_path), "--generate", "100000"]
    with subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        bufsize=0,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        process.wait(timeout=30)


def test_sampling_follows_the_probabilities_and_only_the_step_and_seed() -> None:
    logits = np.log(np.array([0.9, 0.6, 0.3, 0.1], np.float32))
    draws = np.array([sample(logits, step=step, seed=1) for step in range(4000)])
    assert np.bincount(draws, minlength=4) / 4000 == pytest.approx([0, 0.6, 0.3, 0.1], abs=0.03)
    assert {sample(logits, step=s, top_k=2) for s in range(200)} == {1, 2}
    assert sample(logits, step=0, temperature=0) == 1
    assert [sample(logits, step=s, seed=3) for s in range(50)] == [
        sample(logits, step=s, seed=3) for s in range(50)
    ]
    for wrong in ({"temperature": -1.0}, {"top_k": 0}):
        with pytest.raises(ValueError, match="must be"):
            sample(logits, step=0, **wrong)  # type: ignore[arg-type]


def test_minimal_loop_runs_without_our_package(tiny_path: Path, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "minimal_loop.py"
    count = len(example.read_text().splitlines())
    assert count <= 30
    assert f"in {count} lines: [examples/minimal_loop.py]" in (example.parents[1] / "README.md").read_text()
    blocker = tmp_path / "ocean_runtime.py"
    blocker.write_text("raise AssertionError('imported')")
    done = subprocess.run(
        [sys.executable, str(example), str(tiny_path), "ROMEO:", "40"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert len(done.stdout.decode()) == 41 or len(done.stdout.decode()) == 40


def test_minimal_loop_refuses_a_model_of_sensors(tiny_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "minimal_loop.py"
    line = [sys.executable, str(example), str(tiny_path.with_name("tiny_sensors.onnx")), "ROMEO:", "40"]
    done = subprocess.run(line, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == "this loop is for text; ocean-run takes rows of sensors\n"


def test_an_option_cut_short_is_refused(command: Run, tiny_path: Path) -> None:
    done = command(RUN, tiny_path, "--temp", "0.5")
    assert done.returncode == 2 and b"unrecognized arguments: --temp" in done.stderr


def test_options_may_stand_between_model_and_text(command: Run, tiny_path: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    done = command(RUN, tiny_path, "--seed", "1", tmp_path / "text")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 + len(TEXT.decode())


def test_an_option_for_another_kind_of_model_is_refused(command: Run, tiny_path: Path) -> None:
    sensors = tiny_path.with_name("tiny_sensors.onnx")
    for model, option, value in ((tiny_path, "missing", "hold"), (sensors, "generate", "3")):
        done = command(RUN, model, f"--{option}", value)
        assert done.returncode == 1
        assert done.stderr.decode().startswith(f"ocean-run: --{option} means nothing to this model")


def test_a_full_disk_under_the_output_is_one_sentence(command: Run, tiny_path: Path) -> None:
    for option in ("--info", "--generate=9"):
        done = subprocess.run(
            f'exec "{sys.executable}" -m {RUN} "{tiny_path}" {option} > /dev/full < /dev/null',
            shell=True,
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "runtime")},
        )
        assert done.returncode == 1
        assert done.stderr.decode().splitlines()[-1] == (
            "ocean-run: the output can't be written: No space left on device"
        )
        assert "Traceback" not in done.stderr.decode()


def test_a_terminal_of_another_encoding_shows_what_it_can(
    tiny_path: Path, environment: dict[str, str]
) -> None:
    line = [sys.executable, "-m", RUN, str(tiny_path), "--generate", "300"]
    done = subprocess.run(
        line,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**environment, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_prefill_graph_reads_the_same(
    command: Run, tiny: OceanModel, tiny_path: Path, tiny_prefill: Path, tmp_path: Path
) -> None:
    """Where the graph for many steps lies beside the model: the same tokens, steps and losses, and the same state."""
    text = TEXT * 12
    stream = OceanModel.load(tiny_prefill).stream()
    reads = read_text(stream, [text])
    next(reads)
    assert stream.steps == STEPS, "many steps in one call"
    found, expected = [next(reads) for _ in range(STEPS + 20)], list(read_text(tiny.stream(), [text]))[1:]
    for one, other in zip(found, expected, strict=False):
        assert one[:2] == other[:2] and one.step == other.step
        assert one.loss == pytest.approx(other.loss, abs=1e-5)
    many, singly = (command(RUN, path, stdin=text) for path in (tiny_prefill, tiny_path))
    table = [[line.split("\t") for line in done.stdout.decode().splitlines()] for done in (many, singly)]
    assert [row[:2] for row in table[0]] == [row[:2] for row in table[1]]
    numbers = [np.array([row[2:] for row in rows[2:]], float) for rows in table]
    np.testing.assert_allclose(*numbers, atol=1.1e-4)
    states = []
    for path in (tiny_prefill, tiny_path):
        state = tmp_path / path.parent.name
        done = command(RUN, path, "--generate", "20", "--state", state, stdin=text)
        states.append((done.stdout, read(state).steps))
    assert states[0] == states[1]
