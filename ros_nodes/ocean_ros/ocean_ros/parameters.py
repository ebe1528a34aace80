"""Every parameter of the node, once: its default, what it means, what it may be.

A ROS parameter of a node is a field of one of the three dataclasses below. They are declared with dynamic
typing and checked here, so that an integer does for a double, and so that a bad value in a YAML file makes
configure fail with a sentence instead of ending the process.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import (
    InvalidParameterTypeException,
    InvalidParameterValueException,
    ParameterAlreadyDeclaredException,
)
from rclpy.node import Node

NAME = re.compile(r"[A-Za-z]\w*")
"""Of an input or output."""
POLICIES = ("keep", "reset", "restore")


class ParameterError(ValueError):
    """A parameter that can't be used, in one sentence that names it."""


def parameter(
    default: Any,
    description: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    structural: bool = False,
) -> Any:
    """A dataclass field that is a ROS parameter; a structural one can't change while the node is active."""
    about = {"description": description, "low": low, "high": high, "choices": choices}
    if isinstance(default, list):
        return dataclasses.field(
            default_factory=lambda: list(default), metadata={**about, "structural": structural}
        )
    return dataclasses.field(default=default, metadata={**about, "structural": structural})


@dataclass(frozen=True)
class Settings:
    """The node's own parameters."""

    model_path: str = parameter("", "The .onnx file that ocean-export made; a change takes effect at ~/swap.")
    autostart: bool = parameter(False, "Configure and activate at start, without a lifecycle manager.")
    inputs: list[str] = parameter(
        ["input"], "Names of the inputs; NAME has the parameters input.NAME.*.", structural=True
    )
    outputs: list[str] = parameter(
        ["output"], "Names of the outputs; NAME has the parameters output.NAME.*.", structural=True
    )
    step_at: str = parameter(
        "message",
        "When to step: at each `message` of the trigger, or at a fixed `rate` from the latest of all inputs.",
        choices=("message", "rate"),
        structural=True,
    )
    trigger: str = parameter(
        "",
        "The input whose messages are stepped at, with step_at: message; the first if empty.",
        structural=True,
    )
    rate: float = parameter(
        0.0,
        "Steps a second: what step_at: rate does, and what diagnostics expect; 0 takes the model's own rate.",
        low=0.0,
        high=10000.0,
        structural=True,
    )
    on_deactivate: str = parameter(
        "keep",
        "The state when deactivated. keep: a pause is not a new life; reset: the next activation starts from "
        "nothing; restore: it starts from the last save.",
        choices=POLICIES,
    )
    gap_after: float = parameter(
        -1.0,
        "Seconds without input that count as a gap; 0 for never. A negative number takes the longest gap that the "
        "model was trained across, or 1 where it states none.",
        low=-1.0,
        high=1e6,
    )
    on_gap: str = parameter(
        "trained",
        "The state at the first input after a gap. trained: as in training, where a longer gap began a new "
        "episode: reset, or keep where the model states no longest gap.",
        choices=("trained", *POLICIES),
    )
    on_clock_jump: str = parameter(
        "reset",
        "The state when ROS time jumps backward (use_sim_time). reset: a bag that starts again, or a simulator "
        "that was reset, is another life, whose past has not happened.",
        choices=POLICIES,
    )
    on_failed_step: str = parameter(
        "keep",
        "The state when a step gives something that is not finite. keep: it is as before the step, and the next "
        "input may well do.",
        choices=POLICIES,
    )
    state_path: str = parameter(
        "", "The snapshot file: saved to, and restored from at activation; empty for none.", structural=True
    )
    save_period: float = parameter(
        10.0,
        "Seconds between saves; a crash loses at most what came since. 0 saves only on ~/save, when "
        "deactivated and at the end.",
        low=0.0,
        high=1e6,
        structural=True,
    )
    save_keep: int = parameter(
        3,
        "Saves to keep: the one before the last is FILE.1, and so on; a damaged one is passed over.",
        low=1,
        high=100,
        structural=True,
    )
    restore_max_age: float = parameter(
        0.0, "Seconds; at activation an older snapshot is left alone. 0 takes any age.", low=0.0, high=1e9
    )
    restore_unknown_age: str = parameter(
        "restore",
        "What activation does with a snapshot whose age can't be told (a board without a battery starts in "
        "1970). restore: a lost past can't be had back.",
        choices=("restore", "reset"),
    )
    ocean_every: int = parameter(
        10, "Publish ~/ocean at every Nth step; 0 for never.", low=0, high=1_000_000_000
    )
    reply_tokens: int = parameter(
        0, "Text: at most this many tokens are said after each message; 0 only reads.", low=0, high=1_000_000
    )
    reply_stop: str = parameter("", "Text: a reply ends after this string; empty for none.")
    temperature: float = parameter(
        1.0, "Text: of what is said; 0 for the most likely token.", low=0.0, high=100.0
    )
    top_k: int = parameter(
        0, "Text: draw among the K most likely tokens; 0 for all.", low=0, high=1_000_000_000
    )
    seed: int = parameter(0, "Text: of what is drawn.", low=0, high=(1 << 63) - 1)
    slice: float = parameter(
        0.01,
        "Text: seconds of reading or writing before other work gets its turn.",
        low=0.0001,
        high=10.0,
    )
    max_pending: int = parameter(
        100_000,
        "Text: tokens that may wait to be read; a message beyond that is dropped and counted.",
        low=1,
        high=100_000_000,
    )
    bad_seconds: int = parameter(
        3, "Diagnostics turn WARN or ERROR after this many bad seconds in a row.", low=1, high=3600
    )
    warn_rate: float = parameter(
        0.9, "WARN where the achieved rate is below this part of the wanted one.", low=0.0, high=1.0
    )
    error_rate: float = parameter(
        0.5, "ERROR where the achieved rate is below this part of the wanted one.", low=0.0, high=1.0
    )
    warn_norm: float = parameter(
        0.0, "WARN where the ocean state's norm is above this; 0 for never.", low=0.0, high=1e30
    )


