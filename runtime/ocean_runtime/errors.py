"""What can go wrong, each with a message of one sentence: what was found, what was expected, what to do."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

MAX_MESSAGE = 1000


class OceanError(Exception):
    """The base of every error that the runtime raises on purpose.

    Its message is one line that a terminal can print: what it quotes may be a stranger's.
    """

    def __init__(self, message: str = "") -> None:
        line = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in message[: MAX_MESSAGE + 1])
        super().__init__(line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]}...")


class ContractError(OceanError, ValueError):
    """A model file that can't be run: no contract, a newer one, or one at odds with its graph."""


class StepError(OceanError):
    """A step that was not taken; the state is as it was before the call."""

    def __init__(self, message: str, rows: NDArray[Any] | None = None) -> None:
        super().__init__(message)
        self.rows = rows
        """Which rows of the batch are at fault, (B,) bool; None where the fault is nobody's alone."""


class InputError(StepError, ValueError):
    """An input that the model can't take; the state is as it was before the call."""


class StateError(StepError, ArithmeticError):
    """A step whose new state is not finite; the state is as it was before the call."""


class BusyError(OceanError, RuntimeError):
    """A stream that another thread is stepping at this moment; nothing has changed."""


class SnapshotError(OceanError, ValueError):
    """A snapshot that can't be written, read, or given to this model; the state is as it was."""
