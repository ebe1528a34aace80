"""From clean rows to the batches of a run, and to what a trained model is worth on unseen episodes.

A *pair* is one input row and its target: the next row of the same episode (target `next`), or what stands
beside it. No window, and no pair, reaches across two episodes.

Axes: B batch, T steps of a window, M features, K outputs, E episodes, P pairs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime.contract import Element
from torch import Tensor

from ocean_train.batches import Batch
from ocean_train.logs import Log
from ocean_train.observations import Array, Observations, Scaling
from ocean_train.spool import LogError
from ocean_train.wording import counted

VALIDATION_SHARE = 0.1
BLOCK_ROWS = 65_536
ROOM = 1e-3
"""A column has too little room in float32 where its rounding there exceeds this share of its changes."""

CLOCK = re.compile(r"time|stamp|clock|epoch|(?<![a-z])(t|ts|utc|date)(?![a-z])")

Whole = NDArray[np.int64]


class Episodes(NamedTuple):
    """Some of a log's episodes, by the place of their first pair and their number of pairs."""

    names: tuple[str, ...]
    begin: Whole
    """(E,)"""
    pairs: Whole
    """(E,)"""


@dataclass(frozen=True)
class Column:
    """What the training split says of one feature or target column."""

    element: Element
    low: float
    high: float
    mean: float
    """Relative to the element's reference, as are the following."""
    std: float
    change_mean: float
    """Of the differences between neighbouring rows."""
    change_std: float
    rises: bool
    """Whether it never falls within an episode, as a time or a counter does."""

    @property
    def is_clock(self) -> bool:
        """Whether it is a time by its name, and never falls."""
        return self.rises and CLOCK.search(self.element.name.lower()) is not None


@dataclass(frozen=True)
class Sensors:
    """A log, split by episodes and scaled by what the training split teaches."""

    log: Log
    observations: Observations
    columns: tuple[Column, ...]
    """Of the features, then of the target columns."""
    training: Episodes
    validation: Episodes

    @property
    def name(self) -> str:
        """Of the log."""
        return self.log.name

    @property
    def sha256(self) -> str:
        """Digest of the rows, and of how they are split and read."""
        return self.log.sha256

    def pairs(self, places: Whole) -> tuple[Array, Array]:
        """Rows at (...) places in their units: inputs (..., M), targets (..., K); class numbers are (..., 1)."""
        M = len(self.log.features)
        rows = np.asarray(self.log.rows[places])
        if self.observations.target == "next":
            return rows, np.asarray(self.log.rows[places + 1])
        return rows[..., :M], rows[..., M:]

    def tensors(self, places: Whole) -> tuple[Tensor, Tensor]:
        """As the model reads them: float32 inputs (..., M), and targets float32 (..., K) or int64 (...)."""
        x, y = self.pairs(places)
        inputs = torch.from_numpy(self.observations.inputs_for_model(x)).float()
        if self.observations.target == "classes":
            return inputs, torch.from_numpy(y[..., 0]).long()
        return inputs, torch.from_numpy(self.observations.targets_for_model(x, y)).float()


def prepare(log: Log, validate_on: Sequence[str] = ()) -> Sensors:
    """Split a log by whole episodes, and learn references and scaling from the training part.

    validate_on: patterns (`drive/s3*`) of the names of the episodes to validate on; without any, the last tenth of
    the episodes, or of the rows where there is only one. Raises LogError where a part would be empty.
    """
    training, validation = split(log, validate_on)
    columns = _describe(log, training)
    M = len(log.features)
    features = tuple(c.element for c in columns[:M])
    given = Scaling(tuple(c.mean for c in columns[:M]), tuple(c.std or 1.0 for c in columns[:M]))
    outputs, wanted = log.outputs, Scaling((), ())
    if log.target == "next":
        outputs = features
        wanted = Scaling(tuple(c.change_mean for c in columns), tuple(map(_change_scale, columns)))
    elif log.target == "columns":
        outputs = tuple(c.element for c in columns[M:])
        wanted = Scaling(tuple(c.mean for c in columns[M:]), tuple(c.std or 1.0 for c in columns[M:]))
    observations = Observations(
        log.target, features, outputs, given, wanted, log.rate_hz, log.max_age_s, log.time, log.episode
    )
    held = validation.begin.tolist(), validation.pairs.tolist()  # not by name: a file may be given another
    about = f"{log.sha256} {held} {log.target}"
    log = dataclasses.replace(log, sha256=hashlib.sha256(about.encode()).hexdigest())
    return Sensors(log, observations, columns, training, validation)


def refuse_clock(data: Sensors) -> None:
    """Raises LogError where a feature that nobody named is the log's clock: a model would learn its past values."""
    for column in data.columns[: len(data.log.features)]:
        if column.is_clock:
            name = column.element.name
            raise LogError(
                f"{name!r} never falls and is named like a time, which is no observation: give --time {name} so "
                "that its gaps end episodes, or name the --features to read, with it if it is meant to be one"
            )


