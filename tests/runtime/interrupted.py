"""A process whose calls of a stream are interrupted by SIGINT at random instants: test_signals.py runs it.

python interrupted.py MODEL FOLDER COUNT SEED -> one line of JSON: how many interrupts each call met.
"""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

import numpy as np
from ocean_runtime import OceanModel
from ocean_runtime import snapshot as snapshots

RUN = 20
"""Steps of a run."""


class Oracle:
    """The ocean state after any number of steps of one sequence of tokens, without interruption."""

    def __init__(self, model: OceanModel) -> None:
        self.tokens = random.Random(0).choices(range(model.contract.sizes["inputs"]), k=100_000)
        self._stream = model.stream()
        self._oceans = [self._stream.ocean]

    def ocean(self, steps: int) -> np.ndarray:
        while len(self._oceans) <= steps:
            self._stream.step(self.tokens[len(self._oceans) - 1])
            self._oceans.append(self._stream.ocean)
        return self._oceans[steps]


def main(model_path: str, folder: str, count: int, seed: int) -> None:
    """Print what was met, or raise what is wrong."""
    model, other = OceanModel.load(model_path), OceanModel.load(model_path)
    assert model.prefill is not None
    oracle, rng, path = Oracle(model), random.Random(seed), Path(folder) / "state"
    armed, met = threading.Semaphore(0), collections.Counter()

    def interrupt() -> None:
        waiting = random.Random(seed)
        while True:
            armed.acquire()
            threading.Event().wait(waiting.uniform(0, 0.003))
            os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    stream, saved = model.stream(guard="hold"), 0
    stream.save(path, keep=2)
    for _ in range(count):
        call = ""
        try:
            armed.release()
            while True:
                call = rng.choice(
                    ("step", "step", "run", "run", "save", "swap", "restore", "resume", "reset")
                )
                steps = stream.steps
                if call == "step":
                    stream.step(oracle.tokens[steps])
                elif call == "run":
                    stream.run(oracle.tokens[steps : steps + RUN])
                elif call == "save":
                    stream.save(path, keep=2)
                    saved = steps
                elif call == "swap":
                    assert stream.swap(other if stream.model is model else model)
                elif call == "restore":
                    stream.restore(path)
                elif call == "resume":
                    stream.resume(stream.snapshot())
                elif rng.random() < 0.05:
                    stream.reset()
        except KeyboardInterrupt:
            met[call] += 1
        # Not locked, not lost, not unreadable.
        stream.step(oracle.tokens[stream.steps])
        np.testing.assert_allclose(stream.ocean, oracle.ocean(stream.steps), atol=1e-4)
        found = snapshots.read_newest(path)
        assert not found.passed_over, found
        assert call == "save" or found.snapshot.steps == saved, (found.snapshot.steps, saved)
        saved = found.snapshot.steps
        np.testing.assert_allclose(found.snapshot.states["ocean"][0], oracle.ocean(saved), atol=1e-4)
        assert stream.counters.bad_inputs == stream.counters.bad_states == 0
    stream.save(path, keep=2)
    left = sorted(p.name for p in Path(folder).iterdir())
    assert left == ["state", "state.1"], left
    print(json.dumps(met))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
