"""Ocean State beside a GRU in rsl_rl: a pendulum that shows its angle and not its speed has to be swung up.

Both policies are trained by rsl_rl's PPO with the same settings; the configuration names a class, nothing else changes.
The Ocean's policy is exported, and the file is run in the simulator for the same return.

    pip install '.[cpu,train,export]' 'rsl-rl-lib>=5.5'
    python examples/rsl_rl_pendulum.py          two minutes on one core
"""

from __future__ import annotations

import argparse
import copy
import math
from pathlib import Path
from typing import Any

import torch
from ocean_export import Element, export_policy
from ocean_runtime import OceanModel
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from torch import Tensor

RATE_HZ = 20
EPISODE = 200
TORQUE_NM = 2.0

NETWORK = {
    "hidden_dims": [32],
    "activation": "elu",
    "rnn_hidden_dim": 32,
    "rnn_num_layers": 1,
}
MODELS = {
    "ocean": {"class_name": "ocean_train.rsl_rl:OceanModel", "max_time_constant": 16},
    "gru": {"class_name": "RNNModel", "rnn_type": "gru"},
    "mlp": {"class_name": "MLPModel"},
}


class Pendulum(VecEnv):  # type: ignore[misc]
    """Observation (B, 2): cosine and sine of the angle, 0 upright. Action (B, 1): torque in units of 2 N m.

    The reward of a step is 1 upright and at rest, and at most about 1 less 1 for each 90 degrees away.
    """

    def __init__(self, envs: int, seed: int = 0) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = envs, 1, EPISODE
        self.device, self.cfg = "cpu", {}
        self.random = torch.Generator().manual_seed(seed)
        self.angle, self.speed = torch.zeros(envs), torch.zeros(envs)
        self.episode_length_buf = torch.zeros(envs, dtype=torch.long)
        self.begin(torch.ones(envs, dtype=torch.bool))

    def begin(self, rows: Tensor) -> None:
        """New episodes, anywhere and at any speed up to 1 rad/s."""
        angle, speed = 2 * torch.rand(2, self.num_envs, generator=self.random) - 1
        self.angle = torch.where(rows, math.pi * angle, self.angle)
        self.speed = torch.where(rows, speed, self.speed)
        self.episode_length_buf[rows] = 0

    def get_observations(self) -> TensorDict:
        """cos, sin."""
        seen = torch.stack([self.angle.cos(), self.angle.sin()], -1)
        return TensorDict({"policy": seen}, batch_size=[self.num_envs])

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """One step of 1/20 s: gravity, a torque too weak to lift it at once, a mass of 1 kg on a rod of 1 m."""
        torque = TORQUE_NM * actions[:, 0].clamp(-1, 1)
        self.speed = (self.speed + (15 * self.angle.sin() + 3 * torque) / RATE_HZ).clamp(-8, 8)
        self.angle = self.angle + self.speed / RATE_HZ
        away = (self.angle + math.pi) % (2 * math.pi) - math.pi
        reward = 1 - away.square() / 2.5 - 0.02 * self.speed.square() - 0.005 * torque.square()
        self.episode_length_buf += 1
        done = self.episode_length_buf >= EPISODE
        ends = done.clone()
        self.begin(done)
        return self.get_observations(), reward, done.long(), {"time_outs": ends}


def settings(model: dict[str, Any], steps: int = 32) -> dict[str, Any]:
    """rsl_rl's configuration of a runner."""
    network = {**NETWORK, **model}
    if model["class_name"] == "MLPModel":
        network = {name: value for name, value in network.items() if not name.startswith("rnn")}
    normal = {"class_name": "GaussianDistribution", "init_std": 0.5, "std_type": "scalar"}
    return {
        "num_steps_per_env": steps,
        "save_interval": 10_000,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**network, "distribution_cfg": normal},
        "critic": copy.deepcopy(network),
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": 4,
            "num_mini_batches": 4,
            "clip_param": 0.2,
            "gamma": 0.98,
            "lam": 0.95,
            "value_loss_coef": 1.0,
            "entropy_coef": 0.003,
            "learning_rate": 1e-3,
            "max_grad_norm": 1.0,
            "use_clipped_value_loss": True,
            "schedule": "adaptive",
            "desired_kl": 0.01,
        },
    }


def returns(act: Any, envs: int, seed: int) -> Tensor:
    """The mean reward of a step in one episode of each environment (B,); act: observation (B, 2) -> action (B, 1)."""
    env = Pendulum(envs, seed)
    total = torch.zeros(envs)
    with torch.no_grad():
        for _ in range(EPISODE):
            observation = env.get_observations()
            total += env.step(act(observation))[1]
    return total / EPISODE


def train(name: str, envs: int, iterations: int, every: int) -> tuple[OnPolicyRunner, list[float]]:
    """A trained runner, and the deterministic policy's mean reward of a step after each `every` iterations."""
    torch.manual_seed(0)
    runner = OnPolicyRunner(Pendulum(envs), settings(MODELS[name]), log_dir=None, device="cpu")
    runner.logger.log = lambda **_: None
    curve = []
    for done in range(every, iterations + 1, every):
        runner.learn(every)
        policy = runner.alg.get_policy().eval()
        state = policy.get_hidden_state()
        policy.reset()
        curve.append(returns(policy, 64, seed=1).mean().item())
        policy.reset(hidden_state=state)  # the training goes on where it was
        print(f"{name:5} iteration {done:4}   mean reward of a step {curve[-1]:+.3f}", flush=True)
    return runner, curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--iterations", type=int, default=75)
    parser.add_argument("--every", type=int, default=15, help="iterations from one test to the next")
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["ocean", "gru"])
    parser.add_argument("--verify", type=int, default=1000, help="steps of the verification")
    args = parser.parse_args()
    torch.set_num_threads(1)
    trained = {name: train(name, args.envs, args.iterations, args.every) for name in args.models}
    plot({name: curve for name, (_, curve) in trained.items()}, args.every, args.folder / "pendulum.png")

    policy = trained[args.models[0]][0].alg.get_policy().eval()
    path = args.folder / "pendulum.onnx"
    export_policy(
        policy,
        path,
        observations=("cos(angle)", "sin(angle)"),
        actions=(Element("torque", "N m"),),
        action_scale=TORQUE_NM,
        rate_hz=RATE_HZ,
        steps=args.verify,
        log=print,
    )
    stream = OceanModel.load(path).stream(batch=args.envs)
    policy.reset()
    in_pytorch = returns(policy, args.envs, seed=2)
    in_file = returns(
        lambda seen: torch.from_numpy(stream.step_all(seen["policy"].numpy())["actions"]), args.envs, seed=2
    )
    error = in_pytorch.std() / math.sqrt(args.envs)
    print(
        f"mean reward of a step over {args.envs} episodes: in PyTorch {in_pytorch.mean():+.4f} ± {error:.4f}, ",
        end="",
    )
    print(f"from the file {in_file.mean():+.4f}")


def plot(curves: dict[str, list[float]], every: int, path: Path) -> None:
    """The curves in one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for name, curve in curves.items():
        axes.plot([every * (i + 1) for i in range(len(curve))], curve, label=name, marker="o")
    axes.set_xlabel("iterations of PPO")
    axes.set_ylabel("mean reward of a step")
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
