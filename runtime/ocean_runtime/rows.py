"""Observations through a stream, row by row: CSV or a bag in, CSV out.

An episode begins by the rules of training: where the episode's column changes, where the clock goes backwards
or leaves a gap longer than the maximum age; a row that repeats the time before it is passed over.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from ocean_runtime.arrays import Arrays, is_arrays
from ocean_runtime.bags import MAX_AGE_S, Bag, is_bag, named_fields, open_bag, parse_field, read_rows
from ocean_runtime.clocks import WATCHED, Clock, Watch, watched
from ocean_runtime.contract import Element, Tensor
from ocean_runtime.dialect import Dialect
from ocean_runtime.errors import InputError, NoColumnError, OceanError, SnapshotError
from ocean_runtime.sampling import log_softmax
from ocean_runtime.stream import OceanStream
from ocean_runtime.tables import Row, Table, element, label

Missing = Literal["hold", "refuse"]
MISSING_POLICIES: tuple[Missing, ...] = ("hold", "refuse")


def observation_of(stream: OceanStream) -> Tensor:
    """The stream's one input of named elements; raises InputError where the model takes none."""
    contract = stream.model.contract
    given = [t for t in contract.inputs if t.constant is None]
    if contract.kind == "tokens" or len(given) != 1 or not given[0].elements:
        raise InputError(f"this model's kind is {contract.kind}: it takes no rows of named columns")
    return given[0]


