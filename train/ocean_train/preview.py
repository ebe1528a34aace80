"""What is in a log, before anything is trained: `ocean-train --log FILE ... --preview`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from ocean_runtime.bags import is_bag, numeric_fields, open_bag
from ocean_runtime.tables import label

from ocean_train.columns import NOT_ASKED_FOR
from ocean_train.features import BLOCK_ROWS, Column, Sensors, prepare, too_short
from ocean_train.logs import Log, Request, read_log
from ocean_train.loop import Settings
from ocean_train.observations import Array
from ocean_train.wording import counted

SHOWN_COLUMNS = 20
TOPIC_MESSAGES = 2000
"""Messages of each topic that are looked at to tell its rate."""

LISTED_MESSAGES = 50
"""Messages of each topic whose fields are listed."""
NO_VALUES = frozenset(
    [s * n for s in (1.0, -1.0) for n in (99, 999, 9999, 99999, 999999, 1e20, 1e30, 1e31, 1e38)] + [-32768.0]
)
"""Numbers by which some programs say that there is no value."""


def preview(request: Request, settings: Settings, validate_on: Sequence[str] = ()) -> Iterator[str]:
    """Lines of text on what was found, and on what would be done about it. Raises as `read_log` does.

    settings: of the training that the same command line without `--preview` would do.
    Of a bag without chosen features or rate: its topics, their types, rates and numeric fields.
    """
    bags = [path for path in request.paths if is_bag(path)]
    if bags and (not request.features or request.rate_hz is None):
        for path in bags:
            yield from bag_lines(path)
        yield "choose --features (topic:path, with the unit in brackets where you know it) and a --rate in Hz"
        return
    data = prepare(read_log(request), validate_on)
    yield from log_lines(data)
    if settings.feed == "streams" and (short := too_short(data, settings.batch, settings.window)):
        yield f"training as asked for would be refused: {short}"


def bag_lines(path: Path) -> Iterator[str]:
    """The topics of a bag."""
    with open_bag(path) as bag:
        yield f"{path}: {counted(len(bag.topics), 'topic')}"
        for topic, (kind, count) in bag.topics.items():
            times: list[int] = []
            fields: list[str] = []
            if count:
                for time, _, message in bag.messages([topic]):
                    if len(times) < LISTED_MESSAGES:  # on /tf, each may hold another frame
                        paths = zip(numeric_fields(message), numeric_fields(message, named=True), strict=True)
                        known = [a if a == b else f"{a} or {b}" for a, b in paths]
                        fields = list(dict.fromkeys([*fields, *known]))
                    times.append(time)
                    if len(times) == TOPIC_MESSAGES:
                        break
            period = float(np.median(np.diff(times))) / 1e9 if len(times) > 1 else 0.0
            rate = f", about {1 / period:.4g} Hz" if period else ""
            yield f"  {topic}  {kind}, {counted(count, 'message')}{rate}"
            yield f"    numeric fields: {', '.join(fields) or 'none'}"


def log_lines(data: Sensors) -> Iterator[str]:
    """Sources, columns, episodes, and what is done about whatever is wrong with them."""
    log, found = data.log, data.log.findings
    yield from found.sources
    wide = max(len(label(c.element)) for c in data.columns)
    heads = ("low", "high", "mean", "std", "low (train)", "high (train)")
    yield (
        f"of all {counted(len(log.rows), 'row')} that are read; `train`: of the part to train on, whose mean and std "
        "scale the model"
    )
    yield f"{'column':{wide}}" + "".join(f" {head:>13}" for head in heads)
    for column, numbers in zip(data.columns, _over_all(log, len(data.columns)).T, strict=True):
        shown = (*numbers, column.low, column.high)
        yield f"{label(column.element):{wide}}" + "".join(f" {n:13.6g}" for n in shown)
    if log.target == "classes":
        yield f"classes: {', '.join(item.name for item in log.outputs)}"
    yield from left_out(log)
    yield from remarks(data)
    if not any(c.element.unit for c in data.columns):
        yield "no column names a unit: the contract will name none either; write `speed [m/s]` to give one"
    lengths = np.diff(log.starts)
    yield (
        f"{counted(len(log.rows), 'row')} in {counted(len(lengths), 'episode')} of {lengths.min():,} to "
        f"{counted(int(lengths.max()), 'row')} (median {np.median(lengths):g})"
    )
    if found.longest_gap_s:
        yield f"the longest gap is {found.longest_gap_s:.4g} s"
    for part, episodes in (("to train on", data.training), ("held out to validate on", data.validation)):
        names = ", ".join(episodes.names[:8]) + (", ..." if len(episodes.names) > 8 else "")
        count, steps = len(episodes.names), int(episodes.pairs.sum())
        rows = steps + (count if log.target == "next" else 0)  # the last row of an episode has no next
        yield (
            f"{part}: {counted(rows, 'row')} ({rows / len(log.rows):.1%}) in {counted(count, 'episode')}, "
            f"{counted(steps, 'step')}: {names}"
        )


def left_out(log: Log) -> Iterator[str]:
    """Columns and rows that are not trained on: which, how many, and why; and what ends episodes."""
    found = log.findings
    not_asked = [name for name in found.ignored if found.reasons.get(name) == NOT_ASKED_FOR]
    others = [name for name in found.ignored if name not in not_asked]
    if others:
        yield (
            "columns not used: "
            + ", ".join(f"{name} ({found.reasons[name]})" for name in others[:SHOWN_COLUMNS])
            + _more(others)
        )
    if not_asked:
        yield (
            f"{counted(len(not_asked), 'column')} not asked for: {', '.join(not_asked[:SHOWN_COLUMNS])}"
            + _more(not_asked)
        )
    lookups = {e.name: e.lookup for e in (*log.features, *log.outputs) if e.lookup}
    if named := [f"{name} is {lookup}" for name, lookup in lookups.items()]:
        yield f"looked up by name in each row: {', '.join(named[:SHOWN_COLUMNS])}{_more(named)}"
    causes = [
        f"{count:,} {cause}"
        for count, cause in (
            (found.incomplete, "before each column has had a value"),
            (found.repeated, "with the time of the row before"),
        )
        if count
    ]
    if causes:
        out = found.rows - len(log.rows)
        yield f"rows left out: {out:,} of {found.rows:,} ({out / found.rows:.1%}): {', '.join(causes)}"
    for count, thing, done in (
        (found.gaps, "gap", f" longer than {log.max_age_s or 0:g} s; such a gap ends its episode"),
        (found.backwards, "step", " back in time; such a step ends its episode"),
    ):
        if count:
            yield counted(count, thing) + done


def _more(names: Sequence[str]) -> str:
    return f", and {len(names) - SHOWN_COLUMNS:,} more" if len(names) > SHOWN_COLUMNS else ""


def _over_all(log: Log, columns: int) -> Array:
    """Low, high, mean and standard deviation of the first C columns over all rows, (4, C), a block at a time."""

    def blocks() -> Iterator[Array]:
        for start in range(0, len(log.rows), BLOCK_ROWS):
            yield np.asarray(log.rows[start : start + BLOCK_ROWS, :columns])

    lows, highs, sums = zip(*((rows.min(0), rows.max(0), rows.sum(0)) for rows in blocks()), strict=True)
    low, high, mean = np.min(lows, axis=0), np.max(highs, axis=0), np.sum(sums, axis=0) / len(log.rows)
    square = np.sum([((rows - mean) ** 2).sum(0) for rows in blocks()], axis=0) / len(log.rows)
    return np.stack([low, high, mean, np.where(high > low, np.sqrt(square), 0.0)])


def remarks(data: Sensors) -> Iterator[str]:
    """What is wrong with a column, one line each, and what is done about it."""
    for i, column in enumerate(data.columns):
        for remark in _remarks(data, column, i):
            yield f"{column.element.name}: {remark}"


def _stands_alone(log: Log, i: int, value: float) -> int:
    """In how many rows column i has this value, where all others are less than half as far from zero; else 0."""
    count = 0
    for start in range(0, len(log.rows), BLOCK_ROWS):
        rows = np.asarray(log.rows[start : start + BLOCK_ROWS, i])
        here = rows == value
        if (2 * np.abs(rows[~here]) >= abs(value)).any():
            return 0
        count += int(here.sum())
    return count


def _remarks(data: Sensors, column: Column, i: int) -> Iterator[str]:
    found = data.log.findings
    filled = ", filled with the last value before in the same episode"
    if count := int(found.missing[i]):
        yield counted(count, "missing value") + filled
    if count := int(found.infinite[i]):
        yield counted(count, "infinite value") + filled
    for value in sorted({column.low, column.high}):
        if value in NO_VALUES and (count := _stands_alone(data.log, i, value)):
            yield (
                f"{value:g} stands in {counted(count, 'row')}, far from all others: if it stands for no value, give "
                f"--csv missing={value:g}, or write NaN in its place"
            )
    if column.element.reference:
        yield (
            f"too large for float32 beside its changes: {column.element.reference:.17g} is subtracted in float64 "
            "first, here and in the runtime"
        )
    if column.std == 0:
        yield "constant in the training data: kept, but it says nothing; leave it out unless it will change"
    elif column.is_clock:
        yield (
            f"named like a time, and never falls: no observation; give --time {column.element.name} so that its gaps "
            "end episodes (training refuses it as a feature unless --features names it)"
        )
    elif column.rises:
        yield "never falls, like a time or a counter: what it reaches later was never seen; leave it out"
