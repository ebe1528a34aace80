"""The verification that decides whether an export is good: its steps, and long closed loops, against the trained model.

The reference is the trained model's own `step` in float64. The file computes in float32, so it differs by rounding,
and by how much depends on the model: what one processor's float32 gives says nothing about what another's may. So
the allowance comes from the model. Some *neighbours* of it, float64 copies whose weights are moved by one rounding of
float32 each, and whose outputs and states are rounded to float32 at each step, show how far roundings carry; the
file may differ by a fixed multiple of that.

- **A single step**, from the oceans of the trained model's own loop, is where a fault shows. It may differ by FACTOR
  times the neighbours' spread.
- **The closed loop**, in which each side is fed its own state as it will be on the robot, shows what accumulates.
  Where a model magnifies rounding, its allowance grows with it. A row is compared as long as its neighbours stay
  together; a model that magnifies without bound (a chaotic one) is compared up to there.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime.model import OceanModel
from ocean_train.observations import Observations, Stepper
from torch import Tensor, nn

Array = NDArray[Any]

STEPS = 1000
RECORDED_STEPS = 5_000
"""Steps over a recording; where it has fewer rows than 2 x 5,000, half of those, and at least STEPS."""
BATCHES = (1, 2, 7)
"""Streams that step together: alone, a pair, and an odd number that no vector width divides."""
ROWS = 2 * sum(BATCHES)
"""Streams in all: each batch once from random oceans, and once from the initial one."""
CUTS = tuple(accumulate((2 * BATCHES)[:-1]))
"""Where the rows of a trial are cut into these."""
MORE_BATCHES = range(1, 17)
"""Every tenth step is taken at one of these sizes too, or at one of 17 to 64 that the file's weights draw."""

ROUNDING = 2.0**-24
"""The largest relative error of rounding to float32."""
NEIGHBOURS = 3
FACTOR = 4
"""How many times the neighbours' spread a single step may differ: two for the roundings that a neighbour does not
have, inside LayerNorm, gelu and softmax and in weights that the graph has folded together; two because the largest
of the file's errors is compared with the largest of a sample."""
LOOP_FACTOR = 16
"""The same for a closed loop. Where a loop magnifies roundings, one direction grows, and how much of it a rounding has
is a random number. For the file to have 16 times as much as each of three neighbours has a probability of 2e-4 (3e-5
for half of that, as the file's roundings are fewer than a neighbour's), and 4 times as much one of 0.01: for each
row by itself, and there are 20."""
MOST = 0.01
"""The largest error of a state, as a share of its size, that still says that two loops are the same."""
QUANTILE = 0.99
"""A step's allowance is at least that which this share of the steps has: a small spread at one may be luck."""
ROUNDINGS = 4
"""An error of so many roundings of a quantity's largest value is always allowed."""

MAGNITUDE = 0.01
"""How much of a quantity's size counts beside its standard deviation. A height of 100 ± 0.1 m has an error of one
in the tenth; but float32 rounds it by 1e-5 of a metre."""

Module = TypeVar("Module", bound=nn.Module)
Pair = tuple[Array, Array]
"""Output and state."""


@dataclass(frozen=True)
class Error:
    """The errors of one tensor.

    Relative: max|Δ| / max(1, max|reference|); for quantities, in their standard deviations, each by itself, and with
    0.01 of |reference| in its place: what stays the same about a quantity must not hide what is wrong about it.
    """

    largest: float
    allowed: float
    """The largest error that is allowed anywhere. Each step and number has an allowance of its own."""
    share: float
    """How much of its allowance an error takes at most; above 1 it is refused."""
    step: int
    """Where that is, from 1."""


