"""A look at an ONNX file before onnxruntime sees a byte of it: is it what a step graph needs, and no more?

onnxruntime trusts its files: an operator with a stride of zero, or sizes that no memory holds, may end the
process and with it the robot's past. `scan` reads the protobuf by itself, with a budget, and refuses what a
step graph has no use for. Field numbers are those of onnx.proto (github.com/onnx/onnx).

It is a check of form, no proof: what a graph computes, and how large its intermediate tensors grow, shows
only when it runs. For that there is `OceanModel.load(path, untrusted=True)`. See SECURITY.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ocean_runtime.contract import MAX_JSON_BYTES, METADATA_KEY
from ocean_runtime.errors import ContractError
from ocean_runtime.operators import (
    AT_LEAST_ONE,
    DOMAINS,
    GROWS,
    MULTIPLIES,
    ONE_OF,
    OPTIONAL,
    SIZED_BY,
    SUBGRAPHS,
)
from ocean_runtime.protobuf import BYTES, FIXED32, FIXED64, VARINT, Field, Reader, Span, WireError, signed

MAX_FIELDS = 250_000
MAX_NODES = 10_000
MAX_DEPTH = 6
"""Graphs within graphs."""
MAX_RANK = 8
MAX_NAME_BYTES = 1_000
MAX_INTS = 1_000
"""Numbers in a list that is an attribute."""
MAX_ATTRIBUTE = 1 << 31
MAX_SIZE = 1 << 24
"""Elements of a tensor that a node makes from constants alone."""
MAX_TIMES = 1 << 16
"""How many times as large as its input an operator may make its output, or how many numbers one of it is made of, by
its attributes or a constant."""
MAX_DECLARED = 1 << 28
"""Elements of a tensor that the graph declares."""

BITS = {
    1: 32,
    2: 8,
    3: 8,
    4: 16,
    5: 16,
    6: 32,
    7: 64,
    9: 8,
    10: 16,
    11: 64,
    12: 32,
    13: 64,
    16: 16,
    21: 4,
    22: 4,
}
"""Bits of an element by TensorProto.DataType: numbers and bools; no strings, complex numbers or 8-bit floats."""
_INTS, _FLOATS = {6: "<i4", 7: "<i8"}, {1: "<f4", 11: "<f8"}
"""Element types whose values are looked at, with their dtypes in a file."""
MAX_VALUES = 64
"""Elements of a tensor whose values are looked at."""
_ODD_ATTRIBUTES = {
    10: "lists of tensors",
    11: "lists of graphs",
    14: "types",
    15: "lists of types",
    21: "references to attributes",
    22: "sparse tensors",
    23: "sparse tensors",
}
_ODD_TENSORS = {3: "parts of tensors", 6: "strings", 13: "external data"}


def scan(data: bytes, key: str = METADATA_KEY) -> str | None:
    """Check a model file's bytes, and return the contract's JSON, or what else `key` names in the metadata.

    None where it holds none.

    Raises ContractError, its message a predicate: "uses the operator ...".
    """
    scanner = _Scanner(data)
    try:
        return scanner.model(key)
    except WireError as error:
        raise ContractError(f"is no ONNX file, or is damaged ({error})") from None


class _Tensor(NamedTuple):
    dims: tuple[int, ...]
    ints: tuple[int, ...] | None = None
    """The values, of a small tensor of int64 or int32."""
    floats: tuple[float, ...] | None = None
    """The same of float32 or float64."""


class _Scanner:
    def __init__(self, data: bytes) -> None:
        self.reader = Reader(data, MAX_FIELDS)
        self.whole = Field(0, BYTES, 0, Span(0, len(data)))
        self.nodes = 0

    def model(self, key: str) -> str | None:
        found = self.message(
            self.whole, once=(1, 7), never={20: "training information", 25: "local functions"}
        )
        if 7 not in found:
            raise WireError("it holds no graph")
        self.graph(found[7][0], 0, {})
        contracts = []
        for entry in found.get(14, ()):
            fields = self.message(entry, once=(1, 2))
            if self.name(fields, 1) == key:
                contracts += [self.text(f, MAX_JSON_BYTES) for f in fields.get(2, ())]
        if len(contracts) > 1:
            raise ContractError("holds two contracts; export the model again")
        return contracts[0] if contracts else None

    def graph(self, field: Field, depth: int, outer: Mapping[str, _Tensor]) -> None:
        """A graph, and those within it; `outer` are the constants that it can see."""
        if depth > MAX_DEPTH:
            raise ContractError(f"nests graphs deeper than {MAX_DEPTH}")
        found = self.message(field, never={15: "sparse tensors"})
        constants = dict(outer)
        for value in found.get(11, ()):
            constants.pop(self.value(value), None)  # hidden by what this graph is given under its name
        for weight in found.get(5, ()):
            name, tensor = self.tensor(weight)
            constants[name] = tensor
        for value in (*found.get(12, ()), *found.get(13, ())):
            self.value(value)
        for node in found.get(1, ()):
            self.node(node, depth, constants)

    def node(self, field: Field, depth: int, constants: dict[str, _Tensor]) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ContractError(f"has more than {MAX_NODES:,} nodes")
        found = self.message(field, once=(3, 4, 7), never={8: "overloads"})
        domain, operator = self.name(found, 7), self.name(found, 4)
        if operator not in DOMAINS.get(domain, ()):
            where = f" of {domain}" if domain else ""
            raise ContractError(
                f"uses the operator {operator!r}{where}, which no step graph here needs; "
                "if yours does, it is added in ocean_runtime/operators.py"
            )
        inputs = [self.text(f, MAX_NAME_BYTES) for f in found.get(1, ())]
        for i, name in enumerate(inputs):
            if not name and i not in OPTIONAL.get(operator, ()):
                raise ContractError(f"leaves out input {i} of an operator {operator!r}, which needs it")
        if operator == "Dropout" and any(inputs[2:]):
            raise ContractError(
                "uses 'Dropout' with a training mode, which draws at random; export the model for inference"
            )
        outputs = [self.text(f, MAX_NAME_BYTES) for f in found.get(2, ())]
        for name in outputs:
            constants.pop(name, None)  # of a graph around this one, whose name stands for another tensor here
        numbers: dict[str, list[int]] = {}
        for attribute in found.get(5, ()):
            name, ints, tensor = self.attribute(attribute, operator, depth, constants)
            if name in numbers:
                raise ContractError(f"gives an operator {operator!r} the attribute {name!r} twice")
            numbers[name] = ints
            if operator == "Constant" and len(outputs) == 1 and tensor is not None:
                constants[outputs[0]] = tensor
        if operator != "Constant":
            _check_numbers(operator, numbers)
        known = [constants.get(name) if name else None for name in inputs]
        if operator in GROWS:
            for tensor in known[operator != "ConstantOfShape" :]:
                sizes = tensor.ints if tensor is not None else None
                if sizes is not None and math.prod(max(1, abs(size)) for size in sizes) > MAX_SIZE:
                    raise ContractError(f"makes a tensor of more than {MAX_SIZE:,} elements by {operator!r}")
        if operator in SIZED_BY:
            _check_sizes(operator, inputs, known)
        if operator == "MatMulNBits":
            _check_blocks(numbers, known)

    def attribute(
        self, field: Field, operator: str, depth: int, constants: Mapping[str, _Tensor]
    ) -> tuple[str, list[int], _Tensor | None]:
        """Name, integers, and tensor where it is one."""
        found = self.message(field, once=(1, 2, 3, 4, 5, 6, 20), never=_ODD_ATTRIBUTES)
        name = self.name(found, 1)
        ints = self.numbers([*found.get(3, ()), *found.get(8, ())])
        tensor = None
        for constant in found.get(5, ()):
            _, tensor = self.tensor(constant)
        if operator == "Constant" and tensor is None:
            floats = self.floats([*found.get(2, ()), *found.get(7, ())])
            if ints or floats:
                tensor = _Tensor((len(ints) + len(floats),), tuple(ints) or None, tuple(floats) or None)
        for graph in found.get(6, ()):
            if operator not in SUBGRAPHS:
                raise ContractError(f"gives an operator {operator!r} a graph, which it has no use for")
            self.graph(graph, depth + 1, constants)
        if operator == "Constant" and name.startswith("value_string"):
            raise ContractError("holds strings, which no step graph needs")
        return name, ints, tensor

    def tensor(self, field: Field) -> tuple[str, _Tensor]:
        """A constant whose data is all there: so no tensor is larger than the file."""
        found = self.message(field, once=(2, 8, 9, 14), never=_ODD_TENSORS)
        name, kind = self.name(found, 8), _number(found, 2)
        if _number(found, 14) != 0:
            raise ContractError(f"keeps the tensor {name!r} in another file; export it into one")
        if kind not in BITS:
            raise ContractError(
                f"has a tensor {name!r} of the element type {kind}, which no step graph needs"
            )
        dims = self.numbers(found.get(1, ()))
        if len(dims) > MAX_RANK or any(size < 0 for size in dims):
            raise ContractError(f"gives the tensor {name!r} the impossible shape {dims[:MAX_RANK]}")
        count = math.prod(dims)
        if not count and len(dims) != 1:  # of one axis: the shape of a scalar, no axes
            raise ContractError(f"has a tensor {name!r} of the shape {dims}, which holds nothing")
        if 9 in found:
            data = _bytes(found[9][0])
            if data.length * 8 < count * BITS[kind] or data.length > -(-count * BITS[kind] // 8):
                raise ContractError(f"gives the tensor {name!r} {data.length:,} bytes for the shape {dims}")
            raw = self.reader.data[data.start : data.end] if count <= MAX_VALUES else b""
            return name, _read(kind, dims, raw)
        held = sum(self.elements(f) for number in (4, 5, 7, 10, 11) for f in found.get(number, ()))
        # Two 4-bit numbers share an element of int32_data.
        if held != (count if BITS[kind] > 4 else -(-count // 2)):
            raise ContractError(f"gives the tensor {name!r} {held:,} elements for the shape {dims}")
        if count > MAX_VALUES:
            return name, _Tensor(tuple(dims))
        if kind in _INTS:
            ints = tuple(self.numbers(found.get(7 if kind == 7 else 5, ())))
            return name, _Tensor(tuple(dims), ints)
        if kind in _FLOATS:
            floats = self.floats(found.get(4 if kind == 1 else 10, ()))
            return name, _Tensor(tuple(dims), floats=tuple(floats))
        return name, _Tensor(tuple(dims))

    def value(self, field: Field) -> str:
        """The name of an input, output or intermediate: a tensor of at most MAX_RANK axes."""
        found = self.message(field, once=(1, 2))
        name = self.name(found, 1)
        for kind in found.get(2, ()):
            types = self.message(kind, once=(1,))
            if set(types) - {1, 6}:
                raise ContractError(f"declares {name!r} as something else than a tensor")
            for tensor in types.get(1, ()):
                fields = self.message(tensor, once=(1, 2))
                if _number(fields, 1) not in (*BITS, 0):
                    raise ContractError(f"declares {name!r} with the element type {_number(fields, 1)}")
                for shape in fields.get(2, ()):
                    axes = self.message(shape).get(1, ())
                    sizes = [_number(self.message(axis, once=(1, 2)), 1) for axis in axes]
                    least, most = min(sizes, default=0), math.prod(max(1, size) for size in sizes)
                    if len(sizes) > MAX_RANK or least < 0 or most > MAX_DECLARED:
                        raise ContractError(f"declares {name!r} with the impossible shape {sizes[:MAX_RANK]}")
        return name

    def elements(self, field: Field) -> int:
        """How many numbers of a tensor's typed data a field holds: one, or many packed."""
        wire, width = {4: (FIXED32, 4), 10: (FIXED64, 8)}.get(field.number, (VARINT, 0))
        if field.wire != BYTES:
            if field.wire != wire:
                raise WireError(f"a tensor's data has wire type {field.wire}")
            return 1
        return field.span.length // width if width else self.reader.count_varints(field.span)

    def numbers(self, fields: Iterable[Field]) -> list[int]:
        values: list[int] = []
        for field in fields:
            if field.wire == BYTES:
                values += self.reader.varints(field.span, MAX_INTS)
            elif field.wire == VARINT:
                values.append(signed(field.value))
            else:
                raise WireError(f"a number has wire type {field.wire}")
            if len(values) > MAX_INTS:
                raise WireError(f"a list has more than {MAX_INTS} numbers")
        return values

    def floats(self, fields: Iterable[Field]) -> list[float]:
        """The values of a small field of float or double, of single ones or packed."""
        values: list[float] = []
        for field in fields:
            start, end = field.span.start, field.span.end
            if field.wire in (FIXED32, FIXED64):
                start = end - (4 if field.wire == FIXED32 else 8)
            elif field.wire != BYTES:
                raise WireError(f"a number has wire type {field.wire}")
            if len(values) + end - start > 8 * MAX_INTS:
                raise WireError(f"a list has more than {MAX_INTS} numbers")
            dtype = "<f8" if field.number == 10 else "<f4"
            values += _values(self.reader.data[start:end], dtype)
        return values

    def name(self, fields: Mapping[int, list[Field]], number: int) -> str:
        return self.text(fields[number][0], MAX_NAME_BYTES) if number in fields else ""

    def text(self, field: Field, limit: int) -> str:
        return self.reader.text(_bytes(field), limit)

    def message(
        self, message: Field, *, once: tuple[int, ...] = (), never: Mapping[int, str] | None = None
    ) -> dict[int, list[Field]]:
        """The fields of a message by number.

        once: numbers that may not repeat, since parsers merge or replace them. never: what is refused, by name.
        """
        found: dict[int, list[Field]] = {}
        for field in self.reader.fields(_bytes(message)):
            if never and field.number in never:
                raise ContractError(f"holds {never[field.number]}, which no step graph needs")
            if field.number in once and field.number in found:
                raise WireError(f"field {field.number} is there twice")
            found.setdefault(field.number, []).append(field)
        return found


