"""From logs on disk (CSV, .npz, ROS 2 bags) to clean rows of numbers, cut into episodes.

`ocean_train.spool` has the rules for what is missing, late or out of order.

Axes: N rows, C columns (M features, then the targets), E episodes.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ocean_runtime.bags import MAX_AGE_S, Arrival, arrivals, is_bag, open_bag, parse_field, synchronise
from ocean_runtime.contract import Element
from ocean_runtime.tables import Table, element, label, number, seconds

from ocean_train.observations import Array, Target
from ocean_train.spool import BLOCK_ROWS, Block, Findings, LogError, Spool
from ocean_train.wording import counted

CHUNK_BYTES = 1 << 16
PERIODS_KEPT = 10_000


@dataclass(frozen=True)
class Request:
    """What to read."""

    paths: tuple[Path, ...]
    features: tuple[str, ...] = ()
    """Columns or bag fields; empty for every numeric column that is nothing else."""
    targets: tuple[str, ...] = ()
    """Columns to estimate at the same step."""
    classes: str | None = None
    """The column that says the class at each step. With neither, the next observation is the target."""
    episode: str | None = None
    time: str | None = None
    """The column of the time, in seconds unless its unit says ms, us or ns."""
    rate_hz: float | None = None
    """For bags: rows a second."""
    max_age_s: float = MAX_AGE_S

    def __post_init__(self) -> None:
        if self.targets and self.classes:
            raise LogError("a model has one head: give --targets or --classes, not both")
        for name in ("rate_hz", "max_age_s"):
            given = getattr(self, name)
            if given is not None and not (0 < given < float("inf")):
                raise LogError(
                    f"--{name.split('_h')[0].split('_s')[0].replace('_', '-')} must be positive, not {given}"
                )


@dataclass(frozen=True)
class Log:
    """Clean rows, and where each episode begins."""

    name: str
    sha256: str
    target: Target
    features: tuple[Element, ...]
    outputs: tuple[Element, ...]
    """The target columns, or the names of the classes; the features again where the target is the next row."""
    rows: Array
    """(N, C) on disk: M features, then the targets, or the number of the class."""
    starts: NDArray[np.int64]
    """(E + 1,): episode e is rows[starts[e] : starts[e + 1]]."""
    episodes: tuple[str, ...]
    """(E,) names: of the file without its ending, and of the episode in it, `drive/s3`; `drive/s3#2` the second."""
    rate_hz: float | None
    max_age_s: float | None
    time: str
    """The column of the time with its unit, and the one of the episode; empty where none was named."""
    episode: str
    findings: Findings


@dataclass
class _Layout:
    """The columns of all sources, settled by the first."""

    request: Request
    features: tuple[Element, ...]
    targets: tuple[Element, ...]
    time: str = ""
    """The column of the time, with its unit."""

    @property
    def numeric(self) -> tuple[Element, ...]:
        return self.features + self.targets


def read_log(request: Request) -> Log:
    """Read all sources. Raises LogError or the runtime's InputError, each in one sentence."""
    for option, given in (("--features", request.features), ("--targets", request.targets)):
        names = [element(text).name for text in given]
        if twice := [name for name in names if names.count(name) > 1]:
            raise LogError(f"{twice[0]!r} is given twice in {option}; name each column once")
    findings = Findings()
    spool = Spool(findings, request.max_age_s)
    layout: _Layout | None = None
    rates: list[float] = []
    for path in request.paths:
        spool.begin_source(_printable(path.stem))
        before = spool.count
        layout, blocks = _open(path, request, layout, findings, rates)
        for block in blocks:
            spool.add(block)
        if spool.count == before:
            raise LogError(f"{path} gives no row in which every column has a value")
    if layout is None:
        raise LogError("no log was given")
    rows, starts = spool.finish()
    target: Target = "classes" if request.classes else "columns" if request.targets else "next"
    outputs = layout.features if target == "next" else layout.targets
    if target == "classes":
        outputs = tuple(map(Element, _sort_classes(rows, spool.classes)))
        if len(outputs) < 2:
            raise LogError(
                f"{request.classes!r} is {outputs[0].name!r} in every row; there is nothing to tell apart"
            )
    clocked = request.time is not None or request.rate_hz is not None
    about = [target, *(e.name for e in (*layout.features, *outputs)), starts.tolist()]
    return Log(
        name=", ".join(_printable(path.name) for path in request.paths),
        sha256=hashlib.sha256((spool.sha.hexdigest() + json.dumps(about)).encode()).hexdigest(),
        target=target,
        features=layout.features,
        outputs=outputs,
        rows=rows,
        starts=starts,
        episodes=tuple(spool.names),
        rate_hz=request.rate_hz or (float(f"{np.median(rates):.4g}") if rates else None),
        max_age_s=request.max_age_s if clocked else None,
        time=layout.time,
        episode=request.episode or "",
        findings=findings,
    )


