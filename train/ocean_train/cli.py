"""`ocean-train`: train an Ocean Transformer on text into a checkpoint folder."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ocean_train.batches import Data
    from ocean_train.checkpoint import Checkpoint
    from ocean_train.loop import Settings

NEEDED = {"torch": "PyTorch", "tqdm": "tqdm", "matplotlib": "matplotlib"}
SAMPLE_TOKENS = {"char": 400, "word": 100}
SAMPLE_TEMPERATURE = 0.8
DEFAULT_VOCABULARY = 4000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, 1 after an error, 128 + signal after a clean stop."""
    args = parser().parse_args(argv)
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
        description="Train an Ocean Transformer on text. The same command again goes on where it stopped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
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
    model = p.add_argument_group("model")
    model.add_argument(
        "--model",
        choices=("ocean", "transformer", "lstm", "gru"),
        default="ocean",
        help="what to train; the others are baselines, of equal parameters",
    )
    model.add_argument("--width", type=int, default=64, help="D, the width of the ocean state")
    model.add_argument("--layers", type=int, default=2, help="L")
    model.add_argument("--heads", type=int, default=4, help="H")
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
    training.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    training.add_argument(
        "--feed",
        choices=("windows", "streams"),
        default="windows",
        help="windows at random places, from a zero state; or contiguous streams whose state is carried on",
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


def _run(args: argparse.Namespace, received: list[int]) -> int:
    import torch

    from ocean_train import parallel
    from ocean_train.batches import prepare
    from ocean_train.corpora import load_corpus
    from ocean_train.loop import Settings, train

    if args.feed == "streams" and args.shuffle:
        raise ValueError("streams are read in order, each row going on from window to window: drop --shuffle")
    for name in ("threads", "eval_every", "save_every"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    if args.vocabulary is None and args.tokenizer == "word":
        args.vocabulary = DEFAULT_VOCABULARY
    settings = Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__})
    torch.set_num_threads(args.threads)
    corpus = load_corpus(args.corpus, args.text)
    data = prepare(corpus, settings.tokenizer, settings.vocabulary, settings.batch, settings.window)
    device = parallel.start()
    try:
        leads = parallel.leads()

        def say(line: str) -> None:
            if leads:
                print(line, flush=True)

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
        _show(checkpoint, args.out)
    return 0


def _describe(settings: Settings, data: Data) -> str:
    train, validation = len(data.training), len(data.validation)
    return (
        f"text   {data.name}: {train:,} tokens to train on, {validation:,} to validate; "
        f"{data.tokenizer.size} different ({settings.tokenizer})\n"
        f"model  {settings.model}, width {settings.width}, {settings.layers} layers, {settings.heads} heads; "
        f"regime {settings.regime}, {settings.feed} of {settings.window} steps, {settings.batch} side by side"
    )


def _show(checkpoint: Checkpoint, out: Path) -> None:
    """Draw the curves, print what was reached and a sample."""
    from ocean_train.loop import Settings, build
    from ocean_train.report import nats, plot, sample

    tokenizer = checkpoint.tokenizer
    plot(checkpoint.history, out / "curves.png", f"{checkpoint.data['name']}, {checkpoint.regime}")
    skipped = f", {checkpoint.skipped} of them skipped" if checkpoint.skipped else ""
    print(
        f"done   validation loss {nats(checkpoint.validation_loss)} nats a token "
        f"after {checkpoint.step} steps{skipped}; {out}/checkpoint.json, {out}/curves.png"
    )
    model = build(Settings(**checkpoint.settings), tokenizer)
    model.load_state_dict(dict(checkpoint.weights))
    text = sample(
        model,
        tokenizer,
        checkpoint.heldout[:64],
        SAMPLE_TOKENS[tokenizer.kind],
        SAMPLE_TEMPERATURE,
        checkpoint.seed,
    )
    print(f"\nit writes, after reading {tokenizer.decode(checkpoint.heldout[:64].tolist())!r}:\n{text}")


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


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
