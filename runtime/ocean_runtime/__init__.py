"""Run an exported Ocean State model: numpy and onnxruntime, no PyTorch."""

__version__ = "0.1.0"
