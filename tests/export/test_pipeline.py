"""Exporting as a function: what it returns and raises, and that the command prints the same."""

import json
import subprocess
import sys
from pathlib import Path

import ocean_export
import pytest
import torch
from ocean_export import ExportReport, adopt_file, cli, export_checkpoint
from ocean_runtime import OceanModel


@pytest.fixture(scope="module")
def report(checkpoint_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    return export_checkpoint(checkpoint_folder, tmp_path_factory.mktemp("pipeline") / "m.onnx", prefill=True)


def test_the_report_says_what_was_written_and_measured(report: ExportReport) -> None:
    model = OceanModel.load(report.path)
    assert report.size_bytes == report.path.stat().st_size
    assert report.state_id == model.contract.state_id
    assert report.parity.passed and report.parity.to_dict() == {
        **model.contract.parity,
        "batches": tuple(model.contract.parity["batches"]),
    }
    assert report.prefill == report.path.with_name("m.prefill.onnx") and report.prefill.is_file()
    assert report.rounded is report.cost is report.removed is None


def test_the_report_becomes_json(report: ExportReport) -> None:
    values = json.loads(report.to_json())
    assert values["path"] == str(report.path) and values["precision"] == "fp32"
    assert values["parity"]["closed_loop"]["state"]["share"] < 1 and values["cost"] is None


def test_the_command_prints_the_report_and_nothing_else(
    checkpoint_folder: Path, report: ExportReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    assert cli.main([str(checkpoint_folder), "-o", str(path), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["path"] == str(path) and values["state_id"] == report.state_id


def test_threads_are_as_before_and_lines_are_logged_only_where_asked_for(
    checkpoint_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, lines = torch.get_num_threads(), list[str]()
    torch.set_num_threads(2)
    try:
        export_checkpoint(checkpoint_folder, tmp_path / "m.onnx", log=lines.append)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert capsys.readouterr().out == ""
    assert lines[0].startswith("largest error over") and lines[1].startswith(f"wrote {tmp_path / 'm.onnx'}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int2"}, "unknown precision 'int2'; choose fp32, int8, int4"),
        (
            {"precision": "int8", "max_loss_increase": "much"},
            "a number or a percentage, 0 or more, not 'much'",
        ),
        ({"precision": "int8", "max_loss_increase": -1}, "a number or a percentage, 0 or more, not '-1'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    checkpoint_folder: Path, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        export_checkpoint(checkpoint_folder, tmp_path / "m.onnx", **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_adoption_is_a_function_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from test_adopt import counter

    source = tmp_path / "foreign.onnx"
    source.write_bytes(counter())
    adopted = adopt_file(source, tmp_path / "adopted.onnx")
    assert OceanModel.load(adopted.path).contract == adopted.contract
    assert json.loads(adopted.to_json())["contract"]["kind"] == "raw"
    assert capsys.readouterr().out == ""
    assert cli.main(["adopt", str(source), "-o", str(tmp_path / "again.onnx"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size_bytes"] == adopted.size_bytes


def test_public_names_are_there_and_importing_the_package_loads_neither_torch_nor_onnx(
    environment: dict[str, str],
) -> None:
    for name in ocean_export.__all__:
        assert getattr(ocean_export, name).__name__ == name
    script = "import sys, ocean_export; sys.exit(bool({'torch', 'onnx'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