def _open(
    path: Path, request: Request, layout: _Layout | None, findings: Findings, rates: list[float]
) -> tuple[_Layout, Iterable[Block]]:
    if not path.exists():
        raise LogError(f"there is no log at {path}")
    if is_bag(path):
        layout = layout or _bag_layout(path, request)
        return layout, _bag_blocks(path, layout, findings)
    if request.rate_hz is not None:
        raise LogError(f"--rate is for bags, and {path} is a table: each of its rows is a step")
    table = _NpzTable(path) if path.suffix == ".npz" else _CsvTable(path)
    layout = layout or table.layout(request, findings)
    return layout, _timed(path, table.blocks(layout), request, findings, rates)


def _timed(
    path: Path, blocks: Iterable[Block], request: Request, findings: Findings, rates: list[float]
) -> Iterator[Block]:
    """The blocks as they are; what their clock says goes into the findings."""
    count, periods = 0, np.zeros(0)
    for block in blocks:
        count += len(block.values)
        if block.times is not None and len(periods) < PERIODS_KEPT:
            steps = np.diff(block.times)
            periods = np.append(periods, steps[steps > 0])[:PERIODS_KEPT]
            _check_period(f"the rows of {path}", periods, request.max_age_s)
        yield block
    line = f"{path}: {counted(count, 'row')}"
    if len(periods):
        rates.append(1 / float(np.median(periods)))
        line += f", {rates[-1]:.4g} rows a second"
    findings.sources.append(line)


def _check_period(what: str, periods: Array, max_age_s: float) -> None:
    if len(periods) and (period := float(np.median(periods))) > max_age_s:
        raise LogError(
            f"{what} come every {period:g} s, which is longer than the maximum age of {max_age_s:g} s, so each "
            f"would be an episode of its own; give --max-age {2.5 * period:.3g}, or leave it out"
        )


class _CsvTable:
    def __init__(self, path: Path) -> None:
        self.table = Table(_chunks(path), str(path))
        self._first = list(self.table.cells(islice(self.table.lines, BLOCK_ROWS)))
        if not self._first:
            raise LogError(f"{path} has no row after its first line")

    def layout(self, request: Request, findings: Findings) -> _Layout:
        """Every column whose first rows are numbers is a feature, unless it has another part to play."""

        def numeric(index: int) -> bool:
            try:
                return not np.isnan([number(cells[index]) for _, cells in self._first]).all()
            except ValueError:
                return False

        columns = self.table.columns
        return _choose(columns, [numeric(i) for i in range(len(columns))], request, findings, self.table.name)

    def blocks(self, layout: _Layout) -> Iterator[Block]:
        table, request = self.table, layout.request
        numeric = [table.find(item) for item in layout.numeric]
        time, episode, classes = (
            None if name is None else table.find(element(name))
            for name in (request.time, request.episode, request.classes)
        )
        scale = 1.0 if time is None else seconds(table.columns[time])
        numbers = numeric if time is None else [*numeric, time]
        texts = [index for index in (episode, classes) if index is not None]
        rows, count = self._first, 0
        values, words = self._parse(rows, numbers, texts)
        while len(values):
            count += len(values)
            yield Block(
                values[:, : len(numeric)],
                None if time is None else scale * values[:, -1],
                [""] * len(values) if episode is None else words[0],
                None if classes is None else words[-1],
            )
            lines = list(islice(table.lines, BLOCK_ROWS))
            try:
                values, words = self._parse_plain(lines, numbers, texts)
            except ValueError:
                values, words = self._parse(list(table.cells(lines, count)), numbers, texts)

    def _parse(
        self, rows: list[tuple[int, list[str]]], numbers: list[int], texts: list[int]
    ) -> tuple[Array, list[list[str]]]:
        """(n, numbers) and the text columns of rows of cells, whatever is in them."""
        values = [[self.table.value(count, cells, index) for index in numbers] for count, cells in rows]
        words = [[cells[index] for _, cells in rows] for index in texts]
        return np.array(values, np.float64).reshape(len(rows), len(numbers)), words

    def _parse_plain(
        self, lines: list[str], numbers: list[int], texts: list[int]
    ) -> tuple[Array, list[list[str]]]:
        """The same, ten times as fast; ValueError where a line has quotes, a missing value or no number."""
        separator, count = self.table.separator, len(self.table.columns) - 1
        if any(line.count(separator) != count or '"' in line for line in lines):
            raise ValueError
        if not lines:
            return np.zeros((0, len(numbers))), []
        values = np.loadtxt(lines, np.float64, None, separator, usecols=numbers, ndmin=2)
        words = [[line.rstrip("\r\n").split(separator)[index] for line in lines] for index in texts]
        return values, words


