"""One onnxruntime session, checked against the contract that it must keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocean_runtime.contract import BATCH, DTYPES, Contract, show_shape, sized
from ocean_runtime.errors import ContractError, reason_of

CPU = "CPUExecutionProvider"

Compute = Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]
"""Inputs by name -> outputs, all fresh."""

_ONNX_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


class StepGraph:
    """A session of a single-step graph with its contract: read-only, for many threads.

    Raises ContractError where the graph does not keep the contract, or can't run one step.
    """

    def __init__(self, session: Any, contract: Contract) -> None:
        self.session, self.contract = session, contract
        self._check_graph()
        self._outputs = [t.name for t in contract.outputs] + [s.output for s in contract.states]
        self._warm_up()

    def initial_state(self, batch: int) -> dict[str, NDArray[Any]]:
        """The state before the first step, by the graph's input names, for `batch` streams."""
        return {s.input: s.first(batch) for s in self.contract.states}

    def compute(self, feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the graph once: all inputs by name -> the contract's outputs, then next states, all fresh."""
        result: list[NDArray[Any]] = self.session.run(self._outputs, feed)
        return result

    def bound(self, rows: int) -> Compute:
        """What `compute` does for a given number of rows, sooner, for one thread at a time.

        Fixed inputs are known to it, and need not be given.
        """
        arrays: dict[str, NDArray[Any]] = {
            t.name: np.full(sized(t.shape, rows), t.constant or 0, DTYPES[t.dtype])
            for t in self.contract.inputs
        } | self.initial_state(rows)
        outputs: dict[str, NDArray[Any]] = (
            {  # apart: an input that a graph passes on is an output of its name
                t.name: np.zeros(sized(t.shape, rows), DTYPES[t.dtype]) for t in self.contract.outputs
            }
            | {s.output: s.first(rows) for s in self.contract.states}
        )
        if self.session.get_providers() == [CPU]:
            return bind(self.session, arrays, outputs)
        # What a device does with bound arrays is not known.
        return lambda feed: self.compute({**arrays, **feed})

    def _check_graph(self) -> None:
        contract = self.contract
        declared_in = {t.name: (t.dtype, t.shape) for t in contract.inputs}
        declared_in |= {s.input: (s.dtype, s.shape) for s in contract.states}
        declared_out = {t.name: (t.dtype, t.shape) for t in contract.outputs}
        declared_out |= {s.output: (s.dtype, s.shape) for s in contract.states}
        for side, declared, nodes in (
            ("input", declared_in, self.session.get_inputs()),
            ("output", declared_out, self.session.get_outputs()),
        ):
            graph = {node.name: node for node in nodes}
            for name in sorted(declared.keys() ^ graph.keys()):
                holder, lacker = ("contract", "graph") if name in declared else ("graph", "contract")
                raise ContractError(
                    f"the {holder} has an {side} {name!r} that the {lacker} lacks; export the model again"
                )
            for name, (dtype, shape) in declared.items():
                found = _ONNX_DTYPES.get(graph[name].type, graph[name].type)
                if found != dtype:
                    raise ContractError(
                        f"the contract gives {side} {name!r} the dtype {dtype}, the graph {found}; "
                        "export the model again"
                    )
                if not _fits(shape, graph[name].shape):
                    raise ContractError(
                        f"the contract gives {side} {name!r} the shape {show_shape(shape)}, the graph "
                        f"{show_shape(graph[name].shape)}; export the model again"
                    )

    def _warm_up(self) -> None:
        """One step from the initial state, thrown away: it pages in the weights, and shows they run."""
        feed = self.initial_state(1)
        for t in self.contract.inputs:
            feed[t.name] = np.full(
                sized(t.shape, 1), 0 if t.constant is None else t.constant, DTYPES[t.dtype]
            )
        try:
            results = self.compute(feed)
        except Exception as error:
            raise ContractError(
                f"the graph can't run one step ({reason_of(error)}); export the model again"
            ) from None
        declared = [t.shape for t in self.contract.outputs] + [s.shape for s in self.contract.states]
        for name, shape, result in zip(self._outputs, declared, results, strict=True):
            if result.shape != sized(shape, 1):
                raise ContractError(
                    f"the graph gives {name!r} with shape {show_shape(result.shape)} for one stream, "
                    f"the contract says {show_shape(shape)}; export the model again"
                )


def _fits(declared: tuple[int | str, ...], graph: Sequence[int | str | None]) -> bool:
    """A fixed size must be the graph's own, where the graph has one; the batch axis must be dynamic."""
    return len(declared) == len(graph) and all(
        not isinstance(found, int) if axis == BATCH else not isinstance(found, int) or found == axis
        for axis, found in zip(declared, graph, strict=True)
    )


def session_of(data: bytes, threads: int, providers: Sequence[str] | None) -> Any:
    """An onnxruntime session of scanned bytes. Raises ContractError where onnxruntime refuses them."""
    ort = import_onnxruntime()
    providers = list(providers or [CPU])
    available = ort.get_available_providers()
    for name in providers:
        if name not in available:  # onnxruntime would go on with others, and only its log would say so
            raise ContractError(
                f"this onnxruntime has no execution provider {name!r}; it has {', '.join(available)}"
            )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 4
    try:
        # From bytes, not from the path: so no file can refer to external data beside it.
        # Its fallback would print to standard output, and swallow what a signal handler raises.
        session = ort.InferenceSession(data, options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise ContractError(
            f"it can't be loaded by onnxruntime {ort.__version__}: {reason_of(error)}"
        ) from None
    for name in providers:
        if name not in session.get_providers():
            raise ContractError(
                f"the execution provider {name!r} can't start on this machine; onnxruntime offers "
                f"{', '.join(session.get_providers())} instead"
            )
    return session


def bind(session: Any, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> Compute:
    """A session's run with its inputs and outputs kept in these arrays: for one thread at a time.

    Calling a graph takes onnxruntime as long as a dozen small nodes do; with arrays bound beforehand, half of
    that (docs/log.md). An input that a call is not given is what it was before. An output with the name of an input
    is that input, passed on: onnxruntime leaves an array that is bound to it alone.
    """
    value = import_onnxruntime().OrtValue.ortvalue_from_numpy  # shares an array's memory
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, value(array))
    for name, array in outputs.items():
        if name not in inputs:
            binding.bind_ortvalue_output(name, value(array))
    given = {name: inputs.get(name, array) for name, array in outputs.items()}

    def compute(feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        for name, array in feed.items():
            inputs[name][...] = array  # np.copyto takes five times as long
        session.run_with_iobinding(binding)
        return [array.copy() for array in given.values()]

    return compute


def import_onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        if getattr(error, "name", None) != "onnxruntime":
            raise
        raise ContractError(
            "running a model needs onnxruntime: pip install 'oceanstate[cpu]', or your board's own build"
        ) from None
    return onnxruntime