@dataclass(frozen=True)
class Input:
    """`input.NAME.*`"""

    topic: str = parameter("~/input", "The topic to read.", structural=True)
    type: str = parameter(
        "",
        "Its message type, e.g. sensor_msgs/msg/Imu; empty: std_msgs/msg/String for a text model, "
        "std_msgs/msg/Float32MultiArray for others (Float64MultiArray where float32 is too coarse).",
        structural=True,
    )
    fields: list[str] = parameter(
        [],
        "Field paths such as angular_velocity.x, position[elbow], data[0:6], or ELEMENT=PATH where the model's "
        "element has another name; empty: the paths that the model's elements name.",
        structural=True,
    )
    max_age: float = parameter(
        -1.0,
        "Seconds; nothing is stepped or published from an older input. 0 takes any age. A negative number takes "
        "the age up to which inputs were held in training, or 0.5 where the model states none.",
        low=-1.0,
        high=1e6,
    )
    qos: str = parameter(
        "auto",
        "latest: best effort, the latest `depth` messages may wait; every: reliable, all messages wait; auto: "
        "every for text, latest for others.",
        choices=("auto", "latest", "every"),
        structural=True,
    )
    depth: int = parameter(
        10,
        "With qos latest: messages that may wait to be stepped; of more, the oldest are dropped and counted.",
        low=1,
        high=100_000,
        structural=True,
    )


@dataclass(frozen=True)
class Output:
    """`output.NAME.*`"""

    topic: str = parameter("~/output", "The topic to write.", structural=True)
    type: str = parameter(
        "",
        "Its message type; empty: std_msgs/msg/String for a text model, std_msgs/msg/Float32MultiArray for "
        "others.",
        structural=True,
    )
    fields: list[str] = parameter(
        [],
        "ELEMENT=PATH for each of the model's output elements to write, or paths alone: in the model's order.",
        structural=True,
    )
    frame_id: str = parameter(
        "",
        "The frame of a message with a header; empty: that of the input whose stamp it has.",
        structural=True,
    )


MAX_AGE, GAP = 0.5, 1.0
"""Seconds: `max_age` and `gap_after` for a model that states nothing about them."""


@dataclass(frozen=True)
class Trained:
    """What a model says about the ages and gaps of its training data, for parameters that take them from there."""

    max_age_s: float | None = None
    """How long an input was held, which is also the longest gap within an episode; None where it was not measured."""
    rate_hz: float | None = None
    holds: bool = False
    """Trained on a bag: each topic's latest message was held, and one older than `max_age_s` ended the episode."""

    def lapsed(self, age: float) -> bool:
        """Whether an input of that age, in seconds, would have ended an episode in training."""
        return self.holds and self.max_age_s is not None and age > self.max_age_s

    def max_age(self, given: float) -> float:
        """Seconds; 0 for any age."""
        return given if given >= 0 else self.max_age_s or MAX_AGE

    def gap_after(self, given: float) -> float:
        """Seconds; 0 for never. Two messages at the model's rate are never a gap, as in ocean-run."""
        if given >= 0:
            return given
        return max(self.max_age_s or GAP, 1.5 / self.rate_hz if self.rate_hz else 0.0)

    def on_gap(self, given: str) -> str:
        """keep, reset or restore."""
        if given != "trained":
            return given
        return "keep" if self.max_age_s is None else "reset"


Table = TypeVar("Table", Settings, Input, Output)


