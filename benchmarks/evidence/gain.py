"""Claim 1, universal gain: an Ocean Transformer learns more than a standard one of the same size.

Every run: 2,000 steps of 32 windows of 64 characters of tiny Shakespeare, validation over windows read from a
zero state. Gain = loss(standard Transformer) - loss(full), in nats a character.
"""

from __future__ import annotations

from evidence import texts, variants
from evidence.driver import Run, Scale

CLAIM = "gain"
MODELS = {
    "standard": {"model": "transformer"},
    "full": {"model": "ocean", "regime": "full"},
    "detach": {"model": "ocean", "regime": "detach"},
}
RECURRENT = {"lstm": {"model": "lstm"}, "gru": {"model": "gru"}}
SIZES = [(d, L) for d in (32, 64, 128, 256) for L in (2, 4, 6)]
RATES = (2e-3, 4e-3)
"""Beside 1e-3, the rate of all other runs."""


def runs(scale: Scale) -> list[Run]:
    """The grid, what is mandatory first."""
    found: list[Run] = []

    def add(name: str, models: dict[str, dict[str, str]], **changes: object) -> None:
        found.extend(
            texts.run(CLAIM, f"{name}-{model}", scale, texts.setting(scale, **changes, **which))
            for model, which in models.items()
        )

    for d, L in sorted(SIZES, key=lambda size: size[0] ** 2 * size[1]):
        add(f"char-{d}x{L}", MODELS, width=d, layers=L)
    for d, L in ((64, 2), (128, 4)):
        add(f"char-{d}x{L}", RECURRENT, width=d, layers=L)
        for lr in RATES:
            add(f"char-{d}x{L}-lr{lr:g}", MODELS | RECURRENT, width=d, layers=L, lr=lr)
    add("char-64x2-tokens4", MODELS, width=64, layers=2, steps=8000)
    add("char-64x2-window256", MODELS, width=64, layers=2, window=256, batch=8)
    for kind in variants.KINDS:
        for model, which in MODELS.items():
            settings = texts.setting(scale, width=64, layers=2, **which)
            make = variants.maker(kind, settings)
            found.append(texts.run(CLAIM, f"char-64x2-{kind}-{model}", scale, settings, make))
    for H in (1, 2, 8):
        add(f"char-64x2-heads{H}", MODELS, width=64, layers=2, heads=H)
    for seed in (1, 2):
        for d, L in SIZES:
            if d <= 64:
                add(f"char-{d}x{L}-seed{seed}", MODELS, width=d, layers=L, seed=seed)
    for d, L in SIZES:
        if d <= 128:
            add(f"word-{d}x{L}", MODELS, width=d, layers=L, tokenizer="word", vocabulary=4000)
    return found
