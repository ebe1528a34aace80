"""docs/evidence.md from the results alone: the same results give the same page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evidence.driver import Result, Run

Results = Mapping[str, Result]
COMMAND = "python benchmarks/claims.py"
MISSING = "missing"


@dataclass(frozen=True)
class Section:
    """What the page says of one claim."""

    title: str
    paper: str
    """What the paper says; what of its figures this project knows."""
    ours: str
    control: str
    verdict: str
    lines: Sequence[str] = field(default_factory=list)
    """Markdown: tables and what they show."""


def render(sections: Mapping[str, Section], runs: Sequence[Run], results: Mapping[str, Results]) -> str:
    """The whole page."""
    found = [result for claim in results.values() for result in claim.values()]
    counts = Counter(run.claim for run in runs)
    lacking = {
        claim: [run.name for run in runs if run.claim == claim and run.name not in results[claim]]
        for claim in counts
    }
    lines = [
        "# Evidence",
        "",
        "The claims of the paper that proposes the model, tested so that they could fail. Every figure below is",
        f"written by `{COMMAND} --page` from the files under `results/evidence/`, one for each run; the figures in the",
        "tables link to theirs, which holds its settings, command, commit, versions, machine, seed and curve. A",
        "test fails where this page and the results differ. What is missing was not run yet. A command runs what is",
        "missing of its claim; to repeat a run, remove its file first.",
        "",
        *machines(found),
        "",
        *table(
            ("claim", "the paper", "here", "control", "verdict", "command"),
            [
                (
                    s.title,
                    s.paper,
                    s.ours,
                    s.control,
                    _verdict(s, lacking[of], counts[of]),
                    f"`{COMMAND} {of}`",
                )
                for of, s in ((_run_by(claim), s) for claim, s in sections.items())
            ],
        ),
    ]
    for claim, section in sections.items():
        lines += ["", f"## {section.title}", "", *section.lines]
        if missing := lacking.get(claim):
            lines += [
                "",
                f"Not run yet, {len(missing)} of {counts[claim]} runs "
                f"(`{COMMAND} {claim}` runs them): {', '.join(_together(missing))}.",
            ]
    return "\n".join(lines) + "\n"


def _verdict(section: Section, lacking: Sequence[str], count: int) -> str:
    """What the runs there are say; open as long as some are not there to say it."""
    if not lacking:
        return f"**{section.verdict}**"
    so_far = "" if section.verdict == "open" else f"; so far: {section.verdict}"
    return f"**open{so_far}** ({len(lacking)} of {count} runs missing)"


def _together(names: Sequence[str]) -> list[str]:
    """The names, those that differ in their last part alone as one."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition("-")[0] or name, []).append(name)
    return [f"{group}-\\*" if len(members) > 1 else members[0] for group, members in groups.items()]


def _run_by(claim: str) -> str:
    """Whose runs a claim reads."""
    return {"cost": "forgetting", "yardstick": "gain"}.get(claim, claim)


def machines(found: Sequence[Result]) -> list[str]:
    """Where the results come from."""
    if not found:
        return ["No result yet."]
    made = [result["provenance"] for result in found]

    def all_of(name: str) -> str:
        return " and ".join(sorted({str(p[name]) for p in made}))

    hours = sum(result.get("cpu_seconds") or 0 for result in found) / 3600
    return [
        f"{len(found)} runs, {hours:.1f} hours of processor time for training: {all_of('cpu')}, one thread, "
        f"PyTorch {all_of('torch')}, onnxruntime {all_of('onnxruntime')}, Python {all_of('python')}."
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; columns after the first are numbers where they look like them."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return [line(head), line(["---"] * len(head)), *map(line, rows)]


def cell(results: Results, name: str, *path: str, form: str = "{:.3f}") -> str:
    """A result's number, linked to its file; `missing` where there is none."""
    value = get(results, name, *path)
    if value is None:
        return MISSING
    return f"[{form.format(value)}](../{place(results, name)})"


def place(results: Results, name: str) -> str:
    return f"results/evidence/{results[name]['claim']}/{name}.json"


def get(results: Results, name: str, *path: str) -> Any:
    """A number inside a result, by its keys below `result`; None where it is missing."""
    value: Any = results.get(name, {}).get("result")
    for key in path:
        value = None if value is None else value.get(key)
    return value


def span(values: Sequence[float], form: str = "{:.3f}") -> str:
    """`low to high`, or the one value."""
    if not values:
        return MISSING
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"
