"""ocean-export: a checkpoint becomes one verified .onnx file, or none."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ocean_runtime import OceanError, OceanModel, __version__
from ocean_runtime.describe import describe
from ocean_runtime.files import require_folder, write_atomically
from ocean_runtime.prefill import path_beside

from ocean_export import adopt_cli

if TYPE_CHECKING:
    import onnx
    from ocean_runtime import Contract


def main(argv: list[str] | None = None) -> int:
    """The command. Returns the exit status: 0, or 1 with one sentence on standard error."""
    arguments = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # else a program that calls `main` has put its own in place
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the locale can't show loses no file
    try:
        if arguments[:1] == ["adopt"]:
            return adopt_cli.run(arguments[1:])
        args = _parser().parse_args(arguments)
        if args.inspect:
            print(describe(OceanModel.load(args.source).contract))
            return 0
        return _export(args)
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
        type=_limit,
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
    parser.add_argument("--inspect", action="store_true", help="say what an exported file says about itself")
    parser.add_argument("--version", action="version", version=f"oceanstate {__version__}")
    return parser


def _limit(text: str) -> str:
    value = float(text.removesuffix("%"))
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text}")
    return text


def _export(args: argparse.Namespace) -> int:
    import torch
    from ocean_train import checkpoint
    from ocean_train.observations import InUnits, Stepper

    from ocean_export.contract import attach, contract_of
    from ocean_export.heldout import LIMIT, heldout_of, measure
    from ocean_export.lean import lean_graph
    from ocean_export.prefill import (
        attach_prefill,
        is_prefill,
        loaded_prefill,
        prefill_graph,
        verify_prefill,
    )
    from ocean_export.units import in_units
    from ocean_export.verify import make_trial, reference, verify
    from ocean_export.verify_rounded import PREFILL_STEPS, RoundingOf, step_of, steps_of, verify_rounded

    output, precision, portable = Path(args.output), args.precision, args.portable
    if precision == "int4" and portable:
        raise ValueError("opset 20 has no 4-bit product; choose int8, or leave out --portable")
    if precision == "int8" and portable and args.prefill:
        raise ValueError(
            "portable int8 rounds over all that one call holds, so a prefill would differ from its steps; "
            "leave out --prefill or --portable"
        )
    saved = checkpoint.load(Path(args.source))
    require_folder(output)  # said before the work, not after it
    model, observations = saved.model(), saved.observations
    torch.set_num_threads(1)  # small steps: more threads wait for each other longer than they compute
    stepper: Stepper = model
    if observations is None:
        trial = make_trial(model)
    else:
        stepper = InUnits(model, observations)
        trial = make_trial(stepper, observations=observations, recording=saved.heldout.numpy())

    def finished(proto: onnx.ModelProto) -> onnx.ModelProto:
        return proto if observations is None else in_units(proto, observations)

    contract = contract_of(saved, model)
    proto = finished(lean_graph(model))
    parity = verify(_loaded(proto, contract), trial, reference(stepper, trial))
    print(f"ocean-export: {parity}")
    if not parity.passed:
        return _refuse(f"the exported graph {parity.failure}")
    measured = parity.to_dict()
    if precision != "fp32":
        contract = dataclasses.replace(contract, precision=precision)
        proto = finished(lean_graph(model, precision, portable))
        rounded = _loaded(proto, contract)
        how = RoundingOf(precision, portable)
        alike = verify_rounded(step_of(rounded), model, observations, trial, how)
        print(f"ocean-export: {precision}: {alike}")
        if not alike.passed:
            return _refuse(f"the {precision} graph {alike.failure}")
        cost = measure(rounded, stepper, heldout_of(saved))
        print(f"ocean-export: {precision}: {cost}")
        limit = args.max_loss_increase or LIMIT[model.config.head]
        if not cost.within(limit):
            return _refuse(
                f"{precision} makes the loss worse by {cost.increase:.4f} {cost.unit}, and {limit} is allowed; "
                "raise --max-loss-increase, or choose more bits"
            )
        measured = {"float32_graph": measured, "rounded": alike.to_dict(), "heldout": cost.to_dict()}
    contract = dataclasses.replace(contract, parity=measured)
    files = {output: attach(proto, contract)}
    beside = path_beside(output)
    if args.prefill:
        step = _loaded(proto, contract)
        many = attach_prefill(finished(prefill_graph(model, precision, portable)), contract, files[output])
        prefill = loaded_prefill(many, contract, files[output])
        if precision == "fp32":
            agree = dataclasses.replace(trial, inputs=trial.inputs[: max(1, parity.predictable_steps)])
            difference = verify_prefill(prefill, step, agree)
            print(f"ocean-export: prefill: largest difference from the step file {difference:.1e}")
            if not difference <= parity.between_files:
                return _refuse(f"the prefill graph differs from the step graph by {difference:.1e}")
        else:
            how = RoundingOf(precision, portable, PREFILL_STEPS)
            alike = verify_rounded(steps_of(prefill, step), model, observations, trial, how)
            print(f"ocean-export: prefill: {alike}")
            if not alike.passed:
                return _refuse(f"the prefill graph {alike.failure}")
        files[beside] = many
    for path in files:
        if path.is_dir():  # the only thing that a rename does not replace; found before the first is written
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for path, content in files.items():
        write_atomically(path, content)
        print(f"ocean-export: wrote {path}, {len(content):,} bytes, state id {contract.state_id[:19]}")
    if beside not in files and is_prefill(beside):
        beside.unlink()
        print(f"ocean-export: removed {beside}, which belonged to the file that was there before")
    if precision == "int8" and not portable:
        print("ocean-export: this file needs onnxruntime 1.22 or newer; --portable makes one for 1.17")
    return 0


def _loaded(proto: onnx.ModelProto, contract: Contract) -> OceanModel:
    """The model as the runtime will load it from a file."""
    from ocean_export.contract import attach

    with tempfile.TemporaryDirectory(prefix="ocean-export-") as folder:
        candidate = Path(folder) / "candidate.onnx"
        candidate.write_bytes(attach(proto, contract))
        return OceanModel.load(candidate)


def _refuse(reason: str) -> int:
    print(f"ocean-export: {reason}; no file was written", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
