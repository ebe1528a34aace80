"""What a run shows of itself: validation losses, a picture of the curves, a sample of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from ocean_runtime.tokenizer import Tokenizer
from torch import Tensor

from ocean_train.baselines import Model, StandardTransformer
from ocean_train.model import position_loss
from ocean_train.regimes import predict

EVALUATION_WINDOWS = 2048
EVALUATION_BATCH = 256
EVALUATION_STREAMS = 32
EVALUATION_STREAM = 4096


@torch.no_grad()
def window_loss(model: Model, tokens: Tensor, window: int) -> float:
    """Mean loss, nats a token, over windows of (N,) tokens side by side, each read from a zero state.

    Where there are more than 2,048 windows, that many at even distances are read.
    """
    count = (len(tokens) - 1) // window
    starts = torch.arange(count) * window
    if count > EVALUATION_WINDOWS:
        starts = starts[torch.linspace(0, count - 1, EVALUATION_WINDOWS, dtype=torch.float64).long()]
    rows = tokens[starts[:, None] + torch.arange(window + 1)]  # (windows, T + 1)
    total = 0.0
    for some in torch.split(rows, EVALUATION_BATCH):
        outputs, _ = predict(model, some[:, :-1])
        total += position_loss(model.config, outputs, some[:, 1:]).double().sum().item()
    return total / (len(rows) * window)


@torch.no_grad()
def stream_loss(model: Model, tokens: Tensor, window: int) -> float:
    """Mean loss, nats a token, over (N,) tokens in 32 streams side by side, each with its state carried.

    So it is over the same text as `window_loss`: where there are more than 32 · 4,096 tokens, that many, the
    streams beginning at even distances; where there are few, in fewer streams.
    """
    apart = (len(tokens) - 1) // min(EVALUATION_STREAMS, max(1, (len(tokens) - 1) // window))
    rows = tokens.unfold(0, apart + 1, apart)[:, : EVALUATION_STREAM + 1]  # (streams, steps + 1)
    state, total = None, 0.0
    for inputs, targets in zip(
        torch.split(rows[:, :-1], window, 1), torch.split(rows[:, 1:], window, 1), strict=True
    ):
        outputs, state = predict(model, inputs, state)
        total += position_loss(model.config, outputs, targets).double().sum().item()
    return total / rows[:, 1:].numel()


@torch.no_grad()
def sample(
    model: Model, tokenizer: Tokenizer, prompt: Tensor, length: int, temperature: float, seed: int
) -> str:
    """The `length` tokens, none of them unknown, that the model writes after reading `prompt` (N,)."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, StandardTransformer):
        prompt = prompt[-model.window :]
    outputs, state = predict(model, prompt[None])
    written = []
    for _ in range(length):
        logits = outputs[0, -1] / temperature
        logits[0] = -torch.inf  # the unknown token has no text
        token = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        written.append(int(token))
        if isinstance(model, StandardTransformer):  # it has no state and reads its window anew
            prompt = torch.cat([prompt, token])[-model.window :]
            outputs, _ = predict(model, prompt[None])
        else:
            outputs, state = predict(model, token[None], state)
    return tokenizer.decode(written)


def nats(loss: float | None) -> str:
    """A loss as text; None stands for one that was not finite."""
    return "not finite" if loss is None else f"{loss:.3f}"


def plot(
    history: Iterable[Mapping[str, float | None]], path: Path, title: str, unit: str = "nats a token"
) -> None:
    """Draw the losses against the steps into a PNG."""
    from matplotlib.figure import Figure  # a Figure of its own draws with Agg: no display needed

    entries = list(history)
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for key, label in (
        ("train_loss", "training"),
        ("window_loss", "validation, windows"),
        ("stream_loss", "validation, state carried"),
    ):
        points = [(entry["step"], entry[key]) for entry in entries if entry.get(key) is not None]
        axes.plot(*zip(*points, strict=True), marker=".", label=label) if points else None
    axes.set(xlabel="step", ylabel=f"loss ({unit})")
    axes.set_title(title, parse_math=False)  # a file's name may hold dollar signs
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
