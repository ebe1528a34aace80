"""A state on disk: one safetensors file that is either whole or as it was before."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from ocean_runtime.contract import MAX_DEPTH, show_shape, too_deep
from ocean_runtime.errors import SnapshotError, let_through, reason_of
from ocean_runtime.files import is_regular, kind_of, read_bounded, remove, write_atomically

Array = NDArray[Any]
Expected = Mapping[str, tuple[Any, tuple[int, ...]]]
"""dtype and shape by name."""

FORMAT = 1
MAX_FILE_BYTES = 1 << 28
MAX_HEADER_BYTES = 1 << 20
"""Of the JSON that says what a snapshot holds: some names and numbers."""
MAX_GENERATIONS = 100
_METADATA_KEY = "ocean_snapshot"
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a header that is none may raise."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """A stream's state at one instant."""

    state_id: str
    """Whose state it is; a model takes it when its contract has the same one."""
    kind: str
    steps: int
    """Steps since the initial state."""
    batch: int | None
    """Rows of the stream, None for a single stream without a batch axis."""
    states: Mapping[str, Array]
    """By the graph's input name, with the batch axis."""
    predictions: Mapping[str, Array]
    """The last outputs that predict the next input, by name; empty before the first step."""
    saved_at: float
    """Seconds since 1970 by the clock of the machine that saved it."""
    monotonic: float = 0.0
    """Seconds by the clock of that machine that nobody sets, usually since it was switched on."""
    precision: str = ""
    """Of the model that it was taken from; any precision of the same `state_id` goes on from it."""
    runtime: str = ""
    """Version of the runtime that wrote it."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """JSON values that whoever feeds the stream needs to go on: of rows, the last values and their time."""


class Restored(NamedTuple):
    """What was read, and what was not."""

    snapshot: Snapshot
    path: Path
    passed_over: tuple[str, ...]
    """Why each newer generation was not taken, in a sentence each."""


def write(saved: Snapshot, path: Path, *, keep: int = 1) -> None:
    """Write atomically: a crash at any instant leaves the old file or the new one.

    keep: generations to keep. The new one is `path`; the one before it becomes `path.1`, and so on, and
    those beyond are removed. Only a whole snapshot becomes a generation. A numbered file that is no generation
    of this path keeps its name, and the next number is taken. Any number of threads and processes may write to
    one path; the last one stays.

    Raises SnapshotError where the snapshot could not be read again, the folder is missing or can't be
    written, the disk is full, or `path` is no file; an older file is then as it was.
    """
    if not 1 <= keep <= MAX_GENERATIONS:
        raise ValueError(f"keep is {keep}; choose 1 to {MAX_GENERATIONS} generations")
    _check_name(path)
    content = to_bytes(saved, path.name)
    try:
        write_atomically(path, content, (lambda: _set_aside(path, keep)) if keep > 1 else None)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        let_through(error)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SnapshotError(
            f"the state can't be saved to {path}: {reason}; the stream goes on without it"
        ) from None
    for old in [slot for slot in _numbered(path) if _written_as(slot) in ("", path.name)][keep - 1 :]:
        remove(old)  # the state is saved, whatever becomes of the oldest


def read_newest(path: Path, *, limit: int = MAX_FILE_BYTES) -> Restored:
    """Read the newest generation that is whole. Raises SnapshotError where there is none.

    limit: as for `read`.
    """
    passed_over: list[str] = []
    for candidate in generations(path) or [path]:
        try:
            found = Restored(read(candidate, limit=limit), candidate, tuple(passed_over))
        except SnapshotError as error:
            let_through(error)
            passed_over.append(str(error))
            continue
        for reason in passed_over:
            _log.warning("passed over a snapshot: %s", reason)
        return found
    raise SnapshotError("; ".join(passed_over))


def generations(path: Path) -> list[Path]:
    """What is at `path`, then the older files that `write` left beside it, the newest first.

    A file with a number that is no snapshot, or was saved under that very name, is none of them.
    """
    _check_name(path)
    newest = [path] if kind_of(path) else []
    return newest + [older for older in _numbered(path) if _written_as(older) not in (None, older.name)]


def read(path: Path, *, limit: int = MAX_FILE_BYTES) -> Snapshot:
    """Read a file that `write` made. Raises SnapshotError where it is missing, damaged or newer.

    limit: bytes that a file may have; one that has more is not read.
    """
    try:
        content = read_bounded(path, min(limit, MAX_FILE_BYTES))
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a name with a NUL
        let_through(error)
        raise SnapshotError(f"there is no snapshot at {path}") from None
    except OSError as error:
        let_through(error)
        raise SnapshotError(f"{path} can't be read: {error.strerror}") from None
    try:
        return from_bytes(content)
    except SnapshotError as error:
        let_through(error)
        raise SnapshotError(f"{path} {error}") from None


def plain(context: Any) -> dict[str, Any]:
    """A copy of a context as JSON gives it back. Raises SnapshotError where it holds anything else.

    The copy is of one instant, whatever other threads do to the context meanwhile.
    """
    try:
        copy = json.loads(json.dumps(context))  # nothing else runs within either
        wrong = _key_of_no_text(context)
        if too_deep(copy):
            wrong = f"it has more than {MAX_DEPTH} dicts and lists within each other"
    except (TypeError, ValueError, RecursionError, RuntimeError) as error:
        let_through(error)
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        wrong = reason.splitlines()[0]
    if not wrong and not isinstance(copy, dict):
        wrong = f"it is {type(context).__name__}, not dict"
    if wrong:
        raise SnapshotError(
            f"the stream's context can't be kept in a snapshot: {wrong}; a context is a dict of JSON values"
        )
    return dict(copy)


def to_bytes(saved: Snapshot, name: str = "") -> bytes:
    """A snapshot as the content of a safetensors file.

    name: of the file, for whoever finds it under another one.
    Raises SnapshotError where `from_bytes` could not read it, or the result would be too long.
    """
    import ocean_runtime

    arrays = [*saved.states.values(), *saved.predictions.values()]
    size = sum(np.asarray(a).nbytes for a in arrays) + MAX_HEADER_BYTES
    if size > MAX_FILE_BYTES:
        raise SnapshotError(
            f"the state has {size - MAX_HEADER_BYTES:,} bytes, and a snapshot holds at most "
            f"{MAX_FILE_BYTES - MAX_HEADER_BYTES:,}; use fewer rows to a stream"
        )
    # np.ascontiguousarray would make a vector of a single number.
    tensors = {f"state.{key}": np.asarray(a, order="C") for key, a in saved.states.items()}
    tensors |= {f"prediction.{key}": np.asarray(a, order="C") for key, a in saved.predictions.items()}
    about: dict[str, Any] = {
        "format": FORMAT,
        "state_id": saved.state_id,
        "kind": saved.kind,
        "steps": saved.steps,
        "batch": saved.batch,
        "saved_at": saved.saved_at,
        "monotonic": saved.monotonic,
        "precision": saved.precision,
        "runtime": ocean_runtime.__version__,
        "file": name,
        "context": plain(saved.context),
    }
    _check_steps(saved.steps)
    try:
        about["checksum"] = _checksum(tensors, about)
        content = safetensors.numpy.save(tensors, metadata={_METADATA_KEY: json.dumps(about)})
    except (safetensors.SafetensorError, TypeError, ValueError, KeyError) as error:
        raise SnapshotError(f"the snapshot can't be written: {reason_of(error)}") from None
    if int.from_bytes(content[:8], "little") > MAX_HEADER_BYTES:
        raise SnapshotError(
            f"the snapshot's names and context have over {MAX_HEADER_BYTES:,} bytes; keep less in the context"
        )
    try:
        from_bytes(content)  # what can't be read again must not replace what can
    except SnapshotError as error:
        let_through(error)
        raise SnapshotError(f"the snapshot could not be read again: it {error}") from None
    return content


def from_bytes(content: bytes) -> Snapshot:
    """What `to_bytes` made. Raises SnapshotError, its message a predicate: "is damaged: ..."."""
    damaged = SnapshotError("is no snapshot, or a damaged one; restore an older one, or start anew")
    try:
        about = _about(content)
        version = int(about["format"])
        if version > FORMAT:
            raise SnapshotError(
                f"has snapshot format {version}, newer than this runtime; pip install -U oceanstate"
            )
        tensors = safetensors.numpy.load(content)
        checksum = about.pop("checksum")
        if _checksum(tensors, about) != checksum:
            raise SnapshotError(
                "is damaged: its checksum does not match; restore an older one, or start anew"
            )
        return Snapshot(
            state_id=str(about["state_id"]),
            kind=str(about["kind"]),
            steps=int(about["steps"]),
            batch=None if about["batch"] is None else int(about["batch"]),
            states=_named(tensors, "state."),
            predictions=_named(tensors, "prediction."),
            saved_at=float(about["saved_at"]),
            monotonic=float(about.get("monotonic", 0.0)),
            precision=str(about.get("precision", "")),
            runtime=str(about.get("runtime", "")),
            context=dict(about.get("context", {})),
        )
    except SnapshotError:
        raise
    except (safetensors.SafetensorError, OverflowError, *_MALFORMED) as error:  # an infinite count of steps
        let_through(error)
        raise damaged from None


def check(saved: Snapshot, state_id: str, batch: int | None, states: Expected, predictions: Expected) -> None:
    """Raises SnapshotError where a snapshot does not fit the stream that is to go on from it."""
    if saved.state_id != state_id:
        raise SnapshotError(
            f"the snapshot is of the model {saved.state_id[:19]}, and this one is {state_id[:19]}: "
            "a state means nothing to another model; load the model it was saved with, or start anew"
        )
    if saved.batch != batch:
        raise SnapshotError(
            f"the snapshot has batch {saved.batch}, the stream {batch}; open the stream with that batch"
        )
    _check_steps(saved.steps)
    if saved.states.keys() != states.keys() or not saved.predictions.keys() <= predictions.keys():
        raise SnapshotError(
            f"the snapshot holds {sorted(saved.states)} and {sorted(saved.predictions)}, "
            f"the model has {sorted(states)} and {sorted(predictions)}"
        )
    expected = {**states, **predictions}
    for name, array in {**saved.states, **saved.predictions}.items():
        dtype, shape = expected[name]
        if array.dtype != dtype or array.shape != shape:
            raise SnapshotError(
                f"the snapshot's {name!r} is {array.dtype} {show_shape(array.shape)}, "
                f"the model's {np.dtype(dtype)} {show_shape(shape)}"
            )
        # A row that was reset by itself has predicted nothing yet: its prediction is NaN.
        wrong = np.isinf(array) if name in predictions else ~np.isfinite(array)
        if array.dtype.kind == "f" and wrong.any():
            raise SnapshotError(f"the snapshot's {name!r} is not finite; restore an older one, or start anew")


def _check_name(path: Path) -> None:
    if not path.name:
        raise SnapshotError(f"'{path}' is no name for a snapshot; give a file")


def _numbered(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}.{i}") for i in range(1, MAX_GENERATIONS)]


def _written_as(path: Path) -> str | None:
    """The name that a snapshot was written under, "" where an earlier version did; None where it is no snapshot."""
    if not is_regular(path):
        return None
    try:
        content = read_bounded(path, 0, start=8 + MAX_HEADER_BYTES)
        return str(_about(content).get("file", ""))
    except (OSError, *_MALFORMED) as error:
        let_through(error)
        return None


def _about(content: bytes) -> dict[str, Any]:
    """What a snapshot says of itself; raises ValueError, KeyError, TypeError, RecursionError where it is none."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(MAX_HEADER_BYTES, len(content) - 8):
        raise ValueError
    about: dict[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_METADATA_KEY])
    return about