def declare(node: Node, table: type[Table], prefix: str = "") -> dict[str, str]:
    """Declare a dataclass's fields as parameters -> what is wrong with the values given, by name."""
    problems: dict[str, str] = {}
    for field in dataclasses.fields(table):
        name, default = prefix + field.name, default_of(field)
        default = [""] if default == [] else default  # ROS can't tell the type of an empty list
        about = descriptor(field)
        try:
            node.declare_parameter(name, default, about)
        except ParameterAlreadyDeclaredException:
            continue
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            problems[name] = f"parameter {name}: {error}"
            node.declare_parameter(name, default, about, ignore_override=True)
    return problems


def declare_named(node: Node, table: type[Table]) -> dict[str, str]:
    """Declare the parameters of each input or output that has a name, where they are new -> as `declare`."""
    kind, problems = table.__name__.lower(), dict[str, str]()
    names = node.get_parameter(f"{kind}s").value
    for name in names if isinstance(names, (list, tuple)) else ():
        if NAME.fullmatch(str(name)):
            problems |= declare(node, table, f"{kind}.{name}.")
    return problems


def read_named(
    node: Node, table: type[Table], names: Sequence[str], problems: dict[str, str]
) -> dict[str, Table]:
    """The inputs or outputs by name, with their parameters. Raises ParameterError.

    problems: what was wrong with values when they were declared; that of new ones is added.
    """
    kind = table.__name__.lower()
    problems |= declare_named(node, table)
    for name in names:
        if not NAME.fullmatch(name) or names.count(name) > 1:
            raise ParameterError(f"parameter {kind}s names {name!r}; use letters and digits, each name once")
        for parameter, reason in problems.items():
            if parameter.startswith(f"{kind}.{name}."):
                raise ParameterError(reason)
    return {name: read(node, table, f"{kind}.{name}.") for name in names}


def warn_unknown(node: Node, *, nested: bool) -> None:
    """A misspelt parameter is not an error to ROS; here it is at least a line in the log.

    nested: of those of inputs and outputs; otherwise of all the others.
    """
    for name in getattr(node, "_parameter_overrides", {}):
        if name.startswith(("input.", "output.")) != nested or name.startswith("qos_overrides."):
            continue
        if not node.has_parameter(name):
            known = [str(parameter) for parameter in node._parameters]
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            node.get_logger().warning(f"there is no parameter {name}: it has no effect{hint}")


def read(node: Node, table: type[Table], prefix: str = "") -> Table:
    """The parameters' present values. Raises ParameterError, which names the one that is wrong."""
    values = {}
    for field in dataclasses.fields(table):
        name = prefix + field.name
        values[field.name] = checked(name, field, node.get_parameter(name).value)
    return table(**values)


def checked(name: str, field: dataclasses.Field[Any], value: Any) -> Any:
    """A value as the code wants it: of the default's type, in range. Raises ParameterError."""
    default, about = default_of(field), field.metadata
    if isinstance(default, list):
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise ParameterError(f"parameter {name} is {value!r}; it must be a list of strings")
        return [item for item in value if item]
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not type(default):
        kind = {bool: "true or false", float: "a number", int: "an integer", str: "a string"}[type(default)]
        raise ParameterError(f"parameter {name} is {value!r}; it must be {kind}")
    if about["choices"] and value not in about["choices"]:
        raise ParameterError(f"parameter {name} is {value!r}; choose {' or '.join(about['choices'])}")
    if about["low"] is not None and not about["low"] <= value <= about["high"]:
        raise ParameterError(
            f"parameter {name} is {value}; it must be between {about['low']} and {about['high']}"
        )
    return value


def field_of(name: str) -> dataclasses.Field[Any] | None:
    """The table's field for a parameter's full name; None where it is none of ours."""
    table: Any = Settings
    if name.count(".") >= 2 and name.split(".")[0] in ("input", "output"):
        table, name = (Input if name.startswith("input.") else Output), name.rsplit(".", 1)[1]
    return next((field for field in dataclasses.fields(table) if field.name == name), None)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default value."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def descriptor(field: dataclasses.Field[Any]) -> ParameterDescriptor:
    """What `ros2 param describe` shows of a field."""
    about, default = field.metadata, default_of(field)
    constraints = f"one of {', '.join(about['choices'])}" if about["choices"] else ""
    result = ParameterDescriptor(
        description=about["description"], additional_constraints=constraints, dynamic_typing=True
    )
    if about["low"] is not None and isinstance(default, float):
        result.floating_point_range = [
            FloatingPointRange(from_value=float(about["low"]), to_value=float(about["high"]), step=0.0)
        ]
    elif about["low"] is not None:
        result.integer_range = [
            IntegerRange(from_value=int(about["low"]), to_value=int(about["high"]), step=0)
        ]
    return result
