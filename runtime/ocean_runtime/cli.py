"""ocean-run: run an exported model on text or on rows of sensors, with a state that survives."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from types import FrameType, TracebackType

from ocean_runtime import __version__
from ocean_runtime.describe import describe
from ocean_runtime.dialect import parse_options
from ocean_runtime.errors import OceanError, SnapshotError
from ocean_runtime.model import OceanModel
from ocean_runtime.prefill import STEPS
from ocean_runtime.rows import (
    MISSING_POLICIES,
    Place,
    longest_gap,
    observation_of,
    read_source,
    step_rows,
    write_rows,
)
from ocean_runtime.snapshot import generations
from ocean_runtime.state_path import StatePath
from ocean_runtime.stream import OceanStream
from ocean_runtime.terminal import utf8, write_utf8
from ocean_runtime.text import generate, read_text, tokenizer_of, unread_of

CHUNK_BYTES = 4096
"""Read at once from the input; what was read is always stepped, also when a signal asks to stop."""


def main(argv: list[str] | None = None) -> int:
    """The command. Returns the exit status: 0, or 1 with one sentence on standard error."""
    args = _parser().parse_intermixed_args(argv)  # options may stand between model and text
    try:
        if sys.stdin is None or sys.stdout is None:
            raise OceanError(
                "standard input and output must be open; use /dev/null for one that is not wanted"
            )
        if sys.stderr is None:  # else print() would write to standard output, and a file would get its number
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
        write_utf8()
        model = OceanModel.load(args.model, untrusted=args.untrusted)
        if args.info:
            print(describe(model.contract), flush=True)
            return 0
        return _run(model, args)
    except OceanError as error:
        _say(str(error))
        return 1
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # then whoever read our output has gone, e.g. `| head`
            _say(f"the output can't be written: {error.strerror}")
        with contextlib.suppress(OSError):  # what is still buffered must not fail again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        _flush_errors()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ocean-run",
        description="Read text or rows of sensors step by step with an exported model; its state survives.",
        allow_abbrev=False,
    )
    parser.add_argument("model", help="the .onnx file that ocean-export made")
    parser.add_argument(
        "text",
        nargs="?",
        default="-",
        help="a UTF-8 file (for a model of sensors: CSV, .npz, .parquet or a ROS 2 bag), or - for standard input "
        "(default)",
    )
    parser.add_argument(
        "--generate", metavar="N", type=_at_least(int, 0), help="after the text, write N tokens"
    )
    parser.add_argument(
        "--temperature",
        type=_at_least(float, 0.0),
        default=1.0,
        help="0 for the most likely token (default 1)",
    )
    parser.add_argument(
        "--top-k", metavar="K", type=_at_least(int, 1), help="draw among the K most likely tokens"
    )
    parser.add_argument("--seed", type=_seed, default=0, help="of what is drawn (default 0)")
    parser.add_argument(
        "--state",
        metavar="FILE",
        type=Path,
        help="go on from this snapshot where it exists; save there at the end",
    )
    parser.add_argument(
        "--untrusted",
        action="store_true",
        help="load the model first in a process with bounded memory and time (see SECURITY.md)",
    )
    parser.add_argument(
        "--missing",
        choices=MISSING_POLICIES,
        help="a row's missing value: the last value before it in its place (default), or stop there",
    )
    parser.add_argument(
        "--episode",
        metavar="COLUMN",
        help="of a CSV or .npz: start anew where this column changes (training's, if not given)",
    )
    parser.add_argument(
        "--time",
        metavar="COLUMN",
        help="of a CSV or .npz: the time, a date or a number in the unit that is named, such as 'stamp [us]'; start "
        "anew after a gap longer than in training (training's column, if not given; '' for none)",
    )
    parser.add_argument(
        "--csv",
        action="append",
        metavar="KEY=VALUE",
        help="how the CSV is written, where that is not found by itself: separator, decimal, thousands, comment, "
        "encoding, header, names, skip or missing; may be given several times (docs/dialects.md)",
    )
    parser.add_argument(
        "--no-header",
        action="store_true",
        default=None,
        help="of a CSV: no line names the columns; they are c1, c2, ...",
    )
    parser.add_argument("--info", action="store_true", help="say what the model is, and stop")
    parser.add_argument("--version", action="version", version=f"oceanstate {__version__}")
    return parser


def _at_least(kind: type[int] | type[float], least: float) -> Callable[[str], float]:
    def convert(text: str) -> float:
        value = kind(text)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be {least} or more, not {text}")
        return value

    convert.__name__ = kind.__name__  # argparse names it when `kind` itself refuses the text
    return convert


def _seed(text: str) -> int:
    if not 0 <= (value := int(text)) < 1 << 64:
        raise argparse.ArgumentTypeError(f"must be 0 or more and below 2^64, not {text}")
    return value


def _run(model: OceanModel, args: argparse.Namespace) -> int:
    stream = model.stream()
    reads_text = model.contract.kind == "tokens"
    (tokenizer_of if reads_text else observation_of)(stream)
    for option in ("missing", "episode", "time", "csv", "no_header") if reads_text else ("generate",):
        if getattr(args, option) is not None:
            raise OceanError(
                f"--{option.replace('_', '-')} means nothing to this model: it reads {'text' if reads_text else 'rows'}"
            )
    where = "" if reads_text else " of this episode"  # each episode of rows counts from nothing
    with contextlib.ExitStack() as held, _Stop() as stop:
        if args.state is not None:
            args.state = held.enter_context(StatePath(args.state)).path  # refused before the work
            if generations(args.state):
                _restore(stream, args.state)
                _say(f"going on from step {stream.steps:,}{where} in {args.state}")
        try:
            if reads_text:
                _read(stream, args, stop)
                _write(stream, args, stop)
            else:
                episode, time = (None if text is None else utf8(text) for text in (args.episode, args.time))
                dialect = parse_options([utf8(text) for text in args.csv or []], bool(args.no_header))
                rows = read_source(
                    stream, args.text, lambda: _chunks(args.text, stop), episode, time, _say, dialect
                )
                # What was read of a file is stepped and written, also when a signal asks to stop.
                rows = takewhile(lambda _: not stop.asked, rows)
                on_disk = args.text != "-" and (Path(args.text).is_file() or Path(args.text).is_dir())
                limit = longest_gap(stream, args.text)
                missing = args.missing or MISSING_POLICIES[0]
                results = step_rows(stream, rows, missing, limit, STEPS if on_disk else 1)
                write_rows(stream, results, sys.stdout)
                if strange := stream.counters.out_of_range:
                    _say(f"{strange:,} rows had a value outside the training data's range")
        finally:
            if args.state is not None:
                stream.save(args.state)
                _say(f"saved step {stream.steps:,}{where} to {args.state}")
    return 0


def _restore(stream: OceanStream, path: Path) -> None:
    try:
        stream.restore(path)
        if stream.model.contract.kind != "tokens":
            Place.of(stream)  # what rows need to go on, said before they are read
        else:
            unread_of(stream)
    except SnapshotError as error:
        raise OceanError(f"{error} (name another file with --state, or move this one away)") from None


def _say(line: str) -> None:
    """A line on standard error; where that is full or gone, the work goes on without."""
    with contextlib.suppress(OSError):
        print(f"ocean-run: {line}", file=sys.stderr)
    _flush_errors()


def _flush_errors() -> None:
    try:
        sys.stderr.flush()
    except OSError:  # what is still buffered must not fail again at exit, which would change the exit status
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _read(stream: OceanStream, args: argparse.Namespace, stop: _Stop) -> None:
    generating = args.generate is not None
    if generating and args.text == "-" and sys.stdin.isatty():
        return
    total, count = 0.0, 0
    if not generating:
        print("step\ttoken\tnats\tmean")
    for step in read_text(stream, _chunks(args.text, stop), lambda: stop.asked):
        if step.loss is not None:
            total, count = total + step.loss, count + 1
        if generating:
            continue
        loss = "\t" if step.loss is None else f"{step.loss:.4f}\t{total / count:.4f}"
        print(f"{step.step}\t{step.text!r}\t{loss}", flush=True)
    if count:
        _say(f"read {count:,} predicted tokens at {total / count:.4f} nats each")


def _write(stream: OceanStream, args: argparse.Namespace, stop: _Stop) -> None:
    pieces = generate(
        stream, args.generate or 0, temperature=args.temperature, top_k=args.top_k, seed=args.seed
    )
    for piece in pieces if not stop.asked else ():
        sys.stdout.write(piece)
        sys.stdout.flush()
        if stop.asked:
            return
    if args.generate and sys.stdout.isatty():
        print()


def _chunks(name: str, stop: _Stop) -> Iterator[bytes]:
    """Bytes as they arrive, until the end or until a signal asks to stop."""
    if name == "-" and sys.stdin.isatty():
        _say("reading standard input; end it with Ctrl-D")
    try:
        # A named pipe is opened without waiting for its writer: select waits, and sees a signal.
        handle = 0 if name == "-" else os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while True:
                ready, _, _ = select.select([handle, stop.pipe], [], [])
                if stop.asked:
                    return
                if handle in ready:
                    try:
                        chunk = os.read(handle, CHUNK_BYTES)
                    except BlockingIOError:  # another reader was quicker
                        continue
                    if not chunk:
                        return
                    yield chunk
        finally:
            if handle:
                os.close(handle)
    except OSError as error:
        raise OceanError(f"{name} can't be read: {error.strerror}") from None


class _Stop:
    """Signals that ask to stop, between steps: the state is then saved, as at the end of the text.

    They are those that end a process and can be handled, but for one that is ignored, as by nohup.
    """

    NAMES = ("TERM", "INT", "HUP", "QUIT", "ALRM", "USR1", "USR2", "VTALRM", "PROF", "XCPU", "IO", "PWR")

    def __init__(self) -> None:
        self.asked = False
        self.pipe, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)

    def __enter__(self) -> _Stop:
        known = (getattr(signal, f"SIG{name}", None) for name in self.NAMES)
        self._before = {s: signal.getsignal(s) for s in known if s is not None}
        for number, handler in self._before.items():
            if handler not in (signal.SIG_IGN, None):
                signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            if handler is not None:
                signal.signal(number, handler)
        os.close(self.pipe)
        os.close(self._write_end)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        with contextlib.suppress(BlockingIOError):  # after 65,536 signals
            os.write(self._write_end, b".")


if __name__ == "__main__":
    sys.exit(main())
