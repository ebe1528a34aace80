"""A power cut at any instant of saving: the system calls are recorded, and replayed as a disk may have them.

What a disk is sure to hold is what was there at the last fsync: of a file, its content; of a folder, its
names. Of all later writes any part may be lost, and of all later changes of names any subset, so each subset
is tried, at each system call. In each case the newest whole snapshot must not be older than the last save
that had returned. Real file systems lose less.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ocean_runtime import OceanModel, SnapshotError
from ocean_runtime import snapshot as snapshots

CALLS = (
    "openat,open,creat,close,dup,dup2,dup3,write,pwrite64,writev,pwritev,ftruncate,truncate,fallocate,fsync,"
)
CALLS += "fdatasync,sync,syncfs,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,copy_file_range"
WRITER = """
import dataclasses, os, sys
from pathlib import Path
from ocean_runtime import snapshot
saved, path = snapshot.read(Path(sys.argv[1])), Path(sys.argv[2])
for steps in range(1, 6):
    snapshot.write(dataclasses.replace(saved, steps=steps), path, keep=int(sys.argv[3]))
    os.write(1, b"saved %d" % steps)
"""
LINE = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
MAX_SUBSETS = 8
"""Changes of names of which every subset is tried; of more, those before each instant."""
Call = tuple[str, list[bytes], str, int]
"""Name, texts, all arguments, result."""


@pytest.fixture(scope="module", params=[1, 2, 3])
def recorded(
    request: pytest.FixtureRequest,
    tiny: OceanModel,
    environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[Call], bytes]:
    """The system calls of five saves, and the folder that they were in."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace records the system calls; apt-get install strace")
    folder = tmp_path_factory.mktemp("cut")
    stream = tiny.stream()
    stream.step(1)
    stream.save(folder / "seed")
    (folder / "states").mkdir()
    log = folder / "log"
    record = [
        strace,
        "-f",
        "-xx",
        "-s",
        "1000000",
        "-e",
        f"trace=?{CALLS.replace(',', ',?')}",
        "-o",
        str(log),
    ]
    command = [sys.executable, "-c", WRITER, str(folder / "seed"), str(folder / "states" / "state")]
    done = subprocess.run(
        [*record, *command, str(request.param)], env=environment, capture_output=True, check=False
    )
    if done.returncode != 0 and b"ptrace" in done.stderr:
        pytest.skip("this machine lets no process be traced")
    assert done.returncode == 0, done.stderr.decode()
    calls = []
    for line in log.read_text().splitlines():
        found = LINE.match(line)
        if found and int(found[3]) >= 0:
            texts = TEXT.findall(found[2])
            assert not any(cut for _, cut in texts)
            calls.append((found[1], [_bytes(text) for text, _ in texts], found[2], int(found[3])))
    return calls, str(folder / "states").encode()


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


@dataclass
class File:
    """An inode: all that was written, and how much of it is on disk."""

    content: bytes = b""
    synced: int = 0


