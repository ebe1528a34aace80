"""Where a state is kept: one check of the path before anything is written there, and one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path

from ocean_runtime.errors import SnapshotError
from ocean_runtime.files import require_folder
from ocean_runtime.snapshot import MAX_HEADER_BYTES, generations


class StatePath:
    """A state's file, held by this process until `release`.

    A second process, or a second stream of this one, that opens the same file meanwhile gets a SnapshotError.
    """

    def __init__(self, given: str | Path) -> None:
        """Follow symbolic links, and lock what they lead to. Raises SnapshotError where `given` can't be used.

        It is used where it names a snapshot, whole or damaged, or nothing in a folder that exists. Nothing
        that is there is changed.
        """
        self.given = str(given)
        self.path = checked(Path(given))
        """The file itself, not a symbolic link to it."""
        self._handle = _locked(self.path)

    def release(self) -> None:
        """Let others use it; again does nothing."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __enter__(self) -> StatePath:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def checked(given: Path) -> Path:
    """The path with symbolic links followed. Raises SnapshotError where it leads to anything but a snapshot
    or nothing."""
    advice = "name a snapshot, or a file that does not exist yet"
    try:
        plain = given.expanduser()
        path = plain.resolve()
        require_folder(path)
        path = plain if path == plain.absolute() else path  # as it was given, where no link is on the way
        found = os.lstat(path) if os.path.lexists(path) else None
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # a loop of links, a name with a NUL, an unknown ~user
        reason = getattr(error, "strerror", None) or error
        raise SnapshotError(f"the state can't be saved to {given}: {reason}; {advice}") from None
    generations(path)  # refuses what is no name of a file
    if found is not None and not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
        raise SnapshotError(f"the state can't be saved to {given}: it is {kind}; {advice}")
    # Of a damaged one, the one before it shows that this is the place of a state.
    if found is not None and not any(map(is_snapshot, generations(path))):
        raise SnapshotError(f"the state can't be saved to {given}: the file there is no snapshot; {advice}")
    return path


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


def is_snapshot(path: Path) -> bool:
    """Whether a regular file has the beginning of a snapshot; the rest may be damaged."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return False
        try:
            length = int.from_bytes(file.read(8), "little")
            return 0 < length <= MAX_HEADER_BYTES and b'"ocean_snapshot"' in file.read(length)
        except OSError:
            return False


_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _locked(path: Path) -> int:
    """A handle that keeps others out while it is open; the system closes it when the process dies.

    The lock is on a file of its own, `.NAME.lock`, which stays: the state's own file is replaced at each save. The
    handle is for reading, since one for writing would keep the file system from being remounted read-only.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        try:
            handle = os.open(lock, _FLAGS | os.O_RDONLY | os.O_CREAT, 0o666)
        except PermissionError:  # another user's, in a folder where it can't be created again
            handle = os.open(lock, _FLAGS | os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):
            return -1  # nobody else can write here either; the first save says what is wrong
        raise SnapshotError(f"the state can't be saved to {path}: {lock.name}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EBADF:  # NFS locks only what is open for writing
                raise
            writable = os.open(lock, _FLAGS | os.O_RDWR)
            os.close(handle)
            handle = writable
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
    except BlockingIOError:
        holder = _holder(handle)
        os.close(handle)
        raise SnapshotError(
            f"{path} is in use by {holder}, and a state has one writer at a time; end that process, or name "
            "another file"
        ) from None
    except OSError:  # a file system without locks
        return handle
    with contextlib.suppress(OSError):  # only for the sentence above; a full disk has no room for it
        writer = os.open(lock, _FLAGS | os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(writer, str(os.getpid()).encode())
        finally:
            os.close(writer)
    return handle


def _holder(handle: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        number = int(os.pread(handle, 20, 0))
        return "this process already" if number == os.getpid() else f"process {number}"
    return "another process"
