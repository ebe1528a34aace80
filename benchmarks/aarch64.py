"""An emulated aarch64 for `make portability` (benchmarks/portability.py), and what exports give there.

Needs Debian's qemu-user-static and g++-aarch64-linux-gnu, its arm64 packages (`dpkg --add-architecture arm64`,
`apt-get update`), and a package index with aarch64 wheels. Two processors: `max` has all that qemu knows;
`cortex-a72` is that of a Raspberry Pi 4, without the dot-product instructions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
QEMU = "qemu-aarch64-static"
CPUS = ("max", "cortex-a72")
COMPILER = "aarch64-linux-gnu-g++"
PLATFORMS = [
    "manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64",
]  # fmt: skip
# onnxruntime 1.32 and PyTorch 2.13 don't start under qemu 7.2, or are made for a GPU there.
WHEELS = [
    "onnxruntime==1.23.2", "flatbuffers", "protobuf", "coloredlogs", "humanfriendly", "sympy", "mpmath",
    "numpy==2.3.5", "ml-dtypes", "torch==2.8.0", "filelock", "jinja2", "markupsafe", "networkx", "fsspec",
    "setuptools", "typing-extensions", "onnx", "safetensors", "pytest", "iniconfig", "pluggy", "packaging",
    "pygments", "hypothesis", "sortedcontainers", "rosbags", "lz4", "ruamel.yaml", "zstandard",
    "backports.zstd", "apsw",
]  # fmt: skip
DEBIAN = [
    "python3.11", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libgcc-s1",
    "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libssl3", "libbz2-1.0", "liblzma5", "libsqlite3-0",
    "libncursesw6", "libtinfo6", "libreadline8", "libuuid1", "libcrypt1", "libgomp1",
]  # fmt: skip
RUNTIME = [
    "bags", "guard", "isolation", "model", "rows", "run_cli", "scan", "snapshot", "stream", "swap", "tables",
    "tokenizer",
]  # fmt: skip
"""The runtime's tests but for those of system calls, limits and kills, which are the emulator's own."""
NOT_THERE = "sentence or terminal or needs_rosbags or of_no_unit or minimal_loop_refuses or another_kind"
"""Tests that read all of standard error, where onnxruntime 1.23 says that it does not know an emulated processor."""
STEPS = 500
FORMS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "int8": {"precision": "int8"},
    "int8 portable": {"precision": "int8", "portable": True},
    "int4": {"precision": "int4"},
}
SCRIPT = """
import sys
import numpy as np
from ocean_runtime import OceanModel
given = np.load(sys.argv[1])
for path in sys.argv[3:]:
    model, single, loop = OceanModel.load(path), [], []
    ocean = model.initial_state(2)["ocean"]
    for token, before in zip(given["tokens"], given["oceans"]):
        single.append(np.concatenate(model.compute({"token": token, "ocean": before}), 1))
        output, ocean = model.compute({"token": token, "ocean": ocean})
        loop.append(np.concatenate([output, ocean], 1))
    np.savez(path + sys.argv[2], single=single, loop=loop)
