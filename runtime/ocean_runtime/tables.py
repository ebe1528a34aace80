"""Rows of numbers from CSV, as they arrive: the same reader for a log of gigabytes and for a live pipe.

The first line names the columns, each with its unit in brackets where it has one: `speed [m/s]`. An empty
cell, `nan`, `NA`, `?`, `-` and the like are a missing value (NaN here); `true` and `false` are 1 and 0. How the table
is written is found in its first lines or told: `ocean_runtime.dialect`.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from ocean_runtime import dialect as dialects
from ocean_runtime.cells import (
    MISSING,
    comma_number,
    is_number,
    is_unit,
    number,
    without_thousands,
)
from ocean_runtime.clocks import SECONDS, Clock, find_clock, from_iso
from ocean_runtime.contract import Element
from ocean_runtime.dialect import Dialect
from ocean_runtime.errors import InputError, NoColumnError
from ocean_runtime.named_columns import Named, find_named, items_of, names_column, place_of

__all__ = ["MISSING", "SECONDS", "Row", "Table", "element", "label", "number"]
_NAMED = re.compile(r"\s*(.*?)(\s*)(?:\[([^\[\]]*)\])?\s*")
_RULE = re.compile(r"[\s|+:=-]*-{3,}[\s|+:=-]*")
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
    stamp: tuple[tuple[str, str], ...] = ()
    """The time as the source writes it: each column's name with its unit, and the text there."""


def element(text: str) -> Element:
    """A column's name and unit: `speed [m/s]`.

    Brackets that follow the name without a blank are part of it where they hold an index or a name, as in
    `position[2]` and `position[elbow]`, and the unit only where they hold a known one, as in `speed[m/s]`; in a field
    of a bag (`/joints:position[A]`) they are always part of the name.
    """
    match = _NAMED.fullmatch(text)
    if match is None or not match[1] or match[3] is None or _INDEX.fullmatch(match[3].strip()):
        return Element(text.strip())
    if not match[2] and (":" in match[1] or not is_unit(match[3])):
        return Element(text.strip())
    return Element(match[1], match[3].strip())


def label(item: Element) -> str:
    """What `element` reads back."""
    return f"{item.name} [{item.unit}]" if item.unit else item.name


