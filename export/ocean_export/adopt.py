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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from ocean_runtime import __version__
from ocean_runtime.contract import BATCH, DTYPES, Contract, Element, State, Tensor, show_shape, sized
from ocean_runtime.errors import ContractError
from ocean_runtime.files import as_path, require_folder, write_atomically
from ocean_runtime.scan import scan
from ocean_runtime.session import session_of

from ocean_export.adopt_external import read_foreign
from ocean_export.adopt_graph import AdoptError, Value, parse, tensors, unused, values
from ocean_export.adopt_pairs import refuse_left_over, suggest
from ocean_export.adopt_verify import STEPS, example, verify
from ocean_export.contract import attach

__all__ = [
    "STEPS",
    "AdoptError",
    "AdoptReport",
    "Said",
    "Value",
    "adopt",
    "adopt_file",
    "suggest",
    "verify",
    "warnings_of",
]

Array = NDArray[Any]
Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Said:
    """What the user says of a foreign graph."""

    states: Mapping[str, str] = field(default_factory=dict)
    """Output by input; others are added where names, types and shapes leave one reading."""
    inputs: Collection[str] = ()
    """Inputs that are given at each step, though an output has their type and shape."""
    initial: Mapping[str, float | Array] = field(default_factory=dict)
    """By state input, the value of all its elements before the first step, or an array of one stream; 0 where missing.
    """
    constants: Mapping[str, float] = field(default_factory=dict)
    """By input, the value it always has."""
    pins: Mapping[str, int] = field(default_factory=dict)
    """Size by free dimension: by its name in the graph, or as TENSOR.AXIS where it has none."""
    batch: Collection[str] = ()
    """Free dimensions that are the axis of independent streams, by name or as TENSOR.AXIS."""
    elements: Mapping[str, tuple[Element, ...]] = field(default_factory=dict)
    """Names along the last axis, by input or output."""
    rate_hz: float | None = None


def adopt(content: bytes, name: str, said: Said) -> bytes:
    """The foreign file `content`, called `name`, with a contract. Raises AdoptError."""
    proto = parse(content, name)
    try:
        scan(content)  # before onnxruntime runs it
    except ContractError as error:
        raise AdoptError(f"{name} {error}") from None
    inputs, outputs = values(proto.graph)
    _check_names(said, inputs, outputs)
    shapes = _pinned(inputs, said)
    sized_inputs = {i.name: Value(i.name, i.dtype, shapes[i.name]) for i in inputs.values()}
    free = [i for i in sized_inputs.values() if i.name not in {*said.constants, *said.inputs}]
    states = suggest(free, list(outputs.values()), said.states)
    if set(inputs) <= set(states):
        raise AdoptError(
            f"every input would be a state ({', '.join(f'{i}:{o}' for i, o in states.items())}), so nothing is left to "
            "give at a step; say --input IN for each that is given"
        )
    for which in said.initial:
        if which not in states:
            raise AdoptError(
                f"--initial names {which!r}, which is no state; the states are {', '.join(states)}"
            )
    contract = _contract(proto, content, name, said, states, inputs, outputs, shapes)
    refuse_left_over(
        [i for i in sized_inputs.values() if i.name not in {*states, *said.constants}],
        [Value(o.name, o.dtype, o.shape) for o in contract.outputs],
        said.inputs,
    )
    return attach(proto, contract)


@dataclass(frozen=True)
class AdoptReport:
    """What an adoption wrote."""

    path: Path
    size_bytes: int
    contract: Contract
    weights: tuple[Path, ...]
    """The files of weights beside the source that were taken in."""
    warnings: tuple[str, ...]
    """What is odd about the model though it runs, a sentence each."""

    def to_json(self) -> str:
        """The report as a JSON object, on one line, with the whole contract."""
        values = {
            "path": str(self.path),
            "size_bytes": self.size_bytes,
            "contract": json.loads(self.contract.to_json()),
            "weights": [str(path) for path in self.weights],
            "warnings": self.warnings,
        }
        return json.dumps(values, ensure_ascii=False)


