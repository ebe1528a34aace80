"""The protobuf wire format, as far as a file of a stranger must be understood before others parse it.

https://protobuf.dev/programming-guides/encoding/. A message is a sequence of fields: a key (number and wire
type) and a value. Nothing is copied, and all reading counts against one budget, so that time and memory stay
bounded whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT = 10


class WireError(ValueError):
    """Bytes that are no protobuf message, or too many fields."""


class Span(NamedTuple):
    """Where the bytes of a field lie in the file."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """In bytes."""
        return self.end - self.start


class Field(NamedTuple):
    """One field: a number for the wire types of numbers, a Span for bytes."""

    number: int
    wire: int
    value: int
    span: Span


class Reader:
    """Reads messages that lie in `data`, at most `budget` fields in all."""

    def __init__(self, data: bytes, budget: int) -> None:
        self.data = data
        self.budget = budget

    def fields(self, span: Span) -> Iterator[Field]:
        """The fields of a message, in order. Raises WireError."""
        at, end_of_all, data = span.start, span.end, self.data
        while at < end_of_all:
            self.budget -= 1
            if self.budget < 0:
                raise WireError("it has more fields than a step graph needs")
            key = data[at]
            if key < 128:  # as nearly all are; the rest is for the others
                at += 1
            else:
                key, at = self._varint(at, end_of_all)
            number, wire = key >> 3, key & 7
            if not 0 < number < 1 << 29:
                raise WireError(f"field number {number} is impossible")
            if wire == VARINT:
                value, at = self._varint(at, end_of_all)
                yield Field(number, wire, value, Span(at, at))
            elif wire == BYTES:
                length, at = self._varint(at, end_of_all)
                if length > end_of_all - at:
                    raise WireError("it ends within a field, so it is cut off or damaged")
                yield Field(number, wire, 0, Span(at, at + length))
                at += length
            elif wire in _FIXED:
                end = at + _FIXED[wire]
                if end > end_of_all:
                    raise WireError("it ends within a field, so it is cut off or damaged")
                yield Field(number, wire, int.from_bytes(self.data[at:end], "little"), Span(at, end))
                at = end
            else:
                raise WireError(f"wire type {wire} is unknown")

    def text(self, span: Span, limit: int) -> str:
        """The bytes of a field as UTF-8 of at most `limit` bytes. Raises WireError."""
        if span.length > limit:
            raise WireError(f"a text has {span.length:,} bytes, more than {limit:,}")
        try:
            return self.data[span.start : span.end].decode()
        except UnicodeDecodeError:
            raise WireError("a text is not UTF-8") from None

    def varints(self, span: Span, limit: int) -> list[int]:
        """A packed field of signed 64-bit numbers, at most `limit` of them. Raises WireError."""
        values: list[int] = []
        at = span.start
        while at < span.end:
            if len(values) == limit:
                raise WireError(f"a list has more than {limit} numbers")
            value, at = self._varint(at, span.end)
            values.append(signed(value))
        return values

    def count_varints(self, span: Span) -> int:
        """How many numbers a packed field holds: each ends with a byte below 128."""
        packed = np.frombuffer(self.data, np.uint8, count=span.length, offset=span.start)
        return int(np.count_nonzero(packed < 128))

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for i in range(min(_MAX_VARINT, end - at)):
            byte = self.data[at + i]
            value |= (byte & 127) << 7 * i
            if byte < 128:
                return value & (1 << 64) - 1, at + i + 1
        raise WireError("a number doesn't end, so the file is cut off or damaged")


def signed(value: int) -> int:
    """A varint as the signed 64-bit number that it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value
