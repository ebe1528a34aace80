"""Run an exported Ocean State model: numpy and onnxruntime, no PyTorch.

model = OceanModel.load("model.onnx")
stream = model.stream()
output = stream.step(x)
stream.save("state.safetensors")
"""

from ocean_runtime.contract import Contract
from ocean_runtime.errors import (
    BusyError,
    ContractError,
    InputError,
    OceanError,
    SnapshotError,
    StateError,
)
from ocean_runtime.model import OceanModel
from ocean_runtime.snapshot import Restored, Snapshot
from ocean_runtime.stream import Counters, OceanStream
from ocean_runtime.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "BusyError",
    "Contract",
    "ContractError",
    "Counters",
    "InputError",
    "OceanError",
    "OceanModel",
    "OceanStream",
    "Restored",
    "Snapshot",
    "SnapshotError",
    "StateError",
    "Tokenizer",
    "__version__",
]
