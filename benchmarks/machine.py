"""What every benchmark says of where it ran: the commit, the processor, and what is missing here."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def needs(extras: str) -> Iterator[None]:
    """Imports that come with these extras of the package; where one is missing, the program ends and says so."""
    try:
        yield
    except ModuleNotFoundError as error:
        sys.exit(f"{Path(sys.argv[0]).name} needs {error.name}: pip install '.[{extras}]'")


def commit(*paths: str) -> str:
    """The checkout's commit, `-dirty` where tracked files (below `paths`, if given) have changes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", *paths)
    return git("rev-parse", "HEAD") + ("-dirty" if changed else "")


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
