"""The evidence: the tiny grid runs whole, a kill costs nothing, the page says what the results say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import claims
import numpy as np
import pytest
import torch
from evidence import driver, echo, page, tasks, tracking, variants
from evidence.driver import Run, Scale
from ocean_runtime import OceanModel
from ocean_train.checkpoint import Checkpoint
from ocean_train.loop import DivergedError, Settings
from ocean_train.model import OceanConfig

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_says_what_the_results_say() -> None:
    scale = claims.at_scale(quick=False)
    wanted = claims.rendered(scale, claims.known(scale))
    assert claims.PAGE.read_text() == wanted, "run `python benchmarks/claims.py --page` and commit the page"


def test_the_tiny_grid_runs_whole(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "claims.py"), "--quick", "--into", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    page = (tmp_path / "evidence.md").read_text()
    assert (tmp_path / "evidence" / "curves.png").exists()
    for heading in ("1. Universal gain", "4. Echo", "7. Generation"):
        assert f"## {heading}" in page
    scale = claims.at_scale(quick=True, into=tmp_path)
    assert all(driver.done(run, scale) for module in claims.CLAIMS.values() for run in module.runs(scale))
    trained = [r for r in map(driver.read, (tmp_path / "results").rglob("*.json")) if "trained_by" in r]
    assert trained and all(len(r["trained_by"]["weights_sha256"]) == 64 for r in trained)


def of_settings(lr: int, loss: float = 2.0) -> Run:
    return Run("c", "r", {"lr": lr, "steps": 5}, lambda folder: {"result": {"loss": loss}})


def test_a_run_of_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    scale = Scale(True, None, tmp_path / "results", tmp_path / "work")
    driver.perform([of_settings(1)], scale)
    assert driver.results([of_settings(1)], "c", scale)["r"]["result"] == {"loss": 2.0}
    for of_the_page in (False, True):
        with pytest.raises(
            driver.ResultError, match=r"a run with {'lr': 1}, not {'lr': 2}; .* remove the file and "
        ):
            driver.results([of_settings(2)], "c", scale) if of_the_page else driver.done(
                of_settings(2), scale
            )
    with pytest.raises(driver.ResultError, match="is of no run that there is"):
        driver.results([], "c", scale)


def test_a_run_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def diverges(folder: Path) -> dict[str, object]:
        raise DivergedError("the loss of step 3 is not finite")

    scale = Scale(True, None, tmp_path / "results", tmp_path / "work")
    with pytest.raises(driver.ResultError, match="1 of 2 runs failed: bad; see above"):
        driver.perform([Run("c", "bad", {}, diverges), of_settings(1)], scale)
    assert driver.done(of_settings(1), scale)
    assert "c/bad failed: the loss of step 3 is not finite" in capsys.readouterr().err


WHOLE = {
    "claim": "echo",
    "name": "ocean",
    "settings": {},
    "provenance": {"cpu": "", "torch": "", "onnxruntime": "", "python": ""},
    "result": {"loss": {"100": 1.0}},
}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"set',
        b"\xff",
        b"[]",
        b"null",
        b'{"settings": {}}',
        b"[" * 100_000,
        *(
            json.dumps(WHOLE | {part: value}).encode()
            for part, value in (
                ("name", "gru"),
                ("claim", "gain"),
                ("settings", []),
                ("provenance", {}),
                ("result", {}),
                ("result", None),
                ("result", {"loss": {"100": float("nan")}}),
            )
        ),
    ],
)
def test_a_damaged_result_is_named_in_a_sentence(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results" / "echo" / "ocean.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    for choice in ("--list", "--page"):
        said = refused(monkeypatch, capsys, "echo", "--quick", choice, "--into", tmp_path)
        assert said.startswith(f"claims.py: {path} holds no result of echo/ocean"), said


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What claims.py says as it ends with 1."""
    monkeypatch.setattr("sys.argv", ["claims.py", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        claims.main()
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()[-1]) < 400
    return said.splitlines()[-1]


def test_what_cannot_be_done_is_one_sentence_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: object) -> str:
        return refused(monkeypatch, capsys, *words)

    assert "there is no result under" in said("--quick", "--page", "--into", tmp_path / "none")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.md").write_text("years")
    assert "holds other things than a tiny grid" in said("--quick", "--into", mine)
    (tmp_path / "file").touch()
    assert "file" in said("--quick", "--into", tmp_path / "file")
    assert [path.name for path in mine.iterdir()] == ["thesis.md"]
    other = tmp_path / "other.txt"
    monkeypatch.setattr(claims, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    for content in (b"", b"another text", b"\xff"):
        other.write_bytes(content)
        told = said("gain", "--only", "gain/char-32x2-full", "--text", other, "--work", tmp_path / "work")
        assert str(other) in told and "give tiny Shakespeare's file with --text FILE" in told
    assert not (tmp_path / "page.md").exists()


def test_an_echo_whose_losses_are_lost_begins_anew(tmp_path: Path) -> None:
    scale = claims.at_scale(quick=True, into=tmp_path)
    run = next(run for run in echo.runs(scale) if run.name == "ocean")
    folder = scale.work / "echo" / "ocean"
    first = run.compute(folder)["result"]["loss"]
    stream = OceanModel.load(folder / "model.onnx").stream(batch=len(echo.SYMBOLS))
    for _ in range(500):  # a stream beyond every delay
        stream.step(np.full(len(echo.SYMBOLS), echo.BLANK))
    stream.save(folder / "stream.safetensors")
    (folder / "losses.json").write_text('{"100": ')
    assert run.compute(folder)["result"]["loss"] == first


class KilledError(Exception):
    pass


def test_a_task_goes_on_after_a_kill_as_if_nothing_had_been(tmp_path: Path) -> None:
    def fit(folder: Path, dies_at: int | None) -> Checkpoint:
        count = 0

        def draw(random: np.random.Generator, batch: int, level: int) -> tasks.Drawn:
            nonlocal count
            count += 1
            if count == dies_at:
                raise KilledError
            return echo.echo(1, echo.blanks)(random, batch, level)

        task = tasks.Task("echo", echo.ALPHABET, draw, 2 * tasks.SAVE_EVERY + 10, 1, 2, 4, batch=4)
        return tasks.fit(task, tasks.build(task, "ocean", 8, 1, 2, seed=0), "ocean", folder, seed=0)

    whole = fit(tmp_path / "whole", None)
    with pytest.raises(KilledError):
        fit(tmp_path / "killed", tasks.SAVE_EVERY + 20)
    resumed = fit(tmp_path / "killed", None)
    assert resumed.step == whole.step and resumed.history == whole.history
    assert all(torch.equal(resumed.weights[name], w) for name, w in whole.weights.items())


def test_the_word_problem_is_that_of_s5() -> None:
    table = tracking.PRODUCT
    assert len(table) == 120 and all(len(set(row)) == 120 for row in table.tolist())
    assert (table != table.T).any(), "S5 does not commute"
    random = np.random.default_rng(0)
    a, b, c = random.integers(120, size=(3, 1000))
    assert np.array_equal(table[table[a, b], c], table[a, table[b, c]])
    words = random.integers(120, size=(4, 6))
    final = tracking.running(table, words)[:, -1]
    for word, product in zip(words, final, strict=True):
        things = np.arange(5)
        for element in word:
            things = tracking.GROUP[element][things]
        assert np.array_equal(things, tracking.GROUP[product])
    batch = tracking.word_problem(table, tracking.SWAPS)(random, 4, 6)
    assert np.array_equal(batch.targets[:, 1:] - 1, tracking.running(table, batch.inputs[:, 1:].numpy() - 1))
    assert (batch.inputs[:, 0] == 0).all() and (batch.targets[:, 0] == tasks.IGNORED).all()
    assert len(tracking.SWAPS) == 10 and (table[tracking.SWAPS, tracking.SWAPS] == 0).all(), (
        "each undoes itself"
    )


def test_echo_asks_for_more_symbols_first_and_longer_delays_then() -> None:
    draw = echo.echo(4, echo.blanks)
    for level, count, longest in ((1, 1, 1), (3, 3, 1), (4, 4, 1), (9, 4, 6)):
        delays = set()
        for seed in range(100):
            inputs, targets = draw(np.random.default_rng(seed), 2, level)
            delay = inputs.shape[1] - 2 * count
            delays.add(delay)
            assert torch.equal(targets[:, -count:], inputs[:, :count]), "the answers are the symbols in order"
            assert (inputs[:, count : count + delay] == echo.BLANK).all()
            assert (inputs[:, -count:] == echo.QUESTION).all() and (
                targets[:, :-count] == tasks.IGNORED
            ).all()
        assert delays == set(range(1, longest + 1))


def test_recall_asks_for_what_was_given() -> None:
    batch = tracking.recall(8, 8)(np.random.default_rng(0), 3, 4)
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        given = dict(zip(inputs[:8:2], inputs[1:8:2], strict=True))
        assert len(given) == 4 and targets[:8] == [tasks.IGNORED] * 8
        assert [given[key] for key in inputs[8:]] == targets[8:]


def test_rotary_positions_count_from_each_other() -> None:
    block = variants.StandardRotary(width=16, heads=2, window=64)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.manual_seed(0)).expand(2, 1, 1, 64, 8)
    scores = (block._turned(q) @ block._turned(k).mT)[0, 0]  # one query and one key, at every two positions
    for distance in (0, 1, 7, 40):
        along = scores.diagonal(-distance)
        assert torch.allclose(along, along[0].expand_as(along), atol=1e-5)
    assert scores[:, 0].std() > 0.1


