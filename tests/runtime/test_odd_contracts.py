"""Contracts that are valid JSON and still none that can be kept: a sentence, and no traceback, in any command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ocean_runtime import Contract, ContractError, OceanModel
from ocean_runtime.contract import MAX_DEPTH, METADATA_KEY
from ocean_runtime.sampling import sample

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


def written(model: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    proto = onnx.load(model)
    entry = next(entry for entry in proto.metadata_props if entry.key == METADATA_KEY)
    contract = json.loads(entry.value)
    change(contract)
    del proto.metadata_props[:]
    proto.metadata_props.add(key=METADATA_KEY, value=json.dumps(contract))
    onnx.save(proto, path)
    return path


def unpredicting(contract: dict[str, Any]) -> None:
    contract["outputs"][0]["predicts"] = ""


def fewer_tokens(contract: dict[str, Any]) -> None:
    contract["tokenizer"]["tokens"] = contract["tokenizer"]["tokens"][:5]


def test_deep_json_is_refused(tiny: OceanModel) -> None:
    values = json.loads(tiny.contract.to_json())
    for name in ("provenance", "parity", "normalisation"):
        Contract.from_json(json.dumps({**values, name: nested(MAX_DEPTH // 2 - 1)}))
        with pytest.raises(ContractError, match="within each other"):
            Contract.from_json(json.dumps({**values, name: nested(MAX_DEPTH // 2)}))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda c: c.update(provenance=nested(200)), ["--info"], "within each other"),
        (lambda c: c.update(provenance=nested(40)), ["--info"], ""),
        (fewer_tokens, ["--info"], "predicts one of 5 tokens"),
        (unpredicting, ["--generate", "3"], "no output that predicts the next token"),
        (unpredicting, [], ""),
    ],
)
def test_no_traceback_in_any_command(
    command: Run, tiny_path: Path, tmp_path: Path, change: Any, options: list[str], message: str
) -> None:
    path = written(tiny_path, tmp_path / "odd.onnx", change)
    done = command("ocean_runtime.cli", path, *options, stdin=b"RO")
    assert b"Traceback" not in done.stderr
    assert done.returncode == bool(message)
    assert message in done.stderr.decode()


def test_any_seed_below_2_to_64_draws() -> None:
    logits = np.zeros(9, np.float32)
    drawn = [
        [sample(logits, step=step, seed=seed) for step in range(50)] for seed in (1, 1 << 63, (1 << 64) - 1)
    ]
    assert drawn[0] != drawn[1] != drawn[2]
    for wrong in (-1, 1 << 64):
        with pytest.raises(ValueError, match=r"below 2\^64"):
            sample(logits, step=0, seed=wrong)
