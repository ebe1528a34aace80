"""Rows as they were found, cleaned, cut into episodes, and kept on disk.

What is done with what is found; `ocean-train --preview` says how often each was met:

    a missing or infinite value       takes the last value before it of its column in this episode
    rows before a first value         are left out, until every column has had one
    a gap longer than the maximum age ends the episode
    a clock that goes backwards       ends the episode
    a time that repeats               its row is left out, the first is kept
    the episode column changes        a new episode begins, as with every new file

Rows go through a temporary file, not through memory, so that a log may be larger than the machine's memory.

Axes: N rows, C columns (M features, then the targets), E episodes, n rows of a block.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ocean_train.observations import Array

BLOCK_ROWS = 4096
Mask = NDArray[np.bool_]
Whole = NDArray[np.int64]


class LogError(ValueError):
    """A log that can't be read or trained on; the message says what would help."""


class Block(NamedTuple):
    """Some rows of a source, as found; at least one."""

    values: Array
    """(n, C), NaN where missing."""
    times: Array | None
    """(n,) seconds."""
    episodes: Sequence[str]
    """(n,) whose each row is."""
    classes: Sequence[str] | None
    """(n,) the class at each row, where the target is one."""


def _zeros() -> Whole:
    return np.zeros(0, np.int64)


@dataclass
class Findings:
    """What was found in the sources, and what was done about it."""

    sources: list[str] = field(default_factory=list)
    """One line each."""
    ignored: list[str] = field(default_factory=list)
    """Columns that were not used."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why each of them was not."""
    rows: int = 0
    """Rows that were read."""
    missing: Whole = field(default_factory=_zeros)
    """(C,) values that were missing."""
    infinite: Whole = field(default_factory=_zeros)
    """(C,) values that were infinite."""
    incomplete: int = 0
    """Rows left out because a column had no value yet."""
    gaps: int = 0
    backwards: int = 0
    repeated: int = 0
    longest_gap_s: float = 0.0


class Spool:
    """Takes blocks; gives all clean rows and where each episode starts."""

    def __init__(self, findings: Findings, max_age_s: float) -> None:
        self.findings, self.max_age_s = findings, max_age_s
        self.count = 0
        """Rows kept."""
        self.names: list[str] = []
        """(E,) names of the episodes."""
        self.classes: dict[str, int] = {}
        """Number of each class, in the order of their first row."""
        self.sha = hashlib.sha256()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the rows are mapped
        self._width = 0
        self._starts: list[int] = []
        self._times_named: dict[str, int] = {}
        self._serial = 0  # of the episode that the last row was in
        self._written = -1  # of the last row kept
        self.begin_source("")

    def begin_source(self, prefix: str) -> None:
        """The next row begins an episode, whose name starts with this."""
        self._prefix = prefix
        self._seen = 0  # rows of this source
        # Of its last row: whose it was, its time, and the values held.
        self._key: str | None = None
        self._time: float | None = None
        self._held: Array | None = None

    def add(self, block: Block) -> None:
        """Clean and keep a block. Raises LogError where a time or class is missing."""
        values = block.values
        if not self._width:
            self._width = values.shape[1] + (block.classes is not None)
            self.findings.missing = np.zeros(values.shape[1], np.int64)
            self.findings.infinite = np.zeros(values.shape[1], np.int64)
        infinite = np.isinf(values)
        self.findings.rows += len(values)
        self.findings.infinite += infinite.sum(0)
        self.findings.missing += np.isnan(values).sum(0)
        values = np.where(infinite, np.nan, values)
        if block.classes is not None:
            values = np.concatenate([values, self._numbered(block.classes)[:, None]], axis=1)
        keys = np.array([episode.strip() for episode in block.episodes])
        new = np.concatenate([[self._seen == 0 or keys[0] != self._key], keys[1:] != keys[:-1]])
        keep = np.ones(len(keys), bool)
        if block.times is not None:
            new, keep = self._check_times(block.times, new)
        serial = self._serial + np.cumsum(new)
        filled = self._hold(values, serial, bool(new[0]))
        self._key, self._serial, self._held = str(keys[-1]), int(serial[-1]), filled[-1]
        self._seen += len(keys)
        whole = ~np.isnan(filled).any(1)
        self.findings.incomplete += int((~whole & keep).sum())
        self._write(filled[whole & keep], serial[whole & keep], keys[whole & keep])

    def finish(self) -> tuple[Array, Whole]:
        """All rows (N, C), on disk, and where episodes start (E + 1,)."""
        self._file.flush()
        with self._file:
            rows = np.memmap(self._file, np.float64, "r+", shape=(self.count, self._width))
        return rows, np.array([*self._starts, self.count], np.int64)

    def _numbered(self, classes: Sequence[str]) -> Array:
        names = [name.strip() for name in classes]
        for i, name in enumerate(names):
            if name.lower() in ("", "nan"):
                raise LogError(f"row {self._seen + i + 1} has no class; fill it in, or leave such rows out")
        return np.array([self.classes.setdefault(name, len(self.classes)) for name in names], np.float64)

    def _check_times(self, times: Array, new: Mask) -> tuple[Mask, Mask]:
        """Which rows begin an episode, now that their times are known, and which are kept."""
        for i in np.flatnonzero(~np.isfinite(times))[:1]:
            raise LogError(f"row {self._seen + int(i) + 1} has no time; fill it in, or leave such rows out")
        elapsed = np.diff(times, prepend=times[0] if self._time is None else self._time)
        self._time = float(times[-1])
        backwards, gap, repeated = (
            ~new & found for found in (elapsed < 0, elapsed > self.max_age_s, elapsed == 0)
        )
        self.findings.backwards += int(backwards.sum())
        self.findings.gaps += int(gap.sum())
        self.findings.repeated += int(repeated.sum())
        longest = float(elapsed[~new].max(initial=0.0))
        self.findings.longest_gap_s = max(self.findings.longest_gap_s, longest)
        return new | backwards | gap, ~repeated

    def _hold(self, values: Array, serial: Whole, begins: bool) -> Array:
        """(n, C) with the last value of the same episode in place of a missing one, where there is one."""
        n = len(values)
        if self._held is not None and not begins:
            values, serial = np.vstack([self._held, values]), np.concatenate([serial[:1], serial])
        place = np.arange(len(values))[:, None]
        first = np.searchsorted(serial, serial)[:, None]  # (n, 1): where each row's episode begins
        last = np.maximum.accumulate(np.where(np.isnan(values), -1, place), axis=0)  # (n, C)
        filled = np.take_along_axis(values, np.maximum(last, 0), axis=0)
        filled[last < first] = np.nan
        return filled[-n:]

    def _write(self, values: Array, serial: Whole, keys: NDArray[np.str_]) -> None:
        for i in np.flatnonzero(np.diff(serial, prepend=self._written)):
            self._starts.append(self.count + int(i))
            self.names.append(self._name(str(keys[i])))
        if len(values):
            self._written = int(serial[-1])
        self.count += len(values)
        content = values.tobytes()
        self.sha.update(content)
        self._file.write(content)

    def _name(self, key: str) -> str:
        name = "/".join(part for part in (self._prefix, key) if part) or "episode"
        self._times_named[name] = count = self._times_named.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"
