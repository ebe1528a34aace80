"""Claim 7, generation without extrapolation: 200,000 characters in one go, far beyond any training window.

The model of claim 1 (64/2, `full`) writes at temperature 1 from the exported file. By position: the share of
characters that stand in words of the training text, and the loss that another model, trained from another seed,
gives to what was written.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from ocean_runtime.text import generate
from ocean_train.model import OceanTransformer, position_loss
from ocean_train.regimes import predict

from evidence import forgetting, gain, texts
from evidence.driver import Run, Scale
from evidence.page import MISSING, Results, Section, get, span, table

CLAIM = "generation"
CHARACTERS = 200_000
BINS = 10
WORD = re.compile(r"[A-Za-z']+")


def runs(scale: Scale) -> list[Run]:
    length = 500 if scale.quick else CHARACTERS
    settings = {"of": "full", "judge": "seed 1", "characters": length, "temperature": 1.0, "seed": 0}
    return [Run(CLAIM, "endless", settings, lambda folder: endless(scale, length))]


def endless(scale: Scale, length: int) -> dict[str, Any]:
    model, data = forgetting.exported(scale)
    settings = texts.setting(scale, **forgetting.SIZE, seed=1)
    judge = texts.trained(scale, settings, scale.work / gain.CLAIM / "char-64x2-seed1-full").model()
    text = "".join(generate(model.stream(), length))
    written = torch.tensor(data.tokenizer.encode(text))
    known = {word.lower() for word in WORD.findall(data.tokenizer.decode(data.training.tolist()))}
    heldout = data.tokenizer.decode(data.validation.tolist())
    size = length // BINS
    pieces = [text[i * size : (i + 1) * size] for i in range(BINS)]
    return {
        "tokens": length,
        "seed": 0,
        "result": {
            "in_words": [in_words(piece, known) for piece in pieces],
            "in_words_of_validation_text": in_words(heldout, known),
            "loss": judged(judge, written),
            "loss_of_validation_text": float(np.mean(judged(judge, data.validation))),
            "begins": text[:200],
            "ends": text[-200:],
        },
    }


def in_words(text: str, known: set[str]) -> float:
    """Share of the letters that stand in a known word."""
    words = WORD.findall(text)
    letters = sum(map(len, words))
    return sum(len(word) for word in words if word.lower() in known) / max(letters, 1)


@torch.no_grad()
def judged(judge: OceanTransformer, tokens: torch.Tensor) -> list[float]:
    """The judge's mean loss in each bin of the text, read as one stream."""
    found, state = [], None
    for part in torch.split(tokens, 1024):
        outputs, state = predict(judge, part[None], state)
        found.append(position_loss(judge.config, outputs[:, :-1], part[None, 1:])[0])
    losses = torch.cat(found)
    return [part.mean().item() for part in torch.tensor_split(losses, BINS)]


# ------------------------------------------------------------------ what the page says


def section(results: Results) -> Section:
    found = get(results, "endless")
    ours, verdict, lines = MISSING, "open", []
    if found:
        words, loss = found["in_words"], found["loss"]
        ours = f"letters in known words {span(words, '{:.1%}')}, judged at {span(loss)} nats by another model"
        verdict = (
            "holds" if max(loss) - min(loss) < 0.1 and max(words) - min(words) < 0.03 else "doesn't hold here"
        )
        size = results["endless"]["tokens"] // BINS
        lines = [
            "64/2 of claim 1, temperature 1; the judge is the same model from another seed "
            f"([run](../results/evidence/{CLAIM}/endless.json)). Of the validation text "
            f"{found['in_words_of_validation_text']:.1%} of the letters stand in words of the training text, and the "
            f"judge gives it {found['loss_of_validation_text']:.3f} nats.",
            "",
            *table(
                ("up to character", "letters in known words", "judge's loss"),
                [
                    [f"{(i + 1) * size:,}", f"{w:.1%}", f"{x:.3f}"]
                    for i, (w, x) in enumerate(zip(words, loss, strict=True))
                ],
            ),
        ]
    return Section(
        title="7. Generation without extrapolation",
        paper="what is written stays as good however long it goes on",
        ours=ours,
        control="the same measures of the validation text" + (", below" if found else ""),
        verdict=verdict,
        lines=lines,
    )
