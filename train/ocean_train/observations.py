"""What the numbers of a `features` model mean, and the model that takes and gives them in their own units.

    x       an observation, (M,), in its units
    z       = clip((x - reference - offset) / scale, ±CLIP)          what the Ocean Transformer reads
    y       = head(LNf(oₜ))                                           what it gives

    target `next`      prediction of the next x:   x + change_offset + change_scale · y
    target `columns`   estimates at this step:     reference + offset + scale · y
    target `classes`   logits:                     y

`next` scales the *change* from x, so that y = 0 says "as it is now, and the mean change", which costs a loss of 1 over
the training split (less where a column never changes), and more or less elsewhere, as those rows change more or less.
Offset and scale are mean and standard deviation over the training split. The reference is zero but where
float32 has no room for a column's changes beside its size (UTM coordinates, Unix times); it is subtracted in
float64, by the runtime and by `relative` here. All else is inside the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime.contract import Element
from torch import Tensor, nn

from ocean_train.model import OceanConfig, OceanTransformer

Target = Literal["next", "columns", "classes"]
TARGETS: tuple[Target, ...] = ("next", "columns", "classes")
CLIP = 10.0
"""Standard deviations. Further out the input says no more than "far out", and can't drive the state there."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scaling:
    """An affine map of K columns: normalised = (relative - offset) / scale."""

    offset: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.offset) != len(self.scale):
            raise ValueError(f"{len(self.offset)} offsets do not fit {len(self.scale)} scales")
        if not (
            np.isfinite(self.offset).all()
            and np.isfinite(self.scale).all()
            and all(s > 0 for s in self.scale)
        ):
            raise ValueError("offsets must be finite and scales positive and finite")

    def apply(self, relative: Array) -> Array:
        """(..., K) in units -> (..., K) normalised."""
        normalised: Array = (relative - np.array(self.offset)) / np.array(self.scale)
        return normalised


@dataclass(frozen=True)
class Observations:
    """Names, units, references and normalisation of a model's inputs and outputs."""

    target: Target
    inputs: tuple[Element, ...]
    """The M features."""
    outputs: tuple[Element, ...]
    """What each output is; for classes, their names."""
    input_scaling: Scaling
    output_scaling: Scaling
    """Of the change where the target is `next`; empty for classes."""
    rate_hz: float | None = None
    max_age_s: float | None = None
    time: str = ""
    """The log's column of the time, whose gaps ended episodes; `episode` the one that said whose a row was."""
    episode: str = ""

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ValueError(
                f"unknown target {self.target!r}; choose {', '.join(TARGETS[:-1])} or {TARGETS[-1]}"
            )
        if len(self.input_scaling.scale) != len(self.inputs):
            raise ValueError("the inputs' scaling does not fit their number")
        if len(self.output_scaling.scale) != (0 if self.target == "classes" else len(self.outputs)):
            raise ValueError("the outputs' scaling does not fit their number")

    @property
    def head(self) -> Literal["regression", "classes"]:
        """The model's head."""
        return "classes" if self.target == "classes" else "regression"

    def relative(self, x: Array) -> Array:
        """Inputs (..., M) less their references, in float64."""
        return x - _references(self.inputs)

    def relative_target(self, y: Array) -> Array:
        """Targets (..., K) less their references, in float64; not for classes."""
        return y - _references(self.outputs)

    def inputs_for_model(self, x: Array) -> Array:
        """Inputs (..., M) in their units -> what the Ocean Transformer reads."""
        return np.clip(self.input_scaling.apply(self.relative(x)), -CLIP, CLIP)

    def targets_for_model(self, x: Array, y: Array) -> Array:
        """Targets (..., K) at inputs (..., M), in their units -> what the Ocean Transformer should give."""
        return self.output_scaling.apply(y - x if self.target == "next" else self.relative_target(y))

    def estimates(self, x: Array, outputs: Array) -> Array:
        """What the model gave, (..., K), at inputs (..., M), in units and float64; not for classes."""
        change = np.array(self.output_scaling.offset) + np.array(self.output_scaling.scale) * outputs
        return change + (x if self.target == "next" else _references(self.outputs))

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Observations:
        """Raises ValueError, TypeError or KeyError where the values are not of `to_dict`."""
        return cls(
            target=values["target"],
            inputs=tuple(Element(**e) for e in values["inputs"]),
            outputs=tuple(Element(**e) for e in values["outputs"]),
            input_scaling=_scaling(values["input_scaling"]),
            output_scaling=_scaling(values["output_scaling"]),
            rate_hz=values["rate_hz"],
            max_age_s=values["max_age_s"],
            time=values.get("time", ""),  # a checkpoint of 0.1.0 has neither
            episode=values.get("episode", ""),
        )

    @property
    def unit(self) -> Array:
        """(K,) how far each output varies in the training data: the scale on which its errors count."""
        if self.target == "classes":
            return np.ones(len(self.outputs))
        return np.array((self.input_scaling if self.target == "next" else self.output_scaling).scale)

    def normalisation(self) -> dict[str, Any]:
        """For the contract: what the graph does to its input and output. Part of the `state_id`."""
        return {
            "target": self.target,
            "clip": CLIP,
            "input": asdict(self.input_scaling),
            "output": asdict(self.output_scaling),
            "input_reference": [e.reference for e in self.inputs],
            "output_reference": [e.reference for e in self.outputs],
        }


