"""ocean-train as its user meets it: what it prints, what it refuses, and how it stops, dies and goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import torch
from ocean_runtime import __version__
from ocean_train.checkpoint import POINTER, load
from ocean_train.cli import main

TEXT = "so shaken as we are, so wan with care, find we a time for frighted peace to pant. " * 8
SIZES = {
    "width": 8,
    "layers": 1,
    "heads": 2,
    "batch": 3,
    "window": 5,
    "steps": 12,
    "eval-every": 6,
    "save-every": 6,
}
TINY = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def _threads_as_before() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_run_prints_its_losses_and_a_sample_and_leaves_a_checkpoint_and_a_picture(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["--text", str(text), *TINY, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "text   text.txt: 591 tokens to train on, 65 to validate" in printed
    assert printed.count("with the state carried") == 2
    assert "done   validation loss" in printed
    assert "it writes, after reading" in printed
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert load(out).step == 12
    before = (out / POINTER).read_bytes()
    assert main(["--text", str(text), *TINY, "--out", str(out)]) == 0  # nothing is left to do
    assert (out / POINTER).read_bytes() == before


def test_a_reader_that_goes_away_or_a_full_disk_does_not_end_the_training(text: Path, tmp_path: Path) -> None:
    call = ["--text", str(text), *TINY]
    with Path("/dev/full").open("w") as full, redirect_stdout(full):
        assert main([*call, "--out", str(tmp_path / "full")]) == 0
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe, redirect_stdout(pipe):
        assert main([*call, "--out", str(tmp_path / "pipe")]) == 0
    for name in ("full", "pipe"):
        assert load(tmp_path / name).step == 12
        assert (tmp_path / name / "curves.png").exists()


@pytest.mark.parametrize("name", [b"x$\\frac$.txt", b"caf\xe9.txt"])
def test_a_text_of_any_name_trains(name: bytes, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(name)
    path.write_text(TEXT)
    assert main(["--text", str(path), *TINY, "--out", str(tmp_path / "run")]) == 0
    assert load(tmp_path / "run").data["name"] == name.decode(errors="replace")
    assert (tmp_path / "run" / "curves.png").exists()


def test_words_and_streams(text: Path, tmp_path: Path) -> None:
    options = ["--tokenizer", "word", "--vocabulary", "9", "--feed", "streams", "--batch", "2"]
    assert main(["--text", str(text), *TINY, "--out", str(tmp_path / "run"), *options]) == 0
    checkpoint = load(tmp_path / "run")
    assert checkpoint.tokenizer.kind == "word"
    assert checkpoint.tokenizer.size == 9
    assert "carried" in checkpoint.optimizer


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--feed", "streams", "--shuffle"], "drop --shuffle"),
        (["--heads", "3"], "3 heads do not divide the width 8"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--eval-every", "0"], "--eval-every must be at least 1"),
        (["--window", "100"], "give a longer text or a smaller --window"),
        (["--vocabulary", "1"], "a vocabulary holds the unknown token and at least one more"),
        (["--corpus", "tinyshakespeare"], "is not tiny Shakespeare"),
        (["--text", "/nowhere/at/all"], "/nowhere/at/all cannot be read: No such file or directory"),
        (["--out", "/proc/nowhere"], "/proc/nowhere"),
        (["--steps", "300", "--lr", "1e37"], "try a smaller --lr"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    text: Path, tmp_path: Path, options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--text", str(text), *TINY, "--out", str(tmp_path / "run"), *options]) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("ocean-train: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--step", "5"], ["--width=8", "--eval", "9"]])
def test_an_option_cut_short_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "unrecognized arguments: --" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"oceanstate {__version__}\n"


def test_other_settings_for_the_same_folder_are_refused(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--text", str(text), *TINY, "--out", str(tmp_path / "run")]
    assert main(run) == 0
    assert main([*run, "--seed", "1"]) == 1
    assert "holds a run with --seed 0 where this one has 1" in capsys.readouterr().err
    assert main([*run, "--steps", "99"]) == 1
    said = capsys.readouterr().err
    assert "whose learning rate falls to 0 at its last step, so that it can't become one of 99" in said


def test_without_torch_it_says_what_to_install_and_help_still_works() -> None:
    program = """if True:
        import sys
        class Hidden:
            def find_spec(self, name, path=None, target=None):
                if name.split('.')[0] == 'torch':
                    raise ModuleNotFoundError(f'No module named {name!r}', name=name)
        sys.meta_path.insert(0, Hidden())
        from ocean_train.cli import main
        assert 'numpy' not in sys.modules
        sys.exit(main([]))
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "ocean-train needs PyTorch: pip install 'oceanstate[train]'\n"


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Starts real processes that need not import PyTorch each: they are forked from one that has."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ocean_train.loop", "torch._dynamo"])  # AdamW imports the latter
    return context


