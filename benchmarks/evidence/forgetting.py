"""Claims 3 and 6, no forgetting at constant cost: the exported file, over 10,000,000 steps without a reset.

The validation text holds 111,539 characters, so it is read again and again as one endless text; each pass over
it is one bin, so that all bins hold the same text, and only the state that a pass begins with differs. Every
step goes through `OceanStream.step` of the file that `ocean-export` wrote; its time and the process's memory
are taken as it goes. Controls: the state reset every n steps, and a standard Transformer of equal size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime import OceanModel, OceanStream
from ocean_runtime.sampling import log_softmax
from ocean_train.baselines import StandardTransformer
from ocean_train.batches import Data
from ocean_train.model import position_loss
from ocean_train.regimes import predict
from torch import Tensor

from evidence import driver, gain, texts
from evidence.driver import Ledger, Run, Scale
from evidence.page import MISSING, Results, Section, get, table

CLAIM = "forgetting"
SIZE = {"width": 64, "layers": 2}
STEPS = 10_000_000
RESETS = (1, 16, 256, 4096)
BLOCK = 4096
"""Steps that are timed together."""


def runs(scale: Scale) -> list[Run]:
    steps = 3000 if scale.quick else STEPS
    return [
        Run(CLAIM, "resets", {"of": "full", "every": RESETS}, lambda folder: resets(scale)),
        Run(CLAIM, "standard", {"of": "standard"}, lambda folder: beyond_the_window(scale)),
        Run(
            CLAIM,
            "stream",
            {"of": "full", "steps": steps},
            lambda folder: endless(exported(scale), scale, folder, steps),
        ),
    ]


def exported(
    scale: Scale, claim: str = gain.CLAIM, name: str = "char-64x2-full", **changes: float
) -> tuple[OceanModel, Data]:
    """The file of the trained model of claim 1, or of another claim's run, and the text."""
    settings = texts.setting(scale, **SIZE, **gain.MODELS["full"], **changes)
    source = scale.work / claim / name
    texts.trained(scale, settings, source)
    file = driver.exported(source, source.with_suffix(".onnx"))
    return OceanModel.load(file), texts.of(scale, settings)


def _text(scale: Scale, text: Data) -> NDArray[np.int64]:
    tokens = text.validation[:1000] if scale.quick else text.validation
    return tokens.numpy()


def read(
    stream: OceanStream, tokens: NDArray[np.int64], targets: NDArray[np.int64]
) -> tuple[float, list[float]]:
    """Sum of the losses of a text, nats, and the processor time of a step, s, in each block of 4,096."""
    total, times = 0.0, []
    for start in range(0, len(tokens), BLOCK):
        block = tokens[start : start + BLOCK]
        began = time.process_time()
        logits = np.stack([stream.step(token) for token in block])
        times.append((time.process_time() - began) / len(block))
        total -= float(np.take_along_axis(log_softmax(logits), targets[start : start + BLOCK, None], 1).sum())
    return total, times


