"""A state on disk: one safetensors file that is either whole or as it was before."""

from __future__ import annotations

import hashlib
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

from ocean_runtime.contract import show_shape
from ocean_runtime.errors import SnapshotError
from ocean_runtime.files import read_bounded, sync_folder, temporary

Array = NDArray[Any]
Expected = Mapping[str, tuple[Any, tuple[int, ...]]]
"""dtype and shape by name."""

FORMAT = 1
MAX_FILE_BYTES = 1 << 28
MAX_HEADER_BYTES = 1 << 20
"""Of the JSON that says what a snapshot holds: some names and numbers."""
MAX_GENERATIONS = 100
_METADATA_KEY = "ocean_snapshot"

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
    those beyond are removed. Only a whole file becomes a generation. One writer for each path.
    Raises SnapshotError where the folder is missing or can't be written, or the disk is full; an older
    file is then as it was.
    """
    if not 1 <= keep <= MAX_GENERATIONS:
        raise ValueError(f"keep is {keep}; choose 1 to {MAX_GENERATIONS} generations")
    content = to_bytes(saved)
    generations(path)  # refuses what is no name of a file
    try:
        with temporary(path, content) as written:
            if keep > 1 and _whole(path):
                _set_aside(path, keep)
            written.replace(path)
        for old in generations(path):
            if old != path and int(old.suffix[1:]) >= keep:
                old.unlink()
        sync_folder(path.parent)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SnapshotError(
            f"the state can't be saved to {path}: {reason}; the stream goes on without it"
        ) from None


def read_newest(path: Path, *, limit: int = MAX_FILE_BYTES) -> Restored:
    """Read the newest generation that is whole. Raises SnapshotError where there is none.

    limit: as for `read`.
    """
    passed_over: list[str] = []
    for candidate in generations(path) or [path]:
        try:
            found = Restored(read(candidate, limit=limit), candidate, tuple(passed_over))
        except SnapshotError as error:
            passed_over.append(str(error))
            continue
        for reason in passed_over:
            _log.warning("passed over a snapshot: %s", reason)
        return found
    raise SnapshotError("; ".join(passed_over))


def generations(path: Path) -> list[Path]:
    """The files that `write` left for `path`, the newest first; empty where there is none."""
    if not path.name:
        raise SnapshotError(f"'{path}' is no name for a snapshot; give a file")
    older = [path.with_name(f"{path.name}.{i}") for i in range(1, MAX_GENERATIONS)]
    return [candidate for candidate in (path, *older) if os.path.lexists(candidate)]


def read(path: Path, *, limit: int = MAX_FILE_BYTES) -> Snapshot:
    """Read a file that `write` made. Raises SnapshotError where it is missing, damaged or newer.

    limit: bytes that a file may have; one that has more is not read.
    """
    try:
        content = read_bounded(path, min(limit, MAX_FILE_BYTES))
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name with a NUL
        raise SnapshotError(f"there is no snapshot at {path}") from None
    except OSError as error:
        raise SnapshotError(f"{path} can't be read: {error.strerror}") from None
    try:
        return from_bytes(content)
    except SnapshotError as error:
        raise SnapshotError(f"{path} {error}") from None


def to_bytes(saved: Snapshot) -> bytes:
    """A snapshot as the content of a safetensors file; SnapshotError where its context is too long to be read."""
    import ocean_runtime

    tensors = {f"state.{name}": np.ascontiguousarray(a) for name, a in saved.states.items()}
    tensors |= {f"prediction.{name}": np.ascontiguousarray(a) for name, a in saved.predictions.items()}
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
        "context": dict(saved.context),
    }
    about["checksum"] = _checksum(tensors, about)
    content = safetensors.numpy.save(tensors, metadata={_METADATA_KEY: json.dumps(about)})
    if int.from_bytes(content[:8], "little") > MAX_HEADER_BYTES:
        raise SnapshotError(
            f"the snapshot's names and context have over {MAX_HEADER_BYTES:,} bytes; keep less in the context"
        )
    return content


def from_bytes(content: bytes) -> Snapshot:
    """What `to_bytes` made. Raises SnapshotError, its message a predicate: "is damaged: ..."."""
    damaged = SnapshotError("is no snapshot, or a damaged one; restore an older one, or start anew")
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(MAX_HEADER_BYTES, len(content) - 8):
        raise damaged
    try:
        header = json.loads(content[8 : 8 + length])
        about = json.loads(header["__metadata__"][_METADATA_KEY])
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
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged from None
    except OverflowError:  # an infinite count of steps
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
    if not 0 <= saved.steps < 1 << 63:
        raise SnapshotError(f"the snapshot counts {saved.steps} steps, which can't be")
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


def _whole(path: Path) -> bool:
    try:
        read(path)
    except SnapshotError:
        return False
    return True


def _set_aside(path: Path, keep: int) -> None:
    """Make room at `path`: each generation becomes the next older one; what is whole stays reachable."""
    names = [path, *(path.with_name(f"{path.name}.{i}") for i in range(1, keep))]
    for older, newer in zip(names[:0:-1], names[-2:0:-1], strict=False):
        if newer.exists():
            newer.replace(older)
    # A hard link first, so that there is a file at `path` at every instant, for whoever looks only there.
    link = path.with_name(f".{path.name}.link.tmp")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link, follow_symlinks=False)
    except OSError:  # FAT, as on many SD cards, has none
        path.replace(names[1])
    else:
        link.replace(names[1])


def _named(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name[len(prefix) :]: array for name, array in tensors.items() if name.startswith(prefix)}


def _checksum(tensors: Mapping[str, Array], about: Mapping[str, Any]) -> str:
    sha = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name]
        sha.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
