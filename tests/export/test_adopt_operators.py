"""Operators of other people's models: each in an adopted graph, beside what PyTorch or NumPy computes."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign_graphs import foreign_graph, node
from numpy.typing import NDArray
from ocean_export.adopt import Said, adopt, verify
from ocean_runtime import OceanModel
from onnx import NodeProto, numpy_helper
from torch import Tensor
from torch.nn import functional as F

Array = NDArray[Any]
WEIGHT = np.random.default_rng(1).standard_normal((2, 3, 3)).astype(np.float32)
WINDOW = np.hanning(8).astype(np.float32)

SIGNAL, CHANNELS, PICTURE = (1, 16), (1, 2, 8), (1, 2, 4, 4)
CASES: dict[str, tuple[tuple[int, ...], NodeProto, dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "ReduceLogSumExp": (SIGNAL, node("ReduceLogSumExp", "s_next axes", "y", keepdims=0), {"axes": [1]},
                        lambda s: torch.logsumexp(s, 1)),
    "ReduceLogSum": (SIGNAL, node("ReduceLogSum", "positive axes", "y", keepdims=0), {"axes": [1]},
                     lambda s: s.exp().sum(1).log()),
    "MaxPool": (CHANNELS, node("MaxPool", "s_next", "y", kernel_shape=[3], strides=[2], pads=[1, 1]), {},
                lambda s: F.max_pool1d(s, 3, 2, 1)),
    "AveragePool": (PICTURE, node("AveragePool", "s_next", "y", kernel_shape=[2, 2], strides=[2, 2]), {},
                    lambda s: F.avg_pool2d(s, 2)),
    "GlobalAveragePool": (PICTURE, node("GlobalAveragePool", "s_next", "y"), {},
                          lambda s: s.mean((2, 3), keepdim=True)),
    "GlobalMaxPool": (PICTURE, node("GlobalMaxPool", "s_next", "y"), {}, lambda s: s.amax((2, 3), keepdim=True)),
    "ConvTranspose": (CHANNELS, node("ConvTranspose", "s_next w", "y", strides=[2], pads=[1, 1], output_padding=[1]),
                      {"w": WEIGHT}, lambda s: F.conv_transpose1d(s, torch.tensor(WEIGHT).to(s), None, 2, 1, 1)),
    "OneHot": (SIGNAL, node("OneHot", "places depth values", "y"), {"depth": 4, "values": np.float32([0, 1])},
               lambda s: F.one_hot(s.argmax(1) % 4, 4)),
    "Celu": (SIGNAL, node("Celu", "s_next", "y", alpha=0.5), {}, lambda s: F.celu(s, 0.5)),
    "Resize": (PICTURE, node("Resize", "s_next   sizes", "y", mode="linear"), {"sizes": [1, 2, 8, 6]},
               lambda s: F.interpolate(s, (8, 6), mode="bilinear")),
    "Resize by factors": (CHANNELS, node("Resize", "s_next  factors", "y", mode="nearest",
                                         coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
                          {"factors": np.float32([1, 1, 2])}, lambda s: F.interpolate(s, scale_factor=2)),
    "STFT": (SIGNAL, node("STFT", "s_next hop window length", "y", onesided=1),
             {"hop": 4, "window": WINDOW, "length": 8},
             lambda s: torch.view_as_real(torch.stft(s, 8, 4, window=torch.tensor(WINDOW).to(s), center=False,
                                                     return_complex=True).transpose(1, 2))),
    **{name: (SIGNAL, node(name, "inside", "y"), {}, getattr(torch, name.lower()))
       for name in ("Atan", "Asin", "Acos", "Sinh", "Cosh", "Asinh", "Atanh")},
    "Acosh": (SIGNAL, node("Acosh", "above", "y"), {}, lambda s: torch.acosh(s.exp() + 1)),
}  # fmt: skip
BEFORE = {
    "positive": [node("Exp", "s_next", "positive")],
    "places": [node("ArgMax", "s_next", "place", axis=1, keepdims=0), node("Mod", "place depth", "places")],
    "inside": [node("Tanh", "s_next", "inside")],
    "above": [node("Exp", "s_next", "positive"), node("Add", "positive one", "above")],
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_what_it_should(name: str, tmp_path: Path) -> None:
    """s' = s / 2 + x, y = operator(s'). The limit: what float32 rounds in sums of 16 terms of size 1 to 16."""
    shape, operator, constants, wanted = CASES[name]
    used = [part for given, nodes in BEFORE.items() if given in operator.input for part in nodes]
    stored = {key: np.asarray(value) for key, value in constants.items()} | {"half": np.float32(0.5)}
    stored |= {"one": np.float32(1)} if "above" in operator.input else {}
    content = foreign_graph(
        [node("Mul", "s half", "h"), node("Add", "h x", "s_next"), *used, operator],
        {"x": shape, "s": shape},
        {"y": None, "s_next": shape},
        [numpy_helper.from_array(np.asarray(value), key) for key, value in stored.items()],
    )
    (tmp_path / "m.onnx").write_bytes(adopt(content, name, Said(states={"s": "s_next"})))
    model = OceanModel.load(tmp_path / "m.onnx")
    verify(model, content, 5)
    stream, random = model.stream(), np.random.default_rng(0)
    state = np.zeros(shape, np.float32)
    for _ in range(20):
        x = random.standard_normal(shape).astype(np.float32)
        state = state * np.float32(0.5) + x
        exact = torch.tensor(state, dtype=torch.float64)
        expected = wanted(exact.tanh() if "inside" in operator.input else exact).numpy()
        found = stream.step(x)
        assert found.shape == expected.shape
        # Relative to the result's size, and where a function is steep (acosh at 1, atanh at 1) to its slope there.
        allowed = 16 * 2.0**-24 * max(16.0, float(np.abs(expected).max())) * _slope(name, exact)
        assert float(np.abs(found - expected).max()) <= allowed
    assert not math.isclose(float(np.abs(found).max()), 0)


def _slope(name: str, s: Tensor) -> float:
    inside = s.tanh()
    slopes = {
        "Atanh": 1 / (1 - inside**2),
        "Asin": (1 - inside**2) ** -0.5,
        "Acos": (1 - inside**2) ** -0.5,
        "Acosh": ((s.exp() + 1) ** 2 - 1) ** -0.5,
    }
    return max(1.0, float(slopes[name].max())) if name in slopes else 1.0
