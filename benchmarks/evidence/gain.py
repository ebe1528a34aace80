"""Claim 1, universal gain: an Ocean Transformer learns more than a standard one of the same size.

Every run: 2,000 steps of 32 windows of 64 characters of tiny Shakespeare, validation over windows read from a
zero state. Gain = loss(standard Transformer) - loss(full), in nats a character.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from evidence import texts, variants
from evidence.driver import Run, Scale
from evidence.page import MISSING, Results, Section, cell, get, span, table

CLAIM = "gain"
MODELS = {
    "standard": {"model": "transformer"},
    "full": {"model": "ocean", "regime": "full"},
    "detach": {"model": "ocean", "regime": "detach"},
}
RECURRENT = {"lstm": {"model": "lstm"}, "gru": {"model": "gru"}}
CONTROLS = (*RECURRENT, "rotary")
"""What stands beside the three: the last is a standard Transformer with rotary positions."""
SIZES = [(d, L) for d in (32, 64, 128, 256) for L in (2, 4, 6)]
RATES = (2e-3, 4e-3)
"""Beside 1e-3, the rate of all other runs."""
TUNED = ((64, 2), (128, 4))
HEADS = (1, 2, 8)
SEEDS = (1, 2)
LEVELS = (2.4, 2.2, 2.0, 1.9, 1.8, 1.7, 1.6)
"""Validation losses, nats a character."""


def runs(scale: Scale) -> list[Run]:
    """The grid, what is mandatory first."""
    found: list[Run] = []
    sizes = [size for size in SIZES if not scale.quick or size == (64, 2)]

    def add(name: str, models: dict[str, dict[str, str]], **changes: object) -> None:
        found.extend(
            texts.run(CLAIM, f"{name}-{model}", scale, texts.setting(scale, **changes, **which))
            for model, which in models.items()
        )

    def add_rotary(name: str, **changes: object) -> None:
        settings = texts.setting(scale, **changes, model="transformer")
        found.append(texts.run(CLAIM, f"{name}-rotary", scale, settings, variants.rotary(settings)))

    sizes.sort(key=lambda size: size[0] ** 2 * size[1])
    for d, L in sizes:
        add(f"char-{d}x{L}", MODELS, width=d, layers=L)
    for d, L in sizes:
        add_rotary(f"char-{d}x{L}", width=d, layers=L)
    for d, L in TUNED[: 1 if scale.quick else None]:
        add(f"char-{d}x{L}", RECURRENT, width=d, layers=L)
        for lr in RATES:
            add(f"char-{d}x{L}-lr{lr:g}", MODELS | RECURRENT, width=d, layers=L, lr=lr)
            add_rotary(f"char-{d}x{L}-lr{lr:g}", width=d, layers=L, lr=lr)
    add("char-64x2-tokens4", MODELS, width=64, layers=2, steps=8000)
    add("char-64x2-window256", MODELS, width=64, layers=2, window=256, batch=8)
    for kind in variants.KINDS:
        for model, which in MODELS.items():
            settings = texts.setting(scale, width=64, layers=2, **which)
            make = variants.maker(kind, settings)
            found.append(texts.run(CLAIM, f"char-64x2-{kind}-{model}", scale, settings, make))
    for H in HEADS:
        add(f"char-64x2-heads{H}", MODELS, width=64, layers=2, heads=H)
    for seed in SEEDS:
        for d, L in sizes:
            if d <= 64:
                add(f"char-{d}x{L}-seed{seed}", MODELS, width=d, layers=L, seed=seed)
    for d, L in sizes:
        if d <= 128:
            add(f"word-{d}x{L}", MODELS, width=d, layers=L, tokenizer="word", vocabulary=4000)
    return found


# ------------------------------------------------------------------ what the page says


def section(results: Results) -> Section:
    gains = {size: _gain(results, f"char-{size[0]}x{size[1]}") for size in SIZES}
    known = [g for g in gains.values() if g is not None]
    if not known:
        verdict = "open"
    elif len(known) < len(SIZES):
        verdict = f"a gain at {sum(g > 0 for g in known)} of {len(known)} sizes, of {len(SIZES)}"
    elif min(known) > 0:
        verdict = "holds"
    else:
        verdict = f"doesn't hold here: {sum(g > 0 for g in known)} of {len(known)} sizes"
    tuned = [g for d, L in TUNED if (g := _best_gain(results, d, L)) is not None]
    against_rotary = [
        rotary - full
        for d, L in SIZES
        if (rotary := get(results, f"char-{d}x{L}-rotary", "window_loss")) is not None
        and (full := get(results, f"char-{d}x{L}-full", "window_loss")) is not None
    ]
    return Section(
        title="1. Universal gain",
        paper="an Ocean Transformer beats a standard one of the same size at every size",
        ours=f"{sum(g > 0 for g in known)} of {len(known)} sizes; gain {span(known)} nats a character",
        control=f"against a standard Transformer with rotary positions: gain {span(against_rotary)}; best of three "
        f"learning rates for each: gain {span(tuned)}; more tokens, longer windows, below",
        verdict=verdict,
        lines=[
            *_sizes(results, gains),
            *_rates(results),
            *_beyond(results),
            *_shape(results),
        ],
    )


def _gain(results: Results, name: str, model: str = "full") -> float | None:
    standard, ocean = (get(results, f"{name}-{m}", "window_loss") for m in ("standard", model))
    return None if standard is None or ocean is None else standard - ocean


def _number(value: float | None, form: str = "{:+.3f}") -> str:
    return MISSING if value is None else form.format(value)


def _sizes(results: Results, gains: Mapping[tuple[int, int], float | None]) -> list[str]:
    rows = []
    for (d, L), gained in gains.items():
        name = f"char-{d}x{L}"
        cells = [
            "" if m in RECURRENT and (d, L) not in TUNED else cell(results, f"{name}-{m}", "window_loss")
            for m in (*MODELS, *CONTROLS)
        ]
        ocean = results.get(f"{name}-full")
        count = f"{ocean['parameters']:,}" if ocean else MISSING
        rows.append([f"{d}/{L}", count, *cells, _number(gained), _number(_gain(results, name, "detach"))])
    return [
        "Characters of tiny Shakespeare, one seed, 2,000 steps of 32 windows of 64, learning rate 1e-3. Loss over "
        "the validation text in windows of 64 from a zero state, nats a character; gain = standard − ocean. The "
        "standard Transformer has learned positions; *rotary* is one with rotary positions.",
        "",
        *table(
            (
                "d/L",
                "parameters",
                "standard",
                "full",
                "detach",
                "LSTM",
                "GRU",
                "standard, rotary",
                "gain of full",
                "gain of detach",
            ),
            rows,
        ),
        "",
        "![loss against steps](evidence/curves.png)",
    ]


def _at_rates(d: int, L: int, model: str) -> dict[float, str]:
    """The run at each learning rate."""
    return {1e-3: f"char-{d}x{L}-{model}", **{lr: f"char-{d}x{L}-lr{lr:g}-{model}" for lr in RATES}}


def _best(results: Results, d: int, L: int, model: str) -> tuple[float, float] | None:
    """The lowest loss over the learning rates, and its rate; None until all have run."""
    losses = [(get(results, name, "window_loss"), lr) for lr, name in _at_rates(d, L, model).items()]
    return None if any(loss is None for loss, _ in losses) else min(losses)


def _best_gain(results: Results, d: int, L: int) -> float | None:
    standard, ocean = (_best(results, d, L, model) for model in ("standard", "full"))
    return None if standard is None or ocean is None else standard[0] - ocean[0]


def _rates(results: Results) -> list[str]:
    rows = []
    for d, L in TUNED:
        for model in (*MODELS, *CONTROLS):
            names = _at_rates(d, L, model).values()
            best = _best(results, d, L, model)
            rows.append(
                [
                    f"{d}/{L}",
                    model,
                    *(cell(results, name, "window_loss") for name in names),
                    MISSING if best is None else f"{best[0]:.3f} at {best[1]:g}",
                ]
            )
    return [
        "",
        "Is the gain a badly tuned baseline? Each model at three learning rates:",
        "",
        *table(("d/L", "model", "1e-3", *(f"{lr:g}" for lr in RATES), "best"), rows),
    ]


def _beyond(results: Results) -> list[str]:
    """Everything that has the three models and one line each."""
    lines = {
        "64/2, as above": "char-64x2",
        "4 times the tokens (8,000 steps)": "char-64x2-tokens4",
        "windows of 256 (8 side by side)": "char-64x2-window256",
        "post-norm": "char-64x2-postnorm",
        "RMSNorm and SwiGLU": "char-64x2-swiglu",
        **{f"{H} heads": f"char-64x2-heads{H}" for H in HEADS},
        **{f"seed {s}, {d}/{L}": f"char-{d}x{L}-seed{s}" for d, L in SIZES if d <= 64 for s in SEEDS},
        **{f"words, {d}/{L}": f"word-{d}x{L}" for d, L in SIZES if d <= 128},
    }
    rows = [
        [
            what,
            *(cell(results, f"{name}-{model}", "window_loss") for model in MODELS),
            _number(_gain(results, name)),
            _number(_gain(results, name, "detach")),
        ]
        for what, name in lines.items()
        if any(f"{name}-{model}" in results for model in MODELS)
    ]
    return [
        "",
        "Does the gain stay with more tokens, longer windows, other blocks, heads, seeds, words? "
        "(64/2 and characters unless said; words in nats a token, of at most 4,000.)",
        "",
        *table(("", "standard", "full", "detach", "gain of full", "gain of detach"), rows),
    ]


def _shape(results: Results) -> list[str]:
    """Steps until the validation loss falls to a level, and how many times as many the standard one needs."""
    rows = []
    for d, L in SIZES:
        curves = [_curve(results, f"char-{d}x{L}-{model}") for model in ("standard", "full")]
        if not all(curves):
            continue
        steps = [[_reaches(curve, level) for level in LEVELS] for curve in curves]
        ratios = [s / f if s and f else None for s, f in zip(*steps, strict=True)]
        rows.append(
            [
                f"{d}/{L}",
                *(
                    "–" if f is None else f"{f:,.0f}" if ratio is None else f"{f:,.0f} ({ratio:.1f})"
                    for f, ratio in zip(steps[1], ratios, strict=True)
                ),
                _as_good(*curves),
            ]
        )
    return [
        "",
        "Consistent learning: the steps after which `full` reaches a validation loss (between two measurements, 250 "
        "steps apart, on a straight line), and in brackets how many times as many the standard Transformer takes, "
        "where it gets there. Curves of one shape would have one ratio in a row. Last: when `full` is as good as the "
        "standard Transformer is after all its steps.",
        "",
        *table(("d/L", *map(str, LEVELS), "as good at"), rows),
    ]


def _as_good(standard: Sequence[tuple[int, float]], full: Sequence[tuple[int, float]]) -> str:
    """The step at which `full` reaches the standard Transformer's last loss."""
    if full[0][1] <= standard[-1][1]:
        return f"before {full[0][0]:,}"
    step = _reaches(full, standard[-1][1])
    return "never" if step is None else f"{step:,.0f}"


