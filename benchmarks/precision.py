"""What int8 and int4 cost and save on a trained model: loss, drift, size, time.

python benchmarks/precision.py CHECKPOINT [--out results/precision]

Loss and drift are those that the export measures (ocean_export.heldout): 10,000 held-out steps in closed loop.
Times are measured as in benchmarks/step.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from machine import needs

with needs("train,export"):
    import torch
    from ocean_export.contract import attach, contract_of
    from ocean_export.heldout import heldout_of, measure
    from ocean_export.lean import lean_graph
    from ocean_runtime import OceanModel
    from ocean_train import checkpoint
    from step import about, ocean_contender
    from step import measure as time_of

FORMS = (("fp32", False), ("int8", False), ("int8", True), ("int4", False))


def main() -> None:
    """Measure a checkpoint at every precision."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/precision"))
    parser.add_argument("--seconds", type=float, default=60, help="of timing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    saved = checkpoint.load(args.checkpoint)
    model, config = saved.model(), saved.config
    files = {
        f"{precision}{' portable' if portable else ''}": attach(
            lean_graph(model, precision, portable),
            dataclasses.replace(contract_of(saved, model), precision=precision),
        )
        for precision, portable in FORMS
    }
    rows: dict[str, dict[str, Any]] = dict(
        time_of(
            {name: partial(ocean_contender, content, config.width) for name, content in files.items()},
            args.seconds,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder) / "model.onnx"
            path.write_bytes(content)
            rows[name]["cost"] = measure(OceanModel.load(path), model, heldout_of(saved)).to_dict()
    trained = {
        "size": f"{config.width}/{config.layers}",
        "data": saved.data.get("name"),
        "training_steps": saved.step,
        "settings": dict(saved.settings),
        "validation_loss": saved.validation_loss,
    }
    results = {
        "about": {**about(), "command": "python benchmarks/precision.py"},
        "model": trained,
        "rows": rows,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "precision.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = [
        f"{trained['size']}, {saved.step:,} training steps, validation loss {saved.validation_loss}\n",
        "| | time against fp32 | file against fp32 | loss | increase | largest drift | final | grows |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, row in rows.items():
        cost, drift = row["cost"], row["cost"]["drift"]
        lines.append(
            f"| {name} | {row['cpu_us'] / rows['fp32']['cpu_us']:.2f} | "
            f"{row['file_bytes'] / rows['fp32']['file_bytes']:.3f} | {cost['exported']:.4f} | "
            f"{cost['increase']:+.4f} | {drift['largest']:.1%} | {drift['final']:.1%} | {drift['grows']} |"
        )
    text = "\n".join(lines) + "\n"
    (args.out / "precision.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