def adopt_file(source: str | Path, path: str | Path = "model.onnx", said: Said | None = None) -> AdoptReport:
    """Write somebody else's single-step recurrent ONNX file `source` at `path`, with a contract.

    said: which outputs replace which inputs, fixed inputs, sizes and names; what is clear from the graph may be left
        out.

    Weights in files beside the source are taken in. The file is written only if two streams give what a loop over the
    source gives, bit for bit. Raises AdoptError where they don't, where the source can't be read or is at `path`
    itself, where the runtime can't run the graph, or where more has to be said; OSError where the file can't be
    written.
    """
    source, path = as_path(source, AdoptError, "the source"), as_path(path, AdoptError, "the file to write")
    require_folder(path)  # reported before the work, not after it
    foreign, beside = read_foreign(source)
    return write_adopted(source, foreign, beside, path, said or Said())


def write_adopted(
    source: Path, foreign: bytes, beside: Sequence[Path], path: Path, said: Said
) -> AdoptReport:
    """`adopt_file` for a source that `read_foreign` has read: its content, and the files of weights beside it."""
    from ocean_export.pipeline import loaded_from

    for kept in (source, *beside):
        if path.exists() and path.samefile(kept):
            what = "the foreign file itself" if kept == source else f"the weights of {source.name}"
            raise AdoptError(f"{path} is {what}, which is kept; name another file with -o")
    content = adopt(foreign, source.name, said)
    try:
        model = loaded_from(content)
    except ContractError as error:
        raise AdoptError(f"{source.name} {error}") from None
    verify(model, source if beside else foreign)
    write_atomically(path, content)
    return AdoptReport(path, len(content), model.contract, tuple(beside), tuple(warnings_of(content)))


def warnings_of(content: bytes) -> list[str]:
    """What is odd about an adopted file though it runs, a sentence each."""
    proto = onnx.load_model_from_string(content)
    return [
        f"no output depends on the input {name!r}: the graph was exported without what it is for, such as a reset or "
        "a state that stands for another one; compare its steps with the model that it was made of"
        for name in unused(proto.graph)
    ]


def _check_names(said: Said, inputs: Mapping[str, Value], outputs: Mapping[str, Value]) -> None:
    free = {d for v in inputs.values() for d in v.shape or () if isinstance(d, str)}
    places = {f"{v.name}.{axis}" for v in inputs.values() for axis in range(len(v.shape or ()))}
    asked: tuple[tuple[str, Collection[str], Collection[str], str], ...] = (
        ("state", said.states, inputs, "input"),
        ("state", said.states.values(), outputs, "output"),
        ("initial", said.initial, inputs, "input"),
        ("const", said.constants, inputs, "input"),
        ("input", said.inputs, inputs, "input"),
        ("elements", said.elements, {**inputs, **outputs}, "input or output"),
        ("pin", said.pins, free, "free dimension"),
        ("batch", said.batch, free | places, "free dimension"),
    )
    for option, names, known, kind in asked:
        for name in names:
            if name not in known:
                choices = ", ".join(sorted(known)) or "none"
                raise AdoptError(f"--{option} names {name!r}, which is no {kind}; there is: {choices}")
    if len(set(said.states.values())) < len(said.states):
        raise AdoptError("--state gives one output to two inputs; each state has an output of its own")
    kinds = {"a state": said.states, "a constant": said.constants, "given at each step": said.inputs}
    for (one, these), (other, those) in itertools.combinations(kinds.items(), 2):
        for name in sorted(set(these) & set(those)):
            raise AdoptError(f"{name!r} can't be both {one} and {other}")