@dataclass
class Place:
    """Where a stream of rows has come to: all that the next row's fate depends on, besides the ocean."""

    held: list[float]
    """The last value of each element in this episode, NaN where there was none."""
    episode: str | None = None
    """Of the last row; None where the next one goes on with whatever the state is of."""
    time: float | None = None
    """Of the last row, seconds."""

    @classmethod
    def of(cls, stream: OceanStream) -> Place:
        """Where the stream's `context` says, which a snapshot carries; raises SnapshotError where it is no place."""
        elements = observation_of(stream).elements
        found = stream.context.get("rows")
        if found is None:
            return cls([math.nan] * len(elements))
        try:
            held = [math.nan if value is None else float(value) for value in found["held"]]
            episode = None if found["episode"] is None else str(found["episode"])
            place = cls(held, episode, None if found["time"] is None else float(found["time"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            place = None
        if place is None or len(place.held) != len(elements) or any(map(math.isinf, place.held)):
            raise SnapshotError(
                f"the snapshot does not hold the last value of each of the {len(elements)} elements; restore "
                "an older one, or start anew"
            )
        return place

    def keep(self, stream: OceanStream) -> None:
        """Leave it with the stream, for the next snapshot."""
        held = [None if math.isnan(value) else value for value in self.held]
        stream.context = {"rows": {"held": held, "episode": self.episode, "time": self.time}}


def read_source(
    stream: OceanStream,
    source: str,
    chunks: Callable[[], Iterable[bytes]],
    episode: str | None = None,
    time: str | None = None,
    say: Callable[[str], None] = lambda line: None,
    dialect: Dialect | None = None,
) -> Iterator[Row]:
    """The model's elements, by name, from a bag or arrays at `source`, or else from the CSV that `chunks()` gives.

    A bag is brought to the contract's rate as in training. `episode` and `time` name a table's columns; where they
    are not given they are those of training, as far as this table has them, and where they are empty there are none;
    `say` is told where it has no clock. Raises InputError as `ocean_runtime.clocks.Watch` where the clock can't be
    right.
    """
    contract, wanted = stream.model.contract, observation_of(stream).elements
    path = Path(source)
    if source == "-" or not is_bag(path):
        if is_arrays(path) and path.is_file():
            table: Table | Arrays = Arrays(path)
        else:
            table = Table(chunks(), "standard input" if source == "-" else source, dialect)
        whose = _column(table, episode, contract.episode)
        clock = _clock(table, time, contract.time)
        if contract.time and clock is None and time is None:
            gaps = f"whose gaps of over {longest_gap(stream, source):g} s ended episodes in training"
            say(f"{table.name} has no column {element(contract.time).name!r}, {gaps}: none end here")
        watch = Watch(
            table.name,
            longest_gap(stream, source),
            None if clock is None else clock.element,
            contract.rate_hz if contract.time else None,
        )
        ahead = WATCHED + 1 if source != "-" and path.is_file() else 1
        yield from watched(table.rows(wanted, whose, clock), watch, ahead)
        if source != "-" and isinstance(table, Table) and table.is_cut:
            say(f"{table.name} ends without a line break: if it was cut off, its last row may be wrong")
        return
    if episode is not None or time is not None:
        raise InputError(
            "a bag has its own clock, and its gaps end its episodes: leave out --time and --episode"
        )
    if contract.rate_hz is None:
        raise InputError("this model states no rate, so a bag can't be brought to it; give it rows of CSV")
    with open_bag(path) as bag:
        name = Place.of(stream).episode or ""  # the clock says whether the first row goes on
        number = "1"
        for note in _notes_on_order(bag, wanted):
            say(note)
        for row in read_rows(bag, wanted, contract.rate_hz, contract.max_age_s or MAX_AGE_S):
            if row.episode != number:
                number, name = row.episode, f"{row.time}"
            yield row._replace(episode=name)


def _notes_on_order(bag: Bag, wanted: Sequence[Element]) -> Iterator[str]:
    """What is read by an index, though the bag has names for it: of a model that knows no names, as of 0.1.0."""
    fields = [parse_field(item) for item in wanted]
    for before, after in zip(fields, named_fields(bag, fields), strict=True):
        if after.element.lookup != before.element.lookup:
            yield (
                f"{before.element.name} is {after.element.lookup} in {bag.path}; the model knows no names, so see that "
                "it was the same in training"
            )


def _column(table: Table | Arrays, asked: str | None, trained: str) -> Element | None:
    """The column of episodes that is asked for, else the one of training where the table has it."""
    if asked is not None:
        return element(asked) if asked else None
    column = element(trained) if trained else None
    return column if column is not None and any(c.name == column.name for c in table.columns) else None


def _clock(table: Table | Arrays, asked: str | None, trained: str) -> Clock | None:
    """The clock that is asked for, else the one of training where the table has it.

    A number's unit is the one asked for, else the one that the table says, else that of training.
    """
    known = element(trained) if trained else None
    if asked is not None:
        wanted = element(asked)
        otherwise = known.unit if known is not None and known.name == wanted.name else ""
        return table.clock(wanted, otherwise) if asked else None
    if known is None:
        return None
    try:
        return table.clock(Element(known.name), known.unit)
    except NoColumnError:
        return None


def longest_gap(stream: OceanStream, source: str) -> float:
    """Seconds that may lie between two rows of one episode: the maximum age, in a bag at least the next row."""
    contract = stream.model.contract
    age = contract.max_age_s or MAX_AGE_S
    reads_bag = source != "-" and is_bag(Path(source)) and contract.rate_hz is not None
    return max(age, 1.5 / contract.rate_hz) if reads_bag and contract.rate_hz else age


def step_rows(
    stream: OceanStream,
    rows: Iterable[Row],
    missing: Missing = "hold",
    max_age_s: float | None = None,
    ahead: int = 1,
) -> Iterator[tuple[Row, Any]]:
    """Step once a row: the row, and what `stream.step` gave for it, None where there was no step.

    The state starts anew where an episode begins (the module's docstring has the rules; without `max_age_s` the
    clock has no part in them). A missing value (NaN, infinite) takes the last value before it of its element in this
    episode (`hold`), or is an InputError (`refuse`). Without an output, and a step, is a row of which an element has
    had no value yet, and one that repeats the time before it.

    A stream that was restored goes on as if it had never stopped: its `Place` is in its context.

    ahead: rows that may be read before the first of them is stepped, so that the prefill graph can take them in
    one call; 1 for rows that are still to come.
    """
    for group in _groups(_planned(stream, rows, missing, max_age_s), ahead):
        if group[0].begins:
            stream.reset()
        made = stream.run_at_once([item.x for item in group if item.x is not None])
        if made:
            group[-1].place.keep(stream)
        outputs = iter(made or ())
        for row, x, _, place in group:
            output = None if x is None else next(outputs) if made else stream.step(x)
            if not made:  # after the step: where it was refused, the same row may come again
                place.keep(stream)
            yield row, output


class _Planned(NamedTuple):
    """What is to be done about a row."""

    row: Row
    x: NDArray[Any] | None
    """What its step is given; None where there is no step."""
    begins: bool
    """Whether an episode begins with it."""
    place: Place
    """Where the stream is once it is done."""


def _groups(planned: Iterable[_Planned], ahead: int) -> Iterator[list[_Planned]]:
    """Rows of one episode, at most `ahead` together; what comes before a row at fault comes before its error."""
    group: list[_Planned] = []
    try:
        for item in planned:
            if group and item.begins:
                yield group
                group = []
            group.append(item)
            if len(group) == ahead:
                yield group
                group = []
    except OceanError:
        if group:
            yield group
        raise
    if group:
        yield group


def _planned(
    stream: OceanStream, rows: Iterable[Row], missing: Missing, max_age_s: float | None
) -> Iterator[_Planned]:
    """Each row with what its step is given, and whether it begins an episode."""
    elements = observation_of(stream).elements
    place = Place.of(stream)
    for row in rows:
        begins = place.episode is not None and row.episode != place.episode
        elapsed = None
        if max_age_s is not None and row.time is not None and place.time is not None:
            elapsed = row.time - place.time
            begins = begins or elapsed < 0 or elapsed > max_age_s
        if missing == "refuse":
            for item, found in zip(elements, row.values, strict=True):
                if not math.isfinite(found):
                    raise InputError(
                        f"row {row.number} has no finite {item.name!r} ({found}); give --missing hold to take "
                        "the last value before it in its place"
                    )
        held = [math.nan] * len(elements) if begins else place.held
        values = [v if math.isfinite(v) else h for v, h in zip(row.values, held, strict=True)]
        repeats = elapsed == 0 and not begins
        x = None if repeats or any(map(math.isnan, values)) else np.array(values)
        place = Place(values, row.episode, row.time)
        yield _Planned(row, x, begins, place)


def write_rows(stream: OceanStream, results: Iterable[tuple[Row, Any]], out: TextIO) -> int:
    """Write the outputs of each step as a line of CSV, at once; how many steps were taken.

    The columns: `row`, the time as the rows' source writes it, then the output's elements; for classes
    `class`, the most likely one, then the probability of each. Where the model has several outputs, each of
    them has its columns, which begin with its name. A row without a step has empty cells.
    """
    outputs = stream.model.contract.outputs
    classes = outputs[0].name == "logits" and len(outputs) == 1
    names = [name for output in outputs for name in _columns(output, alone=len(outputs) == 1)]
    steps = 0
    first = True
    for row, result in results:
        stamp = row.stamp or (() if row.time is None else (("time [s]", f"{row.time:.6f}"),))
        clock = [text for _, text in stamp]
        if first:
            heading = ["row", *(column for column, _ in stamp), *(["class"] if classes else [])]
            out.write(_line([*heading, *(f"p({n})" if classes else n for n in names)]))
            first = False
        if result is None:
            cells = [""] * (len(names) + classes)
        elif classes:
            probability = np.exp(log_softmax(result))
            cells = [names[int(result.argmax())], *(f"{p:.6g}" for p in probability)]
        else:  # the shortest text that reads back as the same number
            arrays = result.values() if isinstance(result, dict) else [result]
            cells = [str(number) for array in arrays for number in np.ravel(array)]
        steps += result is not None
        out.write(_line([str(row.number), *clock, *cells]))
        out.flush()
    return steps


def _columns(output: Tensor, *, alone: bool) -> list[str]:
    """A name for each number of an output of a single stream."""
    if output.elements and output.vector_size is not None:
        labels = [label(e) for e in output.elements]
        return labels if alone else [f"{output.name}.{text}" for text in labels]
    axes = [range(size) for size in output.shape if isinstance(size, int)]
    places = itertools.product(*axes)
    return [output.name + (f"[{','.join(map(str, place))}]" if place else "") for place in places]


def _line(cells: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
