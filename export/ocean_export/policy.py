"""A recurrent policy of rsl_rl -> one verified .onnx file with the names of its observations and actions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from ocean_runtime.contract import BATCH, Element, State
from ocean_runtime.contract import Tensor as Described
from torch import Tensor, nn

from ocean_export.module import export
from ocean_export.pipeline import ExportError, ExportReport, Log
from ocean_export.verify import STEPS

Names = Sequence[str | Element]


def export_policy(
    policy: nn.Module,
    path: str | Path = "policy.onnx",
    *,
    observations: Names = (),
    actions: Names = (),
    action_scale: float | Sequence[float] | None = None,
    action_offset: float | Sequence[float] | None = None,
    rate_hz: float | None = None,
    examples: ArrayLike | None = None,
    steps: int = STEPS,
    log: Log | None = None,
) -> ExportReport:
    """Write a recurrent policy of rsl_rl as one verified single-step ONNX file: `runner.alg.get_policy()`.

    policy: `ocean_train.rsl_rl:OceanModel`, or rsl_rl's own `RNNModel` with a GRU or an LSTM. What is exported is its
        deterministic output, with the normalisation of observations inside.
    observations: names of the M numbers that the policy reads, in order (its groups one after the other): texts, or
        Elements with units.
    actions: names of the A actions.
    action_scale, action_offset: what the simulator makes of an action, offset + scale x action, for each or for all.
        With either, the file has a second output, `targets`, that is that; where the policy observes its last action,
        that is one of `actions`.
    rate_hz: steps of the policy a second.
    examples: observations of one environment (N, M), as recorded in the simulator, for the verification.
    steps, log: as for `ocean_export.export`.

    Raises ExportError where the policy is not recurrent, or the names do not fit, and as `ocean_export.export` does.
    """
    exporter = getattr(policy, "as_onnx", None)
    if exporter is None or not getattr(policy, "is_recurrent", False):
        raise ExportError(
            f"{type(policy).__name__} is no recurrent model of rsl_rl 5; give runner.alg.get_policy() of one with "
            "ocean_train.rsl_rl:OceanModel or RNNModel"
        )
    graph = exporter(verbose=False).cpu().eval()
    example, *hidden = graph.get_dummy_inputs()
    (_, *given), (_, *after) = graph.input_names, graph.output_names
    with torch.no_grad():
        count = graph(example, *hidden)[0].shape[-1]
    scaled = action_scale is not None or action_offset is not None
    module = _Step(
        graph,
        _numbers("action_scale", 1.0 if action_scale is None else action_scale, count),
        _numbers("action_offset", 0.0 if action_offset is None else action_offset, count),
        scaled,
    )
    names = _elements("actions", actions, count)
    outputs = [Described("actions", "float32", (BATCH, count), "as the policy gives them", names)]
    if scaled:
        outputs.append(Described("targets", "float32", (BATCH, count), "offset + scale x action", names))
    size = example.shape[-1]
    return export(
        module,
        path,
        inputs=[
            Described("obs", "float32", (BATCH, size), "", _elements("observations", observations, size))
        ],
        outputs=outputs,
        states=[
            State(before, then, "float32", (state.shape[0], BATCH, state.shape[2]))
            for before, then, state in zip(given, after, hidden, strict=True)
        ],
        rate_hz=rate_hz,
        examples=None if examples is None else {"obs": examples},
        steps=steps,
        log=log,
    )


class _Step(nn.Module):
    """What rsl_rl exports, and what the simulator makes of its actions."""

    scale: Tensor
    offset: Tensor

    def __init__(self, policy: nn.Module, scale: Tensor, offset: Tensor, scaled: bool) -> None:
        super().__init__()
        self.policy, self.scaled = policy, scaled
        self.register_buffer("scale", scale)
        self.register_buffer("offset", offset)

    def step(self, obs: Tensor, *states: Tensor) -> tuple[Any, ...]:
        """obs (B, M), states (layers, B, D) -> actions (B, A), where asked for targets (B, A), next states."""
        actions, *after = self.policy(obs, *states)
        kept = [state for state in after if state is not None]  # of a GRU rsl_rl gives None for a second one
        return (actions, self.offset + self.scale * actions, *kept) if self.scaled else (actions, *kept)


def _numbers(name: str, given: float | Sequence[float], count: int) -> Tensor:
    numbers = torch.as_tensor(given, dtype=torch.float32).reshape(-1)
    if len(numbers) not in (1, count):
        raise ExportError(f"{name} has {len(numbers)} numbers, and the policy has {count} actions")
    return numbers.expand(count).clone()


def _elements(what: str, names: Names, count: int) -> tuple[Element, ...]:
    if names and len(names) != count:
        raise ExportError(f"{what} has {len(names)} names, and the policy has {count}")
    return tuple(name if isinstance(name, Element) else Element(name) for name in names)
