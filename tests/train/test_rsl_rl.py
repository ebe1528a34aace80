"""`ocean_train.rsl_rl:OceanModel` within rsl_rl's own algorithms, and what is exported of it."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ocean_export import ExportError, export_policy
from ocean_runtime import OceanModel as File
from torch import Tensor

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_without_rsl_rl_a_sentence_says_what_to_install(environment: dict[str, str]) -> None:
    program = "import sys; sys.modules['rsl_rl'] = None; import ocean_train.rsl_rl"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "ocean_train.rsl_rl needs rsl_rl 5.5 or newer: pip install 'rsl-rl-lib>=5.5'"
    )


@pytest.fixture(scope="module")
def pendulum() -> Any:
    """The example's module."""
    pytest.importorskip("rsl_rl.models", reason="needs rsl_rl: pip install 'rsl-rl-lib>=5.5'")
    sys.path.insert(0, str(EXAMPLES))
    try:
        import rsl_rl_pendulum
    finally:
        sys.path.remove(str(EXAMPLES))
    return rsl_rl_pendulum


def runner_of(pendulum: Any, envs: int = 6, **model: Any) -> Any:
    from rsl_rl.runners import OnPolicyRunner

    torch.manual_seed(0)
    settings = pendulum.settings({**pendulum.MODELS["ocean"], "obs_normalization": True, **model}, steps=8)
    settings["algorithm"]["num_mini_batches"] = 2
    return OnPolicyRunner(pendulum.Pendulum(envs), settings, log_dir=None, device="cpu")


@pytest.fixture(scope="module")
def runner(pendulum: Any) -> Any:
    """After two iterations of PPO."""
    runner = runner_of(pendulum)
    before = copy.deepcopy(runner.alg.get_policy().state_dict())
    runner.learn(2)
    for name, value in runner.alg.get_policy().state_dict().items():
        assert torch.isfinite(value).all()
        if "norm" not in name and "key" not in name:
            assert not torch.equal(value, before[name]), f"{name} was not trained"
    return runner