def _read(kind: int, dims: Iterable[int], raw: bytes) -> _Tensor:
    """A constant from its raw bytes; without its values where there are none, as of a large one."""
    if not raw:
        return _Tensor(tuple(dims))
    ints = tuple(map(int, _values(raw, _INTS[kind]))) if kind in _INTS else None
    return _Tensor(tuple(dims), ints, tuple(_values(raw, _FLOATS[kind])) if kind in _FLOATS else None)


def _values(raw: bytes, dtype: str) -> list[float]:
    values: list[float] = np.frombuffer(raw, dtype, len(raw) // np.dtype(dtype).itemsize).tolist()
    return values


def _number(fields: Mapping[int, list[Field]], number: int) -> int:
    if number not in fields:
        return 0
    field = fields[number][0]
    if field.wire != VARINT:
        raise WireError(f"a number has wire type {field.wire}")
    return signed(field.value)


def _bytes(field: Field) -> Span:
    # A parser that expects bytes would skip a field of another wire type, and so see something else than we.
    if field.wire != BYTES:
        raise WireError(f"a message or text has wire type {field.wire}")
    return field.span


def _check_numbers(operator: str, numbers: Mapping[str, list[int]]) -> None:
    for name, values in numbers.items():
        for value in values:
            low = 1 if name in AT_LEAST_ONE else -MAX_ATTRIBUTE
            if not low <= value <= MAX_ATTRIBUTE or (name in ONE_OF and value not in ONE_OF[name]):
                raise ContractError(f"gives an operator {operator!r} the impossible {name} {value}")
        if name in ("pads", "output_padding") and any(not 0 <= value <= 1 << 16 for value in values):
            raise ContractError(f"gives an operator {operator!r} the impossible {name} {values[:MAX_RANK]}")
        limit = (
            MAX_TIMES if name in MULTIPLIES.get(operator, ()) else MAX_SIZE if name == "output_shape" else 0
        )
        if limit and math.prod(max(1, value) for value in values) > limit:
            raise ContractError(
                f"gives an operator {operator!r} the {name} {values[:MAX_RANK]}, whose product is more than {limit:,}"
            )


def _check_sizes(operator: str, inputs: Sequence[str], known: Sequence[_Tensor | None]) -> None:
    """OneHot, Resize and STFT: how much they make is a constant of the file, and bounded."""
    # Until opset 10 the second input of Resize was what is the third since.
    places = (1,) if operator == "Resize" and len(inputs) == 2 else SIZED_BY[operator]
    numbers: dict[int, tuple[float, ...]] = {}
    for i in places:
        if i < len(inputs) and inputs[i]:
            tensor = known[i]
            values = None if tensor is None else tensor.ints if tensor.floats is None else tensor.floats
            if values is None and tensor is not None and tensor.dims == (0,):
                values = ()
            if values is None:
                raise ContractError(
                    f"computes input {i} of an operator {operator!r}, which must be a constant of float32, int32 or "
                    "int64; export the model with fixed sizes"
                )
            if not all(0 < value < math.inf for value in values):
                raise ContractError(
                    f"gives an operator {operator!r} the impossible size {min(values):g} by input {i}"
                )
            if operator != "Resize" and len(values) != 1:
                raise ContractError(
                    f"gives an operator {operator!r} {len(values)} numbers by input {i}, not one"
                )
            numbers[i] = values
    times = operator == "Resize" and (places == (1,) or 2 in numbers)
    for i, values in numbers.items():
        limit = MAX_TIMES if times and i != 3 else MAX_SIZE
        if math.prod(max(1.0, value) for value in values) > limit:
            raise ContractError(f"gives an operator {operator!r} a size of more than {limit:,} by input {i}")
    if operator == "STFT":
        window = known[2] if len(inputs) > 2 else None
        length = (
            numbers[3][0] if 3 in numbers else window.dims[0] if window is not None and window.dims else 1
        )
        if length > MAX_TIMES * numbers[1][0]:
            raise ContractError(f"makes more than {MAX_TIMES:,} numbers of each one by 'STFT'")


def _check_blocks(numbers: Mapping[str, list[int]], inputs: list[_Tensor | None]) -> None:
    """MatMulNBits: packed weights and scales that are as long as its attributes say."""
    try:
        K, N, block = (numbers[name][0] for name in ("K", "N", "block_size"))
        bits = numbers["bits"][0] if numbers.get("bits") else 4
        packed, scales = inputs[1], inputs[2]
    except (KeyError, IndexError):
        raise ContractError("uses 'MatMulNBits' without K, N, block_size, weights or scales") from None
    blocks = -(-K // block)
    for tensor, size in ((packed, N * blocks * (block * bits // 8)), (scales, N * blocks)):
        if tensor is None or math.prod(tensor.dims) != size:
            raise ContractError("uses 'MatMulNBits' with weights or scales that are not what K and N say")
