"""Times of rows: numbers in a unit, ISO 8601 texts, or pairs of seconds and nanoseconds; all as float64 seconds.

A number's unit is what the reader asks for (`--time 'stamp [us]'`), else what the column's name says, else
what the training data had, else seconds. A time that can't be in seconds, with nobody saying the unit, is an
error that says what to type.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ocean_runtime.contract import Element
from ocean_runtime.errors import InputError, OceanError

if TYPE_CHECKING:
    from ocean_runtime.tables import Row

SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
"""Units that a column of times may have."""
NO_SECONDS = 1e11
"""As seconds since 1970 this is the year 5138: a larger number is in another unit."""
WATCHED = 20
"""Rows after which a clock is judged."""
PERIODS_KEPT = 10_000
_ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?\s*(?:(Z|UTC)|([+-])(\d\d):?(\d\d))?",
    re.IGNORECASE,
)
_SECOND_PART = re.compile(r"(.*?)(secs?|seconds?)")
_PARTS = {
    "sec": ("nanosec", "nsec"),
    "secs": ("nsecs", "nanosecs", "nanosec"),
    "second": ("nanosecond",),
    "seconds": ("nanoseconds",),
}


@dataclass(frozen=True)
class Clock:
    """The column of the time, or two: seconds and the nanoseconds to add."""

    source: str
    """The file, as errors name it."""
    columns: tuple[int, ...]
    names: tuple[Element, ...]
    """As the source names them."""
    unit: str
    """Of the numbers; empty where nobody says."""

    @property
    def element(self) -> Element:
        """What the contract keeps: the first column's name with the unit."""
        return Element(self.names[0].name, "" if len(self.columns) > 1 else self.unit)

    def seconds(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers (n, columns) -> (n,) seconds. Raises InputError where they can't be in seconds, and no unit is told.

        NaN stays NaN.
        """
        with np.errstate(invalid="ignore"):
            if len(self.columns) > 1:
                wrong = (values[:, 1] < 0) | (values[:, 1] >= 1e9)
                if wrong.any():
                    found = values[wrong.argmax(), 1]
                    raise InputError(
                        f"{self.source} has {found:.0f} in column {self.names[1].name!r}, which is read as the "
                        "nanoseconds of a time; expected 0 or more and less than 1e9"
                    )
                total: NDArray[np.float64] = values[:, 0] + 1e-9 * values[:, 1]
                return total
            if not self.unit:
                large = np.abs(values[:, 0]) >= NO_SECONDS
                if large.any():
                    raise InputError(self._ask(float(values[large.argmax(), 0])))
        result: NDArray[np.float64] = SECONDS[self.unit] * values[:, 0]
        return result

    def _ask(self, found: float) -> str:
        unit = "ms" if abs(found) < 1e14 else "us" if abs(found) < 1e17 else "ns"
        name = self.names[0].name
        return (
            f"{self.source} has the time {found:.0f} in column {name!r}, which names no unit and can't be in seconds; "
            f"say the unit: --time '{name} [{unit}]' if it is in {unit}"
        )


def find_clock(
    source: str,
    columns: Sequence[Element],
    wanted: Element,
    find: Callable[[Element], int],
    otherwise: str = "",
) -> Clock:
    """The clock that `wanted` names: a column, or a pair of it and its nanoseconds.

    `header.stamp` stands for `header.stamp.sec` and `header.stamp.nanosec` where no column has that very name; and
    a column `sec` is read together with a column `nanosec` beside it.
    otherwise: the unit where neither `wanted` nor the column's name says one.
    Raises InputError where there is none, or a unit is none of time or another than the column's own.
    """
    names = {column.name: i for i, column in enumerate(columns)}
    name = wanted.name
    if name not in names:
        for joint in (".", "/", "_"):
            found = next((n for n in _PARTS if f"{name}{joint}{n}" in names), None)
            if found is not None:
                name = f"{name}{joint}{found}"
                break
    index = find(Element(name, wanted.unit))
    pair = _beside(name, names)
    if pair is not None and wanted.unit in ("", "s") and columns[index].unit in ("", "s"):
        return Clock(source, (index, pair), (columns[index], columns[pair]), "s")
    unit = wanted.unit or columns[index].unit or otherwise
    if unit not in SECONDS:
        raise InputError(f"the time is in {unit!r}; it may be in s, ms, us or ns")
    return Clock(source, (index,), (columns[index],), unit)


def _beside(name: str, names: dict[str, int]) -> int | None:
    """The column of the nanoseconds that go with a column of whole seconds."""
    match = _SECOND_PART.fullmatch(name)
    if match is None or (match[1] and match[1][-1].isalnum()):
        return None
    return next((names[match[1] + part] for part in _PARTS[match[2]] if match[1] + part in names), None)


def from_iso(text: str) -> float | None:
    """Seconds since 1970 of an ISO 8601 date and time; without a zone it is read as UTC. None where it is none."""
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, _, sign, hours, minutes = match.groups()
    try:
        moment = datetime.datetime(
            int(year),
            int(month),
            int(day),
            int(hour),
            int(minute),
            int(second or 0),
            tzinfo=datetime.timezone.utc,
        )
    except ValueError:
        return None
    offset = (60 * int(hours) + int(minutes)) * (60 if sign == "+" else -60) if sign else 0
    return moment.timestamp() - offset + (float(f"0.{fraction}") if fraction else 0.0)


def from_array(clock: Clock, arrays: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """(n,) seconds of arrays of numbers, or of one of datetime64 or timedelta64, which has a unit of its own."""
    first = arrays[0]
    if first.dtype.kind in "mM":
        unit = np.datetime_data(first.dtype)[0]
        if unit == "generic":
            raise InputError(
                f"{clock.source} has times without a unit in {clock.names[0].name!r}; store them as datetime64[ns]"
            )
        whole = first.astype(f"{first.dtype.kind}8[ns]")
        times: NDArray[np.float64] = np.where(np.isnat(whole), np.nan, whole.astype(np.int64) * 1e-9)
        return times
    return clock.seconds(np.stack([array.astype(np.float64) for array in arrays], axis=1))


@dataclass
class Watch:
    """Looks at how the rows of one source follow each other, and raises InputError where a clock can't be right.

    That is: where nearly every row begins an episode, where most rows repeat the time before them, or, with a
    known rate, where they are a hundred times too close or too far apart.
    """

    source: str
    max_age_s: float
    column: Element | None
    """Of the time; None where there is no clock, and only a column of episodes is looked at."""
    rate_hz: float | None = None
    """Rows a second that are expected."""
    rows: int = 0
    begins: int = 0
    gaps: int = 0
    repeats: int = 0
    periods: list[float] = field(default_factory=list)
    """Seconds between the first rows, where they are positive."""

    def add(self, begins: int, gaps: int, repeats: int, rows: int, periods: NDArray[np.float64]) -> None:
        """Counts of some rows after the first: which began an episode, by a gap or otherwise, or repeat a time.

        periods: seconds between these rows.
        """
        self.begins, self.gaps, self.repeats = self.begins + begins, self.gaps + gaps, self.repeats + repeats
        self.rows += rows
        if len(self.periods) < PERIODS_KEPT:
            self.periods += periods[periods > 0][: PERIODS_KEPT - len(self.periods)].tolist()

    @property
    def period(self) -> float | None:
        """Seconds from row to row: the median; None where no time is known."""
        return float(np.median(self.periods)) if self.periods else None

    def judge(self) -> None:
        """Raises InputError where something is wrong; call it when some rows are in, and at the end."""
        if self.rows < 4:
            return
        name = self.column.name if self.column is not None else ""
        if self.column is not None and 2 * self.repeats > self.rows:
            raise InputError(
                f"{self.repeats:,} of {self.rows:,} rows of {self.source} repeat the time of the row before in column "
                f"{name!r}: its times are too coarse to tell rows apart; give a finer column (seconds and nanoseconds "
                "beside it are read as sec and nanosec), or no clock at all: --time ''"
            )
        if 10 * self.begins >= 9 * self.rows:
            if 2 * self.gaps >= self.begins:
                self.check_period()
            raise InputError(
                f"{self.begins:,} of {self.rows:,} rows of {self.source} begin an episode, so that the state would "
                "never last for two rows; name the column of the episodes by --episode and that of the time by --time"
            )
        if (
            self.rate_hz is not None
            and self.period is not None
            and not 0.01 < self.period * self.rate_hz < 100
        ):
            raise InputError(
                f"the rows of {self.source} come every {self.period:.3g} s by column {name!r}, those of the data "
                f"before every {1 / self.rate_hz:.3g} s; {self._ask()}"
            )

    def check_period(self) -> None:
        """Raises InputError where most rows come later than the maximum age after the one before."""
        if self.column is not None and self.period is not None and self.period > self.max_age_s:
            raise InputError(
                f"nearly every row of {self.source} would begin an episode: by column {self.column.name!r} they come "
                f"every {self.period:g} s, which is longer than the maximum age of {self.max_age_s:g} s; {self._ask()}"
            )

    def _ask(self) -> str:
        """What to type."""
        assert self.column is not None and self.period is not None
        name, unit = self.column.name, self.column.unit
        if unit or self.period < 1:
            return f"is the time in another unit? Say it, as in --time '{name} [ns]' (s, ms, us or ns)"
        likely = "ms" if self.period < 1e3 else "us" if self.period < 1e6 else "ns"
        rate = 1 / (self.period * SECONDS[likely])
        return (
            f"it names no unit: give --time '{name} [{likely}]' if it is in {likely} ({rate:.4g} rows a second), or "
            f"--time '{name} [s]' if it is in seconds (ocean-train then needs --max-age {2.5 * self.period:.3g}, or "
            "no --time)"
        )


def watched(rows: Iterable[Row], watch: Watch, ahead: int) -> Iterator[Row]:
    """The rows as they are. Raises InputError as `Watch.judge`.

    ahead: rows that may be read before the first is given, so that none is used where the clock is wrong.
    """
    source, before = iter(rows), None
    held: list[Row] = []
    while True:
        try:
            row = next(source, None)
        except OceanError:  # what came before an error comes first
            yield from held
            raise
        if row is None:
            break
        if before is not None:
            timed = row.time is not None and before.time is not None
            elapsed = (row.time or 0.0) - (before.time or 0.0) if timed else 0.0
            other = row.episode != before.episode or elapsed < 0
            gap = not other and elapsed > watch.max_age_s
            repeats = timed and elapsed == 0 and not other
            watch.add(other or gap, gap, repeats, 1, np.array([elapsed]))
            if watch.rows == WATCHED:
                watch.judge()
        before = row
        held.append(row)
        if len(held) >= min(ahead, WATCHED + 1) or watch.rows >= WATCHED:
            yield from held
            held.clear()
    watch.judge()
    yield from held
