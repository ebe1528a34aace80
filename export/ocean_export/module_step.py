"""Somebody's own module as a function of a step, for any number of rows, and numbers to try it on.

Axes: R rows (independent streams). Arrays here have their rows first, whatever axis the module has for its batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime import OceanError
from ocean_runtime.contract import BATCH, DTYPES, FLOATS, Contract, State, show_shape, sized
from ocean_runtime.contract import Tensor as Described
from torch import Tensor, nn

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Compute = Callable[[dict[str, Array]], Sequence[Array]]
"""All inputs and states by name, as the module or the graph takes them -> outputs, then next states."""

REACHED_STEPS = 32
"""Steps after which half of a trial's rows begin, so that their states are such as the module reaches."""


class StepError(OceanError):
    """The module's step does not keep what was said of it."""


def flatten(result: Any) -> list[Any]:
    """What a step returns, without its tuples and lists: outputs, then next states."""
    if isinstance(result, tuple | list):
        return [item for part in result for item in flatten(part)]
    return [result]


def values_of(contract: Contract) -> list[Described | State]:
    """What a step takes, in the order of its arguments: inputs, then states."""
    return [*contract.inputs, *contract.states]


def name_of(value: Described | State) -> str:
    """An input's name, or that of a state's input."""
    return value.input if isinstance(value, State) else value.name


def results_of(contract: Contract) -> list[tuple[str, str, tuple[int | str, ...]]]:
    """Name, dtype and shape of what a step gives: outputs, then next states."""
    outputs = [(t.name, t.dtype, t.shape) for t in contract.outputs]
    return outputs + [(s.output, s.dtype, s.shape) for s in contract.states]


def batched(contract: Contract) -> bool:
    """Whether a step takes several streams at once."""
    return all(s.batch_axis is not None for s in contract.states)


def step_of(module: nn.Module) -> Callable[..., Any]:
    """The module's step. Raises StepError where it has none."""
    found: Callable[..., Any] | None = getattr(module, "step", None)
    if found is None or not callable(found):
        raise StepError(
            f"{type(module).__name__} has no step; write one that takes inputs, then states, and returns outputs, "
            "then the next states"
        )
    return found


class ModuleStep:
    """A copy of the module on the CPU, as a function of arrays.

    `precise`: in float64, what it takes and gives too.
    """

    def __init__(self, module: nn.Module, contract: Contract, precise: bool = False) -> None:
        self.module = module.double() if precise else module
        self.contract, self.precise = contract, precise

    def tensors(self, feed: Arrays) -> list[Tensor]:
        """The arguments of a call, fresh copies of the arrays."""
        return [torch.tensor(feed[name_of(v)], dtype=self._dtype(v.dtype)) for v in values_of(self.contract)]

    @torch.no_grad()
    def call(self, feed: Arrays) -> Any:
        """What the module returns, whatever that is."""
        return step_of(self.module)(*self.tensors(feed))

    def __call__(self, feed: Arrays) -> list[Array]:
        """Outputs, then next states. Raises StepError where it gives something else than the contract says."""
        rows = next((feed[name_of(v)].shape[v.shape.index(BATCH)] for v in values_of(self.contract)
                     if BATCH in v.shape), 1)  # fmt: skip
        found, wanted = flatten(self.call(feed)), results_of(self.contract)
        if len(found) != len(wanted):
            names = ", ".join(name for name, _, _ in wanted)
            raise StepError(
                f"the step gives {len(found)} value{'s' * (len(found) != 1)}, and its outputs and states are "
                f"{len(wanted)}: {names}; return outputs, then the next states, in that order"
            )
        for value, (name, dtype, shape) in zip(found, wanted, strict=True):
            if not isinstance(value, Tensor):
                raise StepError(f"the step gives a {type(value).__name__} for {name!r}; return a tensor")
            if value.dtype != self._dtype(dtype):
                raise StepError(
                    f"the step gives {name!r} as {str(value.dtype).removeprefix('torch.')}, and it is described as "
                    f"{dtype}; convert it in the step, or describe it as it is"
                )
            if tuple(value.shape) != sized(shape, rows):
                raise StepError(
                    f"the step gives {name!r} with shape {show_shape(value.shape)} for {rows} "
                    f"stream{'s' * (rows != 1)}, and it is described as {show_shape(shape)}"
                )
        return [value.detach().numpy() for value in found]

    def _dtype(self, name: str) -> torch.dtype:
        return torch.float64 if self.precise and name in FLOATS else getattr(torch, name)