def run_into(path: Path, argv: list[str]) -> None:
    """The command with its output in a file: what the processes of the tests below do."""
    with path.open("w") as file, redirect_stdout(file):
        sys.exit(main(argv))


def step_of(out: Path) -> int:
    """The step that the pointer names; the pointer alone, since the other files come and go meanwhile."""
    return int(json.loads((out / POINTER).read_text())["step"]) if (out / POINTER).exists() else 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_a_checkpoint_and_the_same_command_goes_on(
    text: Path, tmp_path: Path, number: signal.Signals, processes: ForkServerContext
) -> None:
    out, printed = tmp_path / "run", tmp_path / "printed"
    options = ["--steps", "100000", "--eval-every", "100000", "--save-every", "3", "--out", str(out)]
    steps = [0]
    for _ in range(2):
        process = processes.Process(target=run_into, args=(printed, ["--text", str(text), *TINY, *options]))
        process.start()
        while process.is_alive() and step_of(out) <= steps[-1]:
            pass  # until this process has saved
        assert process.pid is not None
        os.kill(process.pid, number)
        process.join()
        assert process.exitcode == 128 + number
        steps.append(load(out).step)
        assert (
            f"stopped at step {steps[-1]} of 100000; the same command goes on from there"
            in printed.read_text()
        )
    assert steps[1] < steps[2]
    assert f"going on from step {steps[1]} of 100000" in printed.read_text()


def test_killed_ten_times_at_random_moments_it_ends_with_the_weights_of_an_unbroken_run(
    text: Path, tmp_path: Path, processes: ForkServerContext
) -> None:
    """SIGKILL once a process has begun a random number of saves, and a random while after."""
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    options = ["--steps", "250", "--eval-every", "1000", "--save-every", "1"]
    call = ["--text", str(text), *TINY, *options]
    assert main([*call, "--out", str(unbroken)]) == 0
    chance = random.Random(0)
    for kill in range(10):
        goal = kill * 20 + chance.randrange(1, 20)
        process = processes.Process(
            target=run_into, args=(tmp_path / "printed", [*call, "--out", str(killed)])
        )
        process.start()
        while process.is_alive() and newest_weights(killed) < goal:
            pass
        for _ in range(chance.randrange(20_000)):
            pass  # some part of a step or of a save more
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert step_of(killed) < 250
    assert main([*call, "--out", str(killed)]) == 0
    a, b = load(unbroken), load(killed)
    assert a.step == b.step == 250
    assert a.weights_sha256 == b.weights_sha256
    assert all(torch.equal(a.optimizer[name], b.optimizer[name]) for name in a.optimizer)


def newest_weights(out: Path) -> int:
    """The step of the newest file of weights, named by the pointer or not yet."""
    return max((int(path.name.split("-")[1]) for path in out.glob("weights-*")), default=0)


@pytest.mark.parametrize(
    "options",
    [
        ["--regime", "serial"],
        ["--regime", "detach", "--sweeps", "2"],
        ["--truncate", "2", "--feed", "streams"],
        ["--model", "transformer"],
        ["--model", "lstm", "--feed", "streams"],
        ["--model", "gru"],
    ],
)
def test_every_regime_and_model_trains(
    options: list[str], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["--text", str(text), *TINY, *options, "--out", str(out)]) == 0
    assert "it writes, after reading" in capsys.readouterr().out
    assert load(out).step == 12


@pytest.mark.parametrize(
    "options,complaint",
    [
        (["--model", "lstm", "--regime", "detach"], "--regime and --truncate are for --model ocean"),
        (["--regime", "detach", "--truncate", "3"], "the regime detach has no option truncate"),
        (["--truncate", "0"], "truncate must be a positive whole number or None, not 0"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    options: list[str], complaint: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--text", str(text), *TINY, *options, "--out", str(tmp_path / "run")]) == 1
    assert complaint in capsys.readouterr().err
