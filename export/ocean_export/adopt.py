"""Somebody else's single-step recurrent ONNX becomes a file that says what it is.

The graph is not touched: a contract is added that names its state pairs, fixed inputs and free dimensions,
so that the runtime, the commands and the node run it as they run an Ocean Transformer. What the file leaves
open is asked for in one sentence, with the candidates.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from ocean_runtime import OceanError, OceanModel, __version__
from ocean_runtime.contract import (
    BATCH,
    DTYPES,
    METADATA_KEY,
    Contract,
    Element,
    State,
    Tensor,
    show_shape,
    sized,
)
from ocean_runtime.files import require_folder, write_atomically
from ocean_runtime.model import session_of

from ocean_export.contract import attach

Array = NDArray[Any]

STEPS = 50
"""Steps over which the adopted file is compared with a loop over the foreign one."""

_AFFIXES = re.compile(r"^(new|next|prev|past|present|last|init|initial|in|input|out|output)_|"
                      r"_?(new|next|prev|past|present|last|init|initial|in|input|out|output)$|"
                      r"(?<=.)_?(n|N|0|1)$")  # fmt: skip
_DTYPE: dict[int, str] = {
    int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))): name for name, dtype in DTYPES.items()
}


class AdoptError(OceanError):
    """The file, or what was said of it, leaves something open or contradicts itself."""


@dataclass(frozen=True)
class Said:
    """What the user says of a foreign graph."""

    states: Mapping[str, str] = field(default_factory=dict)
    """Output by input; where empty, pairs are suggested."""
    initial: Mapping[str, float] = field(default_factory=dict)
    """By state input, the value of all its elements before the first step; 0 where missing."""
    constants: Mapping[str, float] = field(default_factory=dict)
    """By input, the value it always has."""
    pins: Mapping[str, int] = field(default_factory=dict)
    """Size by free dimension: by its name in the graph, or as TENSOR.AXIS where it has none."""
    elements: Mapping[str, tuple[Element, ...]] = field(default_factory=dict)
    """Names along the last axis, by input or output."""
    rate_hz: float | None = None


@dataclass(frozen=True)
class Value:
    """An input or output of the foreign graph; `?` axes are those whose size only running it tells."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


def adopt(content: bytes, name: str, said: Said) -> bytes:
    """The foreign file `content`, called `name`, with a contract. Raises AdoptError."""
    proto = _parse(content, name)
    inputs, outputs = _values(proto.graph)
    _check_names(said, inputs, outputs)
    states = dict(said.states) or suggest(
        [v for v in inputs.values() if v.name not in said.constants], list(outputs.values())
    )
    shapes = _pinned(inputs, said)
    contract = _contract(proto, content, name, said, states, inputs, outputs, shapes)
    return attach(proto, contract)


@dataclass(frozen=True)
class AdoptReport:
    """What an adoption wrote."""

    path: Path
    size_bytes: int
    contract: Contract

    def to_json(self) -> str:
        """The report as a JSON object, on one line, with the whole contract."""
        values = {"path": str(self.path), "size_bytes": self.size_bytes}
        return json.dumps({**values, "contract": json.loads(self.contract.to_json())}, ensure_ascii=False)


def adopt_file(source: str | Path, path: str | Path = "model.onnx", said: Said | None = None) -> AdoptReport:
    """Write somebody else's single-step recurrent ONNX file `source` at `path`, with a contract.

    said: which outputs replace which inputs, fixed inputs, sizes and names; what is clear from the graph may be left
        out.

    The file is written only if two streams give what a loop over the source gives, bit for bit. Raises AdoptError
    where they don't, where the source can't be read, or where more has to be said; ContractError where the runtime
    can't run the graph; OSError where the file can't be written.
    """
    from ocean_export.pipeline import loaded_from

    source, path = Path(source), Path(path)
    require_folder(path)  # reported before the work, not after it
    try:
        foreign = source.read_bytes()
    except OSError as error:
        raise AdoptError(f"{source} can't be read: {error.strerror}") from None
    content = adopt(foreign, source.name, said or Said())
    model = loaded_from(content)
    verify(model, foreign)
    write_atomically(path, content)
    return AdoptReport(path, len(content), model.contract)


