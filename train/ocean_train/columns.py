"""Tables on disk (CSV, .npz, Parquet) as blocks of numbers, and which of their columns a model is to read.

The choice is made over the first rows of all tables, so that their order has no part in it.

Axes: n rows of a block, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from ocean_runtime.arrays import Arrays, is_arrays
from ocean_runtime.cells import looks_like_number
from ocean_runtime.clocks import Clock
from ocean_runtime.contract import Element
from ocean_runtime.dialect import COMMENTS, Dialect
from ocean_runtime.errors import InputError
from ocean_runtime.named_columns import by_name
from ocean_runtime.tables import Table, element, label

from ocean_train.observations import Array
from ocean_train.spool import BLOCK_ROWS, Block, LogError

CHUNK_BYTES = 1 << 16
NOT_ASKED_FOR = "not asked for"


@dataclass
class Seen:
    """What the first rows of a column hold."""

    numbers: int = 0
    missing: int = 0
    words: int = 0
    decorated: int = 0
    """Of the words, those that look like numbers: `1'234.5`, `12 %`."""
    word: str = ""
    """The first of them."""
    error: str = ""
    """The sentence that says where it stands."""
    kind: str = ""
    """Of an array that is neither numbers nor text: its dtype."""

    def add(self, other: Seen) -> None:
        """Take in the rows of another table."""
        self.numbers, self.missing = self.numbers + other.numbers, self.missing + other.missing
        self.words, self.decorated = self.words + other.words, self.decorated + other.decorated
        self.word, self.error = self.word or other.word, self.error or other.error
        self.kind = self.kind or other.kind

    @property
    def is_empty(self) -> bool:
        """Whether there was no value at all."""
        return not (self.numbers or self.words or self.kind)


@dataclass(frozen=True)
class Roles:
    """Which columns are asked for, as `logs.Request` has them."""

    features: tuple[str, ...]
    targets: tuple[str, ...]
    classes: str | None
    episode: str | None
    time: str | None


@dataclass
class Choice:
    """The columns of all tables."""

    features: tuple[Element, ...]
    targets: tuple[Element, ...]
    time: str = ""
    """The column of the time, with its unit."""
    time_unit: str = ""
    """Of the times in a table that names none."""
    ignored: dict[str, str] = field(default_factory=dict)
    """Columns that are not used, and why."""

    @property
    def numeric(self) -> tuple[Element, ...]:
        """Features, then targets."""
        return self.features + self.targets


class CsvSource:
    """A CSV, read a block at a time."""

    def __init__(self, path: Path, dialect: Dialect) -> None:
        """Reads the first block. Raises InputError as `Table`, LogError where there is no row."""
        self.table = Table(chunks(path), str(path), dialect)
        self.columns = self.table.columns
        self.unused: list[str] = []
        self._first = list(self.table.cells(self._take()))
        if not self._first:
            raise LogError(f"{path} has no row after its first line")

    @property
    def is_cut(self) -> bool:
        """Whether the last row has no line break; known once all blocks are read."""
        return self.table.is_cut

    def _take(self) -> list[str]:
        """The next lines; a cell may go over several."""
        lines = list(islice(self.table.lines, BLOCK_ROWS))
        while sum(line.count('"') for line in lines) % 2 and (more := next(self.table.lines, "")):
            lines.append(more)
        return lines

    def seen(self) -> list[Seen]:
        """Of each column, what its first rows hold."""
        found = [Seen() for _ in self.columns]
        for index, seen in enumerate(found):
            for count, cells in self._first:
                self._look(seen, count, cells, index)
        return found

    def _look(self, seen: Seen, count: int, cells: list[str], index: int) -> None:
        try:
            value = self.table.value(count, cells, index)
        except InputError as error:
            seen.words += 1
            seen.decorated += looks_like_number(cells[index])
            seen.word, seen.error = seen.word or cells[index].strip(), seen.error or str(error)
        else:
            seen.numbers, seen.missing = seen.numbers + (value == value), seen.missing + (value != value)

    def seen_later(self, indices: Sequence[int]) -> list[Seen]:
        """Of columns that are empty in the first rows: what their first value is, further down."""
        found = {index: Seen() for index in indices}
        count = len(self._first)
        while (lines := self._take()) and any(seen.is_empty for seen in found.values()):
            for number, cells in self.table.cells(lines, count):
                count = number
                for index in indices:
                    if found[index].is_empty:
                        self._look(found[index], number, cells, index)
        return [found[index] for index in indices]

    def lookup(self, item: Element) -> str:
        """`position[elbow]` for `position[0]`, where a column of the table names that element so."""
        places = {column.name: i for i, column in enumerate(self.columns)}
        return by_name(places, item.name, self._first[0][1])

    def blocks(self, choice: Choice, roles: Roles) -> Iterator[Block]:
        """All rows. Raises InputError where a cell that is wanted is no number, or no row has a name."""
        table = self.table
        numeric = [table.find(item) for item in choice.numeric]
        clock = table.clock(element(roles.time), choice.time_unit) if roles.time else None
        texts = [table.find(element(name)) for name in (roles.episode, roles.classes) if name]
        rows, count = self._first, 0
        values, times, words = self._parse(rows, numeric, clock, texts)
        while True:
            count += len(values)
            if len(values):
                yield Block(
                    values,
                    times,
                    words[0] if roles.episode else [""] * len(values),
                    words[-1] if roles.classes else None,
                )
            if not (lines := self._take()):
                table.check_names()
                return
            try:
                values, times, words = self._parse_plain(lines, numeric, clock, texts)
            except ValueError:
                values, times, words = self._parse(list(table.cells(lines, count)), numeric, clock, texts)

    def _parse(
        self, rows: list[tuple[int, list[str]]], numeric: list[int], clock: Clock | None, texts: list[int]
    ) -> tuple[Array, Array | None, list[list[str]]]:
        """(n, C), times (n,), and the text columns of rows of cells, whatever is in them."""
        table = self.table
        values = [[table.value(count, cells, index) for index in numeric] for count, cells in rows]
        times = (
            None if clock is None else np.array([table.seconds(count, cells, clock) for count, cells in rows])
        )
        words = [[cells[index] for _, cells in rows] for index in texts]
        return np.array(values, np.float64).reshape(len(rows), len(numeric)), times, words

    def _parse_plain(
        self, lines: list[str], numeric: list[int], clock: Clock | None, texts: list[int]
    ) -> tuple[Array, Array | None, list[list[str]]]:
        """The same, ten times as fast; ValueError where that can't be, as with a quote or a missing value."""
        separator, count = self.table.separator, len(self.columns) - 1
        if separator == " " or not self.table.is_verbatim or not all(map(self.table.is_plain, numeric)):
            raise ValueError
        if any(line.count(separator) != count or '"' in line or line.startswith(COMMENTS) for line in lines):
            raise ValueError
        indices = [*numeric, *(clock.columns if clock is not None else ())]
        values = np.loadtxt(lines, np.float64, None, separator, usecols=indices, ndmin=2)
        if self.table.decimal == ",":
            raise ValueError
        if self.table.decimal is None and any("." in line for line in lines):
            self.table.decimal = "."
        words = [[line.rstrip("\r\n").split(separator)[index] for line in lines] for index in texts]
        if clock is None:
            return values, None, words
        return values[:, : len(numeric)], clock.seconds(values[:, len(numeric) :]), words


