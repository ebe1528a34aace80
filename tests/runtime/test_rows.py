"""ocean-run for sensors: rows of CSV or a bag in, rows out, the same numbers as in Python."""

from __future__ import annotations

import csv
import dataclasses
import io
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from bag_writer import imu, joints, write_bag
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_runtime import InputError, OceanError, OceanModel, SnapshotError
from ocean_runtime.bags import open_bag, read_rows
from ocean_runtime.rows import step_rows
from ocean_runtime.sampling import log_softmax
from ocean_runtime.snapshot import from_bytes, to_bytes
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


def times_of(*times: float) -> list[Row]:
    return [Row(i + 1, t, "", [0.3 * i, 1.0]) for i, t in enumerate(times)]


def test_gaps_and_a_clock_that_goes_back_start_anew_and_a_repeated_time_is_passed_over(
    activity: OceanModel,
) -> None:
    rows = times_of(0.0, 0.5, 0.5, 1.0, 1.75, 1.0)
    outputs = [output for _, output in step_rows(activity.stream(), rows, max_age_s=0.5)]
    assert outputs[2] is None
    whole = activity.stream().run([rows[i].values for i in (0, 1, 3)])
    np.testing.assert_array_equal(np.stack([outputs[i] for i in (0, 1, 3)]), whole)  # type: ignore[arg-type]
    for i in (4, 5):
        np.testing.assert_array_equal(outputs[i], activity.stream().step(rows[i].values))


def test_a_row_that_was_refused_may_come_again(activity: OceanModel) -> None:
    stream = activity.stream()
    rows = times_of(0.0, 0.1, 0.2)
    broken = [rows[0], rows[1]._replace(values=[1e300, 1.0])]
    with pytest.raises(InputError):
        list(step_rows(stream, broken, max_age_s=0.5))
    rest = [output for _, output in step_rows(stream, rows[1:], max_age_s=0.5)]
    np.testing.assert_array_equal(rest, activity.stream().run([row.values for row in rows])[1:])


def test_rows_before_a_source_that_breaks_off_are_stepped(activity: OceanModel) -> None:
    def source() -> Iterator[Row]:
        yield from rows_of([1.0, 2.0], [3.0, 4.0])
        raise OceanError("log.csv can't be read: Input/output error")

    stream, seen = activity.stream(), []
    with pytest.raises(OceanError, match="can't be read"):
        for row, _ in step_rows(stream, source(), ahead=9):
            seen.append(row.number)
    assert seen == [1, 2] and stream.steps == 2


@given(st.data())
@settings(deadline=None)
def test_a_restored_stream_of_rows_goes_on_as_if_it_had_never_stopped(
    activity: OceanModel, data: st.DataObject
) -> None:
    cell = st.sampled_from([0.5, -1.0, 2.0, np.nan, np.inf])
    step = st.sampled_from([0.1, 0.3, 0.0, 2.0, -1.0])
    drawn = data.draw(st.lists(st.tuples(cell, cell, step, st.sampled_from("aab")), min_size=1, max_size=12))
    clock = data.draw(st.booleans())
    times = np.cumsum([d[2] for d in drawn]).tolist()
    rows = [
        Row(i + 1, t if clock else None, d[3], [d[0], d[1]])
        for i, (d, t) in enumerate(zip(drawn, times, strict=True))
    ]
    whole = [output for _, output in step_rows(activity.stream(), rows, max_age_s=0.5)]
    cut = data.draw(st.integers(0, len(rows)))
    ahead = data.draw(st.integers(1, 5))
    first, second = activity.stream(), activity.stream()
    parts = [output for _, output in step_rows(first, rows[:cut], max_age_s=0.5, ahead=ahead)]
    second.resume(from_bytes(to_bytes(first.snapshot())))
    parts += [output for _, output in step_rows(second, rows[cut:], max_age_s=0.5, ahead=ahead)]
    for a, b in zip(whole, parts, strict=True):
        assert (a is None and b is None) or np.array_equal(a, b)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "context",
    [
        {"rows": {"held": [1.0], "episode": None, "time": None}},
        {"rows": {"held": [1.0, "x"], "episode": None, "time": None}},
        {"rows": {"held": [1.0, 1e999], "episode": None, "time": None}},
        {"rows": [1, 2]},
    ],
)
def test_a_context_that_is_not_of_these_rows_is_refused(
    activity: OceanModel, context: dict[str, object]
) -> None:
    stream = activity.stream()
    stream.resume(dataclasses.replace(stream.snapshot(), context=context))
    with pytest.raises(SnapshotError, match="last value of each of the 2 elements"):
        list(step_rows(stream, rows_of([1.0, 2.0])))