def suggest(inputs: Sequence[Value], outputs: Sequence[Value]) -> dict[str, str]:
    """State pairs, where names, shapes and types leave one reading. Raises AdoptError where not."""
    fitting = [(i, o) for i, o in itertools.product(inputs, outputs) if _may_replace(i, o)]
    pairs = [(i.name, o.name) for i, o in fitting if _stem(i.name) == _stem(o.name) != ""]
    once = len({i for i, _ in pairs}) == len({o for _, o in pairs}) == len(pairs)
    if pairs and once:
        return dict(pairs)
    candidates = ", ".join(f"{i}:{o}" for i, o in (pairs or [(i.name, o.name) for i, o in fitting]))
    raise AdoptError(
        f"which outputs replace which inputs is not clear from names and shapes; say --state IN:OUT for each "
        f"({f'candidates: {candidates}' if candidates else 'no output has the type and shape of an input'})"
    )


def verify(adopted: OceanModel, foreign: bytes, steps: int = STEPS) -> None:
    """Raises AdoptError unless two interleaved streams give, bit for bit, what a loop over the foreign file gives."""
    contract, session = adopted.contract, session_of(foreign, 1, None)
    names = [t.name for t in contract.outputs]
    wanted_names = names + [s.output for s in contract.states]
    streams = [adopted.stream(), adopted.stream()]
    states = [adopted.initial_state(1), adopted.initial_state(1)]
    random = np.random.default_rng(0)
    for t in range(steps):
        for which, stream in enumerate(streams):
            feed = {x.name: _example(x, random) for x in contract.inputs}
            given = {x.name: feed[x.name] for x in contract.inputs if x.constant is None}
            results = session.run(wanted_names, {**feed, **states[which]})
            states[which] = {
                s.input: after for s, after in zip(contract.states, results[len(names) :], strict=True)
            }
            single = {
                x.name: _single(given[x.name], x.batch_axis) for x in contract.inputs if x.name in given
            }
            found = stream.step_all(single)
            for tensor, wanted in zip(contract.outputs, results, strict=False):
                if not np.array_equal(found[tensor.name], _single(wanted, tensor.batch_axis), equal_nan=True):
                    raise AdoptError(
                        f"step {t + 1} of the adopted file gives another {tensor.name!r} than the foreign one"
                    )


def _parse(content: bytes, name: str) -> onnx.ModelProto:
    try:
        proto = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's exceptions differ by its implementation
        raise AdoptError(f"{name} is no ONNX file, or is damaged ({str(error).splitlines()[0]})") from None
    if not proto.graph.input or not proto.graph.output:
        raise AdoptError(f"{name} holds no graph with inputs and outputs")
    if any(entry.key == METADATA_KEY for entry in proto.metadata_props):
        raise AdoptError(f"{name} has a contract already; adopt the file it was made of")
    return proto


def _values(graph: onnx.GraphProto) -> tuple[dict[str, Value], dict[str, Value]]:
    stored = {weight.name for weight in graph.initializer}
    inputs = {v.name: _value(v) for v in graph.input if v.name not in stored}
    return inputs, {v.name: _value(v) for v in graph.output}


def _value(info: onnx.ValueInfoProto) -> Value:
    tensor = info.type.tensor_type
    if tensor.elem_type not in _DTYPE:
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
        raise AdoptError(f"{info.name!r} has the type {kind}; choose a model with {', '.join(DTYPES)}")
    axes = [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{info.name}.{axis}"
        for axis, dim in enumerate(tensor.shape.dim)
    ]
    return Value(info.name, _DTYPE[tensor.elem_type], tuple(axes))


