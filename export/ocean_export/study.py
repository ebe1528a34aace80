"""What a report says of an exported file: how it does on held-out data, what it reads, and how long its past lasts."""

from __future__ import annotations

import copy
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime import OceanModel
from ocean_runtime.sampling import log_softmax
from ocean_train.checkpoint import Checkpoint
from ocean_train.influence import Influence
from ocean_train.model import OceanTransformer
from ocean_train.observations import InUnits, Stepper

from ocean_export.heldout import Heldout, heldout_of

Array = NDArray[Any]

STEPS = 2_000
"""Held-out steps that are read, at most."""
PLACES, BEFORE, AFTER = 32, 64, 256
"""Streams of which one input is changed, steps that are read before it, and steps that are followed after it."""
TIMED = 2_000
"""Steps that are timed, after as many that are not."""


@dataclass(frozen=True)
class Score:
    """An error on held-out data."""

    name: str
    unit: str
    value: float
    baseline: float | None = None
    """The same error of what needs no model; see `Study.baseline`."""


@dataclass(frozen=True)
class Study:
    """What was measured of one exported file on its checkpoint's held-out data."""

    steps: int
    """Held-out steps, in order, each state fed to the next step."""
    scores: tuple[Score, ...]
    baseline: str
    """What `Score.baseline` is of; empty where there is none."""
    state_drift: Array
    """(steps,): |o_file − o_trained| / |o_trained| in the closed loop, the trained model in float64."""
    output_drift: Array
    """(steps,): the largest difference of an output, in nats of a log-probability, or in standard deviations."""
    read_weights: Array
    """(L, H): how much each head reads the ocean, the mean over the steps."""
    influence: Influence | None
    """How long one changed input moves the state; None where no held-out episode is long enough."""
    step_us: float
    """Microseconds of a step of the runtime on this machine, the median."""
    step_us_p99: float
    machine: str


def study(saved: Checkpoint, exported: OceanModel, stepper: Stepper, seed: int = 0) -> Study:
    """Measure a file against the checkpoint that it was made of.

    Raises ValueError where the checkpoint holds no held-out data.
    """
    if len(saved.heldout) < 2:
        raise ValueError(
            "the checkpoint holds no held-out data to report on; train it again, or leave out the report"
        )
    data = heldout_of(saved)
    if len(data.inputs) > STEPS:
        data = Heldout(data.inputs[:STEPS], data.targets[:STEPS], data.reset[:STEPS], data.unit)
    outputs, state_drift, output_drift, weights = _closed_loop(exported, stepper, data)
    scores, baseline = _scores(saved, data, outputs)
    step_us, step_us_p99 = _step_time(exported, data)
    return Study(
        steps=len(data.inputs),
        scores=scores,
        baseline=baseline,
        state_drift=state_drift,
        output_drift=output_drift,
        read_weights=weights,
        influence=_influence(exported, data, np.random.default_rng(seed)),
        step_us=step_us,
        step_us_p99=step_us_p99,
        machine=_machine(),
    )


@torch.no_grad()
def _closed_loop(exported: OceanModel, stepper: Stepper, data: Heldout) -> tuple[Array, Array, Array, Array]:
    """Outputs of the file (N, K) less the references, both drifts (N,), and the mean read weights (L, H)."""
    trained = copy.deepcopy(stepper).double()
    core = trained.model if isinstance(trained, InUnits) else trained
    assert isinstance(core, OceanTransformer)
    entry, state = exported.contract.inputs[0].name, exported.contract.states[0].input
    tokens = not data.inputs.is_floating_point()
    N = len(data.inputs)
    outputs, state_drift, output_drift = [], np.zeros(N), np.zeros(N)
    weights = torch.zeros(core.config.layers, core.config.heads, dtype=torch.float64)
    ocean, ours = trained.initial_ocean(1), exported.initial_state(1)[state]
    for t in range(N):
        if data.reset[t]:
            ocean, ours = trained.initial_ocean(1), exported.initial_state(1)[state]
        x = data.inputs[t : t + 1]
        exact = x if tokens else x.double()
        weights += _read_weights(
            core, trained.normalise(exact) if isinstance(trained, InUnits) else exact, ocean
        )
        expected, ocean = trained.step(exact, ocean)
        found, ours = exported.compute({entry: x.numpy(), state: ours})
        outputs.append(found[0])
        state_drift[t] = np.linalg.norm(ours - ocean.numpy()) / max(float(ocean.norm()), 1e-12)
        if trained.config.head == "regression":
            output_drift[t] = np.abs((found - expected.numpy()) / data.unit.numpy()).max()
        else:
            output_drift[t] = np.abs(log_softmax(found) - log_softmax(expected.numpy())).max()
    return np.array(outputs), state_drift, output_drift, (weights / N).numpy()


