"""What every step of a stream needs to know of its model, worked out once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ocean_runtime.contract import DTYPES, sized
from ocean_runtime.errors import InputError, StateError, StepError, let_through, reason_of
from ocean_runtime.inputs import SMALL, Entry, by_name, faulty_rows, finite
from ocean_runtime.snapshot import MAX_HEADER_BYTES

if TYPE_CHECKING:
    from ocean_runtime.model import OceanModel

Array = NDArray[Any]
Inputs = ArrayLike | Mapping[str, ArrayLike]


Step = tuple[list[Array], dict[str, Array], dict[str, Array]]
"""What a step gave, all fresh: outputs then next states; the next states by the names of the inputs that they
will be; copies of the outputs that predict the next input, by name."""


class Plan:
    """A model seen by a stream of `batch` rows, or of a single one without a batch axis where None.

    Raises ValueError where the stream has a batch and the model's state has no axis for it.
    """

    def __init__(self, model: OceanModel, batch: int | None) -> None:
        contract = model.contract
        if batch is not None and any(s.batch_axis is None for s in contract.states):
            raise ValueError(
                f"the model's state has no batch axis, so it can't hold {batch} rows; open a stream for each"
            )
        self.model = model
        self.rows = 1 if batch is None else batch
        self.entries = {t.name: Entry(t, contract, batch) for t in contract.inputs if t.constant is None}
        self.first = contract.outputs[0].name
        """The output that `step` gives where the model has no other."""
        self.several = len(contract.outputs) > 1
        self.references = {t.name: t.reference for t in contract.outputs if t.reference is not None}
        """By output, what is added to it, (K,)."""
        self._only = next(iter(self.entries.items())) if len(self.entries) == 1 else None
        self._compute = model.bound(self.rows)
        self._pairs = [(s.input, len(contract.outputs) + i) for i, s in enumerate(contract.states)]
        self._predicting = [(t.name, i) for i, t in enumerate(contract.outputs) if t.predicts]
        # A foreign model's outputs may hold -inf by design; its state, and what is saved with it, may not.
        self._checked = [
            (i, t.name, t.batch_axis)
            for i, t in enumerate(contract.outputs)
            if np.dtype(DTYPES[t.dtype]).kind == "f" and (contract.kind != "raw" or t.predicts)
        ] + [
            (len(contract.outputs) + i, s.output, s.batch_axis)
            for i, s in enumerate(contract.states)
            if np.dtype(DTYPES[s.dtype]).kind == "f"
        ]
        shapes = [sized(t.shape, self.rows) for t in contract.outputs]
        shapes += [sized(s.shape, self.rows) for s in contract.states]
        self._small = [i for i, _, _ in self._checked if math.prod(shapes[i]) <= SMALL]
        self._large = len(self._small) < len(self._checked)
        self.axes = {s.input: s.batch_axis for s in contract.states}
        self.axes |= {t.name: t.batch_axis for t in contract.outputs}

    @property
    def snapshot_bytes(self) -> int:
        """More than a snapshot of this stream can have."""
        outputs = (
            np.dtype(DTYPES[t.dtype]).itemsize * math.prod(sized(t.shape, self.rows))
            for t in self.model.contract.outputs
            if t.predicts
        )
        return sum(a.nbytes for a in self.initial_state().values()) + sum(outputs) + 2 * MAX_HEADER_BYTES

    def initial_state(self) -> dict[str, Array]:
        """The state before the first step."""
        return self.model.initial_state(self.rows)

    def no_outputs(self) -> list[Array]:
        """Outputs that say that there was no step."""
        outputs: list[Array] = [
            np.zeros(sized(t.shape, self.rows), DTYPES[t.dtype]) for t in self.model.contract.outputs
        ]
        for output in outputs:
            output[...] = no_value(output)
        return outputs

    def step(self, x: Inputs, state: Mapping[str, Array], number: int) -> Step:
        """One checked step from `state`. Raises InputError and StateError; nothing is changed anywhere.

        The one place in the runtime that is written for speed: next to the graph of a small model each call
        of Python counts.
        """
        if self._only is not None and not isinstance(x, Mapping):
            name, entry = self._only
            feed = {name: _checked(entry.take, x)}
        else:
            values = by_name(x, self.entries)
            feed = {name: _checked(entry.take, values[name]) for name, entry in self.entries.items()}
        results = self.compute(feed, state)
        for i in self._small:
            array = results[i]
            if not math.isfinite(np.vdot(array, array)):  # see `finite`
                self._check(results, number)
        if self._large:
            self._check(results, number)
        states, predictions = {}, {}
        for name, i in self._pairs:
            states[name] = results[i]
        for name, i in self._predicting:
            predictions[name] = results[i].copy()
        return results, states, predictions

    def steps(self, xs: Sequence[Inputs] | Array, state: Mapping[str, Array], number: int) -> Step | None:
        """As many checked steps as `xs` has, in one call; outputs are those of all steps, (T, ...).

        None where the model has no graph for that. Raises InputError and StateError; nothing is changed.
        """
        prefill = self.model.prefill
        if prefill is None or self._only is None:
            return None
        name, entry = self._only
        counted = entry.out_of_range
        try:
            values = [by_name(x, self.entries)[name] if isinstance(x, Mapping) else x for x in xs]
            feed = {name: np.stack([_checked(entry.take, value) for value in values]), **state}
            try:
                results = prefill.compute(feed)
            except Exception as error:  # onnxruntime's exceptions share no base class
                raise InputError(f"the graph can't take these steps: {reason_of(error)}") from None
            self._check(results, number)
        except StepError:
            entry.out_of_range = counted  # none was taken; they come again, one by one
            raise
        states = {name: results[i] for name, i in self._pairs}
        return results, states, {name: results[i][-1].copy() for name, i in self._predicting}

    def compute(self, feed: dict[str, Array], state: Mapping[str, Array]) -> list[Array]:
        """Run the graph: outputs, then next states, all fresh. Raises InputError where it can't."""
        feed.update(state)
        try:
            return self._compute(feed)
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise InputError(f"the graph can't take this step: {reason_of(error)}") from None

    def _check(self, results: list[Array], number: int) -> None:
        for i, name, axis in self._checked:
            if not finite(results[i]):
                raise StateError(
                    f"step {number} gave a {name!r} that is not finite; the state is as it was before the "
                    "step, so reset the stream or restore a snapshot",
                    faulty_rows(~np.isfinite(results[i]), axis),
                )

    def sound_rows(self, x: Inputs, state: Mapping[str, Array]) -> tuple[Array, Step | None]:
        """After a fault: which rows are at fault, (B,) bool, and the results of a step of the others.

        The rows at fault step too, from an input of zeros, since rows are independent; their results are
        not to be used. None where every row is at fault.
        """
        bad, everything = np.zeros(self.rows, bool), np.ones(self.rows, bool)
        try:
            values = by_name(x, self.entries)
            for name, entry in self.entries.items():
                try:
                    _checked(entry.take, values[name])
                except InputError as fault:
                    let_through(fault)
                    bad |= everything if fault.rows is None else fault.rows
            while not bad.all():
                feed = {n: _checked(entry.repair, values[n], bad) for n, entry in self.entries.items()}
                results = self.compute(feed, state)
                found = self._faulty(results)
                if not (found & ~bad).any():
                    states = {name: results[i] for name, i in self._pairs}
                    return bad, (results, states, {n: results[i].copy() for n, i in self._predicting})
                bad |= found
        except InputError as fault:  # of the whole input, or by the graph
            let_through(fault)
        return everything, None

    def mixed(
        self, arrays: Mapping[str, Array], rows: Array, others: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Copies of `arrays` with the rows of the mask taken from `others`; NaN or 0 where that is None."""
        mixed = {}
        for name, array in arrays.items():
            mixed[name] = array.copy()
            axis = self.axes[name]
            if axis is not None:
                into = np.moveaxis(mixed[name], axis, 0)
                into[rows] = no_value(array) if others is None else np.moveaxis(others[name], axis, 0)[rows]
        return mixed

    def _faulty(self, results: list[Array]) -> Array:
        found = np.zeros(self.rows, bool)
        for i, _, axis in self._checked:
            bad = ~np.isfinite(results[i])
            rows = faulty_rows(bad, axis)
            found |= bad.any() if rows is None else rows
        return found


def no_value(array: Array) -> float:
    """What marks an element as no result: NaN, or 0 where the dtype has none."""
    return np.nan if array.dtype.kind == "f" else 0


def _checked(take: Callable[..., Array], value: ArrayLike, *more: Any) -> Array:
    """What an entry makes of an input; raises InputError, whatever the input's own methods raise."""
    try:
        return take(_with_masks(value) if isinstance(value, list | tuple) else value, *more)
    except InputError as error:
        if error.__context__ is not None:
            let_through(error.__context__)
        raise
    except Exception as error:
        raise InputError(f"an input is no array of numbers: {reason_of(error)}") from None


def _with_masks(value: Any) -> Any:
    """A list of masked rows as one masked array; NumPy would take what lies below their masks."""
    if isinstance(value, list | tuple) and any(type(item) not in (int, float, bool) for item in value):
        parts = [_with_masks(item) for item in value]
        return np.ma.array(parts) if any(isinstance(part, np.ma.MaskedArray) for part in parts) else value
    return value