def _pinned(inputs: Mapping[str, Value], said: Said) -> dict[str, Shape]:
    """The inputs' shapes with pins put in and the batch axis named; a free name that all share is the batch."""
    shapes = {
        v.name: [said.pins.get(axis, axis) if isinstance(axis, str) else axis for axis in v.shape or ()]
        for v in inputs.values()
    }
    batch = {(v.name, k) for v in inputs.values() for k in range(len(v.shape or ())) if _is_batch(v, k, said)}
    for name, k in sorted(batch):
        if isinstance(shapes[name][k], int):
            raise AdoptError(
                f"--batch says that dimension {k} of {name!r} is the batch, and its size is fixed to "
                f"{shapes[name][k]}; export the model with a free dimension there, or leave --batch out"
            )
    free = {
        (name, k) for name, shape in shapes.items() for k, axis in enumerate(shape) if isinstance(axis, str)
    }
    names = {str(shapes[name][k]) for name, k in free - batch}
    if not batch and len(names) == 1:
        batch, names = free, set()
    each = [sum(name == which for name, _ in batch) for which in shapes if which not in said.constants]
    if names or (batch and any(count != 1 for count in each)):
        where = "; ".join(f"{v.name} {show_shape(v.shape or ())}" for v in inputs.values())
        named = ", ".join(sorted(names or {str(shapes[name][k]) for name, k in batch}))
        raise AdoptError(
            f"say the size of each free dimension with --pin NAME=SIZE, here {named} "
            f"(inputs: {where}); only one that every input has may stay free, as the batch: where it has several "
            "names, say each with --batch NAME"
        )
    return {
        which: tuple(BATCH if (which, k) in batch else axis for k, axis in enumerate(shape))
        for which, shape in shapes.items()
    }


def _is_batch(value: Value, axis: int, said: Said) -> bool:
    return f"{value.name}.{axis}" in said.batch or (value.shape or ())[axis] in said.batch


def _contract(
    proto: onnx.ModelProto,
    content: bytes,
    name: str,
    said: Said,
    states: Mapping[str, str],
    inputs: Mapping[str, Value],
    outputs: Mapping[str, Value],
    shapes: Mapping[str, Shape],
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
        State(i, o, inputs[i].dtype, shapes[i], _initial(inputs[i], shapes[i], said.initial.get(i, 0.0)))
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
        sizes={"parameters": sum(int(np.prod(w.dims)) for w in tensors(proto.graph))},
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
) -> dict[str, Shape]:
    """The outputs' shapes, found by running a step of 1 and, where there is a batch, of 2 and 3 streams."""
    session, random = session_of(content, 1, None), np.random.default_rng(0)
    batched = any(BATCH in shape for shape in [x.shape for x in given] + [s.shape for s in states])
    found: list[list[tuple[int, ...]]] = []
    for batch in (1, 2, 3) if batched else (1,):
        feed = {x.name: example(x, random, batch) for x in given}
        feed |= {s.input: s.first(batch) for s in states}
        try:
            found.append([result.shape for result in session.run(list(outputs), feed)])
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise AdoptError(
                f"the graph can't run a step with these sizes: {str(error).splitlines()[0][:300]}"
            ) from None
    if not batched:
        return dict(zip(outputs, found[0], strict=True))
    shapes: dict[str, Shape] = {}
    for name, *seen in zip(outputs, *found, strict=True):
        if len({len(shape) for shape in seen}) > 1 or any(
            axes != (1, 2, 3) and len(set(axes)) > 1 for axes in zip(*seen, strict=True)
        ):
            raise AdoptError(
                f"{name!r} has the shapes {', '.join(map(show_shape, seen))} for 1, 2 and 3 streams, so its rows are "
                "not theirs; make it one stream with --pin NAME=1 for the batch's dimension"
            )
        shapes[name] = tuple(BATCH if axes == (1, 2, 3) else axes[0] for axes in zip(*seen, strict=True))
    return shapes


def _initial(value: Value, shape: Shape, given: float | Array) -> float | tuple[float, ...]:
    """A state before the first step, as the contract says it. Raises AdoptError where it doesn't fit."""
    if not isinstance(given, np.ndarray):
        return _number("initial", value, given) or 0.0
    one = sized(shape, 1)
    if [n for n in given.shape if n != 1] != [n for n in one if n != 1]:
        raise AdoptError(
            f"--initial gives {value.name!r} an array of shape {show_shape(given.shape)}, and its state has "
            f"{show_shape(one)} for one stream"
        )
    return tuple(_number("initial", value, number) or 0 for number in given.reshape(-1).tolist())


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
