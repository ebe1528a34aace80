"""One step of everything, side by side: time and bytes of state.

python benchmarks/step.py [--sizes 64/2 128/4 256/6] [--out results/step] [--seconds 120]

One run, one thread. Contenders take turns, in an order that turns round each time, and each call is timed by
itself; p50 and p99 are over all calls. `cpu` is the thread's own processor time a step, the median over turns,
which leaves out what other programs take; on a quiet machine it is near p50, and the ratios are of it. Where a
session's arrays happen to lie changes its time by some percent, so each contender is made anew a few times.

Every graph is called as the runtime calls a step: inputs and outputs bound beforehand, inputs copied in, results
copied out (`ocean_runtime.session.bind`). Weights are random, those of biases and LayerNorms too, as training
leaves none of them at zero or one. The standard Transformer's cache is the best case for it (see
step_graphs.py): it is bound once and never copied. Every step feeds its own state to the next one, but the
Transformer's, whose context stays what the row says.

The sizes can be measured one by one: each has its own line about the run, and the others stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from machine import commit, needs, processor

with needs("train,export"):
    import numpy as np
    import onnxruntime
    import torch
    from ocean_export.graph import step_graph
    from ocean_export.lean import lean_graph
    from ocean_export.prefill import prefill_graph
    from ocean_runtime.session import Compute, bind, session_of
    from ocean_train.baselines import Recurrent, StandardTransformer, equal_width
    from ocean_train.model import OceanConfig, OceanTransformer
    from step_graphs import CachedStep, RecurrentStep, cached_inputs, empty, exported, products

SIZES = ("64/2", "128/4", "256/6")
VOCABULARY = 65
CONTEXTS = (1, 1_000, 10_000, 100_000)
PREFILL = 256
SLOW, SLOW_TURNS = 0.1, 2
"""A contender that takes more seconds a call is called in so many turns only."""
TIMES_MADE = 3


class Contender(NamedTuple):
    """A step that can be taken again and again."""

    step: Callable[[], object]
    state_bytes: int
    file_bytes: int
    steps: int = 1
    """Steps that one call takes."""


Maker = Callable[[], Contender]


def main() -> None:
    """Measure, write JSON, a table and a plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--out", type=Path, default=Path("results/step"))
    parser.add_argument("--seconds", type=float, default=120, help="of measuring, for each size")
    args = parser.parse_args()
    torch.set_num_threads(1)
    file = args.out / "step.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for size in args.sizes:
        rows = measure(contenders(*map(int, size.split("/"))), args.seconds)
        results[size] = {"about": about(), "rows": rows}
        print(_table(size, **results[size]), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    results = {size: results[size] for size in SIZES if size in results}
    file.write_text(json.dumps(results, indent=1) + "\n")
    tables = [_table(size, **result) for size, result in results.items()]
    (args.out / "step.md").write_text("\n".join(["# One step\n", *tables]))
    _plot({size: result["rows"] for size, result in results.items()}, args.out / "step.png")


def contenders(width: int, layers: int) -> dict[str, Maker]:
    """How to make each of a size, by name."""
    config = OceanConfig(VOCABULARY, VOCABULARY, width, layers, heads=4)
    model = OceanTransformer(config).eval()
    with torch.no_grad():
        for vector in (weight for weight in model.parameters() if weight.dim() == 1):
            vector.add_(0.1 * torch.randn(vector.shape))
    files = {
        "ocean fp32": lean_graph(model).SerializeToString(),
        "ocean int8": lean_graph(model, "int8").SerializeToString(),
        "ocean int4": lean_graph(model, "int4").SerializeToString(),
        "ocean int8 portable": lean_graph(model, "int8", True).SerializeToString(),
        "ocean, plain torch.onnx.export": step_graph(model).SerializeToString(),
        "floor: an empty graph": empty(model),
        "floor: the weights in matrix-vector products": products(model),
    }
    found: dict[str, Maker] = {
        name: partial(ocean_contender, content, width) for name, content in files.items()
    }
    found["ocean in PyTorch"] = partial(_torch, model)
    found["ocean fp32, prefill of 256"] = partial(_prefill, prefill_graph(model).SerializeToString(), width)
    for cell in ("gru", "lstm"):
        found[cell] = _recurrent(Recurrent(config, cell, equal_width(config, cell)))  # type: ignore[arg-type]
    transformer = StandardTransformer(config, max(CONTEXTS) + 1).eval()
    for context in CONTEXTS:
        found[f"transformer, context {context:,}"] = _cached(transformer, context)
    return found


def measure(makers: dict[str, Maker], seconds: float) -> dict[str, dict[str, float]]:
    """Rounds of all contenders until the time is up: microseconds a step, and sizes."""
    times: dict[str, list[float]] = {name: [] for name in makers}
    cpu: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(TIMES_MADE):
        found = {name: make() for name, make in makers.items()}
        _take_turns(found, seconds / TIMES_MADE, times, cpu)
    rows = {}
    for name, c in found.items():
        wall = np.array(times[name]) * 1e6 / c.steps
        rows[name] = {
            "cpu_us": float(np.median(cpu[name])) * 1e6 / c.steps,
            "p50_us": float(np.percentile(wall, 50)),
            "p99_us": float(np.percentile(wall, 99)),
            "calls": len(wall),
            "state_bytes": c.state_bytes,
            "file_bytes": c.file_bytes,
        }
    return rows


def _take_turns(
    found: dict[str, Contender], seconds: float, times: dict[str, list[float]], cpu: dict[str, list[float]]
) -> None:
    """Add the seconds of each call, and the processor's seconds a call of each turn."""
    calls = {}
    for name, contender in found.items():
        contender.step()
        start = time.thread_time()
        contender.step()
        took = max(1e-6, time.thread_time() - start)
        calls[name] = 0 if took > SLOW else int(np.clip(3e-3 / took, 1, 50))
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turn < SLOW_TURNS:
        order = list(found) if turn % 2 == 0 else list(reversed(found))
        for name in order:
            if calls[name] == 0 and turn >= SLOW_TURNS:
                continue
            step, kept = found[name].step, times[name]
            step()  # caches are another contender's
            count = max(1, calls[name])
            begin = time.thread_time()
            for _ in range(count):
                start = time.perf_counter()
                step()
                kept.append(time.perf_counter() - start)
            cpu[name].append((time.thread_time() - begin) / count)
        turn += 1


def _bound(content: bytes, feed: dict[str, Any]) -> Compute:
    """A graph's call, with arrays like these bound."""
    session = session_of(content, 1, None)
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, feed), strict=True))
    return bind(session, {name: np.array(x) for name, x in feed.items()}, outputs)


