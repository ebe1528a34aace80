"""Mutation fuzzing of everything that a stranger may send: models, contracts, snapshots.

    python tests/soak/fuzz.py --models 40000 --contracts 30000 --snapshots 30000

The parent scans each model, as OceanModel.load does, and hands what passes to a trial process with the limits
of `--untrusted`, which stays for many models. A trial process that dies is what it is for; the parent must
not, nor take long or much, and every refusal must be a sentence. What ended a trial process, and what broke
a rule, is kept in --keep.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import fuzz_seeds
import numpy as np
import onnx
from fuzz_mutations import json_text, mutate_json, mutate_model, mutate_snapshot
from ocean_runtime import Contract, ContractError, OceanModel, SnapshotError
from ocean_runtime import snapshot as snapshots
from ocean_runtime.probe import limit_memory
from ocean_runtime.scan import scan

LONGEST, LONGEST_WALL = "(longest, CPU ms)", "(longest, wall-clock ms)"
AGAIN = "(over 5 s once, not when run again alone)"
SECONDS = 5.0
"""A model, contract or snapshot that takes longer, by the wall clock, is a hang: see `timed`."""
TINY = Path(__file__).parent.parent / "fixtures" / "tiny.onnx"


class Trial:
    """A process that loads what it is sent: bytes of a model -> whether a session was made, and a sentence."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--trial"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.served = 0
        assert self.process.stdout is not None
        self.process.stdout.readline()  # it has started

    def load(self, data: bytes) -> tuple[str, str, int]:
        """`ran`, `session` (refused by onnxruntime), `refused` (before it), `died` or `hung`; why; CPU ms."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.served += 1
        try:
            self.process.stdin.write(struct.pack("<Q", len(data)) + data)
        except BrokenPipeError:
            return self._end()
        line = b""
        until = time.monotonic() + 60  # the limit that counts is on processor time
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                self.close()
                return "hung", "", int(1000 * SECONDS)
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                return self._end()
            line += chunk
        kind, taken, why = line.decode(errors="replace").rstrip("\n").split("\t", 2)
        return kind, why, int(taken)

    def _end(self) -> tuple[str, str, int]:
        number = -self.process.wait()
        hung = number == signal.SIGVTALRM
        return ("hung" if hung else "died"), f"signal {number}", int(1000 * SECONDS) if hung else 0

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def serve() -> None:
    """The trial process."""
    import warnings

    import onnxruntime  # noqa: F401
    from ocean_runtime.session import session_of

    warnings.simplefilter("ignore")
    os.nice(1)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    limited = False
    answers.write(b"ready\n")
    while True:
        head = sys.stdin.buffer.read(8)
        if len(head) < 8:
            return
        data = sys.stdin.buffer.read(struct.unpack("<Q", head)[0])
        if not limited:
            limit_memory(1 << 20)
            limited = True
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)  # processor time; its default action is to end
        kind, start = "refused", time.process_time()
        try:
            text = scan(data)
            contract = Contract.from_json(text or "")
            kind = "session"
            model = OceanModel(session_of(data, 1, None), contract, Path("fuzzed"))
            stream = model.stream(guard="hold")
            zeros = {
                t.name: np.zeros([a for a in t.shape if a != "B"], t.dtype)
                for t in contract.inputs
                if t.constant is None
            }
            stream.step(zeros)
            stream.step(zeros)
            kind, why = "ran", ""
        except (ContractError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
        except MemoryError:
            why = "MemoryError"
        except Exception as error:
            kind, why = "odd", f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        taken = int(1000 * (time.process_time() - start))
        answers.write(f"{kind}\t{taken}\t{why[:500]!r}\n".encode(errors="replace"))


Outcome = tuple[str, float]
"""What became of a case, and its processor time in seconds, of this process and the trial process."""


def fuzz_models(count: int, seed: int, keep: Path) -> Counter[str]:
    """Outcomes by kind; what ended a trial process goes into `keep`."""
    rng, found, trial = random.Random(seed), Counter[str](), Trial()
    seeds = [fuzz_seeds.model(recipe) for recipe in fuzz_seeds.RECIPES] + [onnx.load(TINY)]

    def load(data: bytes) -> Outcome:
        nonlocal trial
        start = time.process_time()
        try:
            if scan(data) is None:
                raise ContractError("holds no contract")
        except ContractError as error:
            kind = "refused by the scan" if is_sentence(str(error)) else "no sentence"
            return kind, time.process_time() - start
        kind, why, taken = trial.load(data)
        kind = {"ran": "ran", "session": "refused by onnxruntime", "refused": "refused by the contract"}.get(
            kind, kind
        )
        if kind in ("died", "hung", "odd"):
            kept(keep, kind, data, ".onnx", why)
        if kind in ("died", "hung") or trial.served > 2000:
            trial.close()
            trial = Trial()
        return kind, time.process_time() - start + taken / 1000

    for i in range(count):
        if i % 1000 == 0 and i:
            print(f"{i:,}: {dict(found)}", flush=True)
        timed(load, mutate_model(rng.choice(seeds), rng), found, keep)
    trial.close()
    return found


def fuzz_contracts(count: int, seed: int, keep: Path) -> Counter[str]:
    """Read mutated contracts, as text, in this process."""
    rng, found = random.Random(seed), Counter[str]()
    texts = [OceanModel.load(TINY).contract.to_json(), fuzz_seeds.contract().to_json()]
    values = [json.loads(text) for text in texts]

    def read(data: bytes) -> Outcome:
        start = time.process_time()
        try:
            Contract.from_json(data.decode(errors="surrogatepass")).to_json()
            kind = "read"
        except ContractError as error:
            kind = "refused" if is_sentence(str(error)) else "no sentence"
        except Exception as error:
            kind = f"odd: {type(error).__name__}: {error}"
            kept(keep, "odd", data, ".json", kind)
        return kind, time.process_time() - start

    for _ in range(count):
        text = json_text(mutate_json(rng.choice(values), rng), rng)
        timed(read, text.encode(errors="surrogatepass"), found, keep)
    return found


def fuzz_snapshots(count: int, seed: int, keep: Path) -> Counter[str]:
    """Resume from mutated snapshots in this process: the state is as it was where one is refused."""
    rng, found = random.Random(seed), Counter[str]()
    stream = OceanModel.load(TINY).stream()
    stream.run([1, 2, 3])
    whole = snapshots.to_bytes(stream.snapshot())
    expected = stream.snapshot()

    def rechecksum(data: bytes, about: dict[str, object]) -> dict[str, object]:
        import safetensors.numpy

        about.pop("checksum", None)
        about["checksum"] = snapshots._checksum(safetensors.numpy.load(data), about)
        return about

    def resume(data: bytes) -> Outcome:
        start = time.process_time()
        try:
            stream.resume(snapshots.from_bytes(data))
            kind = "read"
            stream.resume(expected)
        except SnapshotError as error:
            kind = "refused" if is_sentence(str(error)) else "no sentence"
            if not all(np.array_equal(stream._now.state[k], v) for k, v in expected.states.items()):
                kind = "refused, but the state is another"
        except Exception as error:
            kind = f"odd: {type(error).__name__}: {error}"
            kept(keep, "odd", data, "", kind)
        return kind, time.process_time() - start

    for _ in range(count):
        timed(resume, mutate_snapshot(whole, rng, rechecksum), found, keep)
    return found


def timed(case: Callable[[bytes], Outcome], data: bytes, found: Counter[str], keep: Path) -> None:
    """Run a case and count what became of it, with the longest times among all.

    A case over the limit by the wall clock may only have waited for other programs: it runs again, by itself,
    and is a hang if it is over the limit again. Both times are printed and the file is kept.
    """
    start = time.perf_counter()
    kind, processor = case(data)
    wall = time.perf_counter() - start
    if wall > SECONDS and kind != "hung":
        start = time.perf_counter()
        kind, processor = case(data)
        again = time.perf_counter() - start
        kept(keep, "slow", data, "", f"{wall:.1f} s, then {again:.1f} s, of processor time {processor:.1f} s")
        kind = "hung" if again > SECONDS else kind
        found[AGAIN] += again <= SECONDS
        wall = again
    found[kind] += 1
    found[LONGEST] = max(found[LONGEST], int(1000 * processor))
    found[LONGEST_WALL] = max(found[LONGEST_WALL], int(1000 * wall))


def kept(keep: Path, kind: str, data: bytes, suffix: str, why: str) -> None:
    """Keep a file that broke a rule, and say so."""
    name = f"{kind}-{hashlib.sha256(data).hexdigest()[:12]}{suffix}"
    (keep / name).write_bytes(data)
    print(f"{name}\t{why}", flush=True)


def is_sentence(text: str) -> bool:
    """One line that a person can read, without a traceback."""
    return 0 < len(text) < 1500 and "\n" not in text and "Traceback" not in text


def peak_mb(who: int) -> float:
    """Largest resident memory so far, of this process or of the largest that it has waited for."""
    return resource.getrusage(who).ru_maxrss / 1024


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--models", type=int, default=0)
    parser.add_argument("--contracts", type=int, default=0)
    parser.add_argument("--snapshots", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"))
    parser.add_argument("--trial", action="store_true")
    args = parser.parse_args()
    if args.trial:
        return serve()
    args.keep.mkdir(exist_ok=True)
    for what, count, fuzz in (
        ("contracts", args.contracts, fuzz_contracts),
        ("snapshots", args.snapshots, fuzz_snapshots),
        ("models", args.models, fuzz_models),
    ):
        if count:
            start = time.perf_counter()
            found = fuzz(count, args.seed, args.keep)
            print(
                f"{count:,} {what} in {time.perf_counter() - start:.0f} s: {dict(found.most_common())}",
                flush=True,
            )
    mine, trials = peak_mb(resource.RUSAGE_SELF), peak_mb(resource.RUSAGE_CHILDREN)
    print(f"largest resident memory: parent {mine:.0f} MB, trial processes {trials:.0f} MB")
    return None


if __name__ == "__main__":
    main()