class _NpzTable:
    """Each array of an .npz is a column (N,), or several (N, K): `imu[0]`, `imu[1]`, ..."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: dict[Element, NDArray[Any]] = {}
        try:
            found = np.load(path, allow_pickle=False)
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise LogError(
                    f"{path} holds one array without a name; write it by numpy.savez, as name=array"
                )
            with found as arrays:
                for key in arrays.files:
                    array, item = arrays[key], element(key)
                    if array.ndim == 1:
                        self.columns[item] = array
                    elif array.ndim == 2:
                        for i in range(array.shape[1]):
                            self.columns[Element(f"{item.name}[{i}]", item.unit)] = array[:, i]
        except LogError:
            raise
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise LogError(f"{path} can't be read as .npz without pickle: {error}") from None
        lengths = {len(array) for array in self.columns.values()}
        if len(lengths) != 1 or lengths == {0}:
            raise LogError(
                f"{path} must hold arrays of one length, one row a step; it has {sorted(lengths) or 'none'}"
            )

    def layout(self, request: Request, findings: Findings) -> _Layout:
        numeric = [array.dtype.kind in "fiub" for array in self.columns.values()]
        return _choose(tuple(self.columns), numeric, request, findings, str(self.path))

    def blocks(self, layout: _Layout) -> Iterator[Block]:
        request = layout.request
        numeric = [self._find(item.name)[1] for item in layout.numeric]
        for item, array in zip(layout.numeric, numeric, strict=True):
            if array.dtype.kind not in "fiub":
                raise LogError(f"{self.path} has {array.dtype} in column {item.name!r}, which is not numeric")
        clock = None if request.time is None else self._find(element(request.time).name)
        episode = None if request.episode is None else self._find(element(request.episode).name)[1]
        classes = None if request.classes is None else self._find(element(request.classes).name)[1]
        total = len(next(iter(self.columns.values())))
        for some in (slice(i, min(i + BLOCK_ROWS, total)) for i in range(0, total, BLOCK_ROWS)):
            yield Block(
                np.stack([array[some].astype(np.float64) for array in numeric], axis=1),
                None if clock is None else seconds(clock[0]) * clock[1][some].astype(np.float64),
                [""] * (some.stop - some.start) if episode is None else [str(x) for x in episode[some]],
                None if classes is None else [str(x) for x in classes[some]],
            )

    def _find(self, name: str) -> tuple[Element, NDArray[Any]]:
        for item, array in self.columns.items():
            if item.name == name:
                return item, array
        known = ", ".join(item.name for item in self.columns)
        raise LogError(f"{self.path} has no column {name!r}; its columns are {known}")


def _choose(
    columns: Sequence[Element], numeric: Sequence[bool], request: Request, findings: Findings, name: str
) -> _Layout:
    known = {item.name: item for item in columns}
    targets = tuple(element(text) for text in request.targets)
    others = {element(t).name for t in (request.episode, request.time, request.classes) if t}
    others |= {item.name for item in targets}
    features = tuple(element(text) for text in request.features) or tuple(
        item
        for item, is_number in zip(columns, numeric, strict=True)
        if is_number and item.name not in others
    )
    if not features:
        raise LogError(
            f"{name} has no numeric column left to be a feature; its columns are {', '.join(known)}"
        )
    used = others | {item.name for item in features}
    findings.ignored += [item.name for item in columns if item.name not in used]
    for twice in others & {item.name for item in features}:
        raise LogError(f"{twice!r} can't be a feature and something else at once")
    # The unit that the file gives holds where the request names none.
    settled = [e if e.unit or e.name not in known else known[e.name] for e in (*features, *targets)]
    time = element(request.time) if request.time else None
    clock = "" if time is None else label(known.get(time.name, time))
    return _Layout(request, tuple(settled[: len(features)]), tuple(settled[len(features) :]), clock)


def _bag_layout(path: Path, request: Request) -> _Layout:
    if not request.features:
        raise LogError(
            f"{path} is a bag: name its --features, such as /imu:angular_velocity.x; --preview lists them"
        )
    if request.rate_hz is None:
        raise LogError(f"{path} is a bag: give the --rate in Hz at which its topics are to be read together")
    if request.time or request.episode:
        raise LogError(
            "a bag has its own clock, and its gaps end its episodes: leave out --time and --episode"
        )
    return _Layout(request, tuple(map(element, request.features)), tuple(map(element, request.targets)))


def _bag_blocks(path: Path, layout: _Layout, findings: Findings) -> Iterator[Block]:
    request = layout.request
    assert request.rate_hz is not None
    fields = [parse_field(item) for item in layout.numeric]
    if request.classes:
        fields.append(parse_field(request.classes))
    with open_bag(path) as bag:
        columns, incoming = arrivals(bag, fields)
        watch = _Watch(list(dict.fromkeys(f.topic for f in fields)))
        rows = synchronise(columns, watch.see(incoming), request.rate_hz, request.max_age_s)
        count, last = 0, "1"
        while some := list(islice(rows, BLOCK_ROWS)):
            count, values = count + len(some), np.array([row.values for row in some])
            classes = [f"{v:g}" for v in values[:, -1]] if request.classes else None
            last = some[-1].episode
            yield Block(values[:, : len(layout.numeric)], None, [row.episode for row in some], classes)
        for topic, periods in watch.periods.items():
            _check_period(f"the messages of {topic} in {path}", np.array(periods), request.max_age_s)
        if not count:
            counts = ", ".join(f"{t} ({counted(bag.topics[t][1], 'message')})" for t in watch.topics)
            raise LogError(
                f"{path} gives no row: at no instant are {counts} all within --max-age {request.max_age_s:g} s"
            )
    findings.gaps += int(last) - 1
    findings.longest_gap_s = max([findings.longest_gap_s, *watch.longest.values()])
    findings.sources.append(
        f"{path}: {counted(count, 'row')} at {request.rate_hz:g} Hz from " + watch.describe()
    )


class _Watch:
    """What the arrivals of each topic look like: rates and gaps."""

    def __init__(self, topics: list[str]) -> None:
        self.topics = topics
        self.periods: dict[str, list[float]] = {topic: [] for topic in topics}
        self.longest = dict.fromkeys(topics, 0.0)
        self._last: dict[int, int] = {}

    def see(self, incoming: Iterable[Arrival]) -> Iterator[Arrival]:
        for arrival in incoming:
            time, source, _ = arrival
            if source in self._last:
                period, topic = (time - self._last[source]) / 1e9, self.topics[source]
                self.longest[topic] = max(self.longest[topic], period)
                if len(self.periods[topic]) < PERIODS_KEPT:
                    self.periods[topic].append(period)
            self._last[source] = time
            yield arrival

    def describe(self) -> str:
        def one(topic: str) -> str:
            if not self.periods[topic]:
                return f"{topic} (one message)"
            period = float(np.median(self.periods[topic]))
            rate = f"{1 / period:.4g} Hz" if period else "all at one time"
            return f"{topic} ({rate}, longest gap {self.longest[topic]:.3g} s)"

        return ", ".join(map(one, self.topics))


def _sort_classes(rows: Array, found: dict[str, int]) -> list[str]:
    """The classes' names in order, by value where all are numbers; rewrites the rows' last column to match."""
    try:
        names = sorted(found, key=float)
    except ValueError:
        names = sorted(found)
    place = np.empty(len(names))
    for i, name in enumerate(names):
        place[found[name]] = i
    for block in (rows[i : i + BLOCK_ROWS] for i in range(0, len(rows), BLOCK_ROWS)):
        block[:, -1] = place[block[:, -1].astype(np.int64)]
    return names


def _printable(name: str) -> str:
    """A file's name whose bytes may be of no encoding."""
    return os.fsencode(name).decode(errors="replace")


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise LogError(f"{path} can't be read: {error.strerror}") from None
