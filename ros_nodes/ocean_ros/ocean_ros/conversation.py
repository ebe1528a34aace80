"""Text: messages are read token by token, replies written piece by piece, in slices of bounded time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from ocean_runtime import OceanError, OceanModel, Tokenizer
from ocean_runtime.prefill import STEPS
from ocean_runtime.text import generate, read_at_once, read_token, tokenizer_of

from ocean_ros.memory import Memory
from ocean_ros.parameters import Settings

EASE = 0.9
"""What is believed of a token's time falls by so much with each quicker one, and rises at once."""

PIECE = 4096
"""Characters of a message that are encoded at once."""


class Conversation:
    """Reads before it writes: a message that arrives during a reply ends the reply, and is read first."""

    def __init__(
        self,
        memory: Memory,
        *,
        say: Callable[[str], None],
        surprise: Callable[[float], None],
        stepped: Callable[[float, int], None],
        most: Callable[[], int],
        failed: Callable[[OceanError], None],
    ) -> None:
        """say: a piece of a reply. surprise: mean nats a token of a message.

        stepped: seconds that tokens took, and how many. most: how many may be read before `stepped` must hear.
        """
        self._memory = memory
        self._say, self._surprise, self._stepped, self._failed = say, surprise, stepped, failed
        self._most = most
        self._pace = Pace()
        self._singly = 0
        """Tokens in front that have to be read one by one."""
        self._messages: deque[deque[int]] = deque()
        self._waiting = 0
        self._losses = [0.0, 0.0]
        self._reply: Iterator[str] | None = None
        self._said = ""

    @property
    def waiting(self) -> int:
        """Tokens that have come and are not yet read."""
        return self._waiting

    def hear(self, text: str, most: int) -> bool:
        """Take a message to read -> False where more than `most` tokens would wait: it is left out."""
        tokens = encoded(tokenizer_of(self._memory.stream), text, most - self._waiting)
        if not tokens:
            return tokens is not None
        self._messages.append(deque(tokens))
        self._waiting += len(tokens)
        return True

    def forget(self) -> None:
        """Drop what is not yet read or said."""
        self._messages.clear()
        self._waiting, self._losses, self._reply, self._singly = 0, [0.0, 0.0], None, 0

    def work(self, settings: Settings) -> bool:
        """Read and write for at most a slice, and one token -> whether there is more to do.

        Where the model has a prefill graph, as many tokens are read in one call as the rest of the slice is
        believed to have room for.
        """
        until = time.perf_counter() + settings.slice
        while self._messages or self._reply is not None:
            began = time.perf_counter()
            if began >= until:
                return True
            reading, count = bool(self._messages), 1
            try:
                if reading:
                    count = self._read(until - began, settings)
                else:
                    self._write(settings)
            except OceanError as error:
                self._reply = None
                self._failed(error)
            else:
                seconds = time.perf_counter() - began
                if reading:
                    self._pace.took(self._memory.stream.model, seconds / count)
                self._stepped(seconds, count)
        return False

    def _read(self, seconds: float, settings: Settings) -> int:
        """Read from the first message for that time -> how many tokens."""
        stream, message = self._memory.stream, self._messages[0]
        self._reply = None
        room = self._room(len(message), seconds)
        reads = read_at_once(stream, list(islice(message, room))) if room > 1 else None
        if reads is None:
            self._singly = max(room, self._singly) - 1  # not to be tried again after each
        tokens = [message.popleft() for _ in reads or (0,)]
        self._waiting -= len(tokens)
        if not message:
            self._messages.popleft()
        try:
            for read in reads or (read_token(stream, tokens[0]),):
                if read.loss is not None:
                    self._losses[0] += read.loss
                    self._losses[1] += 1
        finally:
            if not message:
                self._heard(settings)
        return len(tokens)

    def _room(self, tokens: int, seconds: float) -> int:
        """How many of so many tokens to read in one call."""
        model = self._memory.stream.model
        if self._singly or model.prefill is None:
            return 1
        return min(tokens, self._most(), self._pace.room(model, seconds), STEPS)

    def _heard(self, settings: Settings) -> None:
        """A message has been read to its end."""
        total, count = self._losses
        self._losses = [0.0, 0.0]
        if count:
            self._surprise(total / count)
        if settings.reply_tokens > 0 and not self._messages and self._memory.stream.prediction is not None:
            self._said = ""
            self._reply = generate(
                self._memory.stream,
                settings.reply_tokens,
                temperature=settings.temperature,
                top_k=settings.top_k or None,
                seed=settings.seed,
            )

    def _write(self, settings: Settings) -> None:
        assert self._reply is not None
        piece = next(self._reply, None)
        if piece is None:
            self._reply = None
            return
        self._say(piece)
        stop = settings.reply_stop
        self._said = (self._said + piece)[-max(len(stop), 1) - len(piece) :]
        if stop and stop in self._said:
            self._reply = None


def encoded(tokenizer: Tokenizer, text: str, most: int) -> list[int] | None:
    """A text's tokens; None where there are more than `most`, found out without encoding all of them."""
    if tokenizer.kind == "char" and len(text) > most:
        return None
    reader, tokens = tokenizer.reader(), list[int]()
    for start in range(0, len(text), PIECE):
        tokens += reader.feed(text[start : start + PIECE])
        if len(tokens) > most:
            return None
    tokens += reader.flush()
    return tokens if len(tokens) <= most else None


class Pace:
    """What a token of a model takes, as far as the last ones told."""

    def __init__(self) -> None:
        self._model: OceanModel | None = None
        self._seconds = 0.0

    def took(self, model: OceanModel, seconds: float) -> None:
        """Seconds that a token took just now."""
        self._seconds = seconds if model is not self._model else max(seconds, EASE * self._seconds)
        self._model = model

    def room(self, model: OceanModel, seconds: float) -> int:
        """How many tokens fit into that time, one at least; one where nothing is known of the model."""
        if model is not self._model:
            return 1
        return max(1, int(seconds / self._seconds))
