"""Any PyTorch module that has a step -> one verified, self-describing .onnx file."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import ArrayLike, NDArray
from ocean_runtime import ContractError, OceanModel, __version__
from ocean_runtime.contract import BATCH, DTYPES, Contract, State, digest, show_shape
from ocean_runtime.contract import Tensor as Described
from ocean_runtime.files import require_folder
from ocean_train.model import OceanCore
from torch import Tensor, nn

from ocean_export.contract import attach, longest_time_constant
from ocean_export.graph import quiet, tidy
from ocean_export.lean import IR_VERSION, OPSET
from ocean_export.module_checks import check, runner
from ocean_export.module_step import (
    ModuleStep,
    Samples,
    StepError,
    as_taken,
    batched,
    copied,
    first_line,
    flatten,
    name_of,
    results_of,
    step_of,
    values_of,
)
from ocean_export.pipeline import ExportError, ExportReport, Log, loaded_from, one_thread, write_files
from ocean_export.verify import STEPS
from ocean_export.verify_module import reference, starts, verify_module


def export(
    module: nn.Module,
    path: str | Path = "model.onnx",
    *,
    inputs: Sequence[Described],
    outputs: Sequence[Described],
    states: Sequence[State],
    rate_hz: float | None = None,
    examples: Mapping[str, ArrayLike] | None = None,
    steps: int = STEPS,
    log: Log | None = None,
) -> ExportReport:
    """Write `module.step` as one verified single-step ONNX file at `path`, which `ocean_runtime` runs.

    The module's `step(*inputs, *states)` returns its outputs, then the next states, in the order in which they are
    described here; tuples within each other are read in order. It is a pure function of them. The module is not
    changed, and is exported in evaluation mode.

        export(
            module, "model.onnx",
            inputs=[Tensor("imu", "float32", ("B", 6), elements=...), Tensor("image", "uint8", ("B", 1, 24, 32))],
            outputs=[Tensor("speed", "float32", ("B", 2))],
            states=[State("ocean", "ocean_next", "float32", ("B", 64))],
            rate_hz=50,
        )

    inputs, outputs: `ocean_export.Tensor`s: name, dtype, shape with "B" for the axis of independent streams, and
        where known the names, units and ranges of the numbers. An input with a `constant` need not be given at a
        step. Without a "B" in any shape the file runs one stream.
    states: `ocean_export.State`s: what the step takes and gives back, and its value before the first step.
    rate_hz: steps a second in the training data.
    examples: by input, recorded values of one stream (N, ...), in the caller's units, one each step: the
        verification reads them in place of random numbers. Random ones are uniform within the elements' ranges, where
        they have such, else N(0, 1), bytes or booleans; an int32 or int64 input needs examples or ranges.
    steps: how long the verification is. Fewer make it quicker for a large module, and less sharp.
    log: called with one line for each measurement and each file, for example `print`.

    The file is compared with the module in float64 (in float32 where its step can't run in float64), in single steps
    and in a closed loop at batch 1, 2 and 7, by the rule of `ocean_export.verify`.

    Raises ExportError, in one sentence, where the step is no pure function of each row's inputs and states, where it
    is not what was described, where PyTorch can't export it, where the runtime refuses the graph, or where the graph
    differs from the module; OSError where the file can't be written. No file is written then.
    """
    path, tell = Path(path), log or (lambda line: None)
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, not {steps!r}")
    require_folder(path)  # reported before the work, not after it
    with one_thread():
        try:
            contract = _contract(module, inputs, outputs, states, rate_hz)
            samples = Samples(contract, _recorded(contract, examples or {}))
            step = runner(module, contract, samples)
            check(step, samples)
            step.module.eval()
            proto = _graph(copied(module).eval(), contract, samples)
            exported = _loaded(attach(proto, contract))
            trial = reference(step, samples, starts(step, samples), steps)
            parity = verify_module(exported, trial, step.precise)
        except (StepError, ContractError) as error:
            raise ExportError(str(error)) from error.__cause__
    tell(str(parity))
    if not parity.passed:
        raise ExportError(f"the exported graph {parity.failure}")
    content = attach(proto, dataclasses.replace(contract, parity=parity.to_dict()))
    write_files({path: content}, contract.state_id, tell)
    return ExportReport(path, len(content), contract.state_id, contract.precision, parity)


def _contract(
    module: nn.Module,
    inputs: Sequence[Described],
    outputs: Sequence[Described],
    states: Sequence[State],
    rate_hz: float | None,
) -> Contract:
    contract = Contract(
        kind="features",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        states=tuple(states),
        state_id=_state_id(module, states),
        rate_hz=rate_hz,
        max_time_constant=_time_constant(module),
        sizes={"parameters": sum(p.numel() for p in module.parameters())},
        opset=OPSET,
        ir_version=IR_VERSION,
        provenance={
            "module": f"{type(module).__module__}.{type(module).__qualname__}",
            "exported_with": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "onnx": onnx.__version__,
                "oceanstate": __version__,
            },
        },
    )
    if batched(contract):
        for name, _, shape in results_of(contract):
            if BATCH not in shape:
                raise StepError(
                    f"{name!r} is described with the shape {show_shape(shape)}, which has no axis {BATCH!r}, and the "
                    f"states have one; give each output and state one"
                )
    elif any(BATCH in shape for shape in [t.shape for t in inputs] + [s for _, _, s in results_of(contract)]):
        none = next(s.input for s in states if s.batch_axis is None)
        raise StepError(
            f"the state {none!r} has no axis {BATCH!r}, and others have one; give each state one, or none at all"
        )
    return contract


def _state_id(module: nn.Module, states: Sequence[State]) -> str:
    """Whose state fits: the digest of weights, buffers and layers, and of what the states are."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights = {name: value.detach().cpu().numpy() for name, value in held.items()}
    return digest(weights, repr(module), [dataclasses.asdict(state) for state in states])


def _time_constant(module: nn.Module) -> float | None:
    """The longest time constant of the Oceans within, in steps; None where there are none."""
    found = [longest_time_constant(m) for m in module.modules() if isinstance(m, OceanCore)]
    return max(found, default=None)


def _recorded(contract: Contract, examples: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
    """The examples in the graph's numbers: less their references, in the graph's dtype."""
    given = {t.name: t for t in contract.inputs if t.constant is None}
    recorded: dict[str, NDArray[Any]] = {}
    for name, values in examples.items():
        if name not in given:
            raise StepError(
                f"examples names {name!r}, which is no input that is given; there is: {', '.join(given)}"
            )
        tensor, array = given[name], np.asarray(values)
        one = tuple(axis for axis in tensor.shape if axis != BATCH)
        if array.shape[1:] != one or not len(array):
            raise StepError(
                f"examples gives {name!r} an array of shape {show_shape(array.shape)}; values of one stream have "
                f"{show_shape(('N', *one))}"
            )
        if tensor.reference is not None:
            array = array - tensor.reference
        recorded[name] = array.astype(DTYPES[tensor.dtype])
    return recorded


class _Step(nn.Module):
    """`step` as a module's forward, which is what the exporter takes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        return tuple(flatten(step_of(self.model)(*given)))


def _graph(module: nn.Module, contract: Contract, samples: Samples) -> onnx.ModelProto:
    """The graph of `module.step`, from PyTorch's exporter. Raises StepError where it can't be had."""
    # Two rows: the exporter would take a batch of one for a constant.
    given = as_taken(contract, {**samples.inputs(0, 2), **samples.initial(2)})
    # The exporter does not look whether its names for nodes and weights are those of inputs and outputs.
    inputs = {f"@input{i}": name_of(v) for i, v in enumerate(values_of(contract))}
    outputs = {f"@output{i}": name for i, (name, _, _) in enumerate(results_of(contract))}
    batch = torch.export.Dim(BATCH)
    axes = tuple({v.shape.index(BATCH): batch} if BATCH in v.shape else {} for v in values_of(contract))
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                _Step(module).eval(),
                tuple(ModuleStep(module, contract).tensors(given)),
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes=(axes,),
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            assert program is not None
            proto: onnx.ModelProto = program.model_proto
            tidy(proto, IR_VERSION)
            _rename(proto.graph, {**inputs, **outputs})
            onnx.checker.check_model(proto, full_check=True)
    except Exception as error:  # the exporter's exceptions share no base class
        raise StepError(f"PyTorch can't export the step: {_reason(error)}") from error
    for value, found in zip(values_of(contract), proto.graph.input, strict=True):
        if BATCH in value.shape:
            axis = found.type.tensor_type.shape.dim[value.shape.index(BATCH)]
            if axis.HasField("dim_value"):
                raise StepError(
                    f"PyTorch's exporter fixed the number of streams at {axis.dim_value}: the step makes a number of "
                    "Python of it, as len(x) and a loop over rows do; take x.shape[0] and functions of tensors, or "
                    f"describe one stream, without {BATCH!r}"
                )
    return proto


def _loaded(content: bytes) -> OceanModel:
    try:
        return loaded_from(content)
    except ContractError as error:
        raise StepError(f"the runtime refuses the exported graph: {error}") from None


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Give inputs and outputs their names, and whatever else has one of those another; also in graphs within."""
    taken = set(names.values())

    def new(name: str) -> str:
        return names.get(name) or (f"step.{name}" if name in taken else name)

    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = new(value.name)
    for node in graph.node:
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _rename(inner, names)


def _reason(error: BaseException) -> str:
    """The first line of the innermost cause: what the exporter's exceptions say themselves is how to report them."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ImportError) and error.name == "onnxscript":
        return "its exporter needs onnxscript: pip install 'oceanstate[export]'"
    hint = ""
    if "data-dependent" in str(error):
        hint = "; where an if or a loop depends on what a tensor holds, use torch.where"
    return first_line(error) + hint
