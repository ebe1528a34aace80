"""What the node says about itself once a second, and when it calls that bad."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ocean_ros.parameters import Settings

OK, WARN, ERROR = 0, 1, 2
MAX_TIMES = 10_000
"""Step times that one second's statistics hold."""

Problem = tuple[int, str]
"""WARN or ERROR, and why."""


@dataclass
class Counters:
    """Since configure."""

    received: int = 0
    """Messages of the inputs that reached the node."""
    dropped: int = 0
    """Messages that were sent but overwritten or lost before the node could take them."""
    stepped: int = 0
    missed: int = 0
    """Steps that took longer than the wanted period, and periods of a fixed rate without their step."""
    stale: int = 0
    """Steps not taken since an input was missing or older than its max_age."""
    not_finite: int = 0
    """Inputs that were not finite; no step was taken."""
    malformed: int = 0
    """Messages without the elements that a field names; no step was taken."""
    failed: int = 0
    """Steps that gave something that was not finite, or that could not be run; nothing was published."""
    gaps: int = 0
    jumps: int = 0
    """ROS time went backward."""
    refused: int = 0
    """Text messages left out since too many tokens were waiting."""

    def since(self, before: Counters) -> Counters:
        """The difference."""
        return Counters(**{name: value - getattr(before, name) for name, value in vars(self).items()})

    def copy(self) -> Counters:
        """The counts as they are now."""
        return Counters(**vars(self))


@dataclass
class Second:
    """What happened since the last diagnostics message."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_TIMES))
    """Seconds that each step took."""
    age: float = 0.0
    """The largest age, in seconds, that an input had when it was stepped."""


@dataclass(frozen=True)
class Look:
    """One second of an active node, as it is judged."""

    counts: Counters
    seconds: float
    wanted: float
    """Steps a second; 0 where nobody said."""
    gap_after: float
    """Seconds without input that count as a gap; 0 for never."""
    idle: float | None
    """Seconds since the last input; None where silence is normal, as with text."""
    norm: float
    save_problem: str
    save_age: float | None
    """Seconds since the last save, or activation; None without periodic saving."""
    publisher_problems: Sequence[str]
    """Publishers that can't be heard, and inputs with several publishers, in a sentence each."""


def judge(look: Look, settings: Settings) -> list[Problem]:
    """What is bad about one second. These are the thresholds that the README states."""
    counts, problems = look.counts, []
    rate = counts.stepped / look.seconds if look.seconds else 0.0
    if look.wanted and rate < settings.error_rate * look.wanted:
        problems.append((ERROR, f"{rate:.1f} of {look.wanted:g} steps a second"))
    elif look.wanted and rate < settings.warn_rate * look.wanted:
        problems.append((WARN, f"{rate:.1f} of {look.wanted:g} steps a second"))
    if look.idle is not None and look.gap_after and look.idle > look.gap_after:
        problems.append((ERROR, f"no input for {look.idle:.1f} s"))
    bad = (
        (ERROR, counts.failed, "failed steps"),
        (WARN, counts.not_finite, "inputs that are not finite"),
        (WARN, counts.malformed, "inputs without the fields"),
        (WARN, counts.stale, "steps not taken since an input was too old"),
        (WARN, counts.missed, "deadlines missed"),
        (WARN, counts.refused, "messages left out, too much waits to be read"),
    )
    problems += [(level, f"{count} {what}") for level, count, what in bad if count]
    if not np.isfinite(look.norm) or (settings.warn_norm and look.norm > settings.warn_norm):
        problems.append((WARN, f"the ocean state's norm is {look.norm:.3g}"))
    if look.save_problem:
        problems.append((ERROR, look.save_problem))
    elif look.save_age is not None and look.save_age > 3 * settings.save_period:
        problems.append((WARN, f"the last save is {look.save_age:.0f} s old"))
    return problems + [(WARN, problem) for problem in look.publisher_problems]


class Judgement:
    """Levels that need several bad seconds in a row; one good second ends them."""

    def __init__(self) -> None:
        self._bad = {WARN: 0, ERROR: 0}

    def update(self, problems: Sequence[Problem], needed: int) -> tuple[int, str]:
        """One second's problems -> the level to report and its message."""
        worst = max((level for level, _ in problems), default=OK)
        for level in self._bad:
            self._bad[level] = self._bad[level] + 1 if worst >= level else 0
        reported = max((level for level, count in self._bad.items() if count >= needed), default=OK)
        if reported == OK:
            return OK, ""
        return reported, "; ".join(text for _, text in sorted(problems, reverse=True))


def quantiles(times: Sequence[float]) -> tuple[float, float, float]:
    """p50, p99 and the largest, in the same unit; zeros where there are none."""
    if not times:
        return 0.0, 0.0, 0.0
    p50, p99 = np.quantile(np.array(times), (0.5, 0.99))
    return float(p50), float(p99), float(max(times))
