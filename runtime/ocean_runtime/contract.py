"""The contract: what a model file says about itself, as JSON in the ONNX file's metadata.

Export writes it, the runtime reads it, and it is enough by itself to run the model. The key in the
file's metadata is `ocean_state`. A contract newer than this runtime, incomplete, or at odds with the
graph it travels with is refused with one sentence (ContractError).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ocean_runtime.errors import ContractError
from ocean_runtime.tokenizer import Tokenizer

METADATA_KEY = "ocean_state"
VERSION = 1
KINDS = ("tokens", "features", "raw")
DTYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "float64": np.float64,
    "int64": np.int64,
    "int32": np.int32,
    "uint8": np.uint8,
    "bool": np.bool_,
}
FLOATS = ("float32", "float16", "float64")
MAX_JSON_BYTES = 8 << 20
MAX_DEPTH = 100
"""Lists and objects within each other in JSON that is read."""
MAX_TENSORS = 1_000
"""Inputs, outputs and states of a step."""
MAX_RANK = 8
MAX_ELEMENTS = 1 << 25
"""Numbers in all inputs, outputs and states of a step of one stream."""
BATCH = "B"
"""How a shape names its batch axis."""


@dataclass(frozen=True)
class Element:
    """One number of an input or output vector, e.g. `angular_velocity.x` in `rad/s`."""

    name: str
    unit: str = ""
    low: float | None = None
    """The least value in the training data, where known: one below it is taken, counted and warned of."""
    high: float | None = None
    """The largest value in the training data."""
    reference: float = 0.0
    """What the runtime subtracts from the caller's number, in float64, before the graph sees it (adds, for an
    output): float32 has no room for the changes of a UTM coordinate or a Unix time."""
    lookup: str = ""
    """Where `name` takes an element of an array by its index, and the training data named the array's elements: the
    same by name, such as `/joint_states:position[elbow]`, which is what readers look up."""


@dataclass(frozen=True)
class Tensor:
    """An input or output of the graph that the caller gives or gets (states apart)."""

    name: str
    dtype: str
    """A NumPy dtype's name: float32, int64, ..."""
    shape: tuple[int | str, ...]
    """Sizes; `B` stands for the batch axis, of which there is one, or none."""
    meaning: str = ""
    elements: tuple[Element, ...] = ()
    """Names and units along the last axis, where they have any."""
    predicts: str = ""
    """For an output: the name of the input whose next value it predicts."""
    constant: float | int | bool | None = None
    """For an input: the value that it always has, so that the caller need not give it."""

    @property
    def batch_axis(self) -> int | None:
        """The axis of independent streams, or None."""
        return self.shape.index(BATCH) if BATCH in self.shape else None

    @property
    def vector_size(self) -> int | None:
        """M, where a single stream's tensor is a vector of M numbers but for leading axes of 1, as in [1, M].

        None where it has no axis or several."""
        last = self.shape[-1] if self.shape else None
        return last if isinstance(last, int) and all(axis in (1, BATCH) for axis in self.shape[:-1]) else None

    @property
    def reference(self) -> NDArray[np.float64] | None:
        """The elements' references along the last axis, (M,); None where all are zero."""
        references = np.array([e.reference for e in self.elements], np.float64)
        return references if references.any() else None


@dataclass(frozen=True)
class State:
    """One state pair: the graph reads `input` and gives what replaces it as `output`."""

    input: str
    output: str
    dtype: str
    shape: tuple[int | str, ...]
    initial: float | tuple[float, ...] = 0.0
    """Before the first step: the value of every element, or that of each for one stream, in C order."""

    @property
    def batch_axis(self) -> int | None:
        """The axis of independent streams, or None."""
        return self.shape.index(BATCH) if BATCH in self.shape else None

    def first(self, batch: int) -> NDArray[Any]:
        """The state before the first step of `batch` streams, in the shape and dtype that the graph takes."""
        if not isinstance(self.initial, tuple):
            return np.full(sized(self.shape, batch), self.initial, DTYPES[self.dtype])
        one: NDArray[Any] = np.array(self.initial, DTYPES[self.dtype]).reshape(sized(self.shape, 1))
        return one.copy() if self.batch_axis is None else np.repeat(one, batch, self.batch_axis)


