"""The training loop: batches in, checkpoints and measurements out, exactly resumable.

A run is decided by its `Settings` and its data. Weights follow from the seed, batches from the seed and the
step, the learning rate from the step; weights, optimizer and carried state are in the checkpoint. So a run
that was stopped or killed, and resumed any number of times, ends with the very weights of an unbroken one (on
the same machine, versions and number of threads).

The loop knows of a model only that it is called as `model(inputs, state) -> outputs, state` and trained
through `ocean_train.regimes.backward`, whose state is one tensor or None. Started by torchrun, several
processes share a batch's rows (ocean_train.parallel), and the first of them measures and saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from ocean_runtime.model import MAX_FILE_BYTES
from ocean_runtime.tokenizer import Tokenizer
from torch import Tensor, nn
from tqdm import tqdm

from ocean_train import baselines, features, parallel
from ocean_train import checkpoint as checkpoints
from ocean_train.baselines import Model
from ocean_train.batches import Batch, Data, streams, windows
from ocean_train.checkpoint import Checkpoint, CheckpointError
from ocean_train.features import Sensors
from ocean_train.metrics import evaluate
from ocean_train.model import OceanConfig
from ocean_train.observations import Observations
from ocean_train.optimizer import (
    learning_rate,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    update,
)
from ocean_train.regimes import backward, check_options
from ocean_train.report import nats, stream_loss, window_loss

HOPELESS = 100
CPU = torch.device("cpu")

WEIGHTS_PER_LAYER = 12
"""Times the squared width: the matrices of a block. The baselines are of equal parameters."""


@dataclass(frozen=True)
class Settings:
    """What decides a run. Raises ValueError where a value makes no sense."""

    model: str = "ocean"
    regime: str = "full"
    tokenizer: Literal["char", "word"] = "char"
    vocabulary: int | None = None
    """Largest number of tokens; None keeps all."""
    width: int = 64
    layers: int = 2
    heads: int = 4
    steps: int = 2000
    batch: int = 32
    window: int = 64
    """T, the steps that one training step's gradient flows through."""
    lr: float = 1e-3
    """The peak of the learning rate."""
    feed: Literal["windows", "streams"] = "windows"
    seed: int = 0
    truncate: int | None = None
    """Cut the gradient through time every so many steps (regime full, serial); None: it flows through all T."""
    max_time_constant: float = 1.0
    """The longest time constant of leaky integration, in steps; 1: the paper's relay, without a leak."""
    learn_time_constants: bool = False
    first_weights: Literal["normal", "identity"] = "normal"
    """See `ocean_train.model.initialise`."""
    dropout: float = 0.0
    """Probability with which a channel is dropped before the head, and half of it after the embedding."""
    sweeps: int | None = None
    """Compute the oceans in so many parallel sweeps (regime detach); None: exactly, step by step."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, not {getattr(self, name)}")
        weights = WEIGHTS_PER_LAYER * self.layers * self.width**2
        if 4 * weights > MAX_FILE_BYTES:
            largest = math.isqrt(MAX_FILE_BYTES // (4 * WEIGHTS_PER_LAYER * self.layers))
            raise ValueError(
                f"--width {self.width} and --layers {self.layers} ask for {weights:,} weights, and an exported file "
                f"of at most {MAX_FILE_BYTES:,} bytes can't hold them; "
                + (f"give --width {largest} or less" if largest else "give fewer layers")
            )
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"--lr must be a positive number, not {self.lr}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"--dropout must be at least 0 and less than 1, not {self.dropout}")
        if self.dropout and self.regime == "serial":
            raise ValueError("--dropout is for --regime full and detach; serial computes without it")
        check_options(self.regime, self.truncate, None, self.sweeps)
        if self.model not in baselines.MODELS:
            raise ValueError(f"unknown model {self.model!r}; choose {', '.join(baselines.MODELS)}")
        if self.model != "ocean" and (self.regime, self.truncate) != ("full", None):
            raise ValueError(f"--regime and --truncate are for --model ocean; {self.model} has neither")
        if self.model != "ocean" and (self.max_time_constant, self.first_weights) != (1.0, "normal"):
            raise ValueError(
                f"--time-constants and --first-weights are for --model ocean; {self.model} has neither"
            )
        if self.seed < 0:
            raise ValueError(f"--seed must not be negative; got {self.seed}")


class DivergedError(ArithmeticError):
    """The weights are not finite, or the gradient was not for so long that going on is hopeless."""


def train(
    settings: Settings,
    data: Data | Sensors,
    out: Path,
    *,
    eval_every: int,
    save_every: int,
    device: torch.device = CPU,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda line: None,
    model: Model | None = None,
) -> Checkpoint:
    """Train, or go on training, until `settings.steps` or until `stop()` is true; the checkpoint is in `out`.

    `model` is one of your own with its first weights, such as a subclass with other blocks, in place of the
    one that the settings describe; the checkpoint then bears its class's name.

    Raises CheckpointError where `out` holds another run, is written by one at this moment or cannot be written
    at all, DivergedError after 100 skipped steps on end, or where a save finds weights that are not finite; the
    checkpoint before is then kept.
    """
    with ExitStack() as holding:
        refused = None
        try:
            if parallel.leads():  # the only one that writes
                holding.enter_context(checkpoints.held(out))
        except CheckpointError as error:
            refused = error
        if parallel.any_says(refused is not None, device):  # or the others would wait for the leader
            raise refused or CheckpointError("the first process can't write the checkpoint; it says why")
        return _train(settings, data, out, eval_every, save_every, device, stop, say, model)


def _train(
    settings: Settings,
    data: Data | Sensors,
    out: Path,
    eval_every: int,
    save_every: int,
    device: torch.device,
    stop: Callable[[], bool],
    say: Callable[[str], None],
    own: Model | None,
) -> Checkpoint:
    model = own or build(settings, data.tokenizer if isinstance(data, Data) else data.observations)
    model = model.to(device)
    shared = parallel.shared(model)
    optimizer = make_optimizer(model)
    last = resume(out, settings, data, model, optimizer)
    step, skipped, state, history = 0, 0, None, []
    best: Mapping[str, Tensor] | None = None
    best_step: int | None = None
    if last is not None:
        step, skipped, history = last.step, last.skipped, list(last.history)
        best, best_step = last.best, last.best_step
        if best_step == step:
            best = _copied(last.weights)
        if "carried" in last.optimizer:
            state = parallel.own_rows(last.optimizer["carried"]).to(device)
        if step < settings.steps:
            say(f"going on from step {step} of {settings.steps}, as {out} holds this run's checkpoint")

    def save() -> Checkpoint:
        if not all(p.isfinite().all() for p in model.parameters()):
            raise DivergedError("the weights are no longer finite; try a smaller --lr")
        tensors = optimizer_tensors(model, optimizer)
        if state is not None:
            tensors["carried"] = parallel.all_rows(state, settings.batch)
        now = Checkpoint(
            config=model.config,
            weights=model.state_dict(),
            optimizer=tensors,
            **_of_data(data),
            step=step,
            seed=settings.seed,
            regime=settings.regime,
            settings=asdict(settings),
            data={"name": data.name, "sha256": data.sha256},
            history=tuple(history),
            best=None if best_step == step else best,
            best_step=best_step,
            validation_loss=_validation_loss(_best(history)) if history else None,
            skipped=skipped,
            model_kind=type(own).__name__ if own else settings.model,
        )
        if parallel.leads():
            checkpoints.save(out, now)
        return now

    batch_at = feed(settings, data.training if isinstance(data, Data) else data)
    losses: list[float] = []  # since the last measurement
    in_a_row = 0
    bar = tqdm(
        total=settings.steps * settings.batch * settings.window,
        initial=step * settings.batch * settings.window,
        unit=" tokens",
        unit_scale=True,
        dynamic_ncols=True,
        disable=None if parallel.leads() else True,  # None: where nobody watches
    )
    with bar:
        while step < settings.steps and not parallel.any_says(stop(), device):
            batch = batch_at(step)
            with dropout(model, settings, step):
                loss, state = gradient(shared, settings, batch, state)
            if update(model, optimizer, loss, learning_rate(step, settings.steps, settings.lr)):
                in_a_row = 0
                losses.append(loss)
            else:
                skipped, in_a_row = skipped + 1, in_a_row + 1
                spoilt = state is not None and not state.isfinite().all()
                if parallel.any_says(spoilt, device):
                    state = None  # begin anew rather than carry a NaN on
            step += 1
            bar.update(settings.batch * settings.window)
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            if in_a_row == HOPELESS:
                raise DivergedError(
                    f"the gradient was not finite in {HOPELESS} steps on end; try a smaller --lr"
                )
            if parallel.leads() and (step % eval_every == 0 or step == settings.steps):
                history.append(measure(model, settings, data, step, losses))
                if _best(history) is history[-1]:
                    best, best_step = _copied(model.state_dict()), step
                losses = []
                bar.clear()
                say(describe(history[-1]))
            if step % save_every == 0 and step < settings.steps:
                save()
    if last is not None and step == last.step:
        return last
    return save()


def build(settings: Settings, reads: Tokenizer | Observations) -> Model:
    """The model that the settings ask for, for what it reads, with its first weights."""
    chosen: dict[str, Any] = {
        name: getattr(settings, name)
        for name in ("width", "layers", "heads", "max_time_constant", "learn_time_constants")
    }
    if isinstance(reads, Tokenizer):
        config = OceanConfig(reads.size, reads.size, **chosen)
    else:
        inputs, outputs = len(reads.inputs), len(reads.outputs)
        config = OceanConfig(inputs, outputs, **chosen, kind="features", head=reads.head)
    return baselines.build(settings.model, config, settings.window, settings.seed, settings.first_weights)


def feed(settings: Settings, training: Tensor | Sensors) -> Callable[[int], Batch]:
    """How the settings want (N,) tokens, or a log's training episodes, to be read: step -> Batch."""
    shape = settings.batch, settings.window
    if settings.feed == "windows":
        if isinstance(training, Sensors):
            return features.windows(training, *shape, settings.seed)
        return windows(training, *shape, settings.seed)
    if settings.feed == "streams":
        if isinstance(training, Sensors):
            return features.streams(training, *shape, settings.seed)
        return streams(training, *shape)
    raise ValueError(f"unknown feed {settings.feed!r}; choose windows or streams")


