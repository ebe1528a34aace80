"""How long a state depends on one input: known for models whose memory is known."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from ocean_train import baselines, influence
from ocean_train.batches import Data, prepare
from ocean_train.corpora import Corpus
from ocean_train.influence import Influence
from ocean_train.model import OceanConfig, OceanTransformer
from torch import nn


class Fading(nn.Module):
    """A layer whose output is its input, and what the ocean was, fading by `share` a step."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: torch.Tensor, ocean: torch.Tensor) -> torch.Tensor:
        return x + self.share * ocean


@pytest.fixture
def data() -> Data:
    letters = "".join(chr(97 + i) for i in np.random.default_rng(0).integers(26, size=30_000))
    return prepare(Corpus("letters", letters), "char", None, 4, 16)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_what_fades_by_a_known_share_is_measured_so(share: float, data: Data) -> None:
    size = data.tokenizer.size
    model = OceanTransformer(OceanConfig(size, size, width=16, layers=1, heads=1))
    model.blocks = nn.ModuleList([Fading(share)])
    found = influence.measure(model, data)
    assert found is not None
    steps = math.ceil(math.log(0.01) / math.log(share))
    ratio = found.distances[: steps + 1] / found.distances[0]
    # The state's own size varies between steps, so the relative distance follows the law within a factor.
    np.testing.assert_array_less(np.abs(np.log(ratio / share ** np.arange(steps + 1))), math.log(1.5))
    assert found.gone_after is not None and abs(found.gone_after - steps) <= 3


def test_a_sentence_in_steps_and_seconds(tmp_path: Path) -> None:
    fading = Influence(0.3 * 0.5 ** np.arange(20))
    assert fading.gone_after == 7
    assert (
        fading.describe(None)
        == "one changed input moves the state by 30% of its size; 1% of that is left after 7 steps"
    )
    assert fading.describe(50.0).endswith("7 steps (0.14 s)")
    lasting = Influence(np.array([0.2, 0.15, 0.1]))
    assert lasting.gone_after is None
    assert lasting.describe(10.0).endswith("after 2 steps (0.2 s) 50% is left")
    influence.plot({"ocean": fading, "gru": lasting}, tmp_path / "a.png", 50.0)
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_model_without_a_state_has_no_answer_whatever_its_window(data: Data) -> None:
    size = data.tokenizer.size
    config = OceanConfig(size, size, width=16, layers=1, heads=1)
    assert influence.measure(baselines.build("transformer", config, 8, 0), data) is None


def test_short_data_has_no_answer(data: Data) -> None:
    size = data.tokenizer.size
    model = OceanTransformer(OceanConfig(size, size, width=16, layers=1, heads=1))
    assert influence.measure(model, dataclasses.replace(data, validation=data.validation[:50])) is None
