"""The demo's last act: the model as a ROS 2 node, killed in the middle of its life, goes on where it was.

    python examples/demo_node.py demo/model.onnx

Starts the node as a process of its own, moves it through its lifecycle over DDS, talks to it, saves, kills it
with SIGKILL, starts it again, and compares what it says with a stream that nothing ever interrupted. Needs
ROS 2, or its packages from PyPI: pip install 'oceanstate[ros]'.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ros_nodes" / "ocean_ros"
os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
DOMAIN = 1 + os.getpid() % 100
REPLY = 60  # tokens
LINES = (
    "ROMEO:\nWhat light through yonder window breaks?\n",
    "JULIET:\nO Romeo, Romeo, wherefore art thou\n",
)
PATIENCE = 25.0  # seconds


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: demo_node.py MODEL.onnx", file=sys.stderr)
        return 1
    try:
        import rclpy  # noqa: F401
    except ImportError:
        print("the node needs ROS 2: pip install 'oceanstate[ros]', or source your ROS", file=sys.stderr)
        return 1
    model = Path(sys.argv[1]).resolve()
    robot = Robot()
    with tempfile.TemporaryDirectory() as folder:
        log, state = Path(folder) / "log", Path(folder) / "state.safetensors"
        try:
            print("a node as a process of its own, moved through its lifecycle over DDS")
            robot.start(model, state, log)
            first = robot.say(LINES[0])
            print(f"  we    {LINES[0]!r}\n  node  {first!r}")
            saved = robot.trigger("save").message
            print(f"~/save: {saved.partition(' to ')[0]}\nkill -9")
            robot.kill()
            print("started again")
            robot.start(model, state, log)
            told = [line for line in log.read_text().splitlines() if "restored step" in line]
            print(
                f"its log: {told[-1].rpartition('[ocean]: ')[2].replace(str(state), state.name) if told else '?'}"
            )
            second = robot.say(LINES[1])
            print(f"  we    {LINES[1]!r}\n  node  {second!r}")
        except TimeoutError as error:
            print(f"{error}; the node's log:\n{log.read_text()}", file=sys.stderr)
            return 1
        finally:
            robot.kill()
    expected = uninterrupted(model)
    same = [first, second] == expected and bool(told)
    print(f"{'the very words' if same else 'NOT the words'} of a stream that nothing ever interrupted")
    return 0 if same else 1


def uninterrupted(model: Path) -> list[str]:
    """What the runtime says to the same lines in one go."""
    sys.path.insert(0, str(ROOT / "runtime"))
    from ocean_runtime import OceanModel
    from ocean_runtime.text import generate, read_text

    stream, replies = OceanModel.load(model).stream(), []
    for line in LINES:
        for _ in read_text(stream, [line.encode()]):
            pass
        replies.append("".join(generate(stream, REPLY)))
    return replies


class Robot:
    """A ROS node of our own, and the process that it drives."""

    def __init__(self) -> None:
        import rclpy
        from std_msgs.msg import String

        rclpy.init(domain_id=DOMAIN)
        self.rclpy, self.node = rclpy, rclpy.create_node("demo")
        self.pieces: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.sender = self.node.create_publisher(String, "/ocean/input", 10)
        self.node.create_subscription(String, "/ocean/output", lambda m: self.pieces.append(m.data), 1000)

    def start(self, model: Path, state: Path, log: Path) -> None:
        """Start the node, configure it and activate it."""
        from lifecycle_msgs.msg import Transition
        from lifecycle_msgs.srv import ChangeState, GetState

        parameters = {"model_path": model, "state_path": state, "save_period": 0.0, "reply_tokens": REPLY}
        line = [sys.executable, "-m", "ocean_ros", "--ros-args"]
        line += [word for name, value in parameters.items() for word in ("-p", f"{name}:={value}")]
        dead = self.readers()  # a killed reader is missed only later
        folders = [str(ROOT / "runtime"), str(PACKAGE), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "ROS_DOMAIN_ID": str(DOMAIN), "PYTHONPATH": os.pathsep.join(folders)}
        with log.open("ab") as file:
            self.process = subprocess.Popen(line, env=environment, stdout=file, stderr=file)
        self.call(GetState, "get_state", GetState.Request())  # it is there
        for name in ("configure", "activate"):
            transition = Transition(id=getattr(Transition, f"TRANSITION_{name.upper()}"))
            done = self.call(ChangeState, "change_state", ChangeState.Request(transition=transition)).success
            print(f"  {name}: {'done' if done else 'failed'}")
        self.until(lambda: self.readers() - dead, "the node's subscription")
        self.call(GetState, "get_state", GetState.Request())  # so it knows of our publisher, too

    def readers(self) -> set[bytes]:
        """Who reads our topic, as far as we know."""
        return {
            bytes(info.endpoint_gid) for info in self.node.get_subscriptions_info_by_topic("/ocean/input")
        }

    def kill(self) -> None:
        """kill -9"""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def say(self, text: str) -> str:
        """Send a text -> the whole reply."""
        from std_msgs.msg import String

        self.pieces.clear()
        self.sender.publish(String(data=text))
        self.until(lambda: len(self.pieces) >= REPLY, "a reply")
        return "".join(self.pieces)

    def trigger(self, name: str) -> Any:
        """Call one of the node's services."""
        from std_srvs.srv import Trigger

        return self.call(Trigger, name, Trigger.Request())

    def call(self, kind: Any, name: str, request: Any) -> Any:
        """A service's answer."""
        from lifecycle_msgs.srv import GetState

        client = self.node.create_client(kind, f"/ocean/{name}")
        self.until(client.service_is_ready, f"the service {name}")
        if name != "get_state":
            # The service is known here, but this client may not be known there, and its answer would be lost. What
            # is announced comes in order: once a later client has been answered, this one is known.
            self.call(GetState, "get_state", GetState.Request())
        futures = [client.call_async(request)]
        asked = time.monotonic()

        def answered() -> bool:
            nonlocal asked
            # A killed server is missed only later, and a question may have gone to it: then ask again.
            if name == "get_state" and time.monotonic() > asked + 0.5:
                futures.append(client.call_async(request))
                asked = time.monotonic()
            return any(future.done() for future in futures)

        self.until(answered, f"an answer from {name}")
        self.node.destroy_client(client)
        return next(future.result() for future in futures if future.done())

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Work until it holds. Raises TimeoutError."""
        end = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"{what} did not come within {PATIENCE:g} s")
            self.rclpy.spin_once(self.node, timeout_sec=0.05)


if __name__ == "__main__":
    sys.exit(main())
