"""What an output message holds: numbers that fit, names of joints and classes, a frame; and what one that does not
fit leaves behind."""

import json
from pathlib import Path

import numpy as np
import pytest
from geometry_msgs.msg import TransformStamped, TwistStamped
from hypothesis import given, settings
from hypothesis import strategies as st
from leaky import leaky
from ocean_ros import fields
from ocean_ros.parameters import Input, Output, Settings
from ocean_ros.wiring import wire
from ocean_runtime import OceanModel
from robot import RELIABLE, robot
from sensor_msgs.msg import BatteryState, ChannelFloat32, JointState, PointCloud
from std_msgs.msg import Float32MultiArray, UInt8


def test_a_number_that_does_not_fit_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    path = leaky(tmp_path / "model.onnx", ("a",), ("b",))
    parameters = {
        "autostart": True,
        "model_path": path,
        "input__input__qos": "every",
        "output__output__type": "std_msgs/msg/UInt8",
        "output__output__fields": ["data"],
        "ocean_every": 1,
    }
    stream = OceanModel.load(path).stream()
    sign = float(np.sign(stream.step([1.0])[0]))
    stream.reset()
    with robot(tmp_path, **parameters) as (client, _):
        sender = client.publisher(Float32MultiArray, "/ocean/input", RELIABLE)
        outputs, oceans = (
            client.collect(UInt8, "/ocean/output"),
            client.collect(Float32MultiArray, "/ocean/ocean"),
        )
        for i in range(5):
            sender.publish(Float32MultiArray(data=[sign * 1e4]))  # far above 255
            sender.publish(Float32MultiArray(data=[sign * 3.0]))
            expected = stream.step([sign * 3.0])
            client.until(lambda: len(oceans) == i + 1, "ocean")  # noqa: B023
            assert outputs[i].data == round(float(expected[0]))
            assert np.array_equal(oceans[i].data, stream.ocean)
        values = client.values("ocean")
        assert (values["steps"], values["failed steps"]) == ("5", "5")


def test_what_does_not_fit_is_never_written() -> None:
    """Not into integers, nor into a float32 as an infinity; infinities themselves are numbers of a float."""
    for path, bad in (
        ("voltage", 1e39),
        ("cell_voltage[0:2]", -1e39),
        ("power_supply_status", 256.0),
        ("power_supply_status", np.nan),
        ("power_supply_status", np.inf),
    ):
        parsed = [fields.parse(path, BatteryState)]
        _, write = fields.writer(BatteryState, parsed)
        with pytest.raises(OverflowError, match="does not fit into"):
            write(np.full(parsed[0].size, bad))
        assert fields.may_overflow(parsed[0].number, np.dtype(np.float64))
    message, write = fields.writer(BatteryState, [fields.parse("voltage", BatteryState)])
    write(np.array([np.inf]))
    assert message.voltage == np.inf
    assert not fields.may_overflow("float", np.dtype(np.float32))
    assert not fields.may_overflow("double", np.dtype(np.float64))


def test_only_outputs_that_may_overflow_cost_a_copy_of_the_state(tmp_path: Path) -> None:
    contract = OceanModel.load(leaky(tmp_path / "m.onnx", ("a",), ("b",))).contract
    for kind, path, fallible in (
        ("std_msgs/msg/Float32", "data", False),
        ("geometry_msgs/msg/Twist", "linear.x", False),
        ("std_msgs/msg/Int32", "data", True),
    ):
        wiring = wire(contract, Settings(), {"in": Input()}, {"out": Output(type=kind, fields=[path])})
        assert wiring.outputs[0].fallible == fallible, kind


def test_probabilities_are_called_so_and_name_their_classes(tmp_path: Path) -> None:
    classes = ("walk", 'a "run", or so', "sit")
    contract = OceanModel.load(leaky(tmp_path / "m.onnx", ("a",), classes, output="logits")).contract
    wiring = wire(contract, Settings(), {"in": Input()}, {"out": Output()})
    (dimension,) = wiring.outputs[0].template.layout.dim
    what, _, names = dimension.label.partition(" ")
    assert what == "probabilities" and tuple(json.loads(names)) == classes and dimension.size == 3
    contract = OceanModel.load(leaky(tmp_path / "m.onnx", ("a",), ("b",))).contract
    wiring = wire(contract, Settings(), {"in": Input()}, {"out": Output()})
    assert wiring.outputs[0].template.layout.dim[0].label == "prediction"


JOINTS = "sensor_msgs/msg/JointState"


