"""Training on a text, for every claim that needs a language model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from ocean_train import checkpoint as checkpoints
from ocean_train.baselines import Model
from ocean_train.batches import Data, prepare
from ocean_train.checkpoint import Checkpoint
from ocean_train.corpora import Corpus, CorpusError, load_corpus
from ocean_train.loop import Settings, train

from evidence.driver import Ledger, ResultError, Run, Scale, say, trained_by

Variant = Callable[[int], Model]
"""Vocabulary -> a model of one's own."""
EVERY = 250
"""Steps between two measurements, and two saves."""
BATCH = 32
QUICK_CHARACTERS = 20_000
NEWER = ("max_time_constant", "learn_time_constants", "first_weights", "dropout")
"""Settings that came after the first results."""
CURVE = ("step", "train_loss", "window_loss")
"""What is kept of each measurement."""


def setting(scale: Scale, **changes: Any) -> Settings:
    """The settings that all runs share, with changes: 2,000 steps of 32 windows of 64 characters."""
    small = {"width": 16, "steps": 12, "window": 16} if scale.quick else {}
    return Settings(**{"batch": BATCH, **changes, **small})


@cache
def data(scale: Scale, kind: str, vocabulary: int | None, window: int) -> Data:
    """tiny Shakespeare (at the tiny scale the beginning of the plays, which need no file)."""
    if scale.quick:
        corpus = Corpus("plays", load_corpus("plays").text[:QUICK_CHARACTERS])
    else:
        try:
            corpus = load_corpus("tinyshakespeare", scale.text)
        except CorpusError as error:
            why = str(error).split("; ")[0]
            raise ResultError(
                f"{why}; give tiny Shakespeare's file with --text FILE (make: TEXT=FILE)"
            ) from None
    return prepare(corpus, "word" if kind == "word" else "char", vocabulary, BATCH, window)


def of(scale: Scale, settings: Settings) -> Data:
    """The text as a run reads it."""
    return data(scale, settings.tokenizer, settings.vocabulary, settings.window)


def trained(scale: Scale, settings: Settings, folder: Path, variant: Variant | None = None) -> Checkpoint:
    """The finished run of these settings in `folder`, trained as far as that is missing.

    `variant` makes the model in place of the settings.
    """
    text = of(scale, settings)
    spent = Ledger(folder / "seconds.json")
    begun = checkpoints.load(folder).step if checkpoints.exists(folder) else 0
    before, began = spent.values.get(str(begun)) if begun else 0.0, time.process_time()

    def count(line: str) -> None:
        step = line.split()[1]
        if line.startswith("going on"):
            say(line)
        if step.isdigit() and before is not None:  # a measurement; this step's save follows
            spent.values[step] = before + time.process_time() - began
            spent.save()

    every = min(EVERY, settings.steps)
    model = variant(text.tokenizer.size) if variant else None
    train(settings, text, folder, eval_every=every, save_every=every, say=count, model=model)
    return checkpoints.load(folder)


def described_settings(settings: Settings) -> dict[str, Any]:
    """The settings as a result's file holds them.

    Those of NEWER that are at their default are left out: results of before do not have them.
    """
    defaults = {field.name: field.default for field in fields(Settings)}
    return {
        name: value
        for name, value in asdict(settings).items()
        if name not in NEWER or value != defaults[name]
    }


def run(claim: str, name: str, scale: Scale, settings: Settings, variant: Variant | None = None) -> Run:
    """Train with these settings and report the losses."""

    def compute(folder: Path) -> dict[str, Any]:
        checkpoint = trained(scale, settings, folder, variant)
        return report(checkpoint, folder)

    described = described_settings(settings) | {"corpus": "plays" if scale.quick else "tinyshakespeare"}
    if variant:
        described["variant"] = name
    return Run(claim, name, described, compute)


def report(checkpoint: Checkpoint, folder: Path) -> dict[str, Any]:
    """What is kept of a training run."""
    settings = checkpoint.settings
    spent = Ledger(folder / "seconds.json").values
    return {
        "seed": checkpoint.seed,
        "trained_by": trained_by(checkpoint),
        "parameters": sum(w.numel() for w in checkpoint.weights.values()),
        "tokens": settings["steps"] * settings["batch"] * settings["window"],
        "cpu_seconds": spent.get(str(checkpoint.step)),
        "curve": [{name: entry[name] for name in CURVE} for entry in checkpoint.history],
        "result": {"window_loss": checkpoint.history[-1]["window_loss"]},
    }
