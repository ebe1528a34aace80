"""The file of the state: one writer at a time, its size, and what the log says of failed saves."""

import shutil
import signal
from pathlib import Path

import numpy as np
from leaky import leaky
from ocean_runtime import OceanModel
from ocean_runtime.snapshot import read
from ocean_runtime.state_path import StatePath
from rcl_interfaces.msg import Log
from robot import RELIABLE, OceanProcess, robot
from std_msgs.msg import Float32MultiArray


def logged(messages: list[Log], level: int, text: str) -> bool:
    return any(message.level == level and text in message.msg for message in messages)


def test_two_nodes_on_one_state_and_ocean_run(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    """The second writer is met with a sentence, and configures once the first is gone."""
    model, state = leaky(tmp_path / "model.onnx"), tmp_path / "state"
    (tmp_path / "link").symlink_to("state")
    with robot(tmp_path, autostart=True, model_path=model, state_path=state) as (client, first):
        assert client.trigger("ocean", "save").success
        second = OceanProcess(
            tmp_path, first.domain, "second", model_path=model, state_path=tmp_path / "link"
        )
        try:
            assert not client.transit("second", "configure")
            pid = first.process.pid
            assert f"parameter state_path: {state} is in use by process {pid}" in second.output
            done = command("ocean_runtime.cli", model, tmp_path / "no.csv", "--state", state)
            assert done.returncode == 1 and f"in use by process {pid}".encode() in done.stderr
            # The same node may take it again; another file sets the first one free.
            for _ in range(2):
                assert client.transit("ocean", "deactivate") and client.transit("ocean", "activate")
            assert client.transit("ocean", "deactivate")
            assert client.set("ocean", state_path=str(tmp_path / "other")) == []
            assert client.transit("ocean", "activate")
            assert client.transit("second", "configure")
            assert client.transit("second", "cleanup")
            assert client.transit("ocean", "deactivate") and client.transit("ocean", "cleanup")
            StatePath(tmp_path / "other").release()
            StatePath(state).release()
        finally:
            second.kill()
    assert (tmp_path / "link").is_symlink()


def test_a_save_before_the_first_activation_leaves_the_file_alone(tmp_path: Path) -> None:
    """The node holds the initial state until it is activated; ~/swap does not change that."""
    model, state = leaky(tmp_path / "model.onnx"), tmp_path / "state"
    stream = OceanModel.load(model).stream()
    stream.run(np.ones((7, 3), np.float32))
    stream.save(state)
    before = state.read_bytes()
    with robot(tmp_path, model_path=model, state_path=state) as (client, process):
        assert client.transit("ocean", "configure")
        for _ in range(2):
            answer = client.trigger("ocean", "save")
            assert not answer.success and "activate the node first" in answer.message
            assert client.trigger("ocean", "swap").success
        assert client.transit("ocean", "cleanup") and client.transit("ocean", "configure")
        assert state.read_bytes() == before
        assert client.transit("ocean", "activate")
        assert "restored step 7 from" in process.output
        assert client.transit("ocean", "deactivate")
        assert client.trigger("ocean", "save").success
        assert client.transit("ocean", "cleanup") and client.transit("ocean", "configure")
        assert client.trigger("ocean", "reset").success
        assert client.trigger("ocean", "save").success
    assert read(state).steps == 0


def test_a_larger_file_is_not_read_and_not_overwritten(tmp_path: Path) -> None:
    """A snapshot of a much larger model, 8 MB where this one's has some kilobytes."""
    large = OceanModel.load(leaky(tmp_path / "large.onnx", width=2_000_000))
    large.stream().save(tmp_path / "state")
    small = leaky(tmp_path / "small.onnx")
    with robot(tmp_path, autostart=True, model_path=small, state_path=tmp_path / "state") as (
        client,
        process,
    ):
        assert client.trigger("ocean", "save").success
        assert "starting from the initial state:" in process.output and "it has more than" in process.output
    assert read(tmp_path / "state").states["ocean"].shape == (1, 8)
    assert read(tmp_path / "state.damaged").states["ocean"].shape == (1, 2_000_000)


def test_failed_saves_and_swaps_are_in_rosout(tmp_path: Path) -> None:
    model, folder = leaky(tmp_path / "model.onnx"), tmp_path / "disk"
    folder.mkdir()
    with robot(tmp_path, autostart=True, model_path=model, state_path=folder / "state") as (client, process):
        log: list[Log] = []
        client.node.create_subscription(Log, "/rosout", log.append, RELIABLE)
        client.meet("ocean")
        shutil.rmtree(folder)
        answer = client.trigger("ocean", "save")
        assert not answer.success and "there is no folder" in answer.message
        client.until(
            lambda: logged(log, Log.ERROR, f"save failed: the state can't be saved to {folder}"), "ERROR"
        )
        client.set("ocean", model_path="/no/where.onnx")
        assert not client.trigger("ocean", "swap").success
        client.until(lambda: logged(log, Log.ERROR, "the node keeps its model: there is no model"), "ERROR")
        assert not client.trigger("ocean", "restore").success
        client.until(lambda: logged(log, Log.ERROR, "restore: there is no snapshot at"), "ERROR")
        before = process.output.count("save failed")
        assert process.end(signal.SIGTERM) == 0
        assert process.output.count("save failed") == before + 1, "also at the end"


def test_inputs_out_of_range_are_in_rosout(tmp_path: Path) -> None:
    model = leaky(tmp_path / "model.onnx", ("a", "b", "c"), high=1.0)
    with robot(tmp_path, autostart=True, model_path=model) as (client, _):
        log: list[Log] = []
        client.node.create_subscription(Log, "/rosout", log.append, RELIABLE)
        sender = client.publisher(Float32MultiArray, "/ocean/input")
        sender.publish(Float32MultiArray(data=[0.0, 7.0, 0.0]))
        told = "b was 7, and the model saw"
        client.until(lambda: logged(log, Log.WARN, told), "WARN")
