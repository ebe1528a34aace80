"""What a step is given, checked before the graph sees it: name, dtype, shape, range, finite."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ocean_runtime.contract import DTYPES, Contract, Tensor, show_shape, sized
from ocean_runtime.errors import InputError

Array = NDArray[Any]

_log = logging.getLogger(__name__)

_ACCEPTED = {"i": "iu", "u": "iu", "f": "fiu", "b": "b"}
SMALL = 8192
"""Elements up to which a dot product is the fastest look at an array; larger ones would wake BLAS's threads."""


def finite(array: Array) -> bool:
    """Whether every element of a float array is finite.

    x·x is a sum of non-negative terms, so a NaN or infinity anywhere shows in it. It may also overflow by
    itself, and then each element is looked at.
    """
    if array.size <= SMALL and math.isfinite(np.vdot(array, array)):
        return True
    return bool(np.isfinite(array).all())


class Entry:
    """One input of a stream, with what its values must be worked out once."""

    def __init__(self, tensor: Tensor, contract: Contract, batch: int | None) -> None:
        self.name = tensor.name
        self.out_of_range = 0
        """Inputs with an element outside the range of the training data."""
        self._tensor = tensor
        self._dtype: np.dtype[Any] = np.dtype(DTYPES[tensor.dtype])
        self._shape = sized(tensor.shape, 1 if batch is None else batch)
        axis = tensor.batch_axis
        self._axis = axis
        self._single = (
            self._shape[:axis] + self._shape[axis + 1 :]
            if batch is None and axis is not None
            else self._shape
        )
        ones = next(
            (i for i, size in enumerate(self._single[:-1]) if size != 1), max(0, len(self._single) - 1)
        )
        self._shorter = {self._single[i:] for i in range(1, ones + 1)} if batch is None else set()
        """Without leading axes of 1, as in (M,) for [1, M]: taken too, since nothing else can be meant."""
        tokenizer = contract.tokenizer if contract.kind == "tokens" else None
        self._vocabulary = 0 if tokenizer is None else tokenizer.size
        self._tokens: Array | None = None
        if self._vocabulary and self._single == ():  # a view of this table is the quickest array of one token
            self._tokens = np.arange(self._vocabulary, dtype=self._dtype).reshape(-1, *self._shape)
        self._reference = tensor.reference
        self._low, self._high = _range(tensor)
        self._warned = np.zeros(len(tensor.elements), bool)

    def take(self, value: ArrayLike) -> Array:
        """The input as the graph takes it, no view of `value`. Raises InputError, with the rows at fault."""
        if type(value) is int and self._tokens is not None and 0 <= value < self._vocabulary:
            token: Array = self._tokens[value]
            return token
        array = self._array(value)
        if self._dtype.kind == "f":
            if array.dtype == self._dtype:
                cast = np.array(array, order="C").reshape(self._shape)
            else:  # a value that the dtype can't hold becomes an infinity, and is refused as one below
                with np.errstate(over="ignore", invalid="ignore"):
                    cast = np.array(array, self._dtype, order="C").reshape(self._shape)
            if not finite(cast):
                self._refuse_not_finite(array, cast)
            if self._low is not None and ((cast < self._low) | (cast > self._high)).any():
                self._warn(cast)
            return cast
        if self._dtype.kind in "iu":
            self._check_range(array)
        return np.array(array, self._dtype, order="C").reshape(self._shape)

    def repair(self, value: ArrayLike, rows: Array) -> Array:
        """The input with the rows at fault replaced by zeros, for a step that those rows won't take."""
        array = np.array(self._array(value), order="C").reshape(self._shape)
        if self._axis is not None:
            np.moveaxis(array, self._axis, 0)[rows] = 0
        return np.array(array, self._dtype)

    def _array(self, value: ArrayLike) -> Array:
        """The value as an array whose dtype and shape will do, less the references (in float64)."""
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            if value.dtype.kind != "f":
                raise InputError(f"input {self.name!r} has masked values; leave those steps out")
            value = value.filled(np.nan)  # NumPy would take what lies below the mask
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"input {self.name!r} is no array: {error}") from None
        if array.dtype.kind not in _ACCEPTED[self._dtype.kind]:
            raise InputError(
                f"input {self.name!r} has dtype {array.dtype}; the model takes {self._tensor.dtype}"
            )
        if array.shape != self._single and array.shape not in self._shorter:
            raise InputError(
                f"input {self.name!r} has shape {show_shape(array.shape)}; "
                f"a step takes {show_shape(self._single)}"
            )
        return array if self._reference is None else array - self._reference

    def _check_range(self, array: Array) -> None:
        if not array.size:
            return
        if self._vocabulary:
            low, high = 0, self._vocabulary - 1
        else:
            limits = np.iinfo(self._dtype.type)
            low, high = int(limits.min), int(limits.max)
        least, most = int(array.min()), int(array.max())  # as Python integers: uint64 and int64 compare
        if low <= least and most <= high:
            return
        # An integer dtype holds the limit on the side where a value of it is beyond.
        bad: Array = np.zeros(array.shape, bool)
        if least < low:
            bad = bad | (array < low)
        if most > high:
            bad = bad | (array > high)
        if self._vocabulary:
            message = (
                f"input {self.name!r} is {least if least < low else most}, outside the vocabulary of "
                f"{self._vocabulary} tokens, 0 to {high}"
            )
        else:
            message = f"input {self.name!r} has a value that {self._tensor.dtype} can't hold"
        raise InputError(message, self._rows(bad))

    def _refuse_not_finite(self, array: Array, cast: Array) -> None:
        bad = ~np.isfinite(cast)
        where = int(np.flatnonzero(bad)[0])
        elements = self._tensor.elements
        name = f" ({elements[where % len(elements)].name})" if elements else ""
        raise InputError(
            f"input {self.name!r} has {array.reshape(-1)[where]} at element {where}{name}; it must be finite",
            self._rows(bad),
        )

    def _rows(self, bad: Array) -> Array | None:
        return faulty_rows(bad.reshape(self._shape), self._axis)

    def _warn(self, cast: Array) -> None:
        """Count an input outside the training data's range; the log hears of each element once."""
        self.out_of_range += 1
        assert self._low is not None
        assert self._high is not None
        outside = ((cast < self._low) | (cast > self._high)).reshape(-1, len(self._warned)).any(axis=0)
        for i in np.flatnonzero(outside & ~self._warned):
            element = self._tensor.elements[i]
            value = cast.reshape(-1, len(self._warned))[:, i] + element.reference
            _log.warning(
                "input %r is outside the training data's range: %s was %g, and the model saw %g to %g",
                self.name,
                element.name,
                value[np.argmax(np.abs(value))],
                self._low[i] + element.reference,
                self._high[i] + element.reference,
            )
        self._warned |= outside