@dataclass(frozen=True)
class Contract:
    """All that a model file says about itself."""

    kind: str
    """`tokens` (one token id a step), `features` (one observation a step) or `raw` (a foreign graph)."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    states: tuple[State, ...]
    state_id: str
    """Whose state fits: a digest of weights, configuration and normalisation, the same at any precision."""
    tokenizer: Tokenizer | None = None
    normalisation: Mapping[str, Any] | None = None
    rate_hz: float | None = None
    """Steps a second in the training data, where it has a rate."""
    max_age_s: float | None = None
    """How long the last value of each source was held in the training data before the episode ended."""
    max_time_constant: float | None = None
    """The longest time constant of the state's leaky integration, in steps; 1 where each step replaces it whole."""
    time: str = ""
    """The column of the clock in the training data, with its unit, where gaps in it ended episodes: `stamp [s]`."""
    episode: str = ""
    """The column that said whose a row was in the training data: where it changed, an episode began."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    precision: str = "fp32"
    opset: int = 0
    ir_version: int = 0
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Checkpoint digest, data name and digest, seed, versions, validation loss, git commit."""
    parity: Mapping[str, Any] = field(default_factory=dict)
    """What verification measured against the trained model at export."""
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ContractError(f"the contract's kind is {self.kind!r}, but this runtime knows {_or(KINDS)}")
        if not self.states:
            raise ContractError("the contract names no state pair, so there is no memory to carry")
        if not self.inputs or not self.outputs:
            raise ContractError("the contract needs at least one input and one output besides the state")
        if self.kind == "tokens" and self.tokenizer is None:
            raise ContractError("the contract's kind is tokens, but it holds no tokenizer")
        names = [t.name for t in self.inputs] + [s.input for s in self.states]
        names_out = [t.name for t in self.outputs] + [s.output for s in self.states]
        if len(names) + len(names_out) > MAX_TENSORS:
            raise ContractError(f"the contract names more than {MAX_TENSORS:,} inputs, outputs and states")
        for name in (*_twice(names), *_twice(names_out)):
            raise ContractError(f"the contract names {name!r} twice")
        elements = [e.name for t in self.inputs + self.outputs for e in t.elements]
        for name in (self.state_id, self.precision, self.time, self.episode, *names, *names_out, *elements):
            if not name.isprintable():
                raise ContractError(f"the contract has a name that can't be printed, {name!r}")
        for tensor in self.inputs + self.outputs:
            _check_tensor(tensor.name, tensor.dtype, tensor.shape)
            if tensor.elements and (not tensor.shape or len(tensor.elements) != tensor.shape[-1]):
                raise ContractError(
                    f"the contract gives {len(tensor.elements)} element names for {tensor.name!r} of shape "
                    f"{show_shape(tensor.shape)}"
                )
            _check_value(tensor.name, tensor.dtype, tensor.constant)
            numbers = [n for e in tensor.elements for n in (e.reference, e.low, e.high) if n is not None]
            if not all(map(_is_finite, numbers)):
                raise ContractError(
                    f"the contract gives {tensor.name!r} a reference or a range that is not finite"
                )
        for name, given in (
            ("rate_hz", self.rate_hz),
            ("max_age_s", self.max_age_s),
            ("max_time_constant", self.max_time_constant),
        ):
            if given is not None and not (_is_finite(given) and given > 0):
                raise ContractError(f"the contract's {name} must be positive and finite")
        for state in self.states:
            _check_tensor(state.input, state.dtype, state.shape)
            if isinstance(state.initial, tuple) and len(state.initial) != math.prod(sized(state.shape, 1)):
                raise ContractError(
                    f"the contract gives {state.input!r} {len(state.initial):,} initial numbers for the shape "
                    f"{show_shape(state.shape)}"
                )
            _check_value(state.input, state.dtype, state.initial)
        shapes = [t.shape for t in self.inputs + self.outputs] + [s.shape for s in self.states]
        if sum(math.prod(sized(shape, 1)) for shape in shapes) > MAX_ELEMENTS:
            raise ContractError(f"the contract's tensors have more than {MAX_ELEMENTS:,} elements together")
        for tensor in self.outputs:
            size = self.tokenizer.size if self.kind == "tokens" and self.tokenizer is not None else 0
            if size and tensor.predicts and (tensor.shape[-1:] != (size,) or tensor.dtype not in FLOATS):
                raise ContractError(
                    f"the contract says that {tensor.name!r}, {tensor.dtype} {show_shape(tensor.shape)}, predicts one "
                    f"of {size} tokens; export the model again"
                )
            if tensor.predicts and tensor.predicts not in names:
                raise ContractError(
                    f"the contract says that {tensor.name!r} predicts {tensor.predicts!r}, which is no input"
                )

    def to_json(self) -> str:
        """The JSON text that `from_json` reads back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("inputs", "outputs", "states"):
            values[name] = [dataclasses.asdict(item) for item in values[name]]
        values["tokenizer"] = self.tokenizer.to_dict() if self.tokenizer else None
        return json.dumps(values, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Contract:
        """Raises ContractError where the text is no contract that this runtime can honour."""
        if len(text) > MAX_JSON_BYTES:
            raise ContractError(
                f"the contract is {len(text):,} characters long; at most {MAX_JSON_BYTES:,} are read"
            )
        try:
            values = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"the contract is not valid JSON ({error}); export the model again") from None
        if not isinstance(values, dict):
            raise ContractError("the contract is not a JSON object; export the model again")
        if too_deep(values):
            raise ContractError(
                f"the contract has more than {MAX_DEPTH} lists and objects within each other; export the model again"
            )
        version = values.get("version")
        if not isinstance(version, int) or version < 1:
            raise ContractError("the contract has no version number; export the model again")
        if version > VERSION:
            raise ContractError(
                f"the contract has version {version} and this runtime reads up to {VERSION}; "
                "upgrade it: pip install -U oceanstate"
            )
        try:
            if values.get("tokenizer") is not None:
                values["tokenizer"] = Tokenizer.from_dict(_typed(values["tokenizer"], dict, "tokenizer"))
            for name, kind in (("inputs", Tensor), ("outputs", Tensor), ("states", State)):
                items = _typed(values.get(name), list, name)
                values[name] = tuple(_read(kind, _typed(item, dict, name), f"{name}: ") for item in items)
            return _read(cls, values, "")
        except ContractError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise ContractError(f"the contract can't be read ({error}); export the model again") from None


def digest(weights: Mapping[str, NDArray[Any]], *described: Any) -> str:
    """A `state_id`: SHA-256 over named weights, in name order, and JSON values such as the configuration.

    The same numbers give the same digest whatever file, precision or graph they are exported to.
    """
    sha = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        sha.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        sha.update(array.tobytes())
    sha.update(json.dumps(described, sort_keys=True).encode())
    return f"sha256:{sha.hexdigest()}"


def too_deep(value: Any) -> bool:
    """Whether lists and dicts stand within each other more than MAX_DEPTH deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return bool(level)


