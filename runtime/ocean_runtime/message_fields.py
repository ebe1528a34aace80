"""Fields of a recorded message: paths to single numbers, by attribute, index, or name.

A name in brackets is looked up in each message: in the list of names beside the array, as in a JointState
(`position[elbow]`), or among the elements by their own name, as in a TFMessage, where it is the child frame
(`transforms[base_link].transform.translation.x`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ocean_runtime.contract import Element
from ocean_runtime.errors import InputError
from ocean_runtime.named_columns import OWN_NAMES
from ocean_runtime.tables import element

LISTED_ITEMS = 32
"""Of an array in a message, how many elements `numeric_fields` lists."""
_STEP = re.compile(r"([A-Za-z_]\w*)|\[(\d+)\]|\[([^\[\]=]+)\]")
_STRINGS = "list[str]"


class Name(NamedTuple):
    """A step of a path that is looked up, instead of an index."""

    text: str


Step = str | int | Name


class MissingNameError(InputError):
    """A message that holds nothing of the name that a path asks for."""


@dataclass(frozen=True)
class Field:
    """One number in the messages of one topic."""

    element: Element
    """Its name is the whole text: topic, colon, path."""
    topic: str
    path: tuple[Step, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What is looked up; messages without it say nothing of this field."""
        return tuple(step.text for step in self.path if isinstance(step, Name))


def parse_field(text: str | Element) -> Field:
    """`/imu:angular_velocity.x [rad/s]` -> Field; raises InputError where it is written otherwise.

    Of an element, the path that its training data had by name, where there is one.
    """
    item = text if isinstance(text, Element) else element(text)
    topic, colon, path = (item.lookup or item.name).partition(":")
    steps: list[Step] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            break
        steps.append(match[1] or (Name(match[3]) if match[3] else int(match[2])))
        position = match.end()
        if path[position : position + 1] == "." and position + 1 < len(path):
            position += 1
    if not colon or not topic or not steps or position != len(path):
        raise InputError(
            f"{item.name!r} is no field of a bag; write topic:path, such as /imu:angular_velocity.x, "
            "/joint_states:position[elbow] or /joint_states:position[2]"
        )
    return Field(item, topic, tuple(steps))


def value(message: Any, field: Field) -> float:
    """The field's number in one message.

    Raises MissingNameError where the message holds nothing of the name, InputError where the path leads nowhere or
    to something that is not one number.
    """
    owner, found, attribute = message, message, ""
    for depth, step in enumerate(field.path):
        try:
            if isinstance(step, Name):
                found = found[_place(owner, attribute, found, step.text, field)]
            elif isinstance(step, int):
                found = found[step]
            else:
                owner, attribute, found = found, step, getattr(found, step)
        except IndexError:
            asked = f"element {step}" if isinstance(step, int) else f"{attribute} of {step[0]}"
            raise InputError(
                f"{field.element.name!r} asks for {asked}, but a message of {field.topic} has {len(found)}"
            ) from None
        except (AttributeError, TypeError):
            known = ", ".join(numeric_fields(message)) or "none"
            raise InputError(
                f"messages of {field.topic} have no {_written(field.path[: depth + 1])!r}; their numeric fields are "
                f"{known}"
            ) from None
    if isinstance(found, (bool, int, float, np.number, np.bool_)):
        return float(found)
    known = ", ".join(numeric_fields(message)) or "none"
    raise InputError(
        f"{field.element.name!r} is not a number but {type(found).__name__}; the numeric fields of "
        f"{field.topic} are {known}"
    )


def _place(owner: Any, attribute: str, found: Any, name: str, field: Field) -> int:
    """Where in an array the element of a name is."""
    names = names_of(owner, attribute, found)
    if names is None:
        raise InputError(
            f"{field.element.name!r}: {attribute!r} in messages of {field.topic} has no names; give an index, "
            f"such as {attribute}[0]"
        )
    try:
        return names.index(name)
    except ValueError:
        known = ", ".join(names) or "no names"
        raise MissingNameError(
            f"{field.element.name!r}: no message of {field.topic} has {name!r}; one has {known}"
        ) from None


