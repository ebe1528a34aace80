"""Leaky integration beside the paper's relay, on the paper's tasks: a variant of this project, not the paper's model.

The same tasks, sizes, rates and seeds as the paper's claims, with time constants up to 16 steps in one half of the
channels. Sensors at full rate, which the leak is for, are in results/activities.
"""

from __future__ import annotations

from collections.abc import Mapping

from evidence import echo, forgetting, gain, texts, tracking
from evidence.driver import Run, Scale
from evidence.page import MISSING, Results, Section, cell, get, table

CLAIM = "leak"
MAX_TIME_CONSTANT = 16.0
SIZES = ((64, 2), (128, 4))
STEPS = 1_000_000
TASKS = ("parity", "swaps", "s5")


def runs(scale: Scale) -> list[Run]:
    """The leaky model's runs; those of the relay are other claims'."""
    leak = {"max_time_constant": MAX_TIME_CONSTANT}
    steps = 3000 if scale.quick else STEPS
    delays = (100, 200) if scale.quick else tuple(d for d in echo.DELAYS if d <= STEPS)
    found = [
        texts.run(
            CLAIM,
            f"char-{d}x{L}",
            scale,
            texts.setting(scale, width=d, layers=L, **gain.MODELS["full"], **leak),
        )
        for d, L in SIZES[: 1 if scale.quick else None]
    ]
    found += [tracking.run(scale, CLAIM, name, "ocean", MAX_TIME_CONSTANT) for name in TASKS]
    task = echo.task(scale, 1, echo.blanks, 64, 3000)
    found.append(echo.run(scale, CLAIM, "echo", "ocean", 32, task, echo.blanks, delays, MAX_TIME_CONSTANT))
    found.append(
        Run(
            CLAIM,
            "stream",
            {"of": "char-64x2", "steps": steps, **leak},
            lambda folder: forgetting.endless(
                forgetting.exported(scale, CLAIM, "char-64x2", **leak), scale, folder, steps
            ),
        )
    )
    return found


# ------------------------------------------------------------------ what the page says


def section(found: Mapping[str, Results]) -> Section:
    """Of this claim's results, and of the relay's under the other claims."""
    results = found[CLAIM]
    rows = [
        [
            f"text {d}/{L}, validation loss, nats a character",
            cell(found[gain.CLAIM], f"char-{d}x{L}-full", "window_loss"),
            cell(results, f"char-{d}x{L}", "window_loss"),
        ]
        for d, L in SIZES
    ]
    for name in TASKS:
        for length in (str(tracking.LONGEST), str(tracking.LENGTHS[-1])):
            rows.append(
                [
                    f"{tracking.TITLES[name]}, share of right answers at length {length}",
                    cell(found[tracking.CLAIM], f"{name}-ocean", "accuracy", length),
                    cell(results, f"{name}-ocean", "accuracy", length),
                ]
            )
    for delay in ("100", str(STEPS)):
        rows.append(
            [
                f"echo, loss after {int(delay):,} steps, nats",
                cell(found[echo.CLAIM], "ocean", "loss", delay, form="{:.1e}"),
                cell(results, "echo", "loss", delay, form="{:.1e}"),
            ]
        )
    passes = [p for p in get(results, "stream", "passes") or [] if p["whole"]]
    drift = max((abs(p["loss"] - passes[0]["loss"]) for p in passes), default=None)
    text = "" if drift is None else f"; {len(passes)} passes over the text differ by {drift:.1e} nats at most"
    losses = [
        (
            get(found[gain.CLAIM], f"char-{d}x{L}-full", "window_loss"),
            get(results, f"char-{d}x{L}", "window_loss"),
        )
        for d, L in SIZES
    ]
    gains = [f"{leaky - relay:+.3f}" for relay, leaky in losses if relay is not None and leaky is not None]
    return Section(
        title="Leaky integration, a variant of this project",
        paper="nothing: the paper's model is the relay",
        ours=f"text, loss of the leak less the relay's: {', '.join(gains) or MISSING}{text}",
        control="the relay, with the same settings and seed",
        verdict="see the table" if gains else "open",
        lines=[*ABOUT, "", *table(("", "relay (the paper's)", "leak"), rows), *_stream(passes, drift)],
    )


ABOUT = (
    "Half of the channels keep a share 1 − 1/τ of themselves, with time constants τ up to "
    f"{MAX_TIME_CONSTANT:g} steps.",
    "All else, learning rate and seed included, is as in the claims above. The leak is meant for sensors at their full",
    "rate ([results](../results/activities/table.md)), where the relay forgets within a few steps.",
)


def _stream(passes: list[dict[str, float]], drift: float | None) -> list[str]:
    if not passes or drift is None:
        return []
    return [
        "",
        f"One stream of the leaky model, {STEPS:,} steps of text without a reset: "
        f"[{len(passes)} whole passes](../results/evidence/{CLAIM}/stream.json), loss {passes[0]['loss']:.4f} in the "
        f"first and {passes[-1]['loss']:.4f} in the last, at most {drift:.1e} apart.",
    ]
