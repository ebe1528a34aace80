"""ocean-export adopt: a foreign single-step ONNX file becomes a self-describing one."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ocean_runtime.contract import Element
from ocean_runtime.describe import describe


def run(argv: list[str]) -> None:
    """The command. Raises OceanError and OSError, which ocean-export reports."""
    args = _parser().parse_args(argv)
    from ocean_export.adopt import Said, adopt_file

    said = Said(
        states=dict(args.state),
        initial=dict(args.initial),
        constants=dict(args.const),
        pins=dict(args.pin),
        elements=dict(args.elements),
        rate_hz=args.rate,
    )
    report = adopt_file(args.source, args.output, said)
    if args.json:
        print(report.to_json())
        return
    print(describe(report.contract))
    print(
        f"ocean-export: wrote {report.path}, {report.size_bytes:,} bytes; two streams gave the foreign file's outputs"
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
    repeated = {
        "state": (
            "IN:OUT",
            _pair(":", str),
            "the output that replaces an input; suggested where it is clear",
        ),
        "initial": ("IN=VALUE", _pair("=", float), "a state's value before the first step (default: 0)"),
        "const": ("IN=VALUE", _pair("=", float), "an input that always has this value"),
        "pin": ("NAME=SIZE", _pair("=", int), "a free dimension, by its name or as TENSOR.AXIS"),
        "elements": ("TENSOR=A,B[UNIT],...", _pair("=", _elements), "names along the last axis"),
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


def _pair(separator: str, kind: Callable[[str], object]) -> Callable[[str], tuple[str, object]]:
    def convert(text: str) -> tuple[str, object]:
        name, found, value = text.partition(separator)
        if not (name and found and value):
            raise argparse.ArgumentTypeError(f"write it as NAME{separator}VALUE, not {text!r}")
        try:
            return name, kind(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{value!r} in {text!r} is no {kind.__name__}") from None

    return convert


def _elements(text: str) -> tuple[Element, ...]:
    parts = (part.partition("[") for part in text.split(","))
    return tuple(Element(name.strip(), unit.rstrip("]").strip()) for name, _, unit in parts)
