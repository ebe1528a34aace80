"""A service call that is still waiting when the node is cleaned up or shut down is answered, never lost."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from leaky import leaky
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from robot import TRANSITIONS, Client, robot
from std_srvs.srv import Trigger

ROUNDS = 5
SERVICES = ("save", "swap")


def asked(client: Client, *services: str) -> list[Any]:
    """Calls that are on their way, unanswered."""
    made = []
    for service in services:
        caller = client.node.create_client(Trigger, f"/ocean/{service}")
        client.until(caller.service_is_ready, f"service {service}")
        made.append(caller)
    client.meet("ocean")
    return [caller.call_async(Trigger.Request()) for caller in made]


def shut_down(client: Client) -> bool:
    request = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_INACTIVE_SHUTDOWN))
    return bool(client.call(ChangeState, "/ocean/change_state", request).success)


def test_cleanup_answers_what_is_pending(tmp_path: Path) -> None:
    model = leaky(tmp_path / "model.onnx")
    with robot(tmp_path, model_path=model, state_path=tmp_path / "state") as (client, process):
        for _ in range(ROUNDS):
            assert client.transit("ocean", "configure")
            client.call(  # known before the calls, so that cleanup follows them at once
                ChangeState,
                "/ocean/change_state",
                ChangeState.Request(transition=Transition(id=TRANSITIONS["activate"])),
            )
            assert client.transit("ocean", "deactivate")
            pending = asked(client, *SERVICES, *SERVICES)
            assert client.transit("ocean", "cleanup")
            client.until(lambda: all(call.done() for call in pending), "answers")  # noqa: B023
            for call in pending:
                answer = call.result()
                assert answer.success or answer.message, "an answer says why"
            assert client.state("ocean") == "unconfigured"
        assert process.end(signal.SIGTERM) == 0 and "Traceback" not in process.output


@pytest.mark.parametrize("how", ["transition", "signal"])
def test_shutdown_answers_what_is_pending(tmp_path: Path, how: str) -> None:
    model = leaky(tmp_path / "model.onnx")
    with robot(tmp_path, model_path=model, state_path=tmp_path / "state") as (client, process):
        assert client.transit("ocean", "configure")
        pending = asked(client, *SERVICES, *SERVICES)
        if how == "transition":
            assert shut_down(client)
            client.until(lambda: all(call.done() for call in pending), "answers")
            assert process.process.poll() is None
        else:
            client.spin(0.01)
        assert process.end(signal.SIGTERM) == 0 and "Traceback" not in process.output


def test_a_signal_while_a_large_model_is_loaded(tmp_path: Path) -> None:
    """The interpreter must not end while a thread is inside onnxruntime: that aborts the process."""
    model, large = leaky(tmp_path / "model.onnx"), tmp_path / "large.onnx"
    graph = onnx.load(model)
    ballast = np.ones((2000, 10_000), np.float32)
    graph.graph.initializer.append(onnx.numpy_helper.from_array(ballast, "ballast"))
    graph.graph.node.append(onnx.helper.make_node("MatMul", ["ballast", "ballast_t"], ["product"]))
    graph.graph.node.append(onnx.helper.make_node("Transpose", ["ballast"], ["ballast_t"]))
    onnx.save(graph, large)
    for _ in range(ROUNDS):
        with robot(tmp_path, model_path=model, autostart=True) as (client, process):
            client.until(lambda: client.state("ocean") == "active", "active node")
            client.set("ocean", model_path=str(large))
            asked(client, "swap")
            client.spin(0.2)
            assert process.end(signal.SIGTERM) == 0


def test_without_a_configuration_each_service_says_so(tmp_path: Path) -> None:
    with robot(tmp_path) as (client, _):
        for service in ("reset", "save", "restore", "swap"):
            answer = client.trigger("ocean", service)
            assert not answer.success and "configure" in answer.message