def _curve(results: Results, name: str) -> list[tuple[int, float]]:
    return [(e["step"], e["window_loss"]) for e in results.get(name, {}).get("curve", [])]


def _reaches(curve: Sequence[tuple[int, float]], level: float) -> float | None:
    for (a, high), (b, low) in pairwise(curve):
        if low <= level < high:
            return a + (b - a) * (high - level) / (high - low)
    return None


def plots(results: Results, folder: Path) -> None:
    """One panel a width: validation loss against steps, standard dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for axes, d in zip(figure.subplots(1, 4, sharey=True), (32, 64, 128, 256), strict=True):
        for colour, L in zip(("tab:blue", "tab:orange", "tab:green"), (2, 4, 6), strict=True):
            for model, style in (("standard", "--"), ("full", "-"), ("detach", ":")):
                if curve := _curve(results, f"char-{d}x{L}-{model}"):
                    axes.plot(*zip(*curve, strict=True), style, color=colour, label=f"{L} layers, {model}")
        axes.set(title=f"d = {d}", xlabel="step")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=6)
    figure.supylabel("validation loss (nats a character)", fontsize=9)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "curves.png", dpi=110)


NANOGPT = 1.4697
"""Validation loss of nanoGPT's character model: d = 384, L = 6, 10.7M parameters, windows of 256."""


def yardstick(results: Results) -> Section:
    """Claim 8, of the runs of claim 1: none was made for it."""
    oceans = [
        (get(results, name, "window_loss"), name)
        for name, run in results.items()
        if run["settings"]["model"] == "ocean" and run["settings"]["tokenizer"] == "char"
    ]
    ours = MISSING
    if oceans:
        loss, name = min(oceans)
        run = results[name]
        ours = (
            f"{loss:.4f} in windows of {run['settings']['window']} ({name}: {run['parameters']:,} parameters, "
            f"{run['tokens']:,} tokens), the best of claim 1's runs"
        )
    return Section(
        title="8. A published yardstick",
        paper="(not the paper's) at or below nanoGPT's loss with a third of its parameters",
        ours=ours,
        control=f"nanoGPT: {NANOGPT} with 10.7M parameters, windows of 256",
        verdict="open",
        lines=[
            "No run was made for this: claim 1's are of 2,000 steps on one processor. A longer one would be "
            "`ocean-train --corpus tinyshakespeare --width 256 --layers 4 --window 256 --steps 20000 --lr 2e-3`, and "
            "waits for a GPU."
        ],
    )
