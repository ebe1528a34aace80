"""Which message fields are which of the model's elements: settled, and checked, when the node is configured."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ocean_runtime import Contract
from ocean_runtime.contract import DTYPES, Element, Tensor, show_shape

from ocean_ros import fields
from ocean_ros.memory import gives_classes
from ocean_ros.parameters import Input, Output, ParameterError, Settings, Trained

TEXT = "std_msgs/msg/String"
NUMBERS = "std_msgs/msg/Float32MultiArray"
DOUBLES = "std_msgs/msg/Float64MultiArray"
"""For elements with a reference, whose numbers are too large for float32."""

Values = fields.Values


@dataclass(frozen=True)
class InputWire:
    """One subscribed topic."""

    name: str
    topic: str
    type: str
    message: Any
    """The message class."""
    every: bool
    """Reliable and keep all; otherwise best effort and the latest `depth`."""
    depth: int
    positions: Values
    """Where in the model's input vector the fields' values belong."""
    read: Callable[[Any], Values]
    """A message's values; raises IndexError where it lacks some."""
    named: bool
    """Whether something is looked up by name."""
    optional: bool
    """Whether messages that lack a name are passed over: on /tf they are other frames'."""
    stamped: bool


@dataclass(frozen=True)
class OutputWire:
    """One published topic."""

    name: str
    topic: str
    message: Any
    template: Any
    """The message that is published again and again."""
    positions: Values
    """Which of the model's output elements the fields are."""
    write: Callable[[Values], None]
    """Fills the template; raises OverflowError where a field can't hold its value."""
    fallible: bool
    """Whether it may raise."""
    stamped: bool
    frame_of_input: bool
    """Whether the frame is that of the input whose stamp the message has."""


@dataclass(frozen=True)
class Wiring:
    """How the model is connected."""

    text: bool
    inputs: tuple[InputWire, ...]
    outputs: tuple[OutputWire, ...]
    trigger: InputWire | None
    """The input that is stepped at; None at a fixed rate."""
    rate: float
    """Steps a second that are wanted; 0 where nobody said."""
    size: int
    """Elements of the model's input vector, M; 0 for text."""
    notes: tuple[str, ...]
    """What a user should know about it, a sentence each."""
    trained: Trained


def wire(
    contract: Contract, settings: Settings, inputs: Mapping[str, Input], outputs: Mapping[str, Output]
) -> Wiring:
    """Connect a model to topics. Raises ParameterError, naming the parameter, where they don't fit."""
    text, notes = contract.kind == "tokens", list[str]()
    if not inputs:
        raise ParameterError("parameter inputs is empty; the model needs at least one")
    trigger, rate = _stepping(contract, settings, list(inputs), text)
    if text:
        size, taken = 0, [_text_input(name, given) for name, given in inputs.items()]
        made = [_text_output(name, given) for name, given in outputs.items()]
    else:
        size, taken = _inputs(contract, inputs, notes)
        made = [_output(contract, name, given, notes) for name, given in outputs.items()]
    return Wiring(
        text=text,
        inputs=tuple(taken),
        outputs=tuple(made),
        trigger=next((wire for wire in taken if wire.name == trigger), None),
        rate=rate,
        size=size,
        notes=tuple(notes),
        trained=Trained(contract.max_age_s, contract.rate_hz, holds=not contract.time),
    )


def check_topics(wiring: Wiring, own: Sequence[str], full: Callable[[str, str], str]) -> None:
    """No topic has two types or two publishers in a node, and it never hears itself. Raises ParameterError.

    own: what the node publishes beside the outputs. full: a parameter's name and its topic -> the full name.
    """
    heard: dict[str, InputWire] = {}
    written = {full(topic, topic): "the node" for topic in own}
    for item in wiring.inputs:
        name = f"input.{item.name}.topic"
        topic = full(name, item.topic)
        if topic in written:
            raise ParameterError(
                f"parameter {name} is {item.topic}, which the node publishes: it would hear itself"
            )
        other = heard.setdefault(topic, item)
        if other.message is not item.message:
            raise ParameterError(
                f"parameter {name} is {item.topic}, and so is input.{other.name}.topic, but their types are "
                f"{item.type} and {other.type}; a topic has one type"
            )
    for made in wiring.outputs:
        name = f"output.{made.name}.topic"
        topic = full(name, made.topic)
        if topic in heard:
            raise ParameterError(f"parameter {name} is {made.topic}, an input: the node would hear itself")
        if topic in written:
            raise ParameterError(
                f"parameter {name} is {made.topic}, which {written[topic]} publishes, too; choose another"
            )
        written[topic] = f"output.{made.name}"


