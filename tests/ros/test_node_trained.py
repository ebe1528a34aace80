"""Ages, gaps and queues that no parameter sets are those that the model was trained with."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from leaky import leaky
from ocean_ros.parameters import GAP, MAX_AGE, Input, Output, Settings, Trained
from ocean_ros.wiring import wire
from ocean_runtime import OceanModel
from robot import BEST_EFFORT, robot
from std_msgs.msg import Float32MultiArray

SECONDS = st.floats(1e-3, 1e6)


@settings(deadline=None)
@given(SECONDS, st.one_of(st.none(), SECONDS))
def test_what_the_model_states_is_the_default(age: float, rate: float | None) -> None:
    trained = Trained(age, rate, holds=True)
    assert trained.max_age(-1.0) == age and trained.on_gap("trained") == "reset"
    assert trained.gap_after(-1.0) >= age
    assert rate is None or trained.gap_after(-1.0) > 1 / rate, "two messages in a row are no gap"
    assert trained.lapsed(age * 1.01) and not trained.lapsed(age * 0.99)
    for given_age in (0.0, 0.3):
        assert trained.max_age(given_age) == trained.gap_after(given_age) == given_age
    assert all(trained.on_gap(policy) == policy for policy in ("keep", "reset", "restore"))


def test_a_model_that_states_nothing_keeps_its_state() -> None:
    trained = Trained()
    assert (trained.max_age(-1.0), trained.gap_after(-1.0), trained.on_gap("trained")) == (
        MAX_AGE,
        GAP,
        "keep",
    )
    assert not trained.lapsed(1e9)


def test_ten_messages_may_wait(tmp_path: Path) -> None:
    contract = OceanModel.load(leaky(tmp_path / "m.onnx")).contract
    (taken,) = wire(contract, Settings(), {"input": Input()}, {"output": Output()}).inputs
    assert not taken.every and taken.depth == 10


def test_a_gap_ends_the_episode_as_in_training(tmp_path: Path) -> None:
    """Where training began a new episode after 0.4 s without input, so does the node."""
    model = leaky(tmp_path / "model.onnx", max_age_s=0.4)
    with robot(tmp_path, autostart=True, model_path=model) as (client, process):
        sender = client.publisher(Float32MultiArray, "/ocean/input", BEST_EFFORT)
        message = Float32MultiArray(data=[1.0, 2.0, 3.0])
        sender.publish(message)
        client.counted("ocean", steps_taken=1)
        client.until(lambda: float(client.values("ocean")["seconds since input"]) > 0.5, "silence")
        sender.publish(message)
        values = client.counted("ocean", steps_taken=2)
        assert (values["steps"], values["gaps"], values["on_gap"]) == ("1", "1", "reset")
        assert "s without input: the state is reset" in process.output
        # What the parameters say is done instead.
        assert client.set("ocean", on_gap="keep") == []
        client.until(lambda: float(client.values("ocean")["seconds since input"]) > 0.5, "silence")
        sender.publish(message)
        values = client.counted("ocean", steps_taken=3)
        assert (values["steps"], values["gaps"], values["on_gap"]) == ("2", "2", "keep")


def test_an_input_older_than_in_training_ends_the_episode(tmp_path: Path) -> None:
    """Of a model of bags: one topic falls silent, while the one that is stepped at goes on."""
    model = leaky(tmp_path / "model.onnx", ("/a:data[0]", "/b:data[0]"), max_age_s=0.4)
    kind = "std_msgs/msg/Float32MultiArray"
    parameters = {
        "inputs": ["a", "b"],
        **{f"input__{n}__{k}": v for n in "ab" for k, v in (("topic", f"/{n}"), ("type", kind))},
    }
    with robot(tmp_path, autostart=True, model_path=model, **parameters) as (client, process):
        a = client.publisher(Float32MultiArray, "/a", BEST_EFFORT)
        b = client.publisher(Float32MultiArray, "/b", BEST_EFFORT)
        message = Float32MultiArray(data=[1.0])

        def both() -> bool:
            b.publish(message)
            a.publish(message)
            return int(client.values("ocean")["steps taken"]) > 0

        client.until(both, "step")
        a_only = int(client.values("ocean")["stale inputs"])
        client.until(
            lambda: a.publish(message) or int(client.values("ocean")["stale inputs"]) > a_only, "stale input"
        )
        before = int(client.values("ocean")["steps taken"])
        client.until(lambda: both() and int(client.values("ocean")["steps taken"]) > before, "another step")
        assert "after an input older than in training: the state is reset" in process.output