def test_the_handed_token_is_the_one_before() -> None:
    embed = variants.WithTheOneBefore(30, 8)
    tokens = torch.tensor([[3, 4, 5]])
    assert torch.equal(embed(tokens)[0, 0], embed.token.weight[3])
    assert torch.equal(embed(tokens)[0, 2], embed.token.weight[5] + embed.before.weight[4])


@pytest.mark.parametrize(("start", "embedding", "ends"), [("gpt2", 0.02, 0.01), ("pytorch", 1.0, 0.072)])
def test_first_weights_of_others(start: str, embedding: float, ends: float) -> None:
    settings = Settings(model="transformer", width=64, layers=2)
    model, again = (variants.started(start, settings)(65) for _ in range(2))
    assert torch.equal(model.head.weight, again.head.weight), "the seed decides"
    assert model.embed.weight.std().item() == pytest.approx(embedding, rel=0.1)
    assert model.blocks[1].wo.weight.std().item() == pytest.approx(ends, rel=0.1)


def test_missing_runs_are_one_name_where_none_of_them_has_run() -> None:
    every = ["a-x", "a-y", "b-x", "b-y", "single"]
    assert page._together(["a-y", "b-x", "b-y", "single"], every) == ["a-y", "b-\\*", "single"]


def test_the_nearsighted_see_so_many_tokens() -> None:
    model = variants.Nearsighted(OceanConfig(30, 30, width=16, layers=2, heads=2), seed=0, seen=3)
    tokens = torch.arange(10)[None]
    changed = tokens.clone()
    changed[0, 4] = 20
    differ = (model(tokens)[0] != model(changed)[0]).any(-1)[0]
    assert differ.nonzero().flatten().tolist() == [4, 5, 6]