class Table:
    """A table of text: its columns, and its rows one by one, in memory that does not grow."""

    def __init__(self, chunks: Iterable[bytes], name: str, dialect: Dialect | None = None) -> None:
        """Reads the line of the names, and the one after it.

        Raises InputError where there is none, or it names no columns.
        """
        self.name = name
        self.dialect = dialect or Dialect()
        self.decimal = self.dialect.decimal
        """Settled by the first number that shows it."""
        self._named: list[Named] = []
        self._guards: dict[int, tuple[int, str]] = {}
        """Of columns that an index names: the column of their names, and the first name there."""
        self._lacking: dict[Named, list[str]] = {}
        self._found: set[Named] = set()
        self.comment = (self.dialect.comment,) if self.dialect.comment else ()
        self._preamble = ""
        lines = dialects.lines_of(chunks, name, self.dialect.encoding)
        for _ in range(self.dialect.skip):
            next(lines, None)
        self.separator = self.dialect.separator or ""
        first = self._next(lines, preamble=True)
        if not first:
            raise InputError(f"{name} is empty; its first line must name the columns")
        second = ""
        if self.dialect.header is False:
            heading, ahead = "", [first]
            self.separator = self.separator or dialects.find_separator(first, first)
        elif self._names_stand_in_a_comment(first):
            heading, ahead = self._preamble, [first]
        else:
            heading, second, ahead = first, self._next(lines), []
            if _RULE.fullmatch(second):  # a line between the names and the rows, as in Markdown
                second = self._next(lines)
            self.separator = self.separator or dialects.find_separator(first, second)
        ahead += [second] if second else []
        if heading:
            cells = self._cells(heading)
        else:
            count = len(self._cells(first))
            cells = list(self.dialect.names) or [f"c{i + 1}" for i in range(count)]
        self._names = cells
        self.columns = self._elements(cells)
        self._check_names(ahead[0] if ahead else "")
        if heading and len(ahead) == 1 and self._take_units(ahead[0]):
            ahead = []
        self.is_cut = False
        """Whether the last line read has no line break, as where a file was cut off."""
        self.lines: Iterator[str] = self._watched(chain(ahead, lines))
        """Those that nobody has read yet."""
        missing = [text for text in self.dialect.missing if is_number(text)]
        self._no_values = {number(text) for text in missing}
        self.is_verbatim = self.decimal != "," and not (self.dialect.missing or self.dialect.thousands)
        """Whether a cell that Python reads as a number is that number."""

    def _watched(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self.is_cut = not line.endswith("\n")
            yield line

    def _next(self, lines: Iterator[str], preamble: bool = False) -> str:
        """The next line with something in it; comments before the table are passed over."""
        told = self.dialect.comment
        marks = dialects.COMMENTS if told is None else (told,) if told else ()
        for count, line in enumerate(lines):
            if count > dialects.MAX_PREAMBLE_LINES:
                raise InputError(f"{self.name} has no table in its first {count:,} lines")
            if line.isspace():
                continue
            if preamble and not self.separator and (match := re.fullmatch(r"sep=(.)\s*", line)):
                self.separator = match[1]
                continue
            mark = next((m for m in marks if line.startswith(m)), None)
            if mark and (preamble or mark in self.comment):
                self.comment = tuple({*self.comment, mark})
                self._preamble = line[len(mark) :].lstrip(mark)
                continue
            return line
        return ""

    def _names_stand_in_a_comment(self, first: str) -> bool:
        """Whether the last comment names the columns of a table that begins with numbers."""
        if not self._preamble.strip():
            return False
        separator = self.separator or dialects.find_separator(self._preamble, first)
        try:
            names, cells = (dialects.cells_of(line, separator) for line in (self._preamble, first))
        except csv.Error:
            return False
        found = len(names) == len(cells) and not any(map(is_number, names))
        if not found or not any(map(is_number, cells)):
            return False
        self.separator = separator
        return True

    def _elements(self, names: list[str]) -> tuple[Element, ...]:
        """`position[A]` and `position[B]` are two names, though A is a unit."""
        found = [element(name) for name in names]
        count = Counter(item.name for item in found)
        return tuple(
            Element(text.strip()) if count[item.name] > 1 and item.unit and f"{item.name}[" in text else item
            for item, text in zip(found, names, strict=True)
        )

    def _check_names(self, below: str) -> None:
        """below: the line after the names; one of another length is itself an error, which names both."""
        names = [column.name for column in self.columns]
        how = "where no line names them, give --no-header (c1, c2, ...) or --csv names=a,b,c"
        wrong = [name for name in names if is_number(name)]
        if wrong and self.dialect.header is None and (not below or len(self._cells(below)) == len(names)):
            raise InputError(
                f"{self.name} starts with numbers, such as {wrong[0]!r}; its first line must name the columns; {how}; "
                "where it does name them, --csv header=yes"
            )
        for twice in sorted(n for n, count in Counter(names).items() if count > 1 and n):
            raise InputError(f"{self.name} has two columns named {twice!r}; give each its own name")
        if not any(names):
            raise InputError(f"{self.name} names no columns; {how}")

    def _take_units(self, line: str) -> bool:
        """Whether the line under the names gives their units, which are then the columns'."""
        try:
            cells = dialects.cells_of(line, self.separator)
        except csv.Error:
            return False
        if len(cells) != len(self.columns) or any(map(is_number, cells)):
            return False
        filled = [cell for cell in cells if cell.strip()]
        units = [dialects.unit_of(cell) for cell in cells]
        named = sum(map(bool, units))  # a lone one may be a class, such as A, in a row without numbers
        if not all(map(is_unit, filled)) or named < min(2, len(cells)) or 2 * len(filled) <= len(cells):
            return False
        for column, unit in zip(self.columns, units, strict=True):
            if column.unit and unit and column.unit != unit:
                raise InputError(
                    f"{self.name} names {column.name!r} in {column.unit} and, below it, in {unit}"
                )
        pairs = zip(self.columns, units, strict=True)
        self.columns = tuple(Element(column.name, column.unit or unit) for column, unit in pairs)
        return True

    def cells(self, lines: Iterable[str] | None = None, before: int = 0) -> Iterator[tuple[int, list[str]]]:
        """Each row's number, from 1, and its cells. Raises InputError where a row has too few or too many.

        lines: read these, which come after `before` rows; what is left of the source where None.
        """
        lines = self.lines if lines is None else lines
        reader = dialects.rows_of(lines, self.separator)
        count = before
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise InputError(f"{self.name} row {count + 1} is not CSV: {error}") from None
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue  # an empty line, or one of blanks
            if len(cells) == len(self.columns) + 1 and not cells[-1].strip():
                del cells[-1]  # a separator at the end
            if cells[0].startswith(dialects.COMMENTS) and cells[0].strip().lower() not in MISSING:
                if cells[0].startswith(self.comment):
                    continue
                if self.dialect.comment is None:
                    mark = next(m for m in dialects.COMMENTS if cells[0].startswith(m))
                    raise InputError(
                        f"{self.name} row {count + 1} begins with {mark!r}; give --csv comment={mark} to pass over "
                        "such lines, or --csv comment= if it is a row"
                    )
            elif self.comment and cells[0].startswith(self.comment):
                continue
            count += 1
            if cells == self._names:
                raise InputError(
                    f"{self.name} row {count} has the names of the columns again, as where files were joined; give "
                    "each file by itself, or remove the line"
                )
            if len(cells) != len(self.columns):
                hint = (
                    "; if lines before the names are no part of the table, give --csv skip=LINES"
                    if count == 1
                    else ""
                )
                raise InputError(
                    f"{self.name} row {count} has {len(cells)} cells where the first line names "
                    f"{len(self.columns)} columns{hint}"
                )
            yield count, cells

    def find(self, wanted: Element) -> int:
        """The column of that name, or a place beyond them for what is looked up by name in each row.

        Raises InputError where there is none, or its unit is another.
        """
        places = {column.name: i for i, column in enumerate(self.columns)}
        bracketed = f"{wanted.name}[{wanted.unit}]" if wanted.unit else wanted.name
        if wanted.lookup and wanted.lookup in places:
            index: int | None = places[wanted.lookup]
        elif wanted.lookup and (named := find_named(places, wanted.lookup)) is not None:
            index = self._look_up(named)
        elif (index := places.get(wanted.name)) is not None:
            self._guard(places, wanted.name, index)
        elif (index := places.get(bracketed)) is None and (
            named := find_named(places, bracketed) or find_named(places, wanted.name)
        ) is not None:
            index = self._look_up(named)
        if index is None:
            known = ", ".join(column.name for column in self.columns)
            raise NoColumnError(f"{self.name} has no column {wanted.name!r}; its columns are {known}")
        for column in self._sources(index):
            unit = self.columns[column].unit
            if unit and wanted.unit and unit != wanted.unit:
                raise InputError(
                    f"{self.name} has {wanted.name!r} in {unit}, expected in {wanted.unit}; convert it first"
                )
        return index

    def _look_up(self, named: Named) -> int:
        if named not in self._named:
            self._named.append(named)
        return len(self.columns) + self._named.index(named)

    def _sources(self, index: int) -> tuple[int, ...]:
        return (index,) if index < len(self.columns) else self._named[index - len(self.columns)].values

    def _guard(self, places: dict[str, int], name: str, index: int) -> None:
        """Of a column that an index names: its name in each row must be that of the first."""
        beside = names_column(places, name)
        if beside is not None:
            self._guards.setdefault(index, (beside[1], ""))

    def is_plain(self, index: int) -> bool:
        """Whether a row's number is what stands in its cell, whatever stands in others."""
        return index < len(self.columns) and index not in self._guards

    def check_names(self) -> None:
        """At the end: raises InputError where no row had a name that was looked up."""
        for named in self._named:
            if (found := self._lacking.get(named)) is not None:
                names = ", ".join(found) or "no names"
                raise InputError(f"{self.name}: no row has the name {named.name!r}; the first has {names}")

    def clock(self, wanted: Element, otherwise: str = "") -> Clock:
        """The column of the time, or the pair of columns; raises as `ocean_runtime.clocks.find_clock`."""
        return find_clock(self.name, self.columns, wanted, self.find, otherwise)

    def rows(
        self, wanted: Sequence[Element], episode: Element | None = None, time: Element | Clock | None = None
    ) -> Iterator[Row]:
        """The wanted columns of each row, found by name; the column `episode` says whose it is, `time` when it was.

        Raises InputError where a column is missing, a row has no time, or no row has a name that is looked up.
        """
        indices = [self.find(item) for item in wanted]
        whose = None if episode is None else self.find(episode)
        clock = self.clock(time) if isinstance(time, Element) else time
        for count, cells in self.cells():
            values = [self.value(count, cells, index) for index in indices]
            now = None if clock is None else self.seconds(count, cells, clock)
            stamp = (
                ()
                if clock is None
                else tuple((label(self.columns[i]), cells[i].strip()) for i in clock.columns)
            )
            yield Row(count, now, "" if whose is None else cells[whose].strip(), values, stamp)
        self.check_names()

    def seconds(self, count: int, cells: list[str], clock: Clock) -> float:
        """A row's time; raises InputError where it has none."""
        if len(clock.columns) == 1 and (moment := from_iso(cells[clock.columns[0]])) is not None:
            return moment
        numbers = [
            self.value(count, cells, index, "a number, or a date as 2026-12-07T08:00:00.5Z")
            for index in clock.columns
        ]
        now = float(clock.seconds(np.array([numbers]))[0])
        if not math.isfinite(now):
            raise InputError(
                f"{self.name} row {count} has no time in column {clock.names[0].name!r}; fill it "
                "in, or leave such rows out"
            )
        return now

    def value(self, count: int, cells: list[str], index: int, what: str = "a number") -> float:
        """One cell's number, NaN where it is missing; raises InputError where it holds something else."""
        if index >= len(self.columns):
            return self._named_value(count, cells, self._named[index - len(self.columns)])
        if index in self._guards:
            self._check_guard(count, cells, index)
        return self._number(count, cells[index], index, what)

    def _number(self, count: int, cell: str, index: int, what: str = "a number") -> float:
        where = f"{self.name} row {count} has {cell!r} in column {self.columns[index].name!r}"
        if cell.strip().lower() in self.dialect.missing:
            return math.nan
        if self.dialect.thousands is not None:
            cell = without_thousands(cell, self.dialect.thousands)
        try:
            found = number(cell)
        except ValueError:
            found_text = comma_number(cell, self.decimal)
            if found_text is None:
                raise InputError(f"{where}, which is not {what}{self._advice(cell)}") from None
            if found_text[1] is None:
                how = "a point" if self.decimal == "." else "a comma or a point"
                raise InputError(
                    f"{where}, which may be thousands or a fraction (decimals are written with {how}); write it "
                    "without separators of thousands, or give --csv decimal=, where the comma is the decimal sign"
                ) from None
            self.decimal = ","
            return float(found_text[0])
        if found in self._no_values:
            return math.nan
        if "." in cell and math.isfinite(found):
            if self.decimal == ",":
                raise InputError(f"{where}, with a point where other numbers have a decimal comma")
            self.decimal = "."
        return found

    def _advice(self, cell: str) -> str:
        """What to type where a number has separators of thousands."""
        if self.dialect.thousands is None:
            for mark in ("'", "space", *",."):
                plain = without_thousands(cell, mark)
                if plain != cell and is_number(plain):
                    return f'; if it is {plain}, give --csv "thousands={mark}"'
        return ""

    def _named_value(self, count: int, cells: list[str], named: Named) -> float:
        """The number of the element of a name in this row; NaN where the row has no such name."""
        if named.listed:
            names, values = (items_of(cells[indices[0]]) for indices in (named.names, named.values))
        else:
            names, values = ([cells[i].strip() for i in indices] for indices in (named.names, named.values))
        place = place_of(named, names)
        if place is None:
            if named not in self._found:
                self._lacking.setdefault(named, [name for name in names if name])
            return math.nan
        self._found.add(named)
        self._lacking.pop(named, None)
        if place >= len(values):
            raise InputError(
                f"{self.name} row {count} has {len(values)} numbers in column {self.columns[named.values[0]].name!r} "
                f"and {len(names)} names"
            )
        return self._number(count, values[place], named.values[0 if named.listed else place])

    def _check_guard(self, count: int, cells: list[str], index: int) -> None:
        beside, first = self._guards[index]
        found = cells[beside].strip()
        if not first:
            self._guards[index] = beside, found
        elif found and found != first:
            array = self.columns[index].name.partition("[")[0]
            raise InputError(
                f"{self.name} row {count} has the name {found!r} in column {self.columns[beside].name!r}, and rows "
                f"before it {first!r}, so {self.columns[index].name!r} is another element; give {array}[{first}]"
            )

    def _cells(self, line: str) -> list[str]:
        try:
            return dialects.cells_of(line, self.separator)
        except csv.Error as error:
            raise InputError(f"{self.name} does not begin with a line of CSV: {error}") from None