def _stepping(contract: Contract, settings: Settings, names: list[str], text: bool) -> tuple[str, float]:
    rate = settings.rate or contract.rate_hz or 0.0
    if settings.step_at == "rate":
        if text:
            raise ParameterError(
                "parameter step_at is rate, but the model reads text: it steps at each message"
            )
        if not rate:
            raise ParameterError("parameter rate is 0 and the model states none; step_at: rate needs one")
        return "", rate
    trigger = settings.trigger or names[0]
    if trigger not in names:
        raise ParameterError(
            f"parameter trigger is {trigger!r}, which is none of the inputs {', '.join(names)}"
        )
    return trigger, rate


def _text_input(name: str, given: Input) -> InputWire:
    if (given.type or TEXT) not in (TEXT, "std_msgs/String"):
        raise ParameterError(
            f"parameter input.{name}.type is {given.type}, but the model reads text: it takes {TEXT}"
        )
    message = _message(f"input.{name}.type", TEXT)
    none = np.zeros(0, int)
    return InputWire(
        name,
        given.topic,
        TEXT,
        message,
        given.qos != "latest",
        given.depth,
        none,
        lambda _: np.zeros(0),
        False,
        False,
        False,
    )


def _text_output(name: str, given: Output) -> OutputWire:
    if (given.type or TEXT) not in (TEXT, "std_msgs/String"):
        raise ParameterError(
            f"parameter output.{name}.type is {given.type}, but the model writes text: it gives {TEXT}"
        )
    message = _message(f"output.{name}.type", TEXT)
    return OutputWire(
        name, given.topic, message, message(), np.zeros(0, int), lambda _: None, False, False, False
    )


def _inputs(contract: Contract, inputs: Mapping[str, Input], notes: list[str]) -> tuple[int, list[InputWire]]:
    tensor = _vector(contract)
    size = int(tensor.shape[-1])
    filled: dict[int, str] = {}
    wires = []
    for name, given in inputs.items():
        where = f"input.{name}"
        kind = given.type or numbers(tensor)
        message = _message(f"{where}.type", kind)
        texts = given.fields or _own_paths(tensor, given.topic, kind, where)
        parsed = _parsed(f"{where}.fields", texts, message)
        if not given.fields and "=" not in texts[0]:  # all of the message's numbers: not a part of more
            parsed = [replace(field, whole=True) for field in parsed]
        names = [element for field in parsed for element in field.names]
        if tensor.elements and (given.fields or "=" in texts[0]):
            positions = [_position(f"{where}.fields", tensor, n, given.topic) for n in names]
        else:
            positions = list(range(len(filled), len(filled) + len(names)))
        parsed = _looked_up(
            parsed, [tensor.elements[p : p + 1] for p in positions], message, f"{where}.fields"
        )
        notes += [
            f"parameter {where}.fields: {field.path} takes an element by its index, so the order of the names must "
            f"be that of training; {field.by_index.attribute}[NAME] finds it in any order"
            for field in parsed
            if field.by_index is not None
        ]
        for position, element in zip(positions, names, strict=True):
            if position in filled:
                raise ParameterError(
                    f"parameter {where}.fields gives {element!r}, which {filled[position]} gives already"
                )
            filled[position] = f"{where}.fields"
        wires.append(
            InputWire(
                name,
                given.topic,
                kind,
                message,
                given.qos == "every",
                given.depth,
                np.array(positions, int),
                fields.reader(parsed),
                any(part.name for field in parsed for part in field.parts),
                any(field.optional for field in parsed),
                _stamped(message),
            )
        )
    if set(filled) != set(range(size)):
        missing = [_element_name(tensor.elements, i) for i in range(size) if i not in filled]
        problem = f"none of them gives {', '.join(missing)}" if missing else f"they give {len(filled)}"
        last = f"input.{wires[-1].name}.fields"
        raise ParameterError(f"parameter {last}: the model takes {size} elements, and {problem}")
    return size, wires