def _read_weights(core: OceanTransformer, x: torch.Tensor, ocean: torch.Tensor) -> torch.Tensor:
    """What the model's input (1, ·) reads of the ocean (1, D) in each layer and head: (L, H)."""
    x, found = core.embed(x), []
    for block in core.blocks:
        found.append(block.read_weight(x, ocean)[0, :, 0])  # type: ignore[operator]
        x = block(x, ocean)
    return torch.stack(found)


def _scores(saved: Checkpoint, data: Heldout, outputs: Array) -> tuple[tuple[Score, ...], str]:
    observations, targets = saved.observations, data.targets.numpy()
    if observations is None or observations.target == "classes":
        nats = -log_softmax(outputs)[np.arange(len(targets)), targets]
        common = float((targets == np.bincount(targets).argmax()).mean())
        right = float((outputs.argmax(axis=1) == targets).mean())
        if observations is None:
            loss = (Score("loss", "nats a token", float(nats.mean())),)
            return (
                *loss,
                Score("most likely token is right", "share", right, common),
            ), "the most common token"
        return (
            Score("loss", "nats", float(nats.mean())),
            Score("accuracy", "share", right, common),
        ), "the most common class"
    predicts = observations.target == "next"
    guess = data.inputs.numpy() if predicts else targets.mean(axis=0, keepdims=True)

    def error(estimates: Array) -> Array:
        found: Array = np.sqrt(np.square(estimates.astype(np.float64) - targets).mean(axis=0))
        return found

    pairs = zip(observations.outputs, error(outputs), error(guess), strict=True)
    scores = tuple(Score(e.name, e.unit, float(found), float(base)) for e, found, base in pairs)
    return scores, "the last value" if predicts else "the mean"


def _influence(exported: OceanModel, data: Heldout, random: np.random.Generator) -> Influence | None:
    """The distance of two states after one input of PLACES streams was changed: the median over the streams."""
    entry, state = exported.contract.inputs[0].name, exported.contract.states[0].input
    inputs, reset = data.inputs.numpy(), data.reset.numpy()
    begin = np.flatnonzero(np.concatenate(([True], reset[1:])))
    length = np.diff(np.append(begin, len(inputs)))
    after = int(min(AFTER, length.max() - BEFORE - 1))
    if after < 2:
        return None
    fits = np.flatnonzero(length > BEFORE + after)
    episode = random.choice(fits, PLACES)
    start = begin[episode] + random.integers(length[episode] - BEFORE - after)
    first = exported.initial_state(PLACES)[state]
    for t in range(BEFORE):
        *_, first = exported.compute({entry: inputs[start + t], state: first})
    elsewhere = inputs[random.integers(len(inputs), size=PLACES)]
    second, distances = first, []
    for t in range(after + 1):
        same = inputs[start + BEFORE + t]
        changed = elsewhere if t == 0 else same
        *_, first = exported.compute({entry: same, state: first})
        *_, second = exported.compute({entry: changed, state: second})
        size = np.maximum(np.linalg.norm(first, axis=1), 1e-12)
        distances.append(np.median(np.linalg.norm(second - first, axis=1) / size))
    found = np.array(distances, np.float64)
    return Influence(found) if np.isfinite(found).all() and found[0] > 0 else None


def _step_time(exported: OceanModel, data: Heldout) -> tuple[float, float]:
    """Microseconds of `stream.step`: the median, and what 1% of the steps exceed."""
    stream, reference = exported.stream(), exported.contract.inputs[0].reference
    inputs = data.inputs.numpy()
    xs: Any = inputs.tolist() if inputs.ndim == 1 else inputs + (0 if reference is None else reference)
    times = []
    for i in range(2 * TIMED):
        start = time.perf_counter_ns()
        stream.step(xs[i % len(xs)])
        times.append((time.perf_counter_ns() - start) / 1000)
    kept = times[TIMED:]
    return statistics.median(kept), float(np.quantile(kept, 0.99))


def _machine() -> str:
    import onnxruntime

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    processor = next(named, platform.processor() or platform.machine())
    return f"{processor}, onnxruntime {onnxruntime.__version__}, one thread"
