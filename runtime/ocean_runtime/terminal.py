"""What a command is told and what it writes, as UTF-8 under every locale."""

from __future__ import annotations

import io
import os
import sys

ASCII = ("ascii", "us-ascii", "ansi_x3.4-1968", "646")


def utf8(argument: str) -> str:
    """An argument of a command as UTF-8, as tables are, where the locale (LC_ALL=C) says ASCII."""
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        return argument


def write_utf8() -> None:
    """Standard output and error in UTF-8; a terminal of another encoding, or the one asked for, shows what it can.

    The C locale's ASCII says nothing about the terminal, which is then taken to show UTF-8.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(
            stream, io.TextIOWrapper
        ):  # a program that calls a command has put its own in place
            continue
        asked = "PYTHONIOENCODING" in os.environ or (stream.isatty() and stream.encoding.lower() not in ASCII)
        stream.reconfigure(encoding=None if asked else "utf-8", errors="backslashreplace")
