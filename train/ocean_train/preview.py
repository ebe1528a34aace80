"""What is in a log, before anything is trained: `ocean-train --log FILE ... --preview`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ocean_runtime.bags import is_bag, numeric_fields, open_bag
from ocean_runtime.tables import label

from ocean_train.features import Column, Sensors, prepare
from ocean_train.logs import Request, read_log

TOPIC_MESSAGES = 2000
"""Messages of each topic that are looked at to tell its rate."""


def preview(request: Request, validate_on: tuple[str, ...] = ()) -> Iterator[str]:
    """Lines of text on what was found, and on what would be done about it. Raises as `read_log` does.

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


def bag_lines(path: Path) -> Iterator[str]:
    """The topics of a bag."""
    with open_bag(path) as bag:
        yield f"{path}: {len(bag.topics)} topics"
        for topic, (kind, count) in bag.topics.items():
            times: list[int] = []
            fields: list[str] = []
            if count:
                for time, _, message in bag.messages([topic]):
                    fields = fields or numeric_fields(message)
                    times.append(time)
                    if len(times) == TOPIC_MESSAGES:
                        break
            period = float(np.median(np.diff(times))) / 1e9 if len(times) > 1 else 0.0
            rate = f", about {1 / period:.4g} Hz" if period else ""
            yield f"  {topic}  {kind}, {count:,} messages{rate}"
            yield f"    numeric fields: {', '.join(fields) or 'none'}"


def log_lines(data: Sensors) -> Iterator[str]:
    """Sources, columns, episodes, and what is done about whatever is wrong with them."""
    log, found = data.log, data.log.findings
    yield from found.sources
    if found.ignored:
        yield f"columns not used: {', '.join(found.ignored)}"
    wide = max(len(label(c.element)) for c in data.columns)
    yield f"{'column':{wide}}           low          high          mean           std"
    for column in data.columns:
        numbers = (column.low, column.high, column.mean + column.element.reference, column.std)
        yield f"{label(column.element):{wide}}" + "".join(f" {n:13.6g}" for n in numbers)
    if log.target == "classes":
        yield f"classes: {', '.join(item.name for item in log.outputs)}"
    yield from remarks(data)
    if not any(c.element.unit for c in data.columns):
        yield "no column names a unit: the contract will name none either; write `speed [m/s]` to give one"
    lengths = np.diff(log.starts)
    yield (
        f"{len(log.rows):,} rows in {len(lengths)} episodes of {lengths.min():,} to {lengths.max():,} rows "
        f"(median {np.median(lengths):g})"
    )
    for count, what in (
        (found.gaps, f"gaps longer than {log.max_age_s:g} s, each ends an episode" if log.max_age_s else ""),
        (found.backwards, "times that go backwards, each ends an episode"),
        (found.repeated, "rows that repeat the time before, left out"),
        (found.incomplete, "rows before a first value of each column, left out"),
    ):
        if count:
            yield f"{count:,} {what}"
    if found.longest_gap_s:
        yield f"the longest gap is {found.longest_gap_s:.4g} s"
    for part, episodes in (("train", data.training), ("validate", data.validation)):
        shown = ", ".join(episodes.names[:8]) + (", ..." if len(episodes.names) > 8 else "")
        yield f"to {part} on: {int(episodes.pairs.sum()):,} steps in {len(episodes.names)} episodes: {shown}"


def remarks(data: Sensors) -> Iterator[str]:
    """What is wrong with a column, one line each, and what is done about it."""
    for i, column in enumerate(data.columns):
        for remark in _remarks(data, column, i):
            yield f"{column.element.name}: {remark}"


def _remarks(data: Sensors, column: Column, i: int) -> Iterator[str]:
    found = data.log.findings
    if count := int(found.missing[i]):
        yield f"{count:,} missing values, each is the last one of its episode"
    if count := int(found.infinite[i]):
        yield f"{count:,} infinite values, each is the last finite one of its episode"
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
