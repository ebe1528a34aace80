"""A state on disk: one safetensors file that is either whole or as it was before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from ocean_runtime.contract import show_shape
from ocean_runtime.errors import SnapshotError
from ocean_runtime.files import write_atomically

Array = NDArray[Any]
Expected = Mapping[str, tuple[Any, tuple[int, ...]]]
"""dtype and shape by name."""

FORMAT = 1
MAX_FILE_BYTES = 1 << 30
_METADATA_KEY = "ocean_snapshot"


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


def write(saved: Snapshot, path: Path) -> None:
    """Write atomically: a crash at any instant leaves the old file or the new one.

    Raises SnapshotError where the folder is
    missing or can't be written, or the disk is full; an older file is then as it was.
    """
    tensors = {f"state.{name}": np.ascontiguousarray(a) for name, a in saved.states.items()}
    tensors |= {f"prediction.{name}": np.ascontiguousarray(a) for name, a in saved.predictions.items()}
    about: dict[str, Any] = {
        "format": FORMAT,
        "state_id": saved.state_id,
        "kind": saved.kind,
        "steps": saved.steps,
        "batch": saved.batch,
        "saved_at": saved.saved_at,
    }
    about["checksum"] = _checksum(tensors, about)
    data = safetensors.numpy.save(tensors, metadata={_METADATA_KEY: json.dumps(about)})
    try:
        write_atomically(path, data)
    except OSError as error:
        raise SnapshotError(
            f"the state can't be saved to {path}: {error.strerror or error}; the stream goes on without it"
        ) from None


def read(path: Path) -> Snapshot:
    """Read a file that `write` made. Raises SnapshotError where it is missing, damaged or newer."""
    try:
        if not path.is_file():
            raise SnapshotError(f"there is no snapshot at {path}")
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise SnapshotError(f"{path} has {size:,} bytes; a snapshot has at most {MAX_FILE_BYTES:,}")
        data = path.read_bytes()
    except OSError as error:
        raise SnapshotError(f"{path} can't be read: {error.strerror}") from None
    try:
        tensors = safetensors.numpy.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        about = json.loads(header["__metadata__"][_METADATA_KEY])
        version = int(about["format"])
        checksum = about.pop("checksum")
        if version <= FORMAT and _checksum(tensors, about) == checksum:
            return Snapshot(
                state_id=str(about["state_id"]),
                kind=str(about["kind"]),
                steps=int(about["steps"]),
                batch=None if about["batch"] is None else int(about["batch"]),
                states=_named(tensors, "state."),
                predictions=_named(tensors, "prediction."),
                saved_at=float(about["saved_at"]),
            )
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        raise SnapshotError(
            f"{path} is no snapshot, or a damaged one; restore an older one or reset"
        ) from None
    if version > FORMAT:
        raise SnapshotError(
            f"{path} has snapshot format {version}, newer than this runtime; pip install -U oceanstate"
        )
    raise SnapshotError(f"{path} is damaged: its checksum does not match; restore an older one or reset")


def check(saved: Snapshot, state_id: str, batch: int | None, states: Expected, predictions: Expected) -> None:
    """Raises SnapshotError where a snapshot does not fit the stream that is to go on from it."""
    if saved.state_id != state_id:
        raise SnapshotError(
            f"the snapshot is of the model {saved.state_id[:19]}, and this one is {state_id[:19]}: "
            "a state means nothing to another model; load the model it was saved with, or reset"
        )
    if saved.batch != batch:
        raise SnapshotError(
            f"the snapshot has batch {saved.batch}, the stream {batch}; open the stream with that batch"
        )
    if saved.steps < 0:
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
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise SnapshotError(f"the snapshot's {name!r} is not finite; restore an older one or reset")


def _named(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name[len(prefix) :]: array for name, array in tensors.items() if name.startswith(prefix)}


def _checksum(tensors: Mapping[str, Array], about: Mapping[str, Any]) -> str:
    sha = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensors[name].tobytes())
    return sha.hexdigest()