@contextmanager
def dropout(model: nn.Module, settings: Settings, step: int) -> Iterator[None]:
    """Drop channels (Srivastava et al., 2014) after the embedding and before the head, in a training step alone.

    What is dropped follows from the seed and the step, so that a resumed run drops the same; and it is drawn for
    the rows of all processes, so that several processes drop what one would.
    """
    if not settings.dropout:
        yield
        return
    random = torch.Generator().manual_seed(
        int(np.random.SeedSequence((settings.seed, step)).generate_state(1)[0])
    )

    def dropping(share: float) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def hook(module: nn.Module, args: Any, x: Tensor) -> Tensor:
            kept = torch.rand((settings.batch, *x.shape[1:]), generator=random) >= share
            return x * parallel.own_rows(kept).to(x.device) / (1 - share)

        return hook

    places = ((model.embed, settings.dropout / 2), (model.norm, settings.dropout))
    hooks = [
        module.register_forward_hook(dropping(share))
        for module, share in places
        if isinstance(module, nn.Module)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def gradient(
    model: nn.Module, settings: Settings, batch: Batch, state: Tensor | None
) -> tuple[float, Tensor | None]:
    """Fill every `.grad` from one batch; returns the loss, and the state where a next batch may carry it."""
    model.zero_grad(set_to_none=True)
    state = state if batch.carries else None
    device = next(model.parameters()).device
    inputs, targets, reset, valid = (
        None if rows is None else parallel.own_rows(rows).to(device)
        for rows in (batch.inputs, batch.targets, batch.reset, batch.valid)
    )
    assert inputs is not None and targets is not None
    options = {"truncate": settings.truncate, "sweeps": settings.sweeps}
    loss, state = backward(model, settings.regime, inputs, targets, state, reset, valid, **options)
    return loss, state if settings.feed == "streams" else None


def resume(
    out: Path, settings: Settings, data: Data | Sensors, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Checkpoint | None:
    """Load the run in `out` into model and optimizer, if there is one; refuses another run's checkpoint."""
    if not checkpoints.exists(out):
        return None
    found = checkpoints.load(out)
    steps = found.settings.get("steps")
    defaults = {
        field.name: field.default for field in fields(Settings)
    }  # what an older version did not write
    for name, asked in asdict(settings).items():
        if name == "steps" and asked != steps:
            raise CheckpointError(
                f"{out} holds a run of --steps {steps}, whose learning rate falls to 0 at its last step, so that it "
                f"can't become one of {asked}: repeat --steps {steps} to go on with it, or give another --out to "
                "train anew"
            )
        if (before := found.settings.get(name, defaults[name])) != asked:
            raise CheckpointError(
                f"{out} holds a run with --{name} {before} where this one has {asked}; "
                "repeat its settings to go on with it, or give another --out"
            )
    if found.data.get("sha256") != data.sha256:
        raise CheckpointError(
            f"{out} holds a run on other data ({found.data.get('name')}, or another version of it); "
            "give the same data to go on with it, or another --out"
        )
    try:
        model.load_state_dict(dict(found.weights))
    except RuntimeError:
        raise CheckpointError(f"{out} holds weights that do not fit its settings; it is damaged") from None
    restore_optimizer(model, optimizer, found.optimizer)
    return found


def measure(
    model: Model, settings: Settings, data: Data | Sensors, step: int, losses: list[float]
) -> dict[str, Any]:
    """One entry of the history."""
    if isinstance(data, Sensors):
        found = evaluate(model, data, settings.window)
        return {
            "step": step,
            "train_loss": sum(losses) / len(losses) if losses else None,
            "stream_loss": _finite(found.loss),
            **{name: _finite(value) for name, value in found.entry().items()},
        }
    validation = data.validation.to(next(model.parameters()).device)
    return {
        "step": step,
        "train_loss": sum(losses) / len(losses) if losses else None,
        "window_loss": _finite(window_loss(model, validation, settings.window)),
        "stream_loss": _finite(stream_loss(model, validation, settings.window)),
    }


def describe(entry: Mapping[str, Any]) -> str:
    """One line on one entry of the history."""
    if "window_loss" not in entry:
        others = ", ".join(
            f"{name.replace('_', ' ')} {nats(value)}"
            for name, value in entry.items()
            if name not in ("step", "train_loss", "stream_loss")
        )
        return (
            f"step {entry['step']:>6}   train {nats(entry['train_loss'])}   "
            f"validation {nats(entry['stream_loss'])}, {others} over carried episodes"
        )
    return (
        f"step {entry['step']:>6}   train {nats(entry['train_loss'])}   "
        f"validation {nats(entry['window_loss'])} in windows, {nats(entry['stream_loss'])} with the state carried"
    )


def _of_data(data: Data | Sensors) -> dict[str, Any]:
    """What a checkpoint keeps of the data."""
    limit = checkpoints.HELDOUT_STEPS
    if isinstance(data, Data):
        return {"heldout": data.validation[:limit].clone(), "tokenizer": data.tokenizer}
    x, y, reset = features.heldout(data, limit)
    kept = {"heldout": x, "heldout_targets": y, "heldout_reset": reset}
    return {**kept, "tokenizer": None, "observations": data.observations}


def _best(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The entry with the best validation result: the highest accuracy where classes are told, else the lowest loss.

    The first of equal ones; one that is not finite is the worst.
    """

    def score(entry: Mapping[str, Any]) -> float:
        if entry.get("accuracy") is not None:
            return float(entry["accuracy"])
        loss = _validation_loss(entry)
        return -math.inf if loss is None else -loss

    return max(history, key=score)


def _copied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}


def _validation_loss(entry: Mapping[str, Any]) -> float | None:
    """Over windows of a text, over carried episodes of a log."""
    loss: float | None = entry.get("window_loss", entry["stream_loss"])
    return loss


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
