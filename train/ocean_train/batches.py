"""From a text to the batches of a run. Every batch follows from the data, the seed and the step alone, so a
resumed run reads what the unbroken one would have read.

Axes: B batch, T steps of a window, N tokens of a split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from ocean_runtime.tokenizer import PIECE, Tokenizer
from torch import Tensor

from ocean_train.corpora import Corpus, CorpusError
from ocean_train.wording import counted

VALIDATION_SHARE = 0.1


class Batch(NamedTuple):
    """One training step's windows."""

    inputs: Tensor
    """(B, T) int64; of sensors (B, T, M)."""
    targets: Tensor
    """(B, T) int64: each input's successor; of sensors (B, T, K), or (B, T) int64 for classes."""
    carries: bool
    """Whether each row goes on where the previous step's row ended, so that its state is carried over."""
    reset: Tensor | None = None
    """(B, T) bool: where an episode begins, from a zero state."""
    valid: Tensor | None = None
    """(B, T) bool: False where a row is padded."""


@dataclass(frozen=True)
class Data:
    """A tokenized text, split in two contiguous parts."""

    name: str
    sha256: str
    """Digest of the text that both parts and the tokenizer come from."""
    tokenizer: Tokenizer
    training: Tensor
    """(N,) int64."""
    validation: Tensor
    """(N,) int64."""


def prepare(
    corpus: Corpus, kind: Literal["char", "word"], vocabulary: int | None, batch: int, window: int
) -> Data:
    """Split the text, the last tenth for validation, and tokenize it with what the first part teaches.

    A character or word that only the validation part holds is therefore unknown, as it would be on a robot.
    Raises CorpusError where a part is shorter than the windows asked for.
    """
    cut = len(corpus.text) - int(len(corpus.text) * VALIDATION_SHARE)
    training, validation = corpus.text[:cut], corpus.text[cut:]
    tokenizer = Tokenizer.train(training, kind, vocabulary)
    data = Data(
        corpus.name,
        corpus.sha256,
        tokenizer,
        _encoded(tokenizer, training),
        _encoded(tokenizer, validation),
    )
    shortest = min(len(data.training), len(data.validation))
    if shortest < window + 1:
        raise CorpusError(
            f"{corpus.name} is too short: its last tenth, for validation, holds "
            f"{counted(len(data.validation), 'token')} where a window of {window} needs {window + 1}; "
            "give a longer text or a smaller --window"
        )
    if len(data.training) // batch < window + 1:
        raise CorpusError(
            f"{corpus.name} is too short: {counted(len(data.training), 'token')} for training do not give "
            f"{counted(batch, 'row')} of a window of {window}; "
            "give a longer text, a smaller --batch or a smaller --window"
        )
    return data


def _encoded(tokenizer: Tokenizer, text: str) -> Tensor:
    """(N,) token ids, made piece by piece, so that no list of all is held and a signal is acted on in between."""
    reader = tokenizer.reader()
    ids = [
        torch.tensor(reader.feed(text[i : i + PIECE]), dtype=torch.int64) for i in range(0, len(text), PIECE)
    ]
    return torch.cat([*ids, torch.tensor(reader.flush(), dtype=torch.int64)])


def windows(tokens: Tensor, batch: int, window: int, seed: int) -> Callable[[int], Batch]:
    """Windows at random places of (N,) tokens, each to be read from a zero state: step -> Batch."""

    def at(step: int) -> Batch:
        starts = np.random.default_rng((seed, step)).integers(0, len(tokens) - window, size=batch)
        rows = tokens[torch.from_numpy(starts)[:, None] + torch.arange(window + 1)]  # (B, T + 1)
        return Batch(rows[:, :-1], rows[:, 1:], carries=False)

    return at


def streams(tokens: Tensor, batch: int, window: int) -> Callable[[int], Batch]:
    """B contiguous streams side by side, T steps further at each training step: step -> Batch.

    Row r is the r-th of B equal parts of the (N,) tokens, and continues itself from window to window; at the
    end of the parts all rows begin again from a zero state. What is left over at an end (fewer than T steps
    a row, fewer than B tokens in all) is not read.
    """
    length = (len(tokens) - 1) // batch
    rounds = length // window
    parts = tokens[: batch * length].view(batch, length)
    following = tokens[1 : batch * length + 1].view(batch, length)

    def at(step: int) -> Batch:
        here = slice(step % rounds * window, (step % rounds + 1) * window)
        return Batch(parts[:, here], following[:, here], carries=step % rounds > 0)

    return at
