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
    command: str = ""
    """What would decide it, where none of the runs does."""


def render(
    sections: Mapping[str, Section], runs: Sequence[Run], results: Mapping[str, Results], quick: bool = False
) -> str:
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
        *(
            ["**At a tiny size, to show that all of it runs: the figures below mean nothing.**", ""]
            if quick
            else []
        ),
        "The claims of the paper that proposes the model, tested so that they could fail. Every figure of ours is",
        f"written by `{COMMAND} --page` from the files under `results/evidence/`, one for each run; the figures in the",
        "tables link to theirs, which holds its settings, command, commit, versions, machine, seed and curve. A",
        "test fails where this page and the results differ. What is missing was not run yet. A command runs what is",
        "missing of its claim, and the models of claim 1 that it needs; to repeat a run, remove its file, and its",
        "folder under `runs/evidence/`, first. `make evidence` sets up and runs all (hours; it goes on after a kill;",
        "`TEXT=FILE` where tiny Shakespeare can't be fetched), `make evidence QUICK=1` the same at a tiny size. Run",
        "the commands after `. .venv/bin/activate`.",
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
                    f"`{s.command or f'{COMMAND} {of}'}`",
                )
                for of, s in ((_run_by(claim), s) for claim, s in sections.items())
            ],
        ),
    ]
    for claim, section in sections.items():
        lines += ["", f"## {section.title}", *(["", *section.lines] if section.lines else [])]
        if missing := lacking.get(claim):
            named = _together(missing, [run.name for run in runs if run.claim == claim])
            lines += [
                "",
                f"Not run yet, {len(missing)} of {counts[claim]} runs "
                f"(`{COMMAND} {claim}` runs them): {', '.join(named)}.",
            ]
    return "\n".join(lines) + "\n"


def _verdict(section: Section, lacking: Sequence[str], count: int) -> str:
    """What the runs there are say, and how many are not there to say it."""
    missing = f" ({len(lacking)} of {count} runs missing)" if lacking and not section.command else ""
    return f"**{section.verdict}**{missing}"


def _together(names: Sequence[str], all_names: Sequence[str]) -> list[str]:
    """The names; all that differ in their last part alone as one, where none of them is left out."""

    def groups(of: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in of:
            found.setdefault(name.rpartition("-")[0] or name, []).append(name)
        return found

    whole = groups(all_names)
    return [
        said
        for group, members in groups(names).items()
        for said in ([f"{group}-\\*"] if 1 < len(members) == len(whole[group]) else members)
    ]


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
    unknown = sum(result.get("cpu_seconds", 0) is None for result in found)
    besides = f" (that of {unknown} not known)" if unknown else ""
    return [
        f"{len(found)} runs, {hours:.1f} hours of processor time for training{besides}: {all_of('cpu')}, one thread, "
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
