"""What a model is worth on episodes that it never saw, in the units of the data.

Every episode is read from its beginning to its end with the state carried, not in windows. Baselines that
cost nothing stand beside the model: for a quantity, its last value held and its training mean; for classes,
the most frequent one. Holding the last value of a *target* column that is no input uses what the robot will
not have; it is there to show how much the column moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from ocean_runtime.tables import label

from ocean_train.baselines import Model
from ocean_train.features import Sensors, side_by_side
from ocean_train.model import position_loss
from ocean_train.observations import Array
from ocean_train.regimes import predict


@dataclass(frozen=True)
class Regression:
    """Root mean squared errors, (K,) each, over all steps of the validation episodes."""

    loss: float
    """In normalised units: what training minimises."""
    steps: int
    names: tuple[str, ...]
    rmse: Array
    hold: Array
    """Of holding the last value; at an episode's first step, which has none, of the training mean."""
    mean: Array
    """Of the training mean."""

    def entry(self) -> dict[str, float]:
        """For the history: the mean over the elements that move of RMSE / RMSE of holding."""
        moving = self.hold > 0
        return {
            "rmse_of_hold": float((self.rmse[moving] / self.hold[moving]).mean()) if moving.any() else 0.0
        }

    def __str__(self) -> str:
        wide = max(map(len, (*self.names, "element")))
        lines = [f"{'element':{wide}}        RMSE   hold last        mean   below hold"]
        for name, *errors in zip(self.names, self.rmse, self.hold, self.mean, strict=True):
            below = f"{1 - errors[0] / errors[1]:11.1%}" if errors[1] else f"{'-':>11}"
            lines.append(f"{name:{wide}} " + " ".join(f"{e:11.5g}" for e in errors) + f"  {below}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Classes:
    """How often each class was taken for which, over all steps of the validation episodes."""

    loss: float
    steps: int
    names: tuple[str, ...]
    confusion: NDArray[np.int64]
    """(classes, classes): true, said."""

    @property
    def accuracy(self) -> float:
        """Share of steps with the right class."""
        return float(np.trace(self.confusion) / self.confusion.sum())

    @property
    def f1(self) -> Array:
        """Per class 2 TP / (2 TP + FP + FN); NaN for one that neither occurred nor was said."""
        both = self.confusion.sum(0) + self.confusion.sum(1)
        with np.errstate(invalid="ignore"):
            scores: Array = 2 * np.diag(self.confusion) / both
        return scores

    @property
    def macro_f1(self) -> float:
        """The mean of the F1 scores."""
        return float(np.nanmean(self.f1))

    @property
    def most_frequent(self) -> float:
        """The accuracy of always saying the most frequent class of these episodes."""
        return float(self.confusion.sum(1).max() / self.confusion.sum())

    def entry(self) -> dict[str, float]:
        """For the history."""
        return {"accuracy": self.accuracy, "macro_f1": self.macro_f1}

    def __str__(self) -> str:
        wide = max(map(len, (*self.names, "class")))
        lines = [f"{'class':{wide}}      steps        F1"]
        for name, count, score in zip(self.names, self.confusion.sum(1), self.f1, strict=True):
            lines.append(f"{name:{wide}} {count:10,} {score:9.3f}")
        lines.append(
            f"accuracy {self.accuracy:.3f}, macro F1 {self.macro_f1:.3f} (chance {1 / len(self.names):.3f}, "
            f"the most frequent class {self.most_frequent:.3f})"
        )
        return "\n".join(lines)


def evaluate(model: Model, data: Sensors, window: int) -> Regression | Classes:
    """Read the validation episodes side by side, `window` steps at once, each carried through to its end."""
    observations = data.observations
    names = tuple(label(item) for item in observations.outputs)
    loss, steps = 0.0, 0
    confusion = np.zeros((len(names), len(names)), np.int64)
    squares = np.zeros((3, len(names)))
    device = next(model.parameters()).device
    state = None
    for places, valid in side_by_side(data.validation, window):
        inputs, targets = (tensor.to(device) for tensor in data.tensors(places))
        mask = torch.from_numpy(valid).to(device)
        outputs, state = predict(model, inputs, state, valid=mask)
        loss += float(position_loss(model.config, outputs, targets)[mask].double().sum())
        steps += int(valid.sum())
        said = outputs.cpu().double().numpy()[valid]  # (n, K)
        if observations.target == "classes":
            true = targets.cpu().numpy()[valid]
            np.add.at(confusion, (true, said.argmax(-1)), 1)
        else:
            x, y = data.pairs(places)
            estimates = observations.estimates(x[valid], said)
            for row, guess in enumerate((estimates, *_baselines(data, places, valid, x))):
                squares[row] += ((guess - y[valid]) ** 2).sum(0)
    if observations.target == "classes":
        return Classes(loss / steps, steps, names, confusion)
    return Regression(loss / steps, steps, names, *np.sqrt(squares / steps))


def _baselines(
    data: Sensors, places: NDArray[np.int64], valid: NDArray[np.bool_], x: Array
) -> Iterator[Array]:
    """What holding the last value says, and the training mean: (n, K) each."""
    observations = data.observations
    K = len(observations.outputs)
    columns = data.columns[-K:]
    mean = np.array([c.mean + c.element.reference for c in columns])
    if observations.target == "next":
        yield x[valid]
    else:
        before = data.pairs(np.maximum(places - 1, 0))[1]
        first = places == data.validation.begin[:, None]
        yield np.where(first[..., None], mean, before)[valid]
    yield np.broadcast_to(mean, (int(valid.sum()), K))
