"""Mutations with structure: of models, contracts and snapshots, so that most stay whole enough to get far."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

import numpy as np
import onnx
from ocean_runtime.operators import MICROSOFT, STANDARD
from onnx import AttributeProto, TensorProto, helper, numpy_helper

NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    8,
    9,
    16,
    63,
    64,
    255,
    1 << 15,
    1 << 20,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 40,
    -(1 << 62),
)
FLOATS = (0.0, -0.0, 1e-45, 1e38, -1e38, float("nan"), float("inf"), float("-inf"), 1.0, -1.0)
TYPES = (1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 16, 21, 22, 8, 14, 17)

ATTRIBUTES = """
axis axes keepdims to transA transB alpha strides dilations pads kernel_shape group hidden_size direction
layout input_forget clip blocksize mode perm num_outputs batch_dims exclusive reverse upper fmod largest
sorted num_scan_inputs scan_input_axes scan_input_directions epsilon block_size bits accuracy_level
auto_pad equation
"""


def mutate_model(model: onnx.ModelProto, rng: random.Random) -> bytes:
    """One to four mutations of the graph, now and then of the bytes."""
    model = copy.deepcopy(model)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        graph = rng.choice(_graphs(model.graph))
        rng.choice(_OF_GRAPHS)(graph, rng)
    if rng.random() < 0.03:
        rng.choice(_OF_MODELS)(model, rng)
    data = model.SerializeToString()
    return mutate_bytes(data, rng) if rng.random() < 0.05 else data


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat or overwrite some bytes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not out:
            return b""
        at = rng.randrange(len(out))
        match rng.randrange(5):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.choice((0, 1, 127, 128, 255))
            case 2:
                del out[at : at + rng.randint(1, 64)]
            case 3:
                out[at:at] = out[at : at + rng.randint(1, 64)]
            case _:
                del out[at:]
    return bytes(out)


def mutate_json(value: Any, rng: random.Random) -> Any:
    """The same JSON values with one to three of them changed, moved, dropped or made absurd."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        holders = list(_holders(value))
        if not holders:
            return value
        holder, key = rng.choice(holders)
        choice = rng.randrange(12)
        if choice == 0:
            del holder[key]
        elif choice == 1:
            other, place = rng.choice(holders)
            if place in (other if isinstance(other, dict) else range(len(other))):
                holder[key] = copy.deepcopy(other[place])
        elif choice == 2 and isinstance(holder, list):
            holder.extend(holder[: 1 << rng.randrange(10)])
        elif choice == 3:
            holder[key] = json.loads("[" * 60 + "]" * 60)
        elif choice == 4:
            holder[key] = rng.choice(("\x1b[2J", "\ud800", "a" * 5000, "", "..", "/etc/passwd", "\0"))
        else:
            numbers = (
                *NUMBERS,
                *FLOATS,
                10**400,
                None,
                True,
                [],
                {},
                "B",
                "float32",
                "tokens",
                "raw",
                "bool",
            )
            holder[key] = rng.choice(numbers)
    return value


def json_text(value: Any, rng: random.Random) -> str:
    """As JSON, now and then with something that no writer makes."""
    text = json.dumps(value)
    if rng.random() < 0.1:
        text = mutate_bytes(text.encode(), rng).decode(errors="replace")
    if rng.random() < 0.01:
        text = rng.choice(
            ("[" * 100_000, '{"a":' * 50_000, "1e999", "9" * 10_000, f'{{"version": {"9" * 5000}}}')
        )
    return text


def mutate_snapshot(data: bytes, rng: random.Random, rechecksum: Any) -> bytes:
    """Mutate header or bytes; half of the time with a checksum that fits again, so that the rest is looked at."""
    if rng.random() < 0.3:
        return mutate_bytes(data, rng)
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    about = json.loads(header["__metadata__"]["ocean_snapshot"])
    if rng.random() < 0.6:
        about = mutate_json(about, rng)
        if isinstance(about, dict) and rng.random() < 0.8:
            about = rechecksum(data, about)
    else:
        header = mutate_json(header, rng)
    if isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
        header["__metadata__"]["ocean_snapshot"] = json.dumps(about)
    text = json.dumps(header).encode(errors="surrogatepass")
    length = (
        len(text)
        if rng.random() < 0.9
        else rng.choice((0, 1, len(text) - 1, 1 << 20, 1 << 40, (1 << 64) - 1))
    )
    return struct.pack("<Q", length) + text + data[8 + struct.unpack("<Q", data[:8])[0] :]