def _looked_up(
    parsed: list[fields.Field], elements: Sequence[tuple[Element, ...]], message: Any, where: str
) -> list[fields.Field]:
    """What an index takes, by the name that it had in the training data.

    elements: one for each value, in the fields' order; empty where the model names none.
    """
    found: list[fields.Field] = []
    at = 0
    for field in parsed:
        of_field = [item for one in elements[at : at + field.size] for item in one]
        at += field.size
        own = [e.name.rpartition(":")[2] for e in of_field]
        same = own == fields.parse(field.path, message).names
        if field.by_index is None or not same or not all(e.lookup for e in of_field):
            found.append(field)
        else:
            found += _parsed(where, [f"{e.name}={e.lookup.rpartition(':')[2]}" for e in of_field], message)
    return found


def _output(contract: Contract, name: str, given: Output, notes: list[str]) -> OutputWire:
    where, tensor = f"output.{name}", contract.outputs[0]
    kind = given.type or numbers(tensor)
    size = tensor.vector_size if tensor.shape else 1
    if size is None:
        raise ParameterError(
            f"parameter outputs: the model's {tensor.name!r} {show_shape(tensor.shape)} is no vector"
        )
    message = _message(f"{where}.type", kind)
    whole = kind in (NUMBERS, DOUBLES) and not given.fields
    parsed = _parsed(f"{where}.fields", given.fields or ([f"data[0:{size}]"] if whole else []), message)
    if not parsed:
        raise ParameterError(f"parameter {where}.fields is empty; say which fields of {kind} to write")
    names = [element for field in parsed for element in field.names]
    named = any("=" in text for text in given.fields) or (
        not whole and bool(tensor.elements) and len(names) != size
    )
    if named:
        positions = [_position(f"{where}.fields", tensor, element, given.topic) for element in names]
    elif len(names) == size:
        positions = list(range(size))
    else:
        raise ParameterError(
            f"parameter {where}.fields names {len(names)} fields, but the model gives {size} elements"
        )
    template, write = fields.writer(message, parsed)
    if whole:
        classes = json.dumps([element.name for element in tensor.elements], ensure_ascii=False)
        label(template, f"probabilities {classes}" if gives_classes(contract) else tensor.name, size)
    elif not _name_indices(template, parsed, [_joint_of(tensor.elements, i) for i in positions]):
        notes.append(
            f"parameter {where}.fields: {kind} is published without names, since the model's elements have none; "
            f"write {parsed[0].parts[0].attribute}[NAME]"
        )
    stamped = _stamped(message)
    if stamped:
        template.header.frame_id = given.frame_id
    elif given.frame_id:
        raise ParameterError(f"parameter {where}.frame_id is {given.frame_id}, but {kind} has no header")
    return OutputWire(
        name,
        given.topic,
        message,
        template,
        np.array(positions, int),
        write,
        any(fields.may_overflow(field.number, _dtype(tensor)) for field in parsed),
        stamped,
        given.frame_id == "",
    )


def _name_indices(template: Any, parsed: Sequence[fields.Field], elements: Sequence[str]) -> bool:
    """Fill the names of elements that are written by their index, from the model's -> False where it has none.

    `/joints:position[elbow]`, `position[elbow]` and `elbow` all name the joint elbow.
    """
    found: dict[int, str] = {}
    names_in, at = "", 0
    for field in parsed:
        part = field.parts[0]
        if len(field.parts) == 1 and part.names_in and not part.name:
            names_in = part.names_in
            start = part.index if field.start is None else field.start
            for i in range(field.size):
                name = elements[at + i].rpartition(":")[2]
                inner = re.fullmatch(r"\w+\[(.+)\]", name)
                name = inner[1] if inner else name
                if not re.fullmatch(r"\d+|element \d+", name) and "." not in name:
                    found[(start or 0) + i] = name
        at += field.size
    if not names_in or getattr(template, names_in):
        return True
    if set(found) != set(range(len(found))) or not found:
        return False
    setattr(template, names_in, [found[i] for i in range(len(found))])
    return True


