"""From a log on disk to a file that runs, by the three commands."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from bag_writer import imu, joints, write_bag
from ocean_export.cli import main as export
from ocean_runtime import OceanModel
from ocean_runtime.bags import open_bag, read_rows
from ocean_train import checkpoint
from ocean_train.cli import main
from ocean_train.features import prepare
from ocean_train.logs import Request, read_log

Run = Callable[..., subprocess.CompletedProcess[bytes]]
SIZES = {
    "width": 16,
    "layers": 1,
    "heads": 2,
    "steps": 30,
    "batch": 4,
    "window": 16,
    "lr": 5e-3,
    "eval-every": 15,
}
SMALL = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]


def write_csv(path: Path, seconds: float = 12, episodes: int = 4) -> Path:
    lines = ["who,stamp [s],gyro [rad/s],north [m],mode"]
    for e in range(episodes):
        for t in np.arange(0, seconds, 0.05):
            gyro, north = np.sin(2 * t + e), 4_512_345 + 0.01 * np.cos(2 * t + e)
            lines.append(
                f"e{e},{100 * e + t:.3f},{gyro:.6f},{north:.6f},{'up' if np.cos(2 * t + e) > 0 else 'down'}"
            )
    path.write_text("\n".join(lines) + "\n")
    return path


def write_robot_bag(path: Path, storage: str, phase: float) -> Path:
    messages = [(t, "/imu", imu((np.sin(3 * t + phase), 0, 0))) for t in np.arange(0, 20, 0.01)]
    messages += [(t, "/joint_states", joints([0.0, np.cos(3 * t + phase)])) for t in np.arange(0, 20, 0.02)]
    messages = [m for m in messages if not 9 < m[0] < 11]
    return write_bag(path, sorted(messages, key=lambda m: m[0]), storage)


def test_csv_from_log_to_file_to_rows(
    command: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_csv(tmp_path / "log.csv")
    asked = ["--log", str(log), "--episode", "who", "--time", "stamp", "--validate-on", "log/e3"]
    assert main([*asked, "--preview"]) == 0
    said = capsys.readouterr().out
    for words in (
        "20 rows a second",
        "columns not used: mode",
        "north: too large for float32 beside its changes: 4512345 is subtracted",
        "960 rows in 4 episodes",
        "to train on: 720 rows (75.0%) in 3 episodes, 717 steps: log/e0, log/e1, log/e2",
        "held out to validate on: 240 rows (25.0%) in 1 episode, 239 steps: log/e3",
    ):
        assert words in said
    out, model = str(tmp_path / "run"), tmp_path / "m.onnx"
    assert main([*asked, *SMALL, "--out", out]) == 0
    said = capsys.readouterr().out
    assert "gyro [rad/s]" in said and "below hold" in said
    assert export([out, "-o", str(model)]) == 0
    assert "north [m], less 4512345" in command("ocean_runtime.cli", model, "--info").stdout.decode()
    ran = command("ocean_runtime.cli", model, log, "--episode", "who")
    assert ran.returncode == 0, ran.stderr.decode()
    table = list(csv.DictReader(io.StringIO(ran.stdout.decode())))
    data = prepare(read_log(Request((log,), episode="who", time="stamp")), ("log/e3",))
    begin = int(data.validation.begin[0])
    expected = OceanModel.load(model).stream().run(data.log.rows[begin : begin + 50])
    found = [[float(row["gyro [rad/s]"]), float(row["north [m]"])] for row in table[begin : begin + 50]]
    np.testing.assert_array_equal(found, expected)


def test_the_preview_says_what_its_numbers_cover_what_is_held_out_and_whether_that_will_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two gaps: the last of three episodes is held out, and is where the largest load is."""
    log = tmp_path / "drive.csv"
    times = [0.02 * i + 9 * (i >= 900) + 9 * (i >= 1900) for i in range(3000)]
    loads = [f"{i % 4 + (3.5 if i >= 1900 else 0)}" for i in range(3000)]
    loads[30] = ""
    rows = [f"{time:.2f},{load}" for time, load in zip(times, loads, strict=True)]
    log.write_text("\n".join(["stamp,load [kg]", *rows]) + "\n")
    asked = ["--log", str(log), "--time", "stamp"]
    assert main([*asked, "--preview"]) == 0
    said = capsys.readouterr().out
    table = next(line for line in said.splitlines() if line.startswith("load [kg] "))
    low, high, mean, std, low_train, high_train = map(float, table.split()[2:])
    values = np.array([float(load or loads[29]) for load in loads])
    assert (low, high, low_train, high_train) == (0.0, 6.5, 0.0, 3.0)
    assert (mean, std) == pytest.approx((values.mean(), values.std()), rel=1e-5)
    for line in (
        "of all 3,000 rows that are read; `train`: of the part to train on, whose mean and std scale the model",
        "load: 1 missing value, filled with the last value before in the same episode",
        "2 gaps longer than 1 s; such a gap ends its episode",
        "to train on: 1,900 rows (63.3%) in 2 episodes, 1,898 steps: drive, drive#2",
        "held out to validate on: 1,100 rows (36.7%) in 1 episode, 1,099 steps: drive#3",
    ):
        assert line in said.splitlines()
    short = (
        "drive.csv is too short: 1,898 steps to train on do not give 32 rows of 64 steps; give more data, "
        "or --batch 29 or less, or --window 59 or less"
    )
    assert said.splitlines()[-1] == f"training as asked for would be refused: {short}"
    assert main([*asked, "--out", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err == f"ocean-train: {short}\n"
    for enough in (["--batch", "29"], ["--window", "59"], ["--feed", "windows"]):
        assert main([*asked, "--preview", *enough]) == 0
        assert "too short" not in capsys.readouterr().out
    assert main([*asked, "--batch", "29", "--steps", "1", "--out", str(tmp_path / "run")]) == 0
    assert main([*asked, "--preview", "--batch", "0"]) == 1


def test_gaps_of_a_csv_end_episodes_in_ocean_run_as_in_training(command: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    times = [t for t in range(0, 24_000, 50) if not (6000 < t < 9000 or 15_000 < t < 19_000)]
    times[40] = times[39]  # repeated
    rows = [f"{t},{np.sin(t / 500):.6f},{'' if t % 350 == 0 and t else t % 3}" for t in times]
    log.write_text("\n".join(["stamp [ms],gyro [rad/s],load", *rows]) + "\n")
    model = tmp_path / "m.onnx"
    assert main(["--log", str(log), "--time", "stamp", *SMALL, "--out", str(tmp_path / "run")]) == 0
    assert export([str(tmp_path / "run"), "-o", str(model)]) == 0
    data = prepare(read_log(Request((log,), time="stamp")))
    assert len(data.log.episodes) == 3 and data.log.findings.repeated == 1
    streams = [OceanModel.load(model).stream().run(data.log.rows[a:b]) for a, b in pairwise(data.log.starts)]
    for asked in ([], ["--time", "stamp"]):  # the contract names the column by itself
        ran = command("ocean_runtime.cli", model, log, *asked)
        assert ran.returncode == 0 and not ran.stderr, ran.stderr.decode()
        table = [list(row.values())[2:] for row in csv.DictReader(io.StringIO(ran.stdout.decode()))]
        assert table.pop(40) == ["", ""]
        np.testing.assert_array_equal(np.array(table, np.float32), np.concatenate(streams))
    ran = command("ocean_runtime.cli", model, stdin=b"gyro [rad/s],load\n0,1\n")
    assert ran.returncode == 0
    assert "has no column 'stamp', whose gaps of over 1 s ended episodes in training" in ran.stderr.decode()


def test_a_value_outside_the_training_range_is_counted_and_none_of_the_training_data_is(
    command: Run, tmp_path: Path
) -> None:
    log, model = write_csv(tmp_path / "log.csv"), tmp_path / "m.onnx"
    asked = ["--log", str(log), "--features", "gyro", "north", "--episode", "who", "--validate-on", "log/e3"]
    assert main([*asked, *SMALL, "--out", str(tmp_path / "run")]) == 0
    assert export([str(tmp_path / "run"), "-o", str(model)]) == 0
    data = prepare(read_log(Request((log,), features=("gyro", "north"), episode="who")), ("log/e3",))
    seen = data.log.rows[: data.log.starts[3]]
    for item, column in zip(OceanModel.load(model).contract.inputs[0].elements, seen.T, strict=True):
        assert (item.low, item.high) == (column.min(), column.max())
    info = command("ocean_runtime.cli", model, "--info").stdout.decode()
    assert f"[rad/s], {seen[:, 0].min():g} to {seen[:, 0].max():g} in training" in info
    lines = log.read_text().splitlines()
    ran = command("ocean_runtime.cli", model, stdin="\n".join(lines[: 1 + len(seen)]).encode())
    assert ran.returncode == 0 and not ran.stderr, ran.stderr.decode()
    strange = [*lines[:3], "e0,9,1.5,4512345,up", "e0,9,-1.5,4512345,up"]
    ran = command("ocean_runtime.cli", model, stdin="\n".join(strange).encode())
    said = ran.stderr.decode().splitlines()
    assert ran.returncode == 0 and len(said) == 2
    assert "gyro was 1.5, and the model saw" in said[0]
    assert said[1] == "ocean-run: 2 rows had a value outside the training data's range"


def test_a_clock_is_no_feature_unless_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_csv(tmp_path / "log.csv")
    asked = ["--log", str(log), "--episode", "who", *SMALL, "--out", str(tmp_path / "run")]
    assert main([*asked, "--preview"]) == 0
    assert (
        "stamp: named like a time, and never falls: no observation; give --time stamp"
        in capsys.readouterr().out
    )
    assert main(asked) == 1
    assert "'stamp' never falls and is named like a time" in capsys.readouterr().err
    assert main([*asked, "--features", "stamp", "gyro"]) == 0
    assert "stamp: named like a time" in capsys.readouterr().out


def test_a_run_on_a_log_resumes_exactly_and_refuses_another_log(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv")
    asked = ["--log", str(log), "--episode", "who", "--features", "gyro", "--classes", "mode", *SMALL]
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    assert main([*asked, "--out", whole, "--save-every", "10"]) == 0
    import signal

    from ocean_train import loop

    stopped = iter(range(99))
    data = prepare(read_log(Request((log,), features=("gyro",), classes="mode", episode="who")))
    settings = loop.Settings(**checkpoint.load(whole).settings)
    loop.train(
        settings,
        data,
        Path(parts),
        eval_every=15,
        save_every=10,
        stop=lambda: next(stopped) == 13,
    )
    assert checkpoint.load(parts).step == 13 and signal.getsignal(signal.SIGINT)
    assert main([*asked, "--out", parts, "--save-every", "10"]) == 0
    a, b = checkpoint.load(whole), checkpoint.load(parts)
    assert all((a.weights[name] == b.weights[name]).all() for name in a.weights)
    assert a.history[-1]["accuracy"] == b.history[-1]["accuracy"]
    write_csv(log, seconds=11)
    assert main([*asked, "--out", parts]) == 1


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_the_same_bag_in_ocean_run_and_in_python_gives_the_same_numbers(
    command: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], storage: str
) -> None:
    bags = [write_robot_bag(tmp_path / f"bag{i}", storage, phase=i) for i in range(2)]
    logs = ["--log", *map(str, bags)]
    assert main([*logs, "--preview"]) == 0
    said = capsys.readouterr().out
    assert "/imu  sensor_msgs/msg/Imu, 1,801 messages, about 100 Hz" in said and "position[1]" in said
    fields = ["/imu:angular_velocity.x [rad/s]", "/joint_states:position[1] [rad]"]
    asked = [*logs, "--features", *fields, "--rate", "20", "--max-age", "0.5"]
    assert main([*asked, "--preview"]) == 0
    said = capsys.readouterr().out
    assert "2 gaps longer than 0.5 s; such a gap ends its episode" in said and "longest gap 2" in said
    assert main([*asked, *SMALL, "--out", str(tmp_path / "run")]) == 0
    assert export([str(tmp_path / "run"), "-o", str(tmp_path / "m.onnx")]) == 0
    ran = command("ocean_runtime.cli", tmp_path / "m.onnx", bags[1])
    assert ran.returncode == 0, ran.stderr.decode()
    found = [[float(row[f]) for f in fields] for row in csv.DictReader(io.StringIO(ran.stdout.decode()))]

    model = OceanModel.load(tmp_path / "m.onnx")
    stream, outputs, episode = model.stream(), [], "1"
    with open_bag(bags[1]) as bag:
        for row in read_rows(bag, model.contract.inputs[0].elements, 20, 0.5):
            if row.episode != episode:
                stream.reset()
            episode = row.episode
            outputs.append(stream.step(row.values))
    assert episode == "2"
    np.testing.assert_array_equal(np.array(found, np.float32), np.array(outputs))
    # The rows that training read are those that ocean-run reads.
    log = read_log(Request((bags[1],), tuple(fields), rate_hz=20, max_age_s=0.5))
    stream.reset()
    first = log.rows[: log.starts[1]]
    np.testing.assert_array_equal(stream.run(first), np.array(outputs)[: len(first)])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--preview"], "give --log FILE"),
        (["--log", "LOG", "--text", "LOG"], "a model reads text or a log of sensors"),
        (["--log", "nowhere.csv"], "there is no log at nowhere.csv"),
        (
            ["--log", "LOG", "--features", "speed"],
            "no column 'speed'; its columns are who, stamp, gyro, north, mode",
        ),
        (
            ["--log", "LOG", "--time", "stamp", "--batch", "1000"],
            "717 steps to train on do not give 1,000 rows of 64 steps; give more data, or --batch 11 or less\n",
        ),
    ],
)
def test_errors_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str], message: str
) -> None:
    log = write_csv(tmp_path / "log.csv")
    assert main([a.replace("LOG", str(log)) for a in asked] + ["--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1


def test_training_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.csv"
    rows = [f"{0.02 * i:.2f},{'' if i < 3 else i % 7},{i % 5},up,{i % 2}" for i in range(400)]
    rows[10:10] = [rows[9], rows[9]]
    rows += [f"{100 + 0.02 * i:.2f},{i % 7},{i % 5},up,1" for i in range(400)]
    log.write_text("\n".join(["stamp,a,b,mode,c", *rows]) + "\n")
    asked = ["--log", str(log), "--time", "stamp"]
    expected = [
        "columns not used: mode (words, such as 'up')",
        "rows left out: 5 of 802 (0.6%): 3 before each column has had a value, 2 with the time of the row before",
        "1 gap longer than 1 s; such a gap ends its episode",
    ]
    assert main([*asked, "--preview"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in expected if line not in said] == []
    assert main([*asked, *SMALL, "--steps", "1", "--out", str(tmp_path / "run")]) == 0
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in expected if line not in said] == []
    assert main([*asked, "--features", "a", "--preview"]) == 0
    assert "3 columns not asked for: b, mode, c" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_log_is_read_ends_it(
    tmp_path: Path, environment: dict[str, str], number: signal.Signals
) -> None:
    """The log is a pipe that nobody closes: it would be read for ever."""
    pipe = tmp_path / "log.csv"
    os.mkfifo(pipe)
    line = [sys.executable, "-m", "ocean_train.cli", "--log", str(pipe), "--preview"]
    with (
        subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) as process,
        pipe.open("w") as log,  # waits until it is opened for reading
    ):
        log.write("a,b\n1,2\n")
        log.flush()
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number
    assert said == "stopped while the data was read; nothing was trained\n"


def test_names_in_a_c_locale(command: Run, environment: dict[str, str], tmp_path: Path) -> None:
    """Without UTF-8 mode, Python takes arguments and streams for ASCII there."""
    c = {**environment, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    c.pop("PYTHONIOENCODING", None)
    log = tmp_path / "log.csv"
    log.write_text("語,速\n" + "".join(f"{0.02 * i:.2f},{i % 7}\n" for i in range(900)), encoding="utf-8")
    asked = ["--log", str(log), "--time", "語", "--features", "速", *SMALL, "--steps", "1"]
    out, model = tmp_path / "run", tmp_path / "m.onnx"
    for line in (
        ["ocean_train.cli", *asked, "--regime", "serial", "--out", str(out)],
        ["ocean_export.cli", str(out), "-o", str(model)],
        ["ocean_runtime.cli", str(model), str(log), "--time", "語"],
    ):
        done = subprocess.run([sys.executable, "-m", *line], env=c, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines()[0] == "row,語,速"
    line = ["ocean_runtime.cli", str(model), str(log), "--time", "時"]
    done = subprocess.run([sys.executable, "-m", *line], env=c, capture_output=True, check=False)
    assert "has no column '時'; its columns are 語, 速" in done.stderr.decode()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--width", "100000"], "ask for 240,000,000,000 weights"),
        (["--width", "100000000000"], "give --width 4729 or less"),
        (["--layers", "100000000000"], "give fewer layers"),
        (["--window", "100000000000000", "--feed", "windows"], "there is not enough memory"),
    ],
)
def test_a_size_that_can_not_be_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    log = write_csv(tmp_path / "log.csv")
    assert main(["--log", str(log), "--features", "gyro", *options, "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1