class NpzSource:
    """An .npz or Parquet file, given a block at a time."""

    is_cut = False

    def __init__(self, path: Path) -> None:
        """Raises LogError where the file can't be read."""
        try:
            self.table = Arrays(path)
        except InputError as error:
            raise LogError(str(error)) from None
        self.columns = self.table.columns
        self.unused = self.table.unused

    def seen(self) -> list[Seen]:
        """Of each column, what it holds."""
        return [self._seen(index) for index in range(len(self.columns))]

    def _seen(self, index: int) -> Seen:
        array = self.table.arrays[index]
        if array.dtype.kind in "fiub":
            missing = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
            return Seen(numbers=len(array) - missing, missing=missing)
        if array.dtype.kind in "US":
            return Seen(words=len(array), word=str(array[0]))
        return Seen(kind=str(array.dtype))

    def seen_later(self, indices: Sequence[int]) -> list[Seen]:
        """Nothing: `seen` looks at all rows."""
        return [Seen() for _ in indices]

    def lookup(self, item: Element) -> str:
        """As of a CSV."""
        places = {column.name: i for i, column in enumerate(self.columns)}
        return by_name(places, item.name, [str(array[0]) for array in self.table.arrays])

    def blocks(self, choice: Choice, roles: Roles) -> Iterator[Block]:
        """All rows. Raises InputError where an array that is wanted is not numeric."""
        table = self.table
        numeric = [table.numbers(table.find(item)) for item in choice.numeric]
        times = table.times(table.clock(element(roles.time), choice.time_unit)) if roles.time else None
        episode, classes = (
            None if name is None else table.arrays[table.find(element(name))]
            for name in (roles.episode, roles.classes)
        )
        total = len(table.arrays[0])
        for some in (slice(i, min(i + BLOCK_ROWS, total)) for i in range(0, total, BLOCK_ROWS)):
            yield Block(
                np.stack([array[some].astype(np.float64) for array in numeric], axis=1),
                None if times is None else times[some],
                [""] * (some.stop - some.start) if episode is None else [str(x) for x in episode[some]],
                None if classes is None else [str(x) for x in classes[some]],
            )


Source = CsvSource | NpzSource


def open_table(path: Path, dialect: Dialect) -> Source:
    """By the file's name: .npz, .parquet, or else a CSV."""
    return NpzSource(path) if is_arrays(path) else CsvSource(path, dialect)


