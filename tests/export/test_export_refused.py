"""A step that no file can be made of, or that is described wrongly: refused in a sentence, and nothing is written."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from ocean_export import ExportError, State, Tensor
from own_modules import Cell, H, cell
from torch import nn


class NoStep(nn.Linear):
    pass


class KeepsInBuffer(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def step(self, x: Any, h: Any) -> Any:
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return super().step(x, h)


class KeepsInAttribute(Cell):
    last: Any = 0.0

    def step(self, x: Any, h: Any) -> Any:
        x, self.last = x + self.last, x
        return super().step(x, h)


class ChangesArgument(Cell):
    def step(self, x: Any, h: Any) -> Any:
        h += self.w(x)
        return h, h


class IgnoresState(Cell):
    def step(self, x: Any, h: Any) -> Any:
        return super().step(x, torch.zeros_like(h))


class MixesRows(Cell):
    def step(self, x: Any, h: Any) -> Any:
        return super().step(x - x.mean(0), h)


class Drops(Cell):
    def step(self, x: Any, h: Any) -> Any:
        return super().step(nn.functional.dropout(x, 0.1, self.training), h)


class Noisy(Cell):
    def step(self, x: Any, h: Any) -> Any:
        return super().step(x + torch.randn_like(x), h)


class Normed(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def step(self, x: Any, h: Any) -> Any:
        return super().step(self.norm(x), h)


class OneResult(Cell):
    def step(self, x: Any, h: Any) -> Any:
        return super().step(x, h)[0]


class WrongShape(Cell):
    def step(self, x: Any, h: Any) -> Any:
        y, h = super().step(x, h)
        return y[:, :2], h


class WrongType(Cell):
    def step(self, x: Any, h: Any) -> Any:
        y, h = super().step(x, h)
        return y > 0, h


class NoTensor(Cell):
    def step(self, x: Any, h: Any) -> Any:
        return {"y": h}, h


class Branches(Cell):
    def step(self, x: Any, h: Any) -> Any:
        if x[0, 0] > 0:
            h = h + 1
        return super().step(x, h)


class Divides(Cell):
    def step(self, x: Any, h: Any) -> Any:
        return super().step(x / h[:, :3], h)


class Counts(Cell):
    """With an operator that the runtime refuses, since only running it tells how many numbers it makes."""

    def step(self, x: Any, h: Any) -> Any:
        y, h = super().step(x, h)
        return y + 0.0 * torch.arange(y.shape[0])[:, None], h


class FixesBatch(Cell):
    def step(self, x: Any, h: Any) -> Any:
        y, h = super().step(x, h)
        return y[torch.arange(len(y))], h


class HoldsResult(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.loss = [self.w(torch.ones(3))]


BAD: list[tuple[nn.Module, str]] = [
    (NoStep(3, 4), "NoStep has no step; write one that takes inputs"),
    (KeepsInBuffer(), "the step changes 'mean' of the module in place; .* make it a state of the step"),
    (KeepsInAttribute(), "the same call gives another 'y' after other calls, so the module keeps something"),
    (ChangesArgument(), "the step changes its argument 'h' in place; make a new tensor"),
    (IgnoresState(), "the step ignores the state 'h': no output and no next state changes with it"),
    (MixesRows(), "the rows of a batch depend on each other: 'y' of one row changes"),
    (
        Drops(),
        r"the step is random: .* 'y' with other random numbers, as dropout does in training; call .eval\(\)",
    ),
    (Noisy().eval(), "the step is random: .*; leave the random numbers out"),
    (Normed(), r"the step changes 'norm.running_mean' of the module in place; call .eval\(\) first"),
    (
        OneResult(),
        "the step gives 1 value, and its outputs and states are 2: y, h_next; return outputs, then",
    ),
    (WrongShape(), r"the step gives 'y' with shape \[4, 2\] for 4 streams, and it is described as \[B, 4\]"),
    (WrongType(), "the step gives 'y' as bool, and it is described as float32"),
    (NoTensor(), "the step gives a dict for 'y'; return a tensor"),
    (
        Divides(),
        "the step gives a 'y' that is not finite, at step 1 of inputs that are random; give recorded",
    ),
    (Branches(), "the rows of a batch depend on each other|PyTorch can't export the step: .*use torch.where"),
    (
        HoldsResult(),
        r"the module can't be copied \(Only Tensors .*\); it may hold a tensor that was computed",
    ),
    (Counts(), "the runtime refuses the exported graph: uses the operator 'Range'"),
    (
        FixesBatch(),
        "PyTorch's exporter fixed the number of streams at 2: the step makes a number of Python of it",
    ),
    (
        Cell().half(),
        "'w.weight' is float16, and weights are written in float32; convert the module with .float()",
    ),
]


@pytest.mark.parametrize(
    ("module", "message"), BAD, ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else ""
)
def test_what_no_file_can_be_made_of_is_refused_in_a_sentence(
    module: nn.Module, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError) as refused:
        cell(module, tmp_path / "m.onnx")
    assert re.match(message, str(refused.value)), str(refused.value)
    assert str(refused.value).endswith("; no file was written") and "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"inputs": [Tensor("x", "float32", ("B", 2))]},
            r"the step can't be called with what is described, step\(x, h\)",
        ),
        ({"inputs": []}, "the contract needs at least one input and one output"),
        ({"states": []}, "the contract names no state pair"),
        (
            {"inputs": [Tensor("x", "int64", ("B", 3))]},
            "which numbers the input 'x', int64, may hold is not known",
        ),
        (
            {"examples": {"z": [[0, 0, 0]]}},
            "examples names 'z', which is no input that is given; there is: imu",
        ),
        ({"examples": {"imu": [0, 0, 0]}}, r"examples gives 'imu' an array of shape \[3\]; .* have \[N, 3\]"),
        (
            {"outputs": [Tensor("y", "float32", (4,))]},
            r"'y' is described with the shape \[4\], which has no axis 'B'",
        ),
        (
            {"states": [H, State("g", "g_next", "float32", (4,))]},
            "the state 'g' has no axis 'B', and others have one",
        ),
    ],
)
def test_what_is_described_wrongly_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        cell(Cell(), tmp_path / "m.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_a_file_that_was_there_stays_when_an_export_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"what was there")
    with pytest.raises(ExportError):
        cell(Drops(), path)
    assert path.read_bytes() == b"what was there"
