"""From clean rows to batches, scaling and metrics: no window and no pair reaches across two episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ocean_train import baselines, features
from ocean_train.features import Sensors, heldout, prepare, side_by_side, streams, windows
from ocean_train.logs import Request, read_log
from ocean_train.loop import Settings, build
from ocean_train.metrics import Classes, Regression, evaluate
from ocean_train.observations import InUnits, Observations
from ocean_train.spool import LogError


def log_of(tmp_path: Path, lengths: list[int], validate_on: tuple[str, ...] = (), **asked: Any) -> Sensors:
    """Column `id` is 1000 · episode + step, so that a batch says where it is from."""
    random = np.random.default_rng(5)
    ids = np.concatenate([1000 * e + np.arange(n) for e, n in enumerate(lengths)]).astype(float)
    columns = {"id": ids, "noise [m]": 3 + 2 * random.standard_normal(len(ids))}
    columns["twice"] = 2 * columns["noise [m]"] + 500_000.03
    mode = np.where(columns["noise [m]"] > 3, "high", "low")
    who = np.repeat([f"e{e}" for e in range(len(lengths))], lengths)
    np.savez(tmp_path / "log.npz", **columns, mode=mode, who=who)
    return prepare(read_log(Request((tmp_path / "log.npz",), episode="who", **asked)), validate_on)


def ids_of(data: Sensors, inputs: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    scaling = data.observations.input_scaling
    return np.rint(inputs[..., 0].double().numpy() * scaling.scale[0] + scaling.offset[0])


@pytest.mark.parametrize("target", ["next", "columns", "classes"])
@settings(deadline=None, max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=3, max_size=8),
    window=st.integers(1, 9),
    seed=st.integers(0, 3),
)
@example(lengths=[22, 15, 1, 1, 13, 8], window=5, seed=0)  # all three rows begin an episode at once
def test_batches_stay_within_episodes(
    tmp_path_factory: pytest.TempPathFactory, target: str, lengths: list[int], window: int, seed: int
) -> None:
    asked: dict[str, Any] = {
        "next": {"features": ("id", "noise")},
        "columns": {"features": ("id",), "targets": ("noise",)},
        "classes": {"features": ("id",), "classes": "mode"},
    }[target]
    lengths = [*lengths, 30, 5]
    data = log_of(tmp_path_factory.mktemp("log"), lengths, **asked)
    last = {e: n - 1 - (target == "next") for e, n in enumerate(lengths)}
    row_by_row = streams(data, 3, window, seed)
    for feed in (windows(data, 3, window, seed), row_by_row):
        for step in range(4):
            batch = feed(step)
            ids = ids_of(data, batch.inputs)
            valid = np.ones(ids.shape, bool) if batch.valid is None else batch.valid.numpy()
            begins = np.zeros(ids.shape, bool) if batch.reset is None else batch.reset.numpy()
            goes_on = (np.diff(ids) == 1) & (ids[:, :-1] // 1000 == ids[:, 1:] // 1000)
            assert (goes_on | begins[:, 1:] | ~valid[:, 1:]).all()
            for number in ids[valid]:
                assert number % 1000 <= last[int(number // 1000)]
            again = feed(step)
            assert torch.equal(again.inputs, batch.inputs) and torch.equal(again.targets, batch.targets)
            if feed is row_by_row:  # a row starts anew with an episode, and all do with a round
                anew = (ids[:, 0] % 1000 == 0) | (not batch.carries)
                assert batch.reset is not None and np.array_equal(batch.reset[:, 0].numpy(), anew)


def test_streams_carry_on_and_read_nearly_everything(tmp_path: Path) -> None:
    data = log_of(tmp_path, [40, 23, 31, 17, 9], features=("id", "noise"))
    feed = streams(data, 2, 5, seed=0)
    first, second = feed(0), feed(1)
    assert not first.carries and second.carries
    a, b = ids_of(data, first.inputs), ids_of(data, second.inputs)
    assert second.reset is not None
    for row in range(2):
        assert b[row, 0] == a[row, -1] + 1 or second.reset[row, 0]
    rounds = int(data.training.pairs.sum()) // 2 // 5
    seen = {int(n) for step in range(rounds) for n in ids_of(data, feed(step).inputs).ravel()}
    assert len(seen) == rounds * 10  # each step once, in a round
    assert feed(rounds).carries is False


def test_next_row_is_the_target_and_one_is_what_holding_costs(tmp_path: Path) -> None:
    data = log_of(tmp_path, [400, 300, 50], features=("noise", "twice"))
    batch = windows(data, 64, 20, 0)(0)
    assert batch.targets.square().mean() == pytest.approx(1.0, abs=0.15)
    x, y = data.pairs(np.arange(10))
    np.testing.assert_array_equal(y, data.log.rows[1:11])
    outputs = data.observations.targets_for_model(x, y)
    np.testing.assert_allclose(data.observations.estimates(x, outputs), y, rtol=0, atol=1e-9)


def test_no_change_costs_one_over_the_training_part_and_what_others_cost_is_their_own(tmp_path: Path) -> None:
    """Zero says the last value and the training part's mean change; held-out rows that change more cost more."""
    still = np.random.default_rng(0).standard_normal(400)
    np.savez(tmp_path / "log.npz", a=np.r_[still, 3 * still[::-1]], who=np.repeat(["x", "y"], 400))
    data = prepare(read_log(Request((tmp_path / "log.npz",), episode="who")))
    costs = []
    for part in (data.training, data.validation):
        places = part.begin[0] + np.arange(part.pairs[0])
        costs.append(float(data.tensors(places)[1].double().square().mean()))
        zero = data.observations.estimates(data.pairs(places)[0], np.zeros((len(places), 1)))
        drift = np.diff(still).mean()
        np.testing.assert_allclose(zero, data.pairs(places)[0] + drift, rtol=0, atol=1e-9)
    assert costs == pytest.approx([1.0, 9.0], rel=1e-3)
    found = Regression(1.0, 9, ("a", "b", "c"), *np.array([[1.0, 3, 2], [2, 4, 0], [9, 9, 9]]))
    assert found.entry()["rmse_of_hold"] == (0.5 + 0.75) / 2  # c never moves


