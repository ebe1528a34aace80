"""Any module that has a step: exported, it gives what the module gives; or it is refused in a sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from ocean_export import Element, ExportError, ExportReport, State, Tensor, export
from ocean_runtime import OceanModel
from ocean_train import Ocean
from own_modules import IMU, STEPS, Cell, cell
from torch import nn


class Robot(nn.Module):
    """Two sensors, four memories of different kinds, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.ELU(), nn.Flatten())
        self.join = nn.Linear(3 * 3 * 3 + 3, 8)
        self.ocean, self.gru = Ocean(8, 16), nn.GRUCell(8, 6)
        self.speed, self.turn = nn.Linear(22, 2), nn.Linear(22, 3)
        self.dropout = nn.Dropout(0.5)

    def step(self, image: Any, imu: Any, ocean: Any, hidden: Any, line: Any, count: Any) -> Any:
        pixels = image.to(self.join.weight.dtype) / 255
        x = self.dropout(self.join(torch.cat([self.image(pixels), imu - line[:, 0]], -1)))
        seen, ocean = self.ocean.step(x, ocean)
        hidden = self.gru(x, hidden)
        both = torch.cat([seen, hidden], -1)
        line = torch.cat([line[:, 1:], imu[:, None]], 1)
        return (self.speed(both), self.turn(both).argmax(-1)), (ocean, hidden, line, count + 1)


def robot() -> Robot:
    torch.manual_seed(0)
    return Robot().eval()