def _holders(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _holders(inner)


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    inner = [a.g for n in graph.node for a in n.attribute if a.type == AttributeProto.GRAPH]
    return [graph, *(g for each in inner for g in _graphs(each))]


def _names(graph: onnx.GraphProto) -> list[str]:
    made = [o for n in graph.node for o in n.output]
    return [*(v.name for v in graph.input), *(w.name for w in graph.initializer), *made, ""]


def _attribute(graph: onnx.GraphProto, rng: random.Random) -> None:
    attributes = [a for n in graph.node for a in n.attribute]
    if not attributes:
        return _rewire(graph, rng)
    a = rng.choice(attributes)
    if a.type == AttributeProto.INT:
        a.i = rng.choice(NUMBERS)
    elif a.type == AttributeProto.FLOAT:
        a.f = rng.choice(FLOATS)
    elif a.type == AttributeProto.STRING:
        a.s = rng.choice(
            (
                b"",
                b"Relu",
                b"SAME_UPPER",
                b"linear",
                b"edge",
                b"ij,jk->ik",
                b"...ij->...ji",
                b"\xff",
                b"x" * 999,
            )
        )
    elif a.type == AttributeProto.INTS:
        if a.ints and rng.random() < 0.7:
            a.ints[rng.randrange(len(a.ints))] = rng.choice(NUMBERS)
        elif rng.random() < 0.5:
            a.ints.append(rng.choice(NUMBERS))
        else:
            del a.ints[:]
    return None


def _new_attribute(graph: onnx.GraphProto, rng: random.Random) -> None:
    name = rng.choice(ATTRIBUTES.split())
    numbers: list[Any] = [
        rng.choice(NUMBERS),
        [rng.choice(NUMBERS) for _ in range(rng.randrange(1, 4))],
        rng.choice(FLOATS),
    ]
    node = rng.choice(graph.node) if graph.node else None
    if node is not None and name not in [a.name for a in node.attribute]:
        node.attribute.append(helper.make_attribute(name, rng.choice((*numbers, "bidirectional"))))


def _weight(graph: onnx.GraphProto, rng: random.Random) -> None:
    if not graph.initializer:
        return _rewire(graph, rng)
    w = rng.choice(graph.initializer)
    try:
        array = numpy_helper.to_array(w).copy()
    except (ValueError, TypeError, KeyError):  # it was mutated before
        return None
    choice = rng.randrange(6)
    if choice == 0 and array.size:
        value = rng.choice(FLOATS if array.dtype.kind == "f" else NUMBERS)
        with np.errstate(all="ignore"):
            array.reshape(-1)[rng.randrange(array.size)] = np.array(value).astype(array.dtype)
    elif choice == 1:
        array = array.reshape(rng.choice(((-1,), (1, -1), (-1, 1), (1, -1, 1))))
    elif choice == 2:
        array = np.resize(array, [rng.choice((0, 1, 2, 3, 8, 9, 31, 32)) for _ in range(rng.randrange(4))])
    elif choice == 3:
        w.data_type = rng.choice(TYPES)
        return None
    elif choice == 4 and w.dims:
        w.dims[rng.randrange(len(w.dims))] = rng.choice(NUMBERS)
        return None
    else:
        kinds = (np.float32, np.float64, np.int64, np.int32, np.uint8, np.int8, np.bool_, np.float16)
        with np.errstate(all="ignore"):
            array = np.nan_to_num(array).astype(rng.choice(kinds))
    w.CopyFrom(numpy_helper.from_array(array, w.name))
    return None


def _rewire(graph: onnx.GraphProto, rng: random.Random) -> None:
    nodes = [n for n in graph.node if n.input]
    if nodes:
        node = rng.choice(nodes)
        node.input[rng.randrange(len(node.input))] = rng.choice(_names(graph))


def _inputs(graph: onnx.GraphProto, rng: random.Random) -> None:
    if graph.node:
        node = rng.choice(graph.node)
        if node.input and rng.random() < 0.5:
            node.input.pop()
        else:
            node.input.append(rng.choice(_names(graph)))


def _operator(graph: onnx.GraphProto, rng: random.Random) -> None:
    if graph.node:
        node = rng.choice(graph.node)
        microsoft = rng.random() < 0.2
        node.op_type = rng.choice(sorted(MICROSOFT if microsoft else STANDARD))
        node.domain = "com.microsoft" if microsoft else ""
        if rng.random() < 0.02:
            node.op_type, node.domain = rng.choice(
                (("Loop", ""), ("Range", ""), ("Attention", "com.microsoft"), ("X", "x"))
            )


def _insert(graph: onnx.GraphProto, rng: random.Random) -> None:
    """A new node between a node and one of its inputs."""
    nodes = [i for i, n in enumerate(graph.node) if n.input]
    if not nodes:
        return
    at = rng.choice(nodes)
    node = graph.node[at]
    place = rng.randrange(len(node.input))
    count, name = rng.choice((1, 1, 1, 2, 2, 3)), f"new{rng.randrange(1 << 30)}"
    inputs = [node.input[place], *(rng.choice(_names(graph)) for _ in range(count - 1))]
    new = helper.make_node(rng.choice(sorted(STANDARD)), inputs, [name])
    node.input[place] = name
    before = list(graph.node)
    before.insert(at, new)
    del graph.node[:]
    graph.node.extend(before)


def _nodes(graph: onnx.GraphProto, rng: random.Random) -> None:
    if graph.node:
        at = rng.randrange(len(graph.node))
        if rng.random() < 0.4:
            del graph.node[at]
        elif rng.random() < 0.5:
            node = copy.deepcopy(graph.node[at])
            node.output[:] = [f"{name}_again" for name in node.output]
            graph.node.append(node)
        else:
            nodes = list(graph.node)
            rng.shuffle(nodes)
            del graph.node[:]
            graph.node.extend(nodes)


def _values(graph: onnx.GraphProto, rng: random.Random) -> None:
    values = [*graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    tensor = rng.choice(values).type.tensor_type
    if rng.random() < 0.3:
        tensor.elem_type = rng.choice(TYPES)
    elif tensor.shape.dim and rng.random() < 0.7:
        dim = rng.choice(tensor.shape.dim)
        if rng.random() < 0.3:
            dim.dim_param = rng.choice(("B", "T", ""))
        else:
            dim.dim_value = rng.choice(NUMBERS)
    else:
        tensor.shape.dim.add(dim_value=rng.choice(NUMBERS))


def _opset(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.opset_import:
        rng.choice(model.opset_import).version = rng.choice((0, 1, 7, 9, 11, 13, 15, 17, 19, 21, 23, 99, -1))


def _version(model: onnx.ModelProto, rng: random.Random) -> None:
    model.ir_version = rng.choice((0, 1, 3, 4, 7, 9, 10, 11, 99))


def _external(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.initializer:
        w = rng.choice(model.graph.initializer)
        w.data_location = TensorProto.EXTERNAL
        w.external_data.add(key="location", value="/etc/passwd")


def _nest(model: onnx.ModelProto, rng: random.Random) -> None:
    """A branch within a branch, as deep as it comes."""
    inner = copy.deepcopy(model.graph)
    for _ in range(rng.choice((2, 5, 20, 60))):
        node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
        inner = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, None)])
        if inner.ByteSize() > 1 << 20:
            break
    model.graph.node.extend(inner.node)


def _grow(model: onnx.ModelProto, rng: random.Random) -> None:
    """Doubling by Concat: thirty nodes make eight gigabytes."""
    name = model.graph.input[0].name
    for i in range(rng.choice((8, 20, 30, 40))):
        model.graph.node.append(helper.make_node("Concat", [name, name], [f"grow{i}"], axis=0))
        name = f"grow{i}"
    model.graph.node.append(helper.make_node("ReduceSum", [name], ["grown"], keepdims=0))
    first = next((n for n in model.graph.node if n.op_type == "Identity" and n.output[0] == "y"), None)
    if first is not None and first.input:
        moved = copy.deepcopy(first)
        model.graph.node.remove(first)
        model.graph.node.append(helper.make_node("Add", [moved.input[0], "grown"], list(moved.output)))


_OF_GRAPHS = (
    _attribute,
    _attribute,
    _new_attribute,
    _weight,
    _weight,
    _rewire,
    _inputs,
    _operator,
    _insert,
    _nodes,
    _values,
)
_OF_MODELS = (_opset, _version, _external, _nest, _grow)
