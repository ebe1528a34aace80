"""Times of rows: the unit that is asked for, named, or trained with; and clocks that can't be right."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ocean_runtime import InputError
from ocean_runtime.arrays import Arrays
from ocean_runtime.clocks import from_iso
from ocean_runtime.contract import Element
from ocean_runtime.tables import Table, element

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
RUN = "ocean_runtime.cli"
ACTIVITY = Path(__file__).parents[1] / "fixtures" / "tiny_activity.onnx"
SECOND = 1_750_000_000


def times(text: str, asked: str, otherwise: str = "") -> list[float | None]:
    table = Table([text.encode()], "log.csv")
    return [row.time for row in table.rows([], time=table.clock(element(asked), otherwise))]


@pytest.mark.parametrize(
    ("name", "asked", "trained"),
    [
        ("stamp [us]", "stamp", ""),
        ("stamp", "stamp [us]", ""),
        ("stamp", "stamp", "us"),
        ("stamp [us]", "stamp [us]", "ns"),
        ("stamp[us]", "stamp", "s"),
    ],
)
def test_the_unit_counts_wherever_it_is_named(name: str, asked: str, trained: str) -> None:
    found = times(f"{name}\n{SECOND}000000\n{SECOND}020000\n", asked, trained)
    assert found == [float(SECOND), pytest.approx(SECOND + 0.02, abs=1e-6)]


@pytest.mark.parametrize(("digits", "unit"), [("000", "ms"), ("000000", "us"), ("000000000", "ns")])
def test_integers_that_can_not_be_seconds_are_asked_about(digits: str, unit: str) -> None:
    with pytest.raises(InputError, match=rf"say the unit: --time 'stamp \[{unit}\]' if it is in {unit}"):
        times(f"stamp\n{SECOND}{digits}\n", "stamp")
    with pytest.raises(InputError, match="names no unit"):
        times(f"stamp\n0\n{SECOND}{digits}\n", "stamp")


def test_two_units_are_refused() -> None:
    with pytest.raises(InputError, match="'stamp' in ns, expected in us"):
        times("stamp [ns]\n1\n", "stamp [us]")


def test_a_date_is_a_time() -> None:
    expected = 1_796_630_400.25  # 2026-12-07 08:00:00.25 UTC
    for text in (
        "2026-12-07T08:00:00.25Z",
        "2026-12-07 08:00:00.25",
        "2026-12-07T09:00:00.250+01:00",
        "2026/12/07 03:00:00.25 -0500",
    ):
        assert from_iso(text) == expected, text
        assert times(f"when\n{text}\n", "when") == [expected]
    for text in ("2026-13-07T08:00:00", "2026-12-07", "07.12.2026 08:00", "08:00:00"):
        assert from_iso(text) is None, text


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        ("sec,nanosec", "sec"),
        ("secs,nsecs", "secs"),
        ("header.stamp.sec,header.stamp.nanosec", "header.stamp"),
        ("stamp_sec,stamp_nanosec", "stamp"),
    ],
)
def test_seconds_and_nanoseconds_are_read_together(names: str, asked: str) -> None:
    assert times(f"{names}\n5,250000000\n6,0\n", asked) == [5.25, 6.0]
    with pytest.raises(InputError, match="read as the nanoseconds"):
        times(f"{names}\n5,2500000000\n", asked)


def test_arrays_of_dates_have_their_own_unit(tmp_path: Path) -> None:
    stamps = np.array([SECOND * 1000, SECOND * 1000 + 20], "datetime64[ms]")
    for kind in ("ns", "us", "ms"):
        np.savez(tmp_path / "a.npz", stamp=stamps.astype(f"datetime64[{kind}]"), a=[1.0, 2.0])
        arrays = Arrays(tmp_path / "a.npz")
        np.testing.assert_allclose(
            arrays.times(arrays.clock(Element("stamp"))), [SECOND, SECOND + 0.02], atol=1e-6
        )


def rows_of(stamps: list[object], name: str = "stamp") -> bytes:
    return (
        f"{name},/imu:angular_velocity.x,/joint_states:position[1]\n"
        + "".join(f"{s},0.1,0.2\n" for s in stamps)
    ).encode()


def test_a_run_in_which_every_row_begins_an_episode_is_refused(command: Run, tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_bytes(rows_of([20_000 * i for i in range(60)]))
    done = command(RUN, ACTIVITY, log, "--time", "stamp")
    assert done.returncode == 1 and not done.stdout
    assert (
        "every 20000 s" in done.stderr.decode()
        and "--time 'stamp [us]' if it is in us (50 " in done.stderr.decode()
    )
    done = command(RUN, ACTIVITY, log, "--time", "stamp [us]")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 61
    done = command(RUN, ACTIVITY, "--episode", "stamp", stdin=log.read_bytes())
    assert done.returncode == 1 and b"begin an episode" in done.stderr


def test_times_too_coarse_to_tell_rows_apart_are_refused(command: Run) -> None:
    done = command(RUN, ACTIVITY, "--time", "stamp", stdin=rows_of([i // 50 for i in range(200)]))
    assert done.returncode == 1 and b"repeat the time of the row before in column 'stamp'" in done.stderr


def test_times_come_out_as_they_went_in(command: Run) -> None:
    stamps: list[object] = [f"{SECOND}{i:02d}0000001" for i in range(5)]
    done = command(RUN, ACTIVITY, "--time", "stamp [ns]", stdin=rows_of(stamps))
    lines = done.stdout.decode().splitlines()
    assert [line.split(",")[1] for line in lines] == ["stamp", *stamps]
    dates: list[object] = [f"2026-12-07T08:00:0{i}Z" for i in range(5)]
    done = command(RUN, ACTIVITY, "--time", "when", stdin=rows_of(dates, "when"))
    assert [line.split(",")[1] for line in done.stdout.decode().splitlines()] == ["when", *dates]