def test_scaling_and_references_come_from_the_training_split_alone(tmp_path: Path) -> None:
    columns = {
        "a": np.r_[np.zeros(50) + np.arange(50) % 2, np.full(50, 1e6)],
        "who": np.repeat(["x", "y"], 50),
    }
    columns["utm"] = 4_512_345.0 + 0.01 * (np.arange(100) % 3)
    columns["still"] = np.full(100, 7.0)
    np.savez(tmp_path / "log.npz", **columns)
    data = prepare(read_log(Request((tmp_path / "log.npz",), episode="who")), ("log/y",))
    a, utm, still = data.columns
    assert (a.mean, a.std, a.low, a.high) == (0.5, 0.5, 0.0, 1.0)
    assert utm.element.reference == 4_512_345.0 and a.element.reference == 0.0
    assert still.std == 0.0
    inputs, _ = data.tensors(np.arange(99))
    assert inputs.isfinite().all() and inputs.abs().max() == 10.0  # the clip
    assert inputs[:49, 1].std() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    "asked",
    [
        {"features": ("noise", "twice")},
        {"features": ("noise",), "targets": ("twice",)},
        {"features": ("noise",), "classes": "mode"},
    ],
)
def test_the_model_in_units_is_the_model_of_normalised_numbers(tmp_path: Path, asked: dict[str, Any]) -> None:
    data = log_of(tmp_path, [60, 40], **asked)
    model = build(Settings(width=16, layers=1, heads=2), data.observations)
    in_units = InUnits(model, data.observations).double()
    x, _ = data.pairs(np.arange(40))
    inputs, _ = data.tensors(np.arange(40))
    outputs, _ = model(inputs.double()[None])
    relative = torch.from_numpy(data.observations.relative(x))
    said, after = in_units(relative[None])
    if data.observations.target == "classes":
        wanted = outputs[0].detach().numpy()
    else:
        wanted = data.observations.estimates(x, outputs[0].detach().numpy())
        references = np.array([e.reference for e in data.observations.outputs])
        wanted = wanted - references
    np.testing.assert_allclose(said[0].detach().numpy(), wanted, rtol=1e-4, atol=1e-4)
    state = in_units.initial_ocean(1)
    for t in range(40):
        one, state = in_units.step(relative[None, t], state)
        torch.testing.assert_close(one, said[:, t])
    torch.testing.assert_close(state, after)


def test_observations_survive_json(tmp_path: Path) -> None:
    data = log_of(tmp_path, [60, 40], features=("noise",), targets=("twice",))
    assert Observations.from_dict(data.observations.to_dict()) == data.observations


