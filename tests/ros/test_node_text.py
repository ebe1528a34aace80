"""Text models over DDS: reading, replying, saving, restoring, swapping."""

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from leaky import leaky
from ocean_ros.conversation import Pace
from ocean_runtime import OceanModel
from ocean_runtime.snapshot import read
from ocean_runtime.text import generate, read_text
from robot import RELIABLE, Client, OceanProcess, robot
from std_msgs.msg import Float32, Float32MultiArray, String

REPLY = 12
STATE = "state.safetensors"
Pair = tuple[Client, OceanProcess]


def talking(folder: Path, model: Path, **parameters: object) -> AbstractContextManager[Pair]:
    """The node in a process of its own, active: it answers each text."""
    usual = {"autostart": True, "reply_tokens": REPLY, "slice": 0.001, "ocean_every": 0}
    return robot(folder, model_path=model, **usual | parameters)


@pytest.fixture
def pair(tmp_path: Path, tiny_path: Path) -> Iterator[Pair]:
    with talking(tmp_path, tiny_path, state_path=tmp_path / STATE, save_period=0.0) as both:
        yield both


def replies(model: OceanModel, *texts: str) -> list[str]:
    """What an uninterrupted stream of the runtime says after each text."""
    stream, said = model.stream(), []
    for text in texts:
        list(read_text(stream, [text.encode()]))
        said.append("".join(generate(stream, REPLY)))
    return said


def ask(client: Client, sender: object, pieces: list[String], text: str) -> str:
    """Send a text -> the whole reply."""
    pieces.clear()
    sender.publish(String(data=text))  # type: ignore[attr-defined]
    client.until(lambda: len(pieces) == REPLY, "reply")
    return "".join(piece.data for piece in pieces)


def test_a_conversation_that_a_swap_and_a_pause_do_not_interrupt(
    pair: Pair, tmp_path: Path, tiny: OceanModel, tiny_path: Path
) -> None:
    client, process = pair
    sender = client.publisher(String, "/ocean/input")
    pieces = client.collect(String, "/ocean/output")
    surprise = client.collect(Float32, "/ocean/surprise")
    texts = ["O, she doth teach", " the torches", " to burn bright!", "\n"]
    expected = replies(tiny, *texts)
    assert ask(client, sender, pieces, texts[0]) == expected[0]
    client.until(lambda: surprise, "surprise")
    stream = tiny.stream()
    losses = [r.loss for r in read_text(stream, [texts[0].encode()]) if r.loss is not None]
    assert np.isclose(surprise[0].data, np.mean(losses), rtol=1e-5), "mean nats a token"

    # Read in slices of 1 ms; a service is answered meanwhile.
    assert client.trigger("ocean", "save").success
    assert read(tmp_path / STATE).steps == len(texts[0]) + REPLY

    # The same model in another file keeps the state.
    (tmp_path / "same.onnx").write_bytes(tiny_path.read_bytes())
    assert client.set("ocean", model_path=str(tmp_path / "same.onnx")) == []
    answer = client.trigger("ocean", "swap")
    assert answer.success and "the same model in another file" in answer.message
    assert ask(client, sender, pieces, texts[1]) == expected[1]

    # A file that can't be swapped to leaves all as it is.
    for wrong in ("/no/where.onnx", str(leaky(tmp_path / "leaky.onnx"))):
        client.set("ocean", model_path=wrong)
        answer = client.trigger("ocean", "swap")
        assert not answer.success and "keeps its model" in answer.message
    client.set("ocean", model_path=str(tiny_path))
    assert ask(client, sender, pieces, texts[2]) == expected[2]

    # A pause is not a new life.
    assert client.transit("ocean", "deactivate")
    client.unheard("/ocean/input")
    assert client.transit("ocean", "activate")
    client.until(sender.get_subscription_count, "reader")
    client.meet("ocean")
    assert ask(client, sender, pieces, texts[3]) == expected[3]

    # SIGINT: saved, status 0, no traceback.
    assert process.end(signal.SIGINT) == 0
    assert "Traceback" not in process.output
    client.unheard("/ocean/input", "/ocean/output")
    assert read(tmp_path / STATE).steps == sum(map(len, texts[:4])) + 4 * REPLY


def test_reset_restore_and_what_stops_a_reply(pair: Pair, tmp_path: Path, tiny: OceanModel) -> None:
    client, process = pair
    sender = client.publisher(String, "/ocean/input")
    pieces = client.collect(String, "/ocean/output")
    ocean = client.collect(Float32MultiArray, "/ocean/ocean")
    first, second = replies(tiny, "ROMEO", ": night")
    assert client.trigger("ocean", "reset").success
    assert ask(client, sender, pieces, "ROMEO") == first
    assert client.trigger("ocean", "save").success
    assert ask(client, sender, pieces, ": night") == second
    assert client.trigger("ocean", "restore").success
    assert client.set("ocean", ocean_every=1) == []
    assert ask(client, sender, pieces, ": night") == second, "back to the save"
    client.until(lambda: len(ocean) == len(": night") + REPLY, "ocean after each token")

    # A reply ends after its stop string.
    client.set("ocean", reply_stop=first[3:5])
    assert client.trigger("ocean", "reset").success
    pieces.clear()
    sender.publish(String(data="ROMEO"))
    said = first[: first.index(first[3:5]) + 2]
    client.until(lambda: len(pieces) >= len(said), "reply")
    for _ in range(2):  # a second apart
        assert client.values("ocean")["steps"] == str(len("ROMEO") + len(said))
    assert "".join(piece.data for piece in pieces) == said

    # Reading comes before writing: what is said after three messages in a row has read all three.
    client.set("ocean", reply_stop="", ocean_every=0)
    assert client.trigger("ocean", "reset").success
    pieces.clear()
    text = "the cheek of night " * 30
    for _ in range(3):
        sender.publish(String(data=text))
    steps = 3 * len(text) + REPLY
    client.until(lambda: int(client.values("ocean")["steps"]) >= steps, "reply")
    (whole,) = replies(tiny, text * 3)
    assert "".join(piece.data for piece in pieces).endswith(whole)

    # More than max_pending is left out, and counted.
    client.set("ocean", max_pending=10)
    sender.publish(String(data=text))
    client.until(lambda: client.values("ocean")["text left out"] == "1", "count")
    sender.publish(String(data=""))  # nothing to read, nothing to say
    assert process.end(signal.SIGTERM) == 0 and "Traceback" not in process.output