@dataclass
class Disk:
    """A folder as processes see it, and as the disk is sure to hold it."""

    folder: bytes
    names: dict[bytes, File] = field(default_factory=dict)
    durable: dict[bytes, File] = field(default_factory=dict)
    pending: list[tuple[bytes | None, bytes | None, File | None]] = field(default_factory=list)
    """Changes of names since the folder's fsync: from, to, file."""
    open: dict[int, File | None] = field(default_factory=dict)
    """By descriptor; None is the folder."""

    def apply(self, call: Call) -> None:
        """One system call."""
        kind, texts, arguments, result = call
        handle = int(arguments.split(",")[0]) if re.match(r"\d+", arguments) else -1
        names = [t.rpartition(b"/")[2] for t in texts if t.rpartition(b"/")[0] == self.folder]
        if kind == "openat" and texts[0] == self.folder:
            self.open[result] = None
        elif kind == "openat" and names:
            if "O_CREAT" in arguments and names[0] not in self.names:
                self.change(None, names[0], File())
            assert "O_TRUNC" not in arguments
            self.open[result] = self.names[names[0]]
        elif kind in ("rename", "renameat", "renameat2") and names:
            self.change(names[0], names[1], self.names[names[0]])
        elif kind in ("link", "linkat") and names:
            self.change(None, names[1], self.names[names[0]])
        elif kind in ("unlink", "unlinkat") and names:
            self.change(names[0], None, None)
        elif kind == "close":
            self.open.pop(handle, None)
        elif handle in self.open:
            file = self.open[handle]
            if kind == "write" and file is not None:
                file.content += texts[0][:result]
            elif kind in ("fsync", "fdatasync") and file is not None:
                file.synced = len(file.content)
            elif kind == "fsync":
                self.durable, self.pending = dict(self.names), []
            else:
                raise AssertionError(f"this disk does not know {kind}({arguments[:99]})")
        else:
            assert not names, f"this disk does not know {kind}({arguments[:99]})"

    def change(self, source: bytes | None, target: bytes | None, file: File | None) -> None:
        """A name goes, comes, or both."""
        self.pending.append((source, target, file))
        _rename(self.names, *self.pending[-1])

    def after_a_cut(self) -> Iterator[dict[bytes, bytes]]:
        """Every folder that the disk may hold if the power goes now."""
        count = len(self.pending)
        some = itertools.product((True, False), repeat=count)
        first = ([i < n for i in range(count)] for n in range(count + 1))
        for kept in some if count <= MAX_SUBSETS else first:
            names = dict(self.durable)
            for change in itertools.compress(self.pending, kept):
                _rename(names, *change)
            for part in (0.0, 0.5, 1.0):
                yield {
                    name: file.content[: file.synced + int(part * (len(file.content) - file.synced))]
                    for name, file in names.items()
                }


def _rename(names: dict[bytes, File], source: bytes | None, target: bytes | None, file: File | None) -> None:
    if source is not None and names.pop(source, None) is None:
        return  # the name that was to change never reached the disk
    if target is not None and file is not None:
        names[target] = file


def cut_everywhere(calls: list[Call], folder: bytes, place: Path) -> tuple[int, list[str]]:
    """Cut the power after each call: how many different folders were tried, and what was wrong."""
    disk, saved, seen, wrong = Disk(folder), 0, set(), []
    for call in calls:
        if call[0] == "write" and call[1][:1] and call[1][0].startswith(b"saved "):
            saved = int(call[1][0].split()[1])
        else:
            disk.apply(call)
        if saved == 0:
            continue
        for files in disk.after_a_cut():
            state = (saved, frozenset(files.items()))
            if state in seen:
                continue
            seen.add(state)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for name, content in files.items():
                (place / name.decode()).write_bytes(content)
            try:
                found = snapshots.read_newest(place / "state").snapshot.steps
                if found < saved:
                    wrong.append(f"{saved} was saved, {found} is found")
            except SnapshotError as error:
                wrong.append(f"{saved} was saved; {error}")
    assert saved == 5
    return len(seen), wrong


def test_after_a_power_cut_the_last_save_that_returned_is_there(
    recorded: tuple[list[Call], bytes], tmp_path: Path
) -> None:
    tried, wrong = cut_everywhere(*recorded, tmp_path / "cut")
    assert not wrong
    assert tried > 15
    print(f"{tried} different folders")


@pytest.mark.parametrize("lost", ["file", "folder"])
def test_without_one_of_the_fsyncs_it_would_not_be(
    recorded: tuple[list[Call], bytes], tmp_path: Path, lost: str
) -> None:
    calls, folder = recorded
    folders = {call[3] for call in calls if call[0] == "openat" and call[1][0] == folder}
    disk, kept = Disk(folder), []
    for call in calls:
        of_folder = call[0] == "fsync" and disk.open.get(int(call[2].split(",")[0]), 0) is None
        disk.apply(call)
        if call[0] != "fsync" or of_folder != (lost == "folder"):
            kept.append(call)
    assert folders
    _, wrong = cut_everywhere(kept, folder, tmp_path / "cut")
    assert wrong
