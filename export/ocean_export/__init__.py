"""Turn a trained model into one verified, self-describing, single-step ONNX file.

    from ocean_export import adopt_file, export_checkpoint

- `export_checkpoint(folder, path)`: a checkpoint of `ocean-train`, as the command `ocean-export` does.
- `adopt_file(source, path)`: somebody else's single-step recurrent ONNX file, as `ocean-export adopt` does.

Each returns a report with `to_json()`. PyTorch and onnx are imported when a name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocean_export.adopt import AdoptError, AdoptReport, adopt_file
    from ocean_export.pipeline import ExportError, ExportReport, export_checkpoint

__all__ = [
    "AdoptError",
    "AdoptReport",
    "ExportError",
    "ExportReport",
    "adopt_file",
    "export_checkpoint",
]

_MODULES = {
    "AdoptError": "adopt",
    "AdoptReport": "adopt",
    "ExportError": "pipeline",
    "ExportReport": "pipeline",
    "adopt_file": "adopt",
    "export_checkpoint": "pipeline",
}
"""Where each public name is defined."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ocean_export.{_MODULES[name]}"), name)