def test_a_context_too_long_to_be_read_is_not_written(activity: OceanModel, tmp_path: Path) -> None:
    stream = activity.stream()
    stream.context = {"rows": "x" * (1 << 20)}
    with pytest.raises(SnapshotError, match="keep less in the context"):
        stream.save(tmp_path / "state")
    assert not list(tmp_path.iterdir())


def test_the_command_holds_a_value_over_a_restart(command: Run, activity: OceanModel, tmp_path: Path) -> None:
    heading, *rows = as_csv(activity, recording(12)[:, :2]).splitlines()
    rows = ["stamp [ms]," + heading] + [
        f"{100 * i}," + (row if i % 3 else "," + row.split(",")[1]) for i, row in enumerate(rows, 1)
    ]
    whole = command(RUN, ACTIVITY, "--time", "stamp", stdin="\n".join(rows).encode())
    found = []
    for part in (rows[:6], [rows[0], *rows[6:]]):
        asked = ["--time", "stamp", "--state", tmp_path / "state"]
        done = command(RUN, ACTIVITY, *asked, stdin="\n".join(part).encode())
        found += [list(line.values())[1:] for line in lines(done)]
    assert found == [list(line.values())[1:] for line in lines(whole)]


def test_a_time_that_is_missing_or_of_no_unit_is_refused(command: Run, activity: OceanModel) -> None:
    heading = as_csv(activity, recording(0)[:, :2]).strip()
    for clock, row, message in (
        ("stamp", ",1,2", "row 1 has no time in column 'stamp'"),
        ("stamp [h]", "1,1,2", "the time is in 'h'"),
        ("other", "1,1,2", "no column 'stamp'; its columns are other"),
    ):
        done = command(RUN, ACTIVITY, "--time", "stamp", stdin=f"{clock},{heading}\n{row}\n".encode())
        assert done.returncode == 1 and message in done.stderr.decode()
        assert len(done.stderr.decode().splitlines()) == 1


def test_a_second_bag_goes_on_where_its_clock_follows_the_first(
    command: Run, activity: OceanModel, tmp_path: Path
) -> None:
    def bag(name: str, start: float, end: float) -> Path:
        times = np.arange(round(start * 50), round(end * 50)) / 50
        messages = [(t, "/imu", imu((np.sin(t), 0.0, 0.0))) for t in times]
        messages += [(t, "/joint_states", joints([0.0, t])) for t in times]
        return write_bag(tmp_path / name, sorted(messages, key=lambda m: m[0]), "mcap")

    def steps(path: Path) -> str:
        done = command(RUN, ACTIVITY, path, "--state", tmp_path / "state")
        assert done.returncode == 0, done.stderr.decode()
        return done.stderr.decode().splitlines()[-1]

    first, second, later = bag("a", 0, 2), bag("b", 2, 4), bag("c", 60, 62)
    assert "saved step 40 of this episode to" in steps(first)
    assert "saved step 80 of this episode to" in steps(second)
    assert "saved step 40 of" in steps(later), "a gap"
    assert "saved step 40 of" in steps(later), "a clock that goes back"
    done = command(RUN, ACTIVITY, first, "--time", "stamp")
    assert done.returncode == 1 and "a bag has its own clock" in done.stderr.decode()


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
