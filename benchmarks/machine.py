"""Where a figure comes from: the commit and the processor, as every benchmark writes them down."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


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
