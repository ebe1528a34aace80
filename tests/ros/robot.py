"""The robot around the node, for its tests: nodes as processes, and a client that talks to them over DDS."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.srv import DescribeParameters, SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from std_srvs.srv import Trigger

ROOT = Path(__file__).parent.parent.parent
DISCOVERY = 60.0
"""Seconds that processes may need to find each other, on a busy machine."""
RETRY = 1.0
"""Seconds after which a question that may have come too early is asked again."""

RELIABLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
ALL = QoSProfile(history=HistoryPolicy.KEEP_ALL, reliability=ReliabilityPolicy.RELIABLE)
BEST_EFFORT = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)

TRANSITIONS = {
    "configure": Transition.TRANSITION_CONFIGURE,
    "activate": Transition.TRANSITION_ACTIVATE,
    "deactivate": Transition.TRANSITION_DEACTIVATE,
    "cleanup": Transition.TRANSITION_CLEANUP,
}
_domains = itertools.count(1)


def new_domain() -> int:
    """A DDS domain that no other test on this machine uses, until this process ends."""
    while True:
        domain = 1 + (os.getpid() * 7 + next(_domains)) % 100
        path = Path(tempfile.gettempdir(), f"oceanstate-tests-domain-{domain}")
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
            return domain
        except OSError:
            os.close(lock)


class OceanProcess:
    """One ocean_node in a process of its own."""

    def __init__(self, folder: Path, domain: int, name: str = "ocean", **parameters: Any) -> None:
        self.name, self.folder, self.domain = name, folder, domain
        self.log = folder / f"{name}.log"
        self.parameters = parameters
        self.restart()

    def restart(self, **changes: Any) -> None:
        """Start it, again, with some parameters changed."""
        if hasattr(self, "process") and self.process.poll() is None:
            self.kill()
        self.parameters |= changes
        values = self.folder / f"{self.name}.yaml"
        values.write_text(json.dumps({"/**": {"ros__parameters": nested(self.parameters)}}))
        folders = [str(ROOT / "runtime"), str(ROOT / "ros_nodes" / "ocean_ros")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(folders),
            "ROS_DOMAIN_ID": str(self.domain),
            "ROS_LOG_DIR": str(self.folder),
            "OMP_NUM_THREADS": "1",
        }
        line = [sys.executable, "-m", "ocean_ros", "--ros-args", "-r", f"__node:={self.name}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*line, "--params-file", str(values)], env=environment, stdout=log, stderr=log
            )

    @property
    def output(self) -> str:
        """All that it has written."""
        return self.log.read_text()

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self.process.wait()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end -> its exit status."""
        self.process.send_signal(number)
        return self.process.wait(DISCOVERY)


