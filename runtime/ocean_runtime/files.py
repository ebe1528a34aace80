"""Files that a crash at any instant leaves whole, and files of strangers read in bounded memory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`: a temporary file beside it, fsync, rename, fsync of the folder.

    After a crash at any instant the old content is there or the new, never a mixture; what a crash left
    beside it is removed by the next call. A symbolic link is replaced, not followed. Raises OSError where
    the folder is missing or can't be written, or the disk is full; an older file is then as it was.
    """
    with temporary(path, content) as written:
        written.replace(path)
    sync_folder(path.parent)


@contextlib.contextmanager
def temporary(path: Path, content: bytes) -> Iterator[Path]:
    """A file of `content` beside `path`, on disk already, to be renamed; removed where it was not."""
    require_folder(path)
    _remove_leftovers(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:  # it names the temporary file, of which nobody has heard
        raise OSError(error.errno, error.strerror, str(path)) from None
    written = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            # Held until the rename, or the death of this process: so a leftover is one that nobody locks.
            _try_lock(handle)
            os.fchmod(handle, 0o644)  # mkstemp's 0600 would hide the file from the robot's other users
            file.write(content)
            file.flush()
            os.fsync(handle)
            yield written
    finally:
        with contextlib.suppress(OSError):
            written.unlink()


def require_folder(path: Path) -> None:
    """Raises FileNotFoundError, which names the folder, where there is none to write `path` in."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}", str(path))


def sync_folder(folder: Path) -> None:
    """Renames in the folder reach the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes, whatever happens to it meanwhile.

    Raises FileNotFoundError where there is no regular file, and OSError EFBIG where it is longer.
    """
    handle = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    )  # a named pipe would wait for its writer
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, "it is no regular file", str(path))
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = b"" if found.st_size > limit else file.read(limit + 1)
    finally:
        os.close(handle)
    if found.st_size > limit or len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    return content


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of `path` whose writer was killed, so that crashes can't fill the disk."""
    for leftover in path.parent.glob(f".{_literal(path.name)}.????????.tmp"):
        with contextlib.suppress(OSError), leftover.open("rb") as file:
            if _try_lock(file.fileno()):
                leftover.unlink()


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
