"""Messages at 1 kHz with the default QoS: what the node loses, beside a subscriber that does nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from leaky import leaky
from robot import robot

RATE = 1000
SENDER = """
import sys, time
import rclpy
from std_msgs.msg import Float32MultiArray
count, rate = int(sys.argv[1]), float(sys.argv[2])
rclpy.init()
node = rclpy.create_node("sensor")
sender = node.create_publisher(Float32MultiArray, "/in", 10)
while sender.get_subscription_count() < 2:
    time.sleep(0.1)
time.sleep(2.0)
message, began = Float32MultiArray(data=[1.0, 2.0, 3.0]), time.monotonic()
for i in range(count):
    time.sleep(max(0.0, began + i / rate - time.monotonic()))
    sender.publish(message)
print(f"{count / (time.monotonic() - began):.0f}", flush=True)
time.sleep(2.0)
"""
BARE = """
import rclpy
from rclpy.experimental import EventsExecutor
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Float32MultiArray
rclpy.init()
node = rclpy.create_node("bare")
count = 0
def receive(message):
    global count
    count += 1
best_effort = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
node.create_subscription(Float32MultiArray, "/in", receive, best_effort)
node.create_timer(0.5, lambda: print(count, flush=True))
executor = EventsExecutor()
executor.add_node(node)
while True:
    executor.spin_once(timeout_sec=0.1)
"""


def lost(folder: Path, seconds: int) -> tuple[float, float]:
    """The part of the messages that the node, and the bare subscriber, never got."""
    parameters = {"autostart": True, "model_path": leaky(folder / "m.onnx"), "input__input__topic": "/in"}
    with robot(folder, **parameters) as (client, process):
        client.state("ocean")
        environment = {**os.environ, "ROS_DOMAIN_ID": str(process.domain)}
        counted = (folder / "bare").open("wb")
        bare = subprocess.Popen([sys.executable, "-c", BARE], env=environment, stdout=counted)
        sent = seconds * RATE
        try:
            sender = subprocess.run(
                [sys.executable, "-c", SENDER, str(sent), str(RATE)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=10 * seconds + 60,
            )
            client.spin(2.0)  # the diagnostics of the time before wait to be read
            values = client.values("ocean")
        finally:
            bare.kill()
            bare.wait()
            counted.close()
    heard = int((folder / "bare").read_text().split()[-1])
    got = int(values["messages received"])
    print(
        f"{sent} messages at {sender.stdout.strip()} Hz: the node got {got} ({1 - got / sent:.2%} lost, "
        f"{values['messages dropped']} counted as dropped, {values['steps taken']} steps), "
        f"a bare subscriber {heard} ({1 - heard / sent:.2%} lost)"
    )
    assert int(values["steps taken"]) == got, "each message that came was stepped"
    return 1 - got / sent, 1 - heard / sent


def test_a_second_at_1_khz_is_counted_to_the_last_message(tmp_path: Path) -> None:
    lost(tmp_path, 1)


@pytest.mark.soak
def test_a_minute_at_1_khz_loses_at_most_1_percent(tmp_path: Path) -> None:
    node, bare = lost(tmp_path, 60)
    assert node <= max(0.01, 2 * bare), "a machine that is busy with other work loses them for both"
