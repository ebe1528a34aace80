"""A look at an ONNX file before onnxruntime sees a byte of it: is it what a step graph needs, and no more?

onnxruntime trusts its files: an operator with a stride of zero, or sizes that no memory holds, may end the
process and with it the robot's past. `scan` reads the protobuf by itself, with a budget, and refuses what a
step graph has no use for. Field numbers are those of onnx.proto (github.com/onnx/onnx).

It is a check of form, no proof: what a graph computes, and how large its intermediate tensors grow, shows
only when it runs. For that there is `OceanModel.load(path, untrusted=True)`. See SECURITY.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ocean_runtime.contract import MAX_JSON_BYTES, METADATA_KEY
from ocean_runtime.errors import ContractError
from ocean_runtime.operators import AT_LEAST_ONE, DOMAINS, GROWS, ONE_OF, OPTIONAL, SUBGRAPHS
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
_INT64 = 7
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
    ints: tuple[int, ...] | None
    """The values, of a small int64 tensor."""


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
        for weight in found.get(5, ()):
            name, tensor = self.tensor(weight)
            constants[name] = tensor
        for value in (*found.get(11, ()), *found.get(12, ()), *found.get(13, ())):
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
        numbers: dict[str, list[int]] = {}
        for attribute in found.get(5, ()):
            name, ints, tensor = self.attribute(attribute, operator, depth, constants)
            if name in numbers:
                raise ContractError(f"gives an operator {operator!r} the attribute {name!r} twice")
            numbers[name] = ints
            if operator == "Constant" and len(outputs) == 1:
                if tensor is not None:
                    constants[outputs[0]] = tensor
                elif ints:
                    constants[outputs[0]] = _Tensor((len(ints),), tuple(ints))
        if operator != "Constant":
            _check_numbers(operator, numbers)
        if operator in GROWS:
            for name in inputs[operator != "ConstantOfShape" :]:
                sizes = constants[name].ints if name in constants else None
                if sizes is not None and math.prod(max(1, abs(size)) for size in sizes) > MAX_SIZE:
                    raise ContractError(f"makes a tensor of more than {MAX_SIZE:,} elements by {operator!r}")
        if operator == "MatMulNBits":
            _check_blocks(numbers, [constants.get(name) for name in inputs])

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
            ints = None
            if kind == _INT64 and data.length <= 8 * 64:
                raw = self.reader.data[data.start : data.end]
                ints = tuple(
                    int.from_bytes(raw[i : i + 8], "little", signed=True) for i in range(0, len(raw), 8)
                )
            return name, _Tensor(tuple(dims), ints)
        held = sum(self.elements(f) for number in (4, 5, 7, 10, 11) for f in found.get(number, ()))
        # Two 4-bit numbers share an element of int32_data.
        if held != (count if BITS[kind] > 4 else -(-count // 2)):
            raise ContractError(f"gives the tensor {name!r} {held:,} elements for the shape {dims}")
        small = kind == _INT64 and count <= 64
        return name, _Tensor(tuple(dims), tuple(self.numbers(found.get(7, ()))) if small else None)

    def value(self, field: Field) -> None:
        """An input, output or intermediate: a tensor of at most MAX_RANK axes."""
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
        if name == "pads" and any(not 0 <= value <= 1 << 16 for value in values):
            raise ContractError(f"gives an operator {operator!r} the impossible pads {values[:MAX_RANK]}")


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
