"""A bag replayed through DDS into the node gives, step for step, what ocean-run gives on the bag."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from leaky import leaky
from rclpy.serialization import serialize_message
from robot import ALL, robot
from sensor_msgs.msg import Imu
from std_msgs.msg import Float32MultiArray

pytest.importorskip("ocean_runtime.bags")
rosbag2 = pytest.importorskip("rosbags.rosbag2")
highlevel = pytest.importorskip("rosbags.highlevel")
typesys = pytest.importorskip("rosbags.typesys")

MESSAGES = 1500
RATE = 100
ELEMENTS = ("/imu:angular_velocity.x", "/imu:linear_acceleration.z", "/imu:orientation_covariance[4]")


def record(path: Path) -> None:
    """An IMU at 100 Hz, in a bag that rosbags writes."""
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    generator = np.random.default_rng(0)
    with rosbag2.Writer(path, version=9, storage_plugin=rosbag2.StoragePlugin.MCAP) as bag:
        connection = bag.add_connection("/imu", "sensor_msgs/msg/Imu", typestore=store)
        for i in range(MESSAGES):
            message = Imu()
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(i * 10_000_000, 1_000_000_000)
            message.angular_velocity.x, message.linear_acceleration.z = generator.normal(size=2)
            message.orientation_covariance[4] = generator.normal()
            bag.write(connection, i * 1_000_000_000 // RATE, serialize_message(message))


def test_a_bag_through_dds_gives_ocean_runs_numbers(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    record(tmp_path / "bag")
    model = leaky(tmp_path / "model.onnx", ELEMENTS, rate_hz=RATE)
    done = command("ocean_runtime.cli", model, tmp_path / "bag")
    assert done.returncode == 0, done.stderr
    rows = list(csv.reader(io.StringIO(done.stdout.decode())))[1:]
    expected = np.array([[float(cell) for cell in row[-3:]] for row in rows], np.float32)
    with robot(
        tmp_path,
        autostart=True,
        model_path=model,
        input__input__topic="/imu",
        input__input__type="sensor_msgs/msg/Imu",
        input__input__qos="every",
    ) as (client, _):
        sender = client.publisher(Imu, "/imu", ALL)
        outputs = client.collect(Float32MultiArray, "/ocean/output")
        with highlevel.AnyReader([tmp_path / "bag"]) as bag:
            for i, (_, _, raw) in enumerate(bag.messages()):
                sender.publish(bytes(raw))
                if i % 4 == 0:
                    client.spin(0.0001)  # take what the node has answered: a reader has bounds too
        client.until(lambda: len(outputs) == MESSAGES, "all outputs")
        values = client.values("ocean")
    assert values["messages dropped"] == "0" and values["steps"] == str(MESSAGES)
    assert np.array_equal(np.array([m.data for m in outputs]), expected)
