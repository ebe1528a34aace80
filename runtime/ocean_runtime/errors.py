"""What can go wrong, each with a message of one sentence: what was found, what was expected, what to do."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import PurePath
from types import CodeType
from typing import Any

from numpy.typing import NDArray

MAX_MESSAGE = 1000
_PYTHON = PurePath(os.__file__).parent


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


class NoColumnError(InputError):
    """A table that has no column of a wanted name."""


class StateError(StepError, ArithmeticError):
    """A step whose new state is not finite; the state is as it was before the call."""


class BusyError(OceanError, RuntimeError):
    """A stream that another thread is stepping at this moment; nothing has changed."""


class SnapshotError(OceanError, ValueError):
    """A snapshot that can't be written, read, or given to this model; the state is as it was."""


def let_through(error: BaseException) -> None:
    """Raises it again where a signal handler raised it: for an `except` that expects what it interrupted."""
    if raised_by_signal_handler(error):
        raise error


def reason_of(error: Exception) -> str:
    """The first line of what a library raised; as `let_through` where a signal handler raised it."""
    let_through(error)
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it, on top of a call of ours or of a library.

    A handler is installed at this moment; or it is a stranger's function that these would not call: of an
    input they call methods such as `__array__` alone.
    """
    trace, codes = error.__traceback__, []
    while trace is not None:
        codes.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    strange = [code for code in codes if not _of_a_library(code)]
    if not strange:
        return False
    if not _is_special(strange[0]):
        return True
    return any(_code(signal.getsignal(number)) in strange for number in signal.valid_signals())


def _of_a_library(code: CodeType) -> bool:
    """Whether it belongs to this package, to one that it calls, or to Python, a dataclass's methods included."""
    file = PurePath(code.co_filename)
    if any(file.is_relative_to(folder) for folder in _folders()):
        return True
    if {"site-packages", "dist-packages"} & {*file.parts}:
        return False
    made = file.name.startswith("<frozen") or (file.name == "<string>" and _is_special(code))
    return made or file.is_relative_to(_PYTHON)


def _folders() -> list[PurePath]:
    """Where this package, and those that it calls, were imported from: any folder on the path."""
    modules = [sys.modules.get(name) for name in ("ocean_runtime", "numpy", "onnxruntime", "safetensors")]
    return [PurePath(module.__file__).parent for module in modules if module and module.__file__]


def _is_special(code: CodeType) -> bool:
    """A method that others call by its kind, such as `__array__`."""
    name = code.co_name
    return name.startswith("__") and name.endswith("__") and name != "__call__"


def _code(handler: Any) -> Any:
    """The code that runs for what signal.signal() was given; None where it is no function of Python's."""
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
