"""From a checkpoint to one verified .onnx file: what `ocean-export` does, as a function."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from ocean_runtime import ContractError, OceanError, OceanModel
from ocean_runtime.files import as_path, require_folder, write_atomically
from ocean_runtime.prefill import path_beside
from ocean_train import checkpoint
from ocean_train.observations import InUnits, Stepper

from ocean_export import heldout, lean
from ocean_export.contract import attach, contract_of
from ocean_export.heldout import Cost
from ocean_export.precision import PRECISIONS
from ocean_export.prefill import attach_prefill, is_prefill, loaded_prefill, prefill_graph, verify_prefill
from ocean_export.report import page
from ocean_export.study import study
from ocean_export.units import in_units
from ocean_export.verify import Parity, Trial, make_trial, reference, verify
from ocean_export.verify_rounded import (
    PREFILL_STEPS,
    RoundedParity,
    RoundingOf,
    step_of,
    steps_of,
    verify_rounded,
)

if TYPE_CHECKING:
    import onnx
    from ocean_runtime import Contract
    from ocean_train.checkpoint import Checkpoint

Log = Callable[[str], object]
"""Takes one line about what was measured or written, such as `print`."""


class ExportError(OceanError):
    """The export was refused, and no file was written."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; no file was written")


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote, and what its verification measured."""

    path: Path
    size_bytes: int
    state_id: str
    """Identifies the models that a saved state fits."""
    precision: str
    """Of the weight matrices: `fp32`, `int8` or `int4`."""
    parity: Parity
    """The float32 graph against the trained model in float64."""
    rounded: RoundedParity | None = None
    """The int8 or int4 graph against the trained model rounded in the same way."""
    cost: Cost | None = None
    """What int8 or int4 costs on held-out data."""
    prefill: Path | None = None
    """The prefill file, where one was asked for."""
    prefill_difference: float | None = None
    """The largest difference between the prefill file and the step file, at fp32."""
    prefill_rounded: RoundedParity | None = None
    """What `rounded` is, for the prefill file at int8 or int4."""
    removed: Path | None = None
    """A prefill file of the previous export at this path, which was removed."""
    report: Path | None = None
    """The report, where one was asked for."""
    onnxruntime: str = "1.17"
    """The oldest onnxruntime that runs the file."""

    def to_json(self) -> str:
        """The report as a JSON object, on one line: fields as above, `None` as null, paths as text."""
        return json.dumps(dataclasses.asdict(self), default=str, ensure_ascii=False, allow_nan=False)


def export_checkpoint(
    folder: str | Path,
    path: str | Path = "model.onnx",
    *,
    precision: str = "fp32",
    max_loss_increase: float | str | None = None,
    portable: bool = False,
    prefill: bool = False,
    report: str | Path | None = None,
    log: Log | None = None,
) -> ExportReport:
    """Write the checkpoint in `folder` as one verified single-step ONNX file at `path`.

    precision: `fp32`, `int8` or `int4`, of the weight matrices; everything else stays float32.
    max_loss_increase: the largest increase of the held-out loss that int8 or int4 may cost: a number in the loss's
        unit, or a percentage of it such as "2%". By default 0.02 nats, or 2% of the RMSE.
    portable: use only operators of the ONNX standard (fp32 always does).
    prefill: also write `NAME.prefill.onnx`, which runs many steps in one call.
    report: also write a report of the model to this path: one HTML file (see docs/deploy.md).
    log: called with one line for each measurement and each file, for example `print`.

    Raises ExportError where the graph does not match the trained model closely enough, ValueError for an unknown or
    contradictory option or an unusable checkpoint, and OSError where the file can't be written. No file is written
    then.
    """
    path, tell = as_path(path, ValueError, "the file to write"), log or (lambda line: None)
    report = None if report is None else as_path(report, ValueError, "the report")
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; choose {', '.join(PRECISIONS)}")
    if precision == "int4" and portable:
        raise ValueError("opset 20 has no 4-bit product; choose int8, or leave out portable")
    if precision == "int8" and portable and prefill:
        raise ValueError(
            "portable int8 rounds over all that one call holds, so a prefill would differ from its steps; "
            "leave out prefill or portable"
        )
    limit = None if max_loss_increase is None else _limit(max_loss_increase)
    saved = checkpoint.load(folder)
    for target in (path, *([report] if report else [])):
        require_folder(target)  # reported before the work, not after it
    with one_thread():
        return _Export(saved, precision, portable, tell).run(path, limit, prefill, report)


def _limit(value: float | str) -> str:
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(
            f"the largest increase of the loss is a number or a percentage, 0 or more, not {text!r}"
        )
    return text


class _Export:
    """One export of a checkpoint: the trained model, and how its graphs are made and measured."""

    def __init__(self, saved: Checkpoint, precision: str, portable: bool, log: Log) -> None:
        self.saved, self.precision, self.portable, self.log = saved, precision, portable, log
        self.model, self.observations = saved.model(), saved.observations
        self.stepper: Stepper = self.model
        if self.observations is None:
            self.trial = make_trial(self.model)
        else:
            self.stepper = InUnits(self.model, self.observations)
            recording = saved.heldout.numpy()
            self.trial = make_trial(self.stepper, observations=self.observations, recording=recording)

    def run(self, path: Path, limit: str | None, prefill: bool, report_path: Path | None) -> ExportReport:
        """Make, verify and write the files."""
        contract = contract_of(self.saved, self.model)
        proto = self._in_units(lean.lean_graph(self.model))
        parity = verify(loaded(proto, contract), self.trial, reference(self.stepper, self.trial))
        self.log(str(parity))
        if not parity.passed:
            raise ExportError(f"the exported graph {parity.failure}")
        measured, rounded, cost = parity.to_dict(), None, None
        if self.precision != "fp32":
            contract = dataclasses.replace(contract, precision=self.precision)
            proto = self._in_units(lean.lean_graph(self.model, self.precision, self.portable))
            rounded, cost = self._verify_rounded(loaded(proto, contract), limit)
            measured = {
                "float32_graph": measured,
                "rounded": rounded.to_dict(),
                "heldout": cost.to_dict(),
            }
        contract = dataclasses.replace(contract, parity=measured)
        content, beside = attach(proto, contract), path_beside(path)
        report = ExportReport(
            path=path,
            size_bytes=len(content),
            state_id=contract.state_id,
            precision=self.precision,
            parity=parity,
            rounded=rounded,
            cost=cost,
            onnxruntime="1.22" if self.precision == "int8" and not self.portable else "1.17",
        )
        files = {path: content}
        if prefill:
            files[beside], difference, alike = self._prefill(contract, proto, content, parity)
            report = dataclasses.replace(
                report, prefill=beside, prefill_difference=difference, prefill_rounded=alike
            )
        if report_path is not None:
            files[report_path] = self._report(path.name, contract, proto, len(content))
            report = dataclasses.replace(report, report=report_path)
        write_files(files, contract.state_id, self.log)
        if beside not in files and is_prefill(beside):
            beside.unlink()
            report = dataclasses.replace(report, removed=beside)
            self.log(f"removed {beside}, which belonged to the file that was there before")
        return report

    def _in_units(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        return proto if self.observations is None else in_units(proto, self.observations)

    def _report(self, name: str, contract: Contract, proto: onnx.ModelProto, size_bytes: int) -> bytes:
        """The report of the file, as UTF-8."""
        exported = loaded(proto, contract)
        return page(name, size_bytes, exported, study(self.saved, exported, self.stepper)).encode()

    def _verify_rounded(self, exported: OceanModel, limit: str | None) -> tuple[RoundedParity, Cost]:
        how = RoundingOf(self.precision, self.portable)
        alike = verify_rounded(step_of(exported), self.model, self.observations, self.trial, how)
        self.log(f"{self.precision}: {alike}")
        if not alike.passed:
            raise ExportError(f"the {self.precision} graph {alike.failure}")
        cost = heldout.measure(exported, self.stepper, heldout.heldout_of(self.saved))
        self.log(f"{self.precision}: {cost}")
        allowed = limit or heldout.LIMIT[self.model.config.head]
        if not cost.within(allowed):
            raise ExportError(
                f"{self.precision} makes the loss worse by {cost.increase:.4f} {cost.unit}, and {allowed} is "
                "allowed; allow a larger increase of the loss, or choose more bits"
            )
        return alike, cost

    def _prefill(
        self, contract: Contract, proto: onnx.ModelProto, content: bytes, parity: Parity
    ) -> tuple[bytes, float | None, RoundedParity | None]:
        """The prefill file, and what its verification measured: at fp32 a difference, else as for the step file."""
        step = loaded(proto, contract)
        graph = self._in_units(prefill_graph(self.model, self.precision, self.portable))
        many = attach_prefill(graph, contract, content)
        found = loaded_prefill(many, contract, content)
        if self.precision == "fp32":
            inputs = self.trial.inputs[: max(1, parity.predictable_steps)]
            difference = verify_prefill(found, step, Trial(inputs, self.trial.ocean, self.trial.unit))
            self.log(f"prefill: largest difference from the step file {difference:.1e}")
            if not difference <= parity.between_files:
                raise ExportError(f"the prefill graph differs from the step graph by {difference:.1e}")
            return many, difference, None
        how = RoundingOf(self.precision, self.portable, PREFILL_STEPS)
        alike = verify_rounded(steps_of(found, step), self.model, self.observations, self.trial, how)
        self.log(f"prefill: {alike}")
        if not alike.passed:
            raise ExportError(f"the prefill graph {alike.failure}")
        return many, None, alike


def loaded(proto: onnx.ModelProto, contract: Contract) -> OceanModel:
    """The model as the runtime will load it from a file. Raises ContractError where it refuses it."""
    return loaded_from(attach(proto, contract))


def loaded_from(content: bytes) -> OceanModel:
    """A file's content as the runtime will load it. Raises ContractError where it refuses it."""
    with tempfile.TemporaryDirectory(prefix="ocean-export-") as folder:
        candidate = Path(folder) / "candidate.onnx"
        candidate.write_bytes(content)
        try:
            return OceanModel.load(candidate)
        except ContractError as error:
            raise ContractError(str(error).removeprefix(str(candidate)).lstrip(": ")) from None


def write_files(files: Mapping[Path, bytes], state_id: str, log: Log) -> None:
    """Write each file whole or not at all. Raises OSError."""
    for path in files:
        if path.is_dir():  # the only thing that a rename does not replace; found before the first is written
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for path, content in files.items():
        write_atomically(path, content)
        log(f"wrote {path}, {len(content):,} bytes, state id {state_id[:19]}")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: with small steps, more threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
