"""Claims 3 and 6, no forgetting at constant cost: the exported file, over 10,000,000 steps without a reset.

The validation text holds 111,539 characters, so it is read again and again as one endless text; each pass over
it is one bin, so that all bins hold the same text, and only the state that a pass begins with differs. Every
step goes through `OceanStream.step` of the file that `ocean-export` wrote; its time and the process's memory
are taken as it goes. Controls: the state reset every n steps, and a standard Transformer of equal size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_export import cli as export
from ocean_runtime import OceanModel, OceanStream
from ocean_train.baselines import StandardTransformer
from ocean_train.batches import Data
from ocean_train.model import position_loss
from ocean_train.regimes import predict
from torch import Tensor

from evidence import gain, texts
from evidence.driver import Ledger, Run, Scale

CLAIM = "forgetting"
SIZE = {"width": 64, "layers": 2}
STEPS = 10_000_000
RESETS = (1, 16, 256, 4096)
BLOCK = 4096
"""Steps that are timed together."""


def runs(scale: Scale) -> list[Run]:
    steps = 3000 if scale.quick else STEPS
    return [
        Run(CLAIM, "resets", {"of": "full", "every": RESETS}, lambda folder: resets(scale, folder)),
        Run(CLAIM, "standard", {"of": "standard"}, lambda folder: beyond_the_window(scale)),
        Run(CLAIM, "stream", {"of": "full", "steps": steps}, lambda folder: endless(scale, folder, steps)),
    ]


def exported(scale: Scale, folder: Path) -> tuple[OceanModel, Data]:
    """The file of the trained model of claim 1, and the text."""
    settings = texts.setting(scale, **SIZE, **gain.MODELS["full"])
    source = scale.work / gain.CLAIM / "char-64x2-full"
    texts.trained(scale, settings, source)
    file = folder / "model.onnx"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if export.main([str(source), "-o", str(file)]):
            raise RuntimeError(f"{source} can't be exported; see above")
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
        total += float(losses(logits, targets[start : start + BLOCK]).sum())
    return total, times


def losses(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cross-entropy of each step, (N,)."""
    x = logits.astype(np.float64)
    x -= x.max(1, keepdims=True)
    found: NDArray[np.float64] = np.log(np.exp(x).sum(1)) - x[np.arange(len(x)), targets]
    return found


def endless(scale: Scale, folder: Path, steps: int) -> dict[str, Any]:
    """The stream, pass by pass; after each it is saved, and a kill costs one pass at most."""
    model, data = exported(scale, folder)
    tokens = _text(scale, data)
    following = np.roll(tokens, -1)  # the text goes on at its beginning
    stream, ledger = model.stream(), Ledger(folder / "passes.json")
    saved = folder / "stream.safetensors"
    if saved.exists():
        stream.restore(saved)
    passes = ledger.values.setdefault("passes", [])
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
        "result": {"text": len(tokens), "state_bytes": stream.ocean.nbytes, "passes": passes},
    }


def resident_mb() -> float:
    """Memory of this process now, in MB of 2^20 bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def resets(scale: Scale, folder: Path) -> dict[str, Any]:
    """The loss over one pass, the state reset every n steps; `never`: not at all."""
    model, data = exported(scale, folder)
    tokens = _text(scale, data)
    inputs, targets = tokens[:-1], tokens[1:]
    found = {}
    for every in (*RESETS, len(inputs)):
        stream, total = model.stream(), 0.0
        for start in range(0, len(inputs), every):
            stream.reset()
            total += read(stream, inputs[start : start + every], targets[start : start + every])[0]
        found["never" if every == len(inputs) else str(every)] = total / len(inputs)
    return {"result": {"loss": found}}


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

    def mean_loss(rows: Tensor, model: StandardTransformer, last: int) -> float:
        """Over (rows, T + 1) windows, of their last so many steps."""
        total = 0.0
        for some in torch.split(rows, 256):
            outputs, _ = predict(model, some[:, :-1])
            total += position_loss(model.config, outputs, some[:, 1:])[:, -last:].double().sum().item()
        return total / (len(rows) * last)

    apart = tokens[: (len(tokens) - 1) // T * T + 1].unfold(0, T + 1, T)
    sliding = tokens.unfold(0, T + 1, 1)
    long = 16 * T
    far = tokens.unfold(0, long + 1, long)
    found: dict[str, Any] = {"apart": mean_loss(apart, model, T), "sliding": mean_loss(sliding, model, 1)}
    places: dict[str, Callable[[Tensor], Tensor]] = {
        "counted anew": lambda t: t % T,
        "stopped": lambda t: t.clamp(max=T - 1),
    }
    found["beyond"] = {
        how: by_distance(stretched(model, long, place), far, T) for how, place in places.items()
    }
    return {"result": {"loss": found, "window": T}}


def stretched(
    model: StandardTransformer, window: int, place: Callable[[Tensor], Tensor]
) -> StandardTransformer:
    """The model for a longer window: step t has the learned position `place(t)`."""
    longer = StandardTransformer(model.config, window)
    weights = model.state_dict()
    weights["position.weight"] = weights["position.weight"][place(torch.arange(window))]
    longer.load_state_dict(weights)
    return longer


def by_distance(model: StandardTransformer, rows: Tensor, T: int) -> dict[str, float]:
    """Loss by how many windows a step is from the beginning: 1, 2, 4, 8, 16."""
    total = torch.zeros(rows.shape[1] - 1, dtype=torch.float64)
    for some in torch.split(rows, 8):
        outputs, _ = predict(model, some[:, :-1])
        total += position_loss(model.config, outputs, some[:, 1:]).double().sum(0)
    per_step = total / len(rows)
    return {str(n): per_step[(n // 2) * T if n > 1 else 0 : n * T].mean().item() for n in (1, 2, 4, 8, 16)}
