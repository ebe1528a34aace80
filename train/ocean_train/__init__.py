"""Train Ocean Transformers with gradients through time: a layer for your own models, and the parts of `ocean-train`.

Each name is loaded when it is first used, so that importing this package loads neither PyTorch nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocean_train.checkpoint import Checkpoint, CheckpointError
    from ocean_train.checkpoint import load as load_checkpoint
    from ocean_train.loop import Settings, train
    from ocean_train.model import OceanConfig, OceanTransformer
    from ocean_train.ocean import Ocean
    from ocean_train.optimizer import learning_rate, make_optimizer, parameter_groups

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Ocean",
    "OceanConfig",
    "OceanTransformer",
    "Settings",
    "learning_rate",
    "load_checkpoint",
    "make_optimizer",
    "parameter_groups",
    "train",
]

_PLACES = {
    "Checkpoint": ("checkpoint", "Checkpoint"),
    "CheckpointError": ("checkpoint", "CheckpointError"),
    "Ocean": ("ocean", "Ocean"),
    "OceanConfig": ("model", "OceanConfig"),
    "OceanTransformer": ("model", "OceanTransformer"),
    "Settings": ("loop", "Settings"),
    "learning_rate": ("optimizer", "learning_rate"),
    "load_checkpoint": ("checkpoint", "load"),
    "make_optimizer": ("optimizer", "make_optimizer"),
    "parameter_groups": ("optimizer", "parameter_groups"),
    "train": ("loop", "train"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    value = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
