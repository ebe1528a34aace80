"""An exported model, loaded once and shared: one onnxruntime session and the contract it must keep."""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ocean_runtime.contract import BATCH, DTYPES, Contract, show_shape, sized
from ocean_runtime.errors import ContractError, let_through, reason_of
from ocean_runtime.files import as_path, kind_of, read_bounded
from ocean_runtime.prefill import PREFILL_KEY, Prefill, digest, path_beside
from ocean_runtime.probe import try_in_a_process
from ocean_runtime.scan import scan
from ocean_runtime.seal import check_seal

if TYPE_CHECKING:
    from ocean_runtime.stream import Guard, OceanStream

MAX_FILE_BYTES = (1 << 31) - 1
"""protobuf's own limit, and so the largest possible ONNX file without external data."""

CPU = "CPUExecutionProvider"

Compute = Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]
"""Inputs by name -> outputs, all fresh."""

_log = logging.getLogger(__name__)

_ONNX_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


class OceanModel:
    """One exported model: read-only, so it may serve many streams and many threads.

    `OceanModel.load(path)` reads a file; `stream()` starts a continuous state of its own.
    """

    def __init__(self, session: Any, contract: Contract, path: Path) -> None:
        self.contract = contract
        self.path = path
        self._session = session
        self._beside: tuple[int, Sequence[str] | None] | None = None
        self._digest = ""
        self._check_graph()
        self._outputs = [t.name for t in contract.outputs] + [s.output for s in contract.states]
        self._warm_up()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        threads: int = 1,
        providers: Sequence[str] | None = None,
        untrusted: bool = False,
    ) -> OceanModel:
        """Load a model file and run one step that nobody sees, so that the first real step is not slow.

        The file's bytes are scanned first, and onnxruntime sees only what a step graph needs.

        threads: onnxruntime's threads within a step; one is fastest for the sizes of a robot's memory.
        providers: onnxruntime execution providers, the CPU where None.
        untrusted: load it first in a process of its own, with bounded memory and time (some 0.5 s more).
        Raises ContractError where the file is missing, is no model, or does not keep its contract.
        """
        path = as_path(path, ContractError, "the model")
        data = _read_file(path)
        try:
            check_seal(data)
            text = scan(data)
            if text is None:
                raise ContractError(
                    "holds no Ocean State contract; make the file with ocean-export from a checkpoint"
                )
        except ContractError as error:
            raise ContractError(f"{path} {error}") from None
        try:
            contract = Contract.from_json(text)
            if untrusted:
                try_in_a_process(data)
            model = cls(session_of(data, threads, providers), contract, path)
            if not untrusted:  # what lies beside a stranger's file is a stranger's too
                model._beside, model._digest = (threads, providers), digest(data)
            return model
        except ContractError as error:
            raise ContractError(f"{path}: {error}") from None

    def stream(self, batch: int | None = None, *, guard: Guard = "raise") -> OceanStream:
        """A new stream at the initial state; `batch` streams that step together where it is given.

        guard: what a fault in a step does. `raise` raises it; `hold` leaves the state as it was and gives an
        output of NaN; `reset` gives the same output and goes back to the initial state. See OceanStream.
        """
        from ocean_runtime.stream import OceanStream

        return OceanStream(self, batch, guard=guard)

    @cached_property
    def prefill(self) -> Prefill | None:
        """The graph for many steps at once, where one that fits lies beside the file; read when first used."""
        path = path_beside(self.path)
        if self._beside is None or kind_of(path, follow=True) != stat.S_IFREG:
            return None
        try:
            data = _read_file(path)
            check_seal(data)
            found = scan(data, PREFILL_KEY)
            session = session_of(data, *self._beside)
            return Prefill(session, self.contract, found, self._digest, self.compute)
        except ContractError as error:
            let_through(error)
            _log.warning("%s is not used, and steps are taken one by one: it %s", path, error)
            return None

    def initial_state(self, batch: int) -> dict[str, NDArray[Any]]:
        """The state before the first step, by the graph's input names, for `batch` streams."""
        return {s.input: s.first(batch) for s in self.contract.states}

    def compute(self, feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the graph once: all inputs by name -> the contract's outputs, then next states, all fresh."""
        result: list[NDArray[Any]] = self._session.run(self._outputs, feed)
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
        if self._session.get_providers() == [CPU]:
            return bind(self._session, arrays, outputs)
        # What a device does with bound arrays is not known.
        return lambda feed: self.compute({**arrays, **feed})

    def _check_graph(self) -> None:
        contract = self.contract
        declared_in = {t.name: (t.dtype, t.shape) for t in contract.inputs}
        declared_in |= {s.input: (s.dtype, s.shape) for s in contract.states}
        declared_out = {t.name: (t.dtype, t.shape) for t in contract.outputs}
        declared_out |= {s.output: (s.dtype, s.shape) for s in contract.states}
        for side, declared, nodes in (
            ("input", declared_in, self._session.get_inputs()),
            ("output", declared_out, self._session.get_outputs()),
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


def _read_file(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a name with a NUL
        let_through(error)
        raise ContractError(f"there is no model file at {path}") from None
    except OSError as error:
        let_through(error)
        raise ContractError(f"{path} can't be read: {error.strerror}") from None


def session_of(data: bytes, threads: int, providers: Sequence[str] | None) -> Any:
    """An onnxruntime session of scanned bytes. Raises ContractError where onnxruntime refuses them."""
    ort = _import_onnxruntime()
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
    value = _import_onnxruntime().OrtValue.ortvalue_from_numpy  # shares an array's memory
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


def _import_onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        if getattr(error, "name", None) != "onnxruntime":
            raise
        raise ContractError(
            "running a model needs onnxruntime: pip install 'oceanstate[cpu]', or your board's own build"
        ) from None
    return onnxruntime
