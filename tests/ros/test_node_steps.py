"""What an active node does with what comes in: numbers, ages, gaps, clocks, bad input, QoS."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from geometry_msgs.msg import TwistStamped
from leaky import leaky
from ocean_runtime import OceanModel
from robot import BEST_EFFORT, RELIABLE, Client, OceanProcess, robot
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Imu, JointState
from std_msgs.msg import Float32, Float32MultiArray

ELEMENTS = ("/imu:angular_velocity.x", "/joints:position[0]", "/joints:position[1]")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OceanModel:
    return OceanModel.load(leaky(tmp_path_factory.mktemp("model") / "robot.onnx", ELEMENTS))


@contextmanager
def active(model: OceanModel, folder: Path, **parameters: object) -> Iterator[tuple[Client, OceanProcess]]:
    """The node in a process of its own, active with these parameters and those that each test has."""
    usual = {
        "autostart": True,
        "model_path": model.path,
        "inputs": ["imu", "joints"],
        "input__imu__topic": "/imu",
        "input__imu__type": "sensor_msgs/msg/Imu",
        "input__imu__max_age": 0.0,
        "input__joints__topic": "/joints",
        "input__joints__type": "sensor_msgs/msg/JointState",
        "input__joints__qos": "every",
        "input__joints__max_age": 0.0,
        "trigger": "imu",
        "outputs": ["arm", "all"],
        "output__arm__topic": "/arm",
        "output__arm__type": "geometry_msgs/msg/TwistStamped",
        # By the elements' names, in another order than the model's, and not all of them.
        "output__arm__fields": [f"{ELEMENTS[2]}=twist.linear.z", f"{ELEMENTS[0]}=twist.angular.x"],
        "output__all__topic": "/all",
        "ocean_every": 2,
        "gap_after": 0.0,
        "bad_seconds": 1,
    }
    with robot(folder, **usual | parameters) as (client, process):
        yield client, process
        assert client.transit("ocean", "deactivate") and client.transit("ocean", "cleanup")


def imu(x: float, sec: int = 0) -> Imu:
    message = Imu()
    message.angular_velocity.x, message.header.stamp.sec = x, sec
    return message


def joints(*position: float, sec: int = 0) -> JointState:
    message = JointState(position=list(position))
    message.header.stamp.sec = sec
    return message


def test_steps_at_each_message_give_the_runtimes_numbers(model: OceanModel, tmp_path: Path) -> None:
    with active(model, tmp_path) as (client, _):
        send_imu = client.publisher(Imu, "/imu", BEST_EFFORT)
        send_joints = client.publisher(JointState, "/joints", RELIABLE)
        arm, everything = client.collect(TwistStamped, "/arm"), client.collect(Float32MultiArray, "/all")
        ocean, surprise = (
            client.collect(Float32MultiArray, "/ocean/ocean"),
            client.collect(Float32, "/ocean/surprise"),
        )

        send_imu.publish(imu(1.0))
        values = client.counted("ocean", stale_inputs=1)
        assert values["steps"] == "0", "nothing is stepped before every input has spoken"

        send_joints.publish(joints(0.5, -0.5, sec=7))
        client.counted("ocean", messages_received=2)
        stream, expected, surprises, oceans = model.stream(), [], [], []
        for i in range(6):
            x = np.array([0.1 * i, 0.5, -0.5])
            if stream.prediction is not None:
                surprises.append(np.mean((x - stream.prediction) ** 2))
            expected.append(stream.step(x))
            if stream.steps % 2 == 0:
                oceans.append(stream.ocean)
            send_imu.publish(imu(x[0], sec=5 + i))
            client.until(lambda: len(everything) == i + 1, "output")  # noqa: B023
        client.until(lambda: len(arm) == 6 and len(ocean) == 3 and len(surprise) == 5, "all topics")
        assert np.array_equal([m.data for m in everything], expected)
        assert [m.twist.linear.z for m in arm] == [e[2] for e in expected]
        assert [m.twist.angular.x for m in arm] == [e[0] for e in expected]
        assert [m.header.stamp.sec for m in arm] == [7, 7, 7, 8, 9, 10], "the newest input's stamp"
        assert np.array_equal([m.data for m in ocean], oceans)
        assert ocean[0].layout.dim[0].label == "ocean" and ocean[0].layout.dim[0].size == 8
        assert np.allclose([m.data for m in surprise], surprises, rtol=1e-6)


def test_what_cant_be_right_is_not_published(model: OceanModel, tmp_path: Path) -> None:
    with active(model, tmp_path, input__imu__qos="every", on_failed_step="reset") as (client, _):
        send_imu = client.publisher(Imu, "/imu", RELIABLE)
        send_joints = client.publisher(JointState, "/joints", RELIABLE)
        everything = client.collect(Float32MultiArray, "/all")
        send_joints.publish(joints(0.0, 0.0))
        client.counted("ocean", messages_received=1)  # two topics have no order between them

        def step(x: float) -> list[float]:
            count = len(everything)
            send_imu.publish(imu(x))
            client.until(lambda: len(everything) > count, "output")
            assert len(everything) == count + 1, "no other output came before"
            return everything[-1].data.tolist()  # type: ignore[no-any-return]

        good = step(1.0)
        for x in (math.nan, math.inf, 1e39):  # the last is finite, but not in float32
            send_imu.publish(imu(x))
        send_joints.publish(joints(0.0))  # too short
        client.counted("ocean", messages_received=6)
        send_imu.publish(imu(1.0))
        client.counted("ocean", malformed_inputs=1)
        send_joints.publish(joints(0.0, 0.0))
        client.counted("ocean", messages_received=8)
        send_imu.publish(imu(3e38))  # finite, but the step is not
        values = client.counted("ocean", failed_steps=1)
        assert (values["non-finite inputs"], values["malformed inputs"], values["failed steps"]) == (
            "3",
            "1",
            "1",
        )
        assert values["steps"] == "0", "on_failed_step: reset"
        assert step(1.0) == good, "the first step of a new life; no wrong output, no zeros before it"
        send_imu.publish(imu(3e38))
        status = client.until(
            lambda: ((s := client.fresh("ocean")).level == b"\x02" and s) or send_imu.publish(imu(3e38)),
            "ERROR",
        )
        assert "failed steps" in status.message
        count = len(everything)
        assert client.set("ocean", input__joints__max_age=0.001) == []
        client.until(
            lambda: client.values("ocean")["stale inputs"] != "0" or send_imu.publish(imu(1.0)), "stale count"
        )
        assert client.set("ocean", input__joints__max_age=0.0) == []
        step(1.0)
        assert len(everything) == count + 1, "nothing came while the joints were too old"


def test_fixed_rate_from_the_latest_of_several(model: OceanModel, tmp_path: Path) -> None:
    with active(
        model,
        tmp_path,
        step_at="rate",
        rate=50,
        input__imu__max_age=0.3,
        input__joints__max_age=0.0,
        gap_after=0.5,
        on_gap="reset",
    ) as (client, process):
        send_imu = client.publisher(Imu, "/imu", BEST_EFFORT)
        send_joints = client.publisher(JointState, "/joints", RELIABLE)
        everything = client.collect(Float32MultiArray, "/all")
        send_joints.publish(joints(0.1, 0.2))
        client.counted("ocean", messages_received=1)
        client.until(lambda: send_imu.publish(imu(1.0)) or len(everything) >= 10, "steps at a rate")
        client.until(lambda: float(client.values("ocean")["seconds since input"]) > 0.6, "silence")
        taken = int(client.values("ocean")["steps taken"])
        values = client.values("ocean")  # a second, or 50 periods, later
        assert int(values["steps taken"]) == taken, "the imu is lost: nothing is stepped"
        client.until(lambda: len(everything) == taken, "all outputs")
        gaps = int(values["gaps"])
        client.until(lambda: send_imu.publish(imu(1.0)) or len(everything) > taken, "steps again")
        values = client.values("ocean")
        assert int(values["gaps"]) > gaps
        assert int(values["steps"]) < int(values["steps taken"]), "on_gap: reset"
        assert "without input: the state is reset" in process.output


def test_ros_time_that_jumps_backward(model: OceanModel, tmp_path: Path) -> None:
    with active(model, tmp_path, use_sim_time=True, step_at="rate", rate=50, input__joints__max_age=50.0) as (
        client,
        process,
    ):
        # The joints come before the first /clock, while ROS time stands at zero: that makes them no 100 s old.
        clock = client.publisher(Clock, "/clock", RELIABLE)
        send_imu = client.publisher(Imu, "/imu", BEST_EFFORT)
        send_joints = client.publisher(JointState, "/joints", RELIABLE)
        everything = client.collect(Float32MultiArray, "/all")
        message = Clock()

        def tick(milliseconds: int) -> None:
            message.clock.sec, message.clock.nanosec = divmod(milliseconds * 1_000_000, 1_000_000_000)
            clock.publish(message)

        # Once only: each tick has its inputs, and the clock can be told again where a message was overwritten.
        send_imu.publish(imu(1.0))
        send_joints.publish(joints(0.1, 0.2))
        values = client.counted("ocean", messages_received=2)
        assert values["steps"] == "0", "ROS time stands still"
        for i in range(50):
            client.until(lambda: tick(100_000 + 20 * i) or len(everything) > i, "step")  # noqa: B023
        values = client.values("ocean")
        taken = int(values["steps taken"])
        assert 50 <= taken <= 51, "50 steps in a second of ROS time, however long it takes"
        client.until(lambda: len(everything) == taken, "all outputs")
        assert values["clock jumps"] == "0" and int(values["steps"]) == taken
        client.until(lambda: tick(10_000) or client.values("ocean")["clock jumps"] != "0", "jump")
        values = client.values("ocean")
        assert values["clock jumps"] == "1" and values["steps"] == "0", "on_clock_jump: reset"
        assert "ROS time jumped by -9" in process.output
        # A time that can't be ends neither the clock nor the node.
        client.until(lambda: tick(-1_000) or client.values("ocean")["failed callbacks"] != "0", "bad clock")
        assert "the node goes on: ValueError: Seconds value must not be negative" in process.output
        count, heard = len(everything), int(values["messages received"])
        send_joints.publish(joints(0.1, 0.2))
        send_imu.publish(imu(1.0))
        client.counted("ocean", messages_received=heard + 2)
        client.until(lambda: tick(20_000) or len(everything) > count, "a step again")


def test_qos_that_does_not_fit_names_both_sides(model: OceanModel, tmp_path: Path) -> None:
    with active(model, tmp_path) as (client, _):
        sender = client.node.create_publisher(JointState, "/joints", BEST_EFFORT)
        status = client.until(
            lambda: (
                (s := client.fresh("ocean")).level == b"\x01" and "no messages on /joints" in s.message and s
            ),
            "WARN",
        )
        assert "this node asks for reliable, volatile" in status.message
        assert "the publisher /client offers best effort" in status.message
        client.node.destroy_publisher(sender)
        client.until(lambda: "no messages on" not in client.fresh("ocean").message, "end of the WARN")


def test_drops_are_counted(model: OceanModel, tmp_path: Path) -> None:
    """Sent faster than it can step: what was not stepped is counted, to the last message; so are late steps."""
    with active(model, tmp_path, rate=10_000) as (client, _):
        send_joints = client.publisher(JointState, "/joints", RELIABLE)
        sender = client.publisher(Imu, "/imu", BEST_EFFORT)
        everything = client.collect(Float32MultiArray, "/all")
        send_joints.publish(joints(0.0, 0.0))
        client.counted("ocean", messages_received=1)
        sender.publish(imu(0.0))
        client.until(lambda: everything, "first step")
        sent = 1
        for _ in range(2000):
            sender.publish(imu(1.0))
            sent += 1

        def settled() -> bool:
            nonlocal sent
            sender.publish(imu(1.0))  # the last message is always taken, and settles the account
            sent += 1
            client.spin(0.1)
            values = client.values("ocean")
            return int(values["steps taken"]) + int(values["messages dropped"]) == sent

        client.until(settled, "account of every message")
        values = client.values("ocean")
        assert int(values["messages dropped"]) > 0
        assert int(values["deadline misses"]) > 0, "a step through Python takes longer than 0.1 ms"
