"""Observations through a stream, row by row: CSV or a bag in, CSV out."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from ocean_runtime.bags import MAX_AGE_S, is_bag, open_bag, read_rows
from ocean_runtime.contract import Tensor
from ocean_runtime.errors import InputError
from ocean_runtime.sampling import log_softmax
from ocean_runtime.stream import OceanStream
from ocean_runtime.tables import Row, Table, label

Missing = Literal["hold", "refuse"]
MISSING_POLICIES: tuple[Missing, ...] = ("hold", "refuse")

Stepped = tuple[Row, NDArray[Any] | None]
"""A row with what its step is given, or gave; None where there is no step."""


def observation_of(stream: OceanStream) -> Tensor:
    """The stream's one input of named elements; raises InputError where the model takes none."""
    contract = stream.model.contract
    given = [t for t in contract.inputs if t.constant is None]
    if contract.kind == "tokens" or len(given) != 1 or not given[0].elements:
        raise InputError(f"this model's kind is {contract.kind}: it takes no rows of named columns")
    return given[0]


def read_source(
    stream: OceanStream, source: str, chunks: Callable[[], Iterable[bytes]], episode: str | None = None
) -> Iterator[Row]:
    """The model's elements, by name, from a bag at `source`, or else from the CSV that `chunks()` gives.

    A bag is brought to the contract's rate as in training. `episode` names a CSV's column.
    """
    contract, wanted = stream.model.contract, observation_of(stream).elements
    path = Path(source)
    if source == "-" or not is_bag(path):
        yield from Table(chunks(), "standard input" if source == "-" else source).rows(wanted, episode)
        return
    if contract.rate_hz is None:
        raise InputError("this model states no rate, so a bag can't be brought to it; give it rows of CSV")
    with open_bag(path) as bag:
        yield from read_rows(bag, wanted, contract.rate_hz, contract.max_age_s or MAX_AGE_S)


def step_rows(
    stream: OceanStream, rows: Iterable[Row], missing: Missing = "hold", ahead: int = 1
) -> Iterator[Stepped]:
    """Step once a row: the row, and the model's output for it.

    The state starts anew where the rows' episode changes. A missing value (NaN, infinite) is the last one
    of its element in this episode (`hold`), or an InputError (`refuse`); while an element has had none yet,
    no step is taken and the output is None.

    ahead: rows that may be read before the first of them is stepped, so that the prefill graph can take them in
    one call; 1 for rows that are still to come.
    """
    episode: str | None = None
    for group in _groups(_inputs(stream, rows, missing), ahead):
        if episode is not None and group[0][0].episode != episode:
            stream.reset()
        episode = group[0][0].episode
        xs = [x for _, x in group if x is not None]
        outputs = iter(stream.run_at_once(xs) or map(stream.step, xs))
        for row, x in group:
            yield row, None if x is None else next(outputs)


def _groups(inputs: Iterable[Stepped], ahead: int) -> Iterator[list[Stepped]]:
    """Rows of one episode, at most `ahead` together; what comes before a row at fault comes before its error."""
    group: list[Stepped] = []
    try:
        for item in inputs:
            if group and item[0].episode != group[0][0].episode:
                yield group
                group = []
            group.append(item)
            if len(group) == ahead:
                yield group
                group = []
    except InputError:
        if group:
            yield group
        raise
    if group:
        yield group


def _inputs(stream: OceanStream, rows: Iterable[Row], missing: Missing) -> Iterator[Stepped]:
    """Each row with what its step is given: no missing values, or None while there is nothing to hold."""
    elements = observation_of(stream).elements
    held = [math.nan] * len(elements)
    episode: str | None = None
    for row in rows:
        if row.episode != episode:
            held = [math.nan] * len(elements)
        episode = row.episode
        held = [v if math.isfinite(v) else h for v, h in zip(row.values, held, strict=True)]
        if missing == "refuse":
            for item, found in zip(elements, row.values, strict=True):
                if not math.isfinite(found):
                    raise InputError(
                        f"row {row.number} has no finite {item.name!r} ({found}); give --missing hold to take "
                        "the last one in its place"
                    )
        yield row, None if any(map(math.isnan, held)) else np.array(held)


def write_rows(stream: OceanStream, results: Iterable[Stepped], out: TextIO) -> int:
    """Write each output as a line of CSV, at once; how many steps were taken.

    The columns: `row`, `time` in seconds where the rows have one, then the output's elements; for classes
    `class`, the most likely one, then the probability of each. A row without a step has empty cells.
    """
    output = stream.model.contract.outputs[0]
    classes = output.name == "logits"
    names = [label(e) for e in output.elements] or [
        f"{output.name}[{i}]" for i in range(int(output.shape[-1]))
    ]
    steps = 0
    first = True
    for row, result in results:
        clock = [] if row.time is None else [f"{row.time:.6f}"]
        if first:
            heading = ["row", *(["time [s]"] if clock else []), *(["class"] if classes else [])]
            out.write(_line([*heading, *(f"p({n})" if classes else n for n in names)]))
            first = False
        if result is None:
            cells = [""] * (len(names) + classes)
        elif classes:
            probability = np.exp(log_softmax(result))
            cells = [names[int(result.argmax())], *(f"{p:.6g}" for p in probability)]
        else:
            cells = [str(number) for number in result]  # the shortest text that reads back as the same number
        steps += result is not None
        out.write(_line([str(row.number), *clock, *cells]))
        out.flush()
    return steps


def _line(cells: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