def show_shape(shape: Iterable[int | str | None]) -> str:
    """A shape as a person would write it: [B, 64]."""
    return "[" + ", ".join("?" if axis is None else str(axis) for axis in shape) + "]"


def sized(shape: tuple[int | str, ...], batch: int) -> tuple[int, ...]:
    """A contract's shape with its batch axis filled in."""
    return tuple(batch if axis == BATCH else int(axis) for axis in shape)


T = TypeVar("T")

_EXPECTED: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "name": (str,),
    "dtype": (str,),
    "meaning": (str,),
    "predicts": (str,),
    "input": (str,),
    "output": (str,),
    "state_id": (str,),
    "precision": (str,),
    "opset": (int,),
    "ir_version": (int,),
    "version": (int,),
    "initial": (int, float, list),
    "constant": (int, float, type(None)),
    "rate_hz": (int, float, type(None)),
    "max_age_s": (int, float, type(None)),
    "max_time_constant": (int, float, type(None)),
    "time": (str,),
    "episode": (str,),
    "reference": (int, float),
    "unit": (str,),
    "lookup": (str,),
    "low": (int, float, type(None)),
    "high": (int, float, type(None)),
    "normalisation": (dict, type(None)),
    "sizes": (dict,),
    "provenance": (dict,),
    "parity": (dict,),
}


