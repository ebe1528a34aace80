"""A flood of text: services, saves and diagnostics keep their period, and large messages are refused cheaply."""

import time
from pathlib import Path

import pytest
from ocean_ros.conversation import encoded
from ocean_runtime import Tokenizer
from ocean_runtime.snapshot import read
from robot import RELIABLE, Client, OceanProcess, robot
from std_msgs.msg import String

MESSAGES, LETTERS = 4000, 200


def flood(client: Client, sender: object) -> None:
    for _ in range(MESSAGES):
        sender.publish(String(data="the cheek of night " * (LETTERS // 19)))  # type: ignore[attr-defined]


def test_a_flood_of_text_delays_nothing_else(tmp_path: Path, tiny_path: Path) -> None:
    """Of more work than a minute has room for, only a slice runs before other callbacks get their turn."""
    parameters = {
        "autostart": True,
        "model_path": tiny_path,
        "state_path": tmp_path / "state",
        "save_period": 1.0,
        "max_pending": 100_000_000,
        "slice": 0.01,
    }
    with robot(tmp_path, **parameters) as (client, process):
        sender = client.publisher(String, "/ocean/input", RELIABLE)
        client.trigger("ocean", "save")
        flood(client, sender)
        seen: list[tuple[float, int, int]] = []
        for _ in range(5):
            began = time.monotonic()
            assert client.trigger("ocean", "save").success
            values = client.values("ocean")
            seen.append(
                (time.monotonic() - began, read(tmp_path / "state").steps, int(values["tokens waiting"]))
            )
        print("\n".join(f"service and diagnostics after {s:.2f} s, step {n}, {w} wait" for s, n, w in seen))
        assert seen[-1][2] > 0, "all this happened during the flood"
        assert sorted(n for _, n, _ in seen) == [n for _, n, _ in seen] and seen[0][1] < seen[-1][1]
        process.kill()


def test_saves_go_on_in_a_flood(tmp_path: Path, tiny_path: Path) -> None:
    """Nobody calls ~/save: each save of every period has a later step."""
    state = tmp_path / "state"
    parameters = {
        "autostart": True,
        "model_path": tiny_path,
        "state_path": state,
        "save_period": 0.5,
        "max_pending": 100_000_000,
    }
    with robot(tmp_path, **parameters) as (client, process):
        sender = client.publisher(String, "/ocean/input", RELIABLE)
        flood(client, sender)
        client.until(state.exists, "first save")
        for _ in range(5):
            steps = read(state).steps
            client.until(lambda: read(state).steps > steps, "later save")  # noqa: B023
        assert int(client.values("ocean")["tokens waiting"]) > 0, "all this happened during the flood"
        process.kill()


def test_a_message_of_50_million_letters_is_left_out(tmp_path: Path, tiny_path: Path) -> None:
    with robot(tmp_path, autostart=True, model_path=tiny_path) as (client, process):
        sender = client.publisher(String, "/ocean/input", RELIABLE)
        sender.publish(String(data="the cheek of night " * 2_600_000))
        client.until(lambda: client.values("ocean")["text left out"] == "1", "count")
        assert peak(process) < 700e6, "the message itself, but not a token of it"
        sender.publish(String(data="the"))
        client.until(lambda: client.values("ocean")["steps"] == "3", "the next message")


def peak(process: OceanProcess) -> int:
    """The most memory, in bytes, that the process ever had."""
    lines = Path(f"/proc/{process.process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("kind", ["char", "word"])
def test_a_text_is_encoded_up_to_a_limit(kind: str) -> None:
    text = "the cheek of night, it's " * 1000 + "x" * 5000
    tokenizer = Tokenizer.train(text, kind)  # type: ignore[arg-type]
    whole = tokenizer.encode(text)
    assert encoded(tokenizer, text, len(whole)) == whole
    assert encoded(tokenizer, text, len(whole) - 1) is None
    assert encoded(tokenizer, "", 0) == []
