"""The node under load while something breaks every second; each thing it publishes is checked, bit for bit.

    python tests/soak/test_node_faults.py [SECONDS] [SEED]

A client sends numbered inputs, about 200 a second, and steps an oracle, the runtime's own stream, over each
input that the node must take. An output carries the number of its input, so it is compared with what the
oracle gave there; ocean states are compared too. After a kill the node says which step it restored: the file
must hold the oracle's state at that step, and the oracle goes on from there with it. Nothing but the node's
own words says what was lost.

Full and read-only disks are real ones: the state's folder is a tmpfs of 256 kB, which needs root to mount.
Half of the node's lives run on ROS time, which the client's /clock gives, so that it can jump.
"""

# ruff: noqa: E402
from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("runtime", "ros_nodes/ocean_ros", "tests/ros")]
pytest.importorskip("rclpy")

from builtin_interfaces.msg import Time
from ocean_runtime import OceanError, OceanModel, Snapshot
from ocean_runtime import snapshot as snapshots
from robot import BEST_EFFORT, RELIABLE, Client, OceanProcess, new_domain
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray
from std_srvs.srv import Trigger

MODEL = ROOT / "tests" / "fixtures" / "tiny_sensors.onnx"
RATE = 200.0
"""Messages a second."""
SAVE_PERIOD = 0.1
DISK = 256 * 1024
"""Bytes of the state's file system."""
GAP = 0.5
"""Seconds without input that count as a gap."""
MAX_WAITING = 300
"""Messages that may wait for their answer: fewer than a reliable topic of depth 1,000 remembers."""
HISTORY = 50_000
"""Steps whose states the oracle remembers: those of some minutes."""
DDS = {
    "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
    # A killed process leaves its shared memory behind; that of hundreds would be DDS's own trouble.
    "FASTDDS_BUILTIN_TRANSPORTS": "UDPv4",
}
PATIENCE = 60.0
"""Seconds until a fault counts as not recovered from."""


