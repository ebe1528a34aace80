"""Files that a crash at any instant leaves whole, and files of strangers read in bounded memory."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ocean_runtime.errors import let_through

E = TypeVar("E", bound=Exception)
LOCK_SECONDS = 1.0
"""How long a writer waits for another that renames files in the same folder."""
_TEMPORARY = re.compile(r"\.ocean-[0-9a-f]{8}\.tmp")


def as_path(given: object, error: type[E], what: str) -> Path:
    """A path that a caller gave; raises `error` where it is none, such as an open file or its number."""
    if isinstance(given, (str, os.PathLike)) and isinstance(name := os.fspath(given), str):
        return Path(name)
    raise error(
        f"{what} is {given!r}, a {type(given).__name__}; give the path of a file, as a text or a Path"
    )


def write_atomically(path: Path, content: bytes, prepare: Callable[[], None] | None = None) -> None:
    """Replace `path` by `content`: a temporary file beside it, fsync, rename, fsync of the folder.

    After a crash at any instant the old content is there or the new, never a mixture; what a crash left
    beside it is removed by the next call. The file has the permissions of the one that it replaces, or those
    that the umask gives a new one. A symbolic link is replaced, not followed. Any number of threads and
    processes may write to one path: each rename is whole, and the last one stays.

    prepare: called once the content is on the disk, before the rename, by one writer in the folder at a time.

    Raises OSError where the folder is missing or can't be written, the disk is full, or `path` is a folder, a
    pipe or a device; an older file is then as it was.
    """
    require_folder(path)
    mode = _mode_of(path)
    _remove_leftovers(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        file, written = _temporary(path, mode)
        try:
            with file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                if prepare is not None:
                    _wait_for_lock(folder)
                    prepare()
                written.replace(path)
                if prepare is not None:
                    _unlock(folder)  # others need not wait for the disk
        finally:
            remove(written)
        os.fsync(folder)
    finally:
        os.close(folder)  # and with it the lock, where an exception came before


def require_folder(path: Path) -> None:
    """Raises FileNotFoundError, which names the folder, where there is none to write `path` in."""
    if kind_of(path.parent, follow=True) != stat.S_IFDIR:
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}", str(path))


def remove(path: Path) -> None:
    """Remove a file, where it is there and can be removed."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        let_through(error)


def kind_of(path: Path, *, follow: bool = False) -> int:
    """What is at `path`, as of stat.S_IFMT; 0 where there is nothing. A link is a link, unless it is followed.

    Unlike what Python offers for this, it swallows nothing that a signal handler raises.
    """
    try:
        return stat.S_IFMT(path.stat(follow_symlinks=follow).st_mode)
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        let_through(error)
        return 0


def is_regular(path: Path) -> bool:
    """Whether `path` is a regular file itself: no folder, pipe, device or link."""
    return kind_of(path) == stat.S_IFREG


def read_bounded(path: Path, limit: int, *, start: int | None = None) -> bytes:
    """The content of a regular file of at most `limit` bytes, whatever happens to it meanwhile.

    start: give only so many bytes of its beginning, whatever its length.
    Raises FileNotFoundError where there is no regular file, and OSError EFBIG where it is longer.
    """
    # Without O_NONBLOCK a named pipe would wait for its writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, "it is no regular file", str(path))
        with os.fdopen(handle, "rb", closefd=False) as file:
            if start is not None:
                return file.read(start)
            content = b"" if found.st_size > limit else file.read(limit + 1)
    finally:
        os.close(handle)
    if found.st_size > limit or len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    return content


def _mode_of(path: Path) -> int | None:
    """The permissions of the file that is to be replaced; None where there is none, or a link.

    Raises OSError where `path` is something that must not be replaced by a file.
    """
    try:
        found = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found):
        return None
    if stat.S_ISDIR(found):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found):
        raise FileExistsError(errno.EEXIST, "it is a pipe, a socket or a device, not a file", str(path))
    return stat.S_IMODE(found)


def _temporary(path: Path, mode: int | None) -> tuple[io.BufferedWriter, Path]:
    """A new file beside `path`, with a lock that its writer holds until its end: so the file is no leftover."""
    while True:
        written = path.with_name(f".{path.name}.ocean-{secrets.token_hex(4)}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            handle = os.open(
                written, flags, 0o666 if mode is None else 0o600
            )  # less what the umask takes away
        except FileExistsError:
            continue
        except OSError as error:  # it names the temporary file, of which nobody has heard
            let_through(error)
            raise OSError(error.errno, error.strerror, str(path)) from None
        file = os.fdopen(handle, "wb")
        # Between the two calls another writer may have taken it for a leftover, and removed it.
        if _try_lock(handle) is not False and os.fstat(handle).st_nlink:
            if mode is not None:
                os.fchmod(handle, mode)
            return file, written
        file.close()


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of `path` whose writer was killed, so that crashes can't fill the disk."""
    start = f".{path.name}"
    with os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(start)]
    for name in names:
        leftover = path.with_name(name)
        if not _TEMPORARY.fullmatch(name.removeprefix(start)) or not is_regular(leftover):
            continue
        try:
            with io.FileIO(leftover, opener=_opener) as file:
                if _try_lock(file.fileno()):
                    leftover.unlink()
        except OSError as error:
            let_through(error)


def _opener(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)


def _wait_for_lock(folder: int) -> None:
    """One writer in the folder at a time; one that holds the lock too long, or can't be waited for, is passed over."""
    until = time.monotonic() + LOCK_SECONDS
    while _try_lock(folder) is False and time.monotonic() < until:
        time.sleep(0.001)


def _unlock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError as error:
        let_through(error)


def _try_lock(handle: int) -> bool | None:
    """Whether the lock was free, and is now ours; None where this file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        let_through(error)
        return None
    return True
