"""The report of a model: its figures are those of the file, and the page needs nothing else."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from make_tiny_sensors import tiny_sensors
from ocean_export import cli, export_checkpoint
from ocean_export.report import plot, thinned
from ocean_export.study import BEFORE, PLACES, study
from ocean_runtime import OceanModel
from ocean_runtime.sampling import log_softmax
from ocean_train import checkpoint
from ocean_train.model import OceanTransformer
from ocean_train.observations import InUnits

VOID = {"meta", "link"}


class Balanced(html.parser.HTMLParser):
    """Fails where a tag is left open, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(path: Path) -> Balanced:
    page = Balanced()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    return page


def test_the_report_is_one_file_that_needs_no_other(checkpoint_folder: Path, tmp_path: Path) -> None:
    made = export_checkpoint(checkpoint_folder, tmp_path / "m.onnx", report=tmp_path / "m.html")
    assert made.report == tmp_path / "m.html" and json.loads(made.to_json())["report"] == str(made.report)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.html", "m.onnx"]
    page = read(tmp_path / "m.html")
    content = made.report.read_text(encoding="utf-8")
    assert not re.search(r"<script|https?:|url\(|@import", content)
    assert {value for name, value in page.attributes if name in ("src", "href")} == {"data:,"}
    assert content.count("<svg") == 2
    for said in (
        f"{made.size_bytes:,} bytes",
        "two lines of Romeo and Juliet",
        "layer 2",
        "µs in the median",
    ):
        assert said in page.text


