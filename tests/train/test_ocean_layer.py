"""`Ocean` in a model of one's own: exact gradients, nn.GRU's manners, and what PyTorch does with modules."""

from __future__ import annotations

import copy
import io
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_train.model import _fixed_decay
from ocean_train.ocean import Ocean
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

ORACLE = 1e-10
"""float64, relative to the largest value of a tensor: roundings are near 1e-15."""
CANCELLED = 1e-13
"""Relative to the largest value of all: what may be left of it, some 500 roundings, where a small gradient is the
difference of large numbers, as behind a LayerNorm of two numbers."""
Loop = Callable[[Ocean, Tensor, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor]]


def by_step(
    ocean: Ocean, x: Tensor, state: Tensor, reset: Tensor | None, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The definition: the plain loop over `step`, differentiated by PyTorch."""
    outputs = []
    for t in range(x.shape[1]):
        if reset is not None:
            state = torch.where(reset[:, t, None], torch.zeros_like(state), state)
        _, after = ocean.step(x[:, t], state)
        state = after if valid is None else torch.where(valid[:, t, None], after, state)
        outputs.append(ocean.norm(state))
    return torch.stack(outputs, 1), state


def layer(
    ocean: Ocean, x: Tensor, state: Tensor, reset: Tensor | None, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    output, after = ocean(x, state, reset=reset, valid=valid)
    return output, after


def shaken(ocean: Ocean, seed: int) -> Ocean:
    """No weight at its initial value, so that no gradient is zero by chance; in float64."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in ocean.double().parameters():
            p += 0.3 / (math.sqrt(p.shape[1]) if p.dim() == 2 else 1) * torch.randn(p.shape, generator=g)
    return ocean


def results(
    ocean: Ocean, run: Loop, x: Tensor, state: Tensor, reset: Tensor | None, valid: Tensor | None
) -> dict[str, Tensor]:
    """Output, state and all gradients of a model with an encoder before the Ocean and a head after it."""
    g = torch.Generator().manual_seed(5)
    M, D = ocean.input_size, ocean.width
    encoder, head = (torch.randn(n, m, generator=g).double() for n, m in ((M, M), (D, 3)))
    given = {"x": x.clone().requires_grad_(), "state": state.clone().requires_grad_()}
    ocean.zero_grad()
    output, after = run(ocean, torch.tanh(given["x"] @ encoder), given["state"], reset, valid)
    (torch.sin(output @ head).sum() + after.square().sum()).backward()
    found = {"output": output.detach(), "after": after.detach()}
    found |= {name: t.grad for name, t in given.items() if t.grad is not None}
    return found | {name: p.grad for name, p in ocean.named_parameters() if p.grad is not None}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    sizes = {name: value.abs().max().item() for name, value in expected.items()}
    floor = CANCELLED * max(sizes.values())
    for name, value in expected.items():
        assert (found[name] - value).abs().max().item() <= ORACLE * sizes[name] + floor, name


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


def test_a_second_derivative_is_refused_and_a_second_backward_pass_is_exact() -> None:
    ocean = shaken(Ocean(3, 8), 0)
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    output, state = ocean(x)
    (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="can't be differentiated a second time"):
        gradient.square().sum().backward()
    first, again = (torch.autograd.grad(state.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, again)
    penalty = torch.autograd.grad(
        by_step(ocean, x, ocean.initial_state(2), None, None)[0].sum(), x, create_graph=True
    )
    penalty[0].square().sum().backward()  # the way out that the sentence names
    assert x.grad is not None


class Own(nn.Module):
    """A model of one's own with an Ocean in the middle."""

    def __init__(self, ocean: Ocean) -> None:
        super().__init__()
        self.encoder, self.ocean, self.head = nn.Linear(3, ocean.input_size), ocean, nn.Linear(ocean.width, 2)

    def forward(self, x: Tensor, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output, state = self.ocean(torch.relu(self.encoder(x)), reset=reset)
        return self.head(output), state


def gradients(model: nn.Module, *x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(*x)[0].square().sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_compiling_the_model_around_it_changes_nothing() -> None:
    model = Own(Ocean(4, 8)).double()
    x, reset = torch.randn(2, 5, 3).double(), torch.rand(2, 5) < 0.3
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager")
    assert torch.equal(compiled(x, reset)[0], model(x, reset)[0])
    for found, expected in zip(gradients(compiled, x, reset), gradients(model, x, reset), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"function `_run`.*should not be traced"):
        torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)(x)


def test_exported_by_pytorch_it_is_the_plain_loop() -> None:
    model = Own(Ocean(4, 8)).double()
    x = torch.randn(2, 5, 3).double()
    _fixed_decay.cache_clear()
    program = torch.export.export(model, (x,), strict=False)
    torch.testing.assert_close(program.module()(x)[0], model(x)[0], rtol=1e-12, atol=1e-12)


def test_what_ran_in_inference_mode_can_be_trained() -> None:
    _fixed_decay.cache_clear()
    ocean = shaken(Ocean(3, 8), 0)
    x, state = torch.randn(2, 5, 3).double(), torch.zeros(2, 8).double()
    with torch.inference_mode():
        expected = ocean(x)[0]
    assert torch.equal(ocean(x)[0], expected)
    assert_equal(results(ocean, layer, x, state, None, None), results(ocean, by_step, x, state, None, None))


def test_autocast_leaves_the_state_in_the_weights_dtype() -> None:
    model = Own(Ocean(4, 8))
    x = torch.randn(2, 5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        output, state = model(x)
        one, after = model.ocean.step(torch.randn(2, 4).bfloat16(), state)
        output.sum().backward()
    assert output.dtype == torch.bfloat16  # the head's, which autocast decides
    assert state.dtype == one.dtype == after.dtype == torch.float32
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
    y = torch.randn(2, 5, 4)
    expected = model.ocean(y)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.ocean(y)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ocean = Ocean(3, 8).to(dtype)
    x = torch.randn(2, 5, 3).to(dtype)
    output, state = ocean(x)
    output.sum().backward()
    assert output.dtype == state.dtype == dtype
    expected, _ = by_step(ocean, x, ocean.initial_state(2), None, None)
    rounding = torch.finfo(dtype).eps
    assert (output - expected).abs().max() < 200 * rounding  # 5 steps of 2 layers, values of order 1
    assert Ocean(3, 8, dtype=dtype).norm.weight.dtype == dtype


def test_copies_state_dicts_and_files() -> None:
    torch.manual_seed(3)
    ocean = Ocean(3, 8)
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(ocean.parameters(), Ocean(3, 8).parameters(), strict=True))
    x = torch.randn(2, 5, 3)
    expected = ocean(x)[0]
    ocean(x)[0].sum().backward()
    assert torch.equal(copy.deepcopy(ocean)(x)[0], expected)
    file = io.BytesIO()
    torch.save(ocean.state_dict(), file)
    file.seek(0)
    other = Ocean(3, 8)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x)[0], expected)
    with torch.device("meta"):
        empty = Ocean(3, 8)
    empty.to_empty(device="cpu").reset_parameters()
    assert empty(x)[0].isfinite().all()


@pytest.mark.parametrize("how", ["hook", "module", "parametrisation", "functional_call"])
def test_changed_blocks_are_not_bypassed(how: str) -> None:
    """The fast chain reads weights and calls no module, so that what is changed there must turn it off."""
    ocean = shaken(Ocean(3, 8), 0)
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    plain, state = ocean(x)[0], ocean.initial_state(2)
    block = ocean.blocks[0]
    if how == "hook":
        block.w1.register_forward_hook(lambda module, args, out: out * 2)  # type: ignore[union-attr]
    elif how == "module":
        block.wq = nn.Sequential(block.wq, nn.Linear(8, 8).double())  # type: ignore[arg-type]
    elif how == "parametrisation":
        nn.utils.parametrizations.weight_norm(block.w1)  # type: ignore[arg-type]
        with torch.no_grad():
            block.w1.parametrizations.weight.original0.mul_(2)  # type: ignore[union-attr]
    else:
        swapped = {name: p.detach() * 1.1 for name, p in ocean.named_parameters()}
        found = torch.func.functional_call(ocean, swapped, (x,))[0]
        ocean.load_state_dict(swapped)
        assert torch.equal(found, ocean(x)[0]) and not torch.allclose(found, plain)
        return
    found = ocean(x)[0]
    torch.testing.assert_close(found, by_step(ocean, x, state, None, None)[0], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found, plain)


SHARED = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ocean_train import Ocean
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
ocean = Ocean(3, 8).double()
x = torch.randn(4, 5, 3).double()
shared = DistributedDataParallel(ocean)
shared(x[2 * rank : 2 * rank + 2])[0].square().mean().backward()
found = [p.grad.clone() for p in ocean.parameters()]
ocean.zero_grad()
ocean(x)[0].square().mean().backward()
assert all(torch.allclose(a, p.grad, rtol=1e-10, atol=1e-12) for a, p in zip(found, ocean.parameters()))
dist.destroy_process_group()
"""


def test_two_processes_share_a_batch(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "shared.py").write_text(SHARED)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(tmp_path / "shared.py")],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_nothing_until_it_is_used(environment: dict[str, str]) -> None:
    program = """
import sys, ocean_train
assert not {"torch", "numpy", "matplotlib"} & set(sys.modules), sorted(sys.modules)
assert set(ocean_train.__all__) <= set(dir(ocean_train))
for name in ocean_train.__all__:
    assert getattr(ocean_train, name).__doc__, name
from ocean_train import Ocean, bptt
assert Ocean is ocean_train.Ocean and "matplotlib" not in sys.modules
try:
    ocean_train.Pond
except AttributeError as error:
    assert "Pond" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_it_learns_to_remember_beside_other_layers() -> None:
    """The sign of the first input, told four steps later: only what flows through the state can tell it."""
    torch.manual_seed(0)
    model = Own(Ocean(4, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        x = torch.randn(32, 5, 3)
        loss = F.cross_entropy(model(x)[0][:, -1], (x[:, 0, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3  # ln 2 = 0.69 without memory