def _read(cls: type[T], values: dict[str, Any], where: str) -> T:
    """Build a dataclass from JSON values; unknown keys are left out, wrong types and missing keys refused."""
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    required = {n for n, f in known.items() if f.default is f.default_factory is dataclasses.MISSING}
    for name in sorted(required - values.keys()):
        raise ContractError(f"the contract lacks {where}{name}; export the model again")
    taken = {name: value for name, value in values.items() if name in known}
    for name, value in taken.items():
        expected = _EXPECTED.get(name)
        if expected is not None and not isinstance(value, expected):
            raise ContractError(
                f"the contract's {where}{name} is {type(value).__name__}, not {expected[0].__name__}"
            )
        if name == "initial" and isinstance(value, list):
            if not all(isinstance(number, int | float) for number in value):
                raise ContractError(f"the contract's {where}initial has items that are no numbers")
            taken[name] = tuple(value)
        elif name == "shape":
            taken[name] = tuple(_typed(value, list, f"{where}shape"))
        elif name == "elements":
            elements = _typed(value, list, f"{where}elements")
            taken[name] = tuple(_read(Element, _typed(e, dict, f"{where}elements"), where) for e in elements)
    return cls(**taken)


def _typed(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind):
        raise ContractError(f"the contract's {name} is {type(value).__name__}, not {kind.__name__}")
    return value


def _check_tensor(name: str, dtype: str, shape: tuple[int | str, ...]) -> None:
    if dtype not in DTYPES:
        raise ContractError(f"the contract gives {name!r} the dtype {dtype!r}; choose {_or(DTYPES)}")
    for axis in shape:
        if axis != BATCH and (not isinstance(axis, int) or isinstance(axis, bool) or axis < 1):
            raise ContractError(
                f"the contract gives {name!r} the shape {show_shape(shape)}; "
                f"an axis is a positive size or {BATCH!r}"
            )
    if shape.count(BATCH) > 1:
        raise ContractError(f"the contract gives {name!r} two batch axes, {show_shape(shape)}")
    if len(shape) > MAX_RANK:
        raise ContractError(f"the contract gives {name!r} {len(shape)} axes; at most {MAX_RANK} are read")
    if any(isinstance(axis, int) and axis > MAX_ELEMENTS for axis in shape):
        raise ContractError(f"the contract gives {name!r} the shape {show_shape(shape)}, over 2^25 elements")


def _check_value(name: str, dtype: str, value: float | int | bool | tuple[float, ...] | None) -> None:
    """A number that fills a tensor, or each of those that do, must be one that its dtype holds."""
    try:
        with np.errstate(all="ignore"):
            held = value is None or bool(np.isfinite(np.array(value, DTYPES[dtype])).all())
    except (OverflowError, ValueError):
        held = False
    if not held:
        raise ContractError(f"the contract fills {name!r} with a value that {dtype} can't hold")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # JSON's whole numbers have no limit
        return False


def _twice(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _or(choices: Iterable[str]) -> str:
    *most, last = choices
    return f"{', '.join(most)} or {last}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
