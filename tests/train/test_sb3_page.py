"""docs/stable_baselines3.md: its programs run as they stand there, and their files give the policies' actions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ocean_runtime import OceanModel

PAGE = Path(__file__).parents[2] / "docs" / "stable_baselines3.md"


def test_the_programs_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sb3_contrib", reason="needs sb3-contrib: pip install sb3-contrib")
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(programs) == 4
    names: dict[str, Any] = {"STEPS": 512}
    for program in programs:
        exec(compile(program, str(PAGE), "exec"), names)  # noqa: S102
    observations = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    for file, model in (("policy.onnx", names["model"]), ("lstm.onnx", names["lstm"])):
        stream, state, start = OceanModel.load(file).stream(), None, np.ones(1, bool)
        for observation in observations:
            wanted, state = model.predict(observation, state, start, deterministic=True)
            start[:] = False
            assert stream.step(observation).argmax() == wanted
