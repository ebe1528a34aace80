"""The verification of somebody's own module: the rule of `ocean_export.verify`, for any inputs, outputs and states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime import OceanModel
from ocean_runtime.contract import Contract

from ocean_export.module_step import Arrays, ModuleStep, Samples, copied, in_rows, results_of, states_in
from ocean_export.verify import (
    BATCHES,
    CUTS,
    FACTOR,
    LOOP_FACTOR,
    MOST,
    NEIGHBOURS,
    ROWS,
    STEPS,
    Parity,
    TensorErrors,
    largest_of,
    more_batches,
    neighbour_of,
)

Array = NDArray[Any]

MAX_EACH = 4096
"""Numbers of a tensor that are compared each with an allowance of its own; larger ones have one for all."""


class Step(NamedTuple):
    """One step of the module's own closed loop, and how far roundings carry its neighbours from it."""

    given: dict[str, Array]
    """Inputs and states (R, ...) of the step."""
    wanted: list[Array]
    """Outputs, then next states (R, K), in float64."""
    single: list[Array]
    """The neighbours' largest error of a single step, as `largest_of` has them."""
    loop: list[Array]
    """The same in their own closed loops, of the rows that are predictable."""
    predictable: Array
    """(R,) whether all neighbours' loops have stayed with the module's so far."""


def starts(step: ModuleStep, samples: Samples) -> dict[str, Array]:
    """The states (R, ...) that a trial begins with: half reached by the module, half the initial ones."""
    *_, last = samples.reached(step, ROWS // 2)
    initial = samples.initial(ROWS // 2)
    return {name: np.concatenate([last[name], array]) for name, array in initial.items()}


def reference(exact: ModuleStep, samples: Samples, begin: Arrays, steps: int = STEPS) -> Iterator[Step]:
    """The module's closed loop from `begin`, step by step, and its neighbours' spread about it."""
    contract = exact.contract
    with torch.no_grad():
        precise = copied(exact.module).double()
        neighbours = [ModuleStep(neighbour_of(precise, seed), contract) for seed in range(NEIGHBOURS)]
    predictable = np.ones(ROWS, bool)
    states = dict(begin)
    others = [states] * NEIGHBOURS
    for t in range(steps):
        inputs = samples.inputs(t, ROWS)
        given = {**inputs, **states}
        results = in_rows(contract, exact, given)
        wanted = _flat(results)
        single, loops = list[Array](), list[list[Array]]()
        for i, neighbour in enumerate(neighbours):
            own = {**inputs, **others[i]}
            if i == t % NEIGHBOURS:  # one of them takes the single step too: the steps share its cost
                both = {name: np.concatenate([array, own[name]]) for name, array in given.items()}
                found = in_rows(contract, neighbour, both)
                single = [a[:ROWS] - b for a, b in zip(_flat(found), wanted, strict=True)]
                found = [array[ROWS:] for array in found]
            else:
                found = in_rows(contract, neighbour, own)
            others[i] = states_in(contract, found)
            loops.append([a - b for a, b in zip(_flat(found), wanted, strict=True)])
        predictable = predictable & _together(contract, wanted, loops)
        yield Step(
            given,
            wanted,
            [_largest(error) for error in single],
            [
                np.max([_largest(e[predictable]) for e in errors], axis=0)
                for errors in zip(*loops, strict=True)
            ],
            predictable,
        )
        states = states_in(contract, results)


def verify_module(exported: OceanModel, expected: Iterable[Step], precise: bool = True) -> Parity:
    """Run the exported file over a trial, at each batch size, and compare it with `expected`, its reference.

    precise: whether the reference is in float64.
    """
    contract = exported.contract
    names = [name for name, _, _ in results_of(contract)]
    sizes = more_batches(int(contract.state_id.removeprefix("sha256:")[:8], 16))
    single: dict[str, TensorErrors] = {}
    loop: dict[str, TensorErrors] = {}
    compared: list[Array] = []
    own: dict[str, Array] = {}
    for t, step in enumerate(expected):
        at = step.predictable
        if not compared:
            own = {s.input: step.given[s.input] for s in contract.states}
            for name, wanted in zip(names, step.wanted, strict=True):
                each = wanted.shape[-1] <= MAX_EACH
                single[name], loop[name] = (TensorErrors(f, each=each) for f in (FACTOR, LOOP_FACTOR))
        results = _compute(exported, {**step.given, **own})
        own = states_in(contract, results)
        for name, found, wanted, spread in zip(names, _flat(results), step.wanted, step.loop, strict=True):
            loop[name].add(found[at], wanted[at], spread)
        compared.append(at)
        taken = [(np.arange(ROWS), _flat(_compute(exported, step.given)))]
        if t % 10 == 0:
            chosen = (np.arange(sizes[t // 10 % len(sizes)]) + t // 10) % ROWS
            feed = {name: array[chosen] for name, array in step.given.items()}
            taken.append((chosen, _flat(in_rows(contract, exported.compute, feed))))
        which = np.concatenate([places for places, _ in taken])
        for i, name in enumerate(names):
            parts = np.concatenate([values[i] for _, values in taken])
            single[name].add(parts, step.wanted[i][which], step.single[i])
    whole = np.all(compared, axis=1)
    return Parity(
        len(compared),
        BATCHES,
        {name: errors.largest() for name, errors in single.items()},
        {name: errors.largest() for name, errors in loop.items()},
        len(whole) if whole.all() else int(np.argmin(whole)),
        float(np.mean(compared)),
        "float64" if precise else "float32",
    )


def _compute(model: OceanModel, given: Arrays) -> list[Array]:
    """One step of all rows, at each batch size by itself."""
    parts = {name: np.split(array, CUTS) for name, array in given.items()}
    results = [
        in_rows(model.contract, model.compute, {name: cut[i] for name, cut in parts.items()})
        for i in range(len(CUTS) + 1)
    ]
    return [np.concatenate(pieces) for pieces in zip(*results, strict=True)]


def _flat(results: Iterable[Array]) -> list[Array]:
    """(R, ...) -> (R, K) in float64."""
    return [np.asarray(array, np.float64).reshape(len(array), -1) for array in results]


def _largest(errors: Array) -> Array:
    return largest_of(errors, each=errors.shape[-1] <= MAX_EACH)


def _together(contract: Contract, wanted: list[Array], loops: list[list[Array]]) -> Array:
    """(R,) whether each neighbour's states are within a share of their size from the module's own."""
    together = np.ones(ROWS, bool)
    for i in range(len(contract.outputs), len(wanted)):
        size = np.linalg.norm(wanted[i], axis=-1)
        size = np.maximum(size, size.mean())  # a state that happens to be near zero in one row
        for errors in loops:
            together &= np.linalg.norm(errors[i], axis=-1) <= MOST / LOOP_FACTOR * size
    return together
