"""Many steps in one call: the second graph that may lie beside a model file.

`NAME.prefill.onnx` beside `NAME.onnx` takes the same inputs with an axis of T steps in front, and gives
all T outputs and the state after the last step. It belongs to its step file by the SHA-256 of that file,
and by what both say of themselves: the same `state_id`, precision, inputs, outputs and states. One of an
earlier version, without the SHA-256, is taken where four steps give what the step file gives.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocean_runtime.contract import DTYPES, Contract, sized
from ocean_runtime.errors import ContractError, reason_of

Array = NDArray[Any]

Step = Callable[[dict[str, Array]], list[Array]]

PREFILL_KEY = "ocean_prefill"
"""The key of its metadata; a step file's is `ocean_state`, so neither is taken for the other."""
VERSION = 3
STEPS = 256
"""Steps of one call: so many outputs are held at once."""
TOLERANCE = 1e-3
"""Of `_agrees`, beside the largest number: rounding differs by 1e-5, another quantisation by 1e-2 and more."""
LEAST = 4
"""Fewer steps are taken one by one."""


def path_beside(model: Path) -> Path:
    """Where the prefill graph of a model file lies."""
    return model.with_suffix(".prefill.onnx")


def digest(step_file: bytes) -> str:
    """What `binding` says of the bytes of a step file, sealed as they are written."""
    return f"sha256:{hashlib.sha256(step_file).hexdigest()}"


def binding(contract: Contract, step_digest: str = "") -> str:
    """What a prefill file says of the step file it belongs to, as JSON.

    step_digest: `digest` of that file; an earlier version left it out.
    """
    values = json.loads(contract.to_json())
    kept = ("kind", "state_id", "precision", "inputs", "outputs", "states")
    said = {"version": VERSION, **{name: values[name] for name in kept}}
    return json.dumps(said | ({"step": step_digest} if step_digest else {}), sort_keys=True)


class Prefill:
    """A prefill graph that fits a contract: `compute` runs T steps."""

    def __init__(
        self,
        session: Any,
        contract: Contract,
        said: str | None,
        step_digest: str = "",
        step: Step | None = None,
    ) -> None:
        """said: what the scanned file says under PREFILL_KEY. step_digest: `digest` of the step file beside it.

        step: one step of that file, all inputs and states by name, for a prefill file that says no digest.
        Raises ContractError, its message a predicate.
        """
        self._session = session
        self._outputs = [t.name for t in contract.outputs] + [s.output for s in contract.states]
        bound = bool(step_digest) and said == binding(contract, step_digest)
        if not bound and said != binding(contract):
            raise ContractError(
                "was made for another export than the model beside it; export both again with --prefill"
            )
        feed: dict[str, Array] = {
            t.name: np.full((2, *sized(t.shape, 1)), t.constant or 0, DTYPES[t.dtype])
            for t in contract.inputs
        }
        feed |= {s.input: s.first(1) for s in contract.states}
        wanted = [(2, *sized(t.shape, 1)) for t in contract.outputs]
        wanted += [sized(s.shape, 1) for s in contract.states]
        try:
            found = [result.shape for result in self.compute(feed)]
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise ContractError(f"can't run two steps ({reason_of(error)}); export it again") from None
        if found != wanted:
            raise ContractError(f"gives the shapes {found} for two steps, not {wanted}; export it again")
        if not bound and step is not None and not self._agrees(contract, step):
            raise ContractError(
                "gives other numbers than the model beside it, so it was made for another export; export both "
                "again with --prefill"
            )

    def _agrees(self, contract: Contract, step: Step) -> bool:
        """Whether LEAST steps differ from single ones by no more than rounding does."""
        random = np.random.default_rng(0)
        inputs: dict[str, Array] = {}
        for t in contract.inputs:
            shape, dtype = (LEAST, *sized(t.shape, 1)), np.dtype(DTYPES[t.dtype])
            if t.constant is not None:
                inputs[t.name] = np.full(shape, t.constant, dtype)
            elif contract.tokenizer is not None and dtype.kind in "iu":
                inputs[t.name] = random.integers(contract.tokenizer.size, size=shape).astype(dtype)
            else:
                inputs[t.name] = random.standard_normal(shape).astype(dtype)
        state: dict[str, Array] = {s.input: s.first(1) for s in contract.states}
        found, count = self.compute({**inputs, **state}), len(contract.outputs)
        wanted: list[list[Array]] = []
        for i in range(LEAST):
            wanted.append(step({**{name: x[i] for name, x in inputs.items()}, **state}))
            state = {s.input: after for s, after in zip(contract.states, wanted[-1][count:], strict=True)}
        single = [np.stack([results[i] for results in wanted]) for i in range(count)] + wanted[-1][count:]
        return all(
            np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * (1 + float(np.abs(b).max(initial=0.0))))
            for a, b in zip(found, single, strict=True)
        )

    def compute(self, feed: dict[str, Array]) -> list[Array]:
        """All inputs by name, (T, ...), and the states -> the outputs, (T, ...), then the states after T steps."""
        result: list[Array] = self._session.run(self._outputs, feed)
        return result
