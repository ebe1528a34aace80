"""ROS 2 bags (MCAP and sqlite3) read without ROS: topics, fields, and rows at one rate.

A field is written `/imu:angular_velocity.x` or `/joint_states:position[2]`: the topic, a colon, and the path
into its message, with the unit after it where one is given: `/imu:angular_velocity.x [rad/s]`.

Rows at one rate, by one rule: row k stands for the instant t₀ + k / rate, t₀ being when every topic has
spoken; each field holds its topic's latest message up to that instant (log time: when it was recorded).
Where a topic's latest is older than the maximum age, there is no row, and the next row begins a new episode.
Nothing that came after an instant has any influence on its row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ocean_runtime.contract import Element
from ocean_runtime.errors import InputError
from ocean_runtime.tables import Row, element

SUFFIXES = (".mcap", ".db3")
MAX_AGE_S = 1.0
LISTED_ITEMS = 32
"""Of an array in a message, how many elements `numeric_fields` lists."""
_STEP = re.compile(r"([A-Za-z_]\w*)|\[(\d+)\]")


@dataclass(frozen=True)
class Field:
    """One number in the messages of one topic."""

    element: Element
    """Its name is the whole text: topic, colon, path."""
    topic: str
    path: tuple[str | int, ...]


def is_bag(path: Path) -> bool:
    """Whether this is a bag's folder, or one file of a bag."""
    return path.suffix in SUFFIXES or (path / "metadata.yaml").is_file()


def parse_field(text: str | Element) -> Field:
    """`/imu:angular_velocity.x [rad/s]` -> Field; raises InputError where it is written otherwise."""
    item = text if isinstance(text, Element) else element(text)
    topic, colon, path = item.name.partition(":")
    steps: list[str | int] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            break
        steps.append(match[1] if match[1] else int(match[2]))
        position = match.end()
        if path[position : position + 1] == "." and position + 1 < len(path):
            position += 1
    if not colon or not topic or not steps or position != len(path):
        raise InputError(
            f"{item.name!r} is no field of a bag; write topic:path, such as /imu:angular_velocity.x or "
            "/joint_states:position[2]"
        )
    return Field(item, topic, tuple(steps))


class Bag:
    """An open bag; made by `open_bag`."""

    def __init__(self, reader: Any, path: Path) -> None:
        self._reader = reader
        self.path = path
        self.topics: dict[str, tuple[str, int]] = {
            name: (info.msgtype or "several types", info.msgcount)
            for name, info in sorted(reader.topics.items())
        }
        """Type and number of messages of each topic."""

    def messages(self, topics: Iterable[str]) -> Iterator[tuple[int, str, Any]]:
        """(log time in ns, topic, message), in the order of their times. Raises InputError for a damaged bag."""
        wanted = set(topics)
        for topic in sorted(wanted - self.topics.keys()):
            raise InputError(
                f"{self.path} has no topic {topic!r}; its topics are {', '.join(self.topics) or 'none'}"
            )
        chosen = [c for c in self._reader.connections if c.topic in wanted]
        with _readable(self.path):
            for connection, time, raw in self._reader.messages(connections=chosen):
                yield time, connection.topic, self._reader.deserialize(raw, connection.msgtype)


@contextmanager
def open_bag(path: Path) -> Iterator[Bag]:
    """Open a bag's folder, or a single .mcap or .db3 file. Raises InputError where it can't be read."""
    try:
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore
    except ImportError:
        raise InputError("reading a bag needs rosbags: pip install 'oceanstate[bags]'") from None
    with _readable(path):
        reader = AnyReader([path], default_typestore=get_typestore(Stores.LATEST))
        reader.open()
    try:
        yield Bag(reader, path)
    finally:
        reader.close()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever rosbags finds wrong with a file, in one sentence; its own errors share no base class."""
    try:
        yield
    except (InputError, GeneratorExit):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{path} can't be read as a bag ({reason}); if the recording was cut off, try: "
            "ros2 bag reindex, or mcap recover"
        ) from None


def value(message: Any, field: Field) -> float:
    """The field's number in one message. Raises InputError where it isn't there or isn't one number."""
    found = message
    for depth, step in enumerate(field.path):
        try:
            found = found[step] if isinstance(step, int) else getattr(found, step)
        except IndexError:
            raise InputError(
                f"{field.element.name!r} asks for element {step}, but a message of {field.topic} has {len(found)}"
            ) from None
        except (AttributeError, TypeError):
            known = ", ".join(numeric_fields(message)) or "none"
            where = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in field.path[: depth + 1])
            raise InputError(
                f"messages of {field.topic} have no {where.lstrip('.')!r}; their numeric fields are {known}"
            ) from None
    if isinstance(found, (bool, int, float, np.number, np.bool_)):
        return float(found)
    known = ", ".join(numeric_fields(message)) or "none"
    raise InputError(
        f"{field.element.name!r} is not a number but {type(found).__name__}; the numeric fields of "
        f"{field.topic} are {known}"
    )


