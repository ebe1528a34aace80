"""The definition: forward over a batch is step after step on each row alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_train.model import OceanConfig, OceanTransformer, position_loss

TOLERANCE = 1e-12  # float64, values of order 1; only the order of the sums of a product may differ


@st.composite
def cases(draw: st.DrawFn) -> tuple[OceanTransformer, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(model, inputs (B, T) or (B, T, M), o₀ (B, D), reset (B, T), valid (B, T)), all from drawn sizes."""
    heads = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(("tokens", "features")))
    size = draw(st.integers(2, 5))
    config = OceanConfig(
        inputs=size,
        outputs=size if kind == "tokens" else draw(st.integers(1, 4)),
        width=heads * draw(st.integers(1, 4)),
        layers=draw(st.integers(1, 3)),
        heads=heads,
        kind=kind,
        head="tokens" if kind == "tokens" else draw(st.sampled_from(("regression", "classes"))),
    )
    B, T, seed = draw(st.integers(1, 4)), draw(st.integers(1, 7)), draw(st.integers(0, 2**16))
    g = torch.Generator().manual_seed(seed)
    inputs = (
        torch.randint(size, (B, T), generator=g)
        if kind == "tokens"
        else torch.randn(B, T, size, generator=g, dtype=torch.float64)
    )
    ocean = torch.randn(B, config.width, generator=g, dtype=torch.float64)
    reset, valid = (torch.rand(B, T, generator=g) < share for share in (0.3, 0.7))
    return OceanTransformer(config, seed).double(), inputs, ocean, reset, valid


@given(cases(), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
@torch.no_grad()
def test_forward_is_step_after_step_on_each_row_alone(
    case: tuple[OceanTransformer, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    resets: bool,
    pads: bool,
) -> None:
    model, inputs, first, reset, valid = case
    outputs, last = model(inputs, first, reset=reset if resets else None, valid=valid if pads else None)
    for b in range(inputs.shape[0]):
        ocean = first[b : b + 1]
        for t in range(inputs.shape[1]):
            if resets and reset[b, t]:
                ocean = model.initial_ocean(1)
            if pads and not valid[b, t]:
                continue  # the ocean stays; the output means nothing
            output, ocean = model.step(inputs[b : b + 1, t], ocean)
            torch.testing.assert_close(outputs[b, t], output[0], rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(last[b], ocean[0], rtol=TOLERANCE, atol=TOLERANCE)


def test_without_an_ocean_a_stream_begins_at_zero() -> None:
    model = OceanTransformer(OceanConfig(5, 5, width=8, heads=2))
    inputs = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(inputs)[0], model(inputs, torch.zeros(1, 8))[0])
    assert not torch.equal(model(inputs)[0], model(inputs, torch.arange(8.0)[None])[0])


def test_a_seed_decides_the_weights_whatever_torch_was_seeded_with() -> None:
    config = OceanConfig(5, 5, width=8)
    torch.manual_seed(1)
    first = OceanTransformer(config, seed=3).state_dict()
    torch.manual_seed(2)
    same, other = OceanTransformer(config, seed=3).state_dict(), OceanTransformer(config, seed=4).state_dict()
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_the_read_path_is_awake_at_the_start() -> None:
    """The attention weight must vary between tokens and heads; small weights would leave it at one half."""
    model = OceanTransformer(OceanConfig(30, 30, width=64))
    _, ocean = model(torch.arange(30)[None])
    a = model.blocks[0].read_weight(model.embed(torch.arange(30)), ocean.expand(30, -1))
    assert a.std() > 0.1


def test_position_loss_of_each_head() -> None:
    outputs, targets = torch.randn(2, 3, 4), torch.randint(4, (2, 3))
    loss = position_loss(OceanConfig(4, 4), outputs, targets)
    expected = -outputs.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(loss, expected)
    regression = OceanConfig(7, 4, kind="features", head="regression")
    torch.testing.assert_close(position_loss(regression, outputs, outputs + 2), torch.full((2, 3), 4.0))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"heads": 3}, "3 heads do not divide the width 64"),
        ({"layers": 0}, "layers must be a positive integer, not 0"),
        ({"width": 64.0}, "width must be a positive integer, not 64.0"),
        ({"heads": True}, "heads must be a positive integer"),
        ({"kind": "pictures"}, "unknown kind 'pictures'; choose tokens or features"),
        ({"head": "verse"}, "unknown head 'verse'; choose tokens, regression or classes"),
        ({"outputs": 9}, "outputs = inputs"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        OceanConfig(**{"inputs": 5, "outputs": 5, **change})  # type: ignore[arg-type]
