"""A checkpoint on disk: a folder that a crash at any instant leaves whole.

    checkpoint.json                        the pointer: everything but tensors, and which files hold those
    weights-<step>-<digest>.safetensors    the model's state_dict
    optimizer-<step>-<digest>.safetensors  the optimizer's, and the state carried between windows
    best-<step>-<digest>.safetensors       the weights with the best validation result so far, where they are others
    heldout-<digest>.safetensors           validation data, for export to measure on: `tokens` (N,) int64, or
                                           `observations` (N, M), `targets` (N, K), `reset` (N,)

Tensor files are written first, each under a name that its content decides, so that no file in use is ever
written to. Then checkpoint.json is replaced in one rename: before it the old checkpoint is the valid one,
after it the new one. Files that no pointer names (the previous step's, and leftovers of a crash) are removed
once the new pointer is on disk. No pickle anywhere.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ocean_runtime import __version__
from ocean_runtime.files import as_path, write_atomically
from ocean_runtime.tokenizer import Tokenizer
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of_bytes
from safetensors.torch import save as bytes_of_tensors
from torch import Tensor

from ocean_train.model import OceanConfig, OceanTransformer
from ocean_train.observations import Observations

FORMAT = 1
POINTER = "checkpoint.json"
LOCK = ".ocean-train.lock"
HELDOUT_STEPS = 16_384
POINTER_LIMIT = 64 * 2**20
_PARTS = ("weights", "optimizer", "heldout")
# Exactly the names that `save` gives and the temporary files beside them: the user's own files are not touched.
_TENSORS = r"((weights|optimizer|best)-[0-9]+|heldout)-[0-9a-f]{12}\.safetensors"
_OURS = re.compile(rf"{_TENSORS}|\.({_TENSORS}|checkpoint\.json)\.[a-z0-9_]{{8}}\.tmp")


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or of a newer format; the message says what would help."""


class HeldError(CheckpointError):
    """Another process is writing to the folder."""


def _versions() -> dict[str, str]:
    """Versions of what a run depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "oceanstate": __version__,
    }


@cache
def _git_commit() -> str | None:
    """Commit of the checkout that holds this package, `-dirty` where it had changes; None outside one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


@dataclass(frozen=True)
class Checkpoint:
    """All that a training run is at one step: enough to resume it exactly, and to export the model."""

    config: OceanConfig
    weights: Mapping[str, Tensor]
    """The model's state_dict."""
    optimizer: Mapping[str, Tensor]
    """`<slot>.<parameter>` for each tensor of the optimizer; with streams `carried` too, the state (B, D)."""
    heldout: Tensor
    """Validation data in order, N at most HELDOUT_STEPS: token ids (N,) int64, or observations (N, M) float64."""
    tokenizer: Tokenizer | None
    """Of a model of tokens."""
    step: int
    """Training steps done, skipped ones included."""
    seed: int
    """Weights and batches follow from the seed and the step, so no other random state is needed to resume."""
    regime: str
    settings: Mapping[str, Any]
    """The training settings, as JSON values."""
    data: Mapping[str, str]
    """`name` of the text and the `sha256` of its prepared form."""
    history: tuple[Mapping[str, float | None], ...] = ()
    """One entry a measurement: `step`, `train_loss`, `window_loss`, `stream_loss` (nats a token)."""
    best: Mapping[str, Tensor] | None = None
    """The state_dict with the best validation result so far; None where that is `weights`."""
    best_step: int | None = None
    """After how many steps it was measured."""
    validation_loss: float | None = None
    """The validation loss of the best weights; before a measurement None."""
    skipped: int = 0
    """Steps whose gradient was not finite, so that the weights stayed as they were."""
    model_kind: str = "ocean"
    observations: Observations | None = None
    """Of a model of features: what its numbers mean."""
    heldout_targets: Tensor | None = None
    """Of a model of features: (N, K) float64, for classes their numbers (N, 1)."""
    heldout_reset: Tensor | None = None
    """Of a model of features: (N,) bool, where an episode begins."""
    versions: Mapping[str, str] = field(default_factory=_versions)
    git_commit: str | None = field(default_factory=_git_commit)
    """Commit of the checkout this ran from, `-dirty` where it had changes; None outside one."""
    weights_sha256: str = ""
    """Digest of the file of the best weights; filled in by `load`."""

    @property
    def best_weights(self) -> Mapping[str, Tensor]:
        """The state_dict with the best validation result: what is exported."""
        return self.weights if self.best is None else self.best

    def model(self) -> OceanTransformer:
        """The model with the best weights; raises CheckpointError where they do not fit the configuration."""
        if self.model_kind != "ocean":
            raise CheckpointError(
                f"this checkpoint holds a {self.model_kind!r} model, not an Ocean Transformer"
            )
        weights = self.best_weights
        if self.config.layers > len(weights):
            raise CheckpointError(
                f"the weights do not hold {self.config.layers} layers; the checkpoint is damaged"
            )
        try:
            with torch.device("meta"):  # no memory is taken for sizes that the weights do not have
                model = OceanTransformer(self.config, seed=None)
            model.load_state_dict({name: w.clone() for name, w in weights.items()}, assign=True)
        except RuntimeError:
            raise CheckpointError(
                f"the weights do not fit {self.config}; the checkpoint is damaged"
            ) from None
        return model


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold `folder` (made if missing) against a second run, whose save would remove this one's files.

    Raises HeldError where another process holds it, CheckpointError where it cannot be written. The lock ends with the
    process, however that dies; its empty file stays, as removing it would let two runs in.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("ab")
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be written ({error.strerror}); give a folder of your own with --out"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(
                f"another ocean-train is writing to {folder}; wait for its end, or give another --out"
            ) from None
        yield


