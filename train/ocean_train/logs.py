"""From logs on disk (CSV, .npz, ROS 2 bags) to clean rows of numbers, cut into episodes.

`ocean_train.spool` has the rules for what is missing, late or out of order.

Axes: N rows, C columns (M features, then the targets), E episodes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from ocean_runtime.bags import (
    MAX_AGE_S,
    Arrival,
    arrivals,
    is_bag,
    named_fields,
    open_bag,
    parse_field,
    synchronise,
)
from ocean_runtime.clocks import Watch
from ocean_runtime.contract import Element
from ocean_runtime.dialect import Dialect
from ocean_runtime.tables import element

from ocean_train.columns import Choice, Roles, Source, choose, open_table
from ocean_train.observations import Array, Target
from ocean_train.spool import BLOCK_ROWS, Block, Findings, LogError, Spool
from ocean_train.wording import counted

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
    """The column of the time: a date, or a number in the unit that is named here or by the column, else in seconds."""
    rate_hz: float | None = None
    """For bags: rows a second."""
    max_age_s: float = MAX_AGE_S
    dialect: Dialect = field(default_factory=Dialect)
    """Of CSV: what is told of how it is written."""

    @property
    def roles(self) -> Roles:
        """Which columns are asked for."""
        return Roles(self.features, self.targets, self.classes, self.episode, self.time)

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


_Layout = Choice


def read_log(request: Request) -> Log:
    """Read all sources. Raises LogError or the runtime's InputError, each in one sentence."""
    for option, given in (("--features", request.features), ("--targets", request.targets)):
        names = [element(text).name for text in given]
        if twice := [name for name in names if names.count(name) > 1]:
            raise LogError(f"{twice[0]!r} is given twice in {option}; name each column once")
    findings = Findings()
    spool = Spool(findings, request.max_age_s)
    rates: list[float] = []
    layout = _settle(request, findings)
    for path in request.paths:
        spool.begin_source(_printable(Path(path.name.removesuffix(".gz")).stem))
        before = spool.count
        for block in _blocks(path, request, layout, findings, rates):
            spool.add(block)
        if spool.count == before:
            raise LogError(f"{path} gives no row in which every column has a value")
    rows, starts = spool.finish()
    target: Target = "classes" if request.classes else "columns" if request.targets else "next"
    outputs = layout.features if target == "next" else layout.targets
    if target == "classes":
        outputs = tuple(map(Element, _sort_classes(rows, spool.classes)))
        if len(outputs) < 2:
            raise LogError(
                f"{request.classes!r} is {outputs[0].name!r} in every row; there is nothing to tell apart"
            )
    clocked = bool(request.time) or request.rate_hz is not None
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


def _settle(request: Request, findings: Findings) -> _Layout:
    """The columns of all sources. Raises LogError where one is missing, or they can't be read together."""
    for path in request.paths:
        if not path.exists():
            raise LogError(f"there is no log at {path}")
    bags = [path for path in request.paths if is_bag(path)]
    tables = [path for path in request.paths if path not in bags]
    if tables and request.rate_hz is not None:
        raise LogError(f"--rate is for bags, and {tables[0]} is a table: each of its rows is a step")
    if not request.paths:
        raise LogError("no log was given")
    layout = _bag_layout(bags[0], request) if bags else choose(tables, request.roles, request.dialect)
    findings.ignored += list(layout.ignored)
    findings.reasons.update(layout.ignored)
    return layout


def _blocks(
    path: Path, request: Request, layout: _Layout, findings: Findings, rates: list[float]
) -> Iterator[Block]:
    if is_bag(path):
        return _bag_blocks(path, request, layout, findings)
    return _timed(path, open_table(path, request.dialect), request, layout, findings, rates)


def _timed(
    path: Path,
    source: Source,
    request: Request,
    layout: _Layout,
    findings: Findings,
    rates: list[float],
) -> Iterator[Block]:
    """The blocks as they are; what their clock says goes into the findings, and is refused where it can't be right."""
    clock = element(layout.time) if layout.time else None
    watch = Watch(str(path), request.max_age_s, clock, rates[0] if rates else None)
    count, last_time, last_key = 0, None, None
    for block in source.blocks(layout, request.roles):
        count += len(block.values)
        keys = np.array([key.strip() for key in block.episodes])
        times = np.zeros(len(keys)) if block.times is None else block.times
        elapsed = np.diff(times, prepend=times[0] if last_time is None else last_time)
        other = np.concatenate([[last_key is not None and keys[0] != last_key], keys[1:] != keys[:-1]])
        other |= elapsed < 0
        gap, repeats = ~other & (elapsed > request.max_age_s), ~other & (elapsed == 0)
        if last_time is None:
            repeats[0] = False
        repeated = 0 if block.times is None else int(repeats.sum())
        watch.add(int((other | gap).sum()), int(gap.sum()), repeated, len(keys), elapsed)
        last_time, last_key = float(times[-1]), str(keys[-1])
        watch.check_period()
        watch.judge()
        yield block
    line = f"{path}: {counted(count, 'row')}"
    if block_period := watch.period:
        rates.append(1 / block_period)
        line += f", {rates[-1]:.4g} rows a second"
    if source.is_cut:
        line += "; it ends without a line break: if it was cut off, its last row may be wrong"
    findings.sources.append(line)


def _check_period(what: str, periods: Array, max_age_s: float) -> None:
    if len(periods) and (period := float(np.median(periods))) > max_age_s:
        raise LogError(
            f"{what} come every {period:g} s, which is longer than the maximum age of {max_age_s:g} s, so each "
            f"would be an episode of its own; give --max-age {2.5 * period:.3g}, or leave it out"
        )


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
    with open_bag(path) as bag:
        features, targets = (
            tuple(field.element for field in named_fields(bag, list(map(parse_field, texts))))
            for texts in (request.features, request.targets)
        )
    return _Layout(features, targets)


def _bag_blocks(path: Path, request: Request, layout: _Layout, findings: Findings) -> Iterator[Block]:
    assert request.rate_hz is not None
    fields = [parse_field(item) for item in layout.numeric]
    if request.classes:
        fields.append(parse_field(request.classes))
    with open_bag(path) as bag:
        chosen, incoming = arrivals(bag, fields)
        watch = _Watch(list(map(str, chosen)))
        rows = synchronise(
            [source.places for source in chosen], watch.see(incoming), request.rate_hz, request.max_age_s
        )
        count, last = 0, "1"
        while some := list(islice(rows, BLOCK_ROWS)):
            count, values = count + len(some), np.array([row.values for row in some])
            classes = [f"{v:g}" for v in values[:, -1]] if request.classes else None
            last = some[-1].episode
            yield Block(values[:, : len(layout.numeric)], None, [row.episode for row in some], classes)
        for topic, periods in watch.periods.items():
            _check_period(f"the messages of {topic} in {path}", np.array(periods), request.max_age_s)
        if not count:
            counts = ", ".join(f"{s} ({counted(bag.topics[s.topic][1], 'message')})" for s in chosen)
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
