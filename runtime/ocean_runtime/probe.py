"""A first load of an untrusted model in a subprocess with limited memory and time.

The process reads a model's bytes from standard input, limits itself, loads them and runs one step. It writes
"ok", or the sentence that says why not.
"""

from __future__ import annotations

import io
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ocean_runtime.errors import ContractError, OceanError

MEMORY_BYTES = 256 << 20
"""What loading and one step may take beside the libraries, and three times the file."""
SECONDS = 5
"""Of processor time, beside a second for each 50 MB of the file."""
_MAX_ANSWER = 2_000
_START = "import sys; sys.path[:] = sys.argv[2:]; from ocean_runtime.probe import main; main()"


def try_in_a_process(data: bytes) -> None:
    """Load the bytes of a model in a process with limits. Raises ContractError where that does not end well."""
    seconds = _seconds(len(data))
    # Isolated, then with the import path of this process: so a file of the folder that we are in can't pose
    # as a package, and the packages are the ones used here.
    paths = [str(Path(p).resolve()) for p in sys.path if p]
    command = [sys.executable, "-I", "-c", _START, str(len(data)), *paths]
    with tempfile.TemporaryFile() as answer:
        try:
            done = subprocess.run(
                command,
                input=data,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                timeout=4 * seconds + 20,  # start-up included; the limit that counts is on processor time
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ContractError(f"loading it took more than {4 * seconds + 20} s, so it is refused") from None
        answer.seek(0)
        said = answer.read(_MAX_ANSWER).decode(errors="replace").strip()
    if done.returncode == -signal.SIGXCPU:
        raise ContractError(f"loading it took more than {seconds} s, so it is refused")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise ContractError(f"loading it ended a trial process with {name}, so it is refused")
    if said != "ok":
        raise ContractError(said or f"a trial process could not load it (exit status {done.returncode})")


def main() -> None:
    """The trial process: a model's bytes on standard input, its size as the argument."""
    from ocean_runtime.contract import Contract
    from ocean_runtime.scan import scan
    from ocean_runtime.session import StepGraph, session_of

    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale: what is quoted may be of any script
    size = int(sys.argv[1])
    data = sys.stdin.buffer.read(size)
    try:
        import onnxruntime  # noqa: F401  # before the limit: the libraries are not the model's greed

        limit_memory(size)
        _limit_time(size)
        text = scan(data)
        assert text is not None  # the parent has seen it
        StepGraph(session_of(data, 1, None), Contract.from_json(text))
    except OceanError as error:
        print(str(error)[:_MAX_ANSWER])
    except MemoryError:
        print("loading it takes more memory than it may, so it is refused")
    else:
        print("ok")


def limit_memory(size: int) -> None:
    """Bound the memory that this process may still take, for a model of `size` bytes; and no core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    taken = Path("/proc/self/statm")
    if taken.exists():  # Linux
        memory = int(taken.read_text().split()[0]) * resource.getpagesize() + 3 * size + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _limit_time(size: int) -> None:
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    seconds = int(used) + 1 + _seconds(size)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _seconds(size: int) -> int:
    return SECONDS + size // 50_000_000
