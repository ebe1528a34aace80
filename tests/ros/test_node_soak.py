"""Memory over a million messages, through DDS, as fast as they go."""

from pathlib import Path

import pytest
from leaky import leaky
from robot import ALL, Client, OceanProcess, robot
from std_msgs.msg import Float32MultiArray

BATCH = 200
"""Messages that may be on their way at once."""


def resident(process: OceanProcess) -> int:
    """Bytes of its memory."""
    pages = int(Path(f"/proc/{process.process.pid}/statm").read_text().split()[1])
    return pages * 4096


def stream_through(client: Client, process: OceanProcess, messages: int, looks: int) -> list[int]:
    """Send them all, each stepped -> resident memory at that many evenly spaced moments."""
    count = 0

    def receive(_: Float32MultiArray) -> None:
        nonlocal count
        count += 1

    sender = client.publisher(Float32MultiArray, "/ocean/input", ALL)
    client.node.create_subscription(Float32MultiArray, "/ocean/output", receive, ALL)
    client.until(lambda: client.node.count_publishers("/ocean/output"), "writer")
    client.meet("ocean")
    message = Float32MultiArray(data=[1.0, 2.0, 3.0])
    memory, sent = [], 0
    for look in range(looks):
        while sent < (look + 1) * messages // looks:
            for _ in range(BATCH):
                sender.publish(message)
            sent += BATCH
            client.until(lambda: count >= sent, "answers", timeout=60)  # noqa: B023
        memory.append(resident(process))
    assert count == sent, "each message was answered"
    return memory


def run(folder: Path, messages: int, looks: int) -> list[int]:
    parameters = {
        "autostart": True,
        "model_path": leaky(folder / "model.onnx"),
        "input__input__qos": "every",
        "state_path": folder / "state",
        "save_period": 1.0,
        "ocean_every": 1,
    }
    with robot(folder, **parameters) as (client, process):
        client.node.create_subscription(Float32MultiArray, "/ocean/ocean", lambda _: None, 10)
        memory = stream_through(client, process, messages, looks)
        values = client.values("ocean")
    assert values["steps taken"] == str(messages) and values["messages dropped"] == "0"
    print([f"{m / 1e6:.2f}" for m in memory])
    return memory


def test_memory_settles(tmp_path: Path) -> None:
    memory = run(tmp_path, 10_000, 10)
    assert memory[-1] - memory[4] < 2e6


@pytest.mark.soak
def test_memory_is_flat_over_a_million_messages(tmp_path: Path) -> None:
    memory = run(tmp_path, 1_000_000, 50)
    assert memory[-1] - memory[4] < 2e6, "of the last nine tenths"
