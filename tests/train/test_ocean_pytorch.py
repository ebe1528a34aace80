"""What PyTorch does with modules, done with an `Ocean`: it works, or is refused in one sentence."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from layer_setup import Own, assert_equal, by_step, layer, results, shaken
from ocean_train.model import _fixed_decay
from ocean_train.ocean import Ocean
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


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


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traced_or_transformed_it_is_the_plain_loop() -> None:
    """torch.jit.trace and torch.func, second derivatives included."""
    ocean = shaken(Ocean(3, 8), 0)
    x = torch.randn(2, 5, 3).double()

    def energy(x: Tensor) -> Tensor:
        return ocean(x)[0].square().sum()

    _fixed_decay.cache_clear()
    (expected,) = torch.autograd.grad(energy(x.requires_grad_()), x)
    close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)
    for clear in (True, False):
        if clear:
            _fixed_decay.cache_clear()
        close(torch.func.grad(energy)(x.detach()), expected)
        close(energy(x), energy(x.detach()))
    direction = torch.randn(2, 5, 3).double()
    _, turned = torch.func.jvp(torch.func.grad(energy), (x.detach(),), (direction,))
    assert turned.isfinite().all()
    moved = [torch.func.grad(energy)(x.detach() + h * direction) for h in (1e-5, -1e-5)]
    torch.testing.assert_close(turned, (moved[0] - moved[1]) / 2e-5, rtol=1e-5, atol=1e-6)
    many = torch.stack([x.detach(), 2 * x.detach()])
    close(torch.func.vmap(lambda x: ocean(x)[0])(many)[1], ocean(many[1])[0])
    script = torch.jit.trace(ocean, (x.detach(),))
    close(script(3 * x.detach())[0], ocean(3 * x.detach())[0])
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        ocean(torch.autograd.forward_ad.make_dual(x.detach(), direction))


def test_activation_checkpoints_change_nothing() -> None:
    ocean = shaken(Ocean(3, 8), 0)
    x = torch.randn(2, 5, 3).double().requires_grad_()
    (expected,) = torch.autograd.grad(ocean(x)[0].square().sum(), x)
    again = checkpoint(lambda x: ocean(x)[0], x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again.square().sum(), x)[0], expected)


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
import copy, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ocean_train import Ocean
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.ocean, self.head = nn.Linear(3, 6), Ocean(6, 8), nn.Linear(8, 2)

    def forward(self, x, state, reset):
        output, state = self.ocean(self.encoder(x).tanh(), state, reset=reset)
        return self.head(output), state

model = Model().double()
alone, shared = copy.deepcopy(model), DistributedDataParallel(model)
windows, resets = torch.randn(3, 4, 5, 3).double(), torch.rand(3, 4, 5) < 0.2
own, results = slice(2 * rank, 2 * rank + 2), []
for each, rows in ((shared, own), (alone, slice(None))):
    optimizer, state = torch.optim.SGD(each.parameters(), lr=0.1), None
    for x, reset in zip(windows, resets):
        output, state = each(x[rows], state, reset[rows])
        state = state.detach()
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
    results.append([state if each is shared else state[own], *each.parameters()])
for a, b in zip(*results):
    assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)
dist.destroy_process_group()
"""


def test_two_processes_train_a_model_as_one_does(tmp_path: Path, environment: dict[str, str]) -> None:
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
