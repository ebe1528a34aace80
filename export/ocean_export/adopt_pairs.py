"""Which outputs of a foreign graph replace which inputs: what the names say, and what has to be asked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ocean_export.adopt_graph import AdoptError, Value, fits

_WORD = "past_key_values|present_key_values|new|next|prev|previous|past|present|last|init|initial|in|input|out|output"
_AFFIXES = re.compile(rf"^({_WORD})[_.\-/]|[_.\-/]?({_WORD})$")
_ENDS = re.compile(r"(?<=.)([_.\-/]?(n|N|0|1)|:\d+)$")


def suggest(
    inputs: Sequence[Value], outputs: Sequence[Value], known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """State pairs by input, where names, shapes and types leave one reading.

    Exact stems go first (past_h_1 and present_h_1), then those without a number or letter at their end (h_0
    and h_n, state and stateN). known: pairs that are settled already. Raises AdoptError where nothing is clear.
    """
    pairs = dict(known or {})
    fitting = [(i, o) for i, o in itertools.product(inputs, outputs) if _may_replace(i, o)]
    unclear: list[tuple[str, str]] = []
    for stem in (_stem, _short_stem):
        alike = [
            (i.name, o.name)
            for i, o in fitting
            if stem(i.name) == stem(o.name) != "" and i.name not in pairs and o.name not in pairs.values()
        ]
        once = [
            (i, o) for i, o in alike if sum(i == a for a, _ in alike) == 1 == sum(o == b for _, b in alike)
        ]
        pairs |= dict(once)
        unclear = [pair for pair in alike if pair not in once]
        if unclear:
            break  # a looser reading would settle by chance what a closer one leaves open
    if pairs and not unclear:
        return pairs
    may = unclear or [(i.name, o.name) for i, o in fitting if i.shape]
    candidates = ", ".join(f"{i}:{o}" for i, o in may)
    raise AdoptError(
        f"which outputs replace which inputs is not clear from names and shapes; say --state IN:OUT for each "
        f"({f'candidates: {candidates}' if candidates else 'no output has the type and shape of an input'})"
    )


def read_pairs(texts: Iterable[str], inputs: Iterable[str], outputs: Iterable[str]) -> dict[str, str]:
    """Output by input, from IN:OUT, where either name may hold colons, or one `*` that stands for the same text
    in both. Raises AdoptError where a text names no input and output of the graph, or more than one way to read it."""
    inputs, outputs = list(inputs), list(outputs)
    pairs: dict[str, str] = {}
    for text in texts:
        cuts = [(text[:at], text[at + 1 :]) for at, letter in enumerate(text) if letter == ":"]
        readings = [(i, o) for i, o in cuts if i in inputs and o in outputs]
        found = dict(readings)
        if not readings and text.count("*") == 2:
            starred = [found for i, o in cuts if (found := _starred(i, o, inputs, outputs))]
            readings, found = (
                list(starred[0].items()) if len(starred) == 1 else [],
                starred[0] if starred else {},
            )
        elif len(readings) > 1:
            raise AdoptError(
                f"--state {text} can be read in {len(readings)} ways; rename a tensor of the graph"
            )
        if not readings:
            raise AdoptError(_not_found(text, cuts, inputs, outputs))
        for i, o in found.items():
            if pairs.get(i, o) != o:
                raise AdoptError(
                    f"--state gives the input {i!r} two outputs, {pairs[i]!r} and {o!r}; choose one"
                )
        pairs |= found
    return pairs


def refuse_left_over(inputs: Sequence[Value], outputs: Sequence[Value], settled: Iterable[str]) -> None:
    """Raises AdoptError where an input that is no state could be one that an output replaces.

    inputs, outputs: those that are no states, with their sizes. settled: inputs of which it is said that they are
    none. A step has to be given something: where it is given one input only, that is settled by itself.
    """
    if len(inputs) < 2:
        return
    settled = set(settled)
    open_ = {i.name: [o.name for o in outputs if _may_replace(i, o)] for i in inputs if i.name not in settled}
    open_ = {name: fitting for name, fitting in open_.items() if fitting}
    if not open_:
        return
    found = "; ".join(f"{name!r} by {' or '.join(map(repr, fitting))}" for name, fitting in open_.items())
    first, (output, *_) = next(iter(open_.items()))
    raise AdoptError(
        f"an input could be a state that an output replaces, which its type and shape fit: {found}. For each, say "
        f"--state IN:OUT where it is one, as in --state {first}:{output}, or --input IN where it is given at each "
        f"step, as in --input {first}"
    )


def _may_replace(i: Value, o: Value) -> bool:
    """An output of an input's own name is that input, passed on: no successor."""
    return i.name != o.name and fits(i, o)


def _starred(i: str, o: str, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    if i.count("*") != 1 or o.count("*") != 1:
        return {}
    before, after = i.split("*")
    into = o.split("*")
    size = len(before) + len(after)
    middles = {
        name: name[len(before) : len(name) - len(after)]
        for name in inputs
        if len(name) >= size and name.startswith(before) and name.endswith(after)
    }
    named = {name: middle.join(into) for name, middle in middles.items()}
    return {name: output for name, output in named.items() if output in outputs}


def _not_found(
    text: str, cuts: Sequence[tuple[str, str]], inputs: Sequence[str], outputs: Sequence[str]
) -> str:
    for i, o in cuts:
        if i in inputs and "*" not in o:
            return f"--state names {o!r}, which is no output; there is: {', '.join(sorted(outputs))}"
        if o in outputs and "*" not in i:
            return f"--state names {i!r}, which is no input; there is: {', '.join(sorted(inputs))}"
    return (
        f"--state {text} is no IN:OUT of this graph; its inputs are {', '.join(sorted(inputs))}, its outputs "
        f"{', '.join(sorted(outputs))}"
    )


def _stem(name: str) -> str:
    """What a name has in common with that of its successor: h_in, h_out; past_k.0, present_k.0."""
    return _without(_AFFIXES.sub, name)


def _short_stem(name: str) -> str:
    """The same without what ends them: state, stateN; h, hn; h_0, h_n."""
    return _without(lambda empty, text: _ENDS.sub(empty, _AFFIXES.sub(empty, text)), name)


def _without(remove: Callable[[str, str], str], name: str) -> str:
    before = ""
    while before != name:
        before, name = name, remove("", name)
    return name.lower()
