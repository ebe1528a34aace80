"""Saving without delaying a step: the state is copied on the step's thread and written by another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from ocean_runtime import Snapshot, SnapshotError
from ocean_runtime import snapshot as snapshots

LOG_PERIOD = 10.0
"""Seconds between two log lines about the same problem."""

Done = Callable[[str], None]
"""Called on the writer's thread with the problem, empty where there was none."""


class Saver:
    """One thread that writes snapshots to one file; of several that wait, only the newest is written."""

    def __init__(self, path: Path, keep: int, logger: Any, limit: int) -> None:
        """logger: warned of each file that was renamed, and told of failed saves, on the writer's thread.

        limit: bytes; a file that is longer is not read.
        """
        self.path, self.keep, self._logger, self._limit = path, keep, logger, limit
        self.saved: Snapshot | None = None
        """The last one that is on the disk."""
        self.saved_at: float | None = None
        """When, by the steady clock."""
        self.problem = ""
        """Why the last write failed; empty where it did not."""
        self.failures = 0
        self._waiting: Snapshot | None = None
        self._done: list[Done] = []
        self._closing = False
        self._owner = ""
        self._logged_at = 0.0
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ocean_saver", daemon=True)
        self._thread.start()

    def submit(self, snapshot: Snapshot, done: Done | None = None) -> None:
        """Have it written soon. `done` is called once it, or a newer one, is on the disk."""
        with self._change:
            self._waiting = snapshot
            if done is not None:
                self._done.append(done)
            self._change.notify()

    def close(self, timeout: float) -> bool:
        """Write what waits and end the thread -> whether it ended within `timeout` seconds."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting is not None or self._closing)
                snapshot, self._waiting = self._waiting, None
                done, self._done = self._done, []
            if snapshot is None:
                return
            try:
                if snapshot.state_id != self._owner:
                    for line in set_aside(self.path, snapshot.state_id, self._limit):
                        self._logger.warning(line)
                snapshots.write(snapshot, self.path, keep=self.keep)
            except Exception as error:  # whatever it was: a thread that ended would save nothing any more
                self.failures += 1
                self._failed(str(error))
            else:
                self.problem, self.saved, self.saved_at = "", snapshot, time.monotonic()
                self._owner = snapshot.state_id
            for call in done:
                call(self.problem)

    def _failed(self, problem: str) -> None:
        """Log it, unless the same was logged a moment ago; of the last save in any case."""
        now = time.monotonic()
        if problem != self.problem or self._closing or now - self._logged_at >= LOG_PERIOD:
            self._logger.error(f"save failed: {problem}")
            self._logged_at = now
        self.problem = problem


def set_aside(path: Path, state_id: str, limit: int) -> list[str]:
    """Rename what holds another model's past, or nothing that can be read: a save must not destroy it.

    limit: bytes; a longer file can't be read. -> a sentence for each file.
    """
    found = snapshots.generations(path)
    if not found:
        return []
    try:
        owner = snapshots.read_newest(path, limit=limit).snapshot.state_id
    except SnapshotError:
        owner = "damaged"
    if owner == state_id:
        return []
    base = name = f"{path.name}.{owner.removeprefix('sha256:')[:8]}"
    for i in count(2):  # what was set aside before stays as well
        if not snapshots.generations(path.with_name(base)):
            break
        base = f"{name}-{i}"
    why = "can't be read" if owner == "damaged" else "is another model's"
    lines = []
    for old in found:
        new = path.with_name(base + old.name.removeprefix(path.name))
        old.replace(new)
        lines.append(f"{old} {why}: renamed to {new}, before a save of this model takes its place")
    return lines
