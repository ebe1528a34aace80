"""What many heads and leaky integration cost: training and a step of the exported graph, side by side.

    python benchmarks/heads.py [--sizes 64/2 128/4] [--rounds 40]

Contestants take turns in an order that is reversed each time; ratios are medians of the ratio within a round, to the
relay with 4 heads. Training is one forward and backward pass of 32 x 64 tokens (regime `full`, native loops), in
processor time; a step is the lean graph at B = 1, called 500 times a round. One thread. With --instructions the native
loops are built for another processor, such as haswell for AVX2 alone. Writes results/heads/.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from machine import ROOT, needs

with needs("train,export"):
    import numpy as np
    import onnxruntime
    import torch
    from bptt_report import alternate, provenance, publish
    from ocean_export.lean import lean_graph
    from ocean_runtime.session import bind, session_of
    from ocean_train import native
    from ocean_train.model import OceanConfig, OceanTransformer
    from ocean_train.regimes import backward

CALLS = 500
LEAK = 128.0


def models(width: int, layers: int) -> dict[str, OceanTransformer]:
    """By name: the relay with several numbers of heads, the leak with the first of them."""
    found = {
        f"{heads} heads": OceanTransformer(OceanConfig(65, 65, width=width, layers=layers, heads=heads))
        for heads in (4, width // 4, width // 2, width)
    }
    leaky = OceanConfig(65, 65, width=width, layers=layers, heads=4, max_time_constant=LEAK)
    return found | {"4 heads, leak": OceanTransformer(leaky)}


def training(model: OceanTransformer) -> Callable[[], object]:
    """One forward and backward pass."""
    tokens = torch.randint(65, (32, 65), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        model.zero_grad()
        backward(model, "full", tokens[:, :-1], tokens[:, 1:])

    return step


def stepping(model: OceanTransformer) -> Callable[[], object]:
    """CALLS steps of the exported graph, as the runtime calls it."""
    session = session_of(lean_graph(model).SerializeToString(), 1, None)
    feeds = {"token": np.zeros(1, np.int64), "ocean": np.zeros((1, model.config.width), np.float32)}
    sizes = {"logits": 65, "ocean_next": model.config.width}
    call = bind(session, feeds, {name: np.zeros((1, size), np.float32) for name, size in sizes.items()})

    def steps() -> None:
        for _ in range(CALLS):
            call(feeds)

    return steps


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    p.add_argument("--sizes", nargs="+", default=["64/2", "128/4"])
    p.add_argument("--rounds", type=int, default=40)
    p.add_argument("--instructions", metavar="ARCH", help="build the native loops with -march=ARCH")
    p.add_argument("--out", type=Path)
    args = p.parse_args()
    if args.instructions:
        native.FLAGS = tuple(
            f"-march={args.instructions}" if f.startswith("-march") else f for f in native.FLAGS
        )
    torch.set_num_threads(1)
    lines, sizes = [], {}
    began = time.perf_counter()
    for size in args.sizes:
        contestants = models(*map(int, size.split("/")))
        rows = {}
        trained = alternate({name: training(m) for name, m in contestants.items()}, args.rounds)
        stepped = alternate({name: stepping(m) for name, m in contestants.items()}, args.rounds)
        first = next(iter(contestants))
        for name in contestants:
            rows[name] = {
                "training_ms": float(np.median(trained[name].cpu)) * 1e3,
                "training_ratio": float(np.median(np.divide(trained[name].cpu, trained[first].cpu))),
                "step_us": float(np.median(stepped[name].cpu)) / CALLS * 1e6,
                "step_ratio": float(np.median(np.divide(stepped[name].cpu, stepped[first].cpu))),
            }
            lines.append(
                f"| {size} | {name} | {rows[name]['training_ms']:.1f} | {rows[name]['training_ratio']:.3f} "
                f"| {rows[name]['step_us']:.1f} | {rows[name]['step_ratio']:.3f} |"
            )
        sizes[size] = rows
    about = provenance()
    built = f"built for {args.instructions}" if args.instructions else "built for this processor"
    publish(
        {"about": about, "built": built, "rounds": args.rounds, "sizes": sizes},
        [
            f"`{about['command'].strip()}`, commit {about['commit'][:12]}, {about['cpu']} ({about['capability']}), "
            f"native loops {built}, onnxruntime {onnxruntime.__version__}, n = {args.rounds}, "
            f"{time.perf_counter() - began:.0f} s in all.",
            "",
            "| width/layers | | training, processor ms | ratio | step, processor µs | ratio |",
            "|---|---|--:|--:|--:|--:|",
            *lines,
        ],
        args.out or ROOT / "results" / "heads",
        None,
    )


if __name__ == "__main__":
    main()