def _check_names(said: Said, inputs: Mapping[str, Value], outputs: Mapping[str, Value]) -> None:
    asked = (
        ("state", said.states, inputs, "input"),
        ("state", said.states.values(), outputs, "output"),
        ("initial", said.initial, inputs, "input"),
        ("const", said.constants, inputs, "input"),
        ("elements", said.elements, {**inputs, **outputs}, "input or output"),
        ("pin", said.pins, {str(d) for v in inputs.values() for d in v.shape}, "free dimension"),
    )
    for option, names, known, kind in asked:
        for name in names:
            if name not in known:
                choices = ", ".join(sorted(k for k in known if not k.isdigit())) or "none"
                raise AdoptError(f"--{option} names {name!r}, which is no {kind}; there is: {choices}")
    if len(set(said.states.values())) < len(said.states):
        raise AdoptError("--state gives one output to two inputs; each state has an output of its own")
    for name in said.constants.keys() & said.states.keys():
        raise AdoptError(f"{name!r} can't be both a state and a constant")


def _pinned(inputs: Mapping[str, Value], said: Said) -> dict[str, tuple[int | str, ...]]:
    """The inputs' shapes with pins put in; a free name that all the others share is the batch axis."""
    shapes = {
        v.name: tuple(said.pins.get(axis, axis) if isinstance(axis, str) else axis for axis in v.shape)
        for v in inputs.values()
    }
    free = {axis for shape in shapes.values() for axis in shape if isinstance(axis, str)}
    if not free:
        return shapes
    (name, *more) = sorted(free)
    varying = [shape for which, shape in shapes.items() if which not in said.constants]
    if more or any(shape.count(name) != 1 for shape in varying):
        where = "; ".join(f"{v.name} {show_shape(v.shape)}" for v in inputs.values())
        raise AdoptError(
            f"say the size of each free dimension with --pin NAME=SIZE, here {', '.join(sorted(free))} "
            f"(inputs: {where}); only one that every input has may stay free, as the batch"
        )
    return {
        which: tuple(BATCH if axis == name else axis for axis in shape) for which, shape in shapes.items()
    }


def _contract(
    proto: onnx.ModelProto,
    content: bytes,
    name: str,
    said: Said,
    states: Mapping[str, str],
    inputs: Mapping[str, Value],
    outputs: Mapping[str, Value],
    shapes: Mapping[str, tuple[int | str, ...]],
) -> Contract:
    given = tuple(
        Tensor(
            v.name,
            v.dtype,
            shapes[v.name],
            elements=said.elements.get(v.name, ()),
            constant=_number("const", v, said.constants.get(v.name)),
        )
        for v in inputs.values()
        if v.name not in states
    )
    pairs = tuple(
        State(
            i, o, inputs[i].dtype, shapes[i], _number("initial", inputs[i], said.initial.get(i, 0.0)) or 0.0
        )
        for i, o in states.items()
    )
    for state in pairs:
        if outputs[state.output].dtype != state.dtype:
            raise AdoptError(
                f"{state.output!r} is {outputs[state.output].dtype} and can't replace {state.input!r}, {state.dtype}"
            )
    gives = _run_for_shapes(content, given, pairs, list(outputs))
    for state in pairs:
        if gives[state.output] != state.shape:
            raise AdoptError(
                f"{state.output!r} has shape {show_shape(gives[state.output])} and can't replace "
                f"{state.input!r} {show_shape(state.shape)}; choose another pair or other sizes"
            )
    wanted = tuple(
        Tensor(v.name, v.dtype, gives[v.name], elements=said.elements.get(v.name, ()))
        for v in outputs.values()
        if v.name not in states.values()
    )
    return Contract(
        kind="raw",
        inputs=given,
        outputs=wanted,
        states=pairs,
        state_id=f"sha256:{hashlib.sha256(content).hexdigest()}",
        rate_hz=said.rate_hz,
        sizes={"parameters": sum(int(np.prod(w.dims)) for w in _weights(proto.graph))},
        precision="as adopted",
        opset=max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=0),
        ir_version=proto.ir_version,
        provenance={
            "adopted_from": name,
            "produced_by": f"{proto.producer_name} {proto.producer_version}".strip() or "unknown",
            "adopted_with": {"python": platform.python_version(), "oceanstate": __version__},
        },
    )