def ocean_contender(content: bytes, width: int) -> Contender:
    """A step graph that feeds itself its own state."""
    feed = {"token": np.array([3]), "ocean": np.zeros((1, width), np.float32)}
    compute = _bound(content, feed)

    def step() -> None:
        _, feed["ocean"] = compute(feed)

    return Contender(step, feed["ocean"].nbytes, len(content))


def _prefill(content: bytes, width: int) -> Contender:
    session = session_of(content, 1, None)
    tokens, ocean = np.full((PREFILL, 1), 3), np.zeros((1, width), np.float32)

    def step() -> None:
        nonlocal ocean
        _, ocean = session.run(None, {"token": tokens, "ocean": ocean})

    return Contender(step, ocean.nbytes, len(content), PREFILL)


def _torch(model: OceanTransformer) -> Contender:
    token, ocean = torch.tensor([3]), model.initial_ocean(1)

    @torch.inference_mode()
    def step() -> None:
        nonlocal ocean
        _, ocean = model.step(token, ocean)

    return Contender(step, 4 * model.config.width, 4 * sum(p.numel() for p in model.parameters()))


def _recurrent(model: Recurrent) -> Maker:
    parts = 2 if isinstance(model.cell, torch.nn.LSTM) else 1
    state = [torch.zeros(model.config.layers, 1, model.width) for _ in range(parts)]
    content = exported(RecurrentStep(model), (torch.zeros(1, dtype=torch.int64), *state))

    def make() -> Contender:
        feed = {"in0": np.array([3])} | {f"in{i + 1}": s.numpy() for i, s in enumerate(state)}
        compute = _bound(content, feed)

        def step() -> None:
            for i, after in enumerate(compute(feed)[1:]):
                feed[f"in{i + 1}"] = after

        return Contender(step, sum(s.numel() * 4 for s in state), len(content))

    return make


def _cached(model: StandardTransformer, context: int) -> Maker:
    inputs = cached_inputs(model, context)
    free = {f"in{i}": {3 if i % 2 == 0 else 2: "C"} for i in range(2, len(inputs))}
    content = exported(CachedStep(model), cached_inputs(model, 8), free)
    feed = {f"in{i}": x.numpy() for i, x in enumerate(inputs)}

    def make() -> Contender:
        compute, new = _bound(content, feed), {name: feed[name] for name in ("in0", "in1")}
        return Contender(lambda: compute(new), sum(x.numel() * 4 for x in inputs[2:]), len(content))

    return make


def about() -> dict[str, str]:
    """The command, commit, machine and versions of a run."""
    return {
        "command": "python benchmarks/step.py",
        "commit": commit(),
        "processor": f"{processor()}, {os.cpu_count()} cores, one thread used",
        "load_average": ", ".join(f"{x:.1f}" for x in os.getloadavg()),
        "versions": f"python {platform.python_version()}, onnxruntime {onnxruntime.__version__}, "
        f"torch {torch.__version__}, numpy {np.__version__}",
    }


def _table(size: str, about: dict[str, str], rows: dict[str, dict[str, float]]) -> str:
    base = rows["ocean fp32"]["cpu_us"]
    lines = [
        f"## d/L = {size}\n",
        *(f"- {name}: {value}" for name, value in about.items()),
        "",
        "| | cpu, us | p50, us | p99, us | against ocean fp32 | bytes of state | bytes of file |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        times = " | ".join(f"{row[key]:.1f}" for key in ("cpu_us", "p50_us", "p99_us"))
        lines.append(
            f"| {name} | {times} | {row['cpu_us'] / base:.2f} | {row['state_bytes']:,.0f} | "
            f"{row['file_bytes']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def _plot(sizes: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(sizes), figsize=(15, 5), sharey=True, squeeze=False)
    for axis, (size, rows) in zip(axes[0], sizes.items(), strict=True):
        curve = [rows[f"transformer, context {c:,}"]["cpu_us"] for c in CONTEXTS]
        axis.plot(CONTEXTS, curve, "o-", color="tab:red", label="transformer, KV cache")
        for name, colour in (("ocean fp32", "tab:blue"), ("ocean int8", "tab:cyan"), ("gru", "tab:green"),
                             ("lstm", "tab:olive"), ("ocean, plain torch.onnx.export", "tab:gray")):  # fmt: skip
            axis.axhline(rows[name]["cpu_us"], color=colour, label=name)
        axis.axhline(rows["floor: the weights in matrix-vector products"]["cpu_us"], color="black", ls=":",
                     label="floor: weights alone")  # fmt: skip
        axis.set(xscale="log", yscale="log", title=f"d/L = {size}", xlabel="steps remembered")
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("one step, us of processor time")
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
