"""Batches: split, windows at random places, streams that go on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ocean_train.batches import prepare, streams, windows
from ocean_train.corpora import Corpus, CorpusError


def test_the_tokenizer_knows_only_what_training_text_holds() -> None:
    data = prepare(Corpus("t", "ab" * 450 + "abcabcabcd" * 10), "char", None, 2, 8)
    assert data.tokenizer.tokens == ("\ufffd", "a", "b")
    assert len(data.training) == 900
    assert data.tokenizer.decode(data.validation[:10].tolist()) == "ab\ufffdab\ufffdab\ufffd\ufffd"


@pytest.mark.parametrize("kind", ["char", "word"])
def test_a_text_is_encoded_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    corpus = Corpus("t", "the sea, it's the SEA!  and so\n\non; " * 40)
    whole = prepare(corpus, kind, None, 2, 8)
    for module in ("ocean_train.batches", "ocean_runtime.tokenizer"):
        monkeypatch.setattr(f"{module}.PIECE", 7)
    pieces = prepare(corpus, kind, None, 2, 8)
    assert pieces.tokenizer == whole.tokenizer
    for part in ("training", "validation"):
        assert torch.equal(getattr(pieces, part), getattr(whole, part))
    assert whole.training.tolist() == whole.tokenizer.encode(
        corpus.text[: len(corpus.text) - len(corpus.text) // 10]
    )


def test_words_are_bounded() -> None:
    data = prepare(Corpus("t", "the sea, the sea! and so on. " * 100), "word", 5, 2, 8)
    assert data.tokenizer.size == 5
    assert data.tokenizer.kind == "word"


@pytest.mark.parametrize(
    ("length", "batch", "sentence"),
    [(80, 1, "last tenth, for validation, holds 8 tokens where a window of 16"), (200, 32, "32 rows")],
)
def test_a_text_shorter_than_its_windows_is_refused(length: int, batch: int, sentence: str) -> None:
    with pytest.raises(CorpusError, match=sentence):
        prepare(Corpus("t", "x" * length), "char", None, batch, 16)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 30), st.integers(0, 2**32), st.integers(0, 10**6))
def test_windows_are_pieces_of_the_text_and_follow_from_seed_and_step(
    batch: int, window: int, extra: int, seed: int, step: int
) -> None:
    tokens = torch.arange(window + 1 + extra)
    found = windows(tokens, batch, window, seed)(step)
    inputs, targets = found.inputs, found.targets
    assert inputs.shape == targets.shape == (batch, window)
    assert not found.carries
    assert torch.equal(targets, inputs + 1)  # the tokens count up, so each is its predecessor's successor
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(window))
    assert torch.equal(inputs, windows(tokens, batch, window, seed)(step).inputs)


def test_windows_differ_between_steps_and_seeds() -> None:
    tokens = torch.arange(10_000)
    first = windows(tokens, 4, 8, seed=0)
    assert not torch.equal(first(0).inputs, first(1).inputs)
    assert not torch.equal(first(0).inputs, windows(tokens, 4, 8, seed=1)(0).inputs)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 4), st.integers(0, 12))
def test_each_row_of_a_stream_continues_itself(batch: int, window: int, rounds: int, extra: int) -> None:
    tokens = torch.arange(batch * window * rounds + 1 + extra)
    at = streams(tokens, batch, window)
    total = (len(tokens) - 1) // batch // window
    seen = [at(step) for step in range(total)]
    assert [b.carries for b in seen] == [False] + [True] * (total - 1)
    whole = torch.cat([b.inputs for b in seen], dim=1)  # (B, T of all)
    assert torch.equal(whole, whole[:, :1] + torch.arange(whole.shape[1]))
    assert torch.equal(torch.cat([b.targets for b in seen], dim=1), whole + 1)
    assert len(whole.unique()) == whole.numel()  # no token is read twice
    again = at(total)
    assert not again.carries
    assert torch.equal(again.inputs, seen[0].inputs)
