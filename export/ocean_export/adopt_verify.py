"""The trial of an adopted file: its streams against a plain loop over the foreign graph, and its rows by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ocean_runtime import OceanModel
from ocean_runtime.contract import DTYPES, Tensor, sized
from ocean_runtime.session import CPU, session_of

from ocean_export.adopt_graph import AdoptError

Array = NDArray[Any]
Arrays = Mapping[str, Array]

STEPS = 50
"""Steps over which the adopted file is compared with a loop over the foreign one."""


def verify(adopted: OceanModel, foreign: bytes | Path, steps: int = STEPS) -> None:
    """The trial over `steps` steps, of small random inputs.

    foreign: the foreign file's bytes, or where it lies, so that onnxruntime itself reads the files beside it.

    Raises AdoptError unless two interleaved streams give, bit for bit, what a loop over the foreign file gives;
    and, where the model has a batch axis, unless a batch of two steps as its rows do by themselves: what a row
    gives must not hang on the other row at all, and may differ from what it gives alone by rounding.
    """
    contract, session = adopted.contract, _session(foreign)
    count = len(contract.outputs)
    wanted_names = [t.name for t in contract.outputs] + [s.output for s in contract.states]
    streams = [adopted.stream(), adopted.stream()]
    states: list[Arrays] = [adopted.initial_state(1), adopted.initial_state(1)]
    rows = _Rows(adopted) if all(s.batch_axis is not None for s in contract.states) else None
    random = np.random.default_rng(0)
    for t in range(steps):
        feeds: list[Arrays] = []
        gave: list[list[Array]] = []
        for stream, state in zip(streams, states, strict=True):
            feed = {x.name: example(x, random) for x in contract.inputs}
            results = session.run(wanted_names, {**feed, **state})
            single = {x.name: _single(feed[x.name], x) for x in contract.inputs if x.constant is None}
            found = stream.step_all(single)
            for tensor, wanted in zip(contract.outputs, results, strict=False):
                if not np.array_equal(found[tensor.name], _single(wanted, tensor), equal_nan=True):
                    raise AdoptError(
                        f"step {t + 1} of the adopted file gives another {tensor.name!r} than the foreign one"
                    )
            feeds.append({**feed, **state})
            gave.append(results)
        if rows is not None:
            rows.check(feeds, gave, random)
        states = [
            {s.input: after for s, after in zip(contract.states, results[count:], strict=True)}
            for results in gave
        ]


class _Rows:
    """Two streams as the rows of a batch."""

    def __init__(self, model: OceanModel) -> None:
        contract = model.contract
        self.compute = model.compute
        self.axes_in = {x.name: x.batch_axis for x in contract.inputs}
        self.axes_in |= {s.input: s.batch_axis for s in contract.states}
        self.outputs = [(t.name, t.batch_axis) for t in contract.outputs]
        self.outputs += [(s.output, s.batch_axis) for s in contract.states]
        self.constant = {x.name for x in contract.inputs if x.constant is not None}

    def check(self, feeds: list[Arrays], gave: list[list[Array]], random: np.random.Generator) -> None:
        """feeds, gave: all inputs and states of a step of each of two streams, and what the graph gave for each."""
        both = self._gives(*feeds)
        for row in (0, 1):
            # The same step of this row beside another row, of other numbers.
            pair = [feeds[row], feeds[row]]
            pair[1 - row] = {name: self._other(name, array, random) for name, array in feeds[row].items()}
            beside = self._gives(*pair)
            for (name, axis), here, alone, there in zip(self.outputs, both, gave[row], beside, strict=True):
                # What has no axis for rows is the same for all, and so must not hang on any of them.
                mine, other = (
                    (here, there) if axis is None else (np.take(a, [row], axis) for a in (here, there))
                )
                if not np.array_equal(mine, other, equal_nan=True):
                    raise AdoptError(
                        f"the rows of a batch depend on each other: {name!r} of row {row + 1} is another when the "
                        "inputs or the state of the other row change. Is that dimension time, not the batch? Make "
                        "it one stream with --pin NAME=1"
                    )
                if not _close(mine, alone):
                    raise AdoptError(
                        f"{name!r} of row {row + 1} in a batch of two differs from what the same step gives alone, "
                        "by more than rounding; make it one stream with --pin NAME=1 for the batch's dimension"
                    )

    def _gives(self, first: Arrays, second: Arrays) -> list[Array]:
        feed = {}
        for name, axis in self.axes_in.items():
            feed[name] = first[name] if axis is None else np.concatenate([first[name], second[name]], axis)
        try:
            return self.compute(feed)
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise AdoptError(
                f"the graph can't step a batch of two rows: {str(error).splitlines()[0][:300]}; make it one stream "
                "with --pin NAME=1 for the batch's dimension"
            ) from None

    def _other(self, name: str, array: Array, random: np.random.Generator) -> Array:
        if name in self.constant or array.dtype.kind != "f":
            return array
        return (array + random.standard_normal(array.shape)).astype(array.dtype)


def example(tensor: Tensor, random: np.random.Generator, batch: int = 1) -> Array:
    """A plausible input: its constant, small noise, or zeros where it counts something."""
    shape, dtype = sized(tensor.shape, batch), np.dtype(DTYPES[tensor.dtype])
    if tensor.constant is not None:
        return np.full(shape, tensor.constant, dtype)
    if dtype.kind == "f":
        return (0.1 * random.standard_normal(shape)).astype(dtype)
    return np.zeros(shape, dtype)


def _session(foreign: bytes | Path) -> Any:
    if isinstance(foreign, bytes):
        return session_of(foreign, 1, None)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(foreign), options, providers=[CPU])


def _close(a: Array, b: Array) -> bool:
    """Equal but for rounding: to half of the digits of their type, beside their largest number."""
    if a.dtype.kind != "f" or a.shape != b.shape:
        return np.array_equal(a, b)
    allowed = float(np.finfo(a.dtype).eps) ** 0.5 * max(1.0, float(np.abs(b).max(initial=0.0)))
    return np.allclose(a, b, rtol=0.0, atol=allowed, equal_nan=True)


def _single(array: Array, tensor: Tensor) -> Array:
    return array if tensor.batch_axis is None else np.squeeze(array, tensor.batch_axis)