def test_the_command_writes_it_beside_the_model_or_where_it_is_told(
    checkpoint_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    assert cli.main([str(checkpoint_folder), "-o", str(model), "--report"]) == 0
    assert f"wrote {tmp_path / 'm.html'}" in capsys.readouterr().out
    assert cli.main([str(checkpoint_folder), "-o", str(model), "--report", str(tmp_path / "other.htm")]) == 0
    assert read(tmp_path / "other.htm").text
    assert (
        cli.main([str(checkpoint_folder), "-o", str(model), "--report", str(tmp_path / "no" / "a.html")]) == 1
    )
    assert "no" in capsys.readouterr().err


def test_the_figures_of_a_model_of_text_are_those_of_its_file(
    checkpoint_folder: Path, model: OceanTransformer, tmp_path: Path
) -> None:
    export_checkpoint(checkpoint_folder, tmp_path / "m.onnx")
    saved, exported = checkpoint.load(checkpoint_folder), OceanModel.load(tmp_path / "m.onnx")
    found = study(saved, exported, model)
    tokens = saved.heldout.numpy()
    assert found.steps == len(tokens) - 1
    logits = exported.stream().run(tokens[:-1].tolist())
    nats = -log_softmax(logits)[np.arange(found.steps), tokens[1:]].mean()
    assert found.scores[0].value == pytest.approx(nats, rel=1e-12)
    assert found.scores[1].value == (logits.argmax(1) == tokens[1:]).mean()
    # Of float32's rounding the state's drift is at most what verification allows.
    allowed = exported.contract.parity["closed_loop"]["state"]["allowed"]
    assert found.state_drift.shape == found.output_drift.shape == (found.steps,)
    assert 0 < found.state_drift.max() < allowed
    # The read weights, from the equations of the model's docstring.
    ocean, weights = torch.zeros(1, 16), torch.zeros(2, 2)
    with torch.no_grad():
        for token in saved.heldout[:-1]:
            x, before = model.embed(token[None]), ocean
            for layer, block in enumerate(model.blocks):
                n, m = block.norm1(x), block.norm1(before)
                q, k, k_ocean = ((w(v).view(2, 8)) for w, v in ((block.wq, n), (block.wk, n), (block.wk, m)))
                both = torch.stack([(q * k_ocean).sum(1), (q * k).sum(1)]) / 8**0.5
                weights[layer] += both.softmax(0)[0]
                x = block(x, before)
            ocean = x
    np.testing.assert_allclose(found.read_weights, weights.numpy() / found.steps, rtol=1e-4)


def test_the_influence_is_that_of_pairs_of_streams(checkpoint_folder: Path, tmp_path: Path) -> None:
    export_checkpoint(checkpoint_folder, tmp_path / "m.onnx")
    saved, exported = checkpoint.load(checkpoint_folder), OceanModel.load(tmp_path / "m.onnx")
    found = study(saved, exported, saved.model(), seed=3).influence
    assert found is not None
    tokens = saved.heldout.numpy()[:-1]
    after = len(tokens) - BEFORE - 1  # the text is short, so that every stream reads all of it
    draw = np.random.default_rng(3)
    draw.choice([0], PLACES), draw.integers(np.ones(PLACES, int))
    pairs = []
    for other in draw.integers(len(tokens), size=PLACES):
        one, two, apart = exported.stream(), exported.stream(), []
        one.run(tokens[:BEFORE]), two.run(tokens[:BEFORE])
        for t in range(BEFORE, BEFORE + after + 1):
            one.step(tokens[t]), two.step(tokens[other if t == BEFORE else t])
            apart.append(np.linalg.norm(two.ocean - one.ocean) / np.linalg.norm(one.ocean))
        pairs.append(apart)
    # Streams of a batch and single ones may round otherwise: some roundings of a state, relative to its size.
    np.testing.assert_allclose(found.distances, np.median(pairs, axis=0), rtol=1e-3, atol=64 * 2.0**-24)


@pytest.mark.parametrize("target", ["next", "columns", "classes"])
def test_the_errors_of_sensors_are_in_units(target: str, tmp_path: Path) -> None:
    tiny_sensors(tmp_path / "c", target)  # type: ignore[arg-type]
    export_checkpoint(tmp_path / "c", tmp_path / "m.onnx", report=tmp_path / "m.html")
    saved, exported = checkpoint.load(tmp_path / "c"), OceanModel.load(tmp_path / "m.onnx")
    assert saved.observations is not None and saved.heldout_targets is not None
    assert saved.heldout_reset is not None
    found = study(saved, exported, InUnits(saved.model(), saved.observations))
    stream, outputs = exported.stream(), []
    for x, begins in zip(saved.heldout.numpy()[: found.steps], saved.heldout_reset, strict=False):
        if begins:
            stream.reset()
        outputs.append(stream.step(x))
    targets = saved.heldout_targets.numpy()[: found.steps]
    page = read(tmp_path / "m.html")
    if target == "classes":
        right = (np.array(outputs).argmax(1) == targets[:, 0]).mean()
        assert found.scores[1].value == right and found.scores[1].name == "accuracy"
        return
    rmse = np.sqrt(np.square(np.array(outputs, np.float64) - targets).mean(0))
    # What is added to an output, and taken away again here, is rounded in float64 to a part of 4,512,345.
    np.testing.assert_allclose([s.value for s in found.scores], rmse, rtol=1e-5, atol=1e-8)
    for element, score in zip(saved.observations.outputs, found.scores, strict=True):
        assert (score.name, score.unit) == (element.name, element.unit)
        assert element.name in page.text and f"{score.value:.4g}" in page.text
    if target == "next":
        last = np.sqrt(np.square(saved.heldout.numpy()[: found.steps] - targets).mean(0))
        np.testing.assert_allclose([s.baseline for s in found.scores], last, rtol=1e-5, atol=1e-8)


def test_int8_reports_its_own_drift(checkpoint_folder: Path, tmp_path: Path) -> None:
    options = {"max_loss_increase": "90%", "precision": "int8"}
    export_checkpoint(checkpoint_folder, tmp_path / "m.onnx", report=tmp_path / "m.html", **options)  # type: ignore[arg-type]
    saved, exported = checkpoint.load(checkpoint_folder), OceanModel.load(tmp_path / "m.onnx")
    assert study(saved, exported, saved.model()).state_drift.max() > 1e-3
    assert "int8" in read(tmp_path / "m.html").text


def test_names_of_a_stranger_are_text(checkpoint_folder: Path, tmp_path: Path) -> None:
    saved = checkpoint.load(checkpoint_folder)
    checkpoint.save(
        tmp_path / "c", dataclasses.replace(saved, data={"name": "<script>alert(1)</script>", "sha256": ""})
    )
    export_checkpoint(tmp_path / "c", tmp_path / "<b>m.onnx", report=tmp_path / "m.html")
    content = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert "<script" not in content and "<b>" not in content
    assert "<script>alert(1)</script>" in read(tmp_path / "m.html").text


def test_no_held_out_data_is_one_sentence_and_no_file(checkpoint_folder: Path, tmp_path: Path) -> None:
    saved = checkpoint.load(checkpoint_folder)
    checkpoint.save(tmp_path / "c", dataclasses.replace(saved, heldout=saved.heldout[:1]))
    with pytest.raises(ValueError, match="holds no held-out data to report on"):
        export_checkpoint(tmp_path / "c", tmp_path / "m.onnx", report=tmp_path / "m.html")
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [0.0, 0.0],
        [1.0, 1.0, 1.0],
        [-3.0, 5.0],
        [1e-9, 1e9],
        [float("nan"), 1.0, float("inf")],
        [1e-300, 1e300],
        list(range(5000)),
    ],
    ids=str,
)
def test_any_line_is_drawn(values: list[float], log: bool) -> None:
    drawn = plot({"a": np.array(values), "b": np.array(values) / 2}, "x", "y", log=log)
    numbers = [float(n) for n in re.findall(r"[ML]([-\d.e+]+) ([-\d.e+]+)", drawn) for n in n]
    assert all(-1 <= number <= 641 for number in numbers), drawn
    assert "nan" not in drawn and "inf" not in drawn


def test_a_peak_is_not_lost_by_thinning() -> None:
    values = np.zeros(10_000)
    values[7_777] = 1
    steps, kept = thinned(values)
    assert len(kept) == 600 and steps[kept.argmax()] == 7_777
