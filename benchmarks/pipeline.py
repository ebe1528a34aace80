"""How much of Ocean BPTT can run side by side, measured (A-2) and in theory (A-3).

    python benchmarks/pipeline.py            about 2 minutes -> results/pipeline/, docs/bptt.svg
    python benchmarks/pipeline.py --quick

A-2: the weights' gradients leave the serial chain. `inline`: computed after each step of the chain;
`deferred`: one product over T·B rows after it; `overlapped`: by a second thread, layer by layer, while the
chain goes on in pieces of a few steps. Beside them two threads that divide the rows.

A-3: the dependency graph of one training step, a node per operator, layer and step, weighted by its
operations; its total work over its critical path is the speed-up that endlessly many workers could give.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from machine import ROOT, needs

with needs("train"):
    import torch
    from bptt_report import alternate, provenance, publish
    from ocean_train import bptt, native
    from ocean_train.folding import PARAMETERS, fold, stack
    from ocean_train.model import OceanConfig, OceanTransformer
    from ocean_train.tape import Matrices, Tape

PIECE = 8  # steps of the chain between two hand-overs to the second thread
SIZES = (
    (32, 64, 2, 4, 64),
    (32, 64, 4, 4, 128),
    (32, 64, 4, 4, 256),
    (32, 1024, 4, 4, 128),
    (256, 64, 6, 8, 512),
)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    p.add_argument("--quick", action="store_true")
    p.add_argument("--out", type=Path, default=ROOT / "results" / "pipeline")
    p.add_argument("--figure", type=Path, help="default: docs/bptt.svg, or with --out beside the tables")
    args = p.parse_args()
    timed = (
        [(32, 1, 4, 16, 3)] if args.quick else [(64, 2, 32, 64, 15), (128, 4, 32, 64, 9), (256, 4, 32, 64, 7)]
    )
    report = {
        "provenance": provenance(),
        "overlap": [overlap(*size) for size in timed],
        "graph": [parallelism(*size) for size in (SIZES[:1] if args.quick else SIZES)],
    }
    publish(report, markdown(report), args.out, None if args.quick else "pipeline")
    ours = args.out.resolve() == ROOT / "results" / "pipeline"
    figure = args.figure or (ROOT / "docs" if ours else args.out) / "bptt.svg"
    figure.parent.mkdir(parents=True, exist_ok=True)
    draw(figure)


# ------------------------------------------------------------------


def overlap(D: int, L: int, B: int, T: int, rounds: int) -> dict[str, Any]:
    """Seconds of the chain, forward and backward, in each arrangement."""
    model = OceanTransformer(OceanConfig(5, 5, width=D, layers=L, heads=4))
    generator = torch.Generator().manual_seed(0)
    x, d_oceans = (torch.randn(B, T, D, generator=generator) for _ in range(2))
    parameters = [block.get_parameter(name).detach() for block in model.blocks for name in PARAMETERS]

    def chain(piece: int, threads: int, pool: ThreadPoolExecutor | None) -> Matrices:
        torch.set_num_threads(threads)
        matrices = fold(stack(tuple(parameters)))
        loops = native.loops(matrices, None)
        assert loops is not None, "this benchmark needs the native loops"
        ocean, tapes = x.new_zeros(B, D), []
        for start in range(0, T, piece):
            steps = slice(start, start + piece)
            oceans, tape = bptt._forward(matrices, None, loops, 4, steps, x, ocean, None, None, keep=True)
            ocean = oceans[:, -1]
            tapes.append(tape)
        carry = torch.zeros(B, D)
        waiting: list[Future[list[torch.Tensor]]] = []
        total: list[torch.Tensor] = []
        for start in reversed(range(0, T, piece)):
            tape = tapes.pop()
            d = d_oceans[:, start : start + piece].contiguous()
            d[:, -1] += carry
            gradients = loops.backward(tape, d, None, None)
            carry = gradients.d_ocean0
            for layer in range(L):
                if pool:
                    waiting.append(pool.submit(layer_gradients, tape, layer))
                else:
                    total = add(total, layer, layer_gradients(tape, layer))
        for i, job in enumerate(waiting):
            total = add(total, i % L, job.result())
        return total

    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        ways = {
            "inline": partial(chain, 1, 1, None),
            "deferred": partial(chain, T, 1, None),
            "overlapped": partial(chain, PIECE, 1, pool),
            "deferred, rows on two threads": partial(chain, T, 2, None),
        }
        reference = ways["deferred"]()
        for way in ways.values():
            for found, expected in zip(way(), reference, strict=True):
                assert (found - expected).abs().max() < 1e-3 * expected.abs().max()
        seconds = alternate(ways, rounds)
    torch.set_num_threads(1)
    medians = {name: statistics.median(s.wall) for name, s in seconds.items()}
    print(f"{D}/{L}: " + ", ".join(f"{n} {s * 1e3:.1f} ms" for n, s in medians.items()), file=sys.stderr)
    return {"width": D, "layers": L, "batch": B, "steps": T, "rounds": rounds, "median_s": medians}


def layer_gradients(tape: Tape, layer: int) -> list[torch.Tensor]:
    """One layer's weight gradients from one piece of the chain: products over its rows."""
    T, B, _ = tape.x0.shape

    def over_rows(d: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return d.reshape(T * B, -1).t() @ inputs.reshape(T * B, -1)

    return [
        over_rows(tape.qkv[layer], tape.hat1[layer]),
        over_rows(tape.kvo[:, :, layer], tape.ohat),
        over_rows(tape.dmid[layer], tape.y[layer]),
        over_rows(tape.slope[layer], tape.hat2[layer]),
        over_rows(tape.dout[layer], tape.g[layer]),
    ]


def add(total: list[torch.Tensor], layer: int, part: list[torch.Tensor]) -> list[torch.Tensor]:
    here = layer * len(part)
    if len(total) <= here:
        return total + part
    for t, p in zip(total[here : here + len(part)], part, strict=True):
        t += p
    return total


# ------------------------------------------------------------------


class Graph:
    """Operators with their work; `ends[i]` is when operator i ends if each starts as soon as it can."""

    def __init__(self, B: int, level: str) -> None:
        self.B, self.level = B, level
        self.ends: list[float] = []
        self.work = 0.0

    def add(self, outputs: int, depth: float, after: Iterable[int]) -> int:
        """B rows of `outputs` numbers, each of which takes `depth` operations in sequence."""
        work = self.B * outputs * depth
        span = {"operators": work, "rows": work / self.B, "elements": depth}[self.level]
        self.ends.append(max((self.ends[i] for i in after), default=0.0) + span)
        self.work += work
        return len(self.ends) - 1


def training_step(B: int, T: int, L: int, H: int, D: int, level: str) -> Graph:
    """The graph of one training step; in parentheses the equations' names in docs/bptt.md."""
    g = Graph(B, level)
    F, K = 4 * D, D // H
    linear = 2.0  # operations a term of an inner product
    norm, gelu = 8.0, 12.0
    oceans: list[int] = []
    forward: list[list[dict[str, int]]] = []
    for _ in range(T):
        m = g.add(D, norm, oceans[-1:])
        x: list[int] = []  # what the layer's input waits for: nothing in layer 1
        layers = []
        for _ in range(L):
            kvo = g.add(2 * D, linear * D, [m])
            n = g.add(D, norm, x)
            qkv = g.add(3 * D, linear * D, [n])
            a = g.add(H, 3.0 * K, [qkv, kvo])
            y = g.add(D, 3.0, [a])
            mid = g.add(D, linear * D, [y, *x])
            n2 = g.add(D, norm, [mid])
            h = g.add(F, linear * D, [n2])
            u = g.add(F, gelu, [h])
            out = g.add(D, linear * F, [u, mid])
            x = [out]
            layers.append({"a": a, "out": out})
        oceans += x
        forward.append(layers)
    d_next: list[int] = []
    for t in reversed(range(T)):
        loss = g.add(D, linear * D, [oceans[t]])  # the head and its gradient, reckoned as wide as the ocean
        dx = g.add(D, 1.0, [loss, *d_next])
        d_ocean: list[int] = []
        for layer in reversed(range(L)):
            g.add(D * F // B, linear * B, [dx])  # dW2
            dh = g.add(F, linear * D, [dx])
            g.add(D * F // B, linear * B, [dh])  # dW1
            dmid = g.add(D, linear * F + norm, [dh, dx])
            g.add(D * D // B, linear * B, [dmid])  # dWo
            dy = g.add(D, linear * D, [dmid])
            read = g.add(5 * D, 4.0 + 2.0 * K / D, [dy, forward[t][layer]["a"]])
            g.add(5 * D * D // B, linear * B, [read])  # dWq, dWk, dWv, from token and ocean
            dx = g.add(D, linear * 3 * D + norm, [read, dmid])
            d_ocean.append(g.add(D, linear * 2 * D, [read]))
        d_next = [g.add(D, norm + L, d_ocean)]
    return g


def parallelism(B: int, T: int, L: int, H: int, D: int) -> dict[str, Any]:
    """Work over critical path: whole operators, rows of the batch apart, every output number apart."""
    found: dict[str, Any] = {"batch": B, "steps": T, "layers": L, "heads": H, "width": D}
    for level in ("operators", "rows", "elements"):
        g = training_step(B, T, L, H, D, level)
        found[level] = g.work / max(g.ends)
        found["nodes"], found["gflop"] = len(g.ends), g.work / 1e9
    return found


# ------------------------------------------------------------------ the figure and the tables


def draw(path: Path) -> None:
    """The chain of three steps and two layers, forward and backward, as a picture."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "ocean"  # the same picture is the same file
    from matplotlib.figure import Figure

    T, L = 3, 2
    serial, hoisted, deferred = "#c7502e", "#3b7dbd", "#8a8a8a"
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    for row, axes in enumerate(figure.subplots(2, 1)):
        backward = row == 1
        for t in range(T):
            left = 4 * t
            boxes = [("x⁰: LN1, q, k, v" if not backward else "dx⁰ (from dq, dk, dv)", 0, hoisted)]
            boxes += [
                (f"layer {i + 1}" if not backward else f"d layer {i + 1}", 1 + i, serial) for i in range(L)
            ]
            boxes += [("head, loss" if not backward else "d head", L + 1, hoisted)]
            for text, height, colour in boxes:
                box(axes, left, height, text, colour)
            for height in range(L + 1):
                arrow(axes, (left, height + 0.28), (left, height + 0.72), backward)
            box(
                axes,
                left - 2,
                1.5,
                "LN1(oₜ₋₁) [Wk|Wv]\nall layers" if not backward else "Σ (dkᵒ, dvᵒ)\nall layers",
                serial,
            )
            for layer in range(L):
                arrow(axes, (left - 1.15, 1.5), (left - 0.85, 1 + layer), backward)
            if t:
                arrow(axes, (left - 4 + 0.85, L), (left - 2.85, 1.6), backward)
            if backward:
                box(axes, left - 2, 0, "dW: one product\nover T·B rows", deferred)
                arrow(axes, (left - 0.85, 0.8), (left - 1.15, 0.2), False, ":")
        axes.set(xlim=(-3, 4 * T - 2.8), ylim=(-0.5, L + 1.5), yticks=[], xticks=[4 * t for t in range(T)])
        axes.set_xticklabels([f"t = {t + 1}" for t in range(T)])
        axes.set_title(
            "forward: red is the serial chain, blue is computed for all T at once"
            if not backward
            else "backward: only the state's gradient is serial (red); the weights' gradients (grey) wait",
            fontsize=10,
        )
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    figure.savefig(path, metadata={"Date": None})


def box(axes: Any, x: float, y: float, text: str, colour: str) -> None:
    style = {"boxstyle": "round,pad=0.35", "fc": "white", "ec": colour, "lw": 1.6}
    axes.text(x, y, text, ha="center", va="center", fontsize=8, bbox=style)


def arrow(
    axes: Any, start: tuple[float, float], end: tuple[float, float], turned: bool, line: str = "-"
) -> None:
    if turned:
        start, end = end, start
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "linestyle": line, "color": "#444444"})


def markdown(report: dict[str, Any]) -> list[str]:
    """Both parts as tables."""
    made = report["provenance"]
    ways = list(report["overlap"][0]["median_s"])
    lines = [
        f"`python benchmarks/pipeline.py`, commit {made['commit'][:12]}, {made['cpu']}, PyTorch {made['torch']}. "
        "The chain alone (no embedding, no head), forward and backward, median ms of n rounds:",
        "",
        "| d/L, B, T (n) | " + " | ".join(ways) + " | deferred over overlapped |",
        "|---|" + "--:|" * (len(ways) + 1),
    ]
    for e in report["overlap"]:
        ms = e["median_s"]
        lines.append(
            f"| {e['width']}/{e['layers']}, {e['batch']}, {e['steps']} ({e['rounds']}) | "
            + " | ".join(f"{ms[way] * 1e3:.1f}" for way in ways)
            + f" | {ms['deferred'] / ms['overlapped']:.2f} |"
        )
    lines += [
        "",
        "Total work over critical path of one training step's graph:",
        "",
        "| B, T, L, H, D | nodes | GFLOP | operators whole | rows apart | every number apart |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for e in report["graph"]:
        size = ", ".join(str(e[n]) for n in ("batch", "steps", "layers", "heads", "width"))
        found = f"{e['operators']:.1f} | {e['rows']:.0f} | {e['elements']:,.0f}"
        lines.append(f"| {size} | {e['nodes']:,} | {e['gflop']:.2f} | {found} |")
    return lines


if __name__ == "__main__":
    began = time.time()
    main()
    print(f"{time.time() - began:.0f} s", file=sys.stderr)
