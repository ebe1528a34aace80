"""What is tested and verified, on other processors than this one: `make portability`; `--quick`: CI's two rows.

Each row runs the tests of the chain and of verification in processes that are held to other instructions, threads,
or another onnxruntime, and prints how much of a limit was used at most. PyTorch's loops and the native ones are both
run in each. onnxruntime itself asks the processor what it has: no variable holds it to less.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
TESTS = {"chain": "tests/train/test_chain.py", "verification": "tests/export/test_verify.py"}
MEASURED = "float32_costs or good_export or magnifies_rounding"
"""The tests that say how much of a limit they used."""
PROPERTY = "share of the limit"
VERSIONS = ("1.17.3", "1.22.0")
"""The oldest onnxruntime for fp32 files and the oldest for all; the newest is this environment's."""


class Row(NamedTuple):
    """One way to run the tests."""

    name: str
    environment: Mapping[str, str] = MappingProxyType({})
    onnxruntime: str = ""
    """Another version than this environment's."""
    march: str = ""
    """What the native loops are built for, in place of this processor."""


AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
SSE = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
AVX512 = {
    "ATEN_CPU_CAPABILITY": "avx512",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
    "MKL_ENABLE_INSTRUCTIONS": "AVX512",
}
ROWS = [
    Row("as it is"),
    Row("SSE4", SSE),
    Row("SSE4, 2 threads", SSE | {"OMP_NUM_THREADS": "2"}),
    Row("AVX2", AVX2),
    Row("AVX2, 2 threads", AVX2 | {"OMP_NUM_THREADS": "2"}),
    Row("AVX-512", AVX512),
    Row("PyTorch SSE4, MKL and oneDNN as they are", {"ATEN_CPU_CAPABILITY": "default"}),
    Row("native loops for any x86-64 (SSE2)", march="x86-64"),
    *(Row(f"onnxruntime {version}", onnxruntime=version) for version in VERSIONS),
]
QUICK = [ROWS[1], ROWS[3]]


def main() -> int:
    """Run the rows, print the table; 1 where a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rows, and only the tests that measure")
    parser.add_argument("--row", action="append", metavar="NAME", help="only this row; may be given again")
    parser.add_argument("--folder", type=Path, help="keeps what aarch64 needs, some 2 GB, for the next time")
    args = parser.parse_args()
    failed = False
    rows = QUICK if args.quick else [row for row in ROWS if not args.row or row.name in args.row]
    avx512 = "avx512f" in Path("/proc/cpuinfo").read_text()
    print(f"| {'':42} | tests | failed | {' | '.join(f'{name:>12}' for name in TESTS)} |")
    with tempfile.TemporaryDirectory(prefix="portability-") as name:
        for row in rows:
            if row.name == "AVX-512" and not avx512:
                print(f"| {row.name:42} | this processor has none |", flush=True)
            else:
                folder = Path(name) / row.name.replace("/", " ")
                folder.mkdir()
                failed |= show(row.name, run(row, folder, args.quick))
        if not args.quick and not args.row:
            failed |= on_aarch64(args.folder or Path(name))
    print("The last columns: the largest share of a limit that was used. Above 1 a test fails.")
    return int(failed)


class Outcome(NamedTuple):
    """What a run of tests gave."""

    tests: int
    failed: int
    share: float
    """The largest share of a limit that was used; NaN where no test says."""
    output: str


def show(name: str, outcomes: list[Outcome]) -> bool:
    """Print a row of the table; whether it failed."""
    tests, wrong = sum(o.tests for o in outcomes), sum(o.failed for o in outcomes)
    shares = " | ".join(f"{o.share:12.2f}" for o in outcomes)
    print(f"| {name:42} | {tests:5} | {wrong:6} | {shares} |", flush=True)
    for outcome in outcomes:
        if outcome.failed or not outcome.tests:
            print(outcome.output, file=sys.stderr)
    return wrong > 0 or any(not o.tests for o in outcomes)


def run(row: Row, folder: Path, quick: bool) -> list[Outcome]:
    """The tests of a row, by file."""
    environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ) | row.environment
    for name in (
        "LD_LIBRARY_PATH",
        "_ROS_WHEELS_BOOTSTRAP_COMPLETE",
    ):  # the ROS wheels start Python again with them
        environment.pop(name, None)
    if row.onnxruntime:
        environment["PYTHONPATH"] = str(other_onnxruntime(row.onnxruntime, folder))
    if row.march:
        compiler = folder / "c++"
        compiler.write_text(f'#!/bin/bash\nexec g++ "${{@/-march=native/-march={row.march}}}"\n')
        compiler.chmod(0o755)
        environment |= {"CXX": str(compiler), "XDG_CACHE_HOME": str(folder)}
    only = ["-k", MEASURED] if quick else []
    return [test([sys.executable], environment, folder, path, *only) for path in TESTS.values()]


def test(python: list[str], environment: Mapping[str, str], folder: Path, *arguments: str) -> Outcome:
    """pytest with these arguments."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    options = [f"--junitxml={report}", "-o", "junit_family=xunit1", "-p", "no:cacheprovider"]
    line = [*python, "-m", "pytest", *options, *arguments]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout[-6000:] + done.stderr[-2000:]
    if not report.exists():
        return Outcome(0, 0, float("nan"), said)
    suite = ElementTree.parse(report).getroot()[0]
    tests, wrong, errors = (int(suite.get(name, "0")) for name in ("tests", "failures", "errors"))
    found = [float(p.get("value", "nan")) for p in suite.iter("property") if p.get("name") == PROPERTY]
    return Outcome(tests, wrong + errors, max(found, default=float("nan")), said)


def on_aarch64(folder: Path) -> bool:
    """The rows of an emulated aarch64 (an hour), and what exports give there; whether a test failed."""
    import aarch64

    if lacks := aarch64.missing():
        print(f"| {'aarch64':42} | not run: {lacks} |")
        return False
    folder.mkdir(parents=True, exist_ok=True)
    emulator, failed = aarch64.Emulator(folder), False
    for cpu in aarch64.CPUS:
        python, environment = [emulator.python(cpu)], emulator.environment()
        outcomes = [test(python, environment, folder, path, "-k", MEASURED) for path in TESTS.values()]
        failed |= show(f"aarch64, {cpu}", outcomes)
    python, files = [emulator.python("max")], [f"tests/runtime/test_{name}.py" for name in aarch64.RUNTIME]
    runtime = test(python, emulator.environment(), folder, *files, "-k", f"not ({aarch64.NOT_THERE})")
    failed |= show("aarch64, max: the runtime's tests", [runtime])
    print(aarch64.compare_exports(emulator, folder))
    return failed


def other_onnxruntime(version: str, folder: Path) -> Path:
    """A folder with that onnxruntime, and the NumPy that it was made for, to be found before this environment's."""
    packages = [f"onnxruntime=={version}", "coloredlogs", "humanfriendly", "flatbuffers"]
    numpy = ["numpy<2", "ml_dtypes<0.6"] if version < "1.19" else []
    line = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder / "packages"),
    ]
    subprocess.run([*line, *packages, *numpy], check=True)
    return folder / "packages"


if __name__ == "__main__":
    sys.exit(main())
