"""Turn a trained model into one verified, self-describing, single-step ONNX file.

    from ocean_export import adopt_file, export, export_checkpoint

- `export(module, path, inputs=..., outputs=..., states=...)`: any PyTorch module that has a `step`.
- `export_checkpoint(folder, path)`: a checkpoint of `ocean-train`, as the command `ocean-export` does.
- `export_policy(policy, path)`: a recurrent policy of rsl_rl.
- `adopt_file(source, path)`: somebody else's single-step recurrent ONNX file, as `ocean-export adopt` does.

`Tensor`, `State` and `Element` describe what a step takes and gives. Each function returns a report with
`to_json()`. PyTorch and onnx are imported when a name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocean_runtime.contract import Element, State, Tensor

    from ocean_export.adopt import AdoptError, AdoptReport, adopt_file
    from ocean_export.module import export
    from ocean_export.pipeline import ExportError, ExportReport, export_checkpoint
    from ocean_export.policy import export_policy

__all__ = [
    "AdoptError",
    "AdoptReport",
    "Element",
    "ExportError",
    "ExportReport",
    "State",
    "Tensor",
    "adopt_file",
    "export",
    "export_checkpoint",
    "export_policy",
]

_MODULES = {
    "AdoptError": "ocean_export.adopt",
    "AdoptReport": "ocean_export.adopt",
    "Element": "ocean_runtime.contract",
    "ExportError": "ocean_export.pipeline",
    "ExportReport": "ocean_export.pipeline",
    "State": "ocean_runtime.contract",
    "Tensor": "ocean_runtime.contract",
    "adopt_file": "ocean_export.adopt",
    "export": "ocean_export.module",
    "export_checkpoint": "ocean_export.pipeline",
    "export_policy": "ocean_export.policy",
}
"""Where each public name is defined."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
