"""Which shoulder exercise is being done, told at each step from a wrist's inertial sensors; people never seen.

The recordings are those that the package seglearn ships: ten people, seven exercises, two arms, 50 Hz
(Burns et al., https://arxiv.org/abs/1802.01489). Its file is a pickle, so its own loader reads it, once, after
its digest was checked, and what it gives is written as .npz without pickle: nothing else here unpickles.

    pip install --no-deps seglearn==1.2.5        its loader needs NumPy alone
    python examples/activity.py                  convert, preview, train three seeds and a GRU, export, run
    python examples/activity.py --choose         the same on the training people alone, as the defaults were chosen

Nothing but the model and the seed is given to `ocean-train`; all else is its default for a log.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
RATE_HZ = 50
UNSEEN = ("person08", "person09", "person10")
CHOOSING = ("person06", "person07")
"""Of the people to train on, those on whom the settings were chosen."""
NAMES = {
    "ocean_train.cli": "ocean-train",
    "ocean_export.cli": "ocean-export",
    "ocean_runtime.cli": "ocean-run",
}
CHANNELS = ("ax [g]", "ay [g]", "az [g]", "wx", "wy", "wz")
"""The package states no units; the acceleration's mean length of 1.1 says g."""


def convert(path: Path, seconds: float, without: tuple[str, ...] = (), rate_hz: int = RATE_HZ) -> None:
    """Write the first seconds of each recording: time, six channels, the activity, the recording's name.

    without: people who are left out. rate_hz: a divisor of 50 gives the mean of so many rows, another rate
    interpolates.
    """
    package = importlib.util.find_spec("seglearn")
    if package is None or package.origin is None:
        sys.exit("the recordings need seglearn: pip install --no-deps seglearn==1.2.5")
    folder = Path(package.origin).parent
    digest = hashlib.sha256((folder / "data" / "watch_dataset.npy").read_bytes()).hexdigest()
    if digest != SHA256:  # a pickle can run any code: only the known one is loaded
        sys.exit(f"the recordings are not those of seglearn 1.2.5 (SHA-256 {digest}); install that version")
    # The loader's module by itself: the package around it imports pandas and scikit-learn.
    spec = importlib.util.spec_from_file_location("seglearn_datasets", folder / "datasets.py")
    assert spec is not None and spec.loader is not None
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    data = loader.load_watch()
    rows: list[np.ndarray] = []
    times: list[np.ndarray] = []
    names, activities = [], []
    for x, person, y, side in zip(data["X"], data["subject"], data["y"], data["side"], strict=True):
        if f"person{person:02}" in without:
            continue
        recorded = x[: int(min(seconds * RATE_HZ, len(x)))]
        rows.append(at_rate(recorded, rate_hz))
        steps = len(rows[-1])
        times.append(np.arange(steps) / rate_hz)
        activity = str(data["y_labels"][y])
        activities += [activity] * steps
        names += [f"person{person:02}/{activity}-{'right' if side else 'left'}"] * steps
    columns = dict(zip(CHANNELS, np.concatenate(rows).T, strict=True))
    np.savez_compressed(path, time=np.concatenate(times), **columns, activity=activities, recording=names)


def at_rate(x: np.ndarray, rate_hz: int) -> np.ndarray:
    """(N, 6) at 50 Hz -> at another rate."""
    if RATE_HZ % rate_hz == 0:
        every = RATE_HZ // rate_hz
        steps = len(x) // every
        return x[: steps * every].reshape(steps, every, -1).mean(1)
    places = np.arange(int(len(x) * rate_hz / RATE_HZ)) * RATE_HZ / rate_hz
    return np.stack([np.interp(places, np.arange(len(x)), channel) for channel in x.T], axis=1)


def run(module: str, *arguments: object, show: int | None = None) -> None:
    """One command, shown and run, with the first lines of its output; stops the example where it fails."""
    command = [str(a) for a in arguments]
    print(f"\n$ {NAMES[module]} {shlex.join(command)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", module, *command], stdout=subprocess.PIPE, text=True, check=False
    )
    print("\n".join([*done.stdout.splitlines()[:show], *(["..."] if show else [])]), flush=True)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    p.add_argument("--folder", type=Path, default=Path("runs/activity"))
    p.add_argument(
        "--seconds", type=float, default=float("inf"), help="of each recording; all of it if not given"
    )
    p.add_argument("--rate", type=int, default=RATE_HZ, help="rows a second; the recordings have 50")
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--window", type=int, default=64)
    p.add_argument("--choose", action="store_true", help="leave the unseen people out, measure on 6 and 7")
    args = p.parse_args()
    measured_on = CHOOSING if args.choose else UNSEEN
    args.folder.mkdir(parents=True, exist_ok=True)
    log = args.folder / ("choose.npz" if args.choose else "watch.npz")
    if not log.exists():
        convert(log, args.seconds, UNSEEN if args.choose else (), args.rate)
    asked = ["--log", log, "--classes", "activity", "--episode", "recording", "--time", "time"]
    asked += ["--validate-on", *(f"{log.stem}/{person}/*" for person in measured_on)]
    run("ocean_train.cli", *asked, "--preview")
    scores: dict[str, list[tuple[float, float]]] = {"ocean": [], "gru": []}
    for model, found in scores.items():
        for seed in range(args.seeds):
            out = args.folder / f"{model}-{seed}{'-choose' if args.choose else ''}"
            sizes = ["--steps", args.steps, "--batch", args.batch, "--window", args.window]
            sizes += ["--width", args.width, "--eval-every", args.steps]
            run("ocean_train.cli", *asked, "--model", model, "--seed", seed, *sizes, "--out", out)
            last = json.loads((out / "checkpoint.json").read_text())["history"][-1]
            found.append((last["accuracy"], last["macro_f1"]))
    exported = args.folder / "activity.onnx"
    if not args.choose:
        run("ocean_export.cli", args.folder / "ocean-0", "-o", exported)
        run("ocean_runtime.cli", exported, one_recording(log, args.folder / "unseen.csv"), show=8)
    print(f"\nunseen people ({', '.join(measured_on)}), each recording read from its beginning to its end:")
    for model, found in scores.items():
        accuracy, macro_f1 = np.array(found).T
        each = ", ".join(f"{a:.3f}" for a in accuracy)
        print(
            f"{model:6} accuracy {accuracy.mean():.3f} ({each})   macro F1 {macro_f1.mean():.3f}   chance 0.143"
        )
    return 0


def one_recording(log: Path, path: Path) -> Path:
    """The first seconds of one unseen recording as CSV, as a robot would read them."""
    with np.load(log) as data:
        chosen = np.flatnonzero(data["recording"] == f"{UNSEEN[0]}/ABD-left")[:200]
        rows = np.stack([data[name][chosen] for name in ("time", *CHANNELS)], axis=1)
    path.write_text(
        "\n".join([",".join(("time", *CHANNELS)), *(",".join(map(str, row)) for row in rows.tolist())]) + "\n"
    )
    return path


if __name__ == "__main__":
    sys.exit(main())
