"""What a stream costs beside the graph it runs: `stream.step` against the bare `session.run`, side by side.

python benchmarks/guard.py MODEL.onnx ...     (without one: tests/fixtures/tiny.onnx)

The bare loop feeds the state back by itself and checks, counts and copies nothing. Rounds of both alternate,
and which comes first alternates too; the figures are microseconds a step, of the median and of the quickest
round. On a machine that does other work too, the quickest says more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ocean_runtime import OceanModel

TINY = Path(__file__).parent.parent / "tests" / "fixtures" / "tiny.onnx"


def main() -> None:
    """Print one line for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("models", nargs="*", type=Path, default=[TINY])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200, help="in a round")
    args = parser.parse_args()
    print("model\tround\tsession.run us\tstream.step us\tstream adds us\tstream adds %")
    for path in args.models:
        model = OceanModel.load(path)
        times = compare(model, args.rounds, args.steps)
        for which, of in (("median", statistics.median), ("quickest", min)):
            bare, guarded = (of(times[name]) for name in ("bare", "guarded"))
            more = f"{guarded - bare:.1f}\t{100 * (guarded / bare - 1):.0f}"
            print(f"{path.name}\t{which}\t{bare:.1f}\t{guarded:.1f}\t{more}")


def compare(model: OceanModel, rounds: int, steps: int) -> dict[str, list[float]]:
    """Microseconds a step in each round: of the bare session, and of the stream."""
    entry, output, pair = model.contract.inputs[0], model.contract.outputs[0], model.contract.states[0]
    random = np.random.default_rng(0)
    xs: list[object]
    if model.contract.kind == "tokens":
        xs = random.integers(model.contract.sizes["inputs"], size=steps).tolist()
        ready = [np.array([x]) for x in xs]
    else:
        xs = list(random.standard_normal((steps, int(entry.shape[-1]))).astype(np.float32))
        ready = [np.asarray(x)[None] for x in xs]
    session, names = model._graph.session, [output.name, pair.output]
    ocean = model.initial_state(1)[pair.input]
    stream = model.stream()

    def bare() -> None:
        nonlocal ocean
        for x in ready:
            _, ocean = session.run(names, {entry.name: x, pair.input: ocean})

    def guarded() -> None:
        for x in xs:
            stream.step(x)  # type: ignore[arg-type]

    times: dict[str, list[float]] = {"bare": [], "guarded": []}
    contestants: list[tuple[str, Callable[[], None]]] = [("bare", bare), ("guarded", guarded)]
    for i in range(rounds):
        for name, run in contestants if i % 2 else contestants[::-1]:
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) / steps * 1e6)
    return times


if __name__ == "__main__":
    main()
