"""`ocean-train`: train an Ocean Transformer on text or on logs of sensors into a checkpoint folder."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ocean_train.batches import Data
    from ocean_train.checkpoint import Checkpoint
    from ocean_train.features import Sensors
    from ocean_train.logs import Request
    from ocean_train.loop import Settings

NEEDED = {"torch": "PyTorch", "tqdm": "tqdm", "matplotlib": "matplotlib"}
SAMPLE_TOKENS = {"char": 400, "word": 100}
SAMPLE_TEMPERATURE = 0.8
DEFAULT_VOCABULARY = 4000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, 1 after an error, 128 + signal after a clean stop."""
    args = parser().parse_args(argv)
    if args.version:
        from ocean_runtime import __version__  # imports NumPy, which --help must do without

        print(f"oceanstate {__version__}")
        return 0
    with _stop_on_signal() as received:
        try:
            return _run(args, received)
        except ModuleNotFoundError as error:
            if error.name not in NEEDED:
                raise
            return _fail(f"ocean-train needs {NEEDED[error.name]}: pip install 'oceanstate[train]'")
        except (ValueError, ArithmeticError) as error:  # all that a user can mend is one of these
            return _fail(f"ocean-train: {error}")
        except OSError as error:
            return _fail(f"ocean-train: {error.filename or args.out}: {error.strerror}")


def parser() -> argparse.ArgumentParser:
    """The command line of ocean-train."""
    p = argparse.ArgumentParser(
        prog="ocean-train",
        description="Train an Ocean Transformer on text or on logs of sensors. The same command again goes on "
        "where it stopped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--version", action="store_true", help="say which version this is, and stop")
    data = p.add_argument_group("text")
    data.add_argument("--text", type=Path, metavar="FILE", help="a text in UTF-8, instead of a named corpus")
    data.add_argument(
        "--corpus",
        choices=("plays", "tinyshakespeare"),
        help="plays (used without --text): Shakespeare's 38; tinyshakespeare: fetched, or checked in --text",
    )
    data.add_argument("--tokenizer", choices=("char", "word"), default="char", help="what a token is")
    data.add_argument(
        "--vocabulary",
        type=int,
        metavar="N",
        help=f"at most N tokens, the most frequent; {DEFAULT_VOCABULARY} for words, all characters",
    )
    _add_log_arguments(p.add_argument_group("log of sensors, instead of a text"))
    model = p.add_argument_group("model")
    model.add_argument(
        "--model",
        choices=("ocean", "transformer", "lstm", "gru"),
        default="ocean",
        help="what to train; the others are baselines, of equal parameters",
    )
    model.add_argument("--width", type=int, default=64, help="D, the width of the ocean state")
    model.add_argument("--layers", type=int, default=2, help="L")
    model.add_argument(
        "--heads",
        type=int,
        metavar="H",
        help="attention heads; if not given, half the width (4 for the other models)",
    )
    model.add_argument(
        "--time-constants",
        metavar="MAX",
        help="leaky integration: the longest time constant, in steps (128) or in seconds (2.5s); 1 is the relay, "
        "which replaces the state whole. If not given, 1 for a text, 2.5 s for a log (128 steps if its rate is "
        "not known)",
    )
    model.add_argument(
        "--learn-time-constants", action="store_true", help="train the time constants with the weights"
    )
    model.add_argument(
        "--first-weights",
        choices=("normal", "identity"),
        help="identity: at first, what is read from the state passes through unchanged. If not given, normal for "
        "a text and identity for a log",
    )
    training = p.add_argument_group("training")
    training.add_argument(
        "--regime",
        choices=("serial", "full", "detach"),
        default="full",
        help="full: the exact gradient through time; detach: none; serial: full by hand, in NumPy",
    )
    training.add_argument(
        "--truncate",
        type=int,
        metavar="STEPS",
        help="cut the gradient through time every STEPS (full, serial)",
    )
    training.add_argument(
        "--sweeps", type=int, metavar="K", help="compute the oceans in K parallel sweeps (detach)"
    )
    training.add_argument("--steps", type=int, default=2000, help="training steps")
    training.add_argument("--batch", type=int, default=32, help="B, streams side by side")
    training.add_argument("--window", type=int, default=64, help="T, steps that a gradient flows through")
    training.add_argument(
        "--lr",
        type=float,
        help="peak learning rate; if not given, for a text 0.5 / width and at most 0.01, for a log 1e-3, and for an "
        "Ocean on a log 2e-3",
    )
    training.add_argument(
        "--dropout",
        type=float,
        metavar="P",
        help="drop a channel with this probability before the head, and with half of it after the embedding; if not "
        "given, 0.2 where the classes of a log are told and 0 elsewhere",
    )
    training.add_argument(
        "--feed",
        choices=("windows", "streams"),
        help="windows at random places, from a zero state (used for text); or contiguous streams whose state is "
        "carried on (used for logs)",
    )
    training.add_argument(
        "--shuffle", action="store_true", help="read in random order, as --feed windows does anyway"
    )
    training.add_argument("--seed", type=int, default=0, help="of weights, batches and the sample")
    training.add_argument("--threads", type=int, default=1, help="CPU threads; small models gain from few")
    output = p.add_argument_group("output")
    output.add_argument("--out", type=Path, default=Path("runs/ocean"), help="checkpoint folder")
    output.add_argument(
        "--eval-every", type=int, default=250, metavar="STEPS", help="measure the validation loss"
    )
    output.add_argument("--save-every", type=int, default=250, metavar="STEPS", help="write a checkpoint")
    return p