def test_another_models_state_is_set_aside(pair: Pair, tmp_path: Path) -> None:
    """A new model starts from nothing, and its saves do not destroy the old one's past."""
    client, process = pair
    assert client.trigger("ocean", "save").success
    old = read(tmp_path / STATE).state_id
    process.restart(
        model_path=leaky(tmp_path / "new.onnx"),
        input__input__qos="every",
        input__input__topic="/in",
        output__output__topic="/out",
    )
    sender = client.publisher(Float32MultiArray, "/in", RELIABLE)
    outputs = client.collect(Float32MultiArray, "/out")
    sender.publish(Float32MultiArray(data=[1.0, 2.0, 3.0]))
    client.until(lambda: outputs, "output")
    assert "starting from the initial state: the snapshot is of the model" in process.output
    assert client.trigger("ocean", "save").success
    new = read(tmp_path / STATE)
    assert new.steps == 1 and new.state_id != old
    aside = tmp_path / f"state.safetensors.{old.removeprefix('sha256:')[:8]}"
    assert read(aside).state_id == old
    told = f"{tmp_path / STATE} is another model's: renamed to {aside}, before a save"
    assert told in process.output


def test_killed_after_a_save_it_goes_on_where_it_was(
    pair: Pair, tmp_path: Path, tiny: OceanModel, tiny_path: Path
) -> None:
    client, process = pair
    sender, pieces = client.publisher(String, "/ocean/input"), client.collect(String, "/ocean/output")
    texts = ["O, she doth teach", " the torches"]
    expected = replies(tiny, *texts)
    assert ask(client, sender, pieces, texts[0]) == expected[0]
    answer = client.trigger("ocean", "save")
    assert answer.success and "saved step 29 to" in answer.message
    dead = client.readers("/ocean/input")
    process.kill()
    process.restart()
    client.until(lambda: client.readers("/ocean/input") - dead, "reader")
    client.meet("ocean")
    assert "restored step 29 from" in process.output
    assert ask(client, sender, pieces, texts[1]) == expected[1]


def test_a_prefill_graph_reads_the_same(
    tmp_path: Path, tiny: OceanModel, tiny_path: Path, tiny_prefill: Path
) -> None:
    """Long messages by the graph for many steps, in slices: what is said, counted and published stays the same."""
    with talking(tmp_path, tiny_prefill, max_pending=10_000) as (client, process):
        sender, pieces = client.publisher(String, "/ocean/input"), client.collect(String, "/ocean/output")
        surprise = client.collect(Float32, "/ocean/surprise")
        text = "O, she doth teach the torches to burn bright! " * 40
        expected = replies(tiny, text, text[:301], "the")
        assert ask(client, sender, pieces, text) == expected[0]
        assert "with its prefill graph" in process.output
        client.until(lambda: surprise, "surprise")
        losses = [r.loss for r in read_text(tiny.stream(), [text.encode()]) if r.loss is not None]
        assert np.isclose(surprise[0].data, np.mean(losses), rtol=1e-5), "mean nats a token"

        # The ocean state is published after each seventh step all the same.
        ocean = client.collect(Float32MultiArray, "/ocean/ocean")
        assert client.set("ocean", ocean_every=7) == []
        assert ask(client, sender, pieces, text[:301]) == expected[1]
        steps = len(text) + 301 + 2 * REPLY
        stream, wanted = tiny.stream(), []
        list(read_text(stream, [text.encode()]))
        list(generate(stream, REPLY))
        for _ in chain(read_text(stream, [text[:301].encode()]), generate(stream, REPLY)):
            if stream.steps % 7 == 0:
                wanted.append(stream.ocean)
        client.until(lambda: len(ocean) == len(wanted), "ocean states")
        np.testing.assert_allclose([message.data for message in ocean], wanted, atol=1e-4)

        # Fewer tokens than a call is worth are read one by one; another model's pace is learnt anew.
        assert ask(client, sender, pieces, "the") == expected[2]
        client.set("ocean", model_path=str(tiny_path))
        assert client.trigger("ocean", "swap").success
        assert ask(client, sender, pieces, text) == replies(tiny, text, text[:301], "the", text)[3]
        client.until(
            lambda: int(client.values("ocean")["steps"]) == steps + 3 + len(text) + 2 * REPLY, "steps"
        )
        assert process.end(signal.SIGTERM) == 0 and "Traceback" not in process.output


def test_what_a_slice_has_room_for(tiny: OceanModel, tiny_prefill: Path) -> None:
    pace, other = Pace(), OceanModel.load(tiny_prefill)
    assert pace.room(tiny, 1.0) == 1, "nothing is known yet"
    pace.took(tiny, 0.001)
    assert pace.room(tiny, 0.0105) == 10 and pace.room(tiny, 0.0001) == 1
    pace.took(tiny, 0.002)
    assert pace.room(tiny, 0.0105) == 5, "slower is believed at once"
    for _ in range(100):
        pace.took(tiny, 0.001)
    assert pace.room(tiny, 0.0105) == 10
    assert pace.room(other, 1.0) == 1
