"""The report of a model: one HTML file that needs no server, no script and no network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ocean_runtime import OceanModel
from ocean_runtime.describe import describe

from ocean_export.study import Study

Array = NDArray[Any]

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 10, 40
POINTS = 600
"""Of a line; of more, the largest of each group is drawn."""
COLOURS = ("var(--first)", "var(--second)")
STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1b2329;--soft:#55626c;--line:#d3dae0;--first:#0b62a8;--second:#d95f02}
@media(prefers-color-scheme:dark){:root{--page:#12171b;--ink:#e6ebef;--soft:#a3b0ba;--line:#35404a;--first:#6db3ee;
--second:#f48430}}
body{margin:0 auto;padding:1rem;max-width:46rem;background:var(--page);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:1.8rem 0 .4rem}p{margin:.3rem 0}
svg{display:block;width:100%;min-width:24rem;height:auto}svg text{fill:var(--soft);font:12px system-ui,sans-serif}
.scroll{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.2rem .9rem .2rem 0;text-align:right;
border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums}th:first-child{text-align:left}
.heads{display:flex;flex-wrap:wrap}.heads span{padding:.2rem .3rem;font-size:.75rem;color:#1b2329}
pre{overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}.soft{color:var(--soft)}
"""


def page(name: str, size_bytes: int, exported: OceanModel, found: Study) -> str:
    """The report as HTML.

    name: of the model's file, and size_bytes its size.
    """
    contract = exported.contract
    drifts = {
        "state, relative": found.state_drift,
        output_unit(contract.kind, contract.outputs[0].name): found.output_drift,
    }
    parts = [
        f"<h1>{escape(name)}</h1>",
        f'<p class="soft">{size_bytes:,} bytes, {escape(contract.precision)}; '
        f"state id {escape(contract.state_id[:19])}</p>",
        "<h2>On held-out data</h2>",
        f"<p>The file read {found.steps:,} held-out steps in order, each with the state of the one before.</p>",
        _scores(found),
        "<h2>Agreement with the trained model</h2>",
        f"<p>The file and the trained model in float64 read the same {found.steps:,} held-out steps, each with its own "
        f"state. The states differ by at most {found.state_drift.max():.1e} of their size, at the end by "
        f"{found.state_drift[-1]:.1e}.</p>",
        plot(drifts, "step", "difference", log=True),
        "<h2>How long the past lasts</h2>",
        *_influence(found, contract.rate_hz),
        "<h2>How much each head reads the state</h2>",
        "<p>The read weight, the mean over the held-out steps: a head of 0 looks at its own token alone, one of 1 at "
        "the ocean state alone.</p>",
        _heads(found.read_weights),
        "<h2>A step's time</h2>",
        f"<p>{found.step_us:.0f} µs in the median, 99% of the steps within {found.step_us_p99:.0f} µs "
        f'<span class="soft">({escape(found.machine)}; measured at export, '
        "with whatever else the machine did)</span></p>",
        "<h2>What the file says of itself</h2>",
        f"<pre>{escape(describe(contract))}</pre>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(name)}: report</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def output_unit(kind: str, output: str) -> str:
    """What the difference of an output is measured in."""
    return "output, nats" if kind == "tokens" or output == "logits" else "output, standard deviations"


def _scores(found: Study) -> str:
    known = any(score.baseline is not None for score in found.scores)
    heading = ["", "unit", "this file", *([escape(f"of {found.baseline}")] if known else [])]
    named = all(score.name not in ("loss", "accuracy") for score in found.scores)
    heading[0] = "root mean square error" if named else ""
    rows = []
    for score in found.scores:
        base = [] if not known else ["" if score.baseline is None else f"{score.baseline:.4g}"]
        cells = [escape(score.unit) or "–", f"{score.value:.4g}", *base]
        rows.append(f"<tr><th>{escape(score.name)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    first = "".join(f"<th>{cell}</th>" for cell in heading)
    return f'<div class="scroll"><table><tr>{first}</tr>{"".join(rows)}</table></div>'


def _influence(found: Study, rate_hz: float | None) -> list[str]:
    if found.influence is None:
        return ["<p>No held-out episode is long enough to tell.</p>"]
    said = found.influence.describe(rate_hz)
    return [
        f"<p>{escape(said[0].upper() + said[1:])}. The plot shows ‖a − b‖ / ‖a‖, the median over streams of which one "
        "input was changed.</p>",
        plot({"distance": found.influence.distances}, "steps after the changed input", "distance", log=True),
    ]


def _heads(weights: Array) -> str:
    """(L, H) as a row of cells for each layer, the bluer the larger the weight."""
    rows = []
    for number, layer in enumerate(weights, start=1):
        # Blue over white, never so dark that the dark figures can't be read.
        shades = (f"{247 - 110 * a:.0f} {247 - 60 * a:.0f} {247 - 5 * a:.0f}" for a in layer)
        cells = "".join(
            f'<span title="head {head}" style="background:rgb({shade})">{a:.2f}</span>'
            for head, (shade, a) in enumerate(zip(shades, layer, strict=True), start=1)
        )
        rows.append(f'<p>layer {number}</p><div class="heads">{cells}</div>')
    return "".join(rows)


def plot(lines: Mapping[str, Array], x: str, y: str, *, log: bool = False) -> str:
    """Lines over 0, 1, 2, ... as an SVG; on a logarithmic scale, zeros leave a gap.

    Raises ValueError where no line has two points.
    """
    length = max(len(values) for values in lines.values())
    if length < 2:
        raise ValueError(f"a plot needs lines of two points at least; got {length}")
    drawn = {name: thinned(np.asarray(values, np.float64)) for name, values in lines.items()}
    values = np.concatenate([v for _, v in drawn.values()])
    values = values[np.isfinite(values) & (values > 0)] if log else values[np.isfinite(values)]
    low, high, ticks = _axis(values, log)

    def place(value: float) -> float:
        at, first, last = map(math.log10, (value, low, high)) if log else (value, low, high)
        share = (at - first) / (last - first)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def across(step: float) -> float:
        return LEFT + step / (length - 1) * (WIDTH - LEFT - RIGHT)

    parts = []
    for tick in ticks:
        at = place(tick)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="var(--line)"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:.3g}</text>')
    for step in _round_numbers(0, length - 1):
        parts.append(
            f'<text x="{across(step):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{step:g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x)}</text>')
    half = (HEIGHT - BOTTOM + TOP) / 2
    parts.append(
        f'<text transform="translate(12 {half}) rotate(-90)" text-anchor="middle">{escape(y)}</text>'
    )
    for (steps, found), colour in zip(drawn.values(), COLOURS, strict=False):
        path, pen = "", "M"
        for step, value in zip(steps, found, strict=True):
            if not math.isfinite(value) or (log and value <= 0):
                pen = "M"
                continue
            path += f"{pen}{across(step):.1f} {place(value):.1f}"
            pen = "L"
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    if len(drawn) > 1:
        for i, (name, colour) in enumerate(zip(drawn, COLOURS, strict=False)):
            at = LEFT + 12 + 190 * i
            parts.append(f'<path d="M{at} 18h20" stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<text x="{at + 26}" y="22">{escape(name)}</text>')
    label = f'role="img" aria-label="{escape(y)} by {escape(x)}"'
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" {label}>{"".join(parts)}</svg>'
    return f'<div class="scroll">{svg}</div>'


def thinned(values: Array) -> tuple[Array, Array]:
    """(N,) -> steps and values of at most POINTS points, the largest of each group."""
    if len(values) <= POINTS:
        return np.arange(len(values)), values
    edges = np.linspace(0, len(values), POINTS + 1).astype(int)
    largest = [a + int(np.argmax(values[a:b])) for a, b in itertools.pairwise(edges)]
    return np.array(largest), values[largest]


def _axis(values: Array, log: bool) -> tuple[float, float, Sequence[float]]:
    """The ends of the axis of the values, and its ticks."""
    if log:
        if not len(values):
            return 1e-9, 1.0, [1e-9, 1.0]
        first, last = math.floor(math.log10(values.min())), math.ceil(math.log10(values.max()))
        last = max(last, first + 1)
        every = -(-(last - first) // 6)
        return 10.0**first, 10.0**last, [10.0**power for power in range(first, last + 1, every)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if high == low:
        low, high = low - 0.5, high + 0.5
    return low, high, _round_numbers(low, high)


def _round_numbers(low: float, high: float) -> list[float]:
    """Some four to eight round numbers from `low` to `high`."""
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * min((1, 2, 5, 10), key=lambda f: abs(f * unit - rough))
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
