"""kill -9 at any moment, over and over: the node comes back with a state at most one save period old."""

import random
import re
import signal
import time
from pathlib import Path

import pytest
from leaky import leaky
from ocean_runtime.snapshot import read
from robot import Client, OceanProcess, new_domain
from std_msgs.msg import Float32MultiArray

PERIOD = 0.1
"""Seconds between saves."""
RATE = 200.0


def kill_and_come_back(folder: Path, kills: int) -> list[float]:
    """-> by how many seconds of steps each restored state was behind the last step that was heard of."""
    domain = new_domain()
    client = Client(domain)
    process = OceanProcess(
        folder,
        domain,
        autostart=True,
        model_path=leaky(folder / "model.onnx"),
        state_path=folder / "state.safetensors",
        save_period=PERIOD,
        step_at="rate",
        rate=RATE,
        input__input__max_age=0.0,
        input__input__qos="every",
        gap_after=0.0,
        ocean_every=1,
    )
    behind: list[float] = []
    generator = random.Random(0)
    outputs: list[Float32MultiArray] = []
    try:
        sender = client.node.create_publisher(Float32MultiArray, "/ocean/input", 10)
        client.node.create_subscription(Float32MultiArray, "/ocean/ocean", outputs.append, 1000)
        steps, dead = 0, set[bytes]()
        for _ in range(kills + 1):
            outputs.clear()
            client.until(lambda: client.readers("/ocean/input") - dead, "living reader")  # noqa: B023
            client.meet("ocean")
            client.until(
                lambda: outputs or sender.publish(Float32MultiArray(data=[1.0, 1.0, 1.0])), "first step"
            )
            restored = 0
            if steps:
                told = re.findall(r"restored step ([\d,]+) from .* saved ([\d.]+) s ago", process.output)
                assert len(told) == len(behind) + 1, "it says what it restored"
                restored = int(told[-1][0].replace(",", ""))
                behind.append((steps - restored) / RATE)
            began = time.monotonic()
            wait = 2 * PERIOD + generator.uniform(0, 5 * PERIOD)
            client.until(lambda: time.monotonic() > began + wait, "moment")  # noqa: B023
            dead = client.readers("/ocean/input")
            process.kill()
            client.spin(0.05)  # what it had sent is still to be heard
            steps = restored + len(outputs)
            assert (folder / "state.safetensors").exists()
            process.restart()
    finally:
        client.close()
        process.kill()
        print(process.output)
    return behind


def check(behind: list[float], write: float) -> None:
    """At most one period, and the seconds that a write takes, behind; the state that was heard is whole."""
    print(f"behind, in s: {sorted(round(b, 3) for b in behind)}")
    late = sorted(behind)[-1]
    assert late <= PERIOD + write, f"{late:.3f} s of steps were lost"
    assert min(behind) > -0.2


def test_killed_it_comes_back(tmp_path: Path) -> None:
    check(kill_and_come_back(tmp_path, 3), write=5.0)  # on a busy machine


@pytest.mark.soak
def test_killed_50_times_it_comes_back(tmp_path: Path) -> None:
    check(kill_and_come_back(tmp_path, 50), write=0.4)


def test_a_signal_at_any_moment_ends_it_well(tmp_path: Path) -> None:
    """Also one that comes while it starts: exit status 0, no traceback, the state saved if there is one."""
    domain = new_domain()
    process = OceanProcess(
        tmp_path,
        domain,
        autostart=True,
        model_path=leaky(tmp_path / "model.onnx"),
        state_path=tmp_path / "state",
    )
    deadline = time.monotonic() + 60
    while "starting from" not in process.output:
        assert time.monotonic() < deadline and process.process.poll() is None, process.output
        time.sleep(0.01)
    assert process.end(signal.SIGINT) == 0, process.output
    assert read(tmp_path / "state").steps == 0
    assert "Traceback" not in process.output