class Soak:
    """A node, the client that loads it, and the oracle that knows what it must say."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder, self.disk = folder, folder / "disk"
        self.disk.mkdir()
        mount("-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", self.disk)
        self.state = self.disk / "state.safetensors"
        self.models = [folder / "a.onnx", folder / "b.onnx"]
        for path in self.models:
            path.write_bytes(MODEL.read_bytes())
        self.oracle = OceanModel.load(MODEL).stream()
        elements = [element.name for element in self.oracle.model.contract.inputs[0].elements]
        fields = [f"{name}=position[{i}]" for i, name in enumerate(elements)]
        low = np.array([element.reference for element in self.oracle.model.contract.inputs[0].elements])
        self.centre: list[float] = low.tolist()

        self.expected: OrderedDict[int, tuple[int, bytes]] = OrderedDict()
        """By the number of a message that is not yet answered: the step it makes, and the output."""
        self.late = self.expected.copy()
        """The same, of those that a killed node may have answered with its last breath."""
        self.oceans: OrderedDict[bytes, int] = OrderedDict()
        """The ocean states that may be published, and the steps that they follow."""
        self.history: OrderedDict[tuple[int, bytes], Snapshot] = OrderedDict()
        """Every state of the past, by its step and content."""
        self.sent = self.answered = self.checked_oceans = self.seen = self.lives = 0
        self.wrong: list[str] = []
        """Outputs and states that are not the oracle's."""
        self.odd: list[str] = []
        """Answers of services that are not what they should be."""
        self.faults, self.recovered = Counter[str](), Counter[str]()
        self.lost: dict[str, list[int]] = {}
        self.slowest: dict[str, float] = {}
        self.clock = 1000.0
        self.remember()

        domain = new_domain()
        self.client = Client(domain)
        make = self.client.node.create_publisher
        self.send_clock = make(Clock, "/clock", BEST_EFFORT)
        self.sender = make(JointState, "/in", RELIABLE)
        self.client.node.create_subscription(JointState, "/out", self.on_output, RELIABLE)
        self.client.node.create_subscription(Float32MultiArray, "/ocean/ocean", self.on_ocean, RELIABLE)
        self.node = OceanProcess(
            folder,
            domain,
            autostart=True,
            model_path=self.models[0],
            state_path=self.state,
            save_period=SAVE_PERIOD,
            input__input__topic="/in",
            input__input__type="sensor_msgs/msg/JointState",
            input__input__fields=fields,
            input__input__qos="every",
            output__output__topic="/out",
            output__output__type="sensor_msgs/msg/JointState",
            output__output__fields=fields,
            ocean_every=10,
            gap_after=GAP,
            on_gap="keep",
        )
        self.meet(set())

    def close(self) -> None:
        self.client.close()
        self.node.kill()
        subprocess.run(["umount", "-l", str(self.disk)], check=True)

    # The load and what comes back

    def on_output(self, message: JointState) -> None:
        number = message.header.stamp.sec
        if number in self.late:
            self.compare(*self.late.pop(number), number, message)
            return
        if number not in self.expected:
            self.wrong.append(f"an output for message {number}, which must have none, or twice")
            return
        step, output = self.expected.pop(number)
        self.compare(step, output, number, message)
        self.seen = step

    def compare(self, step: int, output: bytes, number: int, message: JointState) -> None:
        if np.array(message.position).tobytes() != output:
            self.wrong.append(f"step {step}, message {number}: another output than the oracle's")
        self.answered += 1

    def on_ocean(self, message: Float32MultiArray) -> None:
        content = np.array(message.data, np.float32).tobytes()
        if content not in self.oceans:
            self.wrong.append(f"an ocean state that the oracle never had, after step {self.seen}")
        self.checked_oceans += 1

    def remember(self) -> None:
        """Keep the oracle's state, as one that a save may hold."""
        saved = self.oracle.snapshot()
        self.history[saved.steps, content(saved)] = saved
        self.oceans[self.oracle.ocean.tobytes()] = saved.steps
        for kept in (self.history, self.oceans):
            while len(kept) > HISTORY:
                kept.popitem(last=False)  # type: ignore[attr-defined]

    def values(self) -> list[float]:
        """A new observation."""
        spread = (1.5, 0.7, 0.02)
        return [c + self.random.gauss(0, s) for c, s in zip(self.centre, spread, strict=True)]

    def send(self, values: list[float]) -> None:
        """Send an observation; the oracle takes it too, if it can be taken."""
        message = JointState(position=values)
        message.header.stamp.sec = self.sent = self.sent + 1
        with suppress(OceanError):
            output = self.oracle.step(np.array(values))
            self.expected[self.sent] = self.oracle.steps, np.asarray(output, np.float64).tobytes()
            self.remember()
        self.sender.publish(message)

    def tick(self, seconds: float = 1 / RATE) -> None:
        """ROS time goes on."""
        self.clock += seconds
        message = Clock()
        message.clock.sec, message.clock.nanosec = divmod(round(self.clock * 1e9), 1_000_000_000)
        self.send_clock.publish(message)

    def load(self, seconds: float) -> None:
        """Send at the rate for some time, as far as the node keeps up."""
        end, next_one = time.monotonic() + seconds, time.monotonic()
        while (now := time.monotonic()) < end:
            if now >= next_one and len(self.expected) < MAX_WAITING:
                next_one = max(next_one + 1 / RATE, now - 0.1)
                self.tick()
                self.send(self.values())
            self.client.executor.spin_once(timeout_sec=0.001)

    def drain(self) -> None:
        """Wait until every message that is to be answered is."""
        self.client.until(lambda: not self.expected, "all outputs", PATIENCE)

    # A node's lives

    def meet(self, dead: set[bytes]) -> None:
        """Wait until a node that was started listens and is listened to; ROS time goes on meanwhile.

        dead: the readers of /in, and perhaps writers of /out, that are gone.
        """

        def known() -> bool:
            self.tick()
            return bool(self.client.readers("/in") - dead and self.client.writers("/out") - dead)

        self.client.until(known, "living reader of /in and writer of /out", PATIENCE)
        self.client.meet("ocean")

    def kill(
        self,
        why: str = "kill -9",
        meanwhile: Callable[[], None] = lambda: None,
        end: Callable[[], None] | None = None,
    ) -> None:
        """The end under load (SIGKILL, or what `end` does), `meanwhile`, and a new life from a save."""
        dead = self.client.readers("/in") | self.client.writers("/out")
        (end or self.node.kill)()
        self.client.spin(0.2)  # what the dead one had sent
        seen, self.seen = self.seen, 0
        self.late, self.expected = self.expected, OrderedDict()  # what it took with it
        meanwhile()
        found = snapshots.read_newest(self.state).snapshot
        if (found.steps, content(found)) not in self.history:
            self.wrong.append(f"the file holds a state of step {found.steps} that the oracle never had")
        self.lives += 1
        before = len(self.node.output)
        self.node.restart(use_sim_time=bool(self.lives % 2))
        self.meet(dead)
        told = re.findall(r"restored step ([\d,]+) from", self.node.output[before:])
        if told != [f"{found.steps:,}"]:
            self.wrong.append(f"the file holds step {found.steps}, the node restored {told}")
        self.oracle.resume(found)
        self.lost.setdefault(why, []).append(max(0, seen - found.steps))

    # Faults; each is under load when it comes, and ends with the node answering again

    def fault_kill(self) -> None:
        self.kill()

    def fault_kill_and_damage_the_newest_save(self) -> None:
        def damage() -> None:
            content = self.state.read_bytes()
            self.state.write_bytes(content[: self.random.randrange(len(content))])

        self.kill("kill -9, newest save damaged", damage)

    def fault_full_disk(self) -> None:
        self.while_no_save_is_possible(self.fill)

    def fault_read_only_disk(self) -> None:
        self.while_no_save_is_possible(lambda: self.remount("ro"))

    def fault_kill_with_a_full_disk(self) -> None:
        self.fill()
        self.load(0.5)
        self.kill("kill -9 while the disk is full")
        (self.disk / "ballast").unlink()
        self.saves_again()

    def fill(self) -> None:
        with (self.disk / "ballast").open("ab", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))

    def remount(self, how: str) -> None:
        """Read-only or not; refused while a file is being written."""
        self.client.until(
            lambda: (
                not subprocess.run(
                    ["mount", "-o", f"remount,{how}", str(self.disk)], stderr=subprocess.DEVNULL, check=False
                ).returncode
            ),
            "remounted disk",
        )

    def while_no_save_is_possible(self, begin: Callable[[], None]) -> None:
        for _ in range(3):  # a save that had begun may still have its room, or leave its own
            begin()
            self.load(0.3)
            answer = self.client.trigger("ocean", "save")
            if not answer.success:
                break
        if answer.success or "can't be saved" not in answer.message:
            self.odd.append(f"a save that can't have worked: {answer.message}")
        self.load(0.3)
        self.remount("rw")
        (self.disk / "ballast").unlink(missing_ok=True)
        self.saves_again()

    def saves_again(self) -> None:
        answer = self.client.trigger("ocean", "save")
        if not answer.success:
            self.odd.append(f"a save that should have worked: {answer.message}")

    def fault_not_finite(self) -> None:
        for bad in (np.nan, np.inf, -np.inf, 1e39):
            values = self.values()
            values[self.random.randrange(len(values))] = bad
            self.send(values)

    def fault_malformed(self) -> None:
        self.send([])
        self.send(self.values()[:2])
        self.send_clock.publish(Clock(clock=Time(sec=-1)))

    def fault_topic_loss(self) -> None:
        """A publisher goes away, and another comes after a gap, at which the node forgets, as it was told."""
        self.drain()
        self.client.node.destroy_publisher(self.sender)
        self.client.set("ocean", on_gap="reset")

        def silent() -> bool:
            self.tick(GAP)
            return float(self.client.values("ocean")["seconds since input"]) > GAP + 0.2

        self.client.until(silent, "silence")
        self.sender = self.client.publisher(JointState, "/in", RELIABLE)
        self.oracle.reset()
        self.remember()
        self.send(self.values())
        self.drain()
        self.client.set("ocean", on_gap="keep")

    def fault_clock_jump(self) -> None:
        """Back, which is a new life, or far ahead, which is nothing where gaps are taken."""
        if not self.lives % 2:
            return self.kill("kill -9")  # into a life on ROS time
        self.drain()
        if self.random.random() < 0.3:
            self.clock += 1000.0
            return None
        before = int(self.client.values("ocean")["clock jumps"])
        self.clock *= self.random.uniform(0.1, 0.9)
        self.client.until(
            lambda: self.tick() or int(self.client.values("ocean")["clock jumps"]) > before, "clock jump"
        )
        self.oracle.reset()
        self.remember()
        return None

    def fault_swap(self) -> None:
        """The same model in another file, while steps go on; or a file that is none."""
        self.models.reverse()
        wrong = self.random.random() < 0.5
        bad = self.folder / "bad.onnx"
        bad.write_bytes(MODEL.read_bytes()[: self.random.randrange(1000)])
        self.client.set("ocean", model_path=str(bad if wrong else self.models[0]))
        answer = self.client.trigger("ocean", "swap")
        if answer.success == wrong or (not wrong and "the state goes on" not in answer.message):
            self.odd.append(f"swap: {answer.message}")
        self.client.set("ocean", model_path=str(self.models[0]))

    def fault_burst(self) -> None:
        """More at once than the node can step at once."""
        for _ in range(MAX_WAITING - len(self.expected)):
            self.send(self.values())

    def fault_stall(self) -> None:
        """The process stands still; nothing that was sent meanwhile is lost."""
        self.node.process.send_signal(signal.SIGSTOP)
        self.load(0.5)
        self.node.process.send_signal(signal.SIGCONT)

    def fault_restore(self) -> None:
        """~/restore under load's end: back to the last save."""
        self.drain()
        answer = self.client.trigger("ocean", "restore")
        told = re.search(r"goes on from step ([\d,]+) in", answer.message)
        found = [s for (n, _), s in self.history.items() if told and n == int(told[1].replace(",", ""))]
        if not answer.success or not found:
            self.odd.append(f"restore: {answer.message}")
        else:
            self.oracle.resume(found[-1])

    def fault_deactivate_with_calls_pending(self) -> None:
        """Deactivated under load while ~/save and ~/swap are unanswered, and active again."""
        self.transitions("deactivate")

    def fault_clean_up_with_calls_pending(self) -> None:
        """The same, cleaned up and configured anew: it goes on from the file."""
        self.transitions("deactivate", "cleanup", "configure")

    def fault_end_with_calls_pending(self) -> None:
        """SIGTERM under load while calls are unanswered: it saves, ends, and starts again."""

        def end() -> None:
            status = self.node.end()
            if status != 0:
                self.odd.append(f"the node ended with status {status}")

        self.load(self.random.uniform(0.0, 0.1))
        self.pending()
        self.kill("SIGTERM", end=end)

    def pending(self) -> list[Any]:
        """Call ~/save and ~/swap, some times and in random order, without waiting."""
        names = self.random.sample(["save", "swap"] * 3, 4)
        return [self.client.ask(Trigger, f"/ocean/{name}", Trigger.Request()) for name in names]

    def transitions(self, *names: str) -> None:
        """Transitions while calls are unanswered. Each call is answered; the state that was saved goes on."""
        dead = self.client.readers("/in")
        if "cleanup" in names:
            dead |= self.client.writers("/out")
        self.load(self.random.uniform(0.0, 0.1))
        asked = self.pending()
        before = len(self.node.output)
        for name in names:
            if not self.client.transit("ocean", name):
                self.odd.append(f"{name} failed")
        self.client.until(lambda: all(future.done() for future in asked), "answers to all calls", PATIENCE)
        self.client.spin(0.2)  # outputs from before the transition
        self.late, self.expected = self.expected, OrderedDict()  # what it did not step any more
        if "cleanup" not in names:
            self.saves_again()
        found = snapshots.read_newest(self.state).snapshot
        if (found.steps, content(found)) not in self.history:
            self.wrong.append(f"the file holds a state of step {found.steps} that the oracle never had")
        if found.steps < self.seen:
            self.wrong.append(f"the file holds step {found.steps} after the answer to step {self.seen}")
        if not self.client.transit("ocean", "activate"):
            self.odd.append("activate failed")
        self.meet(dead)
        restored = re.findall(r"restored step ([\d,]+) from", self.node.output[before:])
        if "cleanup" in names and restored != [f"{found.steps:,}"]:
            self.wrong.append(f"the file holds step {found.steps}, the node restored {restored}")
        self.oracle.resume(found)

    def run(self, seconds: float) -> None:
        """A fault each second, in random order; when a new life took longer, the next come the sooner."""
        kinds = [name for name in dir(self) if name.startswith("fault_")]
        kinds *= 3
        for slow in (
            "kill",
            "kill_and_damage_the_newest_save",
            "kill_with_a_full_disk",
            "clock_jump",
            "end_with_calls_pending",
        ):
            for _ in range(2):
                kinds.remove(f"fault_{slow}")
        began, queue, reported = time.monotonic(), list[str](), 0.0
        while time.monotonic() < began + seconds:
            queue = queue or self.random.sample(kinds, len(kinds))
            due = began + sum(self.faults.values()) + self.random.random()
            self.load(max(0.1, due - time.monotonic()))
            name = queue.pop()
            started = time.monotonic()
            kind = name.removeprefix("fault_").replace("_", " ")
            self.faults[kind] += 1
            getattr(self, name)()
            self.send(self.values())
            self.drain()
            self.recovered[kind] += 1
            self.slowest[kind] = max(self.slowest.get(kind, 0.0), time.monotonic() - started)
            if time.monotonic() > reported + 60:
                reported = time.monotonic()
                print(f"{sum(self.faults.values())} faults, {self.answered:,} outputs", self.wrong, self.odd)
                sys.stdout.flush()
        self.drain()

    def table(self) -> str:
        """What happened."""
        lines = ["| fault | injected | recovered | longest, s |", "|---|---|---|---|"]
        for kind, count in sorted(self.faults.items()):
            lines.append(f"| {kind} | {count} | {self.recovered[kind]} | {self.slowest.get(kind, 0):.1f} |")
        total, back = sum(self.faults.values()), sum(self.recovered.values())
        lines += [f"| all | {total} | {back} | {max(self.slowest.values()):.1f} |", ""]
        lines += ["| steps lost at | kills | most | in all |", "|---|---|---|---|"]
        for why, lost in sorted(self.lost.items()):
            lines.append(f"| {why} | {len(lost)} | {max(lost)} | {sum(lost)} |")
        lines += [
            "",
            f"messages sent {self.sent:,}, outputs compared {self.answered:,}, ocean states compared "
            f"{self.checked_oceans:,}, wrong {len(self.wrong)}; wrong answers of services {len(self.odd)}",
        ]
        return "\n".join(lines)


