"""What a robot's sensors will say next, though none of them measures a velocity.

A simulated cheetah (gymnasium's HalfCheetah, MuJoCo) runs on random torques and records a ROS 2 bag: joint
positions, height and pitch, and the torques commanded, at 20 Hz, with a pause after each run. Where a joint
will be in 50 ms depends on how fast it moves, which is in no message: the model has to carry it.

    pip install '.[cpu,train,export,bags,examples]'
    python examples/robot.py                    record, preview, train, export, run
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
    "ocean_train.cli": "ocean-train",
    "ocean_export.cli": "ocean-export",
    "ocean_runtime.cli": "ocean-run",
}
RATE_HZ = 20
PAUSE_S = 5.0
JOINTS = ("bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot")
POSITIONS = [f"/joint_states:position[{i}] [rad]" for i in range(len(JOINTS))]
BODY = ["/height:data [m]", "/pitch:data [rad]"]
TORQUES = [f"/torques:data[{i}]" for i in range(len(JOINTS))]


def record(path: Path, runs: int, seconds: float, seed: int = 0) -> None:
    """Write the bag: each run has torques of its own, slow waves of random strength and pace."""
    missing = [n for n in ("rosbags", "gymnasium", "mujoco") if importlib.util.find_spec(n) is None]
    if missing:
        sys.exit(f"the recording needs {', '.join(missing)}: pip install '.[bags,examples]'")
    import gymnasium
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    types = store.types
    random = np.random.default_rng(seed)
    robot = gymnasium.make("HalfCheetah-v5")
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as bag:
        connections: dict[str, Any] = {}

        def write(topic: str, message: Any, time_ns: int) -> None:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = bag.add_connection(topic, kind, typestore=store)
            bag.write(connections[topic], time_ns, store.serialize_cdr(message, kind))

        layout = types["std_msgs/msg/MultiArrayLayout"]([], 0)
        clock = 1_700_000_000_000_000_000
        for run in range(runs):
            robot.reset(seed=seed + run)
            data = robot.unwrapped.data  # type: ignore[attr-defined]
            pace, phase = random.uniform(0.5, 2.0, len(JOINTS)), random.uniform(0, 2 * np.pi, len(JOINTS))
            strength = random.uniform(0.1, 0.7, len(JOINTS))
            for k in range(round(seconds * RATE_HZ)):
                torques = strength * np.sin(2 * np.pi * pace * k / RATE_HZ + phase)
                stamp = types["builtin_interfaces/msg/Time"](clock // 10**9, clock % 10**9)
                header = types["std_msgs/msg/Header"](stamp, "base")
                nothing = np.zeros(0)
                joints = types["sensor_msgs/msg/JointState"](
                    header, list(JOINTS), data.qpos[3:9].copy(), nothing, nothing
                )
                write("/joint_states", joints, clock)
                write("/height", types["std_msgs/msg/Float64"](float(data.qpos[1])), clock)
                write("/pitch", types["std_msgs/msg/Float64"](float(data.qpos[2])), clock)
                write("/torques", types["std_msgs/msg/Float64MultiArray"](layout, torques), clock)
                robot.step(torques.astype(np.float32))
                clock += 10**9 // RATE_HZ
            clock += round(PAUSE_S * 1e9)
    robot.close()


def run(module: str, *arguments: object, show: int | None = None) -> str:
    """One command, shown and run, with the first lines of its output; stops the example where it fails."""
    command = [str(a) for a in arguments]
    print(f"\n$ {NAMES[module]} {shlex.join(command)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", module, *command], stdout=subprocess.PIPE, text=True, check=False
    )
    print("\n".join([*done.stdout.splitlines()[:show], *(["..."] if show else [])]), flush=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    p.add_argument("--folder", type=Path, default=Path("runs/robot"))
    p.add_argument("--runs", type=int, default=40)
    p.add_argument("--seconds", type=float, default=20.0)
    p.add_argument("--steps", type=int, default=1500)
    args = p.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    bag, model = args.folder / "bag", args.folder / "robot.onnx"
    if not bag.exists():
        record(bag, args.runs, args.seconds)
    run("ocean_train.cli", "--log", bag, "--preview")
    unseen = [f"bag/{i + 1}" for i in range(args.runs - max(1, args.runs // 8), args.runs)]
    asked = ["--log", bag, "--features", *POSITIONS, *BODY, *TORQUES, "--rate", RATE_HZ, "--max-age", 0.06]
    asked += ["--validate-on", *unseen]
    run("ocean_train.cli", *asked, "--preview")
    sizes = ["--width", 64, "--steps", args.steps, "--batch", 16, "--window", 64, "--lr", 2e-3]
    told = run(
        "ocean_train.cli", *asked, *sizes, "--eval-every", args.steps, "--out", args.folder / "checkpoint"
    )
    run("ocean_export.cli", args.folder / "checkpoint", "-o", model)
    run("ocean_runtime.cli", model, bag, show=3)
    history = json.loads((args.folder / "checkpoint" / "checkpoint.json").read_text())["history"]
    print(f"mean RMSE over that of holding the last value: {history[-1]['rmse_of_hold']:.3f}")
    moving = [line for line in told.splitlines() if line.startswith(("/joint_states", "/height", "/pitch"))]
    worst = min(float(line.rsplit(maxsplit=1)[1].rstrip("%")) for line in moving)
    print(f"every position is predicted with an RMSE at least {worst:.1f}% below holding the last value")
    return 0


if __name__ == "__main__":
    sys.exit(main())