def _add_log_arguments(log: argparse._ArgumentGroup) -> None:
    log.add_argument(
        "--log", type=Path, nargs="+", metavar="FILE", help="CSV, .npz or ROS 2 bags; each begins an episode"
    )
    log.add_argument("--preview", action="store_true", help="say what is in the log, and stop")
    log.add_argument(
        "--features",
        nargs="+",
        default=[],
        metavar="NAME",
        help="columns to read, with all that are numbers if not given; of a bag, fields: /imu:angular_velocity.x",
    )
    log.add_argument(
        "--targets", nargs="+", default=[], metavar="NAME", help="columns to estimate; else the next row"
    )
    log.add_argument("--classes", metavar="NAME", help="the column of the class to tell at each step")
    log.add_argument("--episode", metavar="NAME", help="the column that says whose a row is")
    log.add_argument(
        "--time",
        metavar="NAME",
        help="the column of the time: dates, or numbers in the unit that is named here or by the column, as in "
        "'stamp [us]', else in seconds",
    )
    log.add_argument(
        "--csv",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="how a CSV is written, where that is not found by itself: separator, decimal, comment, encoding, header, "
        "names, skip or missing; may be given several times (docs/sensors.md)",
    )
    log.add_argument(
        "--no-header", action="store_true", help="no line of a CSV names the columns; they are c1, c2, ..."
    )
    log.add_argument("--rate", type=float, metavar="HZ", help="of a bag: steps a second")
    log.add_argument(
        "--max-age",
        type=float,
        default=1.0,
        metavar="S",
        help="hold a value so long; a longer gap ends the episode",
    )
    log.add_argument(
        "--validate-on",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="names of the episodes to validate on, such as 'drive/s3*'; if not given, the last tenth of the "
        "episodes, whole, and at least one",
    )


