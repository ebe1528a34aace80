"""`Ocean`: the Ocean Transformer as a recurrent layer of your own PyTorch model, used as `nn.GRU` is.

Axes: B batch, T steps, M input size, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ocean_train import bptt
from ocean_train.model import OceanConfig, OceanCore, initialise, without_autocast
from ocean_train.recipe import LOG_TIME_CONSTANT_STEPS, narrow_heads


class Ocean(OceanCore):
    """A recurrent layer whose state is one vector of `width` numbers, with exact gradients through time.

    As `nn.GRU`, it maps a sequence and a state to a sequence and a state, and gradients flow to its weights, to the
    input and to the first state:

        ocean = Ocean(input_size=12, width=64)
        output, state = ocean(x)                              # x (B, T, 12) -> (B, T, 64), (B, 64)
        output, state = ocean(more, state.detach())           # goes on where the first call ended
        output, state = ocean.step(x[:, 0], ocean.initial_state(len(x)))     # one step, the definition

    The backward pass is written out (ocean_train.bptt), and on a CPU with a C++ compiler it runs in native loops. It
    gives first derivatives only. A layer whose blocks were changed (other modules, hooks, parametrisations) goes
    through a plain loop over `step`, which is slower.

    Weights and state keep their dtype under `torch.autocast`. `torch.compile` of a surrounding model leaves its graph
    for this layer, so `fullgraph=True` is refused by PyTorch.
    """

    def __init__(
        self,
        input_size: int,
        width: int,
        layers: int = 2,
        heads: int | None = None,
        batch_first: bool = True,
        max_time_constant: float = LOG_TIME_CONSTANT_STEPS,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Weights are drawn from PyTorch's random state, as `nn.GRU`'s are: `torch.manual_seed` decides them.

        input_size: M, numbers of one input. width: D, numbers of the output and of the state. heads: must divide the
        width; by default two numbers a head. batch_first: whether x is (B, T, M), else (T, B, M).
        max_time_constant: the longest time constant of the leak, in steps: half of the channels keep a share of
        what they were, the other half is replaced whole. With 1 all are replaced (the paper's relay).

        Raises ValueError where a size is no positive integer, or the heads do not divide the width.
        """
        for name, size in (("input_size", input_size), ("width", width)):
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} must be a positive integer, not {size!r}")
        # Of the configuration, `outputs` and `head` describe what this layer itself gives: D numbers.
        config = OceanConfig(
            inputs=input_size,
            outputs=width,
            width=width,
            layers=layers,
            heads=narrow_heads(width) if heads is None else heads,
            kind="features",
            head="regression",
            max_time_constant=max_time_constant,
        )
        super().__init__(config, nn.Linear(input_size, width))
        self.batch_first = batch_first
        self.to(device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew from PyTorch's random state: `identity` of `ocean_train.model.initialise`."""
        initialise(self, int(torch.randint(2**63 - 1, (), device="cpu")), "identity")

    @property
    def input_size(self) -> int:
        """M, numbers of one input."""
        return self.config.inputs

    @property
    def width(self) -> int:
        """D, numbers of the output and of the state."""
        return self.config.width

    def extra_repr(self) -> str:
        c = self.config
        return (
            f"{c.inputs}, {c.width}, layers={c.layers}, heads={c.heads}, batch_first={self.batch_first}, "
            f"max_time_constant={c.max_time_constant:g}"
        )

    def initial_state(self, batch: int) -> Tensor:
        """The state of a new episode: zeros (B, D), on the weights' device and in their dtype."""
        return self.initial_ocean(batch)

    def forward(
        self,
        x: Tensor | PackedSequence,
        state: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, Tensor] | tuple[PackedSequence, Tensor]:
        """T steps from `state` (zeros where None): x (B, T, M) -> output (B, T, D), the state after them (B, D).

        With `batch_first=False`, x is (T, B, M), the output (T, B, D), and the masks (T, B). Unbatched: x (T, M) ->
        output (T, D), state (D,), with masks (T,). A PackedSequence gives one, and the state of each sequence's end in
        the order in which they were packed.

        `reset`, bool: before step t the row's state becomes zero (a new episode begins).
        `valid`, bool: where it is False the input is padding, whatever it holds, and the state stays as it was; the
        output there means nothing.

        Raises ValueError, in one sentence, where shapes or dtypes do not fit.
        """
        if isinstance(x, PackedSequence):
            return self._packed(x, state, reset, valid)
        self._check(x, state, (2, 3), "forward")
        for name, mask in (("reset", reset), ("valid", valid)):
            if mask is not None:
                self._check_mask(name, mask, x)
        masks = (None if m is None else self._by_row(m[..., None])[..., 0] for m in (reset, valid))
        with without_autocast(x):
            first = state[None] if state is not None and x.dim() == 2 else state
            oceans = self._oceans(self._by_row(x), first, *masks)
            output = self.norm(oceans)
        after = oceans[:, -1].clone()  # the caller's own, to set rows of it to zero as with nn.GRU
        if x.dim() == 2:
            return output[0], after[0]
        return output if self.batch_first else output.transpose(0, 1), after

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x (B, M), state (B, D) -> output (B, D), the next state (B, D); or (M,), (D,) -> (D,), (D,).

        `forward` is a loop of it, and this is the definition. For running, and for files: its gradient is PyTorch's
        own, which may be differentiated again. Raises ValueError where shapes or dtypes do not fit.
        """
        self._check(x, state, (1, 2), "step")
        with without_autocast(x):
            weight = self.norm.weight
            ocean = self.advance(self.embed(x.to(weight.dtype)), state.to(weight.dtype))
            return self.norm(ocean), ocean

    def _oceans(self, x: Tensor, state: Tensor | None, reset: Tensor | None, valid: Tensor | None) -> Tensor:
        """x (B, T, M), state (B, D) -> the oceans (B, T, D), in the weights' dtype."""
        dtype = self.norm.weight.dtype
        if valid is not None:  # a NaN there would otherwise reach the gradient as 0 · NaN
            x = torch.where(valid[..., None], x, 0)
        first = self.initial_state(len(x)) if state is None else state.to(dtype)
        return bptt.relay(self, self.embed(x.to(dtype)), first, reset, valid)

    def _packed(
        self, x: PackedSequence, state: Tensor | None, reset: Tensor | None, valid: Tensor | None
    ) -> tuple[PackedSequence, Tensor]:
        if reset is not None or valid is not None:
            raise ValueError(
                "a PackedSequence comes without reset and valid, as it says itself where sequences end; to begin "
                "episodes inside one, give a padded tensor with both masks"
            )
        padded, lengths = pad_packed_sequence(x, batch_first=True)  # in the order before packing
        self._check(padded, state, (3,), "forward", swapped=False)
        kept = torch.arange(padded.shape[1]) < lengths[:, None]
        with without_autocast(padded):
            oceans = self._oceans(padded, state, None, kept.to(padded.device))
            output = self.norm(oceans)
        order = x.sorted_indices
        if order is not None:
            output, lengths = output[order], lengths[order.cpu()]
        data = pack_padded_sequence(output, lengths, batch_first=True).data
        return PackedSequence(data, x.batch_sizes, order, x.unsorted_indices), oceans[:, -1].clone()

    def _by_row(self, x: Tensor) -> Tensor:
        """x as it was given -> (B, T, ...)."""
        if x.dim() == 2:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _axes(self, axes: int, last: str) -> str:
        names = {1: (), 2: ("T",), 3: ("B", "T") if self.batch_first else ("T", "B")}[axes]
        return f"({', '.join((*names, last))})"

    def _check(
        self, x: Tensor, state: Tensor | None, axes: tuple[int, ...], call: str, swapped: bool = True
    ) -> None:
        """ValueError where x or the state does not fit; PyTorch would broadcast some of these."""
        M, D = self.input_size, self.width
        if not isinstance(x, Tensor) or x.dim() not in axes:
            found = f"of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            shapes = ["(B, M)", "(M,)"] if call == "step" else [self._axes(3, "M"), "(T, M)"]
            raise ValueError(
                f"x is {found}; {call} takes {shapes[0]} or, unbatched, {shapes[1]}, with M = {M}"
            )
        if not x.is_floating_point():
            raise ValueError(
                f"x is {_name(x.dtype)}; an Ocean takes real numbers: convert them with x.float(), or put an "
                "nn.Embedding in front where they are tokens"
            )
        if x.shape[-1] != M:
            raise ValueError(
                f"x is {tuple(x.shape)}, whose last axis is {x.shape[-1]}, and this Ocean's input_size is {M}"
            )
        if call == "forward" and not x.shape[-2 if x.dim() == 2 or self.batch_first else 0]:
            raise ValueError(f"x is {tuple(x.shape)}, which has no steps; give at least one")
        self._check_dtype("x", x)
        if state is None:
            return
        if not isinstance(state, Tensor):
            raise ValueError(f"the state is a {type(state).__name__}; an Ocean's is one tensor (B, {D})")
        batched = x.dim() == axes[-1]
        rows = x.shape[0 if call == "step" or self.batch_first else 1] if batched else None
        wanted = (D,) if rows is None else (rows, D)
        if state.shape != wanted:
            hint = "initial_state(B) makes a new one"
            other = x.shape[1 if self.batch_first else 0] if call == "forward" and batched else None
            if swapped and state.shape == (other, D):
                hint = (
                    f"time and batch look swapped, as this Ocean takes {self._axes(3, 'M')}: transpose x, or build "
                    f"it with batch_first={not self.batch_first}"
                )
            elif state.shape[-1:] != (D,):
                hint = f"the width of this Ocean is {D}"
            elif state.dim() == 3:
                hint = "an Ocean has one state for all its layers, where nn.GRU has one for each"
            raise ValueError(f"the state is {tuple(state.shape)} where x needs {wanted}; {hint}")
        self._check_dtype("the state", state)
        if state.device != x.device:
            raise ValueError(
                f"the state is on {state.device} and x on {x.device}; bring them together with .to"
            )

    def _check_mask(self, name: str, mask: Tensor, x: Tensor) -> None:
        wanted = tuple(x.shape[:-1])
        if mask.shape == wanted and mask.dtype == torch.bool:
            return
        hint = ""
        if mask.dtype != torch.bool:
            hint = "; convert it with .bool()"
        elif x.dim() == 3 and mask.shape == wanted[::-1]:
            hint = f"; time and batch look swapped between x and {name}"
        raise ValueError(
            f"{name} must be bool of shape {wanted}, as x is {tuple(x.shape)}, not {_name(mask.dtype)} of shape "
            f"{tuple(mask.shape)}{hint}"
        )

    def _check_dtype(self, name: str, values: Tensor) -> None:
        """Under autocast, whose tensors have many dtypes, values are brought to that of the weights."""
        dtype = self.norm.weight.dtype
        if values.dtype != dtype and not torch.is_autocast_enabled(values.device.type):
            raise ValueError(
                f"{name} is {_name(values.dtype)} and the weights are {_name(dtype)}; convert the one or the other, "
                f"as in {name.split()[-1]}.to(torch.{_name(dtype)})"
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
