"""The node's one stream, and the rules for its state: step, and what becomes of the past when something breaks.

Knows no ROS: time comes in, sentences go out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ocean_runtime import OceanError, OceanModel, OceanStream, Snapshot, SnapshotError, StateError
from ocean_runtime import snapshot as snapshots
from ocean_runtime.contract import Contract
from ocean_runtime.plan import Plan
from ocean_runtime.sampling import log_softmax

from ocean_ros.fields import Values

EARLIEST = 1704067200.0
"""2024-01-01: a clock that says it is earlier was never set."""
CLOCK_SLACK = 60.0
"""Seconds that a snapshot may come from the future: clocks are set forward and back a little."""


def load(path: str) -> OceanModel:
    """A model for the node, with all that its steps will need of its files. Raises ContractError."""
    model = OceanModel.load(path)
    if model.contract.kind == "tokens":
        _ = model.prefill  # read now: within a step it would be late
    return model


class Memory:
    """One stream of one model, for as long as the node is configured."""

    def __init__(self, model: OceanModel, path: Path | None) -> None:
        self.stream: OceanStream = model.stream()
        self.path = path
        """The snapshot file; None for none."""
        self.decided = False
        """A policy has chosen the state since the start: the next activation keeps it."""
        self.lives = 0
        """How often the state was anything but what the last step left."""
        self._expected: Values | None = None
        """What the last step said would come."""
        self._look_at(model.contract)

    def step(self, x: Values) -> Values:
        """One observation (M,) -> the output, in units; for classes, the probability of each.

        Raises OceanError, whatever onnxruntime raises; the state is then as it was.
        """
        self._expected = self.stream.prediction
        try:
            output = next(iter(self.stream.step_all(x).values())).reshape(-1)
        except OceanError:
            raise
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise StateError(f"the step failed: {error}") from error
        return np.exp(log_softmax(output)) if self._classes else output

    def surprise(self, x: Values) -> float | None:
        """How wrong the last prediction was about the observation just stepped; None where there was none.

        The mean squared error, each element measured in the spread that it had in training.
        """
        expected = self._expected
        if expected is None or expected.shape != x.shape:
            return None
        error = (x - expected) / self._scale
        return float(error @ error) / error.size

    def apply(self, policy: str) -> str:
        """keep, reset or restore -> what was done, as the end of a sentence."""
        if policy == "reset":
            self._reset()
            return "the state is reset"
        if policy == "restore":
            try:
                return self.restore()
            except SnapshotError as error:
                self._reset()
                return f"the state is reset, since {error}"
        return "the state is kept"

    def restore(self) -> str:
        """Go on from the last save, whatever its age. Raises SnapshotError; the state is then as it was."""
        saved, path, passed_over = self._read()
        self.stream.resume(saved)
        self.lives += 1
        when = told(age(saved, time.time()))
        return f"the state goes on from step {saved.steps:,} in {path}, {when}{left_out(passed_over)}"

    def wake(self, max_age: float, unknown: str) -> tuple[bool, str]:
        """At activation: restore where there is a save that fits and is young enough.

        -> whether a past was left behind, and what was done.

        max_age: seconds, 0 for any. unknown: `restore` or `reset`, for a save whose age can't be told.
        """
        if self.decided or self.stream.steps > 0:
            return False, f"going on at step {self.stream.steps:,}"
        if self.path is None:
            return False, "starting from the initial state: no state_path"
        if not snapshots.generations(self.path):
            return False, f"starting from the initial state: there is no {self.path} yet"
        try:
            saved, path, passed_over = self._read()
            old = age(saved, time.time())
            if old is None and unknown == "reset":
                return True, f"starting from the initial state: the age of {self.path} can't be told"
            if old is not None and 0 < max_age < old:
                return True, f"starting from the initial state: {self.path} is {old:.0f} s old"
            self.stream.resume(saved)
        except SnapshotError as error:
            return True, f"starting from the initial state: {error}"
        return bool(
            passed_over
        ), f"restored step {saved.steps:,} from {path}, {told(old)}{left_out(passed_over)}"

    def swap(self, model: OceanModel) -> str:
        """Go on with another model: with the past where it is the same model's, else without."""
        kept = self.stream.swap(model)
        self.lives += 1
        self._look_at(model.contract)
        if kept:
            return f"the same model in another file: the state goes on at step {self.stream.steps:,}"
        return "another model: it starts from its initial state"

    def _look_at(self, contract: Contract) -> None:
        self._expected = None
        self._scale = prediction_scale(contract)
        self._classes = gives_classes(contract)

    def _reset(self) -> None:
        self.stream.reset()
        self.lives += 1

    def _read(self) -> snapshots.Restored:
        if self.path is None:
            raise SnapshotError("there is no snapshot file: parameter state_path is empty")
        return snapshots.read_newest(self.path, limit=self.limit)

    @property
    def limit(self) -> int:
        """More bytes than a snapshot of the stream can have: a longer file is not read."""
        return Plan(self.stream.model, self.stream.batch).snapshot_bytes


def gives_classes(contract: Contract) -> bool:
    """Whether the first output tells classes apart: `Memory.step` then gives the probability of each."""
    return contract.kind == "features" and contract.outputs[0].name == "logits"


def age(saved: Snapshot, now: float) -> float | None:
    """Seconds since it was saved; None where a clock was plainly wrong, then or now."""
    if now < EARLIEST or saved.saved_at < EARLIEST or saved.saved_at > now + CLOCK_SLACK:
        return None
    return max(0.0, now - saved.saved_at)


def told(old: float | None) -> str:
    """An age in words."""
    return "saved at a time that can't be told" if old is None else f"saved {old:.1f} s ago"


def left_out(passed_over: Sequence[str]) -> str:
    """Why newer saves were not taken, as the end of a sentence."""
    return f"; passed over: {'; '.join(passed_over)}" if passed_over else ""


def prediction_scale(contract: Contract) -> Values:
    """What a prediction's error is measured in: each element's spread in training, or 1 where unknown."""
    first, normalisation = contract.outputs[0], contract.normalisation or {}
    scale = np.asarray(dict(normalisation.get("output") or {}).get("scale") or [1.0], np.float64)
    fits = first.shape and scale.shape == (first.shape[-1],)
    return scale if fits and np.isfinite(scale).all() and (scale > 0).all() else np.ones(1)
