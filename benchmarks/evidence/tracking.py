"""Claim 5, state tracking and recall: parity, the word problem of S5, and multi-query associative recall.

Generated as in the published suites: the running parity of random bits; the running product of random
permutations of five things, all 120 or only the ten that swap two (Merrill, Petty and Sabharwal 2024: no constant
number of parallel layers can); key-value pairs, then keys that ask for their values (Arora et al. 2023, zoology).
Trained on lengths that grow to 32, tested beyond; a GRU, an LSTM and a standard Transformer of equal parameters
beside. The Transformer has rotary positions: learned ones beyond the training's lengths would be untrained. Words
begin with a start symbol, without which attention can't tell 1 from 1 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_train.baselines import Model
from ocean_train.model import OceanConfig
from ocean_train.regimes import predict

from evidence import tasks, variants
from evidence.driver import Run, Scale, trained_by
from evidence.page import MISSING, Results, Section, get, table
from evidence.tasks import IGNORED, Draw, Drawn, Task

CLAIM = "tracking"
TITLES = {
    "parity": "parity",
    "swaps": "S5 by swaps",
    "s5": "S5 by all its elements",
    "recall": "multi-query recall",
}
WORDS = ("parity", "swaps", "s5")
MODELS = ("ocean", "gru", "lstm", "transformer")
WIDTH, LAYERS, HEADS = 64, 2, 4
LONGEST = 32
LENGTHS = (16, 32, 64, 256, 1024)
PAIRS = (2, 4, 8, 16)
FIRST = 2
"""The length, or pairs, that training begins with."""
RIGHT = 0.99
"""A share of right answers above which a task counts as done."""
GROUP = [np.array(p) for p in permutations(range(5))]
INDEX = {tuple(p): i for i, p in enumerate(GROUP)}
PRODUCT = np.array([[INDEX[tuple(a[b])] for b in GROUP] for a in GROUP])
"""PRODUCT[a, b]: first b, then a."""
SWAPS = np.array([i for i, p in enumerate(GROUP) if (p != np.arange(5)).sum() == 2])


def running(table: NDArray[np.int64], inputs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The product of all inputs up to each step in the group with this table: (B, T) -> (B, T)."""
    out = np.empty_like(inputs)
    state = inputs[:, 0]
    out[:, 0] = state
    for t in range(1, inputs.shape[1]):
        state = table[inputs[:, t], state]
        out[:, t] = state
    return out


def word_problem(table: NDArray[np.int64], letters: NDArray[np.int64]) -> Draw:
    """A start symbol, then `level` random letters, elements of a group; the answers are their products so far."""

    def draw(random: np.random.Generator, batch: int, level: int) -> Drawn:
        word = letters[random.integers(len(letters), size=(batch, level))]
        inputs, targets = np.zeros((2, batch, level + 1), int)  # 0 is the start symbol
        inputs[:, 1:] = word + 1
        targets[:, 0], targets[:, 1:] = IGNORED, running(table, word) + 1
        return Drawn(torch.from_numpy(inputs), torch.from_numpy(targets))

    return draw


def recall(keys: int, values: int) -> Draw:
    """`level` pairs of different keys and values, then all keys in another order; answers: their values."""

    def draw(random: np.random.Generator, batch: int, level: int) -> Drawn:
        order = random.permuted(np.tile(np.arange(keys), (batch, 1)), axis=1)[:, :level]
        value = random.integers(values, size=(batch, level)) + keys
        pairs = np.stack([order, value], axis=2).reshape(batch, 2 * level)
        asked = random.permuted(np.tile(np.arange(level), (batch, 1)), axis=1)
        inputs = np.concatenate([pairs, np.take_along_axis(order, asked, 1)], axis=1) + 1
        targets = np.full_like(inputs, IGNORED)
        targets[:, 2 * level :] = np.take_along_axis(value, asked, 1) + 1
        return Drawn(torch.from_numpy(inputs), torch.from_numpy(targets))

    return draw


def _symbols(count: int) -> str:
    return "".join(chr(0x4E00 + i) for i in range(count))


def task_of(scale: Scale, name: str) -> Task:
    """The task by its name in TITLES."""
    steps = 12 if scale.quick else 4000
    longest = _last_level(name) // (8 if scale.quick else 1)
    if name == "parity":
        draw, symbols = word_problem(np.array([[0, 1], [1, 0]]), np.arange(2)), 2
    elif name in WORDS:
        letters = SWAPS if name == "swaps" else np.arange(len(GROUP))
        draw, symbols = word_problem(PRODUCT, letters), len(GROUP)
    else:
        draw, symbols = recall(32, 32), 64
    return Task(name, _symbols(symbols), draw, steps, FIRST, longest, 3 * longest + 1)


def runs(scale: Scale) -> list[Run]:
    return [run(scale, CLAIM, name, kind) for name in TITLES for kind in MODELS]


