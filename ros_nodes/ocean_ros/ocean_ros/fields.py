"""Between messages and vectors, by field paths: `angular_velocity.x`, `position[2]`, `data[0:6]`.

A path is checked against the message type once, when the node is configured; reading and writing then only
follow it.
"""

from __future__ import annotations

import array
import importlib
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TYPE = re.compile(r"([a-z]\w*)/(?:msg/)?([A-Z]\w*)")
_PART = re.compile(r"([A-Za-z]\w*)(?:\[(\d+)(?::(\d+))?\])?")
_FIXED = re.compile(r"(.+)\[(\d+)\]")
_SEQUENCE = re.compile(r"sequence<(.+?)(?:, (\d+))?>")
_ARRAY_CODES = {"float": "f", "double": "d"}
_INTEGERS = {f"{u}int{n}": (n, u) for n in (8, 16, 32, 64) for u in ("", "u")}
_NUMBERS = {"float", "double", "boolean", *_INTEGERS}
MAX_SLICE = 1_000_000
FLOAT32_MAX = float(np.finfo(np.float32).max)

Values = NDArray[Any]


class FieldError(ValueError):
    """A message type or field path that does not exist or holds no numbers, in one sentence."""


@dataclass(frozen=True)
class Field:
    """One path, and the model's element that it is for."""

    path: str
    name: str
    """The element's name; the path itself, or of a slice each index's path, where none was given."""
    parts: tuple[str, ...]
    """The attributes to follow, each with its index where it has one: `position[2]`."""
    start: int | None
    stop: int | None
    """Of a slice at the end: [start:stop]."""
    number: str
    """The ROS type of what is there: float, double, int32, ..."""

    @property
    def size(self) -> int:
        """How many elements."""
        return 1 if self.start is None or self.stop is None else self.stop - self.start

    @property
    def names(self) -> list[str]:
        """One name for each element."""
        if self.start is None or self.stop is None:
            return [self.name]
        base = self.name[: self.name.rindex("[")] if self.name.endswith("]") else self.name
        return [f"{base}[{i}]" for i in range(self.start, self.stop)]


def message_type(name: str) -> Any:
    """The class of `package/msg/Type`. Raises FieldError where there is none."""
    match = _TYPE.fullmatch(name)
    if match is None:
        raise FieldError(f"{name!r} is no message type; it looks like sensor_msgs/msg/Imu")
    package, kind = match.groups()
    try:
        module = importlib.import_module(f"{package}.msg")
    except ImportError:
        raise FieldError(
            f"{name!r}: the message package {package} is not installed, or its workspace is not sourced"
        ) from None
    if not hasattr(module, kind):
        raise FieldError(f"{name!r}: the package {package} has no message {kind}")
    return getattr(module, kind)


def parse(text: str, message: Any) -> Field:
    """`PATH` or `ELEMENT=PATH`, checked against a message class. Raises FieldError."""
    name, _, path = text.rpartition("=")
    parts: list[str] = []
    kind, start, stop = "", None, None
    current: Any = message
    steps = path.split(".")
    for i, step in enumerate(steps):
        match = _PART.fullmatch(step)
        if match is None:
            raise FieldError(f"{path!r} is no field path; it looks like position[2] or angular_velocity.x")
        attribute, index, end = match.groups()
        known = current.get_fields_and_field_types()
        if attribute not in known:
            raise FieldError(f"{path!r}: {_name(current)} has no field {attribute!r}, but {', '.join(known)}")
        kind, length = _element(known[attribute])
        if (index is None) != (length is None):
            should = "has no index" if length is None else "needs an index, such as [0] or [0:3]"
            raise FieldError(
                f"{path!r}: {attribute!r} of {_name(current)} is {known[attribute]} and {should}"
            )
        last = int(end) - 1 if end else int(index or 0)
        if length is not None and length >= 0 and last >= length:
            raise FieldError(f"{path!r}: {attribute!r} of {_name(current)} has {length} elements")
        if end and (int(end) <= int(index) or int(end) - int(index) > MAX_SLICE):
            raise FieldError(f"{path!r}: the slice must hold 1 to {MAX_SLICE:,} elements")
        if end and i < len(steps) - 1:
            raise FieldError(f"{path!r}: a slice can only stand at the end of a path")
        if end:
            start, stop = int(index), int(end)
            parts.append(attribute)
        else:
            parts.append(step)
        if i < len(steps) - 1:
            if "/" not in kind:
                raise FieldError(f"{path!r}: {attribute!r} of {_name(current)} is {kind}, without fields")
            current = message_type(kind)
    if kind not in _NUMBERS:
        raise FieldError(f"{path!r} of {_name(message)} is {kind}, not a number")
    return Field(path, name or path, tuple(parts), start, stop, kind)


def reader(fields: Sequence[Field]) -> Callable[[Any], Values]:
    """message -> the fields' values, float64, in order; raises IndexError where a sequence is too short."""
    size = sum(field.size for field in fields)
    pieces: list[tuple[slice, Callable[[Any], Any]]] = []
    at = 0
    plain: list[str] = []

    def flush() -> None:
        if plain:
            pieces.append((slice(at - len(plain), at), operator.attrgetter(*plain)))
            plain.clear()

    for field in fields:
        if field.start is None and not any("[" in part for part in field.parts):
            plain.append(".".join(field.parts))
        else:
            flush()
            pieces.append((slice(at, at + field.size), _follow(field)))
        at += field.size
    flush()

    def read(message: Any) -> Values:
        values = np.empty(size)
        for where, get in pieces:
            values[where] = get(message)
        return values

    return read


