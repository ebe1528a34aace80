"""A small module that has a step, and its export, for the tests of exporting modules."""

from pathlib import Path
from typing import Any

import torch
from ocean_export import Element, ExportReport, State, Tensor, export
from torch import nn

IMU = Tensor("imu", "float32", ("B", 3), elements=tuple(Element(f"rate.{a}", "rad/s") for a in "xyz"))
H = State("h", "h_next", "float32", ("B", 4))
STEPS = 40


class Cell(nn.Module):
    """h' = tanh(x W + h U), y = h'; `change` makes of it what a test is about."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w, self.u = nn.Linear(3, 4), nn.Linear(4, 4)

    def step(self, x: Any, h: Any) -> Any:
        h = torch.tanh(self.w(x) + self.u(h))
        return h, h


Y = Tensor("y", "float32", ("B", 4))


def cell(module: nn.Module, path: Path, **options: Any) -> ExportReport:
    described = {"inputs": [IMU], "outputs": [Y], "states": [H], "steps": STEPS}
    return export(module, path, **{**described, **options})