def choose(paths: Sequence[Path], roles: Roles, dialect: Dialect) -> Choice:
    """Look at the first rows of all tables, and settle their columns.

    Without named features, every column of numbers is one, unless it has another part to play; one that holds
    mostly numbers, and something else, is refused. Raises LogError, or InputError.
    """
    seen: dict[str, Seen] = {}
    units: dict[str, str] = {}
    lookups: dict[str, str] = {}
    unused: list[str] = []
    clocks: list[Clock] = []
    others = {element(name).name for name in (roles.episode, roles.classes) if name}
    targets = [element(text) for text in roles.targets]
    features = [element(text) for text in roles.features]
    others |= {item.name for item in targets}
    for path in paths:
        source = open_table(path, dialect)
        unused += source.unused
        if roles.time:
            clocks.append(source.table.clock(element(roles.time)))
            others |= {item.name for item in clocks[-1].names}
        for item in (*features, *targets, *([] if features else source.columns)):
            if text := source.lookup(item):
                lookups.setdefault(item.name, text)
        found = source.seen()
        empty = [
            i
            for i, s in enumerate(found)
            if s.is_empty and not features and source.columns[i].name not in others
        ]
        for index, later in zip(empty, source.seen_later(empty) if empty else (), strict=True):
            found[index].add(later)
        for item, column in zip(source.columns, found, strict=True):
            seen.setdefault(item.name, Seen()).add(column)
            if item.unit and units.setdefault(item.name, item.unit) != item.unit and item.name not in others:
                raise LogError(
                    f"{path} has {item.name!r} in {item.unit}, another table has it in {units[item.name]}; "
                    "convert it first"
                )
    choice = Choice((), ())
    if not features:
        features = [
            Element(name)
            for name, column in seen.items()
            if name not in others and _is_feature(name, column, choice.ignored)
        ]
    if not features:
        why = "; ".join(f"{name} ({reason})" for name, reason in choice.ignored.items())
        raise LogError(
            f"{paths[0]} has no numeric column left to be a feature; its columns are {', '.join(seen)}"
            + (f"; not used: {why}" if why else "")
        )
    for twice in others & {item.name for item in features}:
        raise LogError(f"{twice!r} can't be a feature and something else at once")
    used = others | {item.name for item in features}
    for name in seen:
        if name and name not in used and name not in choice.ignored:
            choice.ignored[name] = NOT_ASKED_FOR
    for text in dict.fromkeys(unused):
        choice.ignored[text.partition(" (")[0]] = text.partition(" (")[2].rstrip(")")
    # The unit that a table gives holds where the request names none.
    choice.features, choice.targets = (
        tuple(Element(e.name, e.unit or units.get(e.name, ""), lookup=lookups.get(e.name, "")) for e in items)
        for items in (features, targets)
    )
    _settle_time(choice, clocks)
    return choice


def _is_feature(name: str, seen: Seen, ignored: dict[str, str]) -> bool:
    """Whether a column is one of numbers; one that is nearly so is refused, and of another it is noted why."""
    if not name:
        ignored["a column without a name"] = "such as the row numbers that pandas writes"
    elif seen.numbers and not seen.words and not seen.kind:
        return True
    elif seen.words and seen.numbers + 2 * seen.decorated >= seen.words:
        total = seen.numbers + seen.words
        found = seen.error or f"column {name!r} holds {seen.word!r}"
        if seen.decorated:
            raise LogError(
                f"{found}; of the {total:,} values that were looked at, {seen.decorated:,} look like numbers with "
                f"something added, and {seen.numbers:,} are numbers: mend it, or leave the column out by naming the "
                "--features"
            )
        raise LogError(
            f"{found}, but {seen.numbers:,} of the {total:,} values that were looked at are: mend it, leave the column "
            f"out by naming the --features, or, where {seen.word!r} stands for no value, give --csv "
            f"missing={seen.word}"
        )
    elif seen.kind:
        ignored[name] = f"of type {seen.kind}"
    elif seen.words:
        some = f"; {seen.numbers:,} of {seen.numbers + seen.words:,} are numbers" if seen.numbers else ""
        ignored[name] = f"words, such as {seen.word!r}{some}"
    else:
        ignored[name] = "without a value"
    return False


def _settle_time(choice: Choice, clocks: Sequence[Clock]) -> None:
    """The unit of the times where a table names none, and what the contract is to name."""
    named = {clock.unit for clock in clocks if clock.unit}
    silent = [clock for clock in clocks if not clock.unit]
    if silent and len(named) > 1:
        raise LogError(
            f"{silent[0].source} names no unit for its time {silent[0].names[0].name!r}, and other tables name "
            f"{' and '.join(sorted(named))}; name it there, as in '{silent[0].names[0].name} [ms]'"
        )
    choice.time_unit = next(iter(named)) if silent and named else ""
    if clocks:
        first = clocks[0].element
        choice.time = label(
            first if first.unit or len(clocks[0].columns) > 1 else Element(first.name, choice.time_unit)
        )


def chunks(path: Path) -> Iterator[bytes]:
    """A file's bytes. Raises LogError where it can't be read."""
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise LogError(f"{path} can't be read: {error.strerror}") from None
