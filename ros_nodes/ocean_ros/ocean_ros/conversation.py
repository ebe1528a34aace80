"""Text: messages are read token by token, replies written piece by piece, in slices of bounded time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

from ocean_runtime import OceanError
from ocean_runtime.text import generate, read_token, tokenizer_of

from ocean_ros.memory import Memory
from ocean_ros.parameters import Settings


class Conversation:
    """Reads before it writes: a message that arrives during a reply ends the reply, and is read first."""

    def __init__(
        self,
        memory: Memory,
        *,
        say: Callable[[str], None],
        surprise: Callable[[float], None],
        stepped: Callable[[float], None],
        failed: Callable[[OceanError], None],
    ) -> None:
        """say: a piece of a reply. surprise: mean nats a token of a message. stepped: seconds a token took."""
        self._memory = memory
        self._say, self._surprise, self._stepped, self._failed = say, surprise, stepped, failed
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
        tokens = deque(tokenizer_of(self._memory.stream).encode(text))
        if not tokens or self._waiting + len(tokens) > most:
            return not tokens
        self._messages.append(tokens)
        self._waiting += len(tokens)
        return True

    def forget(self) -> None:
        """Drop what is not yet read or said."""
        self._messages.clear()
        self._waiting, self._losses, self._reply = 0, [0.0, 0.0], None

    def work(self, settings: Settings) -> bool:
        """Read and write for at most a slice, and one token -> whether there is more to do."""
        until = time.perf_counter() + settings.slice
        while self._messages or self._reply is not None:
            began = time.perf_counter()
            if began >= until:
                return True
            try:
                if self._messages:
                    self._read(settings)
                else:
                    self._write(settings)
            except OceanError as error:
                self._reply = None
                self._failed(error)
            else:
                self._stepped(time.perf_counter() - began)
        return False

    def _read(self, settings: Settings) -> None:
        message = self._messages[0]
        token = message.popleft()
        self._waiting -= 1
        self._reply = None
        if not message:
            self._messages.popleft()
        try:
            loss = read_token(self._memory.stream, token).loss
            if loss is not None:
                self._losses[0] += loss
                self._losses[1] += 1
        finally:
            if not message:
                self._heard(settings)

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
