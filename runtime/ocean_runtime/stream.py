"""One continuous state: each step reads it and replaces it."""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ocean_runtime import prefill
from ocean_runtime import snapshot as snapshots
from ocean_runtime.contract import DTYPES, show_shape, sized
from ocean_runtime.errors import BusyError, InputError, SnapshotError, StepError, let_through
from ocean_runtime.files import as_path
from ocean_runtime.plan import Inputs, Plan

if TYPE_CHECKING:
    from ocean_runtime.model import OceanModel

Array = NDArray[Any]
Guard = Literal["raise", "hold", "reset"]
_BUSY = (
    "the stream is in use by another thread, or by the call that a signal handler interrupted; give each thread "
    "a stream of its own, and change the state once the call has returned"
)
T = TypeVar("T")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)


@dataclass
class Counters:
    """What the guard of a stream has met since the stream was made."""

    bad_inputs: int = 0
    """Steps whose input could not be taken."""
    bad_states: int = 0
    """Steps whose new state or output was not finite."""
    held: int = 0
    """Faulty steps after which the state was left as it was."""
    resets: int = 0
    """Faulty steps after which the state, or that of the rows at fault, became the initial one."""
    out_of_range: int = 0
    """Inputs that were taken though outside the range of the training data."""


class _Context:
    """Where the context of a stream is kept, from one initial or restored state to the next."""

    def __init__(self, value: dict[str, Any] | None = None) -> None:
        self.value = {} if value is None else value


class _Now(NamedTuple):
    """All that a step replaces, in one assignment: whoever reads it sees one instant."""

    plan: Plan
    steps: int
    state: dict[str, Array]
    predictions: dict[str, Array]
    context: _Context


