"""53 ways to write one table: each gives the right numbers, or a sentence that says what is wrong."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import dialects
import numpy as np
import pytest
from numpy.typing import NDArray
from ocean_runtime import OceanModel
from ocean_runtime.cli import main as run
from ocean_runtime.dialect import parse_options
from ocean_train.cli import main as train
from ocean_train.logs import Request, read_log
from small_models import scalar_model

DOCS = Path(__file__).parents[2] / "docs" / "dialects.md"


def expected(case: dialects.Case) -> NDArray[np.float64]:
    """(n, 2) what training should read: a missing value is the last before it."""
    rows = np.array(dialects.truth())[:, 1:]
    for i in case.missing:
        rows[i, 0] = rows[i - 1, 0]
    return rows


def asked(case: dialects.Case, path: Path, options: tuple[str, ...]) -> list[str]:
    return ["--time", case.time, *(word for option in options for word in ("--csv", option))]


def check_values(
    case: dialects.Case, path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> str:
    """Both commands read the truth -> what the preview says."""
    log = read_log(Request((path,), time=case.time, dialect=parse_options(options)))
    np.testing.assert_array_equal(log.rows, expected(case))
    assert [item.name for item in log.features] == ["a", "b"] and log.rate_hz == 50.0
    assert train(["--log", str(path), *asked(case, path, options), "--preview"]) == 0
    said = capsys.readouterr().out
    model = scalar_model(path.parent)
    assert run([str(model), str(path), *asked(case, path, options)]) == 0
    found = [
        [float(n) for n in row[-3:]] for row in list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:]
    ]
    stream = OceanModel.load(model).stream()
    wanted = [np.concatenate(list(stream.step_all(x).values())[:2]) for x in expected(case)]
    np.testing.assert_array_equal(found, wanted)
    return said


@pytest.mark.parametrize("case", dialects.cases(), ids=lambda case: case.name)
def test_a_dialect_is_read_right_or_refused(
    case: dialects.Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{case.name}.csv"
    path.write_bytes(case.content)
    if case.options or not case.refused:
        check_values(case, path, case.options, capsys)
    if not case.refused:
        return
    preview = ["--log", str(path), *asked(case, path, ()), "--preview"]
    if case.wrong:  # nobody can tell whether it is: it is said
        assert train(preview) == 0
        assert case.refused in capsys.readouterr().out
        return
    for command, line in (
        (train, preview),
        (run, [str(scalar_model(tmp_path)), str(path), *asked(case, path, ())]),
    ):
        assert command(line) == 1
        said = capsys.readouterr().err
        expected_by = (command is run and case.refused_by_run) or case.refused
        assert expected_by in said and len(said.splitlines()) == 1


def test_the_table_in_the_docs_is_what_was_tested() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert dialects.table() in text and f"{len(dialects.cases())} ways" in text
