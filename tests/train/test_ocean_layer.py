"""`Ocean` in a model of one's own: exact gradients, and nn.GRU's manners."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_setup import assert_equal, by_step, layer, results, shaken
from ocean_train.ocean import Ocean
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_gradients_equal_those_of_the_plain_loop(data: st.DataObject) -> None:
    def size(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    B, T, M, H, K, L = size(1, 6), size(1, 8), size(1, 5), size(1, 4), size(2, 6), size(1, 3)
    seed = size(0, 999)
    leak = data.draw(st.sampled_from((1.0, 3.0, 128.0)))
    resets, pads = data.draw(st.booleans()), data.draw(st.booleans())
    ocean = shaken(Ocean(M, H * K, layers=L, heads=H, max_time_constant=leak), seed)
    g = torch.Generator().manual_seed(seed)
    x, state = (torch.randn(s, generator=g).double() for s in ((B, T, M), (B, H * K)))
    reset = torch.rand(B, T, generator=g) < 0.3 if resets else None
    valid = torch.rand(B, T, generator=g) < 0.7 if pads else None
    expected = results(ocean, by_step, x, state, reset, valid)
    assert {"x", "state", "embed.weight"} <= expected.keys()
    found = results(ocean, layer, x, state, reset, valid)
    assert_equal(found, expected)

    time_first = copy.deepcopy(ocean)
    time_first.batch_first = False

    def transposed(
        ocean: Ocean, x: Tensor, state: Tensor, reset: Tensor | None, valid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        masks = {"reset": reset, "valid": valid}
        output, after = ocean(
            x.transpose(0, 1), state, **{k: None if m is None else m.T for k, m in masks.items()}
        )
        return output.transpose(0, 1), after

    assert_equal(results(time_first, transposed, x, state, reset, valid), expected)


@pytest.mark.parametrize("use_state", [False, True])
def test_unbatched_input_and_the_default_state(use_state: bool) -> None:
    ocean = shaken(Ocean(3, 8), 0)
    x = torch.randn(5, 3, dtype=torch.float64)
    state = torch.randn(8, dtype=torch.float64) if use_state else None
    masks = {"reset": torch.tensor([0, 0, 1, 0, 0]).bool(), "valid": torch.tensor([1, 0, 1, 1, 0]).bool()}
    output, after = ocean(x, state, **masks)
    rows = {name: mask[None] for name, mask in masks.items()}
    expected, last = ocean(x[None], (ocean.initial_state(1) if state is None else state[None]), **rows)
    assert torch.equal(output, expected[0]) and torch.equal(after, last[0])
    one, next_state = ocean.step(x[0], after)
    batched = ocean.step(x[:1], after[None])
    assert torch.equal(one, batched[0][0]) and torch.equal(next_state, batched[1][0])


def test_what_stands_in_padding_does_not_matter() -> None:
    ocean = shaken(Ocean(3, 8), 0)
    valid = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0]]).bool()
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    expected = ocean(x, valid=valid)[0][valid]
    x[~valid] = math.nan
    x.requires_grad_()
    output = ocean(x, valid=valid)[0][valid]
    assert torch.equal(output, expected)
    output.sum().backward()
    assert x.grad is not None and (x.grad[~valid] == 0).all() and x.grad.isfinite().all()


def test_rows_of_the_state_can_be_set_to_zero_in_place() -> None:
    """As loops for reinforcement learning do where an episode ended."""
    ocean = shaken(Ocean(3, 8), 0)
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(ocean(x)[0].sum(), x)
    output, state = ocean(x)
    state[:1] = 0
    assert torch.equal(torch.autograd.grad(output.sum(), x)[0], expected)


@pytest.mark.parametrize("sorted_by_length", [False, True])
def test_a_packed_sequence_is_taken_as_by_gru(sorted_by_length: bool) -> None:
    ocean, gru = shaken(Ocean(3, 8), 0), nn.GRU(3, 8).double()
    lengths = [5, 4, 2, 1] if sorted_by_length else [2, 5, 1, 4]
    rows = [torch.randn(n, 3, dtype=torch.float64) for n in lengths]
    state = torch.randn(4, 8, dtype=torch.float64)
    packed = pack_sequence(rows, enforce_sorted=sorted_by_length)
    output, last = ocean(packed, state)
    like, _ = gru(packed)
    assert torch.equal(output.batch_sizes, like.batch_sizes)
    padded, found = pad_packed_sequence(output, batch_first=True)
    assert found.tolist() == lengths
    for i, row in enumerate(rows):
        alone, after = ocean(row, state[i])
        torch.testing.assert_close(padded[i, : lengths[i]], alone, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(last[i], after, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="comes without reset and valid"):
        ocean(packed, reset=torch.zeros(4, 5, dtype=torch.bool))
    tall = pack_padded_sequence(torch.zeros(2, 2, 4).double(), torch.tensor([2, 1]), batch_first=True)
    with pytest.raises(ValueError, match="input_size is 3"):
        ocean(tall)


def test_no_rows_give_no_rows() -> None:
    output, state = Ocean(3, 8)(torch.zeros(0, 4, 3))
    assert output.shape == (0, 4, 8) and state.shape == (0, 8)
    output.sum().backward()


WRONG: dict[str, tuple[Callable[[Ocean], object], str]] = {
    "width of the state": (
        lambda o: o(torch.zeros(4, 6, 3), torch.zeros(4, 5)),
        r"the state is \(4, 5\) where x needs \(4, 8\); the width of this Ocean is 8",
    ),
    "a GRU's state": (
        lambda o: o(torch.zeros(4, 6, 3), torch.zeros(2, 4, 8)),
        "one state for all its layers",
    ),
    "an LSTM's state": (
        lambda o: o(torch.zeros(4, 6, 3), (torch.zeros(4, 8), torch.zeros(4, 8))),
        "the state is a tuple; an Ocean's is one tensor",
    ),
    "rank 1": (lambda o: o(torch.zeros(3)), r"x is of shape \(3,\); forward takes \(B, T, M\) or, unbatched"),
    "rank 3 in step": (
        lambda o: o.step(torch.zeros(4, 6, 3), torch.zeros(4, 8)),
        r"step takes \(B, M\) or, unbatched, \(M,\), with M = 3",
    ),
    "time first": (
        lambda o: o(torch.zeros(6, 4, 3), torch.zeros(4, 8)),
        "time and batch look swapped.*batch_first=False",
    ),
    "a mask with time first": (
        lambda o: o(torch.zeros(4, 6, 3), reset=torch.zeros(6, 4).bool()),
        "time and batch look swapped between x and reset",
    ),
    "a mask of numbers": (
        lambda o: o(torch.zeros(4, 6, 3), valid=torch.ones(4, 6)),
        r"valid must be bool of shape \(4, 6\).*convert it with .bool\(\)",
    ),
    "tokens": (lambda o: o(torch.zeros(4, 6, 3, dtype=torch.int64)), "takes real numbers.*nn.Embedding"),
    "not a tensor": (lambda o: o([[1.0, 2.0, 3.0]]), "x is list"),
    "input size": (lambda o: o(torch.zeros(4, 6, 2)), "last axis is 2, and this Ocean's input_size is 3"),
    "no steps": (lambda o: o(torch.zeros(4, 0, 3)), "has no steps"),
    "x in float64": (lambda o: o(torch.zeros(4, 6, 3).double()), r"x is float64 .* x.to\(torch.float32\)"),
    "state in float64": (
        lambda o: o.step(torch.zeros(4, 3), torch.zeros(4, 8).double()),
        r"the state is float64 .* state.to\(torch.float32\)",
    ),
    "another device": (
        lambda o: o.step(torch.zeros(4, 3), torch.zeros(4, 8, device="meta")),
        "the state is on meta and x on cpu",
    ),
    "heads": (lambda o: Ocean(3, 8, heads=3), "3 heads do not divide the width 8"),
    "no heads": (lambda o: Ocean(3, 8, heads=0), "heads must be a positive integer, not 0"),
    "no input": (lambda o: Ocean(0, 8), "input_size must be a positive integer, not 0"),
    "a width in words": (lambda o: Ocean(3, "8"), "width must be a positive integer, not '8'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_use_is_one_sentence(wrong: str) -> None:
    call, sentence = WRONG[wrong]
    with pytest.raises(ValueError, match=sentence) as caught:
        call(Ocean(3, 8))
    assert "\n" not in str(caught.value)