def split(log: Log, validate_on: Sequence[str]) -> tuple[Episodes, Episodes]:
    """Training and validation episodes."""
    spare = 1 if log.target == "next" else 0  # the last row of an episode has no next
    pairs = np.maximum(np.diff(log.starts) - spare, 0)
    everything = Episodes(log.episodes, log.starts[:-1], pairs)
    if validate_on:
        chosen = np.array([any(fnmatchcase(n, p) for p in validate_on) for n in log.episodes])
        for pattern in validate_on:
            if not any(fnmatchcase(name, pattern) for name in log.episodes):
                shown = ", ".join(log.episodes[:12]) + (", ..." if len(log.episodes) > 12 else "")
                raise LogError(f"no episode is named {pattern!r}; they are {shown}")
    elif len(log.episodes) > 1:
        chosen = np.arange(len(pairs)) >= len(pairs) - max(1, round(len(pairs) * VALIDATION_SHARE))
    else:
        last = int(pairs[0] * VALIDATION_SHARE)
        first = int(pairs[0]) - last - spare
        training = Episodes(log.episodes, log.starts[:-1], np.array([first]))
        begin = log.starts[:-1] + first + spare
        return _filled(training, log), _filled(
            Episodes((f"{log.episodes[0]} (end)",), begin, np.array([last])), log
        )
    return _filled(_pick(everything, ~chosen), log), _filled(_pick(everything, chosen), log)


def windows(data: Sensors, batch: int, window: int, seed: int) -> Callable[[int], Batch]:
    """Windows at random places, each within one episode, from a zero state: step -> Batch.

    An episode is drawn as often as it is long. One shorter than the window is padded: `valid` is False there.
    """
    begin, pairs = data.training.begin, data.training.pairs
    odds = pairs / pairs.sum()

    def at(step: int) -> Batch:
        random = np.random.default_rng((seed, step))
        episode = random.choice(len(pairs), size=batch, p=odds)
        room = np.maximum(pairs[episode] - window, 0)
        offset = np.minimum((random.random(batch) * (room + 1)).astype(np.int64), room)
        steps = np.arange(window)
        valid = steps < pairs[episode][:, None]
        places = (begin[episode] + offset)[:, None] + np.minimum(steps, pairs[episode][:, None] - 1)  # (B, T)
        inputs, targets = data.tensors(places)
        return Batch(inputs, targets, False, valid=None if valid.all() else torch.from_numpy(valid))

    return at


