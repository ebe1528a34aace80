"""What a step must not do, since a file could not do it or would do it wrongly: found by trying, a sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime.contract import Contract
from torch import Tensor, nn

from ocean_export.module_step import (
    Arrays,
    ModuleStep,
    Samples,
    StepError,
    copied,
    first_line,
    flatten,
    in_rows,
    name_of,
    results_of,
    step_of,
    values_of,
)

Array = NDArray[Any]

ROWS = 4
STEPS = 4


def runner(module: nn.Module, contract: Contract, samples: Samples) -> ModuleStep:
    """The module in float64; in float32 where its step can't run in float64.

    Raises StepError where it runs in neither, or what it takes or gives is not what the contract says.
    """
    step_of(module)
    _check_dtypes(module)
    given = {**samples.inputs(0, ROWS), **samples.initial(ROWS)}
    plain = ModuleStep(copied(module), contract)
    try:
        with torch.random.fork_rng(devices=[]):
            in_rows(contract, plain, given)
    except StepError:
        raise
    except Exception as error:
        described = ", ".join(name_of(v) for v in values_of(contract))
        raise StepError(
            f"the step can't be called with what is described, step({described}): {first_line(error)}"
        ) from error
    try:
        precise = ModuleStep(copied(module), contract, precise=True)
        with torch.random.fork_rng(devices=[]):
            in_rows(contract, precise, given)
    except Exception:  # a float32 number made within the step, or a layer that has no float64
        return ModuleStep(copied(module), contract)
    return precise


def check(step: ModuleStep, samples: Samples) -> None:
    """Raises StepError where the step is no function of its inputs and states, row by row."""
    contract = step.contract
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        given = list(islice(samples.reached(step, ROWS), STEPS))
        _check_in_place(step, given[1])
        _check_repeatable(contract, step, given[1], given[2])
        _check_rows(contract, step, given)
        _check_states_used(contract, step, given)


def _check_dtypes(module: nn.Module) -> None:
    for name, weight in [*module.named_parameters(), *module.named_buffers()]:
        if weight.is_floating_point() and weight.dtype != torch.float32:
            raise StepError(
                f"{name!r} is {str(weight.dtype).removeprefix('torch.')}, and weights are written in float32; convert "
                "the module with .float() first"
            )


def _check_in_place(step: ModuleStep, given: Arrays) -> None:
    """Weights, buffers and arguments must be after a step what they were before it."""
    module = step.module
    before = {name: value.clone() for name, value in _held(module).items()}
    feed: dict[str, Array] = {}

    def kept(arrays: Arrays) -> list[Array]:
        feed.update(arrays)
        arguments = step.tensors(arrays)
        originals = [argument.clone() for argument in arguments]
        with torch.no_grad():
            result = flatten(step_of(module)(*arguments))
        for value, argument, original in zip(values_of(step.contract), arguments, originals, strict=True):
            if not _same(argument, original):
                raise StepError(
                    f"the step changes its argument {name_of(value)!r} in place; make a new tensor, as in h = h + x in "
                    "place of h += x"
                )
        return [value.detach().numpy() for value in result]

    in_rows(step.contract, kept, given)
    for name, value in _held(module).items():
        if name not in before or not _same(value, before[name]):
            raise StepError(
                f"the step changes {name!r} of the module in place; call .eval() first where it is a statistic of "
                "training, and make it a state of the step where it is a memory: an argument, and returned"
            )


def _check_repeatable(contract: Contract, step: ModuleStep, given: Arrays, other: Arrays) -> None:
    """The same call gives the same, whatever was called in between, and whatever random numbers come."""
    torch.manual_seed(1)
    first = in_rows(contract, step, given)
    torch.manual_seed(2)
    drawn = in_rows(contract, step, given)
    torch.manual_seed(1)
    in_rows(contract, step, other)
    torch.manual_seed(1)
    again = in_rows(contract, step, given)
    name = _differing(contract, first, again)
    if name is not None:
        raise StepError(
            f"the same call gives another {name!r} after other calls, so the module keeps something from call to "
            "call; make that a state of the step: an argument, and returned"
        )
    name = _differing(contract, first, drawn)
    if name is not None:
        hint = "call .eval() first" if step.module.training else "leave the random numbers out"
        raise StepError(
            f"the step is random: the same call gives another {name!r} with other random numbers, as dropout does in "
            f"training; {hint}"
        )


def _check_rows(contract: Contract, step: ModuleStep, steps: list[dict[str, Array]]) -> None:
    """A row's results must be the same beside other rows."""
    for before, after in pairwise(steps):
        beside = {name: np.concatenate([array[:1], after[name][1:]]) for name, array in before.items()}
        both = (in_rows(contract, step, given) for given in (before, beside))
        first, other = ([result[:1] for result in results] for results in both)
        name = _differing(contract, first, other)
        if name is not None:
            raise StepError(
                f"the rows of a batch depend on each other: {name!r} of one row changes with the inputs and states of "
                "the others, as with BatchNorm in training or a mean over the batch; compute each row by itself"
            )


def _check_states_used(contract: Contract, step: ModuleStep, steps: list[dict[str, Array]]) -> None:
    """Each state must change what a step gives."""
    random = np.random.default_rng(0)
    for state in contract.states:
        for given in steps:
            value = given[state.input]
            if value.dtype.kind == "b":
                changed = ~value
            elif value.dtype.kind == "f":
                changed = (value + random.standard_normal(value.shape)).astype(value.dtype)
            else:
                changed = value + np.ones_like(value)
            try:
                results = in_rows(contract, step, {**given, state.input: changed})
            except Exception:  # such as an index out of range: it is used
                break
            if any(
                not np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
                for a, b in zip(results, in_rows(contract, step, given), strict=True)
            ):
                break
        else:
            raise StepError(
                f"the step ignores the state {state.input!r}: no output and no next state changes with it; use it, "
                "or leave it out of states"
            )


def _held(module: nn.Module) -> Mapping[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


def _differing(contract: Contract, first: list[Array], other: list[Array]) -> str | None:
    """The first result that differs by more than rounding explains, half of the digits of its type."""
    for (name, _, _), a, b in zip(results_of(contract), first, other, strict=True):
        if a.dtype.kind != "f":
            if not np.array_equal(a, b):
                return name
            continue
        allowed = float(np.finfo(a.dtype).eps) ** 0.5 * max(1.0, float(np.abs(a).max(initial=0.0)))
        if not np.allclose(a, b, rtol=0.0, atol=allowed, equal_nan=True):
            return name
    return None
