"""Between messages and vectors, by field paths: `angular_velocity.x`, `position[elbow]`, `data[0:6]`.

A path is checked against the message type once, when the node is configured; reading and writing then only
follow it.

A name in brackets is looked up in each message: in the list of names beside the array, as in a JointState
(`position[elbow]`), or among the elements by their own name, as in a TFMessage, where it is the child frame
(`transforms[base_link].transform.translation.x`).
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
_PART = re.compile(r"([A-Za-z]\w*)(?:\[(?:(\d+)(?::(\d+))?|([^\[\]=]+))\])?")
_DOT = re.compile(r"\.(?![^\[]*\])")
"""A dot that separates parts; those in a name in brackets do not."""
_OWN_NAMES = ("child_frame_id", "name")
"""Fields that say which of several elements a message is."""
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


class MissingNameError(IndexError):
    """A message that holds nothing of the name that a path asks for."""


@dataclass(frozen=True)
class Part:
    """One attribute on the way."""

    attribute: str
    index: int | None = None
    name: str = ""
    """What is looked up instead of an index."""
    names_in: str = ""
    """The field of the same message with the names of the array's elements, where it has one."""
    own_name: str = ""
    """Where it has none: the field of each element that holds its name."""

    def place(self, message: Any) -> int:
        """Where in the array the wanted element is. Raises MissingNameError."""
        if self.index is not None:
            return self.index
        if self.names_in:
            names = getattr(message, self.names_in)
        else:
            names = [getattr(item, self.own_name) for item in getattr(message, self.attribute)]
        try:
            return int(names.index(self.name))
        except ValueError:
            known = ", ".join(names) or "no names"
            raise MissingNameError(f"{self.attribute}[{self.name}]: the message has {known}") from None


@dataclass(frozen=True)
class Field:
    """One path, and the model's element that it is for."""

    path: str
    name: str
    """The element's name; the path itself, or of a slice each index's path, where none was given."""
    parts: tuple[Part, ...]
    """The attributes to follow."""
    start: int | None
    stop: int | None
    """Of a slice at the end: [start:stop]."""
    number: str
    """The ROS type of what is there: float, double, int32, ..."""
    whole: bool = False
    """Of a slice: the array must end with it."""

    @property
    def optional(self) -> bool:
        """Whether messages without the name belong to somebody else, as on /tf, and are no mistake."""
        return any(part.own_name for part in self.parts)

    @property
    def by_index(self) -> Part | None:
        """The array that has names, of which this takes an element by its index."""
        return next((part for part in self.parts if part.names_in and not part.name), None)

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
    parts: list[Part] = []
    kind, start, stop = "", None, None
    current: Any = message
    steps = _DOT.split(path)
    for i, step in enumerate(steps):
        match = _PART.fullmatch(step)
        if match is None:
            raise FieldError(f"{path!r} is no field path; it looks like position[2] or angular_velocity.x")
        attribute, index, end, label = match.groups()
        known = current.get_fields_and_field_types()
        if attribute not in known:
            raise FieldError(f"{path!r}: {_name(current)} has no field {attribute!r}, but {', '.join(known)}")
        kind, length = _element(known[attribute])
        if (index is None and label is None) != (length is None):
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
        names_in, own_name = _names_of(current, attribute, kind) if length is not None else ("", "")
        if label is not None and not (names_in or own_name):
            raise FieldError(
                f"{path!r}: {attribute!r} of {_name(current)} has no names; give an index, such as [0]"
            )
        if end:
            start, stop = int(index), int(end)
        parts.append(
            Part(
                attribute,
                int(index) if index is not None and not end else None,
                label or "",
                names_in,
                own_name if label is not None else "",
            )
        )
        if i < len(steps) - 1:
            if "/" not in kind:
                raise FieldError(f"{path!r}: {attribute!r} of {_name(current)} is {kind}, without fields")
            current = message_type(kind)
    if kind not in _NUMBERS:
        raise FieldError(f"{path!r} of {_name(message)} is {kind}, not a number")
    return Field(path, name or path, tuple(parts), start, stop, kind)


