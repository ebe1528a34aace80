"""What a training step costs: forward and backward of every regime beside the baselines, in one run.

    python benchmarks/training.py            all of it, about 8 minutes -> results/training/
    python benchmarks/training.py --quick    every part at a small size, to see that it runs

Each part times its contestants in turn, the order reversed from round to round, and reports the median of the
rounds after the first. One thread, unless a part says otherwise. Beside wall-clock time stands the processor's
own (all threads), which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from machine import ROOT, needs

with needs("train"):
    import torch
    from bptt_report import alternate, provenance, publish, say
    from ocean_train import baselines, bptt, regimes
    from ocean_train.model import OceanConfig, plain_relay, position_loss
    from torch import Tensor, nn

VOCABULARY = 65
HEADS = 4
NAMES = {
    "full": "Ocean, full",
    "detach": "Ocean, detach",
    "loop": "Ocean, autograd loop",
    "transformer": "standard Transformer",
    "lstm": "LSTM",
    "gru": "GRU",
}


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    p.add_argument("--quick", action="store_true")
    p.add_argument("--out", type=Path, default=ROOT / "results" / "training")
    p.add_argument("--memory-again", action="store_true", help="measure memory alone, and keep the rest")
    p.add_argument("--memory", nargs=2, metavar=("STEPS", "KEEP"), help=argparse.SUPPRESS)
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.memory:
        print(peak_memory(*map(int, args.memory)))
        return
    if args.memory_again:
        report = json.loads((args.out / "results.json").read_text())
        report["memory"] = memory(args.quick)
    else:
        report = measure(args.quick)
    publish(report, markdown(report), args.out, None if args.quick else "training")


def measure(quick: bool) -> dict[str, Any]:
    """All parts; see the module's docstring."""
    began = time.time()
    report: dict[str, Any] = {"provenance": provenance(), "quick": quick, "peak_gflops": [matrix_peak()]}
    small = [(32, 1, 4, 8, 3)]
    sizes = [
        (64, 2, 32, 64, 15),
        (128, 4, 32, 64, 9),
        (256, 4, 32, 64, 7),
        (128, 4, 32, 256, 4),
        (128, 4, 32, 1024, 3),
    ]
    report["sizes"] = [compare(*size) for size in (small if quick else sizes)]
    report["batch"] = []
    for B in (1, 2) if quick else (1, 2, 4, 8, 16, 32, 64, 128, 256):
        rounds = 3 if quick else max(5, min(31, 1024 // B))
        report["batch"].append(compare(64, 2, B, 64, rounds, ("full", "transformer")))
    report["threads"] = [
        threads(*size)
        for size in ([(32, 1, 4, 8, 3)] if quick else [(64, 2, 64, 64, 15), (128, 4, 64, 64, 9)])
    ]
    report["serial_share"] = [
        serial_share(*size) for size in ([small[0][:4]] if quick else [s[:4] for s in sizes[:3]])
    ]
    report["memory"] = memory(quick)
    report["peak_gflops"].append(matrix_peak())
    report["seconds"] = time.time() - began
    return report


def memory(quick: bool) -> dict[str, Any]:
    """Peak memory against T, each measurement in a process of its own."""
    rows = []
    for T in (16,) if quick else (256, 1024, 4096, 8192):
        for keep in (0, 64):
            command = [sys.executable, __file__, "--memory", str(T), str(keep)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peak, base, seconds = map(float, done.stdout.split())
            rows.append(
                {"steps": T, "keep": keep or None, "peak_mb": peak, "before_mb": base, "seconds": seconds}
            )
    return {"commit": provenance()["commit"], "rows": rows}


# ------------------------------------------------------------------ one training step, timed


def window(name: str, D: int, L: int, B: int, T: int) -> tuple[Callable[[], None], nn.Module]:
    """A function that does one forward and backward pass of a contestant, and its model."""
    config = OceanConfig(VOCABULARY, VOCABULARY, width=D, layers=L, heads=HEADS)
    model = baselines.build(name if name in baselines.MODELS else "ocean", config, T)
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randint(VOCABULARY, (B, T), generator=generator) for _ in range(2))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        if name == "loop":
            outputs, _ = model(inputs, relay=plain_relay)
            position_loss(config, outputs, targets).mean().backward()
        else:
            regimes.backward(model, "detach" if name == "detach" else "full", inputs, targets)

    return step, model


def compare(
    D: int, L: int, B: int, T: int, rounds: int, names: tuple[str, ...] = tuple(NAMES)
) -> dict[str, Any]:
    """All contestants at one size."""
    contestants = {name: window(name, D, L, B, T) for name in names}
    seconds = alternate({name: step for name, (step, _) in contestants.items()}, rounds)
    entry: dict[str, Any] = {"width": D, "layers": L, "batch": B, "steps": T, "rounds": rounds, "models": {}}
    for name, (_, model) in contestants.items():
        median = statistics.median(seconds[name].wall)
        entry["models"][name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "median_s": median,
            "best_s": min(seconds[name].wall),
            "cpu_s": statistics.median(seconds[name].cpu),
            "gflops": operations(name, model, D, L, T) * B * T / median / 1e9,
        }
    say(
        f"{D}/{L}, B={B}, T={T}: "
        + ", ".join(f"{n} {e['median_s'] * 1e3:.1f} ms" for n, e in entry["models"].items())
    )
    return entry


def operations(name: str, model: nn.Module, D: int, L: int, T: int) -> float:
    """Operations in matrix products per step and row, forward and backward (twice the forward's).

    Multiplications and additions counted apart. Attention counts its causal half.
    """
    if isinstance(model, baselines.Recurrent):
        W = model.width
        products = L * (8 if name == "lstm" else 6) * W * W + VOCABULARY * W
    elif name == "transformer":
        products = L * (12 * D * D + T * D) + VOCABULARY * D
    else:
        products = L * 14 * D * D + VOCABULARY * D
    return 3 * 2.0 * products


def matrix_peak() -> float:
    """GFLOP/s of torch's own product of two 1,536 x 1,536 matrices, the best of ten."""
    n = 1536
    a, b = torch.randn(n, n), torch.randn(n, n)
    best = min(timed(partial(torch.mm, a, b)) for _ in range(10))
    return 2 * n**3 / best / 1e9


def timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def threads(D: int, L: int, B: int, T: int, rounds: int) -> dict[str, Any]:
    """`full` with one and with two threads, in turn."""
    step, _ = window("full", D, L, B, T)

    def with_threads(n: int) -> None:
        torch.set_num_threads(n)
        step()

    found = alternate({str(n): partial(with_threads, n) for n in (1, 2)}, rounds)
    torch.set_num_threads(1)
    one, two = (statistics.median(found[n].wall) for n in ("1", "2"))
    say(f"two threads at {D}/{L}, B={B}: {one / two:.2f} times one")
    return {"width": D, "layers": L, "batch": B, "steps": T, "rounds": rounds, "one_s": one, "two_s": two}


def serial_share(D: int, L: int, B: int, T: int) -> dict[str, Any]:
    """How much of `detach` is the serial pass forward."""
    step, model = window("detach", D, L, B, T)
    x, ocean = torch.randn(B, T, D), torch.zeros(B, D)

    def oceans() -> None:
        with torch.no_grad():
            bptt.relay(model, x, ocean, None, None)

    found = alternate({"serial": oceans, "all": step}, 9)
    serial, whole = (statistics.median(found[n].wall) for n in ("serial", "all"))
    return {
        "width": D,
        "layers": L,
        "batch": B,
        "steps": T,
        "serial_s": serial,
        "all_s": whole,
        "share": serial / whole,
    }


def peak_memory(T: int, keep: int) -> str:
    """Peak resident memory of one training step in this fresh process, before it, in MB, and its seconds."""
    config = OceanConfig(VOCABULARY, VOCABULARY, width=64, layers=2, heads=HEADS)
    model = baselines.build("ocean", config, T)

    def step(inputs: Tensor, keep: int) -> None:
        regimes.backward(model, "full", inputs, inputs, keep=keep)

    step(torch.zeros(8, 2, dtype=torch.int64), 2)
    before = _peak_mb()
    inputs = torch.randint(VOCABULARY, (8, T))
    began = time.perf_counter()
    step(inputs, keep or T)
    seconds = time.perf_counter() - began
    return f"{_peak_mb()} {before} {seconds}"


def _peak_mb() -> float:
    """Peak resident memory of this program, in MB. getrusage would count the parent's before exec, too."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


# ------------------------------------------------------------------ what is written down


def markdown(report: dict[str, Any]) -> list[str]:
    """The results as Markdown."""
    made = report["provenance"]
    peaks = " and ".join(f"{peak:.0f}" for peak in report["peak_gflops"])
    lines = [
        f"`{made['command'].strip()}`, commit {made['commit'][:12]}, {made['cpu']}, PyTorch {made['torch']}, "
        f"{'native loops' if made['native_loops'] else 'no native loops'}, seed {made['seed']}. "
        f"Load of the machine when it began: {made['load_average']:.1f}. "
        f"The machine's matrix products reach {peaks} GFLOP/s on one thread (before and after).",
        "",
        "Forward and backward, one thread, median of n rounds in alternating order; ratio to the standard Transformer:",
        "",
        "| d/L, B, T (n) | model | parameters | ms | best | GFLOP/s | ratio | processor ms | ratio |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for entry in report["sizes"]:
        base = entry["models"]["transformer"]
        size = f"{entry['width']}/{entry['layers']}, {entry['batch']}, {entry['steps']} ({entry['rounds']})"
        for name, m in entry["models"].items():
            lines.append(
                f"| {size} | {NAMES[name]} | {m['parameters']:,} | {m['median_s'] * 1e3:.1f} | "
                f"{m['best_s'] * 1e3:.1f} | {m['gflops']:.0f} | {m['median_s'] / base['median_s']:.2f} | "
                f"{m['cpu_s'] * 1e3:.1f} | {m['cpu_s'] / base['cpu_s']:.2f} |"
            )
    lines += [
        "",
        "Against the batch (64/2, T = 64), one thread:",
        "",
        "| B | Ocean full, ms | tokens/s | standard Transformer, ms | tokens/s | ratio | in processor time |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for entry in report["batch"]:
        full, standard = (entry["models"][n]["median_s"] for n in ("full", "transformer"))
        cpu = entry["models"]["full"]["cpu_s"] / entry["models"]["transformer"]["cpu_s"]
        tokens = entry["batch"] * entry["steps"]
        lines.append(
            f"| {entry['batch']} | {full * 1e3:.2f} | {tokens / full:,.0f} | {standard * 1e3:.2f} | "
            f"{tokens / standard:,.0f} | {full / standard:.2f} | {cpu:.2f} |"
        )
    lines += [
        "",
        "Two threads against one, `full`:",
        "",
        "| d/L, B, T | one, ms | two, ms | times |",
        "|---|--:|--:|--:|",
    ]
    for e in report["threads"]:
        lines.append(
            f"| {e['width']}/{e['layers']}, {e['batch']}, {e['steps']} | {e['one_s'] * 1e3:.1f} | "
            f"{e['two_s'] * 1e3:.1f} | {e['one_s'] / e['two_s']:.2f} |"
        )
    lines += [
        "",
        "The serial pass of `detach`, by itself without gradient:",
        "",
        "| d/L | serial, ms | whole step, ms | share |",
        "|---|--:|--:|--:|",
    ]
    for e in report["serial_share"]:
        lines.append(
            f"| {e['width']}/{e['layers']} | {e['serial_s'] * 1e3:.1f} | {e['all_s'] * 1e3:.1f} | {e['share']:.0%} |"
        )
    lines += [
        "",
        f"Peak memory that one step of `full` adds (64/2, B = 8; each in a process of its own; "
        f"commit {report['memory']['commit'][:12]}):",
        "",
        "| T | steps kept | added, MB | s |",
        "|--:|--:|--:|--:|",
    ]
    for e in report["memory"]["rows"]:
        lines.append(
            f"| {e['steps']} | {e['keep'] or 'all'} | {e['peak_mb'] - e['before_mb']:.0f} | {e['seconds']:.2f} |"
        )
    return [*lines, "", f"The whole run took {report['seconds']:.0f} s."]


if __name__ == "__main__":
    main()