@pytest.mark.parametrize(
    ("elements", "paths", "names"),
    [
        (("elbow", "wrist"), ["position[0:2]"], ["elbow", "wrist"]),
        (("/j:position[elbow]", "/j:position[wrist]"), ["position[1]", "position[0]"], ["wrist", "elbow"]),
        (("u", "v"), ["position[elbow]", "position[wrist]"], ["elbow", "wrist"]),
        (("u", "v"), ["position[elbow]", "velocity[wrist]"], ["elbow", "wrist"]),
        (("position[0]", "position[1]"), ["position[0:2]"], []),
    ],
)
def test_a_joint_state_has_the_names_of_its_joints(
    elements: tuple[str, ...], paths: list[str], names: list[str], tmp_path: Path
) -> None:
    contract = OceanModel.load(leaky(tmp_path / "m.onnx", ("a",), elements)).contract
    wiring = wire(contract, Settings(), {"in": Input()}, {"out": Output(type=JOINTS, fields=paths)})
    (made,) = wiring.outputs
    assert made.template.name == names
    made.write(np.array([1.0, 2.0]))
    assert len(made.template.position) == 2
    assert len(made.template.velocity) in (0, 2), "an array is empty, or as long as the names"
    assert bool(wiring.notes) == (not names)


def test_joints_are_found_by_name_in_any_order() -> None:
    read = fields.reader([fields.parse(p, JointState) for p in ("position[elbow]", "velocity[wrist.1]")])
    for order in (["elbow", "wrist.1"], ["wrist.1", "base", "elbow"]):
        message = JointState(name=order)
        message.position = [{"elbow": 1.0}.get(name, 9.0) for name in order]
        message.velocity = [{"wrist.1": 2.0}.get(name, 9.0) for name in order]
        assert read(message).tolist() == [1.0, 2.0]
    for message, told in (
        (JointState(name=["base"], position=[1.0]), r"position\[elbow\]: the message has base"),
        (JointState(name=["elbow", "wrist.1"], position=[1.0]), r"velocity has 0 elements"),
        (JointState(), "the message has no names"),
    ):
        with pytest.raises(IndexError, match=told):
            read(message)
    with pytest.raises(fields.FieldError, match="has no names; give an index"):
        fields.parse("data[elbow]", Float32MultiArray)


def test_by_index_another_order_of_names_is_refused() -> None:
    """Silently another joint: by index, the names must stay where they were."""
    read = fields.reader([fields.parse("position[0]", JointState), fields.parse("position[0:2]", JointState)])
    message = JointState(name=["elbow", "wrist"], position=[1.0, 2.0])
    assert read(message).tolist() == [1.0, 1.0, 2.0]
    assert read(JointState(position=[3.0, 4.0])).tolist() == [3.0, 3.0, 4.0], (
        "without names: nothing is known"
    )
    message.name = ["wrist", "elbow"]
    with pytest.raises(IndexError, match=r"order of names changed to wrist, elbow.*write position\[NAME\]"):
        read(message)


@pytest.mark.parametrize("paths", [[], ["position[0]", "position[1]"], ["position[0:2]"]])
def test_what_an_index_takes_is_looked_up_where_the_model_knows_its_name(
    paths: list[str], tmp_path: Path
) -> None:
    elements = ("/joints:position[0]", "/joints:position[1]")
    lookups = ("/joints:position[elbow]", "/joints:position[wrist]")
    contract = OceanModel.load(leaky(tmp_path / "m.onnx", elements, lookups=lookups)).contract
    given = Input(topic="/joints", type=JOINTS, fields=paths)
    out = Output(type=JOINTS, fields=["position[0:2]"])
    wiring = wire(contract, Settings(), {"in": given}, {"out": out})
    assert not wiring.notes and wiring.outputs[0].template.name == ["elbow", "wrist"]
    read = wiring.inputs[0].read
    for order in (["elbow", "wrist"], ["wrist", "base", "elbow"]):
        message = JointState(name=order)
        message.position = [{"elbow": 1.0, "wrist": 2.0}.get(name, 9.0) for name in order]
        assert read(message).tolist() == [1.0, 2.0]
    # Another index than training's is what the user asked for.
    swapped = Input(
        topic="/joints", type=JOINTS, fields=[f"{elements[0]}=position[1]", f"{elements[1]}=position[0]"]
    )
    wiring = wire(contract, Settings(), {"in": swapped}, {"out": out})
    assert len(wiring.notes) == 2 and wiring.inputs[0].read(message).tolist() == [9.0, 2.0]


class TFMessage:
    """tf2_msgs/msg/TFMessage, whose package is not on PyPI, as far as a path follows it."""

    def __init__(self) -> None:
        self.transforms: list[TransformStamped] = []

    @classmethod
    def get_fields_and_field_types(cls) -> dict[str, str]:
        return {"transforms": "sequence<geometry_msgs/TransformStamped>"}


