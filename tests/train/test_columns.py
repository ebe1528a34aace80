"""Which columns a model is to read: none is lost without a word, and none is taken for what it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ocean_runtime import InputError
from ocean_runtime.dialect import Dialect, parse_options
from ocean_train.logs import Log, Request, read_log
from ocean_train.spool import BLOCK_ROWS, LogError


def read(path: Path, content: str, **asked: Any) -> Log:
    path.write_text(content)
    return read_log(Request((path,), **asked))


def column(values: list[str]) -> str:
    return "a,b\n" + "".join(f"{i},{value}\n" for i, value in enumerate(values))


def names(log: Log) -> list[str]:
    return [item.name for item in log.features]


@pytest.mark.parametrize("cell", ["?", "-", "--", "#N/A", "NULL", "n/a", "", "#DIV/0!"])
def test_one_cell_without_a_value_costs_no_column(tmp_path: Path, cell: str) -> None:
    log = read(tmp_path / "a.csv", column(["1", "2", cell, "4"]))
    assert names(log) == ["a", "b"] and log.rows[:, 1].tolist() == [1, 2, 2, 4]
    assert log.findings.missing.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            "err",
            "row 3 has 'err' in column 'b', which is not a number, but 3 of the 4 values that were looked at are",
        ),
        ('"1,950.0"', "row 3 has '1,950.0' in column 'b', which is not a number"),
        ('"1,950"', "row 3 has '1,950' in column 'b', which may be thousands or a fraction"),
        ("2026-12-07", "row 3 has '2026-12-07' in column 'b', which is not a number"),
    ],
)
def test_a_column_that_is_mostly_numbers_is_refused_with_its_cell(
    tmp_path: Path, cell: str, message: str
) -> None:
    with pytest.raises(LogError, match=message):
        read(tmp_path / "a.csv", column(["1", "2", cell, "4"]))
    log = read(tmp_path / "a.csv", column(["1", "2", cell, "4"]), features=("a",))
    assert names(log) == ["a"]


def test_a_word_that_stands_for_no_value_can_be_told(tmp_path: Path) -> None:
    log = read(tmp_path / "a.csv", column(["1", "err", "4"]), dialect=parse_options(["missing=err,bad"]))
    assert log.rows[:, 1].tolist() == [1, 1, 4]


def test_a_word_far_down_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"row {BLOCK_ROWS + 6} has 'err' in column 'b'"):
        read(tmp_path / "a.csv", column([*["1"] * (BLOCK_ROWS + 5), "err"]))


def test_words_are_no_numbers_and_are_named(tmp_path: Path) -> None:
    log = read(tmp_path / "a.csv", column(["up", "down", "3"]))
    assert names(log) == ["a"] and log.findings.reasons == {"b": "words, such as 'up'; 1 of 3 are numbers"}


def test_true_and_false_are_one_and_zero(tmp_path: Path) -> None:
    log = read(tmp_path / "a.csv", column(["True", "False", "true"]))
    assert log.rows[:, 1].tolist() == [1, 0, 1]


def test_a_sensor_that_starts_late_is_a_column(tmp_path: Path) -> None:
    log = read(tmp_path / "a.csv", column([*[""] * (BLOCK_ROWS + 5), "1", "2"]))
    assert names(log) == ["a", "b"] and log.rows[:, 1].tolist() == [1, 2]
    assert log.findings.incomplete == BLOCK_ROWS + 5


@pytest.mark.parametrize("turned", [False, True])
def test_the_order_of_files_has_no_part_in_it(tmp_path: Path, turned: bool) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,err\n2,err\n")
    (tmp_path / "b.csv").write_text("a,b\n1,1\n2,2\n")
    paths = (tmp_path / "a.csv", tmp_path / "b.csv")
    with pytest.raises(LogError, match="'err' in column 'b'"):
        read_log(Request(paths[::-1] if turned else paths))


def test_two_files_have_one_clock(tmp_path: Path) -> None:
    second = 1_750_000_000
    (tmp_path / "a.csv").write_text("t [ms],a\n" + "".join(f"{second}{20 * i:03d},1\n" for i in range(9)))
    (tmp_path / "b.csv").write_text(
        "t [ns],a\n" + "".join(f"{second}{20 * i:03d}000000,1\n" for i in range(9))
    )
    (tmp_path / "c.csv").write_text("t,a\n" + "".join(f"{second}{20 * i:03d},1\n" for i in range(9)))
    log = read_log(Request((tmp_path / "a.csv", tmp_path / "b.csv"), time="t"))
    assert log.rate_hz == 50.0 and log.findings.gaps == 0 and log.time == "t [ms]"
    log = read_log(Request((tmp_path / "c.csv", tmp_path / "a.csv"), time="t"))
    assert log.rate_hz == 50.0 and log.time == "t [ms]"
    with pytest.raises(LogError, match="names no unit for its time 't', and other tables name ms and ns"):
        read_log(Request(tuple(tmp_path / f"{name}.csv" for name in "abc"), time="t"))
    with pytest.raises(InputError, match=r"--time 't \[ms\]' if it is in ms"):
        read_log(Request((tmp_path / "c.csv",), time="t"))


def test_the_contract_keeps_the_unit_that_was_asked_for(tmp_path: Path) -> None:
    content = "t,a\n" + "".join(f"{20000 * i},1\n" for i in range(9))
    assert read(tmp_path / "a.csv", content, time="t [us]").time == "t [us]"
    with pytest.raises(InputError, match=r"--time 't \[us\]' if it is in us \(50 rows a second\)"):
        read(tmp_path / "a.csv", content, time="t")


def test_times_too_coarse_are_refused(tmp_path: Path) -> None:
    content = "t,a\n" + "".join(f"{i // 50},{i}\n" for i in range(200))
    with pytest.raises(
        InputError, match=r"196 of 200 rows .* repeat the time of the row before in column 't'"
    ):
        read(tmp_path / "a.csv", content, time="t")
    assert len(read(tmp_path / "a.csv", content, time="").rows) == 200


def test_nearly_every_row_an_episode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="begin an episode, so that the state would never last"):
        read(tmp_path / "a.csv", "id,a\n" + "".join(f"{i},{i}\n" for i in range(50)), episode="id")


def test_arrays_that_are_no_columns_are_named(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", a=np.arange(4.0), dt=np.float64(0.02), images=np.zeros((4, 2, 2)), who=["x"] * 4
    )
    log = read_log(Request((tmp_path / "a.npz",)))
    assert names(log) == ["a"] and set(log.findings.ignored) == {"dt", "images", "who"}
    assert log.findings.reasons["images"] == "of shape (4, 2, 2); a column has one or two axes"


def test_a_header_that_is_data_is_refused(tmp_path: Path) -> None:
    content = "1,2,walk\n2,3,walk\n"
    with pytest.raises(InputError, match=r"starts with numbers, such as '1'; .* give --no-header"):
        read(tmp_path / "a.csv", content)
    log = read(tmp_path / "a.csv", content, dialect=Dialect(header=False))
    assert names(log) == ["c1", "c2"] and log.rows.tolist() == [[1, 2], [2, 3]]
    log = read(tmp_path / "a.csv", content, dialect=Dialect(names=("x", "y", "z"), header=False))
    assert names(log) == ["x", "y"]
    log = read(tmp_path / "a.csv", "0,1\n2,3\n", dialect=Dialect(header=True))
    assert names(log) == ["0", "1"] and log.rows.tolist() == [[2, 3]]
