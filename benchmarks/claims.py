"""The paper's claims, tested: runs what is missing of the grid, then writes docs/evidence.md from all results.

    python benchmarks/claims.py --text tinyshakespeare.txt     everything; hours, and goes on after a kill
    python benchmarks/claims.py gain --only 'char-64x2*'       the runs of a claim whose names match
    python benchmarks/claims.py --list                         what there is, and what is missing
    python benchmarks/claims.py --page                         only the page
    python benchmarks/claims.py --quick                        all of it at a tiny size, into runs/

Started more than once, the processes share the grid. One thread each. A run that is there is not made again: to
repeat it, remove its file under results/evidence/ and its folder under runs/evidence/.
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Mapping
from pathlib import Path

from machine import ROOT, needs

with needs("train,export"):
    import torch
    from evidence import driver, echo, forgetting, gain, generation, leak, page, source, tracking
    from evidence.driver import Run, Scale
    from ocean_runtime.files import write_atomically

CLAIMS = {m.CLAIM: m for m in (gain, source, forgetting, echo, tracking, generation, leak)}
PAGE = ROOT / "docs" / "evidence.md"
QUICK = ROOT / "runs" / "evidence-quick"
MADE = {"results", "work", "evidence.md", "evidence"}
"""What a tiny grid makes."""


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    p.add_argument("claims", nargs="*", metavar="CLAIM", help=f"of {', '.join(CLAIMS)}; all if not given")
    p.add_argument(
        "--only",
        default="*",
        metavar="PATTERN",
        help="runs whose names, or claim/name, match this shell pattern",
    )
    p.add_argument("--text", type=Path, metavar="FILE", help="tiny Shakespeare; fetched where not given")
    p.add_argument("--work", type=Path, metavar="DIR", help="for checkpoints: default runs/evidence")
    what = p.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="only name the runs, and which are missing")
    what.add_argument("--page", action="store_true", help="only write the page")
    p.add_argument("--quick", action="store_true", help="at a tiny size, on a text that needs no file")
    p.add_argument("--into", type=Path, metavar="DIR", help="for --quick: default runs/evidence-quick")
    args = p.parse_args()
    if unknown := set(args.claims) - set(CLAIMS):
        p.error(f"unknown claim {', '.join(sorted(unknown))}; choose of {', '.join(CLAIMS)}")
    for name in ("text", "work") if args.quick else ("into",):
        if getattr(args, name) is not None:
            p.error(f"--{name} can{'not be used with' if args.quick else ' be used only with'} --quick")
    torch.set_num_threads(1)
    try:
        run_and_write(args)
    except (driver.ResultError, OSError) as error:
        p.exit(1, f"claims.py: {error}\n")
    except KeyboardInterrupt:
        p.exit(130, "claims.py: stopped; the same command goes on from the last save\n")


def run_and_write(args: argparse.Namespace) -> None:
    """What the command line asks for. Raises ResultError where a file of results is damaged, or no run is meant."""
    scale = at_scale(args.quick, args.text, args.work, args.into)
    runs = [
        run
        for claim in args.claims or CLAIMS
        for run in CLAIMS[claim].runs(scale)
        if fnmatch.fnmatch(run.name, args.only) or fnmatch.fnmatch(f"{run.claim}/{run.name}", args.only)
    ]
    if not runs:
        raise driver.ResultError(f"no run has a name that matches {args.only!r}; --list shows them")
    if args.list:
        for run in runs:
            print("done   " if driver.done(run, scale) else "missing", f"{run.claim}/{run.name}")
        return
    if args.page:
        write_page(scale)
        return
    there = sum(driver.done(run, scale) for run in runs)
    driver.say(f"{there} of {len(runs)} runs are there already")
    try:
        driver.perform(runs, scale)
    finally:  # of what there is, however this ends
        if any(scale.results.rglob("*.json")):
            write_page(scale)


def write_page(scale: Scale) -> None:
    found = known(scale)
    if not any(found.values()):
        raise driver.ResultError(f"there is no result under {scale.results} to write a page of")
    target = scale.results.parent / "evidence.md" if scale.quick else PAGE
    write_atomically(target, rendered(scale, found).encode())
    gain.plots(found[gain.CLAIM], target.parent / "evidence")
    print(target)


def at_scale(
    quick: bool, text: Path | None = None, work: Path | None = None, into: Path | None = None
) -> Scale:
    """The full grid, or the tiny one, all of which goes `into` a folder of its own (ResultError)."""
    if quick:
        into = into or QUICK
        if into.is_dir() and {path.name for path in into.iterdir()} - MADE:
            raise driver.ResultError(
                f"{into} holds other things than a tiny grid; give a new folder with --into"
            )
        return Scale(True, None, results=into / "results", work=into / "work")
    return Scale(False, text, results=ROOT / "results" / "evidence", work=work or ROOT / "runs" / "evidence")


def known(scale: Scale) -> dict[str, page.Results]:
    """All results there are, by claim."""
    runs = all_runs(scale)
    return {claim: driver.results(runs, claim, scale) for claim in CLAIMS}


def rendered(scale: Scale, found: Mapping[str, page.Results]) -> str:
    """The page of these results."""
    sections = {
        "gain": gain.section(found["gain"]),
        "source": source.section(found["source"], found["gain"]),
        "forgetting": forgetting.section(found["forgetting"]),
        "echo": echo.section(found["echo"]),
        "tracking": tracking.section(found["tracking"]),
        "cost": forgetting.cost(found["forgetting"]),
        "generation": generation.section(found["generation"]),
        "leak": leak.section(found),
        "yardstick": gain.yardstick(found["gain"]),
    }
    return page.render(sections, all_runs(scale), found, scale.quick)


def all_runs(scale: Scale) -> list[Run]:
    return [run for module in CLAIMS.values() for run in module.runs(scale)]


if __name__ == "__main__":
    main()