def by_name(x: ArrayLike | Mapping[str, ArrayLike], entries: Mapping[str, Entry]) -> Mapping[str, ArrayLike]:
    """The values of a step by input name; raises InputError where a name is unknown or missing."""
    if not isinstance(x, Mapping):
        if len(entries) != 1:
            names = ", ".join(map(repr, entries))
            raise InputError(f"the model takes {len(entries)} inputs, {names}: give them by name, as a dict")
        return {next(iter(entries)): x}
    if x.keys() != entries.keys():
        name = sorted(map(str, x.keys() ^ entries.keys()))[0]
        problem = "is unknown" if name in x else "is missing"
        raise InputError(f"input {name!r} {problem}; the model takes {', '.join(map(repr, entries))}")
    return x


def faulty_rows(bad: Array, axis: int | None) -> Array | None:
    """Which rows hold a fault, (B,); None where the array has no batch axis."""
    if axis is None:
        return None
    return np.asarray(np.moveaxis(bad, axis, 0).reshape(bad.shape[axis], -1).any(axis=1))


def _range(tensor: Tensor) -> tuple[Array | None, Array | None]:
    """The training data's range along the last axis, less references; both None where no element has one."""
    limited = any(e.low is not None or e.high is not None for e in tensor.elements)
    if not limited or np.dtype(DTYPES[tensor.dtype]).kind != "f":  # only floats are looked at
        return None, None
    low = [-np.inf if e.low is None else e.low - e.reference for e in tensor.elements]
    high = [np.inf if e.high is None else e.high - e.reference for e in tensor.elements]
    # Rounded as an input is: the training data's own extremes must not fall outside of them.
    with np.errstate(over="ignore"):
        return np.array(low).astype(DTYPES[tensor.dtype]), np.array(high).astype(DTYPES[tensor.dtype])