@pytest.mark.parametrize("model", ["ocean", "gru", "transformer"])
@pytest.mark.parametrize("classes", [None, "mode"])
def test_metrics_are_those_of_each_episode_read_alone(
    tmp_path: Path, model: str, classes: str | None
) -> None:
    data = log_of(
        tmp_path, [30, 21, 9, 14], ("log/e1", "log/e2", "log/e3"), features=("noise",), classes=classes
    )
    window = 32 if model == "transformer" else 5  # its memory is its window
    trained = build(Settings(model=model, width=16, layers=1, heads=2, window=window), data.observations)
    found = evaluate(trained, data, window)
    squares, hits, steps = np.zeros(1), 0, 0
    for begin, pairs in zip(data.validation.begin, data.validation.pairs, strict=True):
        places = np.arange(begin, begin + pairs)
        x, y = data.pairs(places)
        with torch.no_grad():
            outputs, _ = trained(data.tensors(places)[0][None])
        steps += len(places)
        if classes:
            hits += int((outputs[0].argmax(-1).numpy() == y[:, 0]).sum())
        else:
            squares += ((data.observations.estimates(x, outputs[0].double().numpy()) - y) ** 2).sum(0)
    assert found.steps == steps
    if isinstance(found, Classes):
        assert found.accuracy == pytest.approx(hits / steps)
    else:
        np.testing.assert_allclose(found.rmse, np.sqrt(squares / steps), rtol=1e-4)


def test_baselines_that_cost_nothing(tmp_path: Path) -> None:
    data = log_of(tmp_path, [200, 120], features=("noise",), targets=("twice",))
    model = build(Settings(width=8, layers=1, heads=2), data.observations)
    found = evaluate(model, data, 16)
    assert isinstance(found, Regression)
    y = data.log.rows[200:, 1]
    mean = data.log.rows[:200, 1].mean()
    held = np.concatenate([[mean], y[:-1]])
    np.testing.assert_allclose(found.hold, np.sqrt(((held - y) ** 2).mean()), rtol=1e-9)
    np.testing.assert_allclose(found.mean, np.sqrt(((mean - y) ** 2).mean()), rtol=1e-9)
    assert "below hold" in str(found)


def test_macro_f1() -> None:
    confusion = np.array([[3, 1, 0], [2, 4, 0], [0, 0, 0]])
    found = Classes(0.0, 10, ("a", "b", "never"), confusion)
    assert found.accuracy == 0.7
    assert found.macro_f1 == pytest.approx((6 / 9 + 8 / 11) / 2)


def test_splits(tmp_path: Path) -> None:
    data = log_of(tmp_path, [30] * 20, features=("id",))
    assert data.validation.names == ("log/e18", "log/e19")
    data = log_of(tmp_path, [30] * 20, ("log/e1*",), features=("id",))
    assert data.validation.names == ("log/e1", *(f"log/e1{i}" for i in range(10)))
    one = log_of(tmp_path, [100], features=("id",))
    assert one.training.pairs.tolist() == [89] and one.validation.pairs.tolist() == [9]
    assert one.validation.begin.tolist() == [
        90
    ]  # row 90 is neither's pair: no training target is validated on
    with pytest.raises(LogError, match="no episode is named 'x'; they are log/e0, log/e1"):
        log_of(tmp_path, [30, 30], ("x",), features=("id",))
    with pytest.raises(LogError, match="too few"):
        log_of(tmp_path, [30, 30], ("log/e*",), features=("id",))
    with pytest.raises(
        LogError,
        match=r"29 steps to train on do not give 50 rows of 9 steps; give more data, or --batch 3 or less$",
    ):
        streams(log_of(tmp_path, [30, 30], features=("id",)), 50, 9, 0)


def test_numbers_that_no_float32_holds_are_refused(tmp_path: Path) -> None:
    """The runtime would refuse them too, at each step."""
    path = tmp_path / "log.csv"
    path.write_text("a,b\n" + "".join(f"{(-1) ** i}e39,{i % 3}\n" for i in range(50)))
    with pytest.raises(LogError, match=r"'a' goes from -1e\+39 to 1e\+39, and a model reads no more than"):
        prepare(read_log(Request((path,))))


def test_side_by_side_reads_each_pair_once(tmp_path: Path) -> None:
    data = log_of(tmp_path, [30, 7, 12], ("log/e1", "log/e2"), features=("id",))
    places = np.concatenate([p[v] for p, v in side_by_side(data.validation, 5)])
    assert sorted(places.tolist()) == [*range(30, 36), *range(37, 48)]
    x, y, reset = heldout(data, 10)
    assert x.shape == y.shape == (10, 1) and reset.nonzero().flatten().tolist() == [0, 6]


def test_baselines_take_features_of_every_head(tmp_path: Path) -> None:
    data = log_of(tmp_path, [30, 30], features=("noise",), classes="mode")
    batch = features.windows(data, 2, 6, 0)(0)
    for name in baselines.MODELS:
        model = build(Settings(model=name, width=16, layers=1, heads=2, window=6), data.observations)
        assert model(batch.inputs)[0].shape == (2, 6, 2)