class InUnits(nn.Module):
    """A model of normalised numbers as a model of observations in their units, less the references.

    This is what is evaluated and what is exported. It has the wrapped model's `step` and `forward`.
    """

    def __init__(self, model: nn.Module, observations: Observations) -> None:
        super().__init__()
        self.model = model
        self.observations = observations
        self.config: OceanConfig = cast(OceanConfig, model.config)
        given, wanted = observations.input_scaling, observations.output_scaling
        self.offset: Tensor
        self.scale: Tensor
        self.output_offset: Tensor
        self.output_scale: Tensor
        self.register_buffer("offset", torch.tensor(given.offset))
        self.register_buffer("scale", torch.tensor(given.scale))
        self.register_buffer("output_offset", torch.tensor(wanted.offset))
        self.register_buffer("output_scale", torch.tensor(wanted.scale))

    def normalise(self, x: Tensor) -> Tensor:
        """Observations (..., M) -> (..., M)."""
        return ((x - self.offset) / self.scale).clamp(-CLIP, CLIP)

    def denormalise(self, x: Tensor, y: Tensor) -> Tensor:
        """What the model gave, (..., K), at observations (..., M), in units; logits as they are."""
        if self.observations.target == "classes":
            return y
        y = self.output_offset + self.output_scale * y
        return x + y if self.observations.target == "next" else y

    def initial_ocean(self, batch: int) -> Tensor:
        """o₀ = 0, (B, D)."""
        return cast(OceanTransformer, self.model).initial_ocean(batch)

    def step(self, x: Tensor, ocean: Tensor) -> tuple[Tensor, Tensor]:
        """Observations (B, M), ocean (B, D) -> outputs (B, K) in units, next ocean."""
        y, ocean = cast(OceanTransformer, self.model).step(self.normalise(x), ocean)
        return self.denormalise(x, y), ocean

    def forward(
        self,
        x: Tensor,
        state: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Observations (B, T, M) -> outputs (B, T, K) in units, and the wrapped model's state."""
        y, state = self.model(self.normalise(x), state, reset=reset, valid=valid)
        return self.denormalise(x, y), state


Stepper = OceanTransformer | InUnits
"""What can be exported: a module with `step`, `initial_ocean` and `config`."""


def _references(elements: tuple[Element, ...]) -> Array:
    return np.array([e.reference for e in elements])


def _scaling(values: Mapping[str, Any]) -> Scaling:
    return Scaling(tuple(values["offset"]), tuple(values["scale"]))
