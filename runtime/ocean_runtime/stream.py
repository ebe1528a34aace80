"""One continuous state: each step reads it and replaces it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ocean_runtime import snapshot as snapshots
from ocean_runtime.contract import DTYPES, Tensor, show_shape
from ocean_runtime.errors import InputError, StateError
from ocean_runtime.model import OceanModel, sized

Array = NDArray[Any]


class OceanStream:
    """A stream of a model: one continuous sequence of steps with its state.

    Made by `model.stream()`, it takes single inputs, without a batch axis: a token id, or a vector of M
    numbers. Made by `model.stream(batch)`, it holds that many independent rows that step together, and
    every input and output has the batch axis of the contract. Use a stream from one thread at a time.
    """

    def __init__(self, model: OceanModel, batch: int | None = None) -> None:
        if batch is not None and batch < 1:
            raise ValueError(f"a stream has at least one row; got batch = {batch}")
        self.model = model
        self.batch = batch
        self.steps = 0
        """Steps since the initial state, through all restarts."""
        contract = model.contract
        self._given = [t for t in contract.inputs if t.constant is None]
        self._rows = 1 if batch is None else batch
        self._constants: dict[str, Array] = {
            t.name: np.full(sized(t.shape, self._rows), t.constant, DTYPES[t.dtype])
            for t in contract.inputs
            if t.constant is not None
        }
        self._state: dict[str, Array] = model.initial_state(self._rows)
        self._predictions: dict[str, Array] = {}

    @property
    def ocean(self) -> Array:
        """A copy of the first state pair's present value, (D,), or with the batch axis (B, D)."""
        first = self.model.contract.states[0]
        return np.array(self._unbatch(self._state[first.input], first.batch_axis))

    @property
    def prediction(self) -> Array | None:
        """A copy of the last output that predicts the next input; None before the first step."""
        for t in self.model.contract.outputs:
            if t.predicts and t.name in self._predictions:
                return np.array(self._unbatch(self._predictions[t.name], t.batch_axis))
        return None

    def step(self, x: ArrayLike | Mapping[str, ArrayLike]) -> Array:
        """One step: the input, or inputs by name -> the model's (first) output, the caller's to keep.

        x: a token id (int64) or an observation (M,), with the batch axis where the stream has one.
        Raises InputError for a wrong name, dtype or shape, a token out of range, or a value that is not
        finite, and StateError where the new state is not finite; either way nothing has changed.
        """
        first = self.model.contract.outputs[0]
        return self._unbatch(self._step(x)[0], first.batch_axis)

    def step_all(self, x: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, Array]:
        """As `step`, with all outputs by name."""
        results = self._step(x)
        return {
            t.name: self._unbatch(result, t.batch_axis)
            for t, result in zip(self.model.contract.outputs, results, strict=True)
        }

    def run(self, xs: Iterable[ArrayLike | Mapping[str, ArrayLike]]) -> Array:
        """As many steps as there are items in `xs`: the outputs of `step`, stacked, (T, ...)."""
        outputs = [self.step(x) for x in xs]
        if not outputs:
            first = self.model.contract.outputs[0]
            empty: Array = np.zeros(sized(first.shape, self._rows), DTYPES[first.dtype])
            return np.zeros((0, *self._unbatch(empty, first.batch_axis).shape), empty.dtype)
        return np.stack(outputs)

    def reset(self) -> None:
        """Back to the initial state and zero steps."""
        self._state = self.model.initial_state(self._rows)
        self._predictions = {}
        self.steps = 0

    def snapshot(self) -> snapshots.Snapshot:
        """The state as it is now, copied: what `save` writes and `resume` takes."""
        return snapshots.Snapshot(
            state_id=self.model.contract.state_id,
            kind=self.model.contract.kind,
            steps=self.steps,
            batch=self.batch,
            states={name: array.copy() for name, array in self._state.items()},
            predictions={name: array.copy() for name, array in self._predictions.items()},
            saved_at=time.time(),
        )

    def resume(self, saved: snapshots.Snapshot) -> None:
        """Go on from a snapshot. Raises SnapshotError where it is not of this model and batch."""
        contract = self.model.contract
        expected = {s.input: (DTYPES[s.dtype], sized(s.shape, self._rows)) for s in contract.states}
        predicting = {
            t.name: (DTYPES[t.dtype], sized(t.shape, self._rows)) for t in contract.outputs if t.predicts
        }
        snapshots.check(saved, contract.state_id, self.batch, expected, predicting)
        self._state = {name: array.copy() for name, array in saved.states.items()}
        self._predictions = {name: array.copy() for name, array in saved.predictions.items()}
        self.steps = saved.steps

    def save(self, path: str | Path) -> None:
        """Write the state to a file that is either whole or as it was. Raises SnapshotError."""
        snapshots.write(self.snapshot(), Path(path))

    def restore(self, path: str | Path) -> None:
        """Go on from a file that `save` wrote. Raises SnapshotError; the state is then as it was."""
        self.resume(snapshots.read(Path(path)))

    def _step(self, x: ArrayLike | Mapping[str, ArrayLike]) -> list[Array]:
        feed = self._feed(x)
        results = self.model.compute(feed)
        contract = self.model.contract
        outputs, states = results[: len(contract.outputs)], results[len(contract.outputs) :]
        for pair, state in zip(contract.states, states, strict=True):
            if state.dtype.kind == "f" and not np.isfinite(state).all():
                raise StateError(
                    f"step {self.steps + 1} gave a {pair.output!r} that is not finite; the state is as it "
                    "was before the step, so reset the stream or restore a snapshot"
                )
        self._state = {pair.input: state for pair, state in zip(contract.states, states, strict=True)}
        self._predictions = {
            t.name: output.copy() for t, output in zip(contract.outputs, outputs, strict=True) if t.predicts
        }
        self.steps += 1
        return outputs

    def _feed(self, x: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, Array]:
        """All inputs of the graph by name, each checked."""
        given = self._given
        if not isinstance(x, Mapping):
            if len(given) != 1:
                names = ", ".join(repr(t.name) for t in given)
                raise InputError(
                    f"the model takes {len(given)} inputs, {names}: give them by name, as a dict"
                )
            x = {given[0].name: x}
        for name in sorted(x.keys() ^ {t.name for t in given}):
            known = ", ".join(repr(t.name) for t in given)
            problem = "is unknown" if name in x else "is missing"
            raise InputError(f"input {name!r} {problem}; the model takes {known}")
        return {t.name: self._check(t, x[t.name]) for t in given} | self._constants | self._state

    def _check(self, t: Tensor, value: ArrayLike) -> Array:
        """One input as the graph takes it: of its dtype and shape, in range, finite; a copy."""
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise InputError(f"input {t.name!r} is no array: {error}") from None
        dtype: np.dtype[Any] = np.dtype(DTYPES[t.dtype])
        accepted = {"i": "iu", "u": "iu", "f": "fiu", "b": "b"}[dtype.kind]
        if array.dtype.kind not in accepted:
            raise InputError(f"input {t.name!r} has dtype {array.dtype}; the model takes {t.dtype}")
        shape = sized(t.shape, self._rows)
        if self.batch is None and t.batch_axis is not None:
            single = shape[: t.batch_axis] + shape[t.batch_axis + 1 :]
            if array.shape != single:
                raise InputError(
                    f"input {t.name!r} has shape {show_shape(array.shape)}; a step takes {show_shape(single)}"
                )
        elif array.shape != shape:
            raise InputError(
                f"input {t.name!r} has shape {show_shape(array.shape)}; a step takes {show_shape(shape)}"
            )
        tokenizer = self.model.contract.tokenizer
        if self.model.contract.kind == "tokens" and tokenizer is not None:
            if array.min() < 0 or array.max() >= tokenizer.size:
                wrong = array.min() if array.min() < 0 else array.max()
                raise InputError(
                    f"input {t.name!r} is {wrong}, outside the vocabulary of {tokenizer.size} tokens, "
                    f"0 to {tokenizer.size - 1}"
                )
        elif dtype.kind in "iu":
            limits = np.iinfo(dtype.type)
            if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
                raise InputError(f"input {t.name!r} has a value that {t.dtype} can't hold")
        with np.errstate(over="ignore"):
            cast = array.astype(dtype).reshape(shape)
        if dtype.kind == "f" and not np.isfinite(cast).all():
            where = int(np.flatnonzero(~np.isfinite(cast))[0])
            name = f" ({t.elements[where % len(t.elements)].name})" if t.elements else ""
            raise InputError(
                f"input {t.name!r} has {array.reshape(-1)[where]} at element {where}{name}; it must be finite"
            )
        return cast

    def _unbatch(self, array: Array, axis: int | None) -> Array:
        return array if self.batch is not None or axis is None else np.squeeze(array, axis)
