"""What the three benchmarks of docs/bptt.md share: how contestants take turns, and where a table goes."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from machine import ROOT, commit, processor
from ocean_train import native


class Times(NamedTuple):
    """Seconds of one contestant in each round after the first."""

    wall: list[float]
    cpu: list[float]


def alternate(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Times]:
    """Time all contestants in turn, the order reversed every other round."""
    found = {name: Times([], []) for name in steps}
    for i in range(rounds + 1):
        for name in list(steps)[:: 1 if i % 2 else -1]:
            wall, cpu = time.perf_counter(), time.process_time()
            steps[name]()
            if i > 0:
                found[name].wall.append(time.perf_counter() - wall)
                found[name].cpu.append(time.process_time() - cpu)
    return found


def provenance() -> dict[str, Any]:
    """Command, commit, machine and versions."""
    return {
        "command": f"python benchmarks/{Path(sys.argv[0]).name} " + " ".join(sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "cpu": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "native_loops": native.available(),
        "seed": 0,
    }


def publish(report: dict[str, Any], lines: list[str], out: Path, section: str | None) -> None:
    """Write results.json and table.md into `out`; into the page's section as well where `out` is results/SECTION."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    table = "\n".join(lines)
    (out / "table.md").write_text(table + "\n")
    print(table)
    if section and out.resolve() == ROOT / "results" / section:
        page = ROOT / "docs" / "bptt.md"
        before, _, rest = page.read_text().partition(f"<!-- {section} -->\n")
        after = rest.partition(f"<!-- /{section} -->")[2]
        page.write_text(f"{before}<!-- {section} -->\n\n{table}\n\n<!-- /{section} -->{after}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
