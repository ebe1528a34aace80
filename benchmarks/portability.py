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
    *(Row(f"onnxruntime {version}", onnxruntime=version) for version in VERSIONS),
]
QUICK = [ROWS[1], ROWS[3]]


def main() -> int:
    """Run the rows, print the table; 1 where a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rows, and only the tests that measure")
    parser.add_argument("--row", action="append", metavar="NAME", help="only this row; may be given again")
    args = parser.parse_args()
    failed = False
    rows = QUICK if args.quick else [row for row in ROWS if not args.row or row.name in args.row]
    avx512 = "avx512f" in Path("/proc/cpuinfo").read_text()
    print(f"| {'':40} | tests | failed | {' | '.join(f'{name:>12}' for name in TESTS)} |")
    for row in rows:
        if row.name == "AVX-512" and not avx512:
            print(f"| {row.name:40} | this processor has none |", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="portability-") as folder:
            tests, wrong, shares, output = run(row, Path(folder), args.quick)
        print(
            f"| {row.name:40} | {tests:5} | {wrong:6} | {' | '.join(f'{s:12.2f}' for s in shares)} |",
            flush=True,
        )
        if wrong or not tests:
            failed = True
            print(output, file=sys.stderr)
    print("The last columns: the largest share of a limit that was used. Above 1 a test fails.")
    return int(failed)


def run(row: Row, folder: Path, quick: bool) -> tuple[int, int, list[float], str]:
    """How many tests ran and failed, the largest share of a limit by file, and the output."""
    environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ) | row.environment
    for name in (
        "LD_LIBRARY_PATH",
        "_ROS_WHEELS_BOOTSTRAP_COMPLETE",
    ):  # the ROS wheels start Python again with them
        environment.pop(name, None)
    if row.onnxruntime:
        environment["PYTHONPATH"] = str(other_onnxruntime(row.onnxruntime, folder))
    tests = wrong = 0
    shares, said = [], ""
    for path in TESTS.values():
        report = folder / "report.xml"
        line = [sys.executable, "-m", "pytest", path, f"--junitxml={report}", "-o", "junit_family=xunit1"]
        done = subprocess.run(
            [*line, *(["-k", MEASURED] if quick else [])],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        said += done.stdout[-6000:] + done.stderr[-2000:] if done.returncode else ""
        suite = ElementTree.parse(report).getroot()[0]
        tests += int(suite.get("tests", "0"))
        wrong += int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
        found = [float(p.get("value", "nan")) for p in suite.iter("property") if p.get("name") == PROPERTY]
        shares.append(max(found, default=float("nan")))
    return tests, wrong, shares, said


def other_onnxruntime(version: str, folder: Path) -> Path:
    """A folder with that onnxruntime, and the NumPy that it was made for, to be found before this environment's."""
    packages = [f"onnxruntime=={version}", "coloredlogs", "humanfriendly", "flatbuffers"]
    numpy = ["numpy<2"] if version < "1.19" else []
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
