"""The exact chain: the oracle, autograd over the plain loop, and both fast versions give the same gradient."""

from __future__ import annotations

import inspect
import textwrap
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from chain_setup import Case, Results, error, gradients, make, oracle, share, yardstick
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_train import bptt, native, regimes
from ocean_train.model import Block, OceanConfig, OceanTransformer, Relay, plain_relay
from torch import Tensor

ORACLE = 1e-10  # float64: the oracle's own rounding is near 1e-15

TORCH: Relay = partial(bptt.relay, use_native=False)
CHUNKED: Relay = partial(bptt.relay, keep=2)
FAST = {"torch": TORCH, "native": bptt.relay, "recomputed": CHUNKED}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    errors = {name: error(found[name].double(), expected[name].double()) for name in expected}
    worst = max(errors, key=lambda name: errors[name])
    print(f"largest relative error {errors[worst]:.1e} ({worst}), tolerance {tolerance:.0e}")
    assert errors[worst] < tolerance, worst


def test_the_native_loops_are_built() -> None:
    assert native.available()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_oracle_and_fast_chains_match_autograd(layers: int, heads: int, masked: bool) -> None:
    case = make(3, 6, 16, layers, heads, masked=masked)
    expected = gradients(case, plain_relay)
    assert_same(oracle(case), expected, ORACLE)
    for relay in FAST.values():
        assert_same(gradients(case, relay), expected, ORACLE)


@pytest.mark.parametrize(
    "kind,head", [("features", "regression"), ("features", "classes"), ("tokens", "classes")]
)
def test_other_inputs_and_heads_match_autograd(kind: Any, head: Any) -> None:
    case = make(3, 5, 8, kind=kind, head=head, masked=True)
    expected = gradients(case, plain_relay)
    assert_same(oracle(case), expected, ORACLE)
    assert_same(gradients(case, bptt.relay), expected, ORACLE)


@pytest.mark.parametrize("leak", [1.0, 30.0])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", [(32, 16, 64, 2, 4), (5, 9, 40, 3, 5), (50, 6, 128, 2, 4)])
def test_float32_costs_no_more_than_float32_must(
    sizes: tuple[int, ...], masked: bool, leak: float, record_property: Callable[[str, object], None]
) -> None:
    case = make(*sizes, masked=masked, dtype=torch.float32, max_time_constant=leak)
    expected, limits = yardstick(case, partial(gradients, relay=plain_relay))
    for name, relay in FAST.items():
        assert_within(gradients(case, relay), expected, limits, name, record_property)


def assert_within(
    found: Results,
    expected: Results,
    limits: dict[str, float],
    what: str,
    record_property: Callable[[str, object], None],
) -> None:
    used, name = share(found, expected, limits)
    print(f"{what}: {used:.2f} of the limit {limits[name]:.1e} ({name})")
    record_property("share of the limit", used)
    assert used < 1, name


