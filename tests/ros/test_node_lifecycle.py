"""Every transition, from another process, and each way that it fails."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from leaky import leaky
from robot import BEST_EFFORT, Client, OceanProcess, robot
from sensor_msgs.msg import Imu
from std_msgs.msg import Float32MultiArray

IMU = {"input__input__topic": "/imu", "input__input__type": "sensor_msgs/msg/Imu"}
Pair = tuple[Client, OceanProcess]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A node that waits to be configured."""
    with robot(tmp_path, model_path=leaky(tmp_path / "imu.onnx"), rate=0, **IMU) as both:
        yield both


@pytest.fixture
def mistyped(tmp_path: Path) -> Iterator[Pair]:
    """One whose parameters were written by hand, in haste."""
    unknown = {"modle_path": 1, "inputz": ["a"], "input__input__tpic": "/imu"}
    known = {"use_sim_time": False, "qos_overrides__/parameter_events__publisher__depth": 1000}
    with robot(tmp_path, rate="fast", **IMU, **unknown, **known) as both:
        yield both


def test_a_mistake_hides_no_parameter_and_ends_with_the_input(tmp_path: Path) -> None:
    """Each input's can be set before the first configure; one that is used no more stands in nobody's way."""
    given = {
        "rate": "fast",
        "inputs": ["a", "b"],
        "input__a__max_age": -2.0,
        "input__b__type": IMU["input__input__type"],
    }
    with robot(tmp_path, model_path=leaky(tmp_path / "imu.onnx"), **given) as pair:
        client, _ = pair
        assert client.set("ocean", rate=0, input__b__topic="/imu", output__output__topic="/out") == []
        assert "input.a.max_age" in refused(pair)
        assert client.set("ocean", inputs=["b"]) == []
        assert client.transit("ocean", "configure")


def refused(pair: Pair, **parameters: object) -> str:
    """Set parameters, and let configure fail -> the sentence in the log."""
    client, process = pair
    assert client.set("ocean", **parameters) == []
    before = len(process.output)
    assert not client.transit("ocean", "configure")
    assert client.state("ocean") == "unconfigured"
    lines = [line for line in process.output[before:].splitlines() if "[ERROR]" in line]
    assert len(lines) == 1 and "Traceback" not in process.output
    return lines[0]


def test_a_node_that_waits_says_so_and_names_what_is_mistyped(mistyped: Pair) -> None:
    client, process = mistyped
    client.state("ocean")
    assert "unconfigured: waiting for a configure transition (or set autostart)" in process.output
    assert "there is no parameter modle_path: it has no effect; did you mean model_path?" in process.output


def test_each_mistake_fails_configure_with_one_sentence(
    mistyped: Pair, tmp_path: Path, tiny_path: Path
) -> None:
    """Each refusal is survived by the same process."""
    pair = client, process = mistyped
    assert "parameter rate" in refused(pair)  # given as a string in the YAML file
    status = client.fresh("ocean")
    assert status.level == b"\x02" and "configure failed: parameter rate" in status.message
    assert "model_path is empty" in refused(pair, rate=0)
    assert "there is no model file at /no/where.onnx" in refused(pair, model_path="/no/where.onnx")
    (tmp_path / "no.onnx").write_bytes(b"not a model")
    assert "model_path" in refused(pair, model_path=str(tmp_path / "no.onnx"))
    told = refused(pair, model_path=str(tiny_path))
    assert "input.input.type is sensor_msgs/msg/Imu, but the model reads text" in told
    assert "is not installed" in refused(
        pair, model_path=str(leaky(tmp_path / "imu.onnx")), input__input__type="no_msgs/msg/Imu"
    )
    assert "has no message Imus" in refused(pair, input__input__type="sensor_msgs/msg/Imus")
    assert "is no message type" in refused(pair, input__input__type="Imu")
    told = refused(pair, input__input__type="std_msgs/msg/String")
    assert "input.input.fields" in told and "'angular_velocity'" in told
    bad_fields = refused(
        pair, input__input__type="sensor_msgs/msg/Imu", input__input__fields=["angular_speed.x"]
    )
    assert "has no field 'angular_speed'" in bad_fields
    told = refused(pair, input__input__fields=["linear_acceleration.x"])
    assert "but the model's elements are angular_velocity.x, angular_velocity.y" in told
    told = refused(pair, input__input__fields=["angular_velocity.x", "angular_velocity.y"])
    assert "none of them gives angular_velocity.z" in told
    assert "needs an index" in refused(pair, input__input__fields=["angular_velocity_covariance"])
    assert "has 9 elements" in refused(pair, input__input__fields=["angular_velocity_covariance[9]"])
    assert "is std_msgs/Header, not a number" in refused(pair, input__input__fields=["header"])
    assert "parameter trigger is 'no'" in refused(pair, input__input__fields=[""], trigger="no")
    assert "step_at: rate needs one" in refused(pair, trigger="", step_at="rate")
    assert "there is no folder" in refused(pair, step_at="message", state_path="/no/where.safetensors")
    told = refused(pair, state_path=str(tmp_path / "imu.onnx"))
    assert "parameter state_path: the state can't be saved to" in told and "is no snapshot" in told
    assert "it is a folder" in refused(pair, state_path=str(tmp_path))
    assert "it is a device" in refused(pair, state_path="/dev/null")
    assert "input.input.topic" in refused(pair, state_path="", input__input__topic="/a b")
    assert "output.output.fields" in refused(
        pair, input__input__topic="/imu", output__output__type="geometry_msgs/msg/Twist"
    )
    told = refused(pair, output__output__type="", output__output__topic="/imu")
    assert "output.output.topic is /imu, an input: the node would hear itself" in told
    told = refused(pair, output__output__topic="/ocean/ocean")
    assert "output.output.topic is /ocean/ocean, which the node publishes, too" in told
    told = refused(pair, output__output__topic="~/output", input__input__topic="~/surprise")
    assert "input.input.topic is ~/surprise, which the node publishes: it would hear itself" in told
    assert client.set("ocean", input__input__topic="/imu", input__input__max_age=1.0) == []
    assert "outputs names 'a.b'" in refused(pair, outputs=["a.b"])
    told = refused(pair, outputs=["a", "b"])
    assert "output.b.topic is ~/output, which output.a publishes, too" in told
    assert client.set("ocean", outputs=["output"], output__output__type="") == []
    assert client.transit("ocean", "configure")
    assert client.transit("ocean", "cleanup")
    unknown = [line for line in process.output.splitlines() if "there is no parameter" in line]
    assert len(unknown) == 3, "use_sim_time, qos_overrides and the inputs' own are known"
    assert "there is no parameter inputz: it has no effect; did you mean inputs?" in unknown[1]
    assert "there is no parameter input.input.tpic" in unknown[2]


