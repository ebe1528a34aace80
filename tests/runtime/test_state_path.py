"""Where a state may be kept, and one writer at a time."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ocean_runtime import OceanModel, SnapshotError
from ocean_runtime.state_path import StatePath


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Each name in the folder, but for locks: what it is, and what it holds."""
    return {
        p.name: (p.lstat().st_mode, p.read_bytes() if p.is_file() else b"")
        for p in folder.iterdir()
        if not p.name.endswith(".lock")
    }


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("folder", "it is a folder"),
        ("pipe", "it is a named pipe"),
        ("socket", "it is a socket"),
        ("text", "the file there is no snapshot"),
        ("empty", "the file there is no snapshot"),
        ("model", "the file there is no snapshot"),
        ("link to model", "the file there is no snapshot"),
        ("loop", "(?i)symlink|symbolic"),
        ("no folder", "there is no folder"),
        ("nul", "null"),
    ],
)
def test_what_is_no_snapshot_is_refused_and_left_alone(
    kind: str, told: str, tmp_path: Path, tiny_path: Path
) -> None:
    path = tmp_path / "state"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        case "text":
            path.write_text("the cheek of night")
        case "empty":
            path.touch()
        case "model":
            path.write_bytes(tiny_path.read_bytes())
        case "link to model":
            (tmp_path / "model").write_bytes(tiny_path.read_bytes())
            path.symlink_to("model")
        case "loop":
            path.symlink_to("state")
        case "no folder":
            path = tmp_path / "no" / "state"
        case "nul":
            path = tmp_path / "st\0ate"
    before = content(tmp_path)
    with pytest.raises(SnapshotError, match=told):
        StatePath(path)
    assert content(tmp_path) == before


def test_a_device_is_refused() -> None:
    """Only looked at: nothing is written, there or beside it."""
    with pytest.raises(SnapshotError, match="it is a device"):
        StatePath("/dev/null")
    assert Path("/dev/null").is_char_device() and not Path("/dev/.null.lock").exists()


def test_a_snapshot_a_damaged_one_or_nothing_is_taken(tmp_path: Path, tiny: OceanModel) -> None:
    path = tmp_path / "state"
    StatePath(path).release()
    stream = tiny.stream()
    stream.save(path)
    with StatePath(path) as held:
        assert held.path == path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    StatePath(path).release()
    path.write_bytes(b"")
    (tmp_path / "state.1").write_bytes(whole)
    StatePath(path).release()  # the one before it shows whose place it is


def test_a_link_is_followed_and_stays(tmp_path: Path, tiny: OceanModel) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "state"
    link.symlink_to("disk/state")
    for steps in (1, 2):  # where it leads to nothing yet, and where it does
        with StatePath(link) as held:
            stream = tiny.stream()
            if held.path.exists():
                stream.restore(held.path)
            stream.step(1)
            stream.save(held.path)
        assert link.is_symlink() and stream.steps == steps
        with StatePath(link), pytest.raises(SnapshotError, match="in use by this process already"):
            StatePath(tmp_path / "disk" / "state")


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "state"
    code = f"""
import sys
from ocean_runtime.state_path import StatePath
held = StatePath({str(path)!r})
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        with pytest.raises(
            SnapshotError, match=rf"in use by process {process.pid}, and a state has one writer"
        ):
            StatePath(path)
        process.kill()
        process.wait()
    StatePath(path).release()  # the lock ends with the process, however it ends


def test_the_lock_is_not_open_for_writing(tmp_path: Path) -> None:
    """Else the file system could not be remounted read-only while a node runs (`mount`: target is busy)."""
    with StatePath(tmp_path / "state"):
        found = [
            Path(f"/proc/self/fdinfo/{fd.name}").read_text().split("flags:")[1].split()[0]
            for fd in Path("/proc/self/fd").iterdir()
            if fd.is_symlink() and fd.readlink() == tmp_path / ".state.lock"
        ]
    assert [int(flags, 8) & os.O_ACCMODE for flags in found] == [os.O_RDONLY]
    assert (tmp_path / ".state.lock").read_text() == str(os.getpid())


def test_ocean_run_uses_it(command, tmp_path: Path, tiny_path: Path) -> None:  # type: ignore[no-untyped-def]
    text = tmp_path / "text"
    text.write_text("the cheek of night")
    before = text.read_bytes()
    done = command("ocean_runtime.cli", tiny_path, text, "--state", text)
    assert done.returncode == 1 and b"the file there is no snapshot" in done.stderr
    assert text.read_bytes() == before and done.stdout == b""
    (tmp_path / "link").symlink_to("state")
    for steps in (18, 36):
        done = command("ocean_runtime.cli", tiny_path, text, "--state", tmp_path / "link")
        assert done.returncode == 0 and f"saved step {steps} to".encode() in done.stderr
    assert (tmp_path / "link").is_symlink() and (tmp_path / "state").is_file()
    with StatePath(tmp_path / "state"):
        done = command("ocean_runtime.cli", tiny_path, text, "--state", tmp_path / "link")
    assert done.returncode == 1 and b"in use by process" in done.stderr and b"Traceback" not in done.stderr