def _run_for_shapes(
    content: bytes, given: Sequence[Tensor], states: Sequence[State], outputs: Sequence[str]
) -> dict[str, tuple[int | str, ...]]:
    """The outputs' shapes, found by running a step of 1 and, where there is a batch, of 2 and 3 streams."""
    session, random = session_of(content, 1, None), np.random.default_rng(0)
    batched = any(BATCH in shape for shape in [x.shape for x in given] + [s.shape for s in states])
    found: list[list[tuple[int, ...]]] = []
    for batch in (1, 2, 3) if batched else (1,):
        feed = {x.name: _example(x, random, batch) for x in given}
        feed |= {s.input: np.full(sized(s.shape, batch), s.initial, DTYPES[s.dtype]) for s in states}
        try:
            found.append([result.shape for result in session.run(list(outputs), feed)])
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise AdoptError(
                f"the graph can't run a step with these sizes: {str(error).splitlines()[0][:300]}"
            ) from None
    if not batched:
        return dict(zip(outputs, found[0], strict=True))
    shapes: dict[str, tuple[int | str, ...]] = {}
    for name, *seen in zip(outputs, *found, strict=True):
        shapes[name] = tuple(BATCH if axes == (1, 2, 3) else axes[0] for axes in zip(*seen, strict=True))
    return shapes


def _number(option: str, value: Value, given: float | None) -> float | int | None:
    """A number that fills an input; raises AdoptError where its type can't hold it as it was given."""
    if given is None:
        return None
    dtype: np.dtype[Any] = np.dtype(DTYPES[value.dtype])
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            held = bool(np.isfinite(np.float64(given).astype(dtype)))
        why = "a finite number in its range"
    else:
        low, high = (
            (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype.type).min), int(np.iinfo(dtype.type).max))
        )
        held = bool(np.isfinite(given)) and given == int(given) and low <= int(given) <= high
        why = f"a whole number from {low} to {high}"
    if not held:
        raise AdoptError(f"--{option} gives {value.name!r} {given:g}, and it is {value.dtype}: give {why}")
    return given if dtype.kind == "f" else int(given)


def _example(tensor: Tensor, random: np.random.Generator, batch: int = 1) -> Array:
    """A plausible input: its constant, small noise, or zeros where it counts something."""
    shape, dtype = sized(tensor.shape, batch), np.dtype(DTYPES[tensor.dtype])
    if tensor.constant is not None:
        return np.full(shape, tensor.constant, dtype)
    if dtype.kind == "f":
        return (0.1 * random.standard_normal(shape)).astype(dtype)
    return np.zeros(shape, dtype)


def _single(array: Array, axis: int | None) -> Array:
    return array if axis is None else np.squeeze(array, axis)


def _may_replace(i: Value, o: Value) -> bool:
    """Same type, same rank, and no two fixed sizes that differ."""
    return (
        i.dtype == o.dtype
        and len(i.shape) == len(o.shape)
        and len(i.shape) > 0
        and all(
            a == b or isinstance(a, str) or isinstance(b, str) for a, b in zip(i.shape, o.shape, strict=True)
        )
    )


def _stem(name: str) -> str:
    """What a name has in common with that of its successor: state, stateN; h, hn; h_0, h_n; past_k, present_k."""
    before = ""
    while before != name:
        before, name = name, _AFFIXES.sub("", name)
    return name.lower()


def _weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _weights(attribute.g)