"""


def missing() -> str:
    """What this machine lacks, in one sentence; empty where nothing is."""
    for program in (QEMU, COMPILER, "apt-get", "dpkg"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: qemu-user-static, g++-aarch64-linux-gnu)"
    foreign = subprocess.run(
        ["dpkg", "--print-foreign-architectures"], capture_output=True, text=True, check=True
    )
    return (
        ""
        if "arm64" in foreign.stdout
        else "no arm64 packages (dpkg --add-architecture arm64; apt-get update)"
    )


class Emulator:
    """An aarch64 Python with this project's dependencies, under qemu."""

    def __init__(self, folder: Path) -> None:
        """Download what is not in `folder` yet."""
        self.root, self.site, self.folder = folder / "root", folder / "site", folder
        if not (folder / "complete").exists():
            self._download()
        compiler = folder / "c++"
        compiler.write_text(f'#!/bin/bash\nexec {COMPILER} "${{@/-march=native/-march=armv8-a}}"\n')
        compiler.chmod(0o755)

    def _download(self) -> None:
        debs, wheels = self.folder / "debs", self.folder / "wheels"
        debs.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["apt-get", "download", "-qq", *(f"{name}:arm64" for name in DEBIAN)], cwd=debs, check=True
        )
        for deb in debs.glob("*.deb"):
            subprocess.run(["dpkg", "-x", deb, self.root], check=True)
        line = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        line += [f"--platform={name}" for name in PLATFORMS]
        environment = os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_CONSTRAINT": ""}
        subprocess.run(
            [*line, "--python-version=3.11", f"--dest={wheels}", *WHEELS], env=environment, check=True
        )
        for wheel in wheels.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(self.site)
        (self.folder / "complete").touch()

    def python(self, cpu: str) -> str:
        """The program that computes as `cpu`; processes that it starts do so too."""
        program = self.folder / f"python-{cpu}"
        inside = {
            "LD_LIBRARY_PATH": self.root / "usr/lib/aarch64-linux-gnu",
            "PYTHONPATH": f"{self.site}:{ROOT / 'runtime'}",
            "OMP_NUM_THREADS": "1",
            "EMULATED_PYTHON": program,
        }
        settings = " ".join(f"-E '{name}={value}'" for name, value in inside.items())
        python = self.root / "usr/bin/python3.11"
        program.write_text(
            f"#!/bin/bash\nexec {QEMU} -cpu {cpu} -L '{self.root}' {settings} '{python}' \"$@\"\n"
        )
        program.chmod(0o755)
        custom = 'import os, sys\nsys.executable = os.environ["EMULATED_PYTHON"]\n'
        (self.site / "sitecustomize.py").write_text(custom)
        return str(program)

    def environment(self) -> dict[str, str]:
        """Of qemu itself: without this Python's, and with a compiler for aarch64.

        CI: hypothesis then does not mind that drawing examples is slow.
        """
        tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"CI": "true", "HOME": str(self.folder), "PATH": tools, "CXX": str(self.folder / "c++")}


def compare_exports(emulator: Emulator, folder: Path) -> str:
    """A table: how far a step, and a loop of 500, of each form differ from this machine's."""
    sys.path.insert(0, str(ROOT / "tests" / "fixtures"))
    from make_tiny import tiny_checkpoint
    from ocean_export import export_checkpoint, heldout
    from ocean_runtime import OceanModel

    heldout.STEPS = 300
    model = tiny_checkpoint(folder / "checkpoint")
    paths = [folder / f"{name}.onnx" for name in FORMS]
    for path, options in zip(paths, FORMS.values(), strict=True):
        export_checkpoint(folder / "checkpoint", path, max_loss_increase=9, **options)
    tokens = np.random.default_rng(0).integers(model.config.inputs, size=(STEPS, 2))
    exact, oceans = OceanModel.load(paths[0]), []
    ocean = exact.initial_state(2)["ocean"]
    for token in tokens:
        oceans.append(ocean)
        _, ocean = exact.compute({"token": token, "ocean": ocean})
    np.savez(folder / "given.npz", tokens=tokens, oceans=np.array(oceans))
    lines = [
        "| file | processor | a step: largest | median | over 1e-4 | a loop: largest |",
        "|---|---|---|---|---|---|",
    ]
    arguments = [str(folder / "given.npz"), "TAG", *map(str, paths)]
    here = [sys.executable, "-c", SCRIPT, *arguments]
    subprocess.run([a.replace("TAG", ".x86.npz") for a in here], check=True)
    for cpu in CPUS:
        there = [emulator.python(cpu), "-c", SCRIPT, *arguments]
        line = [a.replace("TAG", f".{cpu}.npz") for a in there]
        subprocess.run(line, env=emulator.environment(), stderr=subprocess.DEVNULL, check=True)
    for path in paths:
        ours = np.load(f"{path}.x86.npz")
        for cpu in CPUS:
            theirs = np.load(f"{path}.{cpu}.npz")
            step, loop = (np.abs(theirs[k] - ours[k]).max(axis=(1, 2)) for k in ("single", "loop"))
            lines.append(
                f"| {path.stem} | {cpu} | {step.max():.1e} | {np.median(step):.1e} | {(step > 1e-4).mean():.1%} "
                f"| {loop.max():.1e} |"
            )
    return "\n".join(lines)