def content(saved: Snapshot) -> bytes:
    """The arrays of a snapshot, to compare bit for bit."""
    arrays = {**saved.states, **saved.predictions}
    return b"".join(arrays[name].tobytes() for name in sorted(arrays))


def mount(*arguments: object) -> None:
    """Mount a file system, or skip the test where that isn't allowed."""
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a disk needs root: {done.stderr.strip()}")


def soak(folder: Path, seconds: float, seed: int = 0) -> Soak:
    """Run it, print the table, and leave nothing behind."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in DDS.items():
            patch.setenv(name, value)
        return soaked(Soak(folder, seed), seconds)


def soaked(made: Soak, seconds: float) -> Soak:
    """Run it to its end, and close it."""
    try:
        made.run(seconds)
    except BaseException:
        print(made.node.output[-3000:])
        raise
    finally:
        made.close()
        print(made.table(), *made.wrong[:20], *made.odd[:20], sep="\n", flush=True)
    assert "Traceback" not in made.node.output
    return made


@pytest.mark.soak
def test_half_an_hour_of_faults(tmp_path: Path) -> None:
    done = soak(tmp_path, 1800.0)
    assert done.wrong == [] and done.odd == []
    assert done.recovered == done.faults


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        result: Any = soak(Path(name), *[float(a) for a in sys.argv[1:2]] or [30.0], *map(int, sys.argv[2:3]))
    sys.exit(1 if result.wrong or result.odd else 0)
