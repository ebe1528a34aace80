"""What the node adds to a message on its way through DDS, beside a node that only copies the message.

    python benchmarks/ros_node.py [--model imu.onnx] [--seconds 60]

An IMU at 100 Hz, best effort, depth 1, from this process to the node under test and back as a TwistStamped
that carries the IMU's stamp, the time of sending. The copying node has the same subscription, publisher and
executor. Both take turns, half of the time each turn. Then a model whose step takes longer than the period.

Without --model, an untrained d=64, L=2 model of three IMU fields is made with ocean-train and ocean-export.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import ROOT, needs

for folder in ("runtime", "ros_nodes/ocean_ros", "tests/ros"):
    sys.path.insert(0, str(ROOT / folder))
os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")

with needs("train,export,ros"):
    import numpy as np
    import rclpy
    from geometry_msgs.msg import TwistStamped
    from leaky import leaky
    from robot import BEST_EFFORT, Client, OceanProcess, new_domain
    from sensor_msgs.msg import Imu

RATE = 100
FIELDS = ("angular_velocity.x", "angular_velocity.y", "angular_velocity.z")
TICK = os.sysconf("SC_CLK_TCK")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "", allow_abbrev=False)
    p.add_argument("--model", type=Path, help="a features model of three IMU fields")
    p.add_argument("--seconds", type=float, default=60.0, help="for each of the two nodes")
    p.add_argument("--copy", type=int, metavar="DOMAIN", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.copy is not None:
        return copying(args.copy)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model or untrained(folder)
        print(f"{RATE} Hz for {args.seconds:g} s each, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
        results: dict[str, list[dict[str, Any]]] = {"copy": [], "ocean": []}
        for kind in ("copy", "ocean", "ocean", "copy"):
            results[kind].append(measure(folder, kind, model, args.seconds / 2))
        table(results)
        slow(folder, min(args.seconds, 20.0))
    return 0


def untrained(folder: Path) -> Path:
    """A d=64, L=2 model, made by the commands; its numbers mean nothing, its cost does."""
    noise = np.random.default_rng(0).normal(size=(5000, 3))
    rows = [",".join(FIELDS), *(",".join(f"{v:.4f}" for v in row) for row in noise)]
    (folder / "imu.csv").write_text("\n".join(rows) + "\n")
    folders = os.pathsep.join(str(ROOT / name) for name in ("train", "export", "runtime"))
    environment = {**os.environ, "PYTHONPATH": folders}
    for line in (
        ["ocean_train.cli", "--log", "imu.csv", "--steps", "1", "--out", "checkpoint"],
        ["ocean_export.cli", "checkpoint", "-o", "imu.onnx"],
    ):
        subprocess.run(
            [sys.executable, "-m", *line], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
        )
    return folder / "imu.onnx"


def measure(folder: Path, kind: str, model: Path, seconds: float, rate: float = RATE) -> dict[str, Any]:
    """Latencies (s), counts and CPU share of one node."""
    domain = new_domain()
    client = Client(domain)
    process = start(folder, kind, model, domain)
    try:
        latencies: list[float] = []

        def receive(message: TwistStamped) -> None:
            stamp = message.header.stamp
            latencies.append(time.time() - (stamp.sec + stamp.nanosec * 1e-9))

        client.node.create_subscription(TwistStamped, "/twist", receive, 1000)
        sender = client.publisher(Imu, "/imu", BEST_EFFORT)
        client.until(lambda: client.node.count_publishers("/twist"), "answer's publisher")
        client.spin(1.0)
        message, generator = Imu(), np.random.default_rng(1)
        began, cpu = time.perf_counter(), cpu_seconds(process.pid)
        sent, ages = 0, []
        while sent < seconds * rate:
            due = began + sent / rate
            while (left := due - time.perf_counter()) > 0:
                client.executor.spin_once(timeout_sec=left)
            x, y, z = generator.normal(size=3)
            message.angular_velocity.x, message.angular_velocity.y, message.angular_velocity.z = x, y, z
            sec, nanosec = divmod(time.time_ns(), 1_000_000_000)
            message.header.stamp.sec, message.header.stamp.nanosec = sec, nanosec
            sender.publish(message)
            sent += 1
            if status := client.diagnostics.pop("/ocean", None):
                values = {item.key: item.value for item in status.values}
                ages.append(float(values["input age (s)"]))
        share = (cpu_seconds(process.pid) - cpu) / (time.perf_counter() - began)
        client.spin(0.5)
        result: dict[str, Any] = {"latency": latencies, "sent": sent, "cpu": share, "ages": ages}
        if kind == "ocean":
            values = client.values("ocean")
            result["steps"], result["drops"] = int(values["steps taken"]), int(values["messages dropped"])
            result["misses"] = int(values["deadline misses"])
        return result
    finally:
        client.close()
        process.kill()
        process.wait()


def start(folder: Path, kind: str, model: Path, domain: int) -> subprocess.Popen[bytes]:
    if kind == "copy":
        return subprocess.Popen([sys.executable, __file__, "--copy", str(domain)])
    return OceanProcess(
        folder,
        domain,
        autostart=True,
        model_path=model,
        rate=RATE,
        input__input__topic="/imu",
        input__input__type="sensor_msgs/msg/Imu",
        input__input__fields=list(FIELDS),
        output__output__topic="/twist",
        output__output__type="geometry_msgs/msg/TwistStamped",
        output__output__fields=["twist.angular.x", "twist.angular.y", "twist.angular.z"],
    ).process


def copying(domain: int) -> int:
    """A node that copies three fields and the stamp."""
    from rclpy.experimental import EventsExecutor

    rclpy.init(domain_id=domain)
    node = rclpy.create_node("copy")
    publisher = node.create_publisher(TwistStamped, "/twist", 10)

    def copy(imu: Imu) -> None:
        twist = TwistStamped()
        twist.header.stamp = imu.header.stamp
        twist.twist.angular.x = imu.angular_velocity.x
        twist.twist.angular.y = imu.angular_velocity.y
        twist.twist.angular.z = imu.angular_velocity.z
        publisher.publish(twist)

    node.create_subscription(Imu, "/imu", copy, BEST_EFFORT)
    executor = EventsExecutor()
    executor.add_node(node)
    while rclpy.ok():
        executor.spin_once(timeout_sec=0.1)
    return 0


def cpu_seconds(process: int) -> float:
    """User and system time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def table(results: dict[str, list[dict[str, Any]]]) -> None:
    print(
        "| node | p50 (ms) | p99 (ms) | CPU of one core | sent | steps | drops |\n|---|---|---|---|---|---|---|"
    )
    p50 = {}
    for kind, runs in results.items():
        latencies = np.concatenate([run["latency"] for run in runs]) * 1e3
        p50[kind] = np.median(latencies)
        sent = sum(run["sent"] for run in runs)
        steps = sum(run.get("steps", len(run["latency"])) for run in runs)
        drops = sum(run.get("drops", run["sent"] - len(run["latency"])) for run in runs)
        cpu = np.mean([run["cpu"] for run in runs])
        print(
            f"| {kind} | {p50[kind]:.3f} | {np.quantile(latencies, 0.99):.3f} | {cpu:.1%} | {sent} | {steps} | "
            f"{drops} ({drops / sent:.3%}) |"
        )
        if kind == "ocean":
            settled = "equal" if steps + drops == sent else "NOT equal"
            print(f"\nsteps plus counted drops {settled} messages sent")
    print(f"added at p50: {p50['ocean'] - p50['copy']:.3f} ms (aim: at most 0.3 ms)")


def slow(folder: Path, seconds: float) -> None:
    """A model whose step takes longer than the period: the newest input wins, what is late is counted."""
    size = 256
    while True:
        model = leaky(folder / "slow.onnx", FIELDS, work=size, outputs=FIELDS)
        from ocean_runtime import OceanModel

        stream = OceanModel.load(model).stream()
        times = []
        for _ in range(20):
            began = time.perf_counter()
            stream.step(np.zeros(3))
            times.append(time.perf_counter() - began)
        if min(times) > 1.8 / RATE:
            break
        size = int(size * 1.15)
    result = measure(folder, "ocean", model, seconds)
    ages = np.array(result["ages"])
    print(
        f"a step of {min(times) * 1e3:.1f} ms or more: {result['steps']} steps + {result['drops']} drops = "
        f"{result['steps'] + result['drops']} of {result['sent']} sent; {result['misses']} deadline misses; "
        f"input age at the step, the largest of each second: median {np.median(ages) * 1e3:.1f} ms, largest "
        f"{ages.max() * 1e3:.1f} ms (two periods are {2e3 / RATE:.0f} ms)"
    )


if __name__ == "__main__":
    sys.exit(main())
