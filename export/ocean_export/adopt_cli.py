"""ocean-export adopt: a foreign single-step ONNX file becomes a self-describing one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from ocean_runtime.contract import Element
from ocean_runtime.describe import describe
from ocean_runtime.files import require_folder


def run(argv: list[str]) -> None:
    """The command. Raises OceanError and OSError, which ocean-export reports."""
    args = _parser().parse_args(argv)
    from ocean_export.adopt import Said, write_adopted
    from ocean_export.adopt_external import read_foreign
    from ocean_export.adopt_graph import parse, values
    from ocean_export.adopt_initial import read_initial
    from ocean_export.adopt_pairs import read_pairs

    source, target = Path(args.source), Path(args.output)
    require_folder(target)  # reported before the work, not after it
    foreign, beside = read_foreign(source)
    said = Said(
        states=read_pairs(args.state, *values(parse(foreign, source.name).graph)),
        inputs=tuple(args.input),
        initial=read_initial(args.initial),
        constants=dict(args.const),
        pins=dict(args.pin),
        batch=tuple(args.batch),
        elements=dict(args.elements),
        rate_hz=args.rate,
    )
    report = write_adopted(source, foreign, beside, target, said)
    if args.json:
        print(report.to_json())
        return
    print(describe(report.contract))
    for warning in report.warnings:
        print(f"ocean-export: warning: {warning}", file=sys.stderr)
    print(
        f"ocean-export: wrote {report.path}, {report.size_bytes:,} bytes"
        + "".join(f", with the weights of {path.name}" for path in report.weights)
        + "; two streams gave the foreign file's outputs"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ocean-export adopt",
        description="Make a self-describing file out of somebody else's single-step recurrent ONNX.",
        epilog="For example: ocean-export adopt silero_vad.onnx -o vad.onnx --state state:stateN "
        "--const sr=16000 --pin input.0=1 --pin input.1=576 --pin state.1=1",
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="FOREIGN.onnx", help="one step of a recurrent model")
    parser.add_argument("-o", "--output", metavar="FILE", default="model.onnx", help="default: model.onnx")
    repeated: dict[str, tuple[str, Callable[[str], object], str]] = {
        "state": (
            "IN:OUT",
            str,
            "the output that replaces an input, where names leave that open; a * in both stands for the same text",
        ),
        "input": ("IN", str, "an input that is given at each step, though it looks like a state"),
        "initial": (
            "IN=VALUE",
            str,
            "a state before the first step: a number for all of it, FILE.npy, or without IN= FILE.npz (default: 0)",
        ),
        "const": ("IN=VALUE", _pair(float), "an input that always has this value"),
        "pin": ("NAME=SIZE", _pair(int), "a free dimension, by its name or as TENSOR.AXIS"),
        "batch": (
            "NAME",
            str,
            "a free dimension that is the axis of independent streams, by its name or as TENSOR.AXIS",
        ),
        "elements": ("TENSOR=A,B[UNIT],...", _pair(_elements), "names along the last axis"),
    }
    for name, (metavar, convert, text) in repeated.items():
        parser.add_argument(
            f"--{name}", metavar=metavar, type=convert, action="append", default=[], help=text
        )
    parser.add_argument("--rate", metavar="HZ", type=float, help="steps a second, where it has a rate")
    parser.add_argument(
        "--json", action="store_true", help="print the report as one JSON object, and nothing else"
    )
    return parser


def _pair(kind: Callable[[str], object]) -> Callable[[str], tuple[str, object]]:
    def convert(text: str) -> tuple[str, object]:
        name, found, value = text.rpartition("=") if kind in (float, int) else text.partition("=")
        if not (name and found and value):
            raise argparse.ArgumentTypeError(f"write it as NAME=VALUE, not {text!r}")
        try:
            return name, kind(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{value!r} in {text!r} is no {kind.__name__}") from None

    return convert


def _elements(text: str) -> tuple[Element, ...]:
    parts = (part.partition("[") for part in text.split(","))
    return tuple(Element(name.strip(), unit.rstrip("]").strip()) for name, _, unit in parts)
