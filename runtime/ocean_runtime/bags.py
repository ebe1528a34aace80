"""ROS 2 bags (MCAP and sqlite3) read without ROS: topics, fields, and rows at one rate.

A field is written `/imu:angular_velocity.x` or `/joint_states:position[elbow]`: the topic, a colon, and the path
into its message, with the unit after it where one is given: `/imu:angular_velocity.x [rad/s]`.
`ocean_runtime.message_fields` has what a path may be.

Rows at one rate, by one rule: row k stands for the instant t₀ + k / rate, t₀ being when every topic has
spoken; each field holds its topic's latest message up to that instant (log time: when it was recorded).
Where a topic's latest is older than the maximum age, there is no row, and the next row begins a new episode.
Nothing that came after an instant has any influence on its row.

Fields that are looked up by the same name are read as if they were a topic of their own: a message that lacks the
name (the joints of another part, on /tf another frame) is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ocean_runtime.contract import Element
from ocean_runtime.errors import InputError
from ocean_runtime.message_fields import (
    LISTED_ITEMS,
    Field,
    MissingNameError,
    by_name,
    check_order,
    numeric_fields,
    parse_field,
    value,
)
from ocean_runtime.tables import Row

__all__ = ["LISTED_ITEMS", "Field", "numeric_fields", "parse_field", "value"]

SUFFIXES = (".mcap", ".db3")
MAX_AGE_S = 1.0


def is_bag(path: Path) -> bool:
    """Whether this is a bag's folder, or one file of a bag."""
    return path.suffix in SUFFIXES or (path / "metadata.yaml").is_file()


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


Arrival = tuple[int, int, Sequence[float]]
"""(time in ns, source, its numbers)."""


class Source(NamedTuple):
    """Fields of one topic that come together: those without names, or those that are looked up by the same ones."""

    topic: str
    names: tuple[str, ...]
    places: list[int]
    """Which of the wanted fields they are."""

    def __str__(self) -> str:
        return self.topic + "".join(f"[{name}]" for name in self.names)


def sources(wanted: Sequence[Field]) -> list[Source]:
    """Where the wanted fields come from."""
    keys = dict.fromkeys((field.topic, field.names) for field in wanted)
    return [
        Source(topic, names, [i for i, f in enumerate(wanted) if (f.topic, f.names) == (topic, names)])
        for topic, names in keys
    ]


def arrivals(bag: Bag, wanted: Sequence[Field]) -> tuple[list[Source], Iterator[Arrival]]:
    """Where the wanted fields come from, and the arrivals that `synchronise` takes.

    Raises InputError as `value`; also where no message at all has a name, and where a field takes an element by its
    index and the order of the names changes.
    """
    chosen = sources(wanted)
    of_topic: dict[str, list[int]] = {}
    for index, source in enumerate(chosen):
        of_topic.setdefault(source.topic, []).append(index)
    by_index = [
        [wanted[i] for i in source.places if any(isinstance(step, int) for step in wanted[i].path)]
        for source in chosen
    ]

    def each() -> Iterator[Arrival]:
        orders: dict[str, tuple[str, ...]] = {}
        lacking: dict[int, MissingNameError] = {}
        come: set[int] = set()
        for time, topic, message in bag.messages(of_topic):
            for index in of_topic[topic]:
                try:
                    numbers = [value(message, wanted[i]) for i in chosen[index].places]
                except MissingNameError as error:
                    lacking[index] = error
                    continue
                come.add(index)
                for field in by_index[index]:
                    check_order(message, field, orders)
                yield time, index, numbers
        for index, missing in lacking.items():
            if index not in come:
                raise missing

    return chosen, each()


def named_fields(bag: Bag, wanted: Sequence[Field]) -> list[Field]:
    """The fields, by name in place of an index where the first message of the topic that has names says which.

    Raises InputError as `value`.
    """
    found: list[Field] = []
    firsts: dict[str, Any] = {}
    for field in wanted:
        if not any(isinstance(step, int) for step in field.path):
            found.append(field)
            continue
        if field.topic not in firsts:
            firsts[field.topic] = next((m for _, _, m in bag.messages([field.topic])), None)
        message = firsts[field.topic]
        found.append(field if message is None else by_name(message, field))
    return found


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
    for row in synchronise([source.places for source in columns], incoming, rate_hz, max_age_s):
        count += 1
        yield row
    if count == 0:
        topics = ", ".join(f"{source} ({bag.topics[source.topic][1]} messages)" for source in columns)
        raise InputError(
            f"{bag.path} gives no row: at no instant is the latest of {topics} within {max_age_s:g} s; "
            "give a larger --max-age, or leave out the topic that is silent"
        )
