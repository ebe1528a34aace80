"""Checkpoints: what goes in comes out; what is damaged is refused; a crash leaves the previous one whole."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from ocean_runtime.tokenizer import Tokenizer
from ocean_train import checkpoint as checkpoints
from ocean_train.checkpoint import POINTER, Checkpoint, CheckpointError, held, load, save
from ocean_train.model import OceanConfig, OceanTransformer


def make(step: int = 3, seed: int = 0) -> Checkpoint:
    tokenizer = Tokenizer.train("the sea — 🌊")
    model = OceanTransformer(OceanConfig(tokenizer.size, tokenizer.size, width=8), seed)
    return Checkpoint(
        config=model.config,
        weights=model.state_dict(),
        optimizer={"step.head.weight": torch.tensor(3.0), "carried": torch.ones(2, 8)},
        heldout=torch.arange(9) % tokenizer.size,
        tokenizer=tokenizer,
        step=step,
        seed=seed,
        regime="full",
        settings={"lr": 1e-3, "vocabulary": None},
        data={"name": "sea", "sha256": "0" * 64},
        history=({"step": 3, "train_loss": 1.5, "window_loss": None, "stream_loss": 1.25},),
        validation_loss=1.75,
        skipped=2,
    )


def same(a: Checkpoint, b: Checkpoint) -> bool:
    tensors = ("weights", "optimizer")
    return (
        all(
            getattr(a, part).keys() == getattr(b, part).keys()
            and all(torch.equal(getattr(a, part)[name], getattr(b, part)[name]) for name in getattr(a, part))
            for part in tensors
        )
        and torch.equal(a.heldout, b.heldout)
        and all(
            getattr(a, f.name) == getattr(b, f.name)
            for f in dataclasses.fields(Checkpoint)
            if f.name not in (*tensors, "heldout", "weights_sha256")
        )
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    saved = make()
    save(tmp_path / "new" / "folder", saved)
    loaded = load(tmp_path / "new" / "folder")
    assert same(saved, loaded)
    assert len(loaded.weights_sha256) == 64
    assert loaded.versions["torch"] == torch.__version__


def test_the_model_comes_back_and_is_its_own(tmp_path: Path) -> None:
    save(tmp_path, make(seed=5))
    loaded = load(tmp_path)
    model = loaded.model()
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(tokens)[0], OceanTransformer(loaded.config, seed=5)(tokens)[0])
    with torch.no_grad():
        model.head.weight.zero_()
    assert not torch.equal(loaded.weights["head.weight"], model.head.weight)


def test_a_save_leaves_nothing_of_the_one_before_and_nothing_else_is_touched(tmp_path: Path) -> None:
    leftover = tmp_path / ".weights-3-0123456789ab.safetensors.abcd_123.tmp"
    mine = {"notes.txt", "weights-of-mine.bin", "weights-2024.safetensors", "heldout-abc.safetensors"}
    mine |= {"optimizer-1-abc.safetensors", ".checkpoint.old.tmp"}
    for path in (leftover, *(tmp_path / name for name in mine)):
        path.write_text("x")
    save(tmp_path, make(step=3))
    save(tmp_path, make(step=6, seed=1))
    assert mine < {path.name for path in tmp_path.iterdir()}
    for name in mine:
        (tmp_path / name).unlink()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.rsplit("-", 1)[0] for name in names if name.endswith(".safetensors")] == [
        "heldout",
        "optimizer-6",
        "weights-6",
    ]
    assert len(names) == 4


class PowerCutError(Exception):
    """Stands for the process's end."""


