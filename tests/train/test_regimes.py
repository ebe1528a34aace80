"""The regimes through `regimes.backward`: training, masks, edges of size, and what goes wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from chain_setup import Case, error, make
from ocean_train import baselines, regimes
from ocean_train.model import OceanConfig, OceanTransformer
from torch import Tensor


def run(case: Case, regime: str, **options: Any) -> tuple[float, Tensor, dict[str, Tensor]]:
    case.model.zero_grad()
    loss, ocean = regimes.backward(
        case.model, regime, case.inputs, case.targets, case.ocean, case.reset, case.valid, **options
    )
    gradients = {name: p.grad for name, p in case.model.named_parameters() if p.grad is not None}
    assert len(gradients) == len(list(case.model.parameters()))
    return loss, ocean, gradients


def losses(regime: str, dtype: torch.dtype, steps: int = 100, seed: int = 0) -> list[float]:
    """Train on the echo of the token before, the ocean carried from window to window."""
    config = OceanConfig(5, 5, width=16, layers=2, heads=4)
    model = OceanTransformer(config, seed).to(dtype)
    # At 1e-2 this seed's training magnifies the rounding of 1e-14 to 7e-9 within 100 steps (docs/log.md).
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(seed)
    ocean, found = None, []
    for _ in range(steps):
        inputs = torch.randint(5, (4, 6), generator=generator)
        optimizer.zero_grad()
        loss, ocean = regimes.backward(model, regime, inputs, inputs.roll(1, 1), ocean)
        optimizer.step()
        found.append(loss)
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_serial_and_full_train_alike(seed: int) -> None:
    serial, full = (losses(regime, torch.float64, seed=seed) for regime in ("serial", "full"))
    worst = max(abs(a - b) for a, b in zip(serial, full, strict=True))
    print(f"largest difference of a loss in 100 steps: {worst:.1e}")
    assert worst < 1e-9
    assert full[-1] < 0.7 * full[0]


@pytest.mark.parametrize("regime", ["full", "detach"])
def test_the_same_seed_gives_the_same_bits(regime: str) -> None:
    assert losses(regime, torch.float32, 20) == losses(regime, torch.float32, 20)


@pytest.mark.parametrize("regime", regimes.REGIMES)
@pytest.mark.parametrize("B,T", [(1, 1), (1, 5), (5, 1), (3, 4)])
def test_every_size_of_window(regime: str, B: int, T: int) -> None:
    case = make(B, T, 8, masked=True)
    loss, ocean, gradients = run(case, regime)
    expected, ocean_expected, _ = run(case, "serial")
    assert math.isclose(loss, expected, rel_tol=1e-10, abs_tol=1e-12)
    assert error(ocean, ocean_expected) < 1e-10
    assert all(g.isfinite().all() for g in gradients.values())


@pytest.mark.parametrize("regime", regimes.REGIMES)
def test_a_row_of_length_zero_adds_nothing(regime: str) -> None:
    case = make(4, 5, 8)
    valid = torch.ones(4, 5, dtype=torch.bool)
    valid[2] = False
    loss, ocean, gradients = run(case._replace(valid=valid), regime)
    rest = [0, 1, 3]
    without = case._replace(inputs=case.inputs[rest], targets=case.targets[rest], ocean=case.ocean[rest])
    loss_without, _, gradients_without = run(without, regime)
    assert torch.equal(ocean[2], case.ocean[2])
    assert math.isclose(loss, loss_without, rel_tol=1e-12)
    assert all(error(gradients[n], gradients_without[n]) < 1e-10 for n in gradients)


@pytest.mark.parametrize("regime", regimes.REGIMES)
def test_a_window_of_padding_alone(regime: str) -> None:
    case = make(2, 3, 8)
    loss, ocean, gradients = run(case._replace(valid=torch.zeros(2, 3, dtype=torch.bool)), regime)
    assert loss == 0
    assert torch.equal(ocean, case.ocean)
    assert all((g == 0).all() for g in gradients.values())


@pytest.mark.parametrize("regime", regimes.REGIMES)
def test_what_stands_in_padding_is_ignored(regime: str) -> None:
    case = make(3, 6, 8, kind="features", head="regression", masked=True)
    assert case.valid is not None
    hidden = ~case.valid[..., None]
    spoilt = case._replace(
        inputs=case.inputs.masked_fill(hidden, math.nan), targets=case.targets.masked_fill(hidden, math.inf)
    )
    loss, ocean, gradients = run(case, regime)
    loss_spoilt, ocean_spoilt, gradients_spoilt = run(spoilt, regime)
    assert loss == loss_spoilt
    assert torch.equal(ocean, ocean_spoilt)
    assert all(torch.equal(gradients[n], gradients_spoilt[n]) for n in gradients)


@pytest.mark.parametrize("regime", regimes.REGIMES)
def test_two_episodes_in_a_row_are_two_windows(regime: str) -> None:
    case = make(2, 6, 8)
    reset = torch.zeros(2, 6, dtype=torch.bool)
    reset[:, 4] = True
    loss, ocean, _ = run(case._replace(reset=reset), regime)
    first = case._replace(inputs=case.inputs[:, :4], targets=case.targets[:, :4])
    second = case._replace(
        inputs=case.inputs[:, 4:], targets=case.targets[:, 4:], ocean=torch.zeros_like(case.ocean)
    )
    apart = [run(part, regime) for part in (first, second)]
    assert math.isclose(loss, (4 * apart[0][0] + 2 * apart[1][0]) / 6, rel_tol=1e-10)
    assert error(ocean, apart[1][1]) < 1e-10


@pytest.mark.parametrize("regime", regimes.REGIMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_not_hidden(regime: str, bad: float) -> None:
    case = make(2, 4, 16, dtype=torch.float32)
    with torch.no_grad():
        case.model.embed.weight[case.inputs[0, 0]] = bad
    loss, ocean, gradients = run(case, regime)
    assert not math.isfinite(loss)
    assert not ocean[0].isfinite().all()
    assert any(not g.isfinite().all() for g in gradients.values())


def test_an_exploding_chain_stays_exact() -> None:
    """Weights ten times too large: float64 serial and full agree on whatever comes out."""
    case = make(2, 12, 8)
    with torch.no_grad():
        for block in case.model.blocks:
            block.get_parameter("wv.weight").mul_(10)
            block.get_parameter("wo.weight").mul_(10)
    _, _, expected = run(case, "serial")
    _, _, found = run(case, "full")
    assert all(error(found[n], expected[n]) < 1e-6 for n in found)


@pytest.mark.parametrize("masked", [False, True])
def test_as_many_sweeps_as_steps_are_exact(masked: bool) -> None:
    case = make(3, 6, 8, masked=masked)
    exact, ocean, gradients = run(case, "detach")
    loss, ocean_swept, swept = run(case, "detach", sweeps=6)
    assert math.isclose(loss, exact, rel_tol=1e-10)
    assert error(ocean_swept, ocean) < 1e-10
    assert all(error(swept[n], gradients[n]) < 1e-9 for n in swept)


def test_each_sweep_makes_one_more_step_exact() -> None:
    case = make(3, 6, 8)
    x = case.model.embed(case.inputs)
    exact = regimes.detach_relay(case.model, x, case.ocean, None, None)
    for sweeps in range(1, 7):
        found = regimes.detach_relay(case.model, x, case.ocean, None, None, sweeps=sweeps)
        assert error(found[:, :sweeps], exact[:, :sweeps]) < 1e-10
        assert sweeps == 6 or error(found[:, sweeps], exact[:, sweeps]) > 1e-6


def test_gradients_add_up() -> None:
    for regime in regimes.REGIMES:
        case = make(2, 3, 8)
        _, _, once = run(case, regime)
        once = {name: g.clone() for name, g in once.items()}
        regimes.backward(case.model, regime, case.inputs, case.targets, case.ocean)
        twice = dict(case.model.named_parameters())
        assert all(error(twice[n].grad, 2 * once[n]) < 1e-12 for n in once)


def test_an_unknown_regime_or_option_is_refused() -> None:
    case = make(1, 2, 8)
    with pytest.raises(ValueError, match="unknown regime 'ful'; choose serial, full or detach"):
        run(case, "ful")
    with pytest.raises(ValueError, match="detach has no option truncate; it has sweeps"):
        run(case, "detach", truncate=2)
    for bad in (0, 2.5, True):
        with pytest.raises(ValueError, match=f"truncate must be a positive whole number or None, not {bad}"):
            run(case, "full", truncate=bad)


TOKENS, BITS = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)
REALS = torch.zeros(2, 3, 3)


@pytest.mark.parametrize("regime", regimes.REGIMES)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"inputs": TOKENS[0]}, r"inputs are \(3,\); a window has"),
        ({"inputs": TOKENS[:0]}, "at least one row"),
        ({"inputs": TOKENS[:, :0]}, "one step"),
        ({"inputs": TOKENS.int()}, r"inputs must be int64 of shape \(2, 3\), not int32 \(2, 3\)"),
        ({"inputs": REALS}, r"inputs must be int64 of shape \(2, 3\), not float32 \(2, 3, 3\)"),
        ({"inputs": TOKENS + 7}, "inputs reach from 7 to 7; the model's are 0 to 6"),
        ({"targets": TOKENS.T}, r"targets must be int64 of shape \(2, 3\), not int64 \(3, 2\)"),
        ({"targets": TOKENS[:1]}, r"not int64 \(1, 3\)"),
        ({"targets": TOKENS.double()}, "not float64"),
        ({"targets": TOKENS - 100}, "targets reach from -100 to -100; the model's are 0 to 6"),
        ({"targets": TOKENS + 7}, "targets reach from 7 to 7"),
        ({"ocean": torch.zeros(1, 8)}, r"ocean must be real of shape \(2, 8\), not float32 \(1, 8\)"),
        ({"reset": BITS[:, :1]}, r"reset must be bool of shape \(2, 3\), not bool \(2, 1\)"),
        ({"valid": BITS[:1]}, r"valid must be bool of shape \(2, 3\), not bool \(1, 3\)"),
        ({"valid": BITS.float()}, "valid must be bool"),
    ],
)
def test_a_window_of_tokens_that_is_none_is_refused(regime: str, change: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        run(make(2, 3, 8)._replace(**change), regime)


@pytest.mark.parametrize("regime", regimes.REGIMES)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"inputs": REALS[..., :2]}, r"inputs must be real of shape \(2, 3, 3\), not float32 \(2, 3, 2\)"),
        ({"inputs": REALS.long()}, "inputs must be real"),
        ({"targets": REALS[..., :1]}, r"targets must be real of shape \(2, 3, 2\), not float32 \(2, 3, 1\)"),
        ({"targets": REALS[..., 0]}, r"not float32 \(2, 3\)"),
        ({"targets": REALS[:1, ..., :2]}, r"not float32 \(1, 3, 2\)"),
    ],
)
def test_a_window_of_features_that_is_none_is_refused(regime: str, change: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        run(make(2, 3, 8, kind="features", head="regression")._replace(**change), regime)


@pytest.mark.parametrize("name", baselines.MODELS)
@pytest.mark.parametrize("wrong", ["inputs", "targets"])
def test_numbers_of_another_dtype_than_the_weights_are_refused(name: str, wrong: str) -> None:
    case = make(2, 3, 8, kind="features", head="regression")
    model = baselines.build(name, case.model.config, 3)
    given = {"inputs": case.inputs.float(), "targets": case.targets.float()}
    given[wrong] = given[wrong].double()
    sentence = f"{wrong} are float64 and the model's weights are float32; convert"
    with pytest.raises(ValueError, match=sentence):
        regimes.backward(model, "full", **given)
    if wrong == "inputs":
        with pytest.raises(ValueError, match=sentence):
            regimes.predict(model, given["inputs"])


@pytest.mark.parametrize("name", baselines.MODELS)
@pytest.mark.parametrize("kind,head", [("tokens", "tokens"), ("features", "regression")])
def test_baselines_train_under_the_same_call(name: str, kind: Any, head: Any) -> None:
    case = make(3, 6, 8, kind=kind, head=head, masked=True)
    model = baselines.build(name, case.model.config, window=6, seed=1).double()
    state = None
    for _ in range(2):
        loss, state = regimes.backward(
            model, "full", case.inputs, case.targets, state, case.reset, case.valid
        )
        assert math.isfinite(loss)
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", baselines.MODELS)
def test_baselines_mind_episodes_and_padding(name: str) -> None:
    """Two episodes in one window, padding between them, give what each gives alone."""
    case = make(2, 7, 8)
    model = baselines.build(name, case.model.config, window=7).double()
    reset, valid = torch.zeros(2, 7, dtype=torch.bool), torch.ones(2, 7, dtype=torch.bool)
    reset[:, 4] = True
    valid[0, 3] = False
    outputs, state = regimes.predict(model, case.inputs, None, reset=reset, valid=valid)
    first, _ = regimes.predict(model, case.inputs[:, :4])
    second, last = regimes.predict(model, case.inputs[:, 4:])
    assert error(outputs[:, :3], first[:, :3]) < 1e-12
    assert error(outputs[:, 4:], second) < 1e-12
    assert state.shape == last.shape
    assert state.numel() == 0 or error(state, last) < 1e-12


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_recurrent_state_is_carried(cell: str) -> None:
    case = make(3, 6, 8)
    model = baselines.build(cell, case.model.config, window=6).double()
    whole, last = regimes.predict(model, case.inputs)
    head, state = regimes.predict(model, case.inputs[:, :2])
    tail, last_tail = regimes.predict(model, case.inputs[:, 2:], state)
    assert error(torch.cat([head, tail], 1), whole) < 1e-12
    assert error(last_tail, last) < 1e-12


@pytest.mark.parametrize("D,L", [(64, 2), (128, 4)])
def test_baselines_have_equal_parameters(D: int, L: int) -> None:
    config = OceanConfig(65, 65, width=D, layers=L, heads=4)
    sizes = {n: sum(p.numel() for p in baselines.build(n, config, 64).parameters()) for n in baselines.MODELS}
    assert sizes.pop("transformer") == sizes["ocean"] + 64 * D  # its positions
    assert all(abs(size / sizes["ocean"] - 1) < 0.02 for size in sizes.values()), sizes


def test_a_window_longer_than_the_positions_is_refused() -> None:
    case = make(1, 5, 8)
    model = baselines.build("transformer", case.model.config, window=4)
    with pytest.raises(ValueError, match="positions for 4 steps but got 5"):
        model(case.inputs)
    with pytest.raises(ValueError, match="unknown model 'rnn'; choose ocean, transformer, lstm or gru"):
        baselines.build("rnn", case.model.config, window=4)