def _names_of(message: Any, attribute: str, kind: str) -> tuple[str, str]:
    """The field beside an array that names its elements; or else the field of each element that does."""
    types = message.get_fields_and_field_types()
    lists = [name for name, found in types.items() if _element(found) == ("string", -1)]
    if len(lists) == 1 and lists[0] != attribute:
        return lists[0], ""
    own = message_type(kind).get_fields_and_field_types() if "/" in kind else {}
    return "", next((name for name in _OWN_NAMES if own.get(name) == "string"), "")


def reader(fields: Sequence[Field]) -> Callable[[Any], Values]:
    """message -> the fields' values, float64, in order.

    Raises IndexError where a sequence is too short or, for a whole one, too long, where a name is missing, and
    where an element is taken by its index and the order of the names is another than in the first message.
    """
    size = sum(field.size for field in fields)
    pieces: list[tuple[slice, Callable[[Any], Any]]] = []
    at = 0
    plain: list[str] = []

    def flush() -> None:
        if plain:
            pieces.append((slice(at - len(plain), at), operator.attrgetter(*plain)))
            plain.clear()

    for field in fields:
        if field.start is None and not any(part.index is not None or part.name for part in field.parts):
            plain.append(".".join(part.attribute for part in field.parts))
        else:
            flush()
            pieces.append((slice(at, at + field.size), _follow(field)))
        at += field.size
    flush()

    orders = [order for field in fields if (order := _order(field)) is not None]

    def read(message: Any) -> Values:
        for check in orders:
            check(message)
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
    for field in fields:  # an array is as long as the list of its names
        part = field.parts[0]
        if part.names_in and len(field.parts) == 1 and part.name:
            _grow(template, part.attribute, len(getattr(template, part.names_in)))

    def write(values: Values) -> None:
        for start, stop, put in setters:
            put(values[start:stop])

    return template, write


def _order(field: Field) -> Callable[[Any], None] | None:
    """What raises IndexError where an index would lead to the element of another name than at first."""
    part, first = field.by_index, list[list[str]]()
    if part is None or part is not field.parts[-1] or len(field.parts) > 1:
        return None
    names_in = part.names_in

    def check(message: Any) -> None:
        names = getattr(message, names_in)
        if not first and names:
            first.append(list(names))
        elif names and names != first[0]:
            raise IndexError(
                f"{field.path}: the message's order of names changed to {', '.join(names)}, and an index leads to "
                f"another element; write {part.attribute}[NAME]"
            )

    return check


def _follow(field: Field) -> Callable[[Any], Any]:
    """The getter of a path with an index, name or slice."""
    start, stop, size, whole = field.start, field.stop, field.size, field.whole

    def get(message: Any) -> Any:
        for part in field.parts:
            found = getattr(message, part.attribute)
            if part.name:
                index = part.place(message)
                if index >= len(found):
                    raise IndexError(f"{field.path}: {part.attribute} has {len(found)} elements")
                found = found[index]
            elif part.index is not None:
                found = found[part.index]
            message = found
        if start is None:
            return message
        piece = message[start:stop]
        if len(piece) != size or (whole and len(message) != size):
            expected = f"not {size}" if whole else f"{stop} at least are needed"
            raise IndexError(f"{field.path} has {len(message)} elements, {expected}")
        return piece

    return get


def _setter(template: Any, field: Field) -> Callable[[Values], None]:
    """What writes one field of the template. The objects on the way are found here, once."""
    convert = _converter(field.number)
    current = template
    *way, last = field.parts
    for part in way:
        index = _placed(current, part)
        if index is not None:
            _grow(current, part.attribute, index + 1)
        found = getattr(current, part.attribute)
        current = found if index is None else found[index]
    attribute, at = last.attribute, _placed(current, last)
    if field.start is None and at is None:
        return lambda values: setattr(current, attribute, convert(values[0]))
    start = at if field.start is None or at is not None else field.start
    assert start is not None
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


def _placed(owner: Any, part: Part) -> int | None:
    """The index of a part in the template; an element of a new name is added to it."""
    if not part.name:
        return part.index
    try:
        return part.place(owner)
    except MissingNameError:
        if part.names_in:
            names = getattr(owner, part.names_in)
            names.append(part.name)
            return len(names) - 1
        count = len(getattr(owner, part.attribute))
        _grow(owner, part.attribute, count + 1)
        setattr(getattr(owner, part.attribute)[count], part.own_name, part.name)
        return count


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
