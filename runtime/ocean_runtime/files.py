"""Files that a crash at any instant leaves whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`: a temporary file beside it, fsync, rename, fsync of the folder.

    After a crash at any instant the old content is there or the new, never a mixture. Raises OSError where
    the folder is missing or can't be written, or the disk is full; an older file is then as it was.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)  # mkstemp's 0600 would hide the file from the robot's other users
            file.write(content)
            file.flush()
            os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)  # the rename itself must reach the disk too
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
