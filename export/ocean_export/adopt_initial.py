"""States before the first step, as a number or from a NumPy file."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ocean_runtime.files import read_bounded

from ocean_export.adopt_graph import AdoptError

Array = NDArray[Any]

MAX_NUMBERS = 1 << 17
"""Initial numbers of a state: the contract holds them as text."""
_MAX_BYTES = 8 * MAX_NUMBERS + (1 << 14)
"""Of an array of so many numbers, with its header."""


def read_initial(texts: Iterable[str]) -> dict[str, float | Array]:
    """By state input, from NAME=NUMBER, NAME=FILE.npy or FILE.npz, whose arrays have the states' names.

    Raises AdoptError.
    """
    found: dict[str, float | Array] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if text.endswith(".npz"):
            given: dict[str, float | Array] = dict(_archive(Path(text)))
        elif name and value.endswith(".npy"):
            given = {name: _array(_content(Path(value)), value)}
        else:
            try:
                given = {name: float(value)}
            except ValueError:
                name = ""
        if not name and not text.endswith(".npz"):
            raise AdoptError(f"--initial {text}: write it as IN=NUMBER, IN=FILE.npy or FILE.npz")
        for which in given.keys() & found.keys():
            raise AdoptError(f"--initial gives {which!r} twice; give it once")
        found |= given
    return found


def _archive(path: Path) -> dict[str, Array]:
    try:
        with zipfile.ZipFile(io.BytesIO(_content(path, 16 * _MAX_BYTES))) as archive:
            for item in archive.infolist():
                if item.file_size > _MAX_BYTES:
                    raise AdoptError(_too_large(f"{item.filename} in {path}"))
            return {
                item.filename.removesuffix(".npy"): _array(archive.read(item), f"{item.filename} in {path}")
                for item in archive.infolist()
            }
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise AdoptError(f"{path} is no .npz file, or is damaged ({error})") from None


def _content(path: Path, limit: int = _MAX_BYTES) -> bytes:
    try:
        return read_bounded(path, limit)
    except FileNotFoundError:
        raise AdoptError(f"there is no file {path}") from None
    except OSError as error:
        raise AdoptError(f"{path} can't be read: {error.strerror}") from None


def _array(content: bytes, name: str) -> Array:
    """An array of numbers; its header is checked against the content before anything is allocated."""
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(stream)
    except (ValueError, EOFError) as error:
        raise AdoptError(f"{name} is no .npy file, or is damaged ({error})") from None
    if dtype.kind not in "fiub" or any(size < 0 for size in shape):
        raise AdoptError(f"{name} holds {dtype}, and a state is of numbers; save it as float32")
    if math.prod(shape) > MAX_NUMBERS:
        raise AdoptError(_too_large(name))
    if len(content) - stream.tell() != math.prod(shape) * dtype.itemsize:
        raise AdoptError(f"{name} has not the {math.prod(shape):,} numbers that it claims; save it again")
    stream.seek(0)
    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _too_large(name: str) -> str:
    return f"{name} has more than {MAX_NUMBERS:,} numbers, and the contract holds no more of a state"
