"""Which exercise a person does, told from a wrist's inertial sensors at full rate: the Ocean beside GRU and LSTM.

    python benchmarks/activities.py choose     the GRU's rate: trained on people 1 to 5, measured on 6 and 7
    python benchmarks/activities.py unseen     trained on people 1 to 7, measured on 8 to 10; three seeds
    python benchmarks/activities.py folds      each of ten people left out once; two seeds
    python benchmarks/activities.py rates      `choose` and `unseen` at 10, 25 and 100 Hz
    python benchmarks/activities.py reach      how far a gradient reaches back, before and during training
    python benchmarks/activities.py table      results/activities/table.md from what has run

Each run is what `ocean-train --log` does with nothing but the model and the seed given (and for the GRU its rate),
measured after the last of 2,000 steps. A run that has its file in results/activities is not repeated; several
processes share the work. The recordings are those of examples/activity.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import ROOT, needs

sys.path.append(str(ROOT / "examples"))

with needs("train"):
    import numpy as np
    import torch
    from activity import RATE_HZ, convert
    from bptt_report import provenance
    from ocean_train import features, loop, optimizer, recipe
    from ocean_train.logs import Request, read_log
    from ocean_train.metrics import evaluate

OUT = ROOT / "results" / "activities"
DATA = ROOT / "runs" / "activities"
EVERYBODY = range(1, 11)
UNSEEN = (8, 9, 10)
CHOOSING = (6, 7)
RATES = (10, 25, 100)
GRU_LEARNING_RATES = (5e-4, 1e-3, 2e-3)
REACH = (1, 3, 7, 15, 31, 63)


@dataclass(frozen=True)
class Run:
    """One training: who is measured, who is trained on, and what differs from the defaults."""

    group: str
    model: str
    seed: int
    measured: tuple[int, ...]
    trained: tuple[int, ...]
    rate_hz: int = RATE_HZ
    lr: float | None = None

    @property
    def path(self) -> Path:
        """Of its result."""
        people = "-".join(map(str, self.measured))
        rate = "" if self.lr is None else f"-lr{self.lr:g}"
        return OUT / self.group / f"{self.model}{rate}-{self.rate_hz}hz-people{people}-seed{self.seed}.json"


def others(measured: Sequence[int], among: Sequence[int] = EVERYBODY) -> tuple[int, ...]:
    """Who is left to train on."""
    return tuple(p for p in among if p not in measured)


def choose(rate_hz: int = RATE_HZ) -> Iterator[Run]:
    """The GRU's learning rate is chosen here, as the Ocean's defaults were, on people 6 and 7."""
    among = others(UNSEEN)
    for lr in GRU_LEARNING_RATES:
        for seed in range(3):
            yield Run("choose", "gru", seed, CHOOSING, others(CHOOSING, among), rate_hz, lr)
    for seed in range(3):
        yield Run("choose", "ocean", seed, CHOOSING, others(CHOOSING, among), rate_hz)


def best_gru_rate(rate_hz: int = RATE_HZ) -> float:
    """The rate with the best mean accuracy in `choose`."""
    scores: dict[float, list[float]] = {}
    for run in choose(rate_hz):
        if run.lr is not None and run.path.exists():
            scores.setdefault(run.lr, []).append(json.loads(run.path.read_text())["accuracy"])
    if len(scores) < len(GRU_LEARNING_RATES):
        sys.exit(f"the GRU's rate at {rate_hz} Hz is not chosen yet: run `choose` first")
    return max(scores, key=lambda lr: statistics.mean(scores[lr]))


def unseen(rate_hz: int = RATE_HZ) -> Iterator[Run]:
    """People 8 to 10, three seeds."""
    rate = best_gru_rate(rate_hz)
    for seed in range(3):
        yield Run("unseen", "ocean", seed, UNSEEN, others(UNSEEN), rate_hz)
        yield Run("unseen", "gru", seed, UNSEEN, others(UNSEEN), rate_hz, rate)


def folds() -> Iterator[Run]:
    """Each person left out once, two seeds."""
    rate = best_gru_rate()
    for seed in range(2):
        for person in EVERYBODY:
            yield Run("folds", "ocean", seed, (person,), others((person,)))
            yield Run("folds", "gru", seed, (person,), others((person,)), RATE_HZ, rate)


def prepared(run: Run) -> features.Sensors:
    """The log of the people that the run needs, at its rate, split."""
    people = sorted((*run.measured, *run.trained))
    path = DATA / f"watch{run.rate_hz}-{'-'.join(map(str, people))}.npz"
    DATA.mkdir(parents=True, exist_ok=True)
    with (DATA / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            convert(path, math.inf, tuple(f"person{p:02}" for p in EVERYBODY if p not in people), run.rate_hz)
    log = read_log(Request((path,), classes="activity", episode="recording", time="time"))
    return features.prepare(log, [f"{path.stem}/person{p:02}/*" for p in run.measured])


def settings(run: Run, data: features.Sensors) -> loop.Settings:
    """The defaults of `ocean-train --log`, with the model, the seed and perhaps the rate given."""
    chosen = recipe.defaults(run.model, log=True, classes=True, width=64, rate_hz=data.observations.rate_hz)
    return loop.Settings(
        model=run.model, seed=run.seed, **{**chosen, **({} if run.lr is None else {"lr": run.lr})}
    )


def perform(run: Run) -> None:
    """Train, measure, write the result."""
    data = prepared(run)
    chosen = settings(run, data)
    begin = time.process_time()
    out = DATA / "runs" / run.group / run.path.stem
    done = loop.train(chosen, data, out, eval_every=500, save_every=chosen.steps)
    model = loop.build(chosen, data.observations)
    model.load_state_dict(dict(done.weights))
    found = evaluate(model, data, chosen.window).entry()
    result = {
        **dataclasses.asdict(run),
        "accuracy": found["accuracy"],
        "macro_f1": found["macro_f1"],
        "settings": dataclasses.asdict(chosen),
        "history": [dict(entry) for entry in done.history],
        "parameters": sum(p.numel() for p in model.parameters()),
        "cpu_seconds": time.process_time() - begin,
        "provenance": provenance(),
    }
    run.path.parent.mkdir(parents=True, exist_ok=True)
    run.path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{run.path.relative_to(OUT)}: accuracy {found['accuracy']:.3f}", flush=True)


def work(runs: Iterator[Run]) -> None:
    """All runs that have no result yet; one that another process works on is left to it."""
    (DATA / "locks").mkdir(parents=True, exist_ok=True)
    for run in runs:
        with (DATA / "locks" / f"{run.group}-{run.path.stem}").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not run.path.exists():
                perform(run)


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; NaN for one value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def rows(runs: Iterator[Run]) -> Iterator[str]:
    """A line a model: mean accuracy, standard error over the runs (or over people), and each value."""
    found: dict[tuple[str, int], dict[tuple[int, ...], list[float]]] = {}
    for run in runs:
        if run.path.exists():
            values = found.setdefault((run.model, run.rate_hz), {}).setdefault(run.measured, [])
            values.append(json.loads(run.path.read_text())["accuracy"])
    for (model, rate_hz), people in sorted(found.items()):
        several = len(people) > 1  # folds: a person's value is the mean over seeds
        values = [statistics.mean(v) for v in people.values()] if several else next(iter(people.values()))
        each = ", ".join(f"{v:.3f}" for v in values)
        yield (
            f"| {model} | {rate_hz} | {statistics.mean(values):.3f} | {standard_error(values):.3f} | {each} |"
        )


def table() -> None:
    """results/activities/table.md."""
    head = ["| model | Hz | accuracy | standard error | each |", "|---|--:|--:|--:|---|"]
    parts = [
        ("Trained on people 1 to 7, measured on 8 to 10, once; the seeds", unseen),
        ("Each person left out once; ten people, each the mean of two seeds", folds),
    ]
    lines = ["`python benchmarks/activities.py`: seven exercises, chance 0.143."]
    for title, runs in parts:
        lines += ["", f"**{title}.**", "", *head, *rows(runs())]
    lines += ["", "**The first at other rates.**", "", *head]
    for rate in RATES:
        if any(run.path.exists() for run in choose(rate)):
            lines += rows(unseen(rate))
    text = "\n".join(lines) + "\n"
    (OUT / "table.md").write_text(text)
    print(text)


def reach() -> None:
    """Median norm of ∂(state at t)/∂(state at t − k), by random projections, untrained and after some steps."""
    run = Run("reach", "ocean", 0, CHOOSING, others(CHOOSING, others(UNSEEN)))
    data = prepared(run)
    variants: dict[str, dict[str, Any]] = {
        "relay, first weights normal": {"model": "ocean", "heads": 4, "lr": 1e-3},
        "relay, first weights identity, 32 heads": {
            "model": "ocean",
            "heads": 32,
            "lr": 2e-3,
            "first_weights": "identity",
        },
        "leak (the defaults)": {
            "model": "ocean",
            **recipe.defaults("ocean", log=True, classes=True, width=64, rate_hz=RATE_HZ),
        },
        "gru": {"model": "gru", "lr": 1e-3},
    }
    lines = [
        "`python benchmarks/activities.py reach`: the norm of vᵀ ∂sₜ/∂sₜ₋ₖ for a random v of norm 1, median of 32.",
        "",
        "| | steps trained | " + " | ".join(f"k = {k}" for k in REACH) + " |",
        "|---|--:|" + "--:|" * len(REACH),
    ]
    for name, chosen in variants.items():
        s = loop.Settings(**{**chosen, "steps": 2000})
        model = loop.build(s, data.observations)
        adam = optimizer.make_optimizer(model)
        batch_at, state = loop.feed(s, data), None
        for trained in (0, 100, 500):
            for step in range({0: 0, 100: 0, 500: 100}[trained], trained):
                loss, state = loop.gradient(model, s, batch_at(step), state)
                optimizer.update(model, adam, loss, optimizer.learning_rate(step, s.steps, s.lr))
            norms = [f"{gradient_norm(model, data, k):.2g}" for k in REACH]
            lines.append(f"| {name} | {trained} | " + " | ".join(norms) + " |")
    (OUT / "reach.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def gradient_norm(model: Any, data: features.Sensors, k: int, before: int = 64) -> float:
    """One number of `reach`: vᵀ J, scaled to what a random direction gives, over 32 rows."""
    shape = dataclasses.replace(loop.Settings(), batch=32, window=before + k, feed="windows")
    inputs = loop.feed(shape, data)(0).inputs
    with torch.no_grad():
        _, state = model(inputs[:, :before], None)
    state = state.detach().requires_grad_()
    _, after = model(inputs[:, before:], state)
    v = torch.randn(after.shape, generator=torch.Generator().manual_seed(k))
    (gradient,) = torch.autograd.grad((after * v / v.norm(dim=1, keepdim=True)).sum(), state)
    return float(np.median(gradient.norm(dim=1).numpy()))


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    p.add_argument("what", choices=("choose", "unseen", "folds", "rates", "reach", "table"))
    what = p.parse_args().what
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    if what == "rates":
        for rate in RATES:
            work(choose(rate))
            work(unseen(rate))
    elif what in ("reach", "table"):
        {"reach": reach, "table": table}[what]()
    else:
        work({"choose": choose, "unseen": unseen, "folds": folds}[what]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
