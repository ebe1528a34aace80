"""Turn a checkpoint into one verified, self-describing, single-step ONNX file."""
