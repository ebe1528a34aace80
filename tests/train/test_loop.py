"""The training loop: it learns, it resumes exactly, it survives a gradient that is not finite."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from ocean_train.batches import Data, prepare
from ocean_train.checkpoint import Checkpoint, CheckpointError, held, load
from ocean_train.corpora import Corpus, CorpusError
from ocean_train.loop import DivergedError, Settings, build, dropout, feed, gradient, train
from ocean_train.model import OceanTransformer
from ocean_train.optimizer import (
    WEIGHT_DECAY,
    learning_rate,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    update,
)
from ocean_train.report import sample, stream_loss, window_loss

TINY = Settings(width=8, layers=1, heads=2, steps=12, batch=3, window=5)
TEXT = "so shaken as we are, so wan with care, find we a time for frighted peace to pant. " * 8


def data(settings: Settings = TINY, text: str = TEXT) -> Data:
    return prepare(
        Corpus("t", text), settings.tokenizer, settings.vocabulary, settings.batch, settings.window
    )


def run(
    out: Path, settings: Settings = TINY, stops: tuple[int, ...] = (), every: int = 4, text: str = TEXT
) -> Checkpoint:
    """Train, stopped after each number of steps in `stops`, then to the end."""
    for steps in (*stops, settings.steps):
        asked = iter(range(steps + 1))
        checkpoint = train(
            settings,
            data(settings, text),
            out,
            eval_every=every,
            save_every=every,
            stop=lambda asked=asked, steps=steps: next(asked) == steps and steps < settings.steps,  # type: ignore[misc]
        )
    return checkpoint


def same_weights(a: Checkpoint, b: Checkpoint) -> bool:
    return all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights) and all(
        torch.equal(a.optimizer[name], b.optimizer[name]) for name in a.optimizer
    )


def test_dropout_is_for_training_alone_and_drops_the_share_that_was_asked() -> None:
    settings = dataclasses.replace(TINY, width=64, dropout=0.5, batch=8)
    model = build(settings, data(settings).tokenizer)
    assert isinstance(model, OceanTransformer)
    inputs = feed(settings, data(settings).training)(0).inputs
    plain, _ = model(inputs)
    seen: list[torch.Tensor] = []
    watched = model.head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    for step in (0, 0, 1):
        with dropout(model, settings, step):
            dropped, _ = model(inputs)
        assert not torch.equal(dropped, plain)
    watched.remove()
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    share = (seen[0] == 0).double().mean().item()
    n = seen[0].numel()
    assert abs(share - 0.5) < 5 * (0.25 / n) ** 0.5  # five standard deviations of a binomial
    assert torch.equal(model(inputs)[0], plain), "no hook is left"


@pytest.mark.parametrize("how", ["windows", "streams"])
@pytest.mark.parametrize("regime", ["full", "detach"])
def test_resuming_once_or_three_times_gives_the_weights_of_an_unbroken_run(
    tmp_path: Path, how: str, regime: str
) -> None:
    settings = dataclasses.replace(
        TINY,
        feed=how,
        regime=regime,
        steps=80 if how == "streams" else 12,
        dropout=0.2,
        max_time_constant=4.0,
        learn_time_constants=True,
        first_weights="identity",
    )
    unbroken = run(tmp_path / "unbroken", settings)
    assert unbroken.step == settings.steps
    assert ("carried" in unbroken.optimizer) == (how == "streams")
    assert same_weights(unbroken, run(tmp_path / "once", settings, stops=(7,)))
    assert same_weights(unbroken, run(tmp_path / "thrice", settings, stops=(1, 4, 3)))
    assert same_weights(unbroken, load(tmp_path / "thrice"))


def test_training_lowers_the_loss_and_the_history_says_so(tmp_path: Path) -> None:
    settings = dataclasses.replace(TINY, steps=60, lr=1e-2)
    checkpoint = run(tmp_path, settings, every=20)
    losses = [entry["window_loss"] for entry in checkpoint.history]
    assert [entry["step"] for entry in checkpoint.history] == [20, 40, 60]
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < losses[0] < math.log(checkpoint.config.inputs)
    assert checkpoint.validation_loss == losses[-1]
    assert checkpoint.skipped == 0
    assert torch.equal(checkpoint.heldout, data(settings).validation)


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    first = run(tmp_path)
    again = run(tmp_path)
    assert same_weights(first, again)
    assert first.history == again.history


@pytest.mark.parametrize(
    ("change", "text", "sentence"),
    [
        ({"steps": 13}, TEXT, "--steps 12, whose learning rate .* become one of 13"),
        ({"lr": 2e-3}, TEXT, "--lr 0.001 where this one has 0.002"),
        ({"regime": "detach"}, TEXT, "--regime full where this one has detach"),
        ({}, TEXT + "!", "on other data"),
    ],
)
def test_another_run_is_not_mistaken_for_this_one(
    tmp_path: Path, change: dict[str, object], text: str, sentence: str
) -> None:
    run(tmp_path, stops=())
    settings = dataclasses.replace(TINY, **change)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=sentence):
        train(settings, data(settings, text), tmp_path, eval_every=4, save_every=4)


@pytest.mark.parametrize("broken", ["gradient", "loss"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_step_that_is_not_finite_changes_nothing(broken: str, value: float) -> None:
    text = data()
    model = build(TINY, text.tokenizer)
    optimizer = make_optimizer(model)
    batch = feed(TINY, text.training)(0)
    gradient(model, TINY, batch, None)
    assert update(model, optimizer, 1.0, 1e-3)
    weights = {name: w.clone() for name, w in model.state_dict().items()}
    moments = {name: m.clone() for name, m in optimizer_tensors(model, optimizer).items()}
    loss, _ = gradient(model, TINY, batch, None)
    if broken == "gradient":
        assert model.head.weight.grad is not None
        model.head.weight.grad[0, 0] = value
    assert not update(model, optimizer, value if broken == "loss" else loss, 1e-3)
    assert all(torch.equal(weights[name], w) for name, w in model.state_dict().items())
    after = optimizer_tensors(model, optimizer)
    assert all(torch.equal(moments[name], m) for name, m in after.items())
    gradient(model, TINY, batch, None)
    assert update(model, optimizer, loss, 1e-3)  # and the next step is taken


@pytest.mark.parametrize("how", ["windows", "streams"])
def test_a_run_that_explodes_counts_its_skipped_steps_and_keeps_finite_weights(
    tmp_path: Path, how: str
) -> None:
    settings = dataclasses.replace(TINY, lr=1e37, feed=how, steps=10)
    checkpoint = run(tmp_path, settings)
    assert 0 < checkpoint.skipped < 10
    assert all(w.isfinite().all() for w in checkpoint.weights.values())
    assert load(tmp_path).skipped == checkpoint.skipped


def test_a_hopeless_run_ends_with_a_sentence(tmp_path: Path) -> None:
    settings = dataclasses.replace(TINY, lr=1e37, steps=300)
    with pytest.raises(DivergedError, match="100 steps on end; try a smaller --lr"):
        run(tmp_path, settings, every=1000)


def test_the_learning_rate_warms_up_and_falls_to_nothing() -> None:
    rates = [learning_rate(step, 1000, 1.0) for step in range(1000)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[99] == rates[100] == 1.0
    assert all(a <= b for a, b in pairwise(rates[:100]))
    assert all(a >= b for a, b in pairwise(rates[100:]))
    assert rates[550] == pytest.approx(0.5)
    assert 0 < rates[-1] < 1e-5
    assert learning_rate(0, 1, 1.0) == 1.0


def test_only_matrices_decay() -> None:
    model = build(TINY, data().tokenizer)
    decayed = {
        id(p)
        for g in make_optimizer(model).param_groups
        if g["weight_decay"] == WEIGHT_DECAY
        for p in g["params"]
    }
    names = {name.rsplit(".", 2)[-2] for name, p in model.named_parameters() if id(p) in decayed}
    assert names == {"wq", "wk", "wv", "wo", "w1", "w2", "head"}
    assert all(p.dim() == 2 for p in model.parameters() if id(p) in decayed)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 0}, "--steps must be at least 1"),
        ({"window": -1}, "--window must be at least 1"),
        ({"lr": math.nan}, "--lr must be a positive number"),
        ({"seed": -1}, "--seed must not be negative"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(TINY, **change)  # type: ignore[arg-type]


def test_the_losses_are_those_of_the_model_called_directly() -> None:
    text = data()
    model = build(TINY, text.tokenizer)
    tokens = text.validation
    with torch.no_grad():
        outputs, _ = model(tokens[None, :-1])
        direct = torch.nn.functional.cross_entropy(outputs[0], tokens[1:]).item()
        assert stream_loss(model, tokens, len(tokens)) == pytest.approx(direct, rel=1e-5)
        streams = tokens[:65].unfold(0, 3, 2)  # 32 of 2 steps
        outputs, _ = model(streams[:, :-1])
        direct = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), streams[:, 1:].flatten()).item()
        assert stream_loss(model, tokens[:65], 1) == pytest.approx(direct, rel=1e-5)
        rows = tokens[: len(tokens) - 1 - (len(tokens) - 1) % 5].view(-1, 5)
        targets = tokens[1 : rows.numel() + 1]
        direct = torch.nn.functional.cross_entropy(model(rows)[0].flatten(0, 1), targets).item()
    assert window_loss(model, tokens, 5) == pytest.approx(direct, rel=1e-5)


def test_a_sample_follows_from_its_seed_and_holds_no_unknown_token() -> None:
    text = data()
    model = build(TINY, text.tokenizer)
    with torch.no_grad():
        model.head.weight[0] = 10 * model.head.weight.abs().max()
    texts = [sample(model, text.tokenizer, text.validation[:4], 50, 1.0, seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0]) == 50
    assert "\ufffd" not in "".join(texts)


def test_a_text_too_short_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CorpusError):
        data(text="short")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_used_is_refused_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    def stop() -> bool:
        raise AssertionError("a step began")

    with held(tmp_path / "run"):
        for name, sentence in (("run", "another ocean-train"), ("file", "cannot be written")):
            with pytest.raises(CheckpointError, match=sentence):
                train(TINY, data(), tmp_path / name, eval_every=4, save_every=4, stop=stop)


def test_weights_that_are_not_finite_are_not_saved_over_a_good_checkpoint(tmp_path: Path) -> None:
    settings = dataclasses.replace(TINY, lr=1e300, steps=8)
    asked = iter(range(9))
    with pytest.raises(DivergedError, match="the weights are no longer finite; try a smaller --lr"):
        train(settings, data(), tmp_path, eval_every=100, save_every=100)
    train(settings, data(), tmp_path, eval_every=100, save_every=100, stop=lambda: next(asked) == 0)
    with pytest.raises(DivergedError, match="no longer finite"):
        train(settings, data(), tmp_path, eval_every=100, save_every=3)
    assert load(tmp_path).step == 0


@pytest.mark.parametrize(
    "change",
    [
        {"exp_avg.head.weight": None},
        {"exp_avg.head.weight": torch.zeros(1)},
        {"exp_avg.head.weight": torch.zeros(1).long()},
        {"step.head.weight": torch.tensor(3)},
        {"step.head.weight": torch.zeros(2)},
        {"exp_avg.tail.weight": torch.zeros(1)},
    ],
)
def test_an_optimizer_that_does_not_fit_is_refused(change: dict[str, torch.Tensor | None]) -> None:
    text = data()
    model = build(TINY, text.tokenizer)
    optimizer = make_optimizer(model)
    loss, _ = gradient(model, TINY, feed(TINY, text.training)(0), None)
    assert update(model, optimizer, loss, 1e-3)
    tensors = optimizer_tensors(model, optimizer)
    restore_optimizer(model, make_optimizer(model), tensors)
    edited = {name: value for name, value in (tensors | change).items() if value is not None}
    with pytest.raises(CheckpointError, match=f"the optimizer's {next(iter(change))} does not fit the model"):
        restore_optimizer(model, make_optimizer(model), edited)


def test_a_model_of_ones_own_resumes_and_is_not_taken_for_the_plain_one(tmp_path: Path) -> None:
    class Mine(OceanTransformer):
        pass

    def begin(stop: int) -> Checkpoint:
        steps = iter(range(stop))
        text = data()
        model = Mine(build(TINY, text.tokenizer).config, seed=3)
        options = {"eval_every": 5, "save_every": 5, "stop": lambda: next(steps, None) is None}
        return train(TINY, text, tmp_path, model=model, **options)

    assert begin(7).step == 7
    resumed = begin(100)
    assert resumed.step == TINY.steps and resumed.model_kind == "Mine"
    with pytest.raises(CheckpointError, match="holds a 'Mine' model"):
        resumed.model()


def test_the_best_weights_by_validation_are_kept_and_survive_a_restart(tmp_path: Path) -> None:
    """The last tenth of this text is nothing that can be learned from the rest, so that its loss rises."""
    text = TEXT + "zxqjvk" * (len(TEXT) // 50) + TEXT[:3]
    settings = dataclasses.replace(TINY, lr=0.03, steps=60)
    unbroken = run(tmp_path / "unbroken", settings, every=2, text=text)
    losses = {entry["step"]: entry["window_loss"] for entry in unbroken.history}
    best_step = min(losses, key=lambda step: losses[step])  # type: ignore[arg-type,return-value]
    assert unbroken.best_step == best_step < settings.steps, "else this test shows nothing"
    assert unbroken.validation_loss == losses[best_step]
    assert unbroken.best is not None
    model = load(tmp_path / "unbroken").model()
    found = window_loss(model, data(settings, text).validation, settings.window)
    assert found == pytest.approx(losses[best_step], rel=1e-5)
    stops = (3, best_step, best_step + 1)
    again = run(tmp_path / "stopped", settings, stops=tuple(sorted(stops)), every=2, text=text)
    assert again.best_step == best_step and again.best is not None
    assert all(torch.equal(again.best[name], unbroken.best[name]) for name in unbroken.best)
    assert same_weights(again, unbroken)


def test_weights_that_are_the_best_are_stored_once(tmp_path: Path) -> None:
    done = run(tmp_path, dataclasses.replace(TINY, steps=4), every=4)
    assert done.best is None and done.best_step == 4
    assert not list(tmp_path.glob("best-*"))
