"""ocean-export: a checkpoint becomes one verified .onnx file, or none."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from ocean_runtime import OceanError, OceanModel, __version__
from ocean_runtime.describe import describe

from ocean_export import adopt_cli


def main(argv: list[str] | None = None) -> int:
    """The command. Returns the exit status: 0, or 1 with one sentence on standard error."""
    arguments = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # else a program that calls `main` has put its own in place
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the locale can't show loses no file
    try:
        if arguments[:1] == ["adopt"]:
            adopt_cli.run(arguments[1:])
            return 0
        args = _parser().parse_args(arguments)
        if args.inspect:
            print(describe(OceanModel.load(args.source).contract))
            return 0
        _export(args)
        return 0
    except ImportError as error:
        if error.name not in ("torch", "onnx"):
            raise
        print(f"ocean-export: needs {error.name}: pip install 'oceanstate[export]'", file=sys.stderr)
    except (OceanError, ValueError) as error:
        print(f"ocean-export: {error}", file=sys.stderr)
    except OSError as error:
        place = error.filename or "the output"
        print(f"ocean-export: {place} can't be written: {error.strerror}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ocean-export",
        description="Turn a checkpoint into one verified, self-describing, single-step ONNX file.",
        epilog="ocean-export adopt --help: make such a file out of somebody else's single-step recurrent ONNX.",
        allow_abbrev=False,
    )
    parser.add_argument("source", help="a folder that ocean-train made; with --inspect, an .onnx file")
    parser.add_argument("-o", "--output", metavar="FILE", default="model.onnx", help="default: model.onnx")
    parser.add_argument(
        "--precision",
        choices=("fp32", "int8", "int4"),
        default="fp32",
        help="of the weight matrices; all else stays float32 (default: fp32)",
    )
    parser.add_argument(
        "--max-loss-increase",
        metavar="X",
        help="what int8 or int4 may cost on held-out data, as a number or a percentage "
        "(default: 0.02 nats, or 2%% of the RMSE)",
    )
    parser.add_argument(
        "--portable",
        action="store_true",
        help="only operators of the ONNX standard, for other runtimes and onnxruntime before 1.22 "
        "(fp32 always is)",
    )
    parser.add_argument(
        "--prefill",
        action="store_true",
        help="also write NAME.prefill.onnx, which runs many steps in one call; stream.run uses it",
    )
    parser.add_argument(
        "--report",
        nargs="?",
        metavar="FILE",
        const="",
        help="also write a report, one HTML file: held-out error, agreement, read weights, how long the past lasts, a "
        "step's time (default: NAME.html beside the model)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the report as one JSON object, and nothing else"
    )
    parser.add_argument("--inspect", action="store_true", help="say what an exported file says about itself")
    parser.add_argument("--version", action="version", version=f"oceanstate {__version__}")
    return parser


def _export(args: argparse.Namespace) -> None:
    from ocean_export.pipeline import export_checkpoint

    report = export_checkpoint(
        args.source,
        args.output,
        precision=args.precision,
        max_loss_increase=args.max_loss_increase,
        portable=args.portable,
        prefill=args.prefill,
        report=Path(args.output).with_suffix(".html") if args.report == "" else args.report,
        log=None if args.json else lambda line: print(f"ocean-export: {line}", flush=True),
    )
    if args.json:
        print(report.to_json())
    elif report.onnxruntime != "1.17":
        print(
            f"ocean-export: this file needs onnxruntime {report.onnxruntime} or newer; --portable makes one for 1.17"
        )


if __name__ == "__main__":
    sys.exit(main())