def names_of(owner: Any, attribute: str, array: Any) -> list[str] | None:
    """The names of an array's elements in a message, where it has any: from the list beside it, or their own."""
    if not is_dataclass(owner) or not isinstance(array, (list, np.ndarray)):
        return None
    lists = [f.name for f in fields(owner) if f.type == _STRINGS]
    if len(lists) == 1 and lists[0] != attribute:
        return list(getattr(owner, lists[0]))
    if isinstance(array, list) and array and is_dataclass(array[0]):
        own = next((n for n in OWN_NAMES if isinstance(getattr(array[0], n, None), str)), None)
        return None if own is None else [getattr(item, own) for item in array]
    return None if isinstance(array, np.ndarray) or array else []


def by_name(message: Any, field: Field) -> Field:
    """The same field, to be looked up by names in place of indices as far as this message has them.

    Raises as `value`, but for a name that is missing.
    """
    owner, found, attribute = message, message, ""
    steps: list[Step] = []
    for step in field.path:
        names = names_of(owner, attribute, found) if isinstance(step, int) else None
        if isinstance(step, int) and names and step < len(names) and _is_unique(names[step], names):
            steps.append(Name(names[step]))
        else:
            steps.append(step)
        if isinstance(step, Name):
            return field  # what follows it is not looked at
        try:
            if isinstance(step, int):
                found = found[step]
            else:
                owner, attribute, found = found, step, getattr(found, step)
        except (AttributeError, TypeError, IndexError):
            value(message, field)  # says what is wrong
            raise
    written = f"{field.topic}:{_written(steps)}"
    looked_up = written if tuple(steps) != field.path else ""
    return Field(replace(field.element, lookup=looked_up), field.topic, tuple(steps))


def _is_unique(name: str, names: list[str]) -> bool:
    return bool(name) and not re.search(r"[\[\]=]|^\d+(:\d+)?$", name) and names.count(name) == 1


def order_of(message: Any, field: Field) -> tuple[str, ...]:
    """The names of an array from which a field takes an element by its index; empty where there are none."""
    owner, found, attribute = message, message, ""
    for step in field.path:
        if isinstance(step, int):
            return tuple(names_of(owner, attribute, found) or ())
        if isinstance(step, Name):
            return ()
        owner, attribute, found = found, step, getattr(found, step)
    return ()


def check_order(message: Any, field: Field, first: dict[str, tuple[str, ...]]) -> None:
    """Raises InputError where an index leads to the element of another name than in the first message.

    first: per topic and path to the array, its names; filled here.
    """
    names = order_of(message, field)
    if not names:
        return
    array = field.element.name.partition("[")[0]
    before = first.setdefault(array, names)
    if names != before:
        inside = array.rpartition(":")[2]
        raise InputError(
            f"{field.element.name!r} takes an element by its index, and the order of the names changes from "
            f"{', '.join(before)} to {', '.join(names)}; write {inside}[NAME], such as {inside}[{before[0]}]"
        )


def _written(path: Iterable[Step]) -> str:
    """A path as text."""
    parts = (f".{s}" if isinstance(s, str) else f"[{s.text if isinstance(s, Name) else s}]" for s in path)
    return "".join(parts).lstrip(".")


def numeric_fields(message: Any, prefix: str = "", *, named: bool = False) -> list[str]:
    """All paths to single numbers in a message; of an array, the first 32 elements, by index.

    named: by name where an array has names.
    """
    if isinstance(message, (bool, int, float, np.number, np.bool_)):
        return [prefix]
    if not is_dataclass(message):
        return []
    found = []
    dot = f"{prefix}." if prefix else ""
    for item in fields(message):
        if item.name.startswith("__"):
            continue
        inner = getattr(message, item.name)
        if isinstance(inner, (list, np.ndarray)):
            names = (named and names_of(message, item.name, inner)) or []
            for i, element_of in enumerate(inner[:LISTED_ITEMS]):
                known = i < len(names) and _is_unique(names[i], names)
                found += numeric_fields(
                    element_of, f"{dot}{item.name}[{names[i] if known else i}]", named=named
                )
        else:
            found += numeric_fields(inner, dot + item.name, named=named)
    return found
