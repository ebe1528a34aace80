"""How long a robot waits: import, and the first step, each in new processes; medians, the order alternating.

python benchmarks/startup.py MODEL.onnx [--runs 15]
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

BASE = "import numpy, onnxruntime"
OURS = f"{BASE}, ocean_runtime, ocean_runtime.cli"


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def first_step(model: str) -> float:
    """From the start of the process to the line of the first token."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "ocean_runtime.cli", model], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"R")
        process.stdin.flush()
        process.stdout.readline()  # the header
        process.stdout.readline()
        took = time.perf_counter() - start
        process.stdin.close()
        process.stdout.read()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    base, ours, steps = [], [], []
    for i in range(args.runs):
        pair = [(BASE, base), (OURS, ours)]
        for code, times in pair if i % 2 else reversed(pair):
            times.append(seconds(code))
        steps.append(first_step(args.model))
    extra = statistics.median(b - a for a, b in zip(base, ours, strict=True))
    print(f"n = {args.runs}, load {os.getloadavg()[0]:.1f}")
    print(f"import numpy, onnxruntime      {statistics.median(base):.3f} s")
    print(f"  and ocean_runtime, more by   {extra:.3f} s")
    print(f"first step after the start     {statistics.median(steps):.3f} s (most {max(steps):.3f})")


if __name__ == "__main__":
    main()