def test_an_end_at_any_instant_of_a_save_leaves_the_old_checkpoint_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save is ended at every call that changes the disk, in turn: a whole checkpoint is there."""
    old, new = make(step=3), make(step=6, seed=1)
    fsync, replace, unlink = os.fsync, Path.replace, Path.unlink
    calls = 0

    def cut_at(limit: int) -> None:
        def counted(name: str, call: Any) -> Any:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == limit:
                    raise PowerCutError(name)
                return call(*args, **kwargs)

            return wrapped

        monkeypatch.setattr(os, "fsync", counted("fsync", fsync))
        monkeypatch.setattr(Path, "replace", counted("replace", replace))
        monkeypatch.setattr(Path, "unlink", counted("unlink", unlink))

    found = []
    for limit in range(1, 100):
        folder = tmp_path / str(limit)
        monkeypatch.undo()
        save(folder, old)
        calls = 0
        cut_at(limit)
        try:
            save(folder, new)
        except PowerCutError:
            pass
        else:
            break
        found.append(load(folder).step)
        assert same(load(folder), old if found[-1] == 3 else new)
        monkeypatch.undo()
        save(folder, new)  # the next save clears up
        assert len(list(folder.iterdir())) == 4
    assert found == sorted(found)
    assert {3, 6} == set(found)
    assert limit > 12


def edit(folder: Path, change: Any) -> None:
    values = json.loads((folder / POINTER).read_text())
    change(values)
    (folder / POINTER).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda v: v.update(format=2),
            "format 2, and this version reads format 1; upgrade with: pip install",
        ),
        (lambda v: v.pop("format"), "states no format"),
        (lambda v: v.pop("regime"), "lacks 'regime'"),
        (lambda v: v.update(step=-1), "step is -1"),
        (lambda v: v.update(step="3"), "step is '3'"),
        (lambda v: v.update(tokenizer=[]), "is damaged"),
        (lambda v: v["tokenizer"].update(tokens=["a"]), "U\\+FFFD"),
        (lambda v: v["model"]["config"].update(heads=3), "do not divide"),
        (lambda v: v["model"]["config"].update(depth=3), "is damaged"),
        (
            lambda v: v["model"]["config"].update(inputs=99, outputs=99),
            "takes 99 tokens and the tokenizer has",
        ),
        (lambda v: v["files"].update(weights=v["files"]["heldout"]), "no name of a weights file"),
        (
            lambda v: v["files"]["weights"].update(name="../weights-3.safetensors"),
            "no name of a weights file",
        ),
        (lambda v: v["files"]["weights"].update(bytes=10**15), "where 1000000000000000 were written"),
        (lambda v: v["files"]["weights"].update(sha256="0"), "its SHA-256 differs"),
        (lambda v: v["files"]["weights"].update(name="weights-9-0123456789ab.safetensors"), "No such file"),
    ],
)
def test_a_damaged_pointer_is_refused_in_one_sentence(tmp_path: Path, change: Any, sentence: str) -> None:
    save(tmp_path, make())
    edit(tmp_path, change)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"9" * 5000])
def test_a_pointer_that_is_no_json_object_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / POINTER).write_bytes(content)
    with pytest.raises(CheckpointError):
        load(tmp_path)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no checkpoint.json; give the folder"):
        load(tmp_path)
    assert not checkpoints.exists(tmp_path)


@pytest.mark.parametrize("part", ["weights", "optimizer", "heldout"])
def test_a_changed_tensor_file_is_refused(tmp_path: Path, part: str) -> None:
    save(tmp_path, make())
    (path,) = tmp_path.glob(f"{part}-*")
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=f"{len(content) - 1} bytes where {len(content)} were written"):
        load(tmp_path)
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        load(tmp_path)


@pytest.mark.parametrize("change", [{"width": 2**40, "heads": 1}, {"layers": 2**40}, {"width": 16}])
def test_sizes_that_the_weights_do_not_have_take_no_memory(tmp_path: Path, change: dict[str, int]) -> None:
    save(tmp_path, make())
    edit(tmp_path, lambda v: v["model"]["config"].update(change))
    with pytest.raises(CheckpointError, match="weights do not"):
        load(tmp_path).model()


def test_another_kind_of_model_is_named(tmp_path: Path) -> None:
    save(tmp_path, dataclasses.replace(make(), model_kind="lstm"))
    with pytest.raises(CheckpointError, match="holds a 'lstm' model"):
        load(tmp_path).model()


def test_a_folder_is_held_by_one_run_at_a_time(tmp_path: Path) -> None:
    with held(tmp_path / "run"):
        with (
            pytest.raises(CheckpointError, match="another ocean-train is writing to"),
            held(tmp_path / "run"),
        ):
            pass
        with held(tmp_path / "other"):
            pass
    with held(tmp_path / "run"):
        pass


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/nowhere")):
        with pytest.raises(CheckpointError, match=f"{folder} cannot be written"), held(folder):
            pass


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weights": {n: w.double() for n, w in make().weights.items()}}, "is torch.float64, not float32"),
        ({"heldout": torch.tensor([0, 99])}, "held-out tokens are not all among the model's"),
        ({"heldout": torch.tensor([-1])}, "held-out tokens are not all among the model's"),
    ],
)
def test_tensors_that_the_model_cannot_use_are_refused(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    save(tmp_path, dataclasses.replace(make(), **change))
    with pytest.raises(CheckpointError, match=sentence):
        load(tmp_path)


def test_what_is_no_path_is_one_sentence() -> None:
    with pytest.raises(CheckpointError, match="the checkpoint is 3, a int; give the path of a file"):
        load(3)  # type: ignore[arg-type]