def copied(module: nn.Module) -> nn.Module:
    """A copy on the CPU that nothing else holds. Raises StepError where it can't be copied."""
    try:
        return copy.deepcopy(module).cpu()
    except Exception as error:
        why = first_line(error).split(".")[0]
        raise StepError(
            f"the module can't be copied ({why}); it may hold a tensor that was computed: export a module of the parts "
            "that a step needs, or set that attribute to None"
        ) from None


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, at most 300 characters."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def in_rows(contract: Contract, compute: Compute, given: Arrays) -> list[Array]:
    """A step of R rows: all by name (R, ...) -> outputs, then next states (R, ...).

    Where the contract has no batch axis, each row is a step of its own.
    """
    rows = len(next(iter(given.values())))
    if not batched(contract):
        every = [compute({name: array[row] for name, array in given.items()}) for row in range(rows)]
        return [np.stack(parts) for parts in zip(*every, strict=True)]
    results = []
    for result, (_, _, shape) in zip(compute(as_taken(contract, given)), results_of(contract), strict=True):
        if BATCH in shape:
            results.append(np.moveaxis(result, shape.index(BATCH), 0))
        else:
            results.append(np.broadcast_to(result, (rows, *result.shape)))
    return results


def as_taken(contract: Contract, given: Arrays) -> dict[str, Array]:
    """Rows (R, ...) as the module takes them: with their rows in the batch axis, or the first one alone."""
    taken = {}
    for value in values_of(contract):
        array = given[name_of(value)]
        if BATCH not in value.shape:
            taken[name_of(value)] = array[0]  # the same for all
        else:
            taken[name_of(value)] = np.ascontiguousarray(np.moveaxis(array, 0, value.shape.index(BATCH)))
    return taken


def states_in(contract: Contract, results: Sequence[Array]) -> dict[str, Array]:
    """The next states among a step's results, by the name of the input that they replace, in its dtype."""
    after = results[len(contract.outputs) :]
    return {s.input: array.astype(DTYPES[s.dtype]) for s, array in zip(contract.states, after, strict=True)}


@dataclass(frozen=True)
class Samples:
    """What a step is tried on: recordings where there are some, else random numbers within what is known of them."""

    contract: Contract
    recorded: Arrays = field(default_factory=dict)
    """By input, (N, ...): consecutive values of one stream, in the graph's numbers."""

    def inputs(self, t: int, rows: int, seed: int = 0) -> dict[str, Array]:
        """All inputs of step t, (R, ...). Each row begins elsewhere in a recording, and at its end begins anew."""
        given = {}
        for i, tensor in enumerate(self.contract.inputs):
            random = np.random.default_rng((seed, i, t))
            shape, dtype = (rows, *_single(tensor.shape)), np.dtype(DTYPES[tensor.dtype])
            if tensor.constant is not None:
                array = np.full(shape, tensor.constant, dtype)
            elif tensor.name in self.recorded:
                recorded = self.recorded[tensor.name]
                places = t + (seed + np.arange(rows)) * len(recorded) // rows
                array = recorded[places % len(recorded)]
            else:
                array = _random(tensor, shape, random).astype(dtype)
            if tensor.batch_axis is None and batched(self.contract):
                array = np.broadcast_to(array[:1], shape)  # the same for all rows
            given[tensor.name] = array
        return given

    def initial(self, rows: int) -> dict[str, Array]:
        """All states before the first step, (R, ...)."""
        states = {}
        for state in self.contract.states:
            one = state.first(1)
            one = one if state.batch_axis is None else np.take(one, 0, state.batch_axis)
            states[state.input] = np.repeat(one[None], rows, 0)
        return states

    def reached(self, compute: Compute, rows: int) -> Iterator[dict[str, Array]]:
        """All inputs and states of the module's own first steps, (R, ...), REACHED_STEPS + 1 of them.

        Raises StepError where a number is not finite.
        """
        states = self.initial(rows)
        for t in range(REACHED_STEPS + 1):
            given = {**self.inputs(t, rows, seed=1), **states}
            yield given
            results = in_rows(self.contract, compute, given)
            for (name, _, _), array in zip(results_of(self.contract), results, strict=True):
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    raise StepError(
                        f"the step gives a {name!r} that is not finite, at step {t + 1} of inputs that are "
                        f"{'recorded' if self.recorded else 'random'}; give recorded inputs with examples=, or look "
                        "for a division or a logarithm in it"
                    )
            states = states_in(self.contract, results)


def _single(shape: tuple[int | str, ...]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in shape if axis != BATCH)


def _random(tensor: Described, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Uniform within the elements' ranges where they have such, else N(0, 1), bytes, or true and false."""
    dtype = np.dtype(DTYPES[tensor.dtype])
    if tensor.elements and all(e.low is not None and e.high is not None for e in tensor.elements):
        low = np.array([(e.low or 0.0) - e.reference for e in tensor.elements])
        high = np.array([(e.high or 0.0) - e.reference for e in tensor.elements])
        if dtype.kind == "f":
            return random.uniform(low, high, shape)
        return random.integers(low.astype(np.int64), high.astype(np.int64), shape, endpoint=True)
    if dtype.kind == "f":
        return random.standard_normal(shape)
    if tensor.dtype in ("bool", "uint8"):
        return random.integers(0, 2 if tensor.dtype == "bool" else 256, shape)
    raise StepError(
        f"which numbers the input {tensor.name!r}, {tensor.dtype}, may hold is not known, so it can't be tried; give "
        "recorded ones with examples=, or elements with low and high"
    )
