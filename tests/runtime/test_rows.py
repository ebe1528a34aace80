"""ocean-run for sensors: rows of CSV or a bag in, rows out, the same numbers as in Python."""

from __future__ import annotations

import csv
import io
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bag_writer import imu, joints, write_bag
from ocean_runtime import InputError, OceanModel
from ocean_runtime.bags import open_bag, read_rows
from ocean_runtime.rows import step_rows
from ocean_runtime.sampling import log_softmax
from ocean_runtime.tables import Row, label

Run = Callable[..., subprocess.CompletedProcess[bytes]]
RUN = "ocean_runtime.cli"
FIXTURES = Path(__file__).parents[1] / "fixtures"
SENSORS, ACTIVITY = FIXTURES / "tiny_sensors.onnx", FIXTURES / "tiny_activity.onnx"
NORTH = 4_512_345.0


@pytest.fixture(scope="module")
def sensors() -> OceanModel:
    return OceanModel.load(SENSORS)


@pytest.fixture(scope="module")
def activity() -> OceanModel:
    return OceanModel.load(ACTIVITY)


def recording(rows: int = 30) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    random = np.random.default_rng(3)
    return np.array([0.1, -0.5, NORTH + 0.25]) + random.standard_normal((rows, 3)) * [1.5, 0.7, 0.02]


def as_csv(model: OceanModel, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    header = ",".join(label(e) for e in model.contract.inputs[0].elements)
    return header + "\n" + "".join(",".join(map(repr, row)) + "\n" for row in values.tolist())


def lines(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, str]]:
    assert done.returncode == 0, done.stderr.decode()
    return list(csv.DictReader(io.StringIO(done.stdout.decode())))


def test_csv_gives_the_numbers_of_python_exactly(command: Run, sensors: OceanModel) -> None:
    values = recording()
    found = lines(command(RUN, SENSORS, stdin=as_csv(sensors, values).encode()))
    expected = sensors.stream().run(values)
    assert expected.dtype == np.float64  # a reference was added
    names = [label(e) for e in sensors.contract.outputs[0].elements]
    np.testing.assert_array_equal([[float(line[n]) for n in names] for line in found], expected)


def test_a_file_a_pipe_and_reordered_columns_are_the_same(
    command: Run, sensors: OceanModel, tmp_path: Path
) -> None:
    text = as_csv(sensors, recording())
    piped = command(RUN, SENSORS, stdin=text.encode())
    (tmp_path / "log.csv").write_text(text)
    assert command(RUN, SENSORS, tmp_path / "log.csv").stdout == piped.stdout
    table = [line.split(",") for line in text.splitlines()]
    turned = "\n".join(",".join([row[2], "7", row[0], row[1]]) for row in table).replace("7", "other", 1)
    assert command(RUN, SENSORS, stdin=turned.encode()).stdout == piped.stdout


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_bag_gives_the_numbers_of_python(
    command: Run, activity: OceanModel, tmp_path: Path, storage: str
) -> None:
    messages = [(t, "/imu", imu((np.sin(t), 0.0, 0.0))) for t in np.arange(0, 3, 0.03) if not 1 < t < 2]
    messages += [(t, "/joint_states", joints([0.0, t])) for t in np.arange(0, 3, 0.04)]
    bag = write_bag(tmp_path / "bag", sorted(messages, key=lambda m: m[0]), storage)
    found = lines(command(RUN, ACTIVITY, bag))
    contract, stream, expected = activity.contract, activity.stream(), []
    assert contract.rate_hz is not None and contract.max_age_s is not None
    with open_bag(bag) as opened:
        rows = list(read_rows(opened, contract.inputs[0].elements, contract.rate_hz, contract.max_age_s))
    for row, before in zip(rows, [rows[0], *rows], strict=False):
        if row.episode != before.episode:
            stream.reset()
        expected.append(stream.step(row.values))
    assert len({row.episode for row in rows}) == 2
    assert [float(line["time [s]"]) for line in found] == pytest.approx([row.time for row in rows], abs=1e-6)
    chances = np.exp(log_softmax(np.array(expected)))
    got = [[float(line["p(rest)"]), float(line["p(walk)"])] for line in found]
    np.testing.assert_allclose(got, chances, rtol=1e-5)
    assert [line["class"] for line in found] == [("rest", "walk")[i] for i in chances.argmax(1)]


