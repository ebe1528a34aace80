"""`ocean_train.Ocean` as a layer: beside `nn.GRU` of equal parameters, and a loop of one's own beside ocean-train's.

    python benchmarks/layer.py            three sizes, under three minutes -> results/layer/
    python benchmarks/layer.py --quick    a tiny size, to see that it runs

Forward and backward of a window (B, T, 16) of sensors, on one thread. The contestants take turns, the order reversed
from round to round, and the median of the rounds after the first counts. A step of a loop is a window's loss, its
gradient, the gradient's clipping and AdamW; both loops have the same model, a linear map behind the Ocean.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import ROOT, needs

with needs("train"):
    import torch
    from bptt_report import alternate, provenance, publish
    from ocean_train import Ocean, OceanConfig, OceanTransformer, make_optimizer, regimes
    from ocean_train.optimizer import CLIP_NORM, update
    from torch import nn

INPUTS, OUTPUTS = 16, 4
RATE = 1e-4
SIZES = ((64, 2, 32, 64), (128, 4, 32, 64), (64, 2, 1, 64))
"""Width, layers, rows, steps."""
SECONDS = 45.0
"""For each size, after the first round."""


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    p.add_argument("--quick", action="store_true")
    p.add_argument("--out", type=Path, default=ROOT / "results" / "layer")
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    report = {"provenance": provenance(), "quick": args.quick}
    sizes = ((16, 1, 2, 8),) if args.quick else SIZES
    report["sizes"] = [compare(*size, seconds=0.5 if args.quick else SECONDS) for size in sizes]
    publish(report, markdown(report), args.out, None)


def compare(D: int, L: int, B: int, T: int, seconds: float) -> dict[str, Any]:
    """All contestants at one size."""
    x = torch.randn(B, T, INPUTS)
    target = torch.randn(B, T, OUTPUTS)
    ocean = Ocean(INPUTS, D, L)
    gru = nn.GRU(INPUTS, gru_width(ocean, L), L, batch_first=True)
    steps = {
        "Ocean": window(ocean, x),
        "nn.GRU": window(gru, x),
        "own loop": own_loop(D, L, x, target),
        "ocean-train": trainer(D, L, x, target),
    }
    for step in steps.values():
        step()
    began = time.perf_counter()
    for step in steps.values():
        step()
    rounds = max(5, min(1000, int(seconds / (time.perf_counter() - began))))
    times = alternate(steps, rounds)
    return {
        "width": D,
        "layers": L,
        "rows": B,
        "steps": T,
        "rounds": rounds,
        "gru_width": gru.hidden_size,
        "parameters": {"Ocean": count(ocean), "nn.GRU": count(gru)},
        "median_s": {name: statistics.median(times[name].wall) for name in steps},
        "cpu_s": {name: statistics.median(times[name].cpu) for name in steps},
    }


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def gru_width(ocean: nn.Module, layers: int) -> int:
    """The width at which a GRU of as many layers has the number of parameters closest to the Ocean's."""
    wanted = count(ocean)

    def parameters(H: int) -> int:
        return sum(3 * H * ((INPUTS if layer == 0 else H) + H + 2) for layer in range(layers))

    return min(range(1, 4096), key=lambda H: abs(parameters(H) - wanted))


def window(layer: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """One forward and backward pass of a layer."""

    def step() -> None:
        layer.zero_grad(set_to_none=True)
        output, _ = layer(x)
        output.square().mean().backward()

    return step


def own_loop(D: int, L: int, x: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
    """A step as somebody would write it."""
    ocean, head = Ocean(INPUTS, D, L), nn.Linear(D, OUTPUTS, bias=False)
    model = nn.ModuleList([ocean, head])
    optimizer = make_optimizer(model)
    for group in optimizer.param_groups:
        group["lr"] = RATE

    def step() -> None:
        output, _ = ocean(x)
        loss = (head(output) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()

    return step


def trainer(D: int, L: int, x: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
    """The same step as `ocean-train` does it."""
    heads = Ocean(INPUTS, D, L).config.heads
    config = OceanConfig(INPUTS, OUTPUTS, D, L, heads, "features", "regression", max_time_constant=128)
    model = OceanTransformer(config, 0, "identity")
    optimizer = make_optimizer(model)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss, _ = regimes.backward(model, "full", x, target)
        update(model, optimizer, loss, RATE)

    return step


def markdown(report: dict[str, Any]) -> list[str]:
    """The table, and where it was measured."""
    p = report["provenance"]
    lines = [
        f"`{p['command'].strip()}`, {p['date']}, commit {p['commit'][:12]}, {p['cpu']}, PyTorch {p['torch']}, load "
        f"{p['load_average']:.1f}, native loops: {'yes' if p['native_loops'] else 'no'}; medians in ms, one thread.",
        "",
        "| Ocean | window | parameters | GRU of | parameters | Ocean | GRU | ratio | own loop | ocean-train | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for size in report["sizes"]:
        ms = {name: 1e3 * seconds for name, seconds in size["median_s"].items()}
        lines.append(
            f"| {size['width']}/{size['layers']} | {size['rows']} x {size['steps']} | {size['parameters']['Ocean']:,} "
            f"| {size['gru_width']}/{size['layers']} | {size['parameters']['nn.GRU']:,} "
            f"| {ms['Ocean']:.2f} | {ms['nn.GRU']:.2f} | {ms['Ocean'] / ms['nn.GRU']:.2f} "
            f"| {ms['own loop']:.2f} | {ms['ocean-train']:.2f} | {ms['own loop'] / ms['ocean-train']:.2f} |"
        )
    return lines


if __name__ == "__main__":
    main()