def run(scale: Scale, claim: str, name: str, kind: str, max_time_constant: float = 1.0) -> Run:
    """One task and one model; an ocean with a longer time constant than 1 is a leaky one."""
    task = task_of(scale, name)
    tested = (4, 8) if scale.quick and name in WORDS else _tested(name)

    def compute(folder: Path) -> dict[str, Any]:
        width = 16 if scale.quick else WIDTH
        longest = 3 * max(tested) + 1
        if kind == "transformer":
            V = task.tokenizer.size
            model: Model = variants.Rotary(OceanConfig(V, V, width, LAYERS, HEADS), longest, seed=0)
        else:
            model = tasks.build(task, kind, width, LAYERS, HEADS, 0, max_time_constant)
        checkpoint = tasks.fit(task, model, kind, folder / "trained", seed=0)
        model.load_state_dict(dict(checkpoint.weights))
        found = {str(n): accuracy(model, task, n) for n in tested}
        return {
            "seed": 0,
            "trained_by": trained_by(checkpoint),
            "parameters": sum(p.numel() for p in model.parameters()),
            "cpu_seconds": checkpoint.settings["cpu_seconds"],
            "curve": [dict(entry) for entry in checkpoint.history],
            "result": {"accuracy": found, "level": checkpoint.history[-1]["level"]},
        }

    named = "transformer, rotary" if kind == "transformer" else kind
    settings = {"model": named, "width": WIDTH, "layers": LAYERS, "heads": HEADS, "steps": task.steps}
    settings |= {"batch": task.batch, "lr": task.lr, "longest": task.last_level, "tested": list(tested)}
    if name in WORDS:
        settings["start"] = "a symbol"
    if max_time_constant > 1:
        settings["max_time_constant"] = max_time_constant
    return Run(claim, f"{name}-{kind}", settings, compute)


def accuracy(model: Model, task: Task, level: int) -> float:
    """Share of right answers in the last quarter of 256 fresh sequences."""
    batch = task.draw(np.random.default_rng((9, level)), 256, level)
    outputs = torch.cat([predict(model, rows)[0] for rows in torch.split(batch.inputs, 16)])
    last = slice(-max(1, level // 4), None)
    right = outputs[:, last].argmax(-1) == batch.targets[:, last]
    return right.double().mean().item()


# ------------------------------------------------------------------ what the page says


ABOUT = (
    f"{WIDTH}/{LAYERS} and models of as many parameters, one recipe (4,000 steps of 64 sequences, learning rate 1e-3) "
    "and one seed, which may not be the best for any of them; the Transformer with rotary positions. What was not "
    "learned in this training says nothing of what a model could hold. Parity can be had at constant depth: what a "
    "Transformer loses there is length, not depth; only S5 asks for depth. Its words, and parity's, begin with a start "
    "symbol; *by swaps* has the ten elements that swap two things for letters, and all 120 as answers."
)


def section(results: Results) -> Section:
    found = {name: get(results, f"{name}-ocean", "accuracy") for name in TITLES}
    ours = "; ".join(
        f"{TITLES[name]} {_share(next(reversed(a.values())))} at {next(reversed(a))}"
        for name, a in found.items()
        if a
    )
    outcomes = {name: _outcome(results, name) for name in TITLES}
    verdict = "; ".join(f"{TITLES[name]}: {outcome}" for name, outcome in outcomes.items() if outcome)
    controls = "; ".join(f"{TITLES[name]} {_far(results, name)}" for name in TITLES)
    return Section(
        title="5. State tracking and recall",
        paper="one vector tracks a state that a Transformer of constant depth can't",
        ours=ours or MISSING,
        control=controls if results else "GRU, LSTM, standard Transformer: missing",
        verdict=verdict or "open",
        lines=[ABOUT, *(line for name in TITLES for line in _task_lines(results, name))],
    )


def _tested(name: str) -> tuple[int, ...]:
    return PAIRS if name == "recall" else LENGTHS


def _last_level(name: str) -> int:
    return PAIRS[-1] if name == "recall" else LONGEST


def _outcome(results: Results, name: str) -> str | None:
    """What became of a task; None while a run is missing."""
    level = {kind: get(results, f"{name}-{kind}", "level") for kind in MODELS}
    far = {kind: get(results, f"{name}-{kind}", "accuracy", str(_tested(name)[-1])) for kind in MODELS}
    if None in level.values() or None in far.values():
        return None
    learned = [kind for kind in MODELS if level[kind] == _last_level(name)]
    if not learned:
        return "learned by no model"
    if "ocean" not in learned:
        return f"learned by {', '.join(learned)} alone"
    kept = [kind for kind in learned if far[kind] > RIGHT]
    lost = [kind for kind in learned if far[kind] <= RIGHT]
    missed = [kind for kind in MODELS if kind not in learned]
    told = f"{', '.join(kept) or 'none'} beyond the training's lengths"
    if lost:
        told += f", not {', '.join(lost)}"
    if missed:
        told += f"; never learned by {', '.join(missed)}"
    return told


def _far(results: Results, name: str) -> str:
    """The other models' shares of right answers at the longest."""
    far = str(_tested(name)[-1])
    shares = (f"{kind} {_share(get(results, f'{name}-{kind}', 'accuracy', far))}" for kind in MODELS[1:])
    return f"at {far}: {', '.join(shares)}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _level(run: Mapping[str, Any]) -> str:
    """How far the training came; – where it never left the level that it began with."""
    level = run["result"]["level"]
    return "–" if level == FIRST else str(level)


def _task_lines(results: Results, name: str) -> list[str]:
    tested = _tested(name)
    rows = [
        [
            kind,
            _level(results[f"{name}-{kind}"]),
            f"{results[f'{name}-{kind}']['curve'][-1]['loss']:.3f}",
            *(_share(a.get(str(n))) for n in tested),
            f"[run](../results/evidence/{CLAIM}/{name}-{kind}.json)",
        ]
        for kind in MODELS
        if (a := get(results, f"{name}-{kind}", "accuracy"))
    ]
    if not rows:
        return []
    what = "pairs" if name == "recall" else "length"
    return [
        "",
        f"*{TITLES[name]}*: share of right answers in the last quarter, by {what}. Training goes from {what} {FIRST} "
        f"to {_last_level(name)}, on to the next as each is learned; how far it came (– not beyond the first), and its "
        "last running loss there, in nats:",
        "",
        *table(("", "trained to", "loss", *map(str, tested), ""), rows),
    ]
