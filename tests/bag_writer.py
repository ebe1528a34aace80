"""Real ROS 2 bags for tests, written by rosbags."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

STORE = get_typestore(Stores.ROS2_HUMBLE)
TYPES = STORE.types
START_NS = 1_700_000_000_000_000_000

Message = tuple[float, str, Any]
"""(seconds after the bag's start, topic, message)."""


def write_bag(path: Path, messages: Iterable[Message], storage: str = "mcap") -> Path:
    """Write messages in the order given, each at its own log time."""
    plugin = StoragePlugin.MCAP if storage == "mcap" else StoragePlugin.SQLITE3
    with Writer(path, version=9, storage_plugin=plugin) as writer:
        connections: dict[str, Any] = {}
        for seconds, topic, message in messages:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=STORE)
            time = START_NS + round(seconds * 1e9)
            writer.write(connections[topic], time, STORE.serialize_cdr(message, kind))
    return path


def header() -> Any:
    return TYPES["std_msgs/msg/Header"](TYPES["builtin_interfaces/msg/Time"](0, 0), "base")


def vector(x: float, y: float, z: float) -> Any:
    return TYPES["geometry_msgs/msg/Vector3"](x, y, z)


def imu(gyro: tuple[float, float, float], acceleration: tuple[float, float, float] = (0.0, 0.0, 9.8)) -> Any:
    nothing = np.zeros(9)
    upright = TYPES["geometry_msgs/msg/Quaternion"](0.0, 0.0, 0.0, 1.0)
    return TYPES["sensor_msgs/msg/Imu"](
        header(), upright, nothing, vector(*gyro), nothing, vector(*acceleration), nothing
    )


def joints(position: list[float], velocity: tuple[float, ...] = ()) -> Any:
    names = [f"joint{i}" for i in range(len(position))]
    return TYPES["sensor_msgs/msg/JointState"](
        header(), names, np.array(position), np.array(velocity, float), np.zeros(0)
    )


def text(words: str) -> Any:
    return TYPES["std_msgs/msg/String"](words)


def number(value: float) -> Any:
    return TYPES["std_msgs/msg/Float64"](value)


def named_joints(position: dict[str, float]) -> Any:
    """Joints in the order of the dict."""
    return TYPES["sensor_msgs/msg/JointState"](
        header(), list(position), np.array(list(position.values())), np.zeros(0), np.zeros(0)
    )


def transforms(x: dict[str, float]) -> Any:
    """Frames in the order of the dict, each moved by x."""
    upright = TYPES["geometry_msgs/msg/Quaternion"](0.0, 0.0, 0.0, 1.0)
    make, move = TYPES["geometry_msgs/msg/TransformStamped"], TYPES["geometry_msgs/msg/Transform"]
    return TYPES["tf2_msgs/msg/TFMessage"](
        [make(header(), frame, move(vector(value, 0.0, 0.0), upright)) for frame, value in x.items()]
    )