def save(folder: Path | str, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` into `folder` (made if missing) in place of the one there.

    Raises OSError where the disk is full or the folder cannot be written; the old checkpoint is then whole.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "weights": _write_tensors(folder, f"weights-{checkpoint.step}", checkpoint.weights),
        "optimizer": _write_tensors(folder, f"optimizer-{checkpoint.step}", checkpoint.optimizer),
        "heldout": _write_tensors(folder, "heldout", _heldout_tensors(checkpoint)),
    }
    if checkpoint.best is not None:
        files["best"] = _write_tensors(folder, f"best-{checkpoint.best_step}", checkpoint.best)
    values = {
        "format": FORMAT,
        "model": {"kind": checkpoint.model_kind, "config": checkpoint.config.to_dict()},
        "regime": checkpoint.regime,
        "settings": dict(checkpoint.settings),
        "step": checkpoint.step,
        "seed": checkpoint.seed,
        "skipped": checkpoint.skipped,
        "best_step": checkpoint.best_step,
        "validation_loss": checkpoint.validation_loss,
        "data": dict(checkpoint.data),
        "tokenizer": checkpoint.tokenizer.to_dict() if checkpoint.tokenizer else None,
        "observations": checkpoint.observations.to_dict() if checkpoint.observations else None,
        "history": [dict(entry) for entry in checkpoint.history],
        "versions": dict(checkpoint.versions),
        "git_commit": checkpoint.git_commit,
        "files": files,
    }
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(folder / POINTER, text.encode())
    named = {entry["name"] for entry in files.values()}
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name) and path.name not in named:
            path.unlink(missing_ok=True)


def load(folder: Path | str) -> Checkpoint:
    """Read `folder`; raises CheckpointError where it is missing, damaged or of a newer format."""
    folder = as_path(folder, CheckpointError, "the checkpoint")
    values = _read_pointer(folder)
    found = values.get("format")
    if not isinstance(found, int) or isinstance(found, bool):
        raise CheckpointError(f"{folder / POINTER} states no format; it is not a checkpoint of ocean-train")
    if found > FORMAT:
        raise CheckpointError(
            f"{folder} is a checkpoint of format {found}, and this version reads format {FORMAT}; "
            "upgrade with: pip install -U oceanstate"
        )
    try:
        parts = (*_PARTS, *(("best",) if "best" in values["files"] else ()))
        files = {part: _file_entry(values["files"][part], part) for part in parts}
        tensors = {part: _read_tensors(folder, *files[part]) for part in parts}
        config = OceanConfig(**values["model"]["config"])
        tokenizer, observations = None, None
        if config.kind == "tokens":
            tokenizer = Tokenizer.from_dict(values["tokenizer"])
        else:
            observations = Observations.from_dict(values["observations"])
        _check_fit(config, tokenizer, observations)
        for name, weight in (*tensors["weights"].items(), *tensors.get("best", {}).items()):
            if weight.dtype != torch.float32:
                raise CheckpointError(
                    f"the weight {name} is {weight.dtype}, not float32; the checkpoint is damaged"
                )
        heldout = tensors["heldout"]
        return Checkpoint(
            config=config,
            weights=tensors["weights"],
            optimizer=tensors["optimizer"],
            heldout=_heldout(heldout, config),
            tokenizer=tokenizer,
            observations=observations,
            heldout_targets=heldout.get("targets"),
            heldout_reset=heldout.get("reset"),
            step=_whole(values["step"], "step"),
            seed=_whole(values["seed"], "seed"),
            regime=str(values["regime"]),
            settings=dict(values["settings"]),
            data={str(key): str(value) for key, value in values["data"].items()},
            history=tuple(dict(entry) for entry in values["history"]),
            best=tensors.get("best"),
            best_step=None if values.get("best_step") is None else _whole(values["best_step"], "best_step"),
            validation_loss=None if values["validation_loss"] is None else float(values["validation_loss"]),
            skipped=_whole(values["skipped"], "skipped"),
            model_kind=str(values["model"]["kind"]),
            versions=dict(values["versions"]),
            git_commit=values["git_commit"],
            weights_sha256=files["best" if "best" in files else "weights"][1],
        )
    except CheckpointError:
        raise
    except KeyError as error:
        raise CheckpointError(
            f"{folder / POINTER} lacks {error.args[0]!r}; the checkpoint is damaged"
        ) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / POINTER} is damaged: {error}") from None


def exists(folder: Path | str) -> bool:
    """Whether `folder` holds a checkpoint, whole or not."""
    return (Path(folder) / POINTER).exists()


def _write_tensors(folder: Path, stem: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    content = bytes_of_tensors({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    digest = hashlib.sha256(content).hexdigest()
    name = f"{stem}-{digest[:12]}.safetensors"
    write_atomically(folder / name, content)
    return {"name": name, "sha256": digest, "bytes": len(content)}


def _read_pointer(folder: Path) -> dict[str, Any]:
    path = folder / POINTER
    try:
        if path.stat().st_size > POINTER_LIMIT:
            raise CheckpointError(
                f"{path} is larger than {POINTER_LIMIT} bytes; it is not a checkpoint of ocean-train"
            )
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"{folder} holds no {POINTER}; give the folder that ocean-train --out wrote"
        ) from None
    except CheckpointError:
        raise
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds no JSON object; the checkpoint is damaged")
    return values


def _file_entry(entry: dict[str, Any], part: str) -> tuple[str, str, int]:
    name, digest, size = entry["name"], entry["sha256"], _whole(entry["bytes"], "bytes")
    if not (isinstance(name, str) and name.startswith(part) and re.fullmatch(_TENSORS, name)):
        raise CheckpointError(f"{name!r} is no name of a {part} file; the checkpoint is damaged")
    return name, str(digest), size


def _read_tensors(folder: Path, name: str, digest: str, size: int) -> dict[str, Tensor]:
    path = folder / name
    try:
        found = path.stat().st_size
        if found != size:  # before anything is allocated
            raise CheckpointError(
                f"{path} has {found} bytes where {size} were written; the checkpoint is damaged"
            )
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError(
            f"{path} is not what was written (its SHA-256 differs); the checkpoint is damaged"
        )
    try:
        return tensors_of_bytes(content)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is no safetensors file: {error}") from None


def _heldout_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    if checkpoint.heldout_targets is None or checkpoint.heldout_reset is None:
        return {"tokens": checkpoint.heldout}
    return {
        "observations": checkpoint.heldout,
        "targets": checkpoint.heldout_targets,
        "reset": checkpoint.heldout_reset,
    }


def _heldout(tensors: Mapping[str, Tensor], config: OceanConfig) -> Tensor:
    if config.kind == "tokens":
        tokens = tensors["tokens"]
        if tokens.dtype != torch.int64 or tokens.dim() != 1 or len(tokens) > HELDOUT_STEPS:
            raise CheckpointError(
                f"the held-out tokens are {tokens.dtype} {tuple(tokens.shape)}, not (N,) int64"
            )
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < config.inputs:
            raise CheckpointError(
                f"the held-out tokens are not all among the model's {config.inputs}; the checkpoint is damaged"
            )
        return tokens
    x, y, reset = tensors["observations"], tensors["targets"], tensors["reset"]
    fits = x.dtype == y.dtype == torch.float64 and reset.dtype == torch.bool and x.dim() == y.dim() == 2
    if not fits or x.shape[1] != config.inputs or not len(x) == len(y) == len(reset) <= HELDOUT_STEPS:
        raise CheckpointError("the held-out observations do not fit the model; the checkpoint is damaged")
    return x


def _check_fit(config: OceanConfig, tokenizer: Tokenizer | None, observations: Observations | None) -> None:
    if tokenizer is not None and config.inputs != tokenizer.size:
        raise CheckpointError(
            f"the model takes {config.inputs} tokens and the tokenizer has {tokenizer.size}; "
            "the checkpoint is damaged"
        )
    if observations is not None and (config.inputs, config.outputs, config.head) != (
        len(observations.inputs),
        len(observations.outputs),
        observations.head,
    ):
        raise CheckpointError("the observations do not fit the model's sizes; the checkpoint is damaged")


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointError(f"{name} is {value!r}, not a whole number; the checkpoint is damaged")
    return value
