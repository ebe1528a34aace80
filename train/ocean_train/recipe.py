"""The defaults of `ocean-train`: what was chosen on validation data for a text and for a log of sensors.

docs/log.md says how each value was chosen. A setting that the user gives always wins.
"""

from __future__ import annotations

import math
import re
from typing import Any

LOG_TIME_CONSTANT_S = 2.5
"""Longest time constant for a log whose rate is known, in seconds."""
LOG_TIME_CONSTANT_STEPS = 128.0
"""The same where the rate is not known, in steps."""
CLASSES_DROPOUT = 0.2
"""For classes, where a model soon knows the training episodes by heart."""
LARGEST_TEXT_LEARNING_RATE = 1e-2
SECONDS = re.compile(r"\s*([0-9.eE+-]+)\s*s\s*")


def defaults(
    model: str, *, log: bool, width: int, classes: bool = False, rate_hz: float | None = None
) -> dict[str, Any]:
    """Values of `Settings` by name for a model, on a text or a log.

    log: a log of `rate_hz` rows a second (None: not known), whose `classes` are told or whose quantities are
    estimated.
    """
    if not log:
        return {
            "feed": "windows",
            "heads": narrow_heads(width) if model == "ocean" else 4,
            "lr": text_learning_rate(width),
        }
    shared = {"feed": "streams", "dropout": CLASSES_DROPOUT if classes else 0.0}
    if model != "ocean":
        return {**shared, "heads": 4, "lr": 1e-3}
    steps = LOG_TIME_CONSTANT_STEPS if rate_hz is None else max(1.0, LOG_TIME_CONSTANT_S * rate_hz)
    return {
        **shared,
        "heads": narrow_heads(width),
        "lr": 2e-3,
        "first_weights": "identity",
        "max_time_constant": float(f"{steps:.4g}"),
    }


def text_learning_rate(width: int) -> float:
    """The peak of the learning rate on a text: 0.5 / width, and at most 0.01; the same for each model."""
    return float(f"{min(LARGEST_TEXT_LEARNING_RATE, 0.5 / width):.3g}")


def narrow_heads(width: int) -> int:
    """Heads of an Ocean by default: two numbers a head; 1 where the width is odd."""
    return width // 2 if width % 2 == 0 else 1


def steps_of(time_constant: str, rate_hz: float | None) -> float:
    """A time constant as a user gives it, `128` in steps or `2.5s` in seconds, in steps.

    Raises ValueError where it is no positive number, or in seconds where the rate is not known.
    """
    in_seconds = SECONDS.fullmatch(time_constant)
    try:
        value = float(in_seconds[1] if in_seconds else time_constant)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"--time-constants takes a number of steps, such as 128, or of seconds, such as 2.5s; not {time_constant!r}"
        )
    if not in_seconds:
        return value
    if rate_hz is None:
        raise ValueError(
            f"--time-constants {time_constant} is in seconds, and the rate of the data is not known: give it in steps, "
            "or name the column of the time with --time (of a bag, give --rate)"
        )
    return max(1.0, value * rate_hz)