@dataclass(frozen=True)
class Parity:
    """What verification measured and allowed, by tensor (`output`, `state`)."""

    steps: int
    batches: tuple[int, ...]
    single_step: Mapping[str, Error]
    closed_loop: Mapping[str, Error]
    predictable_steps: int
    """From the start of the trial on, how many steps all rows of the closed loop were compared."""
    compared: float
    """The share of the closed loop's rows and steps that was compared: 1 but for a model that magnifies rounding."""
    reference: str = "float64"
    """The precision of the trained model that the file was compared with."""

    @property
    def passed(self) -> bool:
        """Whether each error is within what is allowed."""
        return all(error.share <= 1 for _, error in self._errors())

    @property
    def share(self) -> float:
        """The largest share of an allowance that was taken."""
        return max(error.share for _, error in self._errors())

    @property
    def between_files(self) -> float:
        """What two right files may differ by over the predictable steps: each as much as a closed loop may."""
        return 2 * max(error.allowed for error in self.closed_loop.values())

    def _errors(self) -> Iterator[tuple[str, Error]]:
        for place, errors in (("single step", self.single_step), ("closed loop", self.closed_loop)):
            for tensor, error in errors.items():
                yield f"the {tensor} in a {place}", error

    @property
    def failure(self) -> str:
        """What is wrong, where it did not pass."""
        what, error = next((what, error) for what, error in self._errors() if not error.share <= 1)
        if not np.isfinite(error.share):
            return f"gives numbers that are not finite in {what}, at step {error.step}"
        return (
            f"differs from the trained model by up to {error.largest:.1e} in {what}; at step {error.step} that is "
            f"{error.share:.2g} times what rounding to float32 can explain"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values for the contract."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        def said(errors: Mapping[str, Error]) -> str:
            found = " and ".join(f"{tensor} {error.largest:.1e}" for tensor, error in errors.items())
            return f"{found} ({max(error.share for error in errors.values()):.0%} of what rounding explains)"

        batches = ", ".join(map(str, self.batches))
        text = (
            f"largest error over {self.steps:,} steps of {ROWS} streams at batch {batches} against the trained model "
            f"in {self.reference}: "
            f"a single step {said(self.single_step)}, the closed loop {said(self.closed_loop)}"
        )
        if self.compared < 1:
            text += (
                f"; this model magnifies rounding, so that two right computations of it part: the closed loop was "
                f"compared as far as they agree ({self.predictable_steps:,} steps at least, {self.compared:.1%} of "
                "all), every single step from the trained model's own states"
            )
        return text


@dataclass(frozen=True)
class Trial:
    """What both sides of a closed loop read: ROWS streams for T steps."""

    inputs: Array
    """(T, R) int64, or (T, R, M) float32."""
    ocean: Array
    """(R, D): where each row starts. The second half are the initial ocean."""
    unit: Array | float = 1.0
    """(outputs,): errors of the output are measured in these; for quantities, their standard deviations."""


def make_trial(
    model: Stepper,
    steps: int = STEPS,
    seed: int = 0,
    observations: Observations | None = None,
    recording: Array | None = None,
) -> Trial:
    """Random non-zero oceans and initial ones, and random valid inputs, every token id among them.

    Or, where there is a recording (N, M) in its units, that: each row begins elsewhere in it, and at its end
    begins anew, for up to 5,000 steps.
    """
    config = model.config
    random = np.random.default_rng(seed)
    ocean = np.concatenate(
        [
            random.standard_normal((ROWS // 2, config.width)).astype(np.float32),
            model.initial_ocean(ROWS // 2).numpy().astype(np.float32),
        ]
    )
    inputs: Array
    if observations is not None and recording is not None:
        steps = max(steps, min(len(recording) // 2, RECORDED_STEPS))
        places = np.arange(steps)[:, None] + np.arange(ROWS) * len(recording) // ROWS  # (T, R)
        inputs = observations.relative(recording)[places % len(recording)].astype(np.float32)
        return Trial(inputs, ocean, 1.0 if observations.target == "classes" else observations.unit)
    if config.kind == "tokens":
        steps = max(steps, -(-config.inputs // ROWS))
        inputs = random.integers(config.inputs, size=(steps, ROWS))
        inputs.reshape(-1)[: config.inputs] = random.permutation(config.inputs)
    else:
        inputs = random.standard_normal((steps, ROWS, config.inputs)).astype(np.float32)
    return Trial(inputs, ocean)


class Step(NamedTuple):
    """One step of the trained model's own closed loop, and how far roundings carry its neighbours from it."""

    before: Array
    """(R, D) float32: the oceans that it starts from."""
    wanted: Pair
    """Output (R, outputs) and state (R, D), float64; rounded to float32 the state goes into the next step."""
    single: Pair
    """The neighbours' largest error of a single step from the same oceans: of each number as `groups` has them."""
    loop: Pair
    """The same in their own closed loops, of the rows that are predictable."""
    predictable: Array
    """(R,) whether all neighbours' loops have stayed with the model's so far."""


@torch.no_grad()
def reference(model: Stepper, trial: Trial) -> Iterator[Step]:
    """The trained model's closed loop in float64, step by step, and its neighbours' spread about it."""
    exact = copy.deepcopy(model).double().eval()
    neighbours = [neighbour_of(exact, seed) for seed in range(NEIGHBOURS)]
    every = np.ones(ROWS, bool)
    ocean, predictable = torch.from_numpy(trial.ocean), every
    oceans = [ocean] * NEIGHBOURS
    for t, x in enumerate(trial.inputs):
        inputs = torch.from_numpy(x)
        output, state = exact.step(inputs.double() if inputs.is_floating_point() else inputs, ocean.double())
        single, loops = None, []
        for i, neighbour in enumerate(neighbours):
            if i == t % NEIGHBOURS:  # one of them takes the single step too: the steps share its cost
                y, after = neighbour.step(torch.cat([inputs, inputs]), torch.cat([ocean, oceans[i]]))
                single = y[:ROWS] - output, after[:ROWS] - state
            else:
                y, after = neighbour.step(inputs, oceans[i])
            oceans[i] = after[-ROWS:]
            loops.append((y[-ROWS:] - output, oceans[i] - state))
        assert single is not None
        size = MOST / LOOP_FACTOR * state.norm(dim=-1)
        predictable = predictable & np.all([(d.norm(dim=-1) <= size).numpy() for _, d in loops], axis=0)
        yield Step(
            ocean.numpy(),
            (output.numpy(), state.numpy()),
            _spread([single], trial.unit, every),
            _spread(loops, trial.unit, predictable),
            predictable,
        )
        ocean = state.float()


def neighbour_of(exact: Module, seed: int) -> Module:
    """A float32 copy with each weight moved by what rounding in float32 does to the sums that it is in.

    A float32 product of K terms is the exact one of weights moved by up to √K roundings, in whichever order its sums
    are taken (the probabilistic bound of Higham and Mary, 2019), and one more for the weight's own. Constants in units
    (`InUnits`) stay: they are the same in the file.
    """
    moved = copy.deepcopy(exact)
    random = torch.Generator().manual_seed(seed)

    def noise(like: Tensor, roundings: float) -> Tensor:
        return roundings * ROUNDING * (2 * torch.rand(like.shape, generator=random, dtype=like.dtype) - 1)

    for module in moved.modules():
        for name, weight in module.named_parameters(recurse=False):
            if name == "decay_logit":  # what is rounded is λ, whose distance from 1 is what matters
                kept = torch.sigmoid(weight)
                weight.copy_(torch.logit((kept + noise(kept, 1)).clamp(ROUNDING / 2, 1 - ROUNDING / 2)))
            else:
                weight.mul_(1 + noise(weight, 1 + _summed(module, weight) ** 0.5))
    return moved.float()


def _summed(module: nn.Module, weight: Tensor) -> int:
    """K, the terms of the sums that a weight is in: 0 where it is in none."""
    if weight.dim() < 2 or isinstance(module, nn.Embedding | nn.LayerNorm):
        return 0
    if isinstance(module, nn.Linear):
        return weight.shape[1]
    return max(weight[0].numel(), weight[:, 0].numel())  # of a convolution, a cell, or a matrix of one's own


def _spread(errors: Sequence[tuple[Tensor, Tensor]], unit: Array | float, rows: Array) -> Pair:
    """The largest of the neighbours' errors over those rows, as `groups` has them."""
    outputs, states = zip(*errors, strict=True)
    output, state = (np.stack([e.numpy() for e in part])[:, rows] for part in (outputs, states))
    return groups((output, state), unit)


def more_batches(weights: int) -> list[int]:
    """MORE_BATCHES, and one of 17 to 64 that a number made of the model's weights draws."""
    return [*MORE_BATCHES, len(MORE_BATCHES) + 1 + weights % 48]


def groups(values: Pair, unit: Array | float) -> Pair:
    """The largest |values| over all rows: of each quantity (K,), or of all logits (1,); of each of the state (D,)."""
    return largest_of(values[0], unit, bool(np.ndim(unit))), largest_of(values[1])


def largest_of(values: Array, unit: Array | float = 1.0, each: bool = True) -> Array:
    """The largest |values| (..., K) in units of `unit`: of `each` number (K,), or of all of them (1,)."""
    sizes = (np.abs(values) / unit).reshape(-1, values.shape[-1] if each else 1)
    largest: Array = sizes.max(axis=0, initial=0)
    return largest


def verify(exported: OceanModel, trial: Trial, expected: Iterable[Step]) -> Parity:
    """Run the exported file over the trial, at each batch size, and compare it with `expected`, its reference."""
    single, loop = Errors(trial.unit, FACTOR), Errors(trial.unit, LOOP_FACTOR)
    digest = int(exported.contract.state_id.removeprefix("sha256:")[:8], 16)
    sizes = more_batches(digest)
    compared: list[Array] = []
    for t, (found, step) in enumerate(zip(closed_loop(exported, trial), expected, strict=True)):
        x, at = trial.inputs[t], step.predictable
        loop.add((found[0][at], found[1][at]), (step.wanted[0][at], step.wanted[1][at]), step.loop)
        compared.append(at)
        taken = [(np.arange(ROWS), _step(exported, x, np.split(step.before, CUTS)))]
        if t % 10 == 0:
            chosen = (np.arange(sizes[t // 10 % len(sizes)]) + t // 10) % ROWS
            taken.append((chosen, _compute(exported, x[chosen], step.before[chosen])))
        which = np.concatenate([places for places, _ in taken])
        outputs, states = zip(*(result for _, result in taken), strict=True)
        wanted = step.wanted[0][which], step.wanted[1][which]
        single.add((np.concatenate(outputs), np.concatenate(states)), wanted, step.single)
    whole = np.all(compared, axis=1)
    return Parity(
        len(trial.inputs),
        BATCHES,
        single.largest(),
        loop.largest(),
        len(whole) if whole.all() else int(np.argmin(whole)),
        float(np.mean(compared)),
    )


class TensorErrors:
    """The errors of one tensor over the steps of a trial, and what is allowed of them, as they come."""

    def __init__(self, factor: float, unit: Array | float = 1.0, each: bool = True) -> None:
        """`factor`: how many times the spread is allowed. `each`, `unit`: see `largest_of`."""
        self._factor, self._unit, self._each = factor, unit, each
        self._found: list[Array] = []
        self._spread: list[Array] = []
        self._size: Array = np.zeros(1)

    def add(self, found: Array, wanted: Array, spread: Array | None = None) -> None:
        """A step's values (R, ..., K), what they should be, and the spread as `largest_of` gives it."""
        self._found.append(largest_of(found.astype(np.float64) - wanted, self._unit, self._each))
        self._spread.append(np.zeros(1) if spread is None else spread)
        self._size = np.fmax(self._size, largest_of(wanted, self._unit, self._each))  # whatever is NaN

    def largest(self) -> Error:
        """Over all steps that were added."""
        found, spread, size = np.array(self._found), np.array(self._spread), self._size
        rounding = np.maximum(spread, np.quantile(spread, QUANTILE, axis=0))  # (T, groups)
        allowed = np.maximum(self._factor * rounding, ROUNDINGS * ROUNDING * size)
        used = found / np.maximum(allowed, np.finfo(np.float64).tiny)
        used[~np.isfinite(used)] = np.inf
        scale = np.maximum(1, MAGNITUDE * size if np.ndim(self._unit) else size.max())
        return Error(
            largest=float((found / scale).max()),
            allowed=float((allowed / scale).max()),
            share=float(used.max()),
            step=int(np.argmax(used.max(axis=1))) + 1,
        )


class Errors:
    """`TensorErrors` of the output and of the state."""

    def __init__(self, unit: Array | float, factor: float = FACTOR) -> None:
        """`factor`: how many times the spread is allowed."""
        self._output, self._state = TensorErrors(factor, unit, bool(np.ndim(unit))), TensorErrors(factor)

    def add(self, found: Pair, wanted: Pair, spread: Pair | None = None) -> None:
        """A step's output (R, outputs) and state (R, D), what they should be, and the spread as `groups` gives it."""
        output, state = spread or (None, None)
        self._output.add(found[0], wanted[0], output)
        self._state.add(found[1], wanted[1], state)

    def largest(self) -> dict[str, Error]:
        """By tensor, over all steps that were added."""
        return {"output": self._output.largest(), "state": self._state.largest()}


def closed_loop(model: OceanModel, trial: Trial) -> Iterator[Pair]:
    """The exported file's own closed loop: output (R, outputs) and state (R, D) of each step."""
    state = model.contract.states[0].input
    initial = [model.initial_state(batch)[state] for batch in BATCHES]
    oceans = [*np.split(trial.ocean, CUTS)[: len(BATCHES)], *initial]
    for x in trial.inputs:
        output, ocean = _step(model, x, oceans)
        oceans = np.split(ocean, CUTS)
        yield output, ocean


def _step(model: OceanModel, x: Array, oceans: list[Array]) -> Pair:
    """One step of all rows, at each batch size by itself: output (R, outputs), state (R, D)."""
    results = [_compute(model, rows, ocean) for rows, ocean in zip(np.split(x, CUTS), oceans, strict=True)]
    return np.concatenate([output for output, _ in results]), np.concatenate([after for _, after in results])


def _compute(model: OceanModel, x: Array, ocean: Array) -> Pair:
    output, after = model.compute({model.contract.inputs[0].name: x, model.contract.states[0].input: ocean})
    return output, after