def test_a_reference_keeps_what_float32_would_lose(sensors: OceanModel) -> None:
    a, b = np.array([0.0, 0.0, NORTH]), np.array([0.0, 0.0, NORTH + 0.02])
    assert np.float32(a[2]) == np.float32(b[2])
    assert not np.array_equal(sensors.stream().step(a), sensors.stream().step(b))
    moved = sensors.stream().step(b)[2] - sensors.stream().step(a)[2]
    assert moved == pytest.approx(0.02, abs=0.02)
    stream = sensors.stream()
    output = stream.step(a)
    assert stream.prediction is not None
    np.testing.assert_array_equal(stream.prediction, output)
    np.testing.assert_array_equal(stream.step_all(a)["prediction"].shape, (3,))


def test_batches_have_references_too(sensors: OceanModel) -> None:
    values = recording(4)
    batch = sensors.stream(4).step(values)
    for row, found in zip(values, batch, strict=True):
        np.testing.assert_allclose(sensors.stream().step(row), found, rtol=0, atol=1e-5)


def test_the_range_of_the_training_data_counts_before_the_reference(sensors: OceanModel) -> None:
    stream = sensors.stream()
    stream.step([3.9, 0.0, NORTH])
    assert stream.counters.out_of_range == 0
    stream.step([4.1, 0.0, NORTH])
    assert stream.counters.out_of_range == 1


def rows_of(*values: list[float], episodes: str = "") -> list[Row]:
    return [Row(i + 1, None, episodes[i : i + 1], v) for i, v in enumerate(values)]


@pytest.mark.parametrize("missing", [np.nan, np.inf, -np.inf])
def test_hold_takes_the_last_value_of_the_element(activity: OceanModel, missing: float) -> None:
    holed = rows_of([missing, 1.0], [1.0, 2.0], [missing, 3.0], [2.0, missing])
    outputs = [output for _, output in step_rows(activity.stream(), holed)]
    assert outputs[0] is None  # there is nothing to hold yet
    whole = activity.stream().run([[1.0, 2.0], [1.0, 3.0], [2.0, 3.0]])
    np.testing.assert_array_equal(np.stack([o for o in outputs if o is not None]), whole)


def test_refuse_names_row_and_element(activity: OceanModel) -> None:
    rows = rows_of([1.0, 2.0], [1.0, np.nan])
    with pytest.raises(InputError, match=r"row 2 has no finite '/joint_states:position\[1\]'"):
        list(step_rows(activity.stream(), rows, "refuse"))


def test_a_new_episode_starts_anew(activity: OceanModel) -> None:
    rows = rows_of([1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [np.nan, 2.0], episodes="aabc")
    outputs = [output for _, output in step_rows(activity.stream(), rows)]
    np.testing.assert_array_equal(outputs[0], outputs[2])
    assert outputs[3] is None  # no value is held across episodes


def test_state_goes_on_over_two_calls(command: Run, activity: OceanModel, tmp_path: Path) -> None:
    values = recording(20)[:, :2]
    whole = command(RUN, ACTIVITY, stdin=as_csv(activity, values).encode())
    for part in (values[:9], values[9:]):
        done = command(RUN, ACTIVITY, "--state", tmp_path / "state", stdin=as_csv(activity, part).encode())
    assert [list(line.values())[1:] for line in lines(done)] == [
        list(line.values())[1:] for line in lines(whole)
    ][9:]


@pytest.mark.parametrize(
    ("model", "arguments", "stdin", "message"),
    [
        (SENSORS, [], b"", "standard input is empty"),
        (SENSORS, [], b"a,b\n1,2\n", "no column '/imu:angular_velocity.x'; its columns are a, b"),
        (SENSORS, ["--missing", "refuse"], None, "has no finite"),
        (SENSORS, ["there is no such file.csv"], b"", "can't be read"),
    ],
)
def test_errors_are_one_sentence(
    command: Run, sensors: OceanModel, model: Path, arguments: list[str], stdin: bytes | None, message: str
) -> None:
    holed = as_csv(sensors, recording(2)).replace("0", "nan", 0) + "nan,1,2\n"
    done = command(RUN, model, *arguments, stdin=holed.encode() if stdin is None else stdin)
    assert done.returncode == 1
    assert message in done.stderr.decode() and "Traceback" not in done.stderr.decode()
    assert len(done.stderr.decode().splitlines()) == 1


def test_a_bag_needs_rosbags(command: Run, environment: dict[str, str], tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", [(0.0, "/imu", imu((0.0, 0.0, 0.0)))])
    (tmp_path / "rosbags.py").write_text("raise ImportError(name='rosbags')\n")
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    try:
        done = command(RUN, ACTIVITY, bag)
    finally:
        environment["PYTHONPATH"] = environment["PYTHONPATH"].removeprefix(f"{tmp_path}:")
    assert done.returncode == 1
    assert done.stderr.decode() == "ocean-run: reading a bag needs rosbags: pip install 'oceanstate[bags]'\n"