def _run(args: argparse.Namespace, received: list[int]) -> int:
    import torch

    from ocean_train import features, parallel
    from ocean_train.batches import prepare
    from ocean_train.corpora import load_corpus
    from ocean_train.logs import read_log
    from ocean_train.loop import train
    from ocean_train.preview import preview

    if args.feed == "streams" and args.shuffle:
        raise ValueError("streams are read in order, each row going on from window to window: drop --shuffle")
    for name in ("threads", "eval_every", "save_every"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    if args.vocabulary is None and args.tokenizer == "word":
        args.vocabulary = DEFAULT_VOCABULARY
    settings = _settings(
        args, rate_hz=1.0
    )  # a log's is not known yet; what makes no sense is refused already
    if args.preview:
        for line in preview(_request(args), settings, args.validate_on):
            _print(line)
        return 0
    torch.set_num_threads(args.threads)
    data: Data | Sensors
    if args.log:
        data = features.prepare(read_log(_request(args)), args.validate_on)
        if not args.features:
            features.refuse_clock(data)
        settings = _settings(args, data.observations.rate_hz)
    else:
        corpus = load_corpus(args.corpus, args.text)
        data = prepare(corpus, settings.tokenizer, settings.vocabulary, settings.batch, settings.window)
    device = parallel.start()
    try:
        leads = parallel.leads()

        def say(line: str) -> None:
            if leads:
                _print(line)

        say(_describe(settings, data))
        checkpoint = train(
            settings,
            data,
            args.out,
            eval_every=args.eval_every,
            save_every=args.save_every,
            device=device,
            stop=lambda: bool(received),
            say=say,
        )
    finally:
        parallel.finish()
    if checkpoint.step < settings.steps:
        say(f"stopped at step {checkpoint.step} of {settings.steps}; the same command goes on from there")
        return 128 + (received[0] if received else signal.SIGTERM)  # another process may have received it
    if leads:
        _show(checkpoint, data, args.out)
    return 0


def _settings(args: argparse.Namespace, rate_hz: float | None) -> Settings:
    """What the arguments say, and the defaults where they say nothing."""
    from ocean_train import recipe
    from ocean_train.loop import Settings

    given = {name: getattr(args, name) for name in Settings.__dataclass_fields__ if hasattr(args, name)}
    if args.time_constants is not None:
        given["max_time_constant"] = recipe.steps_of(args.time_constants, rate_hz)
    chosen = recipe.defaults(
        args.model, log=bool(args.log), classes=bool(args.classes), width=args.width, rate_hz=rate_hz
    )
    return Settings(**{**chosen, **{name: value for name, value in given.items() if value is not None}})


def _request(args: argparse.Namespace) -> Request:
    """What the arguments say of a log."""
    from ocean_runtime.dialect import parse_options

    from ocean_train.logs import Request

    if not args.log:
        raise ValueError("--preview looks at a log: give --log FILE")
    if args.text or args.corpus:
        raise ValueError("a model reads text or a log of sensors: give --log, or --text and --corpus")
    return Request(
        tuple(args.log),
        tuple(args.features),
        tuple(args.targets),
        args.classes,
        args.episode,
        args.time,
        args.rate,
        args.max_age,
        parse_options(args.csv, args.no_header),
    )


def _describe(settings: Settings, data: Data | Sensors) -> str:
    from ocean_train.batches import Data
    from ocean_train.preview import remarks
    from ocean_train.wording import counted

    if isinstance(data, Data):
        train, validation = len(data.training), len(data.validation)
        line = (
            f"text   {data.name}: {counted(train, 'token')} to train on, {validation:,} to validate; "
            f"{data.tokenizer.size} different ({settings.tokenizer})"
        )
    else:
        train, validation = int(data.training.pairs.sum()), int(data.validation.pairs.sum())
        line = (
            f"log    {data.name}: {counted(train, 'step')} of {counted(len(data.training.names), 'episode')} "
            f"to train on, {validation:,} of {len(data.validation.names)} to validate; "
            f"{counted(len(data.log.features), 'feature')}, target: {data.log.target}"
        )
        line = "\n       ".join([line, *remarks(data)])
    return (
        f"{line}\n"
        f"model  {settings.model}, width {settings.width}, {counted(settings.layers, 'layer')}, "
        f"{counted(settings.heads, 'head')}{_leak(settings, data)}; regime {settings.regime}, {settings.feed} of "
        f"{counted(settings.window, 'step')}, {settings.batch} side by side"
    )


def _leak(settings: Settings, data: Data | Sensors) -> str:
    from ocean_train.batches import Data

    if settings.max_time_constant == 1:
        return ""
    rate_hz = None if isinstance(data, Data) else data.observations.rate_hz
    seconds = f" ({settings.max_time_constant / rate_hz:.3g} s)" if rate_hz else ""
    learned = ", learned" if settings.learn_time_constants else ""
    return f", time constants to {settings.max_time_constant:g} steps{seconds}{learned}"


def _show(checkpoint: Checkpoint, data: Data | Sensors, out: Path) -> None:
    """Draw the curves, print what was reached, and a sample of text or errors in the units of the sensors."""
    from ocean_train import influence
    from ocean_train.batches import Data
    from ocean_train.loop import Settings, build
    from ocean_train.metrics import evaluate
    from ocean_train.report import nats, plot, sample
    from ocean_train.wording import counted

    settings = Settings(**checkpoint.settings)
    unit = "nats a token"
    if not isinstance(data, Data):
        unit = {
            "next": "in the variance of the training part's changes",
            "columns": "in the targets' variance in the training part",
            "classes": "nats a step",
        }[data.log.target]
    plot(checkpoint.history, out / "curves.png", f"{checkpoint.data['name']}, {checkpoint.regime}", unit)
    skipped = f", {checkpoint.skipped} of them skipped" if checkpoint.skipped else ""
    _print(
        f"done   validation loss {nats(checkpoint.validation_loss)} ({unit}) "
        f"after {counted(checkpoint.step, 'step')}{skipped}; {out}/checkpoint.json, {out}/curves.png"
    )
    reads = data.tokenizer if isinstance(data, Data) else data.observations
    model = build(settings, reads)
    model.load_state_dict(dict(checkpoint.best_weights))
    found = influence.measure(model, data)
    if found is not None:
        rate_hz = None if isinstance(data, Data) else data.observations.rate_hz
        influence.plot({settings.model: found}, out / "influence.png", rate_hz)
        _print(f"memory {found.describe(rate_hz)}; {out}/influence.png")
    if not isinstance(data, Data):
        _print(str(evaluate(model, data, settings.window)))
        return
    tokenizer = data.tokenizer
    text = sample(
        model,
        tokenizer,
        checkpoint.heldout[:64],
        SAMPLE_TOKENS[tokenizer.kind],
        SAMPLE_TEMPERATURE,
        checkpoint.seed,
    )
    _print(f"\nit writes, after reading {tokenizer.decode(checkpoint.heldout[:64].tolist())!r}:\n{text}")


@contextmanager
def _stop_on_signal() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, so that the loop can stop between two steps; a second one kills."""
    received: list[int] = []

    def receive(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(line: str) -> None:
    """Print a line; once nobody can read it (`| head`, a full disk) go on in silence, so that no step is lost."""
    try:
        print(line, flush=True)
    except OSError:
        with (
            suppress(OSError),
            Path(os.devnull).open("wb") as nowhere,
        ):  # takes what is still to be flushed, too
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
