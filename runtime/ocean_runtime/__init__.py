"""Run an exported Ocean State model: numpy and onnxruntime, no PyTorch.

model = OceanModel.load("model.onnx")
stream = model.stream()
output = stream.step(x)
stream.save("state.safetensors")
"""

from ocean_runtime.contract import Contract
from ocean_runtime.errors import ContractError, InputError, OceanError, SnapshotError, StateError
from ocean_runtime.model import OceanModel
from ocean_runtime.snapshot import Snapshot
from ocean_runtime.stream import OceanStream
from ocean_runtime.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "Contract",
    "ContractError",
    "InputError",
    "OceanError",
    "OceanModel",
    "OceanStream",
    "Snapshot",
    "SnapshotError",
    "StateError",
    "Tokenizer",
    "__version__",
]
