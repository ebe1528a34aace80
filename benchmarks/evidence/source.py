"""Claim 2, where the gain comes from: the gradient through time, or already the reading of the ocean?

All at width 64, 2 layers. The oceans of `full` against gradients cut every 16, 4 and 1 steps and against
`detach`; against an ocean that is never read (a = 0) and one that is read alone (a = 1). Why `detach` beats a
standard Transformer: if because the ocean hands every layer the token before, which attention must first learn
to find, then a standard Transformer that is handed it, too, should do as well. What was learned to be read:
a per layer and head, and what a linear probe finds in the ocean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from ocean_train import bptt
from ocean_train.model import OceanTransformer
from torch import Tensor

from evidence import gain, texts, variants
from evidence.driver import Run, Scale

CLAIM = "source"
SIZE = {"width": 64, "layers": 2}
CUTS = (16, 4, 1)
PROBED = 32
"""Steps back to which the probe looks."""
RIDGE = 1e-3


def runs(scale: Scale) -> list[Run]:
    found = [texts.run(CLAIM, f"cut{cut}", scale, texts.setting(scale, **SIZE, truncate=cut)) for cut in CUTS]
    # Nothing is read, so that nothing is serial: one sweep is exact.
    blind = texts.setting(scale, **SIZE, regime="detach", sweeps=1)
    found.append(texts.run(CLAIM, "a0", scale, blind, _with(variants.Blind, blind)))
    forced = texts.setting(scale, **SIZE)
    found.append(texts.run(CLAIM, "a1", scale, forced, _with(variants.Forced, forced)))
    for d, L in ((64, 2), (128, 4)):
        standard = texts.setting(scale, width=d, layers=L, model="transformer")
        found.append(texts.run(CLAIM, f"hinted-{d}x{L}", scale, standard, _hinted(standard)))
    for regime in ("full", "detach"):
        settings = texts.setting(scale, **SIZE, **gain.MODELS[regime])
        found.append(
            Run(CLAIM, f"reads-{regime}", {"of": regime, "steps": settings.steps}, _reads(scale, regime))
        )
    return found


def _with(block: type[variants.Block], settings: texts.Settings) -> texts.Variant:
    return lambda V: variants.OceanWith(block, variants.configuration(V, settings), settings.seed)


def _hinted(settings: texts.Settings) -> texts.Variant:
    return lambda V: variants.Hinted(variants.configuration(V, settings), settings.window, settings.seed)


def _reads(scale: Scale, regime: str) -> Any:
    def compute(folder: Path) -> dict[str, Any]:
        settings = texts.setting(scale, **SIZE, **gain.MODELS[regime])
        trained = texts.trained(scale, settings, scale.work / gain.CLAIM / f"char-64x2-{regime}")
        text = texts.of(scale, settings)
        rows, length = (4, 64) if scale.quick else (16, 6400)
        train, test = (rows_of(tokens, rows, length) for tokens in (text.training, text.validation))
        untrained = OceanTransformer(trained.config, seed=0)
        return {
            "result": {
                "read_weights": read_weights(trained.model(), test),
                "probe": probe(trained.model(), train, test),
                "probe_untrained": probe(untrained, train, test),
                "chance": chance(train, test),
            }
        }

    return compute


def rows_of(tokens: Tensor, rows: int, length: int) -> Tensor:
    """(rows, length): streams at even distances, each cut short where the text is."""
    apart = len(tokens) // rows
    return torch.stack([tokens[i * apart : i * apart + min(length, apart)] for i in range(rows)])


@torch.no_grad()
def oceans_of(model: OceanTransformer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T) tokens -> their embeddings and the oceans after them, (B, T, D) each."""
    x = model.embed(tokens)
    return x, bptt.relay(model, x, model.initial_ocean(len(x)), None, None)


@torch.no_grad()
def read_weights(model: OceanTransformer, tokens: Tensor) -> list[list[dict[str, float]]]:
    """How much is read from the ocean, by layer and head: mean a over the text, and its 5th and 95th centile."""
    x, oceans = oceans_of(model, tokens)
    before = torch.cat([torch.zeros_like(oceans[:, :1]), oceans[:, :-1]], 1)
    found = []
    for block in model.blocks:
        a = block.read_weight(x, before).flatten(0, 1)[..., 0]  # (B T, H)
        low, high = torch.quantile(a[: 2**20], torch.tensor([0.05, 0.95]), dim=0)
        found.append(
            [
                {"mean": m, "low": lo, "high": hi}
                for m, lo, hi in zip(a.mean(0).tolist(), low.tolist(), high.tolist(), strict=True)
            ]
        )
        x = block(x, before)
    return found


@torch.no_grad()
def probe(model: OceanTransformer, train: Tensor, test: Tensor) -> list[float]:
    """Share of the tokens k = 0 ... 32 steps back that a linear map of the ocean names, on other text.

    The map is the ridge regression onto one-hot tokens, fitted on `train`.
    """
    (Xs, Ys), (Xt, Yt) = (_pairs(model, tokens) for tokens in (train, test))
    mean, scale = Xs.mean(0), Xs.std(0) + 1e-6

    def features(X: Tensor) -> Tensor:
        return torch.cat([(X - mean) / scale, X.new_ones(len(X), 1)], 1)

    A = features(Xs)
    gram = A.T @ A + RIDGE * len(A) * torch.eye(A.shape[1], dtype=A.dtype)
    V = model.config.inputs
    onto = torch.stack([A.T @ torch.nn.functional.one_hot(y, V).to(A.dtype) for y in Ys.T])  # (k, D + 1, V)
    weights = torch.linalg.solve(gram, onto)
    return [
        (features(Xt) @ w).argmax(1).eq(y).double().mean().item() for w, y in zip(weights, Yt.T, strict=True)
    ]


def _pairs(model: OceanTransformer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Oceans (N, D) float64, and the tokens 0 ... PROBED steps back (N, PROBED + 1)."""
    _, oceans = oceans_of(model, tokens)
    back = tokens.unfold(1, PROBED + 1, 1).flip(-1)  # (B, T - PROBED, PROBED + 1)
    return oceans[:, PROBED:].flatten(0, 1).double(), back.flatten(0, 1)


def chance(train: Tensor, test: Tensor) -> float:
    """Share of the most frequent token."""
    return test.eq(train.flatten().mode().values).double().mean().item()
