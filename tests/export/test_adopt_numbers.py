"""ocean-export adopt: a number that its tensor can't hold is refused by a sentence, never wrapped or cut."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from ocean_export import cli
from ocean_runtime import OceanModel
from onnx import TensorProto, helper


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """n' = n + 1, y = x + k + flag + h, with n int32, k int64, flag bool, h float16."""
    kinds = {
        "x": TensorProto.FLOAT,
        "k": TensorProto.INT64,
        "flag": TensorProto.BOOL,
        "h": TensorProto.FLOAT16,
        "n": TensorProto.INT32,
        "y": TensorProto.FLOAT,
        "n_next": TensorProto.INT32,
    }
    values = {name: helper.make_tensor_value_info(name, kind, [2]) for name, kind in kinds.items()}
    nodes = [
        helper.make_node("Cast", [name], [f"{name}f"], to=TensorProto.FLOAT) for name in ("k", "flag", "h")
    ]
    nodes += [helper.make_node("Sum", ["x", "kf", "flagf", "hf"], ["y"])]
    nodes += [helper.make_node("Add", ["n", "one"], ["n_next"])]
    graph = helper.make_graph(
        nodes,
        "numbers",
        [values[name] for name in ("x", "k", "flag", "h", "n")],
        [values["y"], values["n_next"]],
        [helper.make_tensor("one", TensorProto.INT32, [], [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "foreign.onnx")
    return tmp_path / "foreign.onnx"


def adopted(foreign: Path, **given: str) -> int:
    numbers = {"k": "1", "flag": "1", "h": "0.5", "n": "0", **given}
    options = [f"--const={name}={numbers[name]}" for name in ("k", "flag", "h")]
    options += [f"--initial=n={numbers['n']}", "--state=n:n_next"]
    return cli.main(["adopt", str(foreign), "-o", str(foreign.with_name("out.onnx")), *options])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "k",
            "1e30",
            "--const gives 'k' 1e+30, and it is int64: give a whole number from -9223372036854775808",
        ),
        ("k", "0.5", "whole number"),
        ("k", "nan", "whole number"),
        ("k", "inf", "whole number"),
        ("flag", "2", "--const gives 'flag' 2, and it is bool: give a whole number from 0 to 1"),
        ("h", "1e5", "--const gives 'h' 100000, and it is float16: give a finite number in its range"),
        ("h", "nan", "finite number"),
        (
            "n",
            "3e9",
            "--initial gives 'n' 3e+09, and it is int32: give a whole number from -2147483648 to 2147483647",
        ),
        ("n", "0.5", "--initial gives 'n' 0.5"),
        ("n", "-inf", "--initial gives 'n' -inf"),
    ],
)
def test_a_number_that_does_not_fit_is_refused(
    foreign: Path, capsys: pytest.CaptureFixture[str], name: str, value: str, message: str
) -> None:
    assert adopted(foreign, **{name: value}) == 1
    assert message in capsys.readouterr().err
    assert not foreign.with_name("out.onnx").exists()


def test_numbers_that_fit_are_taken_as_they_are(foreign: Path) -> None:
    assert adopted(foreign, n="-2147483648", h="-65504", k="3") == 0
    stream = OceanModel.load(foreign.with_name("out.onnx")).stream()
    assert np.array_equal(stream.step([1.0, 2.0]), [1.0 + 3 + 1 - 65504, 2.0 + 3 + 1 - 65504])
    assert stream.ocean.tolist() == [-2147483647] * 2