def streams(data: Sensors, batch: int, window: int, seed: int) -> Callable[[int], Batch]:
    """B rows side by side, each going on from window to window through one episode after the other: step -> Batch.

    In each round through the data the episodes are shuffled anew, laid end to end and cut in B equal parts;
    `reset` marks where an episode begins, or a part. What is left over at the parts' ends differs by round.
    """
    begin, pairs = data.training.begin, data.training.pairs
    length = int(pairs.sum()) // batch
    rounds = length // window
    if short := too_short(data, batch, window):
        raise LogError(short)

    def at(step: int) -> Batch:
        order = np.random.default_rng((seed, step // rounds)).permutation(len(pairs))
        ends = np.cumsum(pairs[order])
        here = np.arange(window) + step % rounds * window
        position = np.arange(batch)[:, None] * length + here  # (B, T), in the order of this round
        which = np.searchsorted(ends, position, side="right")
        offset = position - (ends - pairs[order])[which]
        reset = torch.from_numpy((offset == 0) | (here == 0))
        inputs, targets = data.tensors(begin[order][which] + offset)
        return Batch(inputs, targets, carries=step % rounds > 0, reset=reset)

    return at


def too_short(data: Sensors, batch: int, window: int) -> str | None:
    """Where `streams` has too few steps to train on: so many there are, and which batch or window they would do for."""
    steps = int(data.training.pairs.sum())
    if steps // batch >= window:
        return None
    ways = [
        f", or --{name} {most} or less"
        for name, most in (("batch", steps // window), ("window", steps // batch))
        if most
    ]
    return (
        f"{data.name} is too short: {counted(steps, 'step')} to train on do not give {counted(batch, 'row')} of "
        f"{counted(window, 'step')}; give more data{''.join(ways)}"
    )


def side_by_side(episodes: Episodes, window: int) -> Iterator[tuple[Whole, NDArray[np.bool_]]]:
    """All pairs of all episodes, one row an episode, window by window: places (E, T) and which are valid."""
    for start in range(0, int(episodes.pairs.max()), window):
        steps = np.arange(start, min(start + window, int(episodes.pairs.max())))
        places = episodes.begin[:, None] + np.minimum(steps, episodes.pairs[:, None] - 1)
        yield places, steps < episodes.pairs[:, None]


def heldout(data: Sensors, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first pairs of the validation split: (N, M) and (N, K) float64 in units, and (N,) where episodes begin."""
    episodes = zip(data.validation.begin, data.validation.pairs, strict=True)
    places = np.concatenate([np.arange(begin, begin + pairs) for begin, pairs in episodes])[:limit]
    x, y = data.pairs(places)
    reset = np.isin(places, data.validation.begin)
    return torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y)), torch.from_numpy(reset)


def _describe(log: Log, training: Episodes) -> tuple[Column, ...]:
    """Statistics of each column over the training split, in two passes that hold a block at a time."""
    M = len(log.features)
    elements = log.features + (log.outputs if log.target == "columns" else ())
    C = len(elements)
    low, high, total, count = np.full(C, np.inf), np.full(C, -np.inf), np.zeros(C), 0
    for rows, _ in _blocks(log, training, C):
        low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
        _refuse_huge(elements, low, high)
        total, count = total + rows.sum(0), count + len(rows)
    mean = total / count
    square, change, change_square, changes = np.zeros(C), np.zeros(C), np.zeros(C), 0
    rises = np.ones(C, bool)
    for rows, before in _blocks(log, training, C):
        square += ((rows - mean) ** 2).sum(0)
        steps = np.diff(rows if before is None else np.vstack([before, rows]), axis=0)
        change, changes = change + steps.sum(0), changes + len(steps)
        change_square += (steps**2).sum(0)
        rises &= (steps >= 0).all(0)
    std = np.where(high > low, np.sqrt(square / count), 0.0)
    change_mean = change / max(changes, 1)
    change_std = np.sqrt(np.maximum(change_square / max(changes, 1) - change_mean**2, 0.0))
    largest = np.maximum(np.abs(low), np.abs(high))
    smallest = np.where(change_std > 0, np.minimum(std, change_std), std)
    crowded = (high > low) & (np.spacing(largest.astype(np.float32)) > ROOM * smallest)
    crowded |= (high == low) & (largest.astype(np.float32) != largest) & (largest > 1 / ROOM)
    reference = np.where(crowded, np.round(mean), 0.0)
    return tuple(
        Column(
            element=dataclasses.replace(
                elements[i], low=float(low[i]), high=float(high[i]), reference=float(reference[i])
            ),
            low=float(low[i]),
            high=float(high[i]),
            mean=float(mean[i] - reference[i]),
            std=float(std[i]),
            change_mean=float(change_mean[i]),
            change_std=float(change_std[i]),
            rises=bool(rises[i] and high[i] > low[i] and i < M),
        )
        for i in range(C)
    )


def _refuse_huge(elements: Sequence[Element], low: Array, high: Array) -> None:
    """Raises LogError where a column holds what the runtime's float32 inputs can't."""
    most = float(np.finfo(np.float32).max)
    for element, least, largest in zip(elements, low, high, strict=True):
        if least < -most or largest > most:
            raise LogError(
                f"{element.name!r} goes from {least:g} to {largest:g}, and a model reads no more than {most:.1e}: "
                "mend such values, or leave the column out"
            )


def _change_scale(column: Column) -> float:
    """Where a column never changed within an episode, so small that the model's noise does not move it either."""
    return column.change_std or 1e-3 * (column.std or abs(column.mean + column.element.reference) or 1.0)


def _blocks(log: Log, episodes: Episodes, columns: int) -> Iterator[tuple[Array, Array | None]]:
    """The episodes' rows, (n, C), a block at a time, each with the row before it in its episode."""
    spare = 1 if log.target == "next" else 0
    for begin, pairs in zip(episodes.begin, episodes.pairs, strict=True):
        for start in range(int(begin), int(begin + pairs + spare), BLOCK_ROWS):
            end = min(start + BLOCK_ROWS, int(begin + pairs + spare))
            rows = np.asarray(log.rows[start:end, :columns])
            yield rows, None if start == begin else np.asarray(log.rows[start - 1, :columns])


def _pick(episodes: Episodes, chosen: NDArray[np.bool_]) -> Episodes:
    names = tuple(name for name, keep in zip(episodes.names, chosen, strict=True) if keep)
    return Episodes(names, episodes.begin[chosen], episodes.pairs[chosen])


def _filled(episodes: Episodes, log: Log) -> Episodes:
    """Without the episodes that have no pair; raises LogError where none is left."""
    filled = _pick(episodes, episodes.pairs > 0)
    if not filled.names:
        raise LogError(
            f"{log.name} has {counted(len(log.episodes), 'episode')} with {counted(len(log.rows), 'row')}, too few "
            "to train on one part and to validate on another; give more data"
        )
    return filled
