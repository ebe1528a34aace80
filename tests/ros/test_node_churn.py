"""Activate and deactivate, while publishers and subscriptions with a QoS that does not fit come and go."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from leaky import leaky
from rclpy.qos import DurabilityPolicy, QoSProfile
from robot import BEST_EFFORT, Client, OceanProcess, robot
from std_msgs.msg import Float32MultiArray

PUBLISHERS = 20
CHURN = f"""
import rclpy
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import Float32MultiArray
rclpy.init()
node = rclpy.create_node("churn")
offered = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
asked = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
print("ready", flush=True)
while True:
    made = [node.create_publisher(Float32MultiArray, "/in", offered) for _ in range({PUBLISHERS})]
    heard = [node.create_subscription(Float32MultiArray, "/out", print, asked) for _ in range(5)]
    for publisher in made:
        publisher.publish(Float32MultiArray(data=[1.0, 1.0, 1.0]))
        node.destroy_publisher(publisher)
    for subscription in heard:
        node.destroy_subscription(subscription)
"""
"""Best effort on a reliable input, and transient local on a volatile output: neither can be matched."""


@contextmanager
def churn(domain: int) -> Iterator[None]:
    environment = {**os.environ, "ROS_DOMAIN_ID": str(domain)}
    with subprocess.Popen([sys.executable, "-c", CHURN], env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


def rounds(folder: Path, count: int) -> None:
    parameters = {
        "model_path": leaky(folder / "model.onnx"),
        "input__input__topic": "/in",
        "input__input__qos": "every",
        "output__output__topic": "/out",
    }
    with robot(folder, **parameters) as (client, process), churn(process.domain):
        done = 0
        for i in range(count):
            if i % 10 == 0:
                assert client.transit("ocean", "configure"), process.output
            for name in ("activate", "deactivate"):
                assert client.transit("ocean", name), process.output
            if i % 10 == 9 or i == count - 1:
                assert client.transit("ocean", "cleanup"), process.output
            done += 1
        assert process.process.poll() is None and "Traceback" not in process.output
        print(f"{done} rounds of activate and deactivate without a crash")


def test_publishers_come_and_go(tmp_path: Path) -> None:
    rounds(tmp_path, 20)


@pytest.mark.soak
def test_publishers_come_and_go_for_1000_rounds(tmp_path: Path) -> None:
    rounds(tmp_path, 1000)


def test_several_publishers_of_one_input_are_reported(tmp_path: Path) -> None:
    model = leaky(tmp_path / "model.onnx")
    parameters = {"autostart": True, "model_path": model, "bad_seconds": 1, "gap_after": 0.0}
    with robot(tmp_path, **parameters) as (client, process):
        one = client.publisher(Float32MultiArray, "/ocean/input", BEST_EFFORT)
        two = client.publisher(Float32MultiArray, "/ocean/input", BEST_EFFORT)
        told = "2 publishers on /ocean/input, /client, /client: the state is stepped by the messages of all of them"
        client.until(lambda: told in warned(client), "WARN")
        assert told in process.output
        client.node.destroy_publisher(two)
        client.until(lambda: told not in warned(client), "end of the WARN")
        client.node.destroy_publisher(one)


def warned(client: Client) -> str:
    status = client.fresh("ocean")
    return str(status.message) if status.level == b"\x01" else ""


def test_a_subscriber_whose_qos_does_not_fit_crashes_nothing(tmp_path: Path) -> None:
    parameters = {"autostart": True, "model_path": leaky(tmp_path / "model.onnx")}
    with robot(tmp_path, **parameters) as (client, process):
        asked = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        client.node.create_subscription(Float32MultiArray, "/ocean/output", print, asked)
        client.meet("ocean")
        for name in ("deactivate", "cleanup", "configure", "activate"):
            assert client.transit("ocean", name)
        assert OceanProcess.end(process) == 0
