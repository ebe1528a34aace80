"""Field paths, wiring, diagnostics' judgement, the age of snapshots: what needs no second process."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from geometry_msgs.msg import PoseArray, Twist
from hypothesis import given, settings
from hypothesis import strategies as st
from leaky import leaky
from nav_msgs.msg import Odometry
from ocean_ros import fields
from ocean_ros.diagnostics import ERROR, OK, WARN, Counters, Judgement, Look, judge
from ocean_ros.memory import Memory, age
from ocean_ros.parameters import Input, Output, ParameterError, Settings
from ocean_ros.saver import Saver
from ocean_ros.stepping import Drops
from ocean_ros.wiring import check_topics, wire
from ocean_runtime import OceanModel
from ocean_runtime.snapshot import write
from sensor_msgs.msg import BatteryState, Image, JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray

PATHS = [
    "pose.pose.position.x",
    "pose.covariance[3]",
    "pose.covariance[30:36]",
    "twist.twist.angular.z",
    "header.stamp.sec",
]


@settings(deadline=None)
@given(st.lists(st.floats(-1e9, 1e9, width=32), min_size=10, max_size=10), st.permutations(PATHS))
def test_what_is_written_is_read(values: list[float], paths: list[str]) -> None:
    parsed = [fields.parse(path, Odometry) for path in paths]
    given = np.array(values)
    at = 0
    for field in parsed:  # an integer field rounds
        if field.number == "int32":
            given[at] = round(given[at] % 1e9)
        at += field.size
    message, write = fields.writer(Odometry, parsed)
    write(given)
    assert np.array_equal(fields.reader(parsed)(message), given)


def test_sequences_integers_and_booleans() -> None:
    paths = ["voltage", "present", "power_supply_status", "cell_voltage[2:4]", "cell_voltage[0]"]
    parsed = [fields.parse(path, BatteryState) for path in paths]
    message, write = fields.writer(BatteryState, parsed)
    write(np.array([12.5, 0.7, 2.6, 3.5, 3.25, 4.0]))
    assert message.present is True and message.power_supply_status == 3
    assert message.cell_voltage.tolist() == [4.0, 0.0, 3.5, 3.25]
    assert fields.reader(parsed)(message).tolist() == [12.5, 1.0, 3.0, 3.5, 3.25, 4.0]
    with pytest.raises(OverflowError, match="does not fit into uint8"):
        write(np.array([0.0, 0.0, 256.0, 0.0, 0.0, 0.0]))
    with pytest.raises(IndexError):
        fields.reader([fields.parse("position[2]", JointState)])(JointState(position=[1.0]))
    with pytest.raises(IndexError, match="has 1 elements"):
        fields.reader([fields.parse("position[0:3]", JointState)])(JointState(position=[1.0]))
    poses = [fields.parse("poses[1].position.y", PoseArray)]
    message, write = fields.writer(PoseArray, poses)
    write(np.array([2.0]))
    assert len(message.poses) == 2 and fields.reader(poses)(message).tolist() == [2.0]
    assert fields.reader([fields.parse("data[0:2]", Image)])(Image(data=[1, 255])).tolist() == [1.0, 255.0]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("linear.w", "has no field 'w', but x, y, z"),
        ("linear", "is geometry_msgs/Vector3, not a number"),
        ("linear[0]", "has no index"),
        ("linear.x.y", "is double, without fields"),
        ("linear..x", "is no field path"),
        ("__class__", "is no field path"),
        ("", "is no field path"),
    ],
)
def test_paths_that_lead_nowhere(path: str, told: str) -> None:
    with pytest.raises(fields.FieldError, match=told.replace("[", r"\[")):
        fields.parse(path, Twist)


def test_slices_that_lead_nowhere() -> None:
    for path, told in (
        ("position[3:3]", "must hold 1 to"),
        ("position", "needs an index"),
        ("name[0]", "is string"),
    ):
        with pytest.raises(fields.FieldError, match=told):
            fields.parse(path, JointState)
    with pytest.raises(fields.FieldError, match="only stand at the end"):
        fields.parse("poses[0:2].position.x", PoseArray)


def test_elements_are_found_by_name_topic_or_path(tmp_path: Path) -> None:
    names = ("/a:data[0]", "/b:data[0]", "speed", "/a:data[1]")
    contract = OceanModel.load(leaky(tmp_path / "m.onnx", names)).contract
    kind = "std_msgs/msg/Float64MultiArray"
    inputs = {
        "a": Input(topic="/a", type=kind, fields=[]),
        "b": Input(topic="/b", type=kind, fields=["speed=data[7]", "data[0]"]),
    }
    twist = Output(type="geometry_msgs/msg/Twist", fields=["/b:data[0]=linear.y"])
    wiring = wire(contract, Settings(), inputs, {"out": twist})
    assert [wire.positions.tolist() for wire in wiring.inputs] == [[0, 3], [2, 1]]
    assert wiring.outputs[0].positions.tolist() == [1]
    assert wiring.trigger is wiring.inputs[0]
    for bad, told in (
        (["speed=data[0]", "speed=data[1]"], "gives already"),
        (["speed=data[7]", "hop=data[0]"], "elements are /a:data"),
    ):
        inputs["b"] = Input(topic="/c", type=kind, fields=bad)
        with pytest.raises(ParameterError, match=told):
            wire(contract, Settings(), inputs, {"out": twist})
    inputs["b"] = Input(topic="/c", type=kind, fields=["speed=data[7]", "data[0]"])
    with pytest.raises(ParameterError, match=r"which may be /a:data.0. or /b:data.0.: write ELEMENT=PATH"):
        wire(contract, Settings(), inputs, {"out": twist})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"b": "/own"}, "input.b.topic is /own, which the node publishes: it would hear itself"),
        ({"b": "/a"}, "their types are std_msgs/msg/Float64MultiArray and std_msgs/msg/Float32MultiArray"),
        ({"x": "/a"}, "output.x.topic is /a, an input: the node would hear itself"),
        ({"x": "/own"}, "output.x.topic is /own, which the node publishes, too"),
        ({"y": "/x"}, "output.y.topic is /x, which output.x publishes, too"),
    ],
)
def test_a_topic_has_one_type_and_one_publisher(tmp_path: Path, change: dict[str, str], told: str) -> None:
    contract = OceanModel.load(leaky(tmp_path / "m.onnx", ("u", "v"))).contract

    def check(**topics: str) -> None:
        topic = {name: f"/{name}" for name in "abxy"} | topics
        doubles = "std_msgs/msg/Float64MultiArray"
        inputs = {
            "a": Input(topic=topic["a"], fields=["u=data[0]"]),
            "b": Input(topic=topic["b"], type=doubles, fields=["v=data[0]"]),
        }
        outputs = {name: Output(topic=topic[name]) for name in "xy"}
        check_topics(wire(contract, Settings(), inputs, outputs), ["/own"], lambda _, given: given)

    check()
    with pytest.raises(ParameterError, match=told):
        check(**change)


def test_drops_by_sequence_number() -> None:
    drops = Drops()

    def info(number: int, publisher: int = 1) -> dict[str, object]:
        return {"publication_sequence_number": number, "publisher_gid": {"data": bytes([publisher])}}

    assert [drops.count(info(n)) for n in (5, 6, 9, 10)] == [0, 0, 2, 0]
    assert drops.count(info(1, publisher=2)) == 0, "another publisher counts for itself"
    assert drops.count(info(11)) == 0
    assert drops.count({}) == 0, "older ROS tells no number"
    for publisher in range(3, 256):
        drops.count(info(1, publisher))
    assert len(drops._last) <= 256


def look(**changes: object) -> Look:
    values = {"stepped": 100, **{k: v for k, v in changes.items() if k in vars(Counters())}}
    rest = {k: v for k, v in changes.items() if k not in vars(Counters())}
    defaults = {
        "seconds": 1.0,
        "wanted": 100.0,
        "gap_after": 1.0,
        "idle": 0.01,
        "norm": 1.0,
        "save_problem": "",
        "save_age": 1.0,
        "publisher_problems": (),
    }
    return Look(counts=Counters(**values), **{**defaults, **rest})  # type: ignore[arg-type]


def test_judgement_needs_bad_seconds_in_a_row() -> None:
    settings = Settings()
    assert judge(look(), settings) == []
    cases = [
        (WARN, look(stepped=85)),
        (ERROR, look(stepped=40)),
        (ERROR, look(idle=1.5)),
        (ERROR, look(failed=1)),
        (WARN, look(not_finite=1)),
        (WARN, look(missed=2)),
        (ERROR, look(save_problem="full disk")),
        (WARN, look(save_age=31.0)),
        (WARN, look(norm=np.inf)),
        (WARN, look(publisher_problems=["no"])),
    ]
    for level, bad in cases:
        assert max(level for level, _ in judge(bad, settings)) == level
    judgement = Judgement()
    seconds = [
        look(missed=1),
        look(missed=1),
        look(),
        look(missed=1),
        look(failed=1),
        look(missed=1),
        look(failed=1),
    ]
    levels = [judgement.update(judge(second, settings), 3)[0] for second in seconds]
    assert levels == [OK, OK, OK, OK, OK, WARN, WARN]


def test_a_clock_that_cant_be_right_tells_no_age(tmp_path: Path) -> None:
    path = leaky(tmp_path / "m.onnx")
    memory = Memory(OceanModel.load(path), tmp_path / "state")
    memory.stream.step(np.ones(3))
    memory.stream.save(tmp_path / "state")
    saved = memory.stream.snapshot()
    assert age(saved, saved.saved_at + 5) == pytest.approx(5)
    assert age(saved, 1000.0) is None, "it is 1970"
    assert age(saved, saved.saved_at - 3600) is None, "saved in the future"
    fresh = Memory(OceanModel.load(path), tmp_path / "state")
    assert fresh.wake(0.0, "restore")[0] is False and fresh.stream.steps == 1
    fresh = Memory(OceanModel.load(path), tmp_path / "state")
    lost, why = fresh.wake(1e-9, "restore")
    assert lost and "s old" in why and fresh.stream.steps == 0
    write(replace(saved, saved_at=saved.saved_at + 1e6), tmp_path / "state")
    fresh = Memory(OceanModel.load(path), tmp_path / "state")
    lost, why = fresh.wake(0.0, "reset")
    assert lost and "can't be told" in why and fresh.stream.steps == 0
    assert not fresh.wake(0.0, "restore")[0] and fresh.stream.steps == 1


def test_a_full_disk_is_told_and_the_next_save_tries_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Memory(OceanModel.load(leaky(tmp_path / "m.onnx")), None)
    folder = tmp_path / "later"
    saver = Saver(folder / "state", 3, logging.getLogger("test"), memory.limit)
    told: list[str] = []
    saver.submit(memory.stream.snapshot(), told.append)
    while not told:
        pass
    assert "can't be saved" in told[0] and saver.failures == 1
    assert [(r.levelname, "can't be saved" in r.message) for r in caplog.records] == [("ERROR", True)]
    folder.mkdir()
    saver.submit(memory.stream.snapshot(), told.append)
    assert saver.close(10)
    assert told[1] == "" and saver.problem == "" and saver.saved is not None


def test_numbers_by_default(tmp_path: Path) -> None:
    contract = OceanModel.load(leaky(tmp_path / "m.onnx")).contract
    wiring = wire(contract, Settings(), {"input": Input()}, {"output": Output()})
    x = wiring.inputs[0].read(Float32MultiArray(data=[1.0, 2.0, 3.0]))
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert wiring.outputs[0].template.layout.dim[0].size == 3


def test_numbers_too_large_for_float32_travel_as_float64(tmp_path: Path) -> None:
    memory = Memory(OceanModel.load(leaky(tmp_path / "m.onnx", reference=5e6)), None)
    wiring = wire(memory.stream.model.contract, Settings(), {"input": Input()}, {"output": Output()})
    assert wiring.inputs[0].type == "std_msgs/msg/Float64MultiArray"
    x = wiring.inputs[0].read(Float64MultiArray(data=[5e6 + 0.01, 5e6, 5e6]))
    output = memory.step(x)
    wiring.outputs[0].write(output)
    assert wiring.outputs[0].template.data.tolist() == output.tolist()
    assert abs(output - 5e6).max() < 1 and (output != 5e6).all()
