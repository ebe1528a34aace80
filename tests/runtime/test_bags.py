"""Real bags, and the rule by which several topics become rows of one rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bag_writer import Message, imu, joints, number, text, write_bag
from hypothesis import given
from hypothesis import strategies as st
from ocean_runtime import InputError
from ocean_runtime.bags import Arrival, numeric_fields, open_bag, parse_field, read_rows, synchronise
from ocean_runtime.contract import Element
from ocean_runtime.tables import Row

FIELDS = ("/imu:angular_velocity.x [rad/s]", "/joint_states:position[1]")


def messages(seconds: float = 2.0) -> list[Message]:
    fast = [(t, "/imu", imu((t, 0.0, 0.0))) for t in np.arange(0, seconds, 0.01)]
    slow = [(t, "/joint_states", joints([0.0, 10 + t])) for t in np.arange(0.005, seconds, 0.1)]
    return sorted([*fast, *slow, (0.0, "/said", text("hello"))], key=lambda m: m[0])


def read(path: Path, *fields: str, rate: float = 50, max_age: float = 1.0) -> list[Row]:
    with open_bag(path) as bag:
        return list(read_rows(bag, [parse_field(f).element for f in fields], rate, max_age))


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_bag_becomes_rows_that_hold_the_latest(tmp_path: Path, storage: str) -> None:
    rows = read(write_bag(tmp_path / "bag", messages(), storage), *FIELDS)
    times = np.array([row.time for row in rows]) - rows[0].time
    np.testing.assert_allclose(np.diff(times), 0.02, atol=1e-6)
    start = 0.005  # when the second topic speaks first
    for row, t in zip(rows, times + start, strict=True):
        gyro, position = row.values
        assert gyro == pytest.approx(np.floor(t / 0.01 + 1e-6) * 0.01, abs=1e-9)
        assert position == pytest.approx(10.005 + np.floor((t - 0.005) / 0.1 + 1e-6) * 0.1, abs=1e-9)
    assert {row.episode for row in rows} == {"1"}


def test_a_single_file_of_a_bag_is_a_bag(tmp_path: Path) -> None:
    folder = write_bag(tmp_path / "bag", messages())
    (file,) = folder.glob("*.mcap")
    assert read(file, *FIELDS) == read(folder, *FIELDS)


def test_a_gap_ends_the_episode(tmp_path: Path) -> None:
    kept = [m for m in messages(6.0) if m[1] != "/imu" or not 2.0 < m[0] < 4.0]
    rows = read(write_bag(tmp_path / "bag", kept), *FIELDS, max_age=0.5)
    ends = [row.time - rows[0].time for row in rows if row.episode == "1"]
    begins = [row.time - rows[0].time for row in rows if row.episode == "2"]
    assert {row.episode for row in rows} == {"1", "2"}
    assert ends[-1] == pytest.approx(2.5, abs=0.03)  # held for the maximum age, no longer
    assert begins[0] == pytest.approx(4.0, abs=0.03)


arrival_lists = st.lists(
    st.tuples(st.integers(0, 3_000_000_000), st.integers(0, 1), st.floats(-1e6, 1e6)), min_size=2, max_size=40
)


@given(arrival_lists, st.integers(0, 39), st.sampled_from([0.7, 5.0, 33.3]), st.sampled_from([0.05, 0.5]))
def test_nothing_that_comes_later_changes_a_row(
    found: list[tuple[int, int, float]], cut: int, rate: float, max_age: float
) -> None:
    arrivals: list[Arrival] = [(t, source, [v]) for t, source, v in sorted(found)]
    whole = list(synchronise([[0], [1]], arrivals, rate, max_age))
    head = list(synchronise([[0], [1]], arrivals[: cut + 1], rate, max_age))
    last = arrivals[min(cut, len(arrivals) - 1)][0] / 1e9
    # Rows before the cut are the same; so are all that the shorter list gives, but for ties at its end.
    before = [row for row in head if row.time is not None and row.time < last]
    assert before == whole[: len(before)]


@given(arrival_lists, st.sampled_from([0.7, 5.0, 33.3]), st.sampled_from([0.05, 0.5]))
def test_each_row_is_the_rule_written_plainly(
    found: list[tuple[int, int, float]], rate: float, max_age: float
) -> None:
    arrivals: list[Arrival] = [(t, source, [v]) for t, source, v in sorted(found)]
    firsts = [next((t for t, s, _ in arrivals if s == source), None) for source in (0, 1)]
    expected = []
    if None not in firsts:
        start, k, episode, gap = max(f for f in firsts if f is not None), 0, 1, False
        while (instant := start + round(k * 1e9 / rate)) <= arrivals[-1][0]:
            latest = [[a for a in arrivals if a[1] == s and a[0] <= instant][-1] for s in (0, 1)]
            if all(instant - a[0] <= round(max_age * 1e9) for a in latest):
                episode, gap = episode + gap, False
                expected.append((instant / 1e9, str(episode), [latest[0][2][0], latest[1][2][0]]))
            else:
                gap = True
            k += 1
    rows = list(synchronise([[0], [1]], arrivals, rate, max_age))
    assert [(row.time, row.episode, row.values) for row in rows] == expected


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("/gps:latitude", "no topic '/gps'; its topics are /imu, /joint_states, /said"),
        ("/imu:angular_velocity.w", "no 'angular_velocity.w'; their numeric fields are"),
        ("/imu:angular_velocity", "not a number but"),
        ("/said:data", "not a number but str"),
        ("/joint_states:position[7]", "asks for element 7, but a message of /joint_states has 2"),
        ("/imu", "write topic:path"),
        ("/imu:x..y", "write topic:path"),
    ],
)
def test_a_field_that_is_not_there_is_one_sentence(tmp_path: Path, field: str, message: str) -> None:
    path = write_bag(tmp_path / "bag", messages(0.2))
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        read(path, field)


def test_two_topics_that_never_meet(tmp_path: Path) -> None:
    apart = [(0.0, "/imu", imu((0.0, 0.0, 0.0))), (9.0, "/level", number(1.0))]
    with pytest.raises(InputError, match=r"no row.*/imu \(1 messages\), /level \(1 messages\)"):
        read(write_bag(tmp_path / "bag", apart), "/imu:angular_velocity.x", "/level:data", max_age=0.5)


def test_an_empty_bag(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its topics are none"):
        read(write_bag(tmp_path / "bag", []), *FIELDS)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.99])
def test_a_truncated_bag_is_one_sentence(tmp_path: Path, share: float) -> None:
    (file,) = write_bag(tmp_path / "bag", messages()).glob("*.mcap")
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    for path in (file, file.parent):
        with pytest.raises(InputError, match="can't be read as a bag"):
            read(path, *FIELDS)


def test_what_is_no_bag(tmp_path: Path) -> None:
    (tmp_path / "x.mcap").write_bytes(b"not a bag at all")
    with pytest.raises(InputError, match="can't be read as a bag"):
        read(tmp_path / "x.mcap", *FIELDS)


def test_a_message_lists_its_numeric_fields() -> None:
    fields = numeric_fields(joints([1.0, 2.0]))
    assert fields == ["header.stamp.sec", "header.stamp.nanosec", "position[0]", "position[1]"]


def test_units_follow_the_path() -> None:
    field = parse_field("/joint_states:position[2] [rad]")
    assert field.element == Element("/joint_states:position[2]", "rad")
    assert (field.topic, field.path) == ("/joint_states", ("position", 2))
