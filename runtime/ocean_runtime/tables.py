"""Rows of numbers from CSV, as they arrive: the same reader for a log of gigabytes and for a live pipe.

The first line names the columns, each with its unit in brackets where it has one: `speed [m/s]`. An empty
cell, `nan`, `NA` or `null` is a missing value (NaN here). The separator is the comma, or the semicolon or
tab where the first line has no comma.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ocean_runtime.contract import Element
from ocean_runtime.errors import InputError

MISSING = frozenset({"", "nan", "na", "n/a", "null", "none"})
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
"""Units that a column of times may have."""
MAX_LINE_CHARACTERS = 1 << 20
_NAMED = re.compile(r"\s*(.*?)\s*(?:\[([^\[\]]*)\])?\s*")
_INDEX = re.compile(r"\d+(:\d+)?")


class Row(NamedTuple):
    """One observation."""

    number: int
    """Which row of its source it is, from 1."""
    time: float | None
    """Seconds, where the source has a clock."""
    episode: str
    """Whose it is: an episode begins where this changes."""
    values: list[float]
    """One number an element; NaN where it is missing."""


def element(text: str) -> Element:
    """A column's name and unit: `speed [m/s]`. Brackets around a number are an index: `position[2]`."""
    match = _NAMED.fullmatch(text)
    if match is None or not match[1] or match[2] is None or _INDEX.fullmatch(match[2].strip()):
        return Element(text.strip())
    return Element(match[1], match[2].strip())


def label(item: Element) -> str:
    """What `element` reads back."""
    return f"{item.name} [{item.unit}]" if item.unit else item.name


def seconds(column: Element) -> float:
    """What a number in a column of times is worth in seconds; raises InputError for a unit that is none."""
    if column.unit not in SECONDS:
        raise InputError(f"the time is in {column.unit!r}; it may be in s, ms, us or ns")
    return SECONDS[column.unit]


def number(cell: str) -> float:
    """A cell's number, NaN where it is missing; raises ValueError for anything else."""
    try:
        value = float(cell)
    except ValueError:
        if cell.strip().lower() in MISSING:
            return math.nan
        raise
    if "_" in cell:  # Python reads 2026_11_30 as a number of eight digits; a date is none
        raise ValueError(cell)
    return value


class Table:
    """A CSV source: its columns, and its rows one by one, in memory that does not grow."""

    def __init__(self, chunks: Iterable[bytes], name: str) -> None:
        """Reads the first line. Raises InputError where there is none, or it names no columns."""
        self.name = name
        self.lines = _lines(chunks, name)
        """Those that nobody has read yet."""
        first = next((line for line in self.lines if not line.isspace()), "")
        if not first:
            raise InputError(f"{name} is empty; its first line must name the columns")
        self.separator = next((s for s in ",;\t" if s in first), ",")
        self.columns = tuple(element(cell) for cell in self._read([first]))
        names = [column.name for column in self.columns]
        for twice in sorted(n for n, count in Counter(names).items() if count > 1):
            raise InputError(f"{name} has two columns named {twice!r}; give each its own name")
        if all(_is_number(n) for n in names):
            raise InputError(f"{name} starts with numbers; its first line must name the columns")

    def cells(self, lines: Iterable[str] | None = None, before: int = 0) -> Iterator[tuple[int, list[str]]]:
        """Each row's number, from 1, and its cells. Raises InputError where a row has too few or too many.

        lines: read these, which come after `before` rows; what is left of the source where None.
        """
        reader = csv.reader(
            self.lines if lines is None else lines, delimiter=self.separator, strict=True
        )  # strict: a quote that nobody closes would swallow the rows after it
        count = before
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise InputError(f"{self.name} row {count + 1} is not CSV: {error}") from None
            if not cells or (len(cells) == 1 and cells[0].isspace()):
                continue  # an empty line, or one of blanks
            count += 1
            if len(cells) != len(self.columns):
                raise InputError(
                    f"{self.name} row {count} has {len(cells)} cells where the first line names "
                    f"{len(self.columns)} columns"
                )
            yield count, cells

    def find(self, wanted: Element) -> int:
        """The column of that name. Raises InputError where there is none, or its unit is another."""
        for index, column in enumerate(self.columns):
            if column.name == wanted.name:
                if column.unit and wanted.unit and column.unit != wanted.unit:
                    raise InputError(
                        f"{self.name} has {wanted.name!r} in {column.unit}, expected in {wanted.unit}; "
                        "convert it first"
                    )
                return index
        known = ", ".join(column.name for column in self.columns)
        raise InputError(f"{self.name} has no column {wanted.name!r}; its columns are {known}")

    def has(self, wanted: Element) -> bool:
        """Whether a column has that name."""
        return any(column.name == wanted.name for column in self.columns)

    def rows(
        self, wanted: Sequence[Element], episode: Element | None = None, time: Element | None = None
    ) -> Iterator[Row]:
        """The wanted columns of each row, found by name; the column `episode` says whose it is, `time` when it was.

        Raises InputError where a column is missing or a row has no time.
        """
        indices = [self.find(item) for item in wanted]
        whose = None if episode is None else self.find(episode)
        clock = None if time is None else self.find(time)
        scale = 1.0 if clock is None else seconds(self.columns[clock])
        for count, cells in self.cells():
            values = [self.value(count, cells, index) for index in indices]
            now = None if clock is None else scale * self.value(count, cells, clock)
            if now is not None and not math.isfinite(now):
                raise InputError(
                    f"{self.name} row {count} has no time in column {self.columns[clock or 0].name!r}; fill it "
                    "in, or leave such rows out"
                )
            yield Row(count, now, "" if whose is None else cells[whose].strip(), values)

    def value(self, count: int, cells: list[str], index: int) -> float:
        """One cell's number; raises InputError where it holds something else."""
        try:
            return number(cells[index])
        except ValueError:
            raise InputError(
                f"{self.name} row {count} has {cells[index]!r} in column {self.columns[index].name!r}, which is "
                "not a number"
            ) from None

    def _read(self, lines: Iterable[str]) -> list[str]:
        try:
            return next(csv.reader(lines, delimiter=self.separator, strict=True))
        except csv.Error as error:
            raise InputError(f"{self.name} does not begin with a line of CSV: {error}") from None


def _lines(chunks: Iterable[bytes], name: str) -> Iterator[str]:
    """Whole lines as soon as they are complete, from UTF-8 that is cut anywhere."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    rest = ""
    try:
        for chunk in chunks:
            *whole, rest = (rest + decoder.decode(chunk)).split("\n")
            for line in whole:
                yield line + "\n"
            if len(rest) > MAX_LINE_CHARACTERS:
                raise InputError(
                    f"{name} has a line of over {MAX_LINE_CHARACTERS:,} characters; it is no CSV"
                )
        rest += decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8 text; it is no CSV") from None
    if rest:
        yield rest


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