def endless(of: tuple[OceanModel, Data], scale: Scale, folder: Path, steps: int) -> dict[str, Any]:
    """The stream, pass by pass; after each it is saved, and a kill costs one pass at most."""
    model, data = of
    tokens = _text(scale, data)
    following = np.roll(tokens, -1)  # the text goes on at its beginning
    stream, ledger = model.stream(), Ledger(folder / "passes.json")
    saved = folder / "stream.safetensors"
    if saved.exists():
        stream.restore(saved)
    passes = ledger.values.setdefault("passes", [])
    if len(passes) < stream.steps // len(tokens):  # the ledger is lost
        stream.reset()
    del passes[stream.steps // len(tokens) :]
    while stream.steps < steps:
        count = min(len(tokens), steps - stream.steps)
        total, times = read(stream, tokens[:count], following[:count])
        passes.append(
            {
                "steps": stream.steps,
                "whole": count == len(tokens),
                "loss": total / count,
                "step_us": 1e6 * float(np.median(times)),
                "resident_mb": resident_mb(),
            }
        )
        ledger.save()
        stream.save(saved)
    return {
        "tokens": steps,
        "model": model.contract.state_id,
        "result": {"text": len(tokens), "state_bytes": stream.ocean.nbytes, "passes": passes},
    }


def resident_mb() -> float:
    """Memory of this process now, in MB of 2^20 bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def resets(scale: Scale) -> dict[str, Any]:
    """The loss over one pass, the state reset every n steps; `never`: not at all."""
    model, data = exported(scale)
    tokens = _text(scale, data)
    inputs, targets = tokens[:-1], tokens[1:]
    found = {}
    for every in (*RESETS, len(inputs)):
        stream, total = model.stream(), 0.0
        for start in range(0, len(inputs), every):
            stream.reset()
            total += read(stream, inputs[start : start + every], targets[start : start + every])[0]
        found["never" if every == len(inputs) else str(every)] = total / len(inputs)
    return {"model": model.contract.state_id, "result": {"loss": found}}


def beyond_the_window(scale: Scale) -> dict[str, Any]:
    """The standard Transformer's loss over the same text, in the three ways that there are to read on.

    `apart`: windows side by side. `sliding`: each character from as many before it as a window holds, computed
    anew for each. `beyond`: one pass over windows 16 times as long, by distance from the beginning, its
    positions counted anew after each window's length, or stopped at the last.
    """
    settings = texts.setting(scale, **SIZE, **gain.MODELS["standard"])
    trained = texts.trained(scale, settings, scale.work / gain.CLAIM / "char-64x2-standard")
    text, T = texts.of(scale, settings), settings.window
    tokens = torch.from_numpy(_text(scale, text))
    model = StandardTransformer(trained.config, T)
    model.load_state_dict(dict(trained.weights))

    apart = tokens[: (len(tokens) - 1) // T * T + 1].unfold(0, T + 1, T)
    sliding = tokens.unfold(0, T + 1, 1)
    long = 16 * T
    far = tokens.unfold(0, long + 1, long)
    by = by_position(model, apart)
    found: dict[str, Any] = {
        "apart": float(np.mean(by)),
        "sliding": by_position(model, sliding)[-1],
        "by_position": by,
    }
    places: dict[str, Callable[[Tensor], Tensor]] = {
        "counted anew": lambda t: t % T,
        "stopped": lambda t: t.clamp(max=T - 1),
    }
    found["beyond"] = {
        how: by_distance(stretched(model, long, place), far, T) for how, place in places.items()
    }
    return {"trained_by": driver.trained_by(trained), "result": {"loss": found, "window": T}}


def stretched(
    model: StandardTransformer, window: int, place: Callable[[Tensor], Tensor]
) -> StandardTransformer:
    """The model for a longer window: step t has the learned position `place(t)`."""
    longer = StandardTransformer(model.config, window)
    weights = model.state_dict()
    weights["position.weight"] = weights["position.weight"][place(torch.arange(window))]
    longer.load_state_dict(weights)
    return longer


def by_position(model: StandardTransformer, rows: Tensor) -> list[float]:
    """Loss of each step of windows (rows, T + 1), from the first."""
    T = rows.shape[1] - 1
    total = torch.zeros(T, dtype=torch.float64)
    for some in torch.split(rows, max(1, 2**14 // T)):
        outputs, _ = predict(model, some[:, :-1])
        total += position_loss(model.config, outputs, some[:, 1:]).double().sum(0)
    return (total / len(rows)).tolist()


def by_distance(model: StandardTransformer, rows: Tensor, T: int) -> dict[str, float]:
    """Loss by how many windows a step is from the beginning: 1, 2, 4, 8, 16."""
    per_step = np.array(by_position(model, rows))
    return {str(n): per_step[(n // 2) * T if n > 1 else 0 : n * T].mean().item() for n in (1, 2, 4, 8, 16)}


# ------------------------------------------------------------------ what the page says


def section(results: Results) -> Section:
    passes = _passes(results)
    if not passes:
        ours, verdict = MISSING, "open"
    else:
        first, last = passes[0], passes[-1]
        drift = max(abs(p["loss"] - first["loss"]) for p in passes)
        ours = (
            f"{last['loss']:.4f} nats a character in the pass that ends at step {last['steps']:,}, "
            f"{first['loss']:.4f} in the first; at most {drift:.1e} from that in any"
        )
        verdict = f"holds within {drift:.1e} nats" if drift < 0.01 else "doesn't hold here"
    losses = [get(results, "resets", "loss", name) for name in ("1", "256", "never")]
    control = MISSING
    if None not in losses:
        each, some, never = losses
        control = (
            f"reset every step {each:.3f}, every 256 steps {some:.3f}, never {never:.3f}: "
            f"{(each - some) / (each - never):.0%} of what the state explains needs no more than the last 256 steps"
        )
    return Section(
        title="3. No forgetting",
        paper="the loss does not rise however long the stream",
        ours=ours,
        control=control,
        verdict=verdict,
        lines=[*_stream(results), *_controls(results)],
    )


def _passes(results: Results) -> list[dict[str, Any]]:
    """All whole passes over the text."""
    return [p for p in get(results, "stream", "passes") or [] if p["whole"]]


def _chosen(passes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first and the last, and those nearest to round numbers of steps."""
    wanted = (1e6, 2e6, 5e6)
    near = [min(passes, key=lambda p: abs(p["steps"] - w)) for w in wanted]
    return [p for i, p in enumerate(passes) if i in (0, 1, len(passes) - 1) or p in near]


def _stream(results: Results) -> list[str]:
    if not _passes(results):
        return []
    rows = [[f"{p['steps']:,}", f"{p['loss']:.6f}"] for p in _chosen(_passes(results))]
    return [
        "One stream, never reset, through the exported file: the validation text of "
        f"{get(results, 'stream', 'text'):,} characters, again and again "
        f"([run](../results/evidence/{CLAIM}/stream.json)). Each pass is the same text; the first begins "
        "with the initial state, every other with the state that the pass before left. From the third on they are one "
        f"cycle: at most {_cycle(results):.0e} nats apart.",
        "",
        *table(("pass ends at step", "loss"), rows),
    ]


def _cycle(results: Results) -> float:
    """How far the passes are apart, the first two left out."""
    losses = [float(p["loss"]) for p in _passes(results)[2:]]
    return max(losses, default=0.0) - min(losses, default=0.0)


def _controls(results: Results) -> list[str]:
    lines = []
    if "resets" in results:
        loss = get(results, "resets", "loss")
        whole = loss["1"] - loss["never"]
        rows = [[n, f"{loss[n]:.4f}", f"{(loss['1'] - loss[n]) / whole:.0%}"] for n in loss]
        lines += [
            "",
            "That the loss does not rise says that nothing breaks, not that a long past is used. How much does the "
            f"state explain? One pass, the state reset every n steps ([run](../results/evidence/{CLAIM}/resets.json)):",
            "",
            *table(("reset every", "loss", "of what all of it explains"), rows),
        ]
    if "standard" in results:
        loss = get(results, "standard", "loss")
        T = get(results, "standard", "window")
        rows = [
            ["windows side by side", f"{loss['apart']:.3f}"],
            ["a window that slides, computed anew for each character", f"{loss['sliding']:.3f}"],
        ]
        for how, by in loss["beyond"].items():
            far = ", ".join(f"{value:.2f} up to {int(n) * T:,}" for n, value in by.items())
            rows.append([f"read on beyond its window, positions {how}", far])
        lines += [
            "",
            f"The standard Transformer of equal size, trained on windows of {T}, over the same text "
            f"([run](../results/evidence/{CLAIM}/standard.json)):",
            "",
            *table(("", "loss"), rows),
        ]
        if by := loss.get("by_position"):
            parts = [(n // 2, n) for n in (2**i for i in range(T.bit_length()))]
            steps = [f"{a + 1}" if a + 1 == b else f"{a + 1} to {b}" for a, b in parts]
            lines += [
                "",
                "Its loss by step of a window, side by side (a window that slides is read at its last step alone):",
                "",
                *table(("step", *steps), [["loss", *(f"{np.mean(by[a:b]):.3f}" for a, b in parts)]]),
            ]
    return lines


def cost(results: Results) -> Section:
    """Claim 6, of the same stream."""
    passes = _passes(results)
    ocean_bytes, state = WIDTH_13B * 2, get(results, "stream", "state_bytes")
    if not passes:
        ours, verdict, rows = MISSING, "open", []
    else:
        times, memory = ([p[key] for p in passes] for key in ("step_us", "resident_mb"))
        growth = memory[-1] - memory[0]
        ours = (
            f"state {state} bytes at any context; a step {times[0]:.0f} µs in the first pass, {times[-1]:.0f} µs in "
            f"the last; memory {growth:+.1f} MB over {passes[-1]['steps']:,} steps"
        )
        verdict = (
            "holds"
            if growth < 4 and np.median(times[len(times) // 2 :]) < 1.2 * np.median(times[: len(times) // 2])
            else "unclear"
        )
        rows = [
            [f"{p['steps']:,}", f"{p['step_us']:.0f}", f"{p['resident_mb']:.1f}", f"{state}"]
            for p in _chosen(passes)
        ]
    return Section(
        title="6. Cost",
        paper="one vector at any context; a 13B Transformer's KV cache of 1,000,000 tokens takes hundreds of GB",
        ours=ours,
        control=f"KV cache of a 13B Transformer at 1,000,000 tokens: {kv_bytes(1_000_000) / 1e9:,.0f} GB, computed",
        verdict=verdict,
        lines=[
            "Along the stream of claim 3: processor time of a step (median of blocks of 4,096; other programs ran on "
            "the machine) and memory of the whole process, PyTorch's libraries included.",
            "",
            *table(("context", "step, µs", "resident, MB", "state, bytes"), rows),
            "",
            "A KV cache, computed: 2 (keys and values) · layers · width · bytes a number · tokens. For "
            f"{LAYERS_13B} layers of width {WIDTH_13B:,} (13B parameters) in 16 bits: "
            f"2 · {LAYERS_13B} · {WIDTH_13B:,} · 2 = {kv_bytes(1):,} bytes a token, "
            f"{kv_bytes(1_000_000) / 1e9:,.0f} GB at 1,000,000 tokens (where all heads have keys and values of their "
            "own; shared by groups of eight, an eighth of it); an ocean of that width "
            f"takes {ocean_bytes:,} bytes at any. Measured against a KV cache at contexts up to 100,000: "
            "[results/step](../results/step/step.md).",
        ],
    )


LAYERS_13B, WIDTH_13B = 40, 5120


def kv_bytes(tokens: int) -> int:
    """Of a 13B Transformer's cache in 16 bits."""
    return 2 * LAYERS_13B * WIDTH_13B * 2 * tokens