def test_every_transition_twice_round(pair: Pair) -> None:
    client, process = pair
    assert client.set("ocean", ocean_every=1) == []
    for _ in range(2):
        assert client.state("ocean") == "unconfigured"
        assert not client.transit("ocean", "activate"), "not possible before configure"
        assert client.transit("ocean", "configure")
        assert client.state("ocean") == "inactive"
        assert not client.transit("ocean", "configure")
        client.unheard("/imu")  # an inactive node listens to nothing
        steps = 0
        for _ in range(2):
            assert client.transit("ocean", "activate")
            assert client.state("ocean") == "active"
            outputs = client.collect(Float32MultiArray, "/ocean/output")
            sender = client.publisher(Imu, "/imu", BEST_EFFORT)
            client.until(lambda: sender.publish(Imu()) or outputs, "output")  # noqa: B023
            assert client.transit("ocean", "deactivate")
            assert client.state("ocean") == "inactive"
            steps = int(client.values("ocean")["steps"])
            client.unheard("/imu")
            sender.publish(Imu())
            client.meet("ocean")
            assert int(client.values("ocean")["steps"]) == steps, "an inactive node's state does not move"
            client.node.destroy_publisher(sender)
        assert steps >= 2, "the second activation went on from the first"
        assert client.transit("ocean", "cleanup")
    assert "Traceback" not in process.output


def test_structural_parameters_are_refused_while_active(pair: Pair) -> None:
    client, _ = pair
    assert client.transit("ocean", "configure") and client.transit("ocean", "activate")
    for name, value in (
        ("input__input__topic", "/other"),
        ("rate", 10.0),
        ("inputs", ["other"]),
        ("use_sim_time", True),
    ):
        (reason,) = client.set("ocean", **{name: value})
        assert "can't change while the node is active; deactivate it first" in reason
    assert client.set("ocean", gap_after=2, model_path="x.onnx") == [], "an integer does for a double"
    (reason,) = client.set("ocean", gap_after=-1.5)
    assert "out of range" in reason
    (reason,) = client.set("ocean", on_gap="forget")
    assert "choose trained or keep or reset or restore" in reason
    (about,) = client.describe("ocean", "gap_after")
    assert "count as a gap" in about.description and about.floating_point_range[0].to_value == 1e6
    assert client.transit("ocean", "deactivate")
    # Inactive, they may change, and activation follows them or fails with a sentence.
    assert client.set("ocean", input__input__fields=["angular_velocity.x"]) == []
    assert not client.transit("ocean", "activate")
    assert client.state("ocean") == "inactive"
    assert client.set("ocean", input__input__fields=[""], input__input__topic="/imu2") == []
    assert client.transit("ocean", "activate")
    client.until(lambda: client.node.count_subscribers("/imu2"), "reader of /imu2")
    assert client.set("ocean", input__input__max_age=1) == []
    assert client.transit("ocean", "deactivate") and client.transit("ocean", "cleanup")


def test_an_error_that_nobody_foresaw_is_logged_and_can_be_recovered_from(pair: Pair) -> None:
    client, process = pair
    assert client.set("ocean", use_sim_time=True, input__input__topic="/clock") == []
    assert client.transit("ocean", "configure")
    assert not client.transit("ocean", "activate"), "DDS refuses a second type on a topic"
    assert client.state("ocean") == "unconfigured"
    assert "activate failed:\nTraceback" in process.output
    client.set("ocean", use_sim_time=False, input__input__topic="/imu")
    assert client.transit("ocean", "configure") and client.transit("ocean", "activate")
    assert client.fresh("ocean").level == b"\x00"
