"""What is refused before onnxruntime sees a byte: each with a sentence that says what was found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_runtime import ContractError, OceanModel
from ocean_runtime.protobuf import Reader, Span, WireError
from ocean_runtime.scan import MAX_DEPTH, scan
from onnx import TensorProto, helper, numpy_helper

Change = Callable[[onnx.ModelProto], Any]


@pytest.fixture(scope="module")
def proto(tiny_path: Path) -> onnx.ModelProto:
    model = onnx.load(tiny_path)
    del model.metadata_props[1:]  # the seal
    return model


def node(kind: str, inputs: int = 1, **attributes: Any) -> Change:
    made = helper.make_node(kind, ["ocean"] * inputs, ["made"], **attributes)
    return lambda model: model.graph.node.append(made)


def sized(kind: str, sizes: list[int], constant_node: bool = False) -> Change:
    def change(model: onnx.ModelProto) -> None:
        tensor = numpy_helper.from_array(np.array(sizes), "sizes")
        if constant_node:
            model.graph.node.append(helper.make_node("Constant", [], ["sizes"], value=tensor))
        else:
            model.graph.initializer.append(tensor)
        inputs = ["sizes"] if kind == "ConstantOfShape" else ["ocean", "sizes"]
        model.graph.node.append(helper.make_node(kind, inputs, ["made"]))

    return change


def valued(kind: str, inputs: str, value: Any, typed: bool = False) -> Change:
    """A node of which an input `s` has a value; `x` is computed, and what is empty is left out."""

    def change(model: onnx.ModelProto) -> None:
        array = np.asarray(value)
        tensor = numpy_helper.from_array(array, "s")
        if typed:
            tensor = helper.make_tensor("s", tensor.data_type, array.shape, array.reshape(-1).tolist())
        model.graph.initializer.append(tensor)
        names = [{"x": "ocean"}.get(name, name) for name in inputs.split(" ")]
        model.graph.node.append(helper.make_node(kind, names, ["made"]))

    return change


def hidden(kind: str) -> Change:
    """OneHot in a graph within, whose depth has the name of a constant outside but is another tensor."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array(3), "s"))
        inner = [helper.make_node("OneHot", ["ocean", "s", "ocean"], ["y"])]
        value = helper.make_tensor_value_info("s", TensorProto.INT64, [])
        if kind == "If":
            inner.insert(0, helper.make_node("Identity", ["t"], ["s"]))
        body = helper.make_graph(inner, "g", [value] if kind == "Scan" else [], [])
        name = "body" if kind == "Scan" else "then_branch"
        model.graph.node.append(helper.make_node(kind, ["ocean"], ["made"], **{name: body}))

    return change


def nested(model: onnx.ModelProto) -> None:
    inner = helper.make_graph([helper.make_node("Identity", ["ocean"], ["y"])], "g", [], [])
    for _ in range(MAX_DEPTH + 1):
        inner = helper.make_graph([helper.make_node("If", ["c"], ["y"], then_branch=inner)], "g", [], [])
    model.graph.node.extend(inner.node)


def external(model: onnx.ModelProto) -> None:
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="/etc/passwd")


def weight(**fields: Any) -> Change:
    def change(model: onnx.ModelProto) -> None:
        tensor = model.graph.initializer[0]
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(tensor, name)[:] = value
            else:
                setattr(tensor, name, value)

    return change


def declared(*dims: int) -> Change:
    return lambda model: model.graph.value_info.append(helper.make_tensor_value_info("v", 1, dims))


def blocks(**changed: int) -> Change:
    attributes = {"K": 16, "N": 8, "bits": 4, "block_size": 16, **changed}

    def change(model: onnx.ModelProto) -> None:
        for name, array in (("packed", np.zeros((8, 1, 8), np.uint8)), ("scales", np.zeros(8, np.float32))):
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        inputs = ["ocean", "packed", "scales"]
        model.graph.node.append(
            helper.make_node("MatMulNBits", inputs, ["made"], domain="com.microsoft", **attributes)
        )

    return change


def sequence(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_sequence_value_info("odd", 1, [1]))


def function(model: onnx.ModelProto) -> None:
    model.functions.append(helper.make_function("d", "f", ["a"], ["b"], [], []))


