"""From messages to steps to messages: what an active node does."""

from __future__ import annotations

import array
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from ocean_runtime import InputError, OceanError
from ocean_runtime.prefill import STEPS
from std_msgs.msg import Float32, Float32MultiArray, Header, String

from ocean_ros.conversation import Conversation
from ocean_ros.diagnostics import Counters, Second
from ocean_ros.fields import MissingNameError, Values
from ocean_ros.memory import Memory
from ocean_ros.parameters import Input, Settings
from ocean_ros.wiring import InputWire, Wiring, label

MAX_DELAY = 3600.0
"""Seconds; a message that waited longer than this did not: the clock was set meanwhile."""
MAX_PUBLISHERS = 256
"""How many publishers' sequence numbers an input remembers."""
QUIET = 1.0
"""Seconds between two log lines about the same kind of trouble."""


class Publisher(Protocol):
    """What publishes, as far as it is used here."""

    def publish(self, message: Any, /) -> None:
        """Send it."""

    def get_subscription_count(self) -> int:
        """How many listen."""


@dataclass
class Publishers:
    """Where results go."""

    outputs: list[Publisher]
    """One for each of the wiring's outputs."""
    ocean: Publisher
    surprise: Publisher | None
    """None where the model does not predict its input."""


@dataclass
class _Latest:
    message: Any
    received: float


