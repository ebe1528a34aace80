"""A contract as a person would want to read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocean_runtime.contract import Contract, Element, State, show_shape


def describe(contract: Contract) -> str:
    """Several lines of text, without a final newline."""
    what = {"tokens": "a token", "features": "an observation", "raw": "its inputs"}[contract.kind]
    lines = [f"an Ocean State model: each step takes {what} and the state, and gives what replaces it"]
    sizes = ", ".join(f"{name} {size:,}" for name, size in contract.sizes.items())
    lines += _section("model", {"sizes": sizes or "unknown", "precision": contract.precision})
    lines += ["inputs"]
    for t in contract.inputs:
        given = "" if t.constant is None else f", always {t.constant}"
        lines += [
            f"  {t.name}  {t.dtype} {show_shape(t.shape)}{given}  {t.meaning}".rstrip(),
            *_elements(t.elements),
        ]
    lines += ["outputs"]
    for t in contract.outputs:
        predicts = f" (predicts the next {t.predicts})" if t.predicts else ""
        lines += [f"  {t.name}  {t.dtype} {show_shape(t.shape)}  {t.meaning}{predicts}".rstrip()]
        lines += _elements(t.elements)
    lines += ["state"]
    for s in contract.states:
        lines += [f"  {s.input} -> {s.output}  {s.dtype} {show_shape(s.shape)}, initially {_initial(s)}"]
    longest = contract.max_time_constant
    if longest is not None and longest > 1:
        seconds = f" ({longest / contract.rate_hz:.3g} s)" if contract.rate_hz else ""
        lines += [f"  leaky integration, with time constants up to {longest:.4g} steps{seconds}"]
    lines += [f"  id {contract.state_id}"]
    if contract.tokenizer:
        tokens = contract.tokenizer.tokens
        shown = " ".join(repr(token) for token in tokens[1:9])
        lines += _section("tokenizer", {contract.tokenizer.kind: f"{len(tokens):,} tokens: {shown} ..."})
    if contract.rate_hz:
        lines += [f"rate  {contract.rate_hz:g} Hz"]
    ends = {"gaps of": contract.time, "changes of": contract.episode}
    if any(ends.values()):
        lines += ["episodes end at  " + ", ".join(f"{what} {name}" for what, name in ends.items() if name)]
    lines += _section("made from", contract.provenance)
    lines += _section("measured at export against the trained model", contract.parity)
    lines += [f"file  opset {contract.opset}, IR version {contract.ir_version}"]
    return "\n".join(_printable(line) for line in lines)


def _initial(state: State) -> str:
    if not isinstance(state.initial, tuple):
        return f"{state.initial:g}"
    return f"{len(state.initial):,} numbers from {min(state.initial):g} to {max(state.initial):g}"


def _printable(line: str) -> str:
    """Without what a terminal would take for a command: a contract may be a stranger's."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)


def _section(title: str, values: Mapping[str, Any]) -> list[str]:
    return (
        [title, *(f"  {name.replace('_', ' ')}: {_show(value)}" for name, value in values.items())]
        if values
        else []
    )


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_show(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_show(item) for item in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _elements(elements: tuple[Element, ...]) -> list[str]:
    return [
        f"    {i}  {e.name}"
        + (f" [{e.unit}]" if e.unit else "")
        + (f", less {e.reference:.17g}" if e.reference else "")
        + (f", {e.low:g} to {e.high:g} in training" if e.low is not None and e.high is not None else "")
        for i, e in enumerate(elements)
    ]