class Client:
    """A node in this process that drives others."""

    def __init__(self, domain: int) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node("client", context=self.context)
        from rclpy.experimental import EventsExecutor

        self.executor = EventsExecutor(context=self.context)
        self.executor.add_node(self.node)
        self._clients: dict[tuple[Any, str], Any] = {}
        self.diagnostics: dict[str, Any] = {}
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, RELIABLE)

    def close(self) -> None:
        self.executor.remove_node(self.node)
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.diagnostics[status.name.split(":")[0]] = status

    def until(self, holds: Callable[[], Any], what: str, timeout: float = DISCOVERY) -> Any:
        """Work until it holds -> what it gave."""
        end = time.monotonic() + timeout
        while not (result := holds()):
            assert time.monotonic() < end, f"no {what} within {timeout} s; {self.diagnostics}"
            self.executor.spin_once(timeout_sec=0.05)
        return result

    def spin(self, seconds: float) -> None:
        """Work for some time: only where something must NOT happen."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.02)

    def ask(self, kind: Any, name: str, request: Any) -> Any:
        """Call a service without waiting -> the future of its response."""
        client = self._clients.get((kind, name))
        if client is None:
            client = self._clients[kind, name] = self.node.create_client(kind, name)
            self.meet(name.split("/")[1])  # ready means that we know the service: it may not know us yet
        self.until(client.service_is_ready, f"service {name}")
        return client.call_async(request)

    def call(self, kind: Any, name: str, request: Any) -> Any:
        """A service's response."""
        future = self.ask(kind, name, request)
        return self.until(lambda: future.done() and future.result(), f"answer from {name}")

    def transit(self, node: str, name: str) -> bool:
        """Ask for a transition -> whether it succeeded."""
        request = ChangeState.Request(transition=Transition(id=TRANSITIONS[name]))
        return bool(self.call(ChangeState, f"/{node}/change_state", request).success)

    def state(self, node: str) -> str:
        """The lifecycle state's label."""
        return str(self.call(GetState, f"/{node}/get_state", GetState.Request()).current_state.label)

    def trigger(self, node: str, service: str) -> Any:
        """Call ~/reset, ~/save, ~/restore or ~/swap."""
        return self.call(Trigger, f"/{node}/{service}", Trigger.Request())

    def set(self, node: str, **parameters: Any) -> list[str]:
        """Set parameters; `__` in a name stands for a dot -> the reasons of those that were refused."""
        given = [Parameter(name.replace("__", "."), value=value) for name, value in parameters.items()]
        messages: list[ParameterMessage] = [parameter.to_parameter_msg() for parameter in given]
        response = self.call(
            SetParameters, f"/{node}/set_parameters", SetParameters.Request(parameters=messages)
        )
        return [result.reason for result in response.results if not result.successful]

    def describe(self, node: str, *names: str) -> Any:
        """The descriptors of parameters."""
        request = DescribeParameters.Request(names=list(names))
        return self.call(DescribeParameters, f"/{node}/describe_parameters", request).descriptors

    def publisher(self, kind: Any, topic: str, qos: QoSProfile = RELIABLE, node: str = "ocean") -> Any:
        """A publisher that the node listens to: both sides know of each other."""
        made = self.node.create_publisher(kind, topic, qos)
        self.until(made.get_subscription_count, f"reader of {topic}")
        self.meet(node)
        return made

    def collect(self, kind: Any, topic: str, node: str = "ocean", qos: QoSProfile = RELIABLE) -> list[Any]:
        """A list that grows with the messages of a topic of the node: both sides know of each other."""
        messages: list[Any] = []
        made = self.node.create_subscription(kind, topic, messages.append, qos)
        self.until(made.get_publisher_count, f"writer of {topic}")
        self.meet(node)
        return messages

    def meet(self, node: str) -> None:
        """Wait until the node knows of all publishers and subscriptions that this client has made.

        They are announced reliably and in order, so a service client made after them, once answered, tells
        that the node has heard of them: what is published now is not lost for want of a reader.
        """
        asked = self.node.create_client(GetState, f"/{node}/get_state")
        self.until(asked.service_is_ready, f"service of {node}")
        futures: list[Any] = []
        last = -RETRY

        def answered() -> bool:
            nonlocal last
            if time.monotonic() - last > RETRY:
                futures.append(asked.call_async(GetState.Request()))
                last = time.monotonic()
            return any(future.done() for future in futures)

        self.until(answered, f"answer of {node}")
        self.node.destroy_client(asked)

    def readers(self, topic: str) -> set[bytes]:
        """Who reads a topic, as far as this client knows; one that was killed is missed only later."""
        return {bytes(info.endpoint_gid) for info in self.node.get_subscriptions_info_by_topic(topic)}

    def writers(self, topic: str) -> set[bytes]:
        """Who writes to a topic, as far as this client knows."""
        return {bytes(info.endpoint_gid) for info in self.node.get_publishers_info_by_topic(topic)}

    def unheard(self, *topics: str) -> None:
        """Wait until this client knows that nobody else writes or reads these topics any more."""

        def others() -> set[str]:
            node, own = self.node, self.node.get_name()
            found = [
                f"{info.node_name} on {topic}"
                for topic in topics
                for info in (
                    *node.get_publishers_info_by_topic(topic),
                    *node.get_subscriptions_info_by_topic(topic),
                )
                if info.node_name != own
            ]
            return set(found)

        try:
            self.until(lambda: not others(), "silence")
        except AssertionError:
            raise AssertionError(f"still there: {', '.join(others())}") from None

    def counted(self, node: str, **counts: int) -> dict[str, str]:
        """Wait until the node's counters, `_` for a blank, are at least these -> the diagnostics values."""

        def reached() -> dict[str, str] | None:
            values = self.values(node)
            return values if all(int(values[k.replace("_", " ")]) >= n for k, n in counts.items()) else None

        return dict(self.until(reached, f"counts of {counts}"))

    def fresh(self, node: str) -> Any:
        """The next diagnostics status of a node."""
        self.diagnostics.pop(f"/{node}", None)
        return self.until(lambda: self.diagnostics.get(f"/{node}"), f"diagnostics of {node}")

    def values(self, node: str) -> dict[str, str]:
        """The next diagnostics values of a node."""
        return {item.key: item.value for item in self.fresh(node).values}


def nested(parameters: dict[str, Any]) -> dict[str, Any]:
    """{"input__imu__topic": t} -> {"input": {"imu": {"topic": t}}}, as a YAML file has it."""
    result: dict[str, Any] = {}
    for name, value in parameters.items():
        at = result
        *folders, last = name.split("__")
        for folder in folders:
            at = at.setdefault(folder, {})
        at[last] = str(value) if isinstance(value, Path) else value
    return result


@contextmanager
def robot(folder: Path, **parameters: Any) -> Iterator[tuple[Client, OceanProcess]]:
    """A client and one node, on a domain of their own."""
    domain = new_domain()
    client = Client(domain)
    node = OceanProcess(folder, domain, **parameters)
    try:
        yield client, node
    finally:
        client.close()
        node.kill()
        print(node.output)  # pytest shows it where a test fails