class OceanStream:
    """A stream of a model: one continuous sequence of steps with its state.

    Made by `model.stream()`, it takes single inputs, without a batch axis: a token id, or a vector of M
    numbers. Made by `model.stream(batch)`, it holds that many independent rows that step together, and
    every input and output has the batch axis of the contract.

    Guard: each input is checked before the step and the new state before it is taken. A fault is an
    InputError or a StateError; `guard` says what it does. `raise`: it is raised, and nothing has changed.
    `hold`: the state stays as it was. `reset`: the state becomes the initial one. With the last two, `step`
    gives NaN (0 where the output's dtype has none), `valid` is False, `fault` says why, and in a batch only
    the rows at fault are concerned, unless the fault is of the whole input, such as its shape.

    Threads: one stream, one thread at a time; many streams of a model, many threads. A call that would
    change the state while another thread's does is refused with BusyError; only a swap is waited for. Reading
    (`ocean`, `prediction`, `steps`, `snapshot()`, `save`) is possible from any thread at any time, and sees
    the state between two steps. No array is shared with the caller, neither given nor taken.

    Signals: a signal handler may interrupt any call. What it raises, KeyboardInterrupt or another, reaches
    whoever called, under every guard; the state is then that before the call or after it, and of a `run` that
    after one of its steps. A handler may read and save; to change the state in the middle of a change is
    refused with BusyError.
    """

    def __init__(self, model: OceanModel, batch: int | None = None, *, guard: Guard = "raise") -> None:
        if batch is not None:
            if isinstance(batch, bool) or not hasattr(batch, "__index__"):
                raise ValueError(f"a batch is a whole number of rows, not {batch!r}")
            batch = operator.index(batch)  # NumPy's integers are none of JSON's
            if batch < 1:
                raise ValueError(f"a stream has at least one row; got batch = {batch}")
        if guard not in get_args(Guard):
            raise ValueError(f"unknown guard {guard!r}; choose raise, hold or reset")
        self.batch = batch
        self.guard: Guard = guard
        self.fault: str | None = None
        """What was wrong with the last step; None where it was taken in every row."""
        self._counters = Counters()
        # Only ever taken by `with`: an exception between acquire() and try would leave a lock locked.
        self._turn = threading.RLock()
        """Held by the thread that changes the state."""
        self._stepping, self._swapping = threading.Lock(), threading.Lock()
        """What it is in the middle of; another thread is refused in the first case, and waits in the second."""
        self._now = self._initial(Plan(model, batch))
        self._valid: Array = np.ones(self._now.plan.rows, bool)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy would share locks and counters with this stream."""
        raise TypeError(
            "a stream can't be copied: open another one, and let it resume() this one's snapshot()"
        )

    @property
    def context(self) -> dict[str, Any]:
        """JSON values that whoever feeds the stream needs to go on: a snapshot carries them, `reset` clears them."""
        return self._now.context.value

    @context.setter
    def context(self, value: dict[str, Any]) -> None:
        self._now.context.value = value

    @property
    def model(self) -> OceanModel:
        """The model whose steps these are."""
        return self._now.plan.model

    @property
    def steps(self) -> int:
        """Steps since the initial state, through all restarts."""
        return self._now.steps

    @property
    def ocean(self) -> Array:
        """A copy of the first state pair's present value, (D,), or with the batch axis (B, D)."""
        now = self._now
        first = now.plan.model.contract.states[0]
        return np.array(self._unbatch(now.state[first.input], first.batch_axis))

    @property
    def prediction(self) -> Array | None:
        """A copy of the last output that predicts the next input; None before the first step.

        In a batch, a row that was reset by itself has predicted nothing yet: NaN.
        """
        now = self._now
        for name, prediction in now.predictions.items():
            return np.array(self._in_units(now.plan, name, prediction))
        return None

    @property
    def valid(self) -> bool | Array:
        """Whether the last step was taken; in a batch, (B,) bool, whether each row took it."""
        return bool(self._valid[0]) if self.batch is None else self._valid.copy()

    @property
    def counters(self) -> Counters:
        """A copy of what the guard has counted."""
        outside = sum(entry.out_of_range for entry in self._now.plan.entries.values())
        return replace(self._counters, out_of_range=self._counters.out_of_range + outside)

    def step(self, x: Inputs) -> Any:
        """One step: the input, or inputs by name -> the model's output, or its outputs by name; the caller's to keep.

        x: a token id (int64) or an observation (M,), with the batch axis where the stream has one.
        Gives an array where the model has one output, and what `step_all` gives where it has several.
        Raises InputError for a wrong name, dtype or shape, a token out of range, or a value that is not
        finite, and StateError where the new state is not finite, unless the guard says otherwise; either way
        nothing has changed. Raises BusyError where another thread is stepping this stream.
        """
        plan, results = self._step(x)
        return self._given(plan, results)

    def step_all(self, x: Inputs) -> dict[str, Array]:
        """As `step`: all outputs by name, also where there is one."""
        return self._by_name(*self._step(x))

    def run(self, xs: Iterable[Inputs]) -> Any:
        """As many steps as there are items in `xs`: the outputs of `step`, stacked, (T, ...).

        Where a prefill graph lies beside the model's file, and `xs` is a sequence or array, many steps are
        one call; the results are the same up to rounding.
        """
        outputs: list[Any] = []
        if isinstance(xs, Sequence | np.ndarray):
            for start in range(0, len(xs), prefill.STEPS):
                part = xs[start : start + prefill.STEPS]
                outputs += self.run_at_once(part) or [self.step(x) for x in part]
        else:
            outputs = [self.step(x) for x in xs]
        if not outputs:
            plan = self._now.plan
            of_none = self._given(plan, plan.no_outputs())
            if isinstance(of_none, dict):
                return {name: np.zeros((0, *one.shape), one.dtype) for name, one in of_none.items()}
            return np.zeros((0, *of_none.shape), of_none.dtype)
        if isinstance(outputs[0], dict):
            return {name: np.stack([output[name] for output in outputs]) for name in outputs[0]}
        return np.stack(outputs)

    def run_at_once(self, xs: Sequence[Inputs] | Array) -> list[Any] | None:
        """Steps in one call of the prefill graph: the outputs of `step`.

        None, and nothing has changed, where they have to be made singly: they are few, there is no such graph,
        or one of them is at fault, which the guard must see by itself.
        """
        return None if len(xs) < prefill.LEAST else self._alone(self._run_now, xs)

    def _run_now(self, xs: Sequence[Inputs] | Array) -> list[Any] | None:
        now = self._now
        try:
            made = now.plan.steps(xs, now.state, now.steps + len(xs))
        except StepError as error:
            let_through(error)
            return None
        if made is None:
            return None
        results, state, predictions = made
        self._now = _Now(now.plan, now.steps + len(xs), state, predictions, now.context)
        self.fault, self._valid = None, np.ones(now.plan.rows, bool)
        count = len(now.plan.model.contract.outputs)
        return [self._given(now.plan, list(step)) for step in zip(*results[:count], strict=True)]

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Back to the initial state and zero steps.

        rows: in a batch, the indices or the mask of the rows to reset, all where None; the others, and the
        count of steps, stay as they are.
        """
        self._alone(self._reset_now, rows)

    def _reset_now(self, rows: ArrayLike | None) -> None:
        plan, steps, state, predictions, context = self._now
        if rows is None:
            self._now = self._initial(plan)
        else:
            chosen = self._chosen(rows)
            self._now = _Now(
                plan,
                steps,
                plan.mixed(state, chosen, plan.initial_state()),
                plan.mixed(predictions, chosen, None),
                context,
            )
        self.fault, self._valid = None, np.ones(plan.rows, bool)

    def snapshot(self) -> snapshots.Snapshot:
        """The state as it is now, copied: what `save` writes and `resume` takes.

        Raises SnapshotError where `context` holds anything but JSON values.
        """
        now = self._now
        return self._copy(now, snapshots.plain(now.context.value))

    def _copy(self, now: _Now, context: dict[str, Any]) -> snapshots.Snapshot:
        contract = now.plan.model.contract
        return snapshots.Snapshot(
            state_id=contract.state_id,
            kind=contract.kind,
            steps=now.steps,
            batch=self.batch,
            states={name: array.copy() for name, array in now.state.items()},
            predictions={name: array.copy() for name, array in now.predictions.items()},
            saved_at=time.time(),
            monotonic=time.monotonic(),
            precision=contract.precision,
            context=context,
        )

    def resume(self, saved: snapshots.Snapshot) -> None:
        """Go on from a snapshot. Raises SnapshotError where it is not of this model and batch."""
        self._alone(self._resume_now, saved)

    def _resume_now(self, saved: snapshots.Snapshot) -> None:
        self._now = self._taken(saved, self._now.plan)

    def save(self, path: str | Path, *, keep: int = 1) -> None:
        """Write the state to a file that is either whole or as it was. Raises SnapshotError.

        keep: how many generations are kept: `path` is the newest, `path.1` the one before it, and so on.
        """
        snapshots.write(self.snapshot(), as_path(path, SnapshotError, "the snapshot"), keep=keep)

    def restore(self, path: str | Path) -> snapshots.Restored:
        """Go on from what `save` wrote: the newest generation that is whole.

        The result says which file it was, and which newer ones were passed over and why (both are also
        logged). Raises SnapshotError where none is whole, or the newest whole one does not fit this model;
        the state is then as it was.
        """
        newest = as_path(path, SnapshotError, "the snapshot")
        restored = snapshots.read_newest(newest, limit=self._now.plan.snapshot_bytes)
        self.resume(restored.snapshot)
        return restored

    def swap(self, model: OceanModel) -> bool:
        """Go on with another model from the next step on: True where the state is kept.

        It is kept, with predictions and the count of steps, where the model has the same `state_id`: a
        better or smaller export of the same weights. Any other model starts at its initial state, which is
        logged. May be called from any thread: it waits for the step in progress, and a step that comes in
        between waits for it. Raises ValueError where the model has no batch axis and this stream has, SnapshotError
        where it claims the same `state_id` with another state, and BusyError in a signal handler that
        interrupted a step; nothing has changed then.
        """
        plan = Plan(model, self.batch)
        with self._turn:
            self._refuse_within_another()
            with self._swapping:
                kept = model.contract.state_id == self.model.contract.state_id
                if kept:
                    now = self._taken(self._copy(self._now, {}), plan)._replace(context=self._now.context)
                else:
                    now = self._initial(plan)
                self._counters, self._now = self.counters, now
        if not kept:
            _log.warning("%s is another model than before: the state starts at its initial value", model.path)
        return kept

    def _taken(self, saved: snapshots.Snapshot, plan: Plan) -> _Now:
        """A snapshot as this stream's state under a model. Raises SnapshotError where it does not fit."""
        contract = plan.model.contract
        expected = {s.input: (DTYPES[s.dtype], sized(s.shape, plan.rows)) for s in contract.states}
        predicting = {
            t.name: (DTYPES[t.dtype], sized(t.shape, plan.rows)) for t in contract.outputs if t.predicts
        }
        snapshots.check(saved, contract.state_id, self.batch, expected, predicting)
        if saved.precision and saved.precision != contract.precision:
            _log.info(
                "the state is of a %s model and goes on in its %s export", saved.precision, contract.precision
            )
        return _Now(
            plan,
            saved.steps,
            {name: array.copy() for name, array in saved.states.items()},
            {name: array.copy() for name, array in saved.predictions.items()},
            _Context(snapshots.plain(saved.context)),
        )

    @staticmethod
    def _initial(plan: Plan) -> _Now:
        return _Now(plan, 0, plan.initial_state(), {}, _Context())

    def _alone(self, change: Callable[[T], Result], what: T) -> Result:
        """Make a change, of which there must be one at a time. Raises BusyError where there is another."""
        if self._stepping.locked():
            raise BusyError(_BUSY)
        with self._turn:  # within a swap of another thread it takes microseconds, and must lose no step
            self._refuse_within_another()
            with self._stepping:
                return change(what)

    def _refuse_within_another(self) -> None:
        """With the turn, these are locked only where this very thread is in the middle of a change."""
        if self._stepping.locked() or self._swapping.locked():
            raise BusyError(_BUSY)

    def _step(self, x: Inputs) -> tuple[Plan, list[Array]]:
        """A step under the guard: the plan that it was made by, and its outputs, then next states."""
        return self._alone(self._step_now, x)

    def _step_now(self, x: Inputs) -> tuple[Plan, list[Array]]:
        now = self._now
        plan, steps = now.plan, now.steps + 1
        try:
            results, state, predictions = plan.step(x, now.state, steps)
        except StepError as error:
            let_through(error)
            return plan, self._guarded(x, error)
        self._now = _Now(plan, steps, state, predictions, now.context)
        if self.fault is not None:
            self.fault, self._valid = None, np.ones(plan.rows, bool)
        return plan, results

    def _guarded(self, x: Inputs, error: StepError) -> list[Array]:
        """What the guard makes of a fault: raise it, or let only the sound rows step. Gives the outputs."""
        if isinstance(error, InputError):
            self._counters.bad_inputs += 1
        else:
            self._counters.bad_states += 1
        if self.guard == "raise":
            raise error
        plan, steps, state, predictions, context = self._now
        hold = self.guard == "hold"
        if hold:
            self._counters.held += 1
        else:
            self._counters.resets += 1
        bad, step = plan.sound_rows(x, state)
        contract = plan.model.contract
        if step is None:
            if not hold:
                self._now = self._initial(plan)._replace(context=context)
            outputs = plan.no_outputs()
        else:
            results, new_state, new_predictions = step
            self._now = _Now(
                plan,
                steps + 1,
                plan.mixed(new_state, bad, state if hold else plan.initial_state()),
                plan.mixed(new_predictions, bad, (predictions or None) if hold else None),
                context,
            )
            named = {t.name: output for t, output in zip(contract.outputs, results, strict=False)}
            outputs = list(plan.mixed(named, bad, None).values())
        self.fault, self._valid = str(error), ~bad
        return outputs

    def _chosen(self, rows: ArrayLike) -> Array:
        """Row indices or a mask as a mask, (B,). Raises InputError where they are not of this batch."""
        if self.batch is None:
            raise InputError("a stream without a batch axis has no rows to reset; call reset()")
        chosen, array = np.zeros(self.batch, bool), np.asarray(rows)
        try:
            if array.dtype == bool and array.shape != chosen.shape:
                raise IndexError
            chosen[array if array.size else []] = True
        except IndexError:
            raise InputError(
                f"rows to reset are indices below {self.batch} or a mask of {self.batch}; "
                f"got {array.dtype} {show_shape(array.shape)}"
            ) from None
        return chosen

    def _given(self, plan: Plan, results: list[Array]) -> Any:
        """What a step gives: the output, or outputs by name where there are several."""
        if plan.several:
            return self._by_name(plan, results)
        return self._in_units(plan, plan.first, results[0])

    def _by_name(self, plan: Plan, results: list[Array]) -> dict[str, Array]:
        return {
            t.name: self._in_units(plan, t.name, result)
            for t, result in zip(plan.model.contract.outputs, results, strict=False)  # the states may follow
        }

    def _in_units(self, plan: Plan, name: str, result: Array) -> Array:
        """An output as the caller gets it: its references added (it is float64 then), unbatched."""
        reference = plan.references.get(name)
        return self._unbatch(result if reference is None else result + reference, plan.axes[name])

    def _unbatch(self, array: Array, axis: int | None) -> Array:
        """Without the batch axis, where the stream has none: a view."""
        if self.batch is not None or axis is None:
            return array
        return array[0] if axis == 0 else np.squeeze(array, axis)