class Stepper:
    """Steps the memory at each message, or at a fixed rate; a step that can't be right publishes nothing."""

    def __init__(
        self,
        *,
        wiring: Wiring,
        memory: Memory,
        publishers: Publishers,
        settings: Callable[[], Settings],
        inputs: Callable[[], Mapping[str, Input]],
        now: Callable[[], float],
        stamp: Callable[[], Any],
        logger: Any,
    ) -> None:
        """settings, inputs: the parameters as they are now. now: seconds. stamp: ROS time, as a message."""
        self.memory = memory
        self.rewire(wiring)
        self.counters, self.second = Counters(), Second()
        self._publishers, self._settings, self._inputs = publishers, settings, inputs
        self._now, self._stamp, self._logger = now, stamp, logger
        self._ocean = Float32MultiArray()
        self._told: dict[str, float] = {}
        self._drops = {wire.name: Drops() for wire in wiring.inputs}
        self.talk: Conversation | None = None
        if wiring.text:
            self.talk = Conversation(
                memory,
                say=self._say,
                surprise=self._surprised,
                stepped=self._stepped,
                most=self._until_ocean,
                failed=self._failed,
            )
        self.begin()

    def begin(self) -> None:
        """Forget the messages and times of before: at activation, and when time went backward."""
        self._latest: dict[str, _Latest] = {}
        self.last_input = self._now()
        """When the last input that could be used came, or the activation."""
        self._before_time = self.last_input == 0.0
        self._had_input = self._lapsed = False
        self._last_tick: float | None = None
        if self.talk is not None:
            self.talk.forget()

    def rewire(self, wiring: Wiring) -> None:
        """Another model is at work, on the same topics."""
        self.wiring = wiring
        self._wires = {wire.name: wire for wire in wiring.inputs}
        self._fallible = any(wire.fallible for wire in wiring.outputs)

    def restart_counts(self) -> None:
        """A subscription made anew has not dropped what was sent before it."""
        self._drops = {wire.name: Drops() for wire in self.wiring.inputs}

    def now(self) -> float:
        """Seconds. ROS time stands at zero until the first /clock: what came before that came just now."""
        now = self._now()
        if self._before_time and now:
            self._before_time, self._last_tick, self.last_input = False, None, self.last_input + now
            for latest in self._latest.values():
                latest.received += now
        return now

    def take(self, name: str, message: Any, info: Mapping[str, Any]) -> bool:
        """A message has come on an input -> whether there is text to be read, which `work` does."""
        self.counters.received += 1
        self.counters.dropped += self._drops[name].count(info)
        now = self.now()
        if self.talk is not None:
            self.last_input = now
            if not self.talk.hear(message.data, self._settings().max_pending):
                self.counters.refused += 1
                self._warn(
                    "refused", "a message is left out: more than max_pending tokens would wait to be read"
                )
            return True  # read later, in slices: other callbacks get their turn between them
        if self._wires[name].named and not self._has_names(name, message):
            return False
        self._latest[name] = _Latest(message, now - waited(info))
        if self._wires[name] is self.wiring.trigger:
            self._observe(now)
        return False

    def _has_names(self, name: str, message: Any) -> bool:
        """Whether a message holds the names that an input asks for; on /tf, others are no mistake."""
        wire = self._wires[name]
        try:
            wire.read(message)
        except MissingNameError as error:
            if not wire.optional:
                self._malformed(wire, error)
            return False
        except IndexError:
            pass  # counted when it is stepped
        return True

    def tick(self) -> None:
        """The time of a step at a fixed rate has come."""
        now = self.now()
        if self._last_tick is not None:
            self.counters.missed += max(0, round((now - self._last_tick) * self.wiring.rate) - 1)
        self._last_tick = now
        self._observe(now)

    def work(self) -> bool:
        """A slice of reading and writing text -> whether there is more to do."""
        return self.talk is not None and self.talk.work(self._settings())

    def apply(self, policy: str, why: str) -> None:
        """Let a policy decide about the state, and say so."""
        self._logger.warning(f"{why}: {self.memory.apply(policy)} (step {self.memory.stream.steps:,})")
        if policy != "keep" and self.talk is not None:
            self.talk.forget()

    def _observe(self, now: float) -> None:
        """One step from the latest inputs, unless one of them can't be used."""
        began = time.perf_counter()
        x = self._gather(now)
        if x is None:
            return
        settings, received = self._settings(), [latest.received for latest in self._latest.values()]
        newest = max(received)
        trained = self.wiring.trained
        silence, lapsed = newest - self.last_input, self._lapsed
        if self._had_input and (lapsed or 0 < trained.gap_after(settings.gap_after) < silence):
            self.counters.gaps += 1
            why = "an input older than in training" if lapsed else f"{silence:.1f} s without input"
            self.apply(trained.on_gap(settings.on_gap), f"after {why}")
        self.last_input, self._had_input, self._lapsed = newest, True, False
        self.second.age = max(self.second.age, now - min(received))
        try:
            self._step(x)
        except InputError as error:
            self.counters.not_finite += 1
            self._warn("not finite", f"nothing is published: {error}")
            return
        except (OceanError, OverflowError) as error:
            self._failed(error)
            return
        self._publish()
        if self._publishers.surprise is not None:
            surprise = self.memory.surprise(x)
            if surprise is not None:
                self._surprised(surprise)
        self._stepped(time.perf_counter() - began)

    def _step(self, x: Values) -> None:
        """One step, and the messages filled. Raises OceanError or OverflowError; the state is then as before."""
        stream = self.memory.stream
        before = stream.snapshot() if self._fallible else None
        output = self.memory.step(x)
        try:
            for wire in self.wiring.outputs:
                wire.write(output[wire.positions])
        except OverflowError:
            assert before is not None, "only the fields of fallible wires overflow"
            stream.resume(before)
            raise

    def _gather(self, now: float) -> Values | None:
        """The model's input from the latest messages; None, counted, where that can't be had."""
        x = np.empty(self.wiring.size)
        inputs = self._inputs()
        for wire in self.wiring.inputs:
            latest = self._latest.get(wire.name)
            limit = self.wiring.trained.max_age(inputs[wire.name].max_age)
            if wire.every and wire is self.wiring.trigger:
                limit = 0.0  # every message was asked for, however long it had to wait
            if latest is None or 0 < limit < now - latest.received:
                self.counters.stale += 1
                self._lapsed |= latest is not None and self.wiring.trained.lapsed(now - latest.received)
                self._warn(
                    "stale", f"nothing is published: input {wire.name} ({wire.topic}) is missing or too old"
                )
                return None
            try:
                x[wire.positions] = wire.read(latest.message)
            except IndexError as error:
                self._malformed(wire, error)
                return None
        return x

    def _malformed(self, wire: InputWire, error: IndexError) -> None:
        self.counters.malformed += 1
        self._warn("malformed", f"nothing is published: input {wire.name} ({wire.topic}): {error}")

    def _publish(self) -> None:
        header = None
        for wire, publisher in zip(self.wiring.outputs, self._publishers.outputs, strict=True):
            if wire.stamped:
                header = header or self._newest_header()
                wire.template.header.stamp = header.stamp
                if wire.frame_of_input:
                    wire.template.header.frame_id = header.frame_id
            publisher.publish(wire.template)

    def _newest_header(self) -> Header:
        """The header of the newest input used; where none has one, the time now without a frame."""
        headers = [self._latest[w.name].message.header for w in self.wiring.inputs if w.stamped]
        newest = max(headers, key=lambda h: (h.stamp.sec, h.stamp.nanosec), default=None)
        return newest or Header(stamp=self._stamp())

    def _say(self, piece: str) -> None:
        for publisher in self._publishers.outputs:
            publisher.publish(String(data=piece))

    def _surprised(self, value: float) -> None:
        publisher = self._publishers.surprise
        if publisher is not None and publisher.get_subscription_count():
            publisher.publish(Float32(data=value))

    def _stepped(self, seconds: float, count: int = 1) -> None:
        """So many steps were taken, in that time together."""
        self.counters.stepped += count
        self.second.times.extend([seconds / count] * count)
        if self.wiring.trigger is not None and self.wiring.rate and seconds * self.wiring.rate > 1:
            self.counters.missed += 1
        if self._ocean_wanted() and self.memory.stream.steps % self._settings().ocean_every == 0:
            self._publish_ocean()

    def _until_ocean(self) -> int:
        """How many steps may be taken before the ocean state is to be published."""
        every = self._settings().ocean_every
        return every - self.memory.stream.steps % every if self._ocean_wanted() else STEPS

    def _ocean_wanted(self) -> bool:
        return self._settings().ocean_every > 0 and self._publishers.ocean.get_subscription_count() > 0

    def _publish_ocean(self) -> None:
        ocean = self.memory.stream.ocean.reshape(-1)
        if len(self._ocean.data) != ocean.size:
            label(self._ocean, "ocean", ocean.size)
        self._ocean.data = array.array("f", ocean.astype(np.float32).tobytes())
        self._publishers.ocean.publish(self._ocean)

    def _failed(self, error: Exception) -> None:
        self.counters.failed += 1
        self._warn("failed", f"nothing is published: {error}")
        policy = self._settings().on_failed_step
        if policy != "keep":
            self.apply(policy, "after a failed step")

    def _warn(self, kind: str, text: str) -> None:
        """Say it, unless the same kind of trouble was told a moment ago."""
        now = time.monotonic()
        if now - self._told.get(kind, -QUIET) >= QUIET:
            self._told[kind] = now
            self._logger.warning(text)


class Drops:
    """Counts, by the publishers' own sequence numbers, the messages between the one taken last and this one."""

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}

    def count(self, info: Mapping[str, Any]) -> int:
        """How many were sent since the last message of this publisher and never seen; 0 where ROS can't tell."""
        number, publisher = info.get("publication_sequence_number"), info.get("publisher_gid")
        if not number or not publisher:
            return 0
        key = bytes(publisher["data"])
        last = self._last.pop(key, int(number) - 1)
        self._last[key] = number
        if len(self._last) > MAX_PUBLISHERS:
            del self._last[next(iter(self._last))]
        return max(0, int(number) - last - 1)


def waited(info: Mapping[str, Any]) -> float:
    """Seconds between a message's arrival at this machine and now; 0 where ROS can't tell."""
    received = info.get("received_timestamp") or 0
    delay = (time.time_ns() - received) * 1e-9 if received else 0.0
    return delay if 0.0 < delay < MAX_DELAY else 0.0
