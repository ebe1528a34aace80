"""Weights that a foreign ONNX file keeps in a file beside it, as torch.onnx.export writes them, taken into one file."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import onnx
from ocean_runtime.files import read_bounded
from ocean_runtime.model import MAX_FILE_BYTES
from ocean_runtime.scan import BITS, MAX_RANK

from ocean_export.adopt_graph import AdoptError, tensors

_KEYS = {"location", "offset", "length", "checksum"}


def read_foreign(path: Path) -> tuple[bytes, list[Path]]:
    """The file as one, its weights inside, and the files beside it that they came from.

    A weight's file must be a regular one in the folder of `path` itself: it is named without a folder, and where it is
    a link, what it leads to lies there too. All sizes are checked before anything is read. Raises AdoptError.
    """
    try:
        content = read_bounded(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise AdoptError(f"there is no model file at {path}") from None
    except OSError as error:
        raise AdoptError(f"{path} can't be read: {error.strerror}") from None
    try:
        proto = onnx.load_model_from_string(content)
    except Exception:  # protobuf's exceptions differ by its implementation; `parse` says what is wrong
        return content, []
    outside = [t for t in tensors(proto.graph) if t.data_location == onnx.TensorProto.EXTERNAL]
    if not outside:
        return content, []
    places = [_Place(tensor, path) for tensor in outside]
    total = len(content) + sum(place.length for place in places)
    if total > MAX_FILE_BYTES:
        raise AdoptError(
            f"{path.name} and the weights beside it have {total:,} bytes, and one ONNX file holds at most "
            f"{MAX_FILE_BYTES:,}"
        )
    files = {place.name: _open(place.name, path) for place in places}
    try:
        for place in places:
            place.check(os.fstat(files[place.name]).st_size)
        for tensor, place in zip(outside, places, strict=True):
            data = os.pread(files[place.name], place.length, place.offset)
            if len(data) != place.length:
                raise AdoptError(f"{place.name} was cut while it was read; try again")
            del tensor.external_data[:]
            tensor.ClearField("data_location")
            tensor.raw_data = data
    finally:
        for handle in files.values():
            os.close(handle)
    return proto.SerializeToString(deterministic=True), [path.parent / name for name in files]


class _Place:
    """Where a tensor's data lies."""

    def __init__(self, tensor: onnx.TensorProto, model: Path) -> None:
        self.tensor = tensor.name
        given = {entry.key: entry.value for entry in tensor.external_data}
        if set(given) - _KEYS or len(given) != len(tensor.external_data):
            raise AdoptError(
                f"{model.name} says where the tensor {tensor.name!r} lies by {', '.join(sorted(given))}; it takes "
                "location, offset and length, each once"
            )
        self.name = given.get("location", "")
        if self.name in ("", "..") or Path(self.name).name != self.name or "\0" in self.name:
            raise AdoptError(
                f"{model.name} keeps the tensor {tensor.name!r} in {self.name!r}, and only a file in its own folder is "
                "read; put both into one folder and export the model again"
            )
        if tensor.data_type not in BITS:
            raise AdoptError(
                f"{model.name} has a tensor {tensor.name!r} of the element type {tensor.data_type}, which no step "
                "graph needs"
            )
        if len(tensor.dims) > MAX_RANK or any(size < 0 for size in tensor.dims):
            raise AdoptError(
                f"{model.name} gives the tensor {tensor.name!r} the impossible shape {[*tensor.dims]}"
            )
        wanted = -(-math.prod(tensor.dims) * BITS[tensor.data_type] // 8)
        self.offset = self._number(given, "offset", 0)
        self.length = self._number(given, "length", wanted)
        if self.length != wanted:
            raise AdoptError(
                f"{model.name} gives the tensor {tensor.name!r} {self.length:,} bytes of {self.name} for the shape "
                f"{[*tensor.dims]}, which has {wanted:,}"
            )

    def check(self, size: int) -> None:
        """Raises AdoptError where the file, of `size` bytes, doesn't hold it."""
        if self.offset + self.length > size:
            raise AdoptError(
                f"{self.name} has {size:,} bytes, and the tensor {self.tensor!r} is said to end at byte "
                f"{self.offset + self.length:,}; it belongs to another export, or was cut off: copy both files again"
            )

    def _number(self, given: Mapping[str, str], key: str, default: int) -> int:
        text = given.get(key, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise AdoptError(
                f"the tensor {self.tensor!r} has the {key} {text!r} in {self.name}; a number is expected"
            )
        return int(text)


def _open(name: str, model: Path) -> int:
    """A handle of the regular file beside the model. Raises AdoptError."""
    path = model.parent / name
    try:
        real = path.resolve(strict=True)
        if real.parent != model.parent.resolve():
            raise AdoptError(
                f"{path} is a link to {real}, out of the model's folder, and is not followed; copy the file there"
            )
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise AdoptError(
            f"{model.name} keeps its weights in {name}, and there is no such file beside it; copy it to {model.parent}"
        ) from None
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise AdoptError(f"{path} can't be read: {error}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise AdoptError(f"{model.name} keeps its weights in {name}, which is no regular file")
    return handle
