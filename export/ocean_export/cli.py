"""ocean-export: a checkpoint becomes one verified .onnx file, or none."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import os
import sys
import tempfile
from pathlib import Path

from ocean_runtime import OceanError, OceanModel, __version__
from ocean_runtime.describe import describe
from ocean_runtime.files import write_atomically


def main(argv: list[str] | None = None) -> int:
    """The command. Returns the exit status: 0, or 1 with one sentence on standard error."""
    args = _parser().parse_args(argv)
    try:
        if args.inspect:
            print(describe(OceanModel.load(args.source).contract))
            return 0
        return _export(Path(args.source), Path(args.output))
    except ImportError as error:
        if error.name not in ("torch", "onnx", "onnxscript"):
            raise
        print(f"ocean-export: needs {error.name}: pip install 'oceanstate[export]'", file=sys.stderr)
    except (OceanError, ValueError) as error:
        print(f"ocean-export: {error}", file=sys.stderr)
    except OSError as error:
        print(f"ocean-export: {args.output} can't be written: {error.strerror}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ocean-export",
        description="Turn a checkpoint into one verified, self-describing, single-step ONNX file.",
    )
    parser.add_argument("source", help="a folder that ocean-train made; with --inspect, an .onnx file")
    parser.add_argument("-o", "--output", metavar="FILE", default="model.onnx", help="default: model.onnx")
    parser.add_argument("--inspect", action="store_true", help="say what an exported file says about itself")
    parser.add_argument("--version", action="version", version=f"oceanstate {__version__}")
    return parser


def _export(source: Path, output: Path) -> int:
    import onnxscript  # noqa: F401  # torch needs it to export: if it is missing, say so before any work
    import torch
    from ocean_train import checkpoint
    from ocean_train.observations import InUnits, Stepper

    from ocean_export.contract import attach, contract_of
    from ocean_export.graph import step_graph
    from ocean_export.units import in_units
    from ocean_export.verify import make_trial, reference, verify

    saved = checkpoint.load(source)
    if not output.parent.is_dir():  # said before the work, not after it
        raise NotADirectoryError(errno.ENOENT, os.strerror(errno.ENOENT), str(output.parent))
    model = saved.model()
    torch.set_num_threads(1)  # small steps: more threads wait for each other longer than they compute
    proto, trial = step_graph(model), make_trial(model)
    stepper: Stepper = model
    if saved.observations is not None:
        proto = in_units(proto, saved.observations)
        stepper = InUnits(model, saved.observations)
        trial = make_trial(stepper, observations=saved.observations, recording=saved.heldout.numpy())
    contract = contract_of(saved, model)
    attach(proto, contract)
    with tempfile.TemporaryDirectory(prefix="ocean-export-") as folder:
        candidate = Path(folder) / "candidate.onnx"
        candidate.write_bytes(proto.SerializeToString())
        parity = verify(OceanModel.load(candidate), trial, reference(stepper, trial))
    print(f"ocean-export: {parity}")
    if not parity.passed:
        print(
            f"ocean-export: the exported graph differs from the trained model by {parity.largest:.1e}, more than "
            f"{parity.tolerance:g}; no file was written",
            file=sys.stderr,
        )
        return 1
    attach(proto, dataclasses.replace(contract, parity=parity.to_dict()))
    content = proto.SerializeToString()
    write_atomically(output, content)
    print(f"ocean-export: wrote {output}, {len(content):,} bytes, state id {contract.state_id[:19]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
