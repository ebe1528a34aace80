"""The process: an executor, signals, and an end with the state saved and exit status 0."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import rclpy
from rclpy.executors import Executor, ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args

from ocean_ros.node import OceanNode

USAGE = """\
usage: ocean_node --ros-args -p model_path:=MODEL.onnx [-p NAME:=VALUE ...] [--params-file FILE.yaml]

Keep one ocean state alive on ROS 2 topics. -p autostart:=true configures and activates it at start.
All parameters, with their defaults: config/ocean.yaml of this package; `ros2 param describe /ocean NAME`."""

SPIN = 0.1
"""Seconds at most until a signal is noticed."""
ANSWER_TIMEOUT = 5.0
"""Seconds at the end of the process for the answers to pending service calls."""
THREADS_TIMEOUT = 5.0
"""Seconds at the end of the process for a thread that still reads a model, or waits for a disk."""


def main(arguments: list[str] | None = None) -> int:
    """`ros2 run ocean_ros ocean_node --ros-args ...`. Returns the exit status."""
    stop: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        stop.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    try:
        others = remove_ros_args(arguments)[1:]  # the first is the program's name
        if "--help" in others or "-h" in others:
            print(USAGE)
            return 0
        if others:
            print(
                f"ocean_node: unknown argument {others[0]!r}; parameters come after --ros-args, as in "
                "--ros-args -p model_path:=model.onnx (--help says more)",
                file=sys.stderr,
            )
            return 2
        rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:  # a parameter file or argument that ROS can't read
        print(f"ocean_node: ROS can't take these arguments: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    node = OceanNode()
    runtime_log = logging.getLogger("ocean_runtime")
    runtime_log.addHandler(RosLog(node.get_logger()))
    runtime_log.setLevel(logging.INFO)
    executor = make_executor()
    executor.add_node(node)
    try:
        if node.get_parameter("autostart").value is True:
            configured = node.trigger_configure() == TransitionCallbackReturn.SUCCESS
            if configured and not stop:
                node.trigger_activate()
        else:
            node.get_logger().info("unconfigured: waiting for a configure transition (or set autostart)")
        while rclpy.ok() and not stop:
            spin(node, executor)
    except ExternalShutdownException:
        pass
    finally:
        if node.label != "finalized":
            node.trigger_shutdown()
        answer_pending(node, executor)
        executor.remove_node(node)
        node.destroy_node()
        rclpy.try_shutdown()
        if not threads_ended(THREADS_TIMEOUT):
            # An interpreter that ends while a thread is inside a C++ library aborts the process.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    return 0


class RosLog(logging.Handler):
    """What the runtime logs, such as inputs outside the training data's range, goes where the node's log goes."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """One line of its own for each level: rclpy refuses two levels on one line of the program."""
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        else:
            self._logger.info(text)


def spin(node: OceanNode, executor: Executor) -> None:
    """One turn. What a callback raises, such as rclpy's own at a negative /clock, does not end the node."""
    try:
        executor.spin_once(timeout_sec=SPIN)
    except ExternalShutdownException:
        raise
    except Exception as error:  # a callback may raise anything
        node.failed_callbacks += 1
        node.get_logger().error(
            f"a callback failed, and the node goes on: {type(error).__name__}: {error}",
            throttle_duration_sec=1.0,
        )


def answer_pending(node: OceanNode, executor: Executor) -> None:
    """Answer the service calls that still wait, so that no service is destroyed before its call is answered."""
    node.triggers.refuse()
    end = time.monotonic() + ANSWER_TIMEOUT
    while rclpy.ok() and node.triggers.pending and time.monotonic() < end:
        spin(node, executor)


def threads_ended(timeout: float) -> bool:
    """Wait for the node's own threads -> whether all have ended within `timeout` seconds."""
    end, own = time.monotonic() + timeout, [t for t in threading.enumerate() if t.name.startswith("ocean_")]
    for thread in own:
        thread.join(max(0.0, end - time.monotonic()))
    return not any(thread.is_alive() for thread in own)


def make_executor() -> Executor:
    """The fastest that this ROS has."""
    try:
        from rclpy.experimental import EventsExecutor  # type: ignore[attr-defined]
    except ImportError:
        return SingleThreadedExecutor()
    return EventsExecutor()
