"""Many steps in one call: the second graph that may lie beside a model file.

`NAME.prefill.onnx` beside `NAME.onnx` takes the same inputs with an axis of T steps in front, and gives
all T outputs and the state after the last step. It belongs to its step file by what both say of
themselves: the same `state_id`, precision, inputs, outputs and states.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocean_runtime.contract import DTYPES, Contract, sized
from ocean_runtime.errors import ContractError, reason_of

Array = NDArray[Any]

PREFILL_KEY = "ocean_prefill"
"""The key of its metadata; a step file's is `ocean_state`, so neither is taken for the other."""
VERSION = 3
STEPS = 256
"""Steps of one call: so many outputs are held at once."""
LEAST = 4
"""Fewer steps are taken one by one."""


def path_beside(model: Path) -> Path:
    """Where the prefill graph of a model file lies."""
    return model.with_suffix(".prefill.onnx")


def binding(contract: Contract) -> str:
    """What a prefill file says of the step file it belongs to, as JSON."""
    values = json.loads(contract.to_json())
    kept = ("kind", "state_id", "precision", "inputs", "outputs", "states")
    return json.dumps({"version": VERSION, **{name: values[name] for name in kept}}, sort_keys=True)


class Prefill:
    """A prefill graph that fits a contract: `compute` runs T steps."""

    def __init__(self, session: Any, contract: Contract, said: str | None) -> None:
        """said: what the scanned file says under PREFILL_KEY. Raises ContractError, its message a predicate."""
        self._session = session
        self._outputs = [t.name for t in contract.outputs] + [s.output for s in contract.states]
        if said != binding(contract):
            raise ContractError("does not belong to the model beside it; export both again with --prefill")
        feed: dict[str, Array] = {
            t.name: np.full((2, *sized(t.shape, 1)), t.constant or 0, DTYPES[t.dtype])
            for t in contract.inputs
        }
        feed |= {s.input: np.full(sized(s.shape, 1), s.initial, DTYPES[s.dtype]) for s in contract.states}
        wanted = [(2, *sized(t.shape, 1)) for t in contract.outputs]
        wanted += [sized(s.shape, 1) for s in contract.states]
        try:
            found = [result.shape for result in self.compute(feed)]
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise ContractError(f"can't run two steps ({reason_of(error)}); export it again") from None
        if found != wanted:
            raise ContractError(f"gives the shapes {found} for two steps, not {wanted}; export it again")

    def compute(self, feed: dict[str, Array]) -> list[Array]:
        """All inputs by name, (T, ...), and the states -> the outputs, (T, ...), then the states after T steps."""
        result: list[Array] = self._session.run(self._outputs, feed)
        return result