def writer(message: Any, fields: Sequence[Field]) -> tuple[Any, Callable[[Values], None]]:
    """A message to publish again and again, and what fills it: values in the fields' order.

    Sequences are made as long as the fields need. The filling raises OverflowError where a field can't hold
    its value.
    """
    template = message()
    setters: list[tuple[int, int, Callable[[Values], None]]] = []
    at = 0
    for field in fields:
        setters.append((at, at + field.size, _setter(template, field)))
        at += field.size

    def write(values: Values) -> None:
        for start, stop, put in setters:
            put(values[start:stop])

    return template, write


def _follow(field: Field) -> Callable[[Any], Any]:
    """The getter of a path with an index or slice."""
    steps: list[Callable[[Any], Any]] = []
    for part in field.parts:
        attribute, _, index = part.partition("[")
        steps.append(operator.attrgetter(attribute))
        if index:
            steps.append(operator.itemgetter(int(index[:-1])))
    start, stop = field.start, field.stop

    def get(message: Any) -> Any:
        for step in steps:
            message = step(message)
        if start is None:
            return message
        piece = message[start:stop]
        if len(piece) != field.size:
            raise IndexError(f"{field.path} has {len(message)} elements")
        return piece

    return get


def _setter(template: Any, field: Field) -> Callable[[Values], None]:
    """What writes one field of the template. The objects on the way are found here, once."""
    convert = _converter(field.number)
    current = template
    for part in field.parts[:-1]:
        attribute, _, index = part.partition("[")
        if index:
            _grow(current, attribute, int(index[:-1]) + 1)
            current = getattr(current, attribute)[int(index[:-1])]
        else:
            current = getattr(current, attribute)
    attribute, _, index = field.parts[-1].partition("[")
    if field.start is None and not index:
        return lambda values: setattr(current, attribute, convert(values[0]))
    start = int(index[:-1]) if field.start is None else field.start
    stop = start + field.size
    _grow(current, attribute, stop)
    code = _ARRAY_CODES.get(field.number)

    def put(values: Values) -> None:
        container = getattr(current, attribute)
        if code and isinstance(container, array.array):
            with np.errstate(over="ignore"):
                cast = values.astype(code)
            if (np.isinf(cast) & np.isfinite(values)).any():
                raise OverflowError(f"{values[np.isinf(cast)][0]} does not fit into {field.number}")
            container[start:stop] = array.array(code, cast.tobytes())
        else:
            container[start:stop] = (
                type(container)(container.typecode, map(convert, values))
                if isinstance(container, array.array)
                else [convert(value) for value in values]
            )

    return put


def _grow(owner: Any, attribute: str, length: int) -> None:
    """Make a sequence at least this long; a fixed array is long enough already."""
    kind, _ = _element(owner.get_fields_and_field_types()[attribute])
    container = getattr(owner, attribute)
    missing = length - len(container)
    if missing > 0:
        make = message_type(kind) if "/" in kind else lambda: _converter(kind)(0.0)
        container.extend(make() for _ in range(missing))
        setattr(owner, attribute, container)


def _converter(number: str) -> Callable[[Any], Any]:
    if number == "boolean":
        return lambda value: bool(value > 0.5)
    if number in _INTEGERS:
        bits, unsigned = _INTEGERS[number]
        low = 0 if unsigned else -(1 << (bits - 1))
        high = (1 << bits if unsigned else 1 << (bits - 1)) - 1

        def whole(value: Any) -> int:
            if not np.isfinite(value):
                raise OverflowError(f"{value} does not fit into {number}")
            result: int = round(value.item() if isinstance(value, np.generic) else value)
            if not low <= result <= high:
                raise OverflowError(f"{result} does not fit into {number}")
            return result

        return whole
    if number == "float":
        return _single
    return float


def _single(value: Any) -> float:
    """A number that float32 holds; infinities and NaN are themselves."""
    result = float(value)
    if abs(result) > FLOAT32_MAX and not math.isinf(result):
        raise OverflowError(f"{result} does not fit into float32")
    return result


def may_overflow(number: str, dtype: np.dtype[Any]) -> bool:
    """Whether a field of that ROS type may be unable to hold a value of that dtype."""
    return number in _INTEGERS or (number == "float" and dtype.kind == "f" and dtype.itemsize > 4)


def _element(kind: str) -> tuple[str, int | None]:
    """A field's ROS type -> its element's type, and its length: None for no array, -1 for any length."""
    if match := _SEQUENCE.fullmatch(kind):
        return match[1], int(match[2]) if match[2] else -1
    if match := _FIXED.fullmatch(kind):
        return match[1], int(match[2])
    return kind, None


def _name(message: Any) -> str:
    return f"{message.__module__.split('.')[0]}/msg/{message.__name__}"
