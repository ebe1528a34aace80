"""What an output message holds: numbers that fit, names of joints and classes, a frame; and what one that does not
fit leaves behind."""

from pathlib import Path

import numpy as np
import pytest
from geometry_msgs.msg import Twist
from leaky import leaky
from ocean_ros import fields
from ocean_ros.parameters import Input, Output, Settings
from ocean_ros.wiring import wire
from ocean_runtime import OceanModel
from robot import RELIABLE, robot
from sensor_msgs.msg import BatteryState
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
        assert wiring.outputs[0].fallible == fallible, Twist
