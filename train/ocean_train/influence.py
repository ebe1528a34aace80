"""How long a model's state depends on one input.

Two runs read the same validation data, but for one input, which the second run takes from another place of the
data. The distance of their states, relative to the size of the state, is followed from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocean_train.baselines import Model, StandardTransformer
from ocean_train.batches import Data
from ocean_train.features import Sensors
from ocean_train.regimes import predict

PLACES = 64
"""Places in the validation data at which an input is changed; the median over them is reported."""
BEFORE = 64
"""Steps that are read before the changed input."""
AFTER = 512
"""Steps that are followed after it."""
LEFT = 0.01
"""The share of its first distance at which an influence counts as gone."""


@dataclass(frozen=True)
class Influence:
    """The influence of one changed input on the state."""

    distances: NDArray[np.float64]
    """(steps,): |s' − s| / |s| right after the changed input, one step later, and so on; the median over places."""

    @property
    def gone_after(self) -> int | None:
        """The first step from which at most 1% of the first distance is left to the end; None: not so soon."""
        above = np.flatnonzero(~(self.distances <= LEFT * self.distances[0]))
        steps = int(above[-1]) + 1 if len(above) else 0
        return steps if steps < len(self.distances) else None

    def describe(self, rate_hz: float | None) -> str:
        """One sentence, with seconds where the data has `rate_hz` rows a second."""

        def duration(steps: int) -> str:
            seconds = f" ({steps / rate_hz:.3g} s)" if rate_hz else ""
            return f"{steps} step{'' if steps == 1 else 's'}{seconds}"

        gone = self.gone_after
        last = (
            f"1% of that is left after {duration(gone)}"
            if gone is not None
            else f"after {duration(len(self.distances) - 1)} {self.distances[-1] / self.distances[0]:.0%} is left"
        )
        return f"one changed input moves the state by {self.distances[0]:.0%} of its size; {last}"


@torch.no_grad()
def measure(model: Model, data: Data | Sensors, seed: int = 0) -> Influence | None:
    """The influence of one input on the state of `model`, over the validation data.

    None where the model has no state (the standard Transformer), where no part of the data is long enough, or where
    a state is not finite.
    """
    if isinstance(model, StandardTransformer):
        return None
    windows = _windows(data, np.random.default_rng(seed))
    if windows is None:
        return None
    inputs, other = (w.to(next(model.parameters()).device) for w in windows)
    state = None
    if inputs.shape[1] > other.shape[1]:
        _, state = predict(model, inputs[:, : -other.shape[1]])
    changed, same = other, inputs[:, -other.shape[1] :]
    first, second, distances = state, state, []
    for t in range(changed.shape[1]):
        _, first = predict(model, same[:, t : t + 1], first)
        _, second = predict(model, changed[:, t : t + 1], second)
        size = first.flatten(1).norm(dim=1).clamp(min=1e-12)
        distances.append(((second - first).flatten(1).norm(dim=1) / size).double().cpu())
    found = torch.stack(distances).median(dim=1).values.numpy()
    return Influence(found) if np.isfinite(found).all() and found[0] > 0 else None


def _windows(data: Data | Sensors, random: np.random.Generator) -> tuple[Tensor, Tensor] | None:
    """Inputs of PLACES windows (R, BEFORE + S, ·), and their last S <= AFTER + 1 steps with the first one changed."""
    if isinstance(data, Data):
        begin, length = np.zeros(1, np.int64), np.array([len(data.validation)])
    else:
        begin, length = data.validation.begin, data.validation.pairs
    S = int(min(AFTER + 1, length.max(initial=0) - BEFORE))
    if S < 2:
        return None
    fits = np.flatnonzero(length >= BEFORE + S)
    episode = random.choice(fits, PLACES)
    start = begin[episode] + random.integers(length[episode] - BEFORE - S + 1)
    places = start[:, None] + np.arange(BEFORE + S)
    changed = np.roll(places[:, BEFORE:], 1, axis=0)[
        :, :1
    ]  # the input of the place before, which is elsewhere

    def read(at: NDArray[np.int64]) -> Tensor:
        if isinstance(data, Data):
            return data.validation[torch.from_numpy(at)]
        return data.tensors(at)[0]

    inputs = read(places)
    other = inputs[:, BEFORE:].clone()
    other[:, :1] = read(changed)
    return inputs, other


def plot(found: Mapping[str, Influence], path: Path, rate_hz: float | None) -> None:
    """Draw the distances against the steps after the changed input, or the seconds, into a PNG."""
    from matplotlib.figure import Figure  # a Figure of its own draws with Agg: no display needed

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, influence in found.items():
        time = np.arange(len(influence.distances)) / (rate_hz or 1.0)
        axes.semilogy(time, np.maximum(influence.distances, 1e-7), label=name)
    axes.set(
        xlabel="seconds after the changed input" if rate_hz else "steps after the changed input",
        ylabel="distance of the states / size of the state",
        ylim=(1e-6, None),
    )
    axes.set_title("How long the state depends on one input (median)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
