"""Text to token ids and back, for training and on the robot: one character a token, or one word.

Id 0 is always the unknown token, so no text can raise: what the training text did not hold is read as
unknown, and unknown is written as U+FFFD. Decoding what was encoded gives the text back up to unknowns.

Both tokenizers also read text as it arrives, in pieces cut anywhere: `Tokenizer.reader()`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

UNKNOWN = 0
REPLACEMENT = "\ufffd"
KINDS = ("char", "word")
PIECE = 1 << 20
"""Characters that are counted or encoded at once; a signal is acted on between two pieces."""

# Every text splits into these without remainder: a word, digits included, with the single space before
# it; the end of a contraction; one mark with the space before it; any other single space character.
# A word is cut after 40 letters, so that a text without spaces is read in bounded memory. No match
# changes once the next one has begun, which is what lets a reader work on a growing text.
_WORD = re.compile(r" ?\w{1,40}|'\w{1,40}| ?[^\w\s]|\s")


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary of single characters (`char`) or of word pieces (`word`).

    Raises ValueError for an unknown kind, an empty vocabulary, or a token listed twice.
    """

    kind: Literal["char", "word"]
    tokens: tuple[str, ...]
    """The text of each id; id 0 is U+FFFD and stands for anything unknown."""
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown tokenizer {self.kind!r}; choose {' or '.join(KINDS)}")
        if not all(isinstance(token, str) for token in self.tokens):
            raise ValueError("a tokenizer's tokens must be strings")
        if len(self.tokens) < 2 or self.tokens[UNKNOWN] != REPLACEMENT:
            raise ValueError("a tokenizer needs U+FFFD, the unknown token, first and at least one token more")
        ids = {token: i for i, token in enumerate(self.tokens)}
        if len(ids) != len(self.tokens):
            twice = next(token for token, n in Counter(self.tokens).items() if n > 1)
            raise ValueError(f"the token {twice!r} is listed twice in the tokenizer")
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def train(cls, text: str, kind: Literal["char", "word"] = "char", size: int | None = None) -> Tokenizer:
        """Learn a vocabulary of at most `size` tokens, the unknown one included, from `text`.

        The most frequent pieces are kept, and ordered by code point. `size` None keeps them all.
        """
        if size is not None and size < 2:
            raise ValueError(
                f"a vocabulary holds the unknown token and at least one more; got a size of {size}"
            )
        counts = Counter(_split(kind, text))
        del counts[REPLACEMENT]
        frequent = sorted(counts, key=lambda piece: (-counts[piece], piece))
        return cls(kind, (REPLACEMENT, *sorted(frequent[: None if size is None else size - 1])))

    @property
    def size(self) -> int:
        """Number of tokens V, the unknown one included."""
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """The token ids of a whole text."""
        return [self._ids.get(piece, UNKNOWN) for piece in _split(self.kind, text)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; raises ValueError for an id outside the vocabulary."""
        return "".join(self._text(int(i)) for i in ids)

    def reader(self) -> TokenReader:
        """A reader for text that arrives in pieces."""
        return TokenReader(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON values that `from_dict` reads back."""
        return {"kind": self.kind, "tokens": list(self.tokens)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Tokenizer:
        """Raises ValueError where `values` is no tokenizer."""
        tokens = values.get("tokens")
        if not isinstance(tokens, Sequence) or isinstance(tokens, str):
            raise ValueError("the tokenizer has no list of tokens")
        return cls(values.get("kind", ""), tuple(tokens))

    def _text(self, token: int) -> str:
        if not 0 <= token < self.size:
            raise ValueError(f"token {token} is outside the vocabulary, 0 to {self.size - 1}")
        return self.tokens[token]


class TokenReader:
    """Encodes a text that arrives in pieces: the ids of all `feed`s and the `flush` equal `encode` of it all.

    A word piece that later text could still lengthen is held back (at most 41 characters) until then.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._held = ""

    @property
    def held(self) -> str:
        """What later text could still lengthen."""
        return self._held

    def feed(self, text: str) -> list[int]:
        """The ids that are certain once `text` has been read."""
        text = self._held + text
        if self._tokenizer.kind == "char":
            return self._tokenizer.encode(text)
        last = 0
        for match in _WORD.finditer(text):
            last = match.start()
        self._held = text[last:]
        return self._tokenizer.encode(text[:last])

    def flush(self) -> list[int]:
        """The ids of what is held back: the text has ended."""
        held, self._held = self._held, ""
        return self._tokenizer.encode(held)


def _split(kind: str, text: str) -> Iterable[str]:
    """The pieces; between some of them a signal can be acted on."""
    if kind == "char":
        return chain.from_iterable(text[i : i + PIECE] for i in range(0, len(text), PIECE))
    return (match[0] for match in _WORD.finditer(text))