def numeric_fields(message: Any, prefix: str = "") -> list[str]:
    """All paths to single numbers in a message; of an array, the first 32 elements."""
    if isinstance(message, (bool, int, float, np.number, np.bool_)):
        return [prefix]
    if isinstance(message, np.ndarray):
        return [f"{prefix}[{i}]" for i in range(min(message.size, LISTED_ITEMS))]
    if isinstance(message, list):
        return [
            path for i, m in enumerate(message[:LISTED_ITEMS]) for path in numeric_fields(m, f"{prefix}[{i}]")
        ]
    if is_dataclass(message):
        dot = f"{prefix}." if prefix else ""
        names = [f.name for f in fields(message) if not f.name.startswith("__")]
        return [path for n in names for path in numeric_fields(getattr(message, n), dot + n)]
    return []


Arrival = tuple[int, int, Sequence[float]]
"""(time in ns, source, its numbers)."""


def arrivals(bag: Bag, wanted: Sequence[Field]) -> tuple[list[list[int]], Iterator[Arrival]]:
    """Per topic, which of the wanted fields it gives; and the arrivals that `synchronise` takes."""
    topics = list(dict.fromkeys(f.topic for f in wanted))
    columns = [[i for i, f in enumerate(wanted) if f.topic == topic] for topic in topics]
    index = {topic: s for s, topic in enumerate(topics)}

    def each() -> Iterator[Arrival]:
        for time, topic, message in bag.messages(topics):
            source = index[topic]
            yield time, source, [value(message, wanted[i]) for i in columns[source]]

    return columns, each()


def synchronise(
    columns: Sequence[Sequence[int]], incoming: Iterable[Arrival], rate_hz: float, max_age_s: float
) -> Iterator[Row]:
    """Arrivals, in the order of their times, to rows at one rate; the module's docstring has the rule.

    columns: for each source, the places of its numbers in a row. A row is given as soon as an arrival shows
    that its instant has passed, and for the rest once the arrivals end.
    """
    max_age = round(max_age_s * 1e9)
    latest: list[int | None] = [None] * len(columns)
    held = [float("nan")] * sum(map(len, columns))
    start: int | None = None
    k = rows = episode = 0
    gap = False

    def until(end: int) -> Iterator[Row]:
        """Rows of all instants before `end` that have none yet."""
        nonlocal k, rows, episode, gap
        assert start is not None
        while (instant := start + round(k * 1e9 / rate_hz)) < end:
            oldest = min(t for t in latest if t is not None)
            if instant - oldest > max_age:
                gap = True
                k = max(k + 1, int((end - start) * rate_hz / 1e9) - 1)  # nothing gets fresher before `end`
                continue
            episode, gap = episode + gap, False
            k, rows = k + 1, rows + 1
            text = f"{instant // 10**9}.{instant % 10**9:09d}"
            yield Row(rows, instant / 1e9, str(episode + 1), held.copy(), (("time [s]", text),))

    time = 0
    for time, source, numbers in incoming:
        if start is not None:
            yield from until(time)
        latest[source] = time
        for place, n in zip(columns[source], numbers, strict=True):
            held[place] = n
        if start is None and None not in latest:
            start = time
    if start is not None:
        yield from until(time + 1)


def read_rows(bag: Bag, wanted: Sequence[Element], rate_hz: float, max_age_s: float) -> Iterator[Row]:
    """The wanted fields of a bag, at one rate. Raises InputError where they never come together."""
    chosen = [parse_field(item) for item in wanted]
    columns, incoming = arrivals(bag, chosen)
    count = 0
    for row in synchronise(columns, incoming, rate_hz, max_age_s):
        count += 1
        yield row
    if count == 0:
        topics = ", ".join(
            f"{t} ({bag.topics[t][1]} messages)" for t in dict.fromkeys(f.topic for f in chosen)
        )
        raise InputError(
            f"{bag.path} gives no row: at no instant is the latest of {topics} within {max_age_s:g} s; "
            "give a larger --max-age, or leave out the topic that is silent"
        )