def _dtype(tensor: Tensor) -> np.dtype[Any]:
    """Of an output's values as the stream gives them."""
    return np.dtype(DTYPES[tensor.dtype] if tensor.reference is None else np.float64)


def numbers(tensor: Tensor) -> str:
    """The message type of a vector where no parameter names one."""
    return NUMBERS if tensor.reference is None else DOUBLES


def label(message: Any, name: str, size: int) -> None:
    """Give a MultiArray message its layout: one dimension, named."""
    dimension = _message("", "std_msgs/msg/MultiArrayDimension")
    message.layout.dim = [dimension(label=name, size=size, stride=size)]


def _vector(contract: Contract) -> Tensor:
    """The one input vector of a model that is no text model."""
    given = [t for t in contract.inputs if t.constant is None]
    if len(given) != 1:
        names = ", ".join(t.name for t in given)
        raise ParameterError(
            f"parameter model_path: the model takes {len(given)} inputs, {names}; the node can give one, so "
            "export the others as constants"
        )
    tensor = given[0]
    if tensor.vector_size is None:
        raise ParameterError(
            f"parameter model_path: the model's input {tensor.name!r} {show_shape(tensor.shape)} is no vector of "
            "numbers, which has one axis beside the batch and axes of 1"
        )
    return tensor


def _own_paths(tensor: Tensor, topic: str, kind: str, where: str) -> list[str]:
    """The fields that the model's own elements name for this topic, where the parameter names none."""
    names = [element.name for element in tensor.elements]
    here = [name for name in names if name.startswith(f"{topic}:")]
    if not here and kind in (NUMBERS, DOUBLES):
        return [f"data[0:{tensor.shape[-1]}]"]
    paths = here or [name for name in names if ":" not in name]
    if not paths:
        raise ParameterError(f"parameter {where}.fields is empty; say which fields of {kind} the model reads")
    lookups = {element.name: element.lookup for element in tensor.elements}
    return [f"{name}={(lookups[name] or name).rpartition(':')[2]}" for name in paths]


def _position(where: str, tensor: Tensor, name: str, topic: str) -> int:
    """The element that a field is for: by its name, its topic and path, or its path where that is unique."""
    names = [element.name for element in tensor.elements]
    for candidate in (name, f"{topic}:{name}"):
        if candidate in names:
            return names.index(candidate)
    same = [i for i, known in enumerate(names) if known.rpartition(":")[2] == name]
    if len(same) == 1:
        return same[0]
    if same:
        raise ParameterError(
            f"parameter {where} names {name!r}, which may be {' or '.join(names[i] for i in same)}: write "
            "ELEMENT=PATH"
        )
    known = ", ".join(names) if names else "without names: give all, in its order"
    raise ParameterError(f"parameter {where} names {name!r}, but the model's elements are {known}")


def _parsed(where: str, texts: Sequence[str], message: Any) -> list[fields.Field]:
    try:
        return [fields.parse(text, message) for text in texts]
    except fields.FieldError as error:
        raise ParameterError(f"parameter {where}: {error}") from None


def _message(where: str, name: str) -> Any:
    try:
        return fields.message_type(name)
    except fields.FieldError as error:
        raise ParameterError(f"parameter {where}: {error}") from None


def _stamped(message: Any) -> bool:
    return bool(message.get_fields_and_field_types().get("header") == "std_msgs/Header")


def _joint_of(elements: tuple[Element, ...], index: int) -> str:
    """An element's path by name, where it has one."""
    return (elements[index].lookup if elements else "") or _element_name(elements, index)


def _element_name(elements: tuple[Element, ...], index: int) -> str:
    return elements[index].name if elements else f"element {index}"
