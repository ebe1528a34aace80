"""Text through a stream: read it as it arrives, say what the model makes of it, and write more."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ocean_runtime.errors import InputError, SnapshotError
from ocean_runtime.prefill import STEPS
from ocean_runtime.sampling import log_softmax, sample
from ocean_runtime.stream import OceanStream
from ocean_runtime.tokenizer import Tokenizer


class Read(NamedTuple):
    """What one token told."""

    token: int
    text: str
    loss: float | None
    """-ln p(token), in nats, that the model gave it before it came; None for the first token of all."""
    step: int
    """Steps since the initial state, this one included."""


def tokenizer_of(stream: OceanStream) -> Tokenizer:
    """The stream's tokenizer; raises InputError where the model reads no text."""
    tokenizer = stream.model.contract.tokenizer
    if stream.model.contract.kind != "tokens" or tokenizer is None:
        raise InputError(f"this model's kind is {stream.model.contract.kind}: it reads no text")
    return tokenizer


def read_token(stream: OceanStream, token: int) -> Read:
    """Step once, and compare the token with what the last step predicted."""
    tokenizer, prediction = tokenizer_of(stream), stream.prediction
    stream.step(token)
    loss = None if prediction is None else -float(log_softmax(prediction)[token])
    return Read(token, tokenizer.tokens[token], loss, stream.steps)


def read_at_once(stream: OceanStream, tokens: Sequence[int]) -> list[Read] | None:
    """As `read_token` for each, in one call. None, and nothing has changed, where they must be read singly:

    see `OceanStream.run_at_once`.
    """
    tokenizer, first, before = tokenizer_of(stream), stream.prediction, stream.steps
    outputs = stream.run_at_once(tokens)
    if outputs is None:
        return None
    names = [t.name for t in stream.model.contract.outputs if t.predicts]
    predictions = [first, *(_named(output, names) for output in outputs)]
    return [
        Read(token, tokenizer.tokens[token], None if p is None else -float(log_softmax(p)[token]), step)
        for step, (token, p) in enumerate(zip(tokens, predictions, strict=False), start=before + 1)
    ]


def _named(output: Any, names: list[str]) -> NDArray[Any] | None:
    """Of what a step gave, the first of these outputs."""
    if not names:
        return None
    found: NDArray[Any] = output[names[0]] if isinstance(output, dict) else output
    return found


def read_tokens(stream: OceanStream, tokens: Sequence[int]) -> Iterator[Read]:
    """Read tokens that are all there: by the prefill graph beside the model, where one is."""
    for start in range(0, len(tokens), STEPS):
        part = tokens[start : start + STEPS]
        yield from read_at_once(stream, part) or (read_token(stream, token) for token in part)


def unread_of(stream: OceanStream) -> tuple[bytes, str]:
    """What a reader that was stopped had read but not stepped: bytes of a character, letters of a word.

    Raises SnapshotError where the stream's context, which a snapshot carries, holds something else.
    """
    found = stream.context.get("text")
    if found is None:
        return b"", ""
    try:
        return bytes.fromhex(found["bytes"]), str(found["word"])
    except (TypeError, KeyError, ValueError):
        raise SnapshotError(
            "the snapshot does not hold the text that was read and not stepped; restore an older one, or start anew"
        ) from None


def read_text(
    stream: OceanStream, chunks: Iterable[bytes], stopped: Callable[[], bool] = lambda: False
) -> Iterator[Read]:
    """Read UTF-8 as it arrives, cut anywhere: a character or word that a chunk leaves open is waited for.

    A chunk's tokens may be read together: `step` says which step a token was, `stream.steps` may be further.
    Bytes that are no UTF-8 are read as U+FFFD, the unknown token.

    stopped: asked once `chunks` has ended: whether the text goes on later. What is open is then left in the
    stream's context, and the next reader of the stream, or of one that was restored, begins with it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    reader = tokenizer_of(stream).reader()
    open_bytes, open_word = unread_of(stream)
    for chunk in chain([open_bytes], chunks):
        text = open_word + decoder.decode(chunk)
        open_word = ""
        _leave(stream, b"", "")
        yield from read_tokens(stream, reader.feed(text))
    if stopped():
        _leave(stream, decoder.getstate()[0], reader.held)
        return
    yield from read_tokens(stream, reader.feed(decoder.decode(b"", final=True)) + reader.flush())


def _leave(stream: OceanStream, open_bytes: bytes, open_word: str) -> None:
    """Leave what is read and not stepped with the stream, for the next snapshot."""
    if open_bytes or open_word:
        stream.context["text"] = {"bytes": open_bytes.hex(), "word": open_word}
    else:
        stream.context.pop("text", None)


def generate(
    stream: OceanStream, count: int, *, temperature: float = 1.0, top_k: int | None = None, seed: int = 0
) -> Iterator[str]:
    """Write `count` tokens, each fed back as the next input, piece by piece.

    A piece is given once its token is part of the state, so a state saved between two pieces goes on
    exactly there. A stream that has read nothing starts from a line break, or the unknown token.
    """
    tokenizer = tokenizer_of(stream)
    if count > 0 and not any(t.predicts for t in stream.model.contract.outputs):
        raise InputError("this model has no output that predicts the next token, so it can't write")
    if stream.prediction is None and count > 0:
        stream.step(tokenizer.encode("\n")[0])
    for _ in range(count):
        logits = stream.prediction
        assert logits is not None  # the stream has stepped, and a tokens model predicts its input
        token = sample(logits, step=stream.steps, seed=seed, temperature=temperature, top_k=top_k)
        stream.step(token)
        yield tokenizer.tokens[token]