ROBOT: dict[str, Any] = {
    "inputs": [Tensor("image", "uint8", ("B", 1, 8, 8)), IMU],
    "outputs": [
        Tensor("speed", "float32", ("B", 2), elements=(Element("v.x", "m/s"), Element("v.y", "m/s"))),
        Tensor("turn", "int64", ("B",)),
    ],
    "states": [
        State("ocean", "ocean_next", "float32", ("B", 16)),
        State("hidden", "hidden_next", "float32", ("B", 6), 0.5),
        State("line", "line_next", "float32", ("B", 2, 3)),
        State("count", "count_next", "int64", ("B", 1)),
    ],
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    path = tmp_path_factory.mktemp("module") / "robot.onnx"
    return export(robot(), path, **ROBOT, rate_hz=50, steps=200)


def test_the_file_gives_what_the_module_gives(report: ExportReport) -> None:
    """An own loop over the module, and the runtime's stream."""
    stream, module = OceanModel.load(report.path).stream(), robot()
    random = np.random.default_rng(0)
    states = [torch.zeros(1, 16), torch.full((1, 6), 0.5), torch.zeros(1, 2, 3), torch.zeros(1, 1).long()]
    for _ in range(50):
        image = random.integers(0, 256, (1, 8, 8)).astype(np.uint8)
        imu = random.standard_normal(3).astype(np.float32)
        with torch.no_grad():
            (speed, turn), states = module.step(torch.tensor(image)[None], torch.tensor(imu)[None], *states)
        found = stream.step_all({"image": image, "imu": imu})
        np.testing.assert_allclose(found["speed"], speed[0].numpy(), atol=1e-4)
        assert found["turn"] == turn[0].item()
    assert stream.snapshot().states["count"].item() == 50


def test_the_report_and_the_contract_say_what_it_is(report: ExportReport) -> None:
    contract = OceanModel.load(report.path).contract
    assert contract.rate_hz == 50 and contract.inputs[1].elements[0] == Element("rate.x", "rad/s")
    assert [s.input for s in contract.states] == ["ocean", "hidden", "line", "count"]
    assert contract.max_time_constant == pytest.approx(128)
    assert report.parity.batches == (1, 2, 7) and report.parity.reference == "float64"
    assert set(report.parity.closed_loop) == {
        "speed",
        "turn",
        "ocean_next",
        "hidden_next",
        "line_next",
        "count_next",
    }
    assert json.loads(report.to_json())["parity"]["single_step"]["speed"]["share"] < 1
    proto = onnx.load(report.path)
    assert not {n.op_type for n in proto.graph.node} & {"If", "Loop", "Dropout"}


class Dropping(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def step(self, x: Any, h: Any) -> Any:
        return super().step(self.dropout(x), h)


def test_the_module_is_left_as_it_was_and_its_weights_say_whose_a_state_is(tmp_path: Path) -> None:
    module = Dropping()
    module.dropout.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    random_state = torch.get_rng_state()
    first = cell(module, tmp_path / "m.onnx", steps=2)
    assert module.training and torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.w.weight.requires_grad
    assert cell(module, tmp_path / "again.onnx", steps=2).state_id == first.state_id
    with torch.no_grad():
        module.w.bias += 1
    assert cell(module, tmp_path / "other.onnx", steps=2).state_id != first.state_id


def test_an_ocean_by_itself(tmp_path: Path) -> None:
    torch.manual_seed(1)
    ocean = Ocean(3, 8)
    export(
        ocean, tmp_path / "o.onnx", inputs=[IMU], outputs=[Tensor("y", "float32", ("B", 8))],
        states=[State("ocean", "ocean_next", "float32", ("B", 8))], steps=STEPS,
    )  # fmt: skip
    stream = OceanModel.load(tmp_path / "o.onnx").stream(batch=3)
    x = torch.randn(3, 20, 3)
    wanted, _ = ocean(x)
    for t in range(20):
        y = stream.step(x[:, t].numpy())
    np.testing.assert_allclose(y, wanted[:, -1].detach().numpy(), atol=1e-4)


def test_an_output_that_is_the_next_state(tmp_path: Path) -> None:
    cell(Cell(), tmp_path / "m.onnx")
    stream = OceanModel.load(tmp_path / "m.onnx").stream()
    y = stream.step(np.ones(3, np.float32))
    assert np.array_equal(y, stream.ocean)


class ReadsNext(Cell):
    """Names of the contract that are names of weights and nodes of the graph too."""

    def step(self, x: Any, h: Any) -> Any:
        y, h = super().step(x, h)
        return y + 1, h


@pytest.mark.parametrize("names", [("linear", "w.weight"), ("model.w.weight", "add"), ("val_0", "imu/x.1")])
def test_any_name_will_do(names: tuple[str, str], tmp_path: Path) -> None:
    x, y = names
    cell(
        ReadsNext(), tmp_path / "m.onnx", steps=2,
        inputs=[Tensor(x, "float32", ("B", 3))], outputs=[Tensor(y, "float32", ("B", 4))],
    )  # fmt: skip
    found = OceanModel.load(tmp_path / "m.onnx").stream().step_all({x: np.ones(3, np.float32)})[y]
    with torch.no_grad():
        np.testing.assert_allclose(
            found, ReadsNext().step(torch.ones(1, 3), torch.zeros(1, 4))[0][0], atol=1e-6
        )


def test_one_stream_without_a_batch_axis(tmp_path: Path) -> None:
    report = cell(
        Cell(), tmp_path / "m.onnx", inputs=[Tensor("x", "float32", (3,))],
        outputs=[Tensor("y", "float32", (4,))], states=[State("h", "h_next", "float32", (4,), (1.0, 2.0, 3.0, 4.0))],
    )  # fmt: skip
    assert report.parity.share < 1
    y = OceanModel.load(tmp_path / "m.onnx").stream().step(np.zeros(3, np.float32))
    module = Cell()
    with torch.no_grad():
        np.testing.assert_allclose(y, module.step(torch.zeros(3), torch.tensor([1.0, 2, 3, 4]))[0], atol=1e-6)


class BatchSecond(Cell):
    def step(self, x: Any, gain: Any, h: Any) -> Any:
        y, h = super().step(x * gain, h[0])
        return y.T, h[None]


def test_a_batch_axis_elsewhere_and_a_constant(tmp_path: Path) -> None:
    cell(
        BatchSecond(), tmp_path / "m.onnx",
        inputs=[IMU, Tensor("gain", "float32", (1,), constant=2.0)],
        outputs=[Tensor("y", "float32", (4, "B"))], states=[State("h", "h_next", "float32", (1, "B", 4))],
    )  # fmt: skip


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.u = nn.Embedding(5, 4), nn.Linear(4, 4)

    def step(self, word: Any, h: Any) -> Any:
        h = torch.tanh(self.table(word) + self.u(h))
        return h, h


@pytest.mark.parametrize(
    "known",
    [
        {"inputs": [Tensor("word", "int64", ("B",))], "examples": {"word": [0, 3, 4, 1]}},
        {"inputs": [Tensor("word", "int64", ("B", 1), elements=(Element("id", low=0, high=4),))]},
    ],
)
def test_whole_numbers_from_examples_or_ranges(known: dict[str, Any], tmp_path: Path) -> None:
    class Flat(Lookup):
        def step(self, word: Any, h: Any) -> Any:
            return super().step(word.reshape(-1), h)

    cell(Flat(), tmp_path / "m.onnx", **known)


class Single(Cell):
    """Its step makes a float32 tensor of its own, and so can't run in float64."""

    def step(self, x: Any, h: Any) -> Any:
        return super().step(x.float(), h)


def test_a_step_that_only_runs_in_float32(tmp_path: Path) -> None:
    lines: list[str] = []
    report = cell(Single(), tmp_path / "m.onnx", log=lines.append)
    assert report.parity.reference == "float32" and "trained model in float32" in lines[0]


class Utm(Cell):
    def step(self, x: Any, h: Any) -> Any:
        y, h = super().step(x, h)
        return 100 * y, h


def test_references_are_the_caller_s(tmp_path: Path) -> None:
    """Examples come in the caller's units, and the graph sees them less their references."""
    names = tuple(Element(n, "m", reference=5e6) for n in "abc")
    cell(
        Utm(), tmp_path / "m.onnx", inputs=[Tensor("x", "float32", ("B", 3), elements=names)],
        examples={"x": 5e6 + np.random.default_rng(0).standard_normal((30, 3))},
    )  # fmt: skip
    y = OceanModel.load(tmp_path / "m.onnx").stream().step(np.array([5e6 + 0.25, 5e6, 5e6 - 1]))
    with torch.no_grad():
        wanted, _ = Utm().step(torch.tensor([[0.25, 0, -1.0]]), torch.zeros(1, 4))
    np.testing.assert_allclose(y, wanted[0], atol=1e-4)


@pytest.mark.parametrize(
    "name", ["speed.bias", "join.weight", "gru.weight_hh", "ocean.embed.weight", "image.0.weight"]
)
def test_a_graph_that_is_off_by_more_than_rounding_is_refused(
    name: str, report: ExportReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One weight of the graph differs by 1e-3."""
    from ocean_export import module as exporting

    proto = onnx.load(report.path)
    (weight,) = (w for w in proto.graph.initializer if w.name == name)
    values = onnx.numpy_helper.to_array(weight).copy()
    values.reshape(-1)[0] += 1e-3
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    monkeypatch.setattr(exporting, "_graph", lambda *_: proto)
    with pytest.raises(ExportError, match=r"the exported graph differs from the trained model by up to"):
        export(robot(), tmp_path / "m.onnx", **ROBOT, steps=STEPS)
    assert not list(tmp_path.iterdir())
