"""CSV as it arrives: cut anywhere, with what real files do to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ocean_runtime import InputError
from ocean_runtime.contract import Element
from ocean_runtime.tables import Row, Table, element, label

CSV = "stamp [s],speed [m/s],range,mode\n0,1.5,2,a\n1,,nan,b\n2,inf,NA,b\n"


def table(text: str, size: int = 1 << 16) -> Table:
    content = text.encode()
    return Table((content[i : i + size] for i in range(0, len(content), size)), "log.csv")


def rows(text: str, *wanted: str, size: int = 1 << 16) -> list[Row]:
    return list(table(text, size).rows([element(name) for name in wanted]))


def test_columns_have_names_and_units() -> None:
    assert table(CSV).columns == (
        Element("stamp", "s"),
        Element("speed", "m/s"),
        Element("range"),
        Element("mode"),
    )


def test_an_index_in_brackets_is_no_unit() -> None:
    assert element("/joints:position[2]") == Element("/joints:position[2]")
    assert element("/joints:position[2] [rad]") == Element("/joints:position[2]", "rad")
    assert label(element("/joints:position[2] [rad]")) == "/joints:position[2] [rad]"


@given(st.integers(1, 40))
def test_it_reads_the_same_however_the_bytes_arrive(size: int) -> None:
    text = CSV.replace("speed", "Geschwindigkeit in ü").replace("\n", "\r\n")
    np.testing.assert_equal(
        rows(text, "Geschwindigkeit in ü", "range", size=size), rows(text, "Geschwindigkeit in ü", "range")
    )


def test_missing_and_infinite_values() -> None:
    values = np.array([row.values for row in rows(CSV, "speed", "range")])
    np.testing.assert_array_equal(values, [[1.5, 2], [math.nan, math.nan], [math.inf, math.nan]])


def test_columns_are_found_by_name_in_any_order() -> None:
    text = "range,speed [m/s]\n2,1.5\n"
    assert rows(text, "speed", "range")[0].values == [1.5, 2.0]


def test_a_row_is_given_before_the_next_arrives() -> None:
    def chunks():  # type: ignore[no-untyped-def]
        yield b"a\n1\n"
        raise AssertionError("it read ahead")

    assert next(Table(chunks(), "pipe").rows([Element("a")])).values == [1.0]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators(separator: str) -> None:
    assert rows(f"a{separator}b\n1{separator}2\n", "b")[0].values == [2.0]


@pytest.mark.parametrize(
    ("text", "wanted", "message"),
    [
        ("", "a", "is empty"),
        ("1,2\n3,4\n", "a", "starts with numbers"),
        ("a,a\n1,2\n", "a", "two columns named 'a'"),
        ("a,b\n1\n", "a", "row 1 has 1 cells where the first line names 2"),
        ("a,b\n1,x\n", "b", "row 1 has 'x' in column 'b', which is not a number"),
        ("a,b\n1,2\n", "c", "no column 'c'; its columns are a, b"),
        ("a [deg]\n1\n", "a [rad]", "in deg, expected in rad"),
        ("a\n" + "1" * (1 << 21), "a", "line of over"),
    ],
)
def test_what_is_no_such_table_is_one_sentence(text: str, wanted: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rows(text, wanted)


def test_binary_is_no_table() -> None:
    with pytest.raises(InputError, match="not UTF-8"):
        Table([b"\xff\xfe\x00\x01"], "log.csv")


def test_a_date_with_underscores_is_no_number() -> None:
    with pytest.raises(InputError, match="'2026_11_30' in column 'b', which is not a number"):
        rows("a,b\n1,2026_11_30\n", "b")


@pytest.mark.parametrize("text", ['a,who\n1,"x\n2,x\n3,x\n', 'a,who\n1,"x\n2,y\n3,"z"\n'])
def test_a_quote_that_nobody_closes_swallows_no_rows(text: str) -> None:
    with pytest.raises(InputError, match="row 1 is not CSV"):
        rows(text, "a")
    assert [row.values for row in rows('a,who\n1,"x, ""y"""\n2,x\n', "a")] == [[1.0], [2.0]]
