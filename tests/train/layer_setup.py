"""An `Ocean` with a plain loop over its step to compare it with, for the tests of the layer."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from ocean_train.ocean import Ocean
from torch import Tensor, nn

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


class Own(nn.Module):
    """A model of one's own with an Ocean in the middle."""

    def __init__(self, ocean: Ocean) -> None:
        super().__init__()
        self.encoder, self.ocean, self.head = nn.Linear(3, ocean.input_size), ocean, nn.Linear(ocean.width, 2)

    def forward(self, x: Tensor, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output, state = self.ocean(torch.relu(self.encoder(x)), reset=reset)
        return self.head(output), state