REFUSED: list[tuple[Change, str]] = [
    (node("Loop"), "uses the operator 'Loop'"),
    (node("Range", 3), "uses the operator 'Range'"),
    (node("Attention", domain="com.microsoft"), "'Attention' of com.microsoft"),
    (node("Add", domain="somebody.else"), "'Add' of somebody.else"),
    (node("Conv", 2, strides=[0]), "the impossible strides 0"),
    (node("Conv", 2, dilations=[1, -1]), "the impossible dilations -1"),
    (node("Conv", 2, group=0), "the impossible group 0"),
    (node("Conv", 2, pads=[1 << 40]), "the impossible pads"),
    (node("LSTM", 3, hidden_size=0), "the impossible hidden_size 0"),
    (node("DepthToSpace", blocksize=1 << 20), "the impossible blocksize"),
    (node("Softmax", axis=1 << 40), "the impossible axis"),
    (node("Softmax", axis=list(range(2000))), "a list has more than"),
    (node("Add", 2, odd=helper.make_graph([], "g", [], [])), "a graph, which it has no use for"),
    (node("Constant", value_strings=["a"]), "holds strings"),
    (sized("ConstantOfShape", [1 << 20, 1 << 20]), "more than 16,777,216 elements by 'ConstantOfShape'"),
    (sized("ConstantOfShape", [1 << 20, 1 << 20], constant_node=True), "more than 16,777,216 elements"),
    (sized("Expand", [1 << 40]), "more than 16,777,216 elements by 'Expand'"),
    (sized("Tile", [1 << 30]), "more than 16,777,216 elements by 'Tile'"),
    (
        node("ConvTranspose", 2, strides=[300, 300]),
        r"the strides \[300, 300\], whose product is more than 65,536",
    ),
    (node("ConvTranspose", 2, dilations=[1 << 20]), "the dilations"),
    (node("ConvTranspose", 2, output_padding=[1 << 17]), "the impossible output_padding"),
    (node("ConvTranspose", 2, output_padding=[-1]), "the impossible output_padding"),
    (node("ConvTranspose", 2, output_shape=[1 << 20, 1 << 20]), "the output_shape .* more than 16,777,216"),
    (node("ConvTranspose", 2, output_shape=[0]), "the impossible output_shape 0"),
    (node("MaxPool", kernel_shape=[1 << 20]), "the kernel_shape .* more than 65,536"),
    (node("AveragePool", kernel_shape=[1 << 31], auto_pad="SAME_LOWER"), "the kernel_shape"),
    (node("AveragePool", kernel_shape=[2], strides=[0]), "the impossible strides 0"),
    (valued("OneHot", "x s x", np.array(1 << 25)), "'OneHot' a size of more than 16,777,216 by input 1"),
    (valued("OneHot", "x s x", np.float32(1e30)), "'OneHot' a size of more than 16,777,216"),
    (valued("OneHot", "x s x", np.array(-2, np.int32)), "'OneHot' the impossible size -2 by input 1"),
    (valued("OneHot", "x s x", np.array([2, 3])), "'OneHot' 2 numbers by input 1, not one"),
    (
        valued("OneHot", "x s x", np.array(5, np.uint8)),
        "computes input 1 .*'OneHot', which must be a constant",
    ),
    (valued("OneHot", "x x x", np.array(5)), "computes input 1 of an operator 'OneHot'"),
    (
        valued("Resize", "x  s", np.float32([1, 1, 300, 300])),
        "'Resize' a size of more than 65,536 by input 2",
    ),
    (valued("Resize", "x  s", np.float32([1, 1, -2, 2])), "'Resize' the impossible size -2"),
    (valued("Resize", "x  s", np.float64([1, np.nan])), "'Resize' the impossible size"),
    (valued("Resize", "x s", np.float32([1, 1 << 20])), "'Resize' a size of more than 65,536 by input 1"),
    (
        valued("Resize", "x   s", np.array([1, 1, 5000, 5000])),
        "'Resize' a size of more than 16,777,216 by input 3",
    ),
    (valued("Resize", "x   s", np.array([0, 1])), "'Resize' the impossible size 0"),
    (valued("Resize", "x   x", np.array([1])), "computes input 3 of an operator 'Resize'"),
    (valued("STFT", "x s", np.array(0)), "'STFT' the impossible size 0 by input 1"),
    (valued("STFT", "x s  x", np.array(1)), "computes input 3 of an operator 'STFT'"),
    (valued("STFT", "x s  s", np.array(1 << 25)), "'STFT' a size of more than 16,777,216"),
    (hidden("Scan"), "computes input 1 of an operator 'OneHot'"),
    (hidden("If"), "computes input 1 of an operator 'OneHot'"),
    (nested, "nests graphs deeper than"),
    (external, "external data"),
    (weight(data_location=TensorProto.EXTERNAL), "in another file"),
    (weight(dims=[1 << 40, 1 << 40]), r"bytes for the shape"),
    (weight(dims=[-1]), "the impossible shape"),
    (weight(dims=[1] * 9), "the impossible shape"),
    (weight(data_type=TensorProto.STRING), "the element type 8"),
    (weight(data_type=99), "the element type 99"),
    (weight(raw_data=b""), "0 bytes for the shape"),
    (declared(1 << 40), "declares 'v' with the impossible shape"),
    (declared(-3), "declares 'v' with the impossible shape"),
    (sequence, "declares 'odd' as something else than a tensor"),
    (function, "holds local functions"),
    (blocks(N=9), "not what K and N say"),
    (blocks(K=1 << 30), "not what K and N say"),
    (blocks(bits=3), "the impossible bits 3"),
    (blocks(block_size=0), "the impossible block_size 0"),
    (lambda model: model.graph.sparse_initializer.add(), "sparse tensors"),
    (lambda model: model.training_info.add(), "training information"),
    (lambda model: model.metadata_props.add(key="ocean_state", value="{}"), "holds two contracts"),
    (lambda model: model.ClearField("graph"), "holds no graph"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_what_no_step_graph_needs_is_refused(proto: onnx.ModelProto, change: Change, message: str) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    change(model)
    with pytest.raises(ContractError, match=message):
        scan(model.SerializeToString())


def test_what_a_step_graph_needs_passes(proto: onnx.ModelProto) -> None:
    for change in (
        blocks(),
        node("Conv", 2, strides=[2], pads=[1, 1]),
        sized("Expand", [4, 16]),
        declared(4, 16),
        node("ConvTranspose", 2, strides=[2, 2], output_padding=[1, 1], dilations=[1, 1]),
        node("MaxPool", kernel_shape=[3, 3], strides=[2, 2]),
        valued("OneHot", "x s x", np.array([50_000])),
        valued("OneHot", "x s x", np.float32(3), typed=True),
        valued("OneHot", "x s x", np.array(3, np.int32), typed=True),
        valued("Resize", "x  s", np.float32([1, 1, 2, 0.5]), typed=True),
        valued("Resize", "x  s", np.float64([1, 1, 2, 0.5]), typed=True),
        valued("Resize", "x s", np.float32([1, 1, 2, 2])),
        valued("Resize", "x   s", np.array([1, 1, 64, 64])),
        valued("STFT", "x s  s", np.array(4)),
    ):
        model = onnx.ModelProto()
        model.CopyFrom(proto)
        change(model)
        assert scan(model.SerializeToString()) == proto.metadata_props[0].value


def test_typed_data_is_counted_packed_or_not(proto: onnx.ModelProto) -> None:
    for kind, values in (
        (TensorProto.FLOAT, [1.0, 2.0]),
        (TensorProto.INT64, [1 << 40, -1]),
        (TensorProto.DOUBLE, [1.0, 2.0]),
    ):
        for shape, right in (([2], True), ([3], False)):
            model = onnx.ModelProto()
            model.CopyFrom(proto)
            tensor = helper.make_tensor("t", kind, [2], values)
            tensor.dims[:] = shape
            model.graph.initializer.append(tensor)
            if right:
                scan(model.SerializeToString())
            else:
                with pytest.raises(ContractError, match="2 elements for the shape"):
                    scan(model.SerializeToString())


def test_a_message_given_twice_is_refused_since_parsers_would_merge_it(tiny_path: Path) -> None:
    data = tiny_path.read_bytes()
    with pytest.raises(ContractError, match="is there twice"):
        scan(data + data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80" * 11, "a number doesn't end"),
        (b"\x00\x00", "field number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x0a\x05ab", "ends within a field"),
        (b"\x0d\x00", "ends within a field"),
        (b"\x08\x01" * 20, "more fields"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        list(Reader(data, 10).fields(Span(0, len(data))))


def test_many_fields_are_refused_in_bounded_time() -> None:
    with pytest.raises(ContractError, match="more fields than a step graph needs"):
        scan(b"\x12\x00" * 300_000)


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_bytes_are_scanned_or_refused(data: bytes) -> None:
    with pytest.raises(ContractError):
        scan(data)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_any_damage_is_scanned_or_refused(tiny_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(tiny_path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        scan(bytes(damaged))
    except ContractError as error:
        assert str(error).isprintable()


def test_load_scans_first(proto: onnx.ModelProto, tmp_path: Path) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    node("Conv", 2, strides=[0])(model)
    path = tmp_path / "zero.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ContractError, match=r"zero\.onnx gives an operator 'Conv' the impossible strides 0"):
        OceanModel.load(path)


def test_dropout_runs_for_inference_only(proto: onnx.ModelProto) -> None:
    """With its third input true it draws at random: a step would differ from itself."""
    for inputs, refused in ((1, False), (3, True)):
        model = onnx.ModelProto()
        model.CopyFrom(proto)
        node("Dropout", inputs)(model)
        if refused:
            with pytest.raises(ContractError, match="'Dropout' with a training mode"):
                scan(model.SerializeToString())
        else:
            assert scan(model.SerializeToString())