WRONG = {
    "a residual path dropped": (
        "torch_backward",
        "dx = dx + _normalise_backward(dh",
        "dx = _normalise_backward(dh",
    ),
    "the sigmoid's slope without its second part": ("torch_backward", "ds = a * (1 - a) *", "ds = a *"),
    "the leak's part dropped": ("torch_backward", "back = back + leak.decay * d_ocean", "back = back"),
    "LayerNorm without the mean of its gradient": (
        "_normalise_backward",
        "d - d.mean(-1, keepdim=True)",
        "d",
    ),
    "LayerNorm without its second part": (
        "_normalise_backward",
        " - hat * (d * hat).mean(-1, keepdim=True)",
        "",
    ),
    "the ocean's side of the weights dropped": ("weight_gradients", "dwqkv[:, D:] += ", "_ = "),
    "a wrong sign of the key's gradient": ("torch_backward", "[dq, -dk_ocean,", "[dq, dk_ocean,"),
    "a wrong sign of the value's gradient": ("torch_backward", "dy - dv_ocean", "dy + dv_ocean"),
    "resets one step late, going back": ("torch_backward", "stop[t, :, None]", "stop[t - 1, :, None]"),
    "resets one step late, going on": ("torch_forward", "reset[t, :, None]", "reset[t - 1, :, None]"),
    "padding one step late": ("torch_forward", "valid[t, :, None]", "valid[t - 1, :, None]"),
    "gelu by its tanh": (
        "torch_forward",
        "0.5 * (1 + torch.erf(h * math.sqrt(0.5)))",
        "0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))",
    ),
    "an epsilon of 1e-4": ("_normalise", "LAYER_NORM_EPS", "10 * LAYER_NORM_EPS"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_operator_is_far_beyond_the_limit(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit allows for rounding and for nothing else: written wrong, the chain exceeds it many times over."""
    function, text, instead = WRONG[wrong]
    case = make(5, 9, 40, 3, 5, masked=True, dtype=torch.float32, max_time_constant=30.0)
    expected, limits = yardstick(case, partial(gradients, relay=plain_relay))
    source = textwrap.dedent(inspect.getsource(getattr(bptt, function)))
    assert source.count(text) == 1, f"{function} no longer has {text!r} once; write this case anew"
    scope = vars(bptt).copy()
    exec(source.replace(text, instead), scope)  # noqa: S102 - our own function, one expression changed
    monkeypatch.setattr(bptt, function, scope[function])
    used, name = share(gradients(case, TORCH), expected, limits)
    print(f"{wrong}: {used:,.0f} times the limit ({name})")
    assert used > 20


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_sizes(data: st.DataObject) -> None:
    H, B, T, K, L = (data.draw(st.integers(*span)) for span in ((1, 4), (1, 15), (1, 7), (3, 11), (1, 3)))
    case = make(B, T, H * K, L, H, masked=data.draw(st.booleans()), seed=data.draw(st.integers(0, 99)))
    keep = data.draw(st.integers(1, 8), "keep")
    expected = gradients(case, plain_relay)
    assert_same(oracle(case), expected, ORACLE)
    for relay in (TORCH, bptt.relay, partial(bptt.relay, keep=keep)):
        assert_same(gradients(case, relay), expected, ORACLE)


@pytest.mark.parametrize("truncate", [1, 3])
@pytest.mark.parametrize("name", FAST)
def test_a_truncated_window_matches_the_oracle(name: str, truncate: int) -> None:
    case = make(3, 7, 8, masked=True)
    relay = partial(FAST[name], truncate=truncate)
    assert_same(gradients(case, relay), oracle(case, truncate=truncate), ORACLE)


@pytest.mark.parametrize("name", FAST)
def test_truncation_lets_exactly_nothing_through(name: str) -> None:
    case = make(2, 6, 8)
    x = case.model.embed(case.inputs).detach().requires_grad_()
    oceans = FAST[name](case.model, x, case.ocean, None, None, truncate=3)  # type: ignore[call-arg]
    oceans[:, 3:].square().sum().backward()
    assert x.grad is not None
    assert (x.grad[:, :3] == 0).all()
    assert (x.grad[:, 3:] != 0).all()


def from_constants(
    model: OceanTransformer, x: Tensor, ocean: Tensor, reset: Tensor | None, valid: Tensor | None
) -> Tensor:
    """What `detach` means: every step by itself, from the plain loop's oceans as constants."""
    with torch.no_grad():
        oceans = plain_relay(model, x, ocean, reset, valid)
    before = torch.cat([ocean.detach()[:, None], oceans[:, :-1]], 1)
    before = before if reset is None else torch.where(reset[..., None], 0.0, before)
    after = model.advance(x, before)
    return after if valid is None else torch.where(valid[..., None], after, before)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_detach_takes_the_oceans_as_constants(data: st.DataObject) -> None:
    H, B, T, L = (data.draw(st.integers(*span)) for span in ((1, 3), (1, 9), (1, 7), (1, 3)))
    case = make(B, T, H * 4, L, H, masked=data.draw(st.booleans()), seed=data.draw(st.integers(0, 99)))
    expected = gradients(case, from_constants)
    found = gradients(case, regimes.relay("detach"))
    assert expected.pop("ocean") is None and found.pop("ocean") is None
    assert_same(found, expected, ORACLE)
    for keep in (None, data.draw(st.integers(1, 8), "keep")):
        found = gradients(case, regimes.relay("full", truncate=1, keep=keep))
        del found["ocean"]  # which gets a gradient from its first reader, in `full` alone
        assert_same(found, expected, ORACLE)


def test_no_gradient_wanted_gives_the_same_oceans() -> None:
    case = make(5, 6, 24, 3, masked=True)
    expected, _ = case.model(case.inputs, case.ocean, reset=case.reset, valid=case.valid)
    with torch.no_grad():
        for relay in (TORCH, bptt.relay):
            found, _ = case.model(case.inputs, case.ocean, reset=case.reset, valid=case.valid, relay=relay)
            assert error(found, expected) < ORACLE
    found, _ = regimes.predict(case.model, case.inputs, case.ocean, reset=case.reset, valid=case.valid)
    assert error(found, expected) < ORACLE


def test_results_do_not_depend_on_earlier_windows_or_on_grouping(
    record_property: Callable[[str, object], None],
) -> None:
    """Bit for bit where the window is the same: memory is reused between them. Rows are computed in blocks."""
    case = make(7, 5, 32, dtype=torch.float32)
    first = gradients(case, bptt.relay)
    gradients(make(11, 8, 32, masked=True, dtype=torch.float32), bptt.relay)
    again = gradients(case, bptt.relay)
    assert all(torch.equal(first[name], again[name]) for name in first)
    x = case.model.embed(case.inputs)
    alone = [bptt.relay(case.model, x[i : i + 1], case.ocean[i : i + 1], None, None) for i in range(7)]
    for found in (torch.cat(alone), bptt.relay(case.model, x, case.ocean, None, None)):
        assert_within({"oceans": found}, *yardstick(case, plain_oceans), "oceans", record_property)


def plain_oceans(case: Case) -> Results:
    with torch.no_grad():
        return {"oceans": plain_relay(case.model, case.model.embed(case.inputs), case.ocean, None, None)}


def test_a_long_window_is_recomputed_to_the_same_gradient() -> None:
    case = make(2, 8192, 8, masked=True)
    expected = gradients(case, bptt.relay)
    assert_same(gradients(case, partial(bptt.relay, keep=100)), expected, ORACLE)


def test_two_threads_give_the_same_bits_run_to_run(record_property: Callable[[str, object], None]) -> None:
    case = make(9, 5, 32, masked=True, dtype=torch.float32)
    expected, limits = yardstick(case, partial(gradients, relay=plain_relay))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first, again = gradients(case, bptt.relay), gradients(case, bptt.relay)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert_within(first, expected, limits, "two threads", record_property)


def test_dropped_windows_leave_no_memory_behind() -> None:
    case = make(2, 3, 8)
    oceans = bptt.relay(case.model, case.model.embed(case.inputs), case.ocean, None, None)
    tape = weakref.ref(oceans.grad_fn.tape)  # type: ignore[union-attr]
    del oceans
    assert tape() is None


@pytest.mark.parametrize("name", FAST)
def test_a_kept_graph_is_recomputed_for_each_further_backward_pass(name: str) -> None:
    """A tape serves one pass, which overwrites it."""
    case = make(2, 5, 8, masked=True)
    loss = FAST[name](case.model, case.model.embed(case.inputs), case.ocean, case.reset, case.valid).sum()
    passes = []
    for keep in (True, True, False):
        case.model.zero_grad()
        loss.backward(retain_graph=keep)
        passes.append([p.grad for p in case.model.blocks.parameters()])
    for first, second, third in zip(*passes, strict=True):
        assert first is not None and torch.equal(first, second) and torch.equal(first, third)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_what_does_not_fit_is_refused() -> None:
    case = make(2, 3, 8)
    x = case.model.embed(case.inputs)
    with pytest.raises(ValueError, match=r"the ocean must be \(2, 8\) in the model's dtype"):
        bptt.relay(case.model, x, case.ocean.float(), None, None)
    with pytest.raises(ValueError, match=r"reset must be \(2, 3\) bool"):
        bptt.relay(case.model, x, case.ocean, torch.zeros(2, 3), None)
    with pytest.raises(ValueError, match="at least one step"):
        bptt.relay(case.model, x[:, :0], case.ocean, None, None)


def test_blocks_of_ones_own_go_through_the_plain_loop() -> None:
    """The chain's backward pass is written out for the model's own block; another must not be taken for it."""

    class Halved(Block):
        @staticmethod
        def _attend(q: Tensor, k: Tensor, k_ocean: Tensor) -> Tensor:
            return Block._attend(q, k, k_ocean) / 2

    model = OceanTransformer(OceanConfig(7, 7, width=8, layers=2, heads=2), seed=0)
    inputs = torch.randint(7, (3, 5), generator=torch.Generator().manual_seed(0))
    own, _ = model(inputs, relay=bptt.relay)
    for block in model.blocks:
        block.__class__ = Halved
    outputs, _ = model(inputs, relay=bptt.relay)
    assert torch.equal(outputs, model(inputs, relay=plain_relay)[0])
    assert not torch.allclose(outputs, own)
    with pytest.raises(ValueError, match="not for variants"):
        model(inputs, relay=partial(bptt.relay, truncate=2))
