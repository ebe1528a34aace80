"""The main job in one go, as `make demo` runs it: each command is shown, then run, and its claim checked.

Train on Shakespeare's plays, export one verified file, read and write text from that file without PyTorch,
stop the loop in the middle of a sentence, restart it, and show that the text goes on as if nothing had been; then
the same with a ROS 2 node and kill -9.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
FOLDER = Path("demo")
CHECKPOINT, MODEL, STATE = FOLDER / "checkpoint", FOLDER / "model.onnx", FOLDER / "state.safetensors"
PROMPT_FILE = FOLDER / "prompt.txt"
PROMPT = "ROMEO:\nWhat light through yonder window breaks?\n"
STOPPED_AFTER, MORE = 150, 300  # characters
GOOD_LOSS = 2.0  # nats a character


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    STATE.unlink(missing_ok=True)

    title("1. Train on Shakespeare's 38 plays, with gradients through time")
    run("ocean-train", "--out", CHECKPOINT, "--steps", 1000, "--eval-every", 250)

    title("2. Export one file, and verify it against the trained model")
    run("ocean-export", CHECKPOINT, "-o", MODEL)
    run("ocean-export", "--inspect", MODEL)

    title("3. Read text with that file alone: no PyTorch, and a state that never grows")
    PROMPT_FILE.write_text(PROMPT)
    read = run("ocean-run", MODEL, PROMPT_FILE, show=0).splitlines()
    print("\n".join([*read[:4], "...", *read[-2:]]))

    title("4. Let it write, and stop it by SIGTERM in the middle of a sentence; its state is saved")
    writing = ("ocean-run", MODEL, "--top-k", 20, "--seed", 1)
    first = stopped(*writing, "--generate", 1_000_000, "--state", STATE)

    title("5. Start it again: it goes on from the saved state")
    second = run(*writing, "--generate", MORE, "--state", STATE)

    title("6. The same without a stop")
    whole = run(*writing, "--generate", len(first) + MORE, stdin=PROMPT_FILE, show=0)
    same = first + second == whole
    print(
        f"{len(whole)} characters: {'the very text' if same else 'NOT the text'} of the stopped and restarted run"
    )

    title("7. The same file as a ROS 2 node, in a process of its own: talk to it, kill it, start it again")
    node = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("demo_node.py")), str(MODEL)], check=False
    )

    loss = json.loads((CHECKPOINT / "checkpoint.json").read_text())["validation_loss"]
    good = loss < GOOD_LOSS
    print(f"\nvalidation loss {loss:.3f} nats a character, {'below' if good else 'NOT below'} {GOOD_LOSS}")
    return 0 if same and good and node.returncode == 0 else 1


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m", flush=True)


def line_of(*command: object, stdin: Path | None = None) -> list[str]:
    print(f"$ {shlex.join(map(str, command))}{f' < {stdin}' if stdin else ''}", flush=True)
    name, *rest = map(str, command)
    return [str(BIN / name), *rest]


def run(*command: object, stdin: Path | None = None, show: int = 1) -> str:
    """Run a command to its end, pass its output on unless `show` is 0, and return it."""
    line, told = line_of(*command, stdin=stdin), []
    with (
        Path(stdin or os.devnull).open("rb") as source,
        subprocess.Popen(line, stdin=source, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        while piece := process.stdout.read1(4096):
            told.append(piece)
            if show:
                sys.stdout.buffer.write(piece)
                sys.stdout.flush()
    if process.returncode:
        sys.exit(f"{command[0]} ended with status {process.returncode}")
    return b"".join(told).decode()


def stopped(*command: object) -> str:
    """Start a command that reads the prompt and writes, stop it by SIGTERM, and return what it wrote."""
    line = line_of(*command, stdin=PROMPT_FILE)
    with (
        PROMPT_FILE.open("rb") as source,
        subprocess.Popen(line, stdin=source, stdout=subprocess.PIPE, bufsize=0) as process,
    ):
        assert process.stdout is not None
        written = b""
        while len(written) < STOPPED_AFTER and (piece := process.stdout.read(1)):
            written += piece
            if len(written) == STOPPED_AFTER:
                process.send_signal(signal.SIGTERM)
        written += process.stdout.read()
    print(f"... {len(written.decode())} characters, the last of them:\n{written.decode()[-200:]}", flush=True)
    return written.decode()


if __name__ == "__main__":
    sys.exit(main())