@settings(deadline=None)
@given(st.permutations(["a", "b/c", "d.e", "f-1"]), st.lists(st.floats(-1e9, 1e9), min_size=4, max_size=4))
def test_what_is_written_by_name_is_read_by_name(names: list[str], values: list[float]) -> None:
    parsed = [fields.parse(f"effort[{name}]", JointState) for name in names]
    message, write = fields.writer(JointState, parsed)
    write(np.array(values))
    assert message.name == names and fields.reader(parsed)(message).tolist() == values
    channels = [fields.parse(f"channels[{name}].values[1]", PointCloud) for name in names]
    cloud, write = fields.writer(PointCloud, channels)
    write(np.array(values) / 2)
    assert [channel.name for channel in cloud.channels] == names
    cloud.channels.reverse()
    assert fields.reader(channels)(cloud).tolist() == (np.array(values) / 2).astype(np.float32).tolist()
    frames = [fields.parse(f"transforms[{name}].transform.rotation.w", TFMessage) for name in names]
    message, write = fields.writer(TFMessage, frames)
    write(np.array(values))
    assert [t.child_frame_id for t in message.transforms] == names
    message.transforms.reverse()
    assert fields.reader(frames)(message).tolist() == values


def test_elements_and_joints_by_name_and_the_frame_of_the_output(tmp_path: Path) -> None:
    elements = ("/cloud:channels[base].values[0]", "/joints:position[elbow]")
    path = leaky(tmp_path / "model.onnx", elements)
    parameters = {
        "autostart": True,
        "model_path": path,
        "inputs": ["joints", "cloud"],
        "input__cloud__topic": "/cloud",
        "input__cloud__type": "sensor_msgs/msg/PointCloud",
        "input__cloud__qos": "every",
        "input__joints__topic": "/joints",
        "input__joints__type": JOINTS,
        "input__joints__qos": "every",
        "outputs": ["all", "twist", "named"],
        "output__all__topic": "/all",
        "output__twist__topic": "/twist",
        "output__twist__type": "geometry_msgs/msg/TwistStamped",
        "output__twist__fields": ["twist.linear.x", "twist.linear.y"],
        "output__named__topic": "/named",
        "output__named__type": "geometry_msgs/msg/TwistStamped",
        "output__named__fields": ["twist.linear.x", "twist.linear.y"],
        "output__named__frame_id": "map",
        **{f"input__{name}__max_age": 0.0 for name in ("cloud", "joints")},
    }
    stream = OceanModel.load(path).stream()
    with robot(tmp_path, **parameters) as (client, process):
        clouds = client.publisher(PointCloud, "/cloud", RELIABLE)
        joints = client.publisher(JointState, "/joints", RELIABLE)
        outputs = client.collect(Float32MultiArray, "/all")
        twist, named = client.collect(TwistStamped, "/twist"), client.collect(TwistStamped, "/named")
        for i, order in enumerate((["elbow", "wrist"], ["wrist", "elbow"], ["wrist", "base", "elbow"])):
            lidar = ChannelFloat32(name="lidar", values=[7.0])
            clouds.publish(PointCloud(channels=[lidar, ChannelFloat32(name="base", values=[float(i)])]))
            clouds.publish(PointCloud(channels=[lidar]))  # without the name it is another's: passed over
            client.counted("ocean", messages_received=3 * i + 2)
            message = JointState(name=order, position=[{"elbow": 0.5}.get(name, 9.0) for name in order])
            message.header.frame_id = "arm"
            joints.publish(message)
            expected = stream.step([float(i), 0.5])
            client.until(lambda: len(outputs) == i + 1, "output")  # noqa: B023
            assert np.array_equal(outputs[i].data, expected)
        joints.publish(JointState(name=["wrist"], position=[1.0]))
        assert client.counted("ocean", malformed_inputs=1)["steps"] == "3"
        assert "the message has wrist" in process.output
        client.until(lambda: len(twist) == len(named) == 3, "all outputs")
        assert {m.header.frame_id for m in twist} == {"arm"} and {m.header.frame_id for m in named} == {"map"}


def test_twelve_numbers_are_no_input_of_three(tmp_path: Path) -> None:
    with robot(tmp_path, autostart=True, model_path=leaky(tmp_path / "model.onnx")) as (client, process):
        sender = client.publisher(Float32MultiArray, "/ocean/input", RELIABLE)
        sender.publish(Float32MultiArray(data=[1.0] * 12))
        values = client.counted("ocean", malformed_inputs=1)
        assert values["steps"] == "0" and "has 12 elements, not 3" in process.output
        sender.publish(Float32MultiArray(data=[1.0] * 3))
        assert client.counted("ocean", steps_taken=1)["malformed inputs"] == "1"
