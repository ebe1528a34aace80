"""An exported model, loaded once and shared: one onnxruntime session and the contract it must keep."""

from __future__ import annotations

import logging
import stat
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ocean_runtime.contract import Contract
from ocean_runtime.errors import ContractError, let_through
from ocean_runtime.files import as_path, kind_of, read_bounded
from ocean_runtime.prefill import PREFILL_KEY, Prefill, digest, path_beside
from ocean_runtime.probe import try_in_a_process
from ocean_runtime.scan import scan
from ocean_runtime.seal import check_seal
from ocean_runtime.session import Compute, StepGraph, session_of
from ocean_runtime.stream import Guard, OceanStream

MAX_FILE_BYTES = (1 << 31) - 1
"""protobuf's own limit, and so the largest possible ONNX file without external data."""

_log = logging.getLogger(__name__)


class OceanModel:
    """One exported model: read-only, so it may serve many streams and many threads.

    `OceanModel.load(path)` reads a file; `stream()` starts a continuous state of its own.
    """

    def __init__(self, session: Any, contract: Contract, path: Path) -> None:
        self.contract = contract
        self.path = path
        self._graph = StepGraph(session, contract)
        self._beside: tuple[int, Sequence[str] | None] | None = None
        self._digest = ""

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
        return self._graph.initial_state(batch)

    def compute(self, feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the graph once: all inputs by name -> the contract's outputs, then next states, all fresh."""
        return self._graph.compute(feed)

    def bound(self, rows: int) -> Compute:
        """What `compute` does for a given number of rows, sooner, for one thread at a time.

        Fixed inputs are known to it, and need not be given.
        """
        return self._graph.bound(rows)


def _read_file(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a name with a NUL
        let_through(error)
        raise ContractError(f"there is no model file at {path}") from None
    except OSError as error:
        let_through(error)
        raise ContractError(f"{path} can't be read: {error.strerror}") from None