def observed(steps: int, envs: int, seed: int = 0) -> Any:
    from tensordict import TensorDict

    values = torch.randn(steps, envs, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDict({"policy": values}, batch_size=[steps, envs])


def test_padded_trajectories_give_what_the_rollout_gave(runner: Any) -> None:
    """What PPO's update computes of a rollout, with episodes that end within it, is what the rollout gave."""
    from rsl_rl.storage import RolloutStorage

    policy = runner.alg.get_policy().eval()
    T, B = 8, 6
    seen = observed(T, B)
    dones = torch.rand(T, B, generator=torch.Generator().manual_seed(1)) < 0.3
    storage = RolloutStorage("rl", B, T, seen[0], [1], "cpu")
    gave = []
    with torch.inference_mode():
        policy.reset()
        policy(observed(1, B, seed=9)[0])  # so that the rollout begins with a state
        for t in range(T):
            moment = RolloutStorage.Transition()
            moment.hidden_states = (policy.get_hidden_state(), None)
            gave.append(policy(seen[t]))
            moment.observations, moment.dones, moment.rewards = seen[t], dones[t], torch.zeros(B)
            moment.actions = moment.values = moment.actions_log_prob = torch.zeros(B, 1)
            moment.distribution_params = (torch.zeros(B, 1),)
            storage.add_transition(moment)
            policy.reset(dones[t])
    batches = list(storage.recurrent_mini_batch_generator(2, 1))
    found = torch.cat([policy(b.observations, b.masks, b.hidden_states[0]) for b in batches], 1)
    torch.testing.assert_close(found, torch.stack(gave), atol=1e-5, rtol=0)
    assert found.requires_grad


def test_done_environments_begin_anew(runner: Any) -> None:
    policy = runner.alg.get_policy().eval()
    seen = observed(2, 6)
    with torch.no_grad():
        policy.reset()
        fresh = policy(seen[1])
        policy.reset()
        policy(seen[0])
        policy.reset(torch.tensor([0, 1, 0, 0, 1, 0]))
        state = policy.get_hidden_state()
        assert state.shape == (1, 6, 32)
        assert (state[0, [1, 4]] == 0).all() and (state[0, [0, 2, 3, 5]] != 0).all()
        second = policy(seen[1])
    torch.testing.assert_close(second[[1, 4]], fresh[[1, 4]])
    assert not torch.allclose(second[[0, 2]], fresh[[0, 2]])


@pytest.mark.parametrize(
    "model",
    [{"rnn_type": "lstm", "rnn_hidden_dim": 8, "rnn_num_layers": 2}, {"heads": 4, "max_time_constant": 1.0}],
)
def test_a_configuration_of_rsl_rl_s_own_model_fits(pendulum: Any, model: dict[str, Any]) -> None:
    ocean = runner_of(pendulum, **model).alg.get_policy().rnn.rnn.ocean
    assert ocean.width == model.get("rnn_hidden_dim", 32)
    assert ocean.config.layers == model.get("rnn_num_layers", 1)


def test_distillation_trains_a_student_with_a_memory(pendulum: Any) -> None:
    """Gradients through several steps, episodes that end among them."""
    from rsl_rl.runners import DistillationRunner

    torch.manual_seed(0)
    settings = pendulum.settings(pendulum.MODELS["ocean"], steps=12)
    student, teacher = settings.pop("actor"), pendulum.settings(pendulum.MODELS["mlp"])["actor"]
    settings.pop("critic")
    settings |= {
        "obs_groups": {"student": ["policy"], "teacher": ["policy"]},
        "student": student,
        "teacher": teacher,
        "algorithm": {"class_name": "Distillation", "num_learning_epochs": 2, "gradient_length": 6},
    }
    env = pendulum.Pendulum(5)
    runner = DistillationRunner(env, settings, log_dir=None, device="cpu")
    runner.alg.teacher_loaded = True
    env.episode_length_buf[:] = torch.tensor([0, 190, 193, 197, 199])
    before = copy.deepcopy(runner.alg.student.state_dict())
    runner.learn(2)
    after = runner.alg.student.state_dict()
    assert all(torch.isfinite(value).all() for value in after.values())
    assert not torch.equal(after["rnn.rnn.ocean.embed.weight"], before["rnn.rnn.ocean.embed.weight"])


def deterministic(policy: Any, seen: Any) -> Tensor:
    """Actions (T, B, A) from the initial state."""
    policy.eval().reset()
    with torch.no_grad():
        return torch.stack([policy(step) for step in seen])


def test_the_exports_of_rsl_rl_give_the_policy_s_actions(runner: Any, tmp_path: Path) -> None:
    import onnxruntime

    seen = observed(20, 1)
    wanted = deterministic(runner.alg.get_policy(), seen)
    runner.export_policy_to_jit(str(tmp_path))
    script: Any = torch.jit.load(tmp_path / "policy.pt")
    for _ in range(2):
        with torch.no_grad():
            found = torch.stack([script(x) for x in seen["policy"]])
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
        script.reset()
    runner.export_policy_to_onnx(str(tmp_path))
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    state = np.zeros((1, 1, 32), np.float32)
    for x, action in zip(seen["policy"], wanted, strict=True):
        given, state = session.run(["actions", "h_out"], {"obs": x.numpy(), "h_in": state})
        np.testing.assert_allclose(given, action.numpy(), atol=1e-5)


def test_our_file_gives_the_policy_s_actions_and_says_what_they_are(runner: Any, tmp_path: Path) -> None:
    policy, path = runner.alg.get_policy(), tmp_path / "policy.onnx"
    report = export_policy(
        policy, path, observations=("cos", "sin"), actions=("torque",), action_scale=2.0, action_offset=[0.5],
        rate_hz=20, examples=observed(100, 1)["policy"][:, 0].numpy(), steps=50,
    )  # fmt: skip
    assert report.parity.passed and report.parity.reference == "float64"
    seen = observed(20, 3)
    wanted = deterministic(policy, seen).numpy()
    stream = File.load(path).stream(batch=3)
    for x, action in zip(seen["policy"], wanted, strict=True):
        found = stream.step_all(x.numpy())
        np.testing.assert_allclose(found["actions"], action, atol=1e-5)
        np.testing.assert_allclose(found["targets"], 0.5 + 2 * action, atol=2e-5)
    contract = File.load(path).contract
    assert [e.name for e in contract.inputs[0].elements] == ["cos", "sin"] and contract.rate_hz == 20


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_rsl_rl_s_own_recurrent_policies_are_exported_too(pendulum: Any, kind: str, tmp_path: Path) -> None:
    model = {"class_name": "RNNModel", "rnn_type": kind}
    policy = own_runner(pendulum, model).alg.get_policy()
    export_policy(policy, tmp_path / "p.onnx", steps=20)
    seen = observed(10, 2)
    wanted = deterministic(policy, seen).numpy()
    stream = File.load(tmp_path / "p.onnx").stream(batch=2)
    for x, action in zip(seen["policy"], wanted, strict=True):
        np.testing.assert_allclose(stream.step(x.numpy()), action, atol=1e-5)


def own_runner(pendulum: Any, model: dict[str, Any]) -> Any:
    from rsl_rl.runners import OnPolicyRunner

    return OnPolicyRunner(pendulum.Pendulum(4), pendulum.settings(model), log_dir=None, device="cpu")


def test_what_does_not_fit_is_refused(runner: Any, pendulum: Any, tmp_path: Path) -> None:
    policy, path = runner.alg.get_policy(), tmp_path / "p.onnx"
    with pytest.raises(ExportError, match="observations has 3 names, and the policy has 2"):
        export_policy(policy, path, observations=("a", "b", "c"))
    with pytest.raises(ExportError, match="action_scale has 2 numbers, and the policy has 1 actions"):
        export_policy(policy, path, action_scale=(1.0, 2.0))
    with pytest.raises(ExportError, match="MLPModel is no recurrent model of rsl_rl 5"):
        export_policy(own_runner(pendulum, pendulum.MODELS["mlp"]).alg.get_policy(), path)
    assert not path.exists()
