"""Ocean State as a recurrent model of rsl_rl (rsl-rl-lib 5.5 and newer): for actor, critic and student.

In the configuration of a runner, also of Isaac Lab's and mjlab's, it is enough to name the class:

    "actor": {"class_name": "ocean_train.rsl_rl:OceanModel", ...}

What rsl_rl's own `RNNModel` takes is taken here too, and means the same: `rnn_hidden_dim` is the width of the state and
`rnn_num_layers` the number of layers. `rnn_type` is not looked at. rsl_rl itself does masks, padded trajectories and
the storage of states, in which a state is (1, B, D), that of a GRU of one layer.

Axes: B environments, T steps, M observations, D width.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ocean_train.ocean import Ocean
from ocean_train.recipe import LOG_TIME_CONSTANT_STEPS

try:
    from rsl_rl.models import MLPModel, RNNModel
    from rsl_rl.modules import RNN
except ImportError as error:
    raise ImportError(
        "ocean_train.rsl_rl needs rsl_rl 5.5 or newer: pip install 'rsl-rl-lib>=5.5'", name=error.name
    ) from error


class OceanModel(RNNModel):
    """Observations (B, M) -> normalisation, `Ocean`, MLP -> outputs; used by rsl_rl as its `RNNModel` is."""

    def __init__(
        self,
        obs: Any,
        obs_groups: dict[str, list[str]],
        obs_set: str,
        output_dim: int,
        hidden_dims: tuple[int, ...] | list[int] = (64,),
        activation: str = "elu",
        obs_normalization: bool = False,
        distribution_cfg: dict[str, Any] | None = None,
        rnn_type: str = "ocean",
        rnn_hidden_dim: int = 64,
        rnn_num_layers: int = 2,
        heads: int | None = None,
        max_time_constant: float = LOG_TIME_CONSTANT_STEPS,
    ) -> None:
        """As rsl_rl's `MLPModel`, and for the Ocean:

        rnn_type: not looked at, so that a configuration of `RNNModel` fits.
        rnn_hidden_dim: D, the width of the state. rnn_num_layers: its layers.
        heads: must divide D; by default two numbers a head.
        max_time_constant: the longest time constant of the state, in steps of the policy.

        Raises ValueError where a size does not fit, as `Ocean` and `MLPModel` do.
        """
        self.latent_dim = rnn_hidden_dim
        MLPModel.__init__(
            self,
            obs,
            obs_groups,
            obs_set,
            output_dim,
            hidden_dims,
            activation,
            obs_normalization,
            distribution_cfg,
        )
        self.rnn = _Memory(
            Ocean(self.obs_dim, rnn_hidden_dim, rnn_num_layers, heads, False, max_time_constant)
        )

    def as_jit(self) -> nn.Module:
        """For `torch.jit.script`: observations (1, M) -> actions, with the state in a buffer, and `reset()`."""
        return _Scripted(self)

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        """For `torch.onnx.export` and `ocean_export.export_policy`: obs (B, M), h_in (1, B, D) -> actions, h_out."""
        return _Onnx(self, verbose)


class _Memory(RNN):
    """rsl_rl's keeper of the state, around an Ocean."""

    def __init__(self, ocean: Ocean) -> None:
        nn.Module.__init__(self)  # RNN's own would make a GRU
        self.rnn = _AsGRU(ocean)
        self.hidden_state: Tensor | None = None


class _AsGRU(nn.Module):
    """An Ocean with the shapes of an `nn.GRU` of one layer, time first."""

    def __init__(self, ocean: Ocean) -> None:
        super().__init__()
        self.ocean = ocean

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (T, B, M), state (1, B, D) -> output (T, B, D), state (1, B, D)."""
        first = self.ocean.initial_state(x.shape[1]) if state is None else state[0]
        if len(x) > 1:
            output, after = self.ocean(x, first)
            return output, after[None]
        y, after = self.ocean.step(x[0], first)
        return y[None], after.clone()[
            None
        ]  # rsl_rl sets rows of it to zero, and the norm's gradient needs it


class _Policy(nn.Module):
    """What both exports are made of, on the CPU."""

    def __init__(self, model: OceanModel) -> None:
        super().__init__()
        self.obs_normalizer = copy.deepcopy(model.obs_normalizer).cpu()
        self.mlp = copy.deepcopy(model.mlp).cpu()
        self.deterministic_output: nn.Module = nn.Identity()
        if model.distribution is not None:
            self.deterministic_output = model.distribution.as_deterministic_output_module().cpu()


class _Step(nn.Module):
    def __init__(self, ocean: Ocean) -> None:
        super().__init__()
        self.ocean = ocean

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.ocean.step(x, state)


class _Scripted(_Policy):
    """The step is traced, as TorchScript can't read it; what surrounds it is scripted."""

    def __init__(self, model: OceanModel) -> None:
        super().__init__(model)
        ocean = copy.deepcopy(model.rnn.rnn.ocean).cpu()
        example = torch.zeros(1, ocean.input_size), ocean.initial_state(1)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of shapes and a decay that stay what they are
            self.step: Any = torch.jit.trace(_Step(ocean), example)  # type: ignore[no-untyped-call]
        self.register_buffer("hidden_state", ocean.initial_state(1).detach())

    def forward(self, x: Tensor) -> Tensor:
        """Observations (1, M) -> actions (1, A); the state moves on."""
        y, state = self.step(self.obs_normalizer(x), self.hidden_state)
        assert isinstance(self.hidden_state, Tensor)
        self.hidden_state[:] = state
        out: Tensor = self.deterministic_output(self.mlp(y))
        return out

    @torch.jit.export
    def reset(self) -> None:
        """The state of a new episode."""
        assert isinstance(self.hidden_state, Tensor)
        self.hidden_state[:] = 0.0


class _Onnx(_Policy):
    is_recurrent: bool = True
    input_names = ("obs", "h_in")
    output_names = ("actions", "h_out")

    def __init__(self, model: OceanModel, verbose: bool) -> None:
        super().__init__(model)
        self.verbose = verbose
        self.ocean = copy.deepcopy(model.rnn.rnn.ocean).cpu()

    def forward(self, obs: Tensor, h_in: Tensor) -> tuple[Tensor, Tensor]:
        """obs (B, M), h_in (1, B, D) -> actions (B, A), h_out (1, B, D)."""
        y, state = self.ocean.step(self.obs_normalizer(obs), h_in[0])
        return self.deterministic_output(self.mlp(y)), state[None]

    def get_dummy_inputs(self) -> tuple[Tensor, Tensor]:
        """Inputs for tracing: (1, M), (1, 1, D)."""
        return torch.zeros(1, self.ocean.input_size), self.ocean.initial_state(1)[None].detach()