def _check_steps(steps: int) -> None:
    if not 0 <= steps < 1 << 63:
        raise SnapshotError(f"the snapshot counts {steps} steps, which can't be")


def _key_of_no_text(value: Any) -> str:
    """What JSON would make text of: a key of a dict that is none; empty where there is none."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            for key in list(item):
                if not isinstance(key, str):
                    return f"the key {key!r} is {type(key).__name__}, not str"
            waiting += list(item.values())
        elif isinstance(item, list | tuple):
            waiting += list(item)
    return ""


def _whole(path: Path) -> bool:
    try:
        read(path)
    except SnapshotError as error:
        let_through(error)
        return False
    return True


def _set_aside(path: Path, keep: int) -> None:
    """Give what is whole at `path` a number, each older one the next: there is a file at `path` at every instant.

    Another writer of the same path, where locks don't work, may take a file away between two calls.
    """
    if not is_regular(path) or not _whole(path):
        return
    free = (s for s in _numbered(path) if not kind_of(s) or _written_as(s) in ("", path.name))
    slots = list(itertools.islice(free, keep - 1))
    if not slots:
        return
    for older, newer in zip(slots[:0:-1], slots[-2::-1], strict=True):
        with contextlib.suppress(FileNotFoundError):
            newer.replace(older)
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        slots[0].unlink(missing_ok=True)
        try:
            os.link(path, slots[0], follow_symlinks=False)
        except (FileNotFoundError, FileExistsError):
            raise
        except (
            OSError
        ) as error:  # FAT, as on many SD cards, has no links: for a moment there is no other file
            let_through(error)
            path.replace(slots[0])


def _named(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name[len(prefix) :]: array for name, array in tensors.items() if name.startswith(prefix)}


def _checksum(tensors: Mapping[str, Array], about: Mapping[str, Any]) -> str:
    sha = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name]
        sha.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
