"""Leaky integration: one definition, and every faster way to compute it gives the same numbers and gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from chain_setup import error, gradients, make, oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_train import bptt, regimes
from ocean_train.leak import leaky_scan
from ocean_train.model import OceanConfig, OceanTransformer, Relay, plain_relay, time_constants
from torch import Tensor

EXACT = 1e-12
"""Of float64, relative to the largest magnitude; its own rounding is near 1e-15."""
FAST: dict[str, Relay] = {
    "torch": partial(bptt.relay, use_native=False),
    "native": bptt.relay,
    "recomputed": partial(bptt.relay, keep=2),
}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert error(found[name], value) <= EXACT, name


def cut(model: OceanTransformer, every: int) -> Relay:
    """The plain loop whose state carries no gradient across every so many steps."""

    def relay(
        _: OceanTransformer, x: Tensor, ocean: Tensor, reset: Tensor | None, valid: Tensor | None
    ) -> Tensor:
        parts = []
        for t in range(0, x.shape[1], every):
            piece = [None if m is None else m[:, t : t + every] for m in (reset, valid)]
            parts.append(plain_relay(model, x[:, t : t + every], ocean, *piece))
            ocean = parts[-1][:, -1].detach()
        return torch.cat(parts, 1)

    return relay


def reads_cut(
    model: OceanTransformer, x: Tensor, ocean: Tensor, reset: Tensor | None, valid: Tensor | None
) -> Tensor:
    """What `detach` means with a leak: the oceans that are read are constants; what leaks has its gradient."""
    decay = model.decay()
    assert decay is not None
    ocean, oceans = ocean.detach(), []
    for t in range(x.shape[1]):
        if reset is not None:
            ocean = torch.where(reset[:, t, None], torch.zeros_like(ocean), ocean)
        after = decay * ocean + (1 - decay) * model.through_blocks(x[:, t], ocean.detach())
        ocean = after if valid is None else torch.where(valid[:, t, None], after, ocean)
        oceans.append(ocean)
    return torch.stack(oceans, 1)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_way_to_compute_it_has_the_gradient_of_the_plain_loop(data: st.DataObject) -> None:
    H, B, T, K, L = (data.draw(st.integers(*span)) for span in ((1, 4), (1, 9), (1, 9), (1, 9), (1, 3)))
    K += 5 // H  # a LayerNorm over fewer numbers leaves gradients that cancel to nothing
    masked, learned = data.draw(st.booleans(), "masked"), data.draw(st.booleans(), "learned")
    tau = data.draw(st.sampled_from([1.5, 8.0, 300.0]), "longest")
    case = make(
        B,
        T,
        H * K,
        L,
        H,
        masked=masked,
        learned=learned,
        max_time_constant=tau,
        seed=data.draw(st.integers(0, 99)),
    )
    expected = gradients(case, plain_relay)
    if learned and B * T > 0:
        assert expected["decay_logit"] is not None
    for relay in (*FAST.values(), partial(bptt.relay, keep=data.draw(st.integers(1, 9), "keep"))):
        assert_same(gradients(case, relay), expected)
    every = data.draw(st.integers(1, 9), "truncate")
    expected = gradients(case, cut(case.model, every))
    for relay in FAST.values():
        assert_same(gradients(case, partial(relay, truncate=every)), expected)
    expected = gradients(case, reads_cut)
    found = gradients(case, regimes.relay("detach"))
    assert found.pop("ocean") is None and expected.pop("ocean") is None
    assert_same(found, expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("truncate", [None, 3])
def test_the_serial_reference_agrees(masked: bool, truncate: int | None) -> None:
    case = make(3, 8, 12, 2, 3, masked=masked, max_time_constant=20.0)
    expected = gradients(case, bptt.relay if truncate is None else partial(bptt.relay, truncate=truncate))
    assert_same(oracle(case, truncate), expected)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 12, 24, 48, 96])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_any_number_of_heads(heads: int, dtype: torch.dtype) -> None:
    """Heads of 1, 2 and 4 numbers have loops of their own; a row of 96 is no whole number of float32 vectors' pairs."""
    exact = make(5, 7, 96, 2, heads, masked=True)
    expected = gradients(exact, plain_relay)
    if dtype == torch.float64:
        assert_same(gradients(exact, bptt.relay), expected)
        return
    case = make(5, 7, 96, 2, heads, masked=True, dtype=torch.float32)
    plain, fast = gradients(case, plain_relay), gradients(case, bptt.relay)
    for name, value in expected.items():
        own = max(error(plain[name].double(), value), 1e-7)  # type: ignore[union-attr]
        assert error(fast[name].double(), value) <= 8 * own, name  # type: ignore[union-attr]


@pytest.mark.parametrize("masked", [False, True])
def test_as_many_sweeps_as_steps_are_exact_and_fewer_are_nearly(masked: bool) -> None:
    case = make(3, 9, 8, masked=masked, max_time_constant=30.0)
    with torch.no_grad():
        exact = regimes.relay("detach")(
            case.model, case.model.embed(case.inputs), case.ocean, case.reset, case.valid
        )
        swept = [
            regimes.relay("detach", sweeps=n)(
                case.model, case.model.embed(case.inputs), case.ocean, case.reset, case.valid
            )
            for n in (1, 4, 9)
        ]
    errors = [error(s, exact) for s in swept]
    assert errors[2] <= EXACT
    assert errors[1] < errors[0]


@settings(max_examples=50, deadline=None)
@given(B=st.integers(1, 3), T=st.integers(1, 40), D=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_scan_is_the_loop(B: int, T: int, D: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    share, added = (torch.rand(B, T, D, generator=g, dtype=torch.float64) for _ in range(2))
    state, expected = torch.zeros(B, D, dtype=torch.float64), []
    for t in range(T):
        state = share[:, t] * state + added[:, t]
        expected.append(state)
    assert error(leaky_scan(share, added), torch.stack(expected, 1)) <= EXACT


def test_one_step_as_time_constant_is_the_relay_bit_for_bit() -> None:
    relay = OceanConfig(7, 7, width=8, layers=2, heads=2)
    assert OceanConfig(7, 7, width=8, layers=2, heads=2, max_time_constant=1.0) == relay
    assert not relay.leaky and "max_time_constant" not in relay.to_dict()
    model = OceanTransformer(relay)
    assert model.decay() is None
    tokens, ocean = torch.tensor([1, 2]), torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    _, after = model.step(tokens, ocean)
    assert torch.equal(after, model.through_blocks(model.embed(tokens), ocean))


def test_what_a_channel_keeps_falls_by_e_within_its_time_constant() -> None:
    config = OceanConfig(3, 3, width=16, layers=1, heads=2, max_time_constant=50.0)
    taus = time_constants(config)
    assert taus[0] == 1 and taus[-1] == pytest.approx(50) and taus == sorted(taus)
    decay = OceanTransformer(config).decay()
    assert decay is not None
    kept = decay[-1].item() ** 50
    assert kept == pytest.approx(0.364, abs=0.001)  # (1 - 1/50)^50; e^-1 = 0.368


@pytest.mark.parametrize(
    "wrong,said",
    [
        ({"max_time_constant": 0.5}, "from 1 step"),
        ({"max_time_constant": float("nan")}, "from 1 step"),
        ({"max_time_constant": 1e9}, "from 1 step"),
        ({"max_time_constant": "2.5s"}, "number of steps"),
        ({"learn_time_constants": True}, "only where there is a leak"),
    ],
)
def test_time_constants_that_make_no_sense_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OceanConfig(3, 3, width=8, **wrong)
