"""The paper's claims, tested: runs what is missing of the grid, then writes docs/evidence.md from all results.

    python benchmarks/claims.py --text tinyshakespeare.txt     everything; hours, and goes on after a kill
    python benchmarks/claims.py gain --only 'char-64x2*'       the runs of a claim whose names match
    python benchmarks/claims.py --list                         what there is, and what is missing
    python benchmarks/claims.py --page                         only the page
    python benchmarks/claims.py --quick                        all of it at a tiny size, into runs/

Started more than once, the processes share the grid. One thread each.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from pathlib import Path

import torch
from evidence import driver, echo, forgetting, gain, source
from evidence.driver import ROOT, Scale

CLAIMS = {module.CLAIM: module for module in (gain, source, forgetting, echo)}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("claims", nargs="*", metavar="CLAIM", help=f"of {', '.join(CLAIMS)}; all if not given")
    p.add_argument("--only", default="*", metavar="PATTERN", help="runs whose names match")
    p.add_argument("--text", type=Path, metavar="FILE", help="tiny Shakespeare; fetched where not given")
    p.add_argument("--work", type=Path, default=ROOT / "runs" / "evidence", help="for checkpoints")
    p.add_argument("--list", action="store_true")
    p.add_argument("--page", action="store_true")
    p.add_argument("--quick", action="store_true")
    args = p.parse_args()
    if unknown := set(args.claims) - set(CLAIMS):
        p.error(f"unknown claim {', '.join(sorted(unknown))}; choose of {', '.join(CLAIMS)}")
    torch.set_num_threads(1)
    quick = ROOT / "runs" / "evidence-quick"
    scale = Scale(
        args.quick,
        args.text,
        results=quick / "results" if args.quick else ROOT / "results" / "evidence",
        work=quick / "work" if args.quick else args.work,
    )
    runs = [
        run
        for claim in args.claims or CLAIMS
        for run in CLAIMS[claim].runs(scale)
        if fnmatch.fnmatch(run.name, args.only)
    ]
    if args.list:
        for run in runs:
            print("done   " if driver.done(run, scale) else "missing", f"{run.claim}/{run.name}")
    elif not args.page:
        driver.perform(runs, scale)


if __name__ == "__main__":
    sys.exit(main())
