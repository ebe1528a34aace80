"""ocean-export as its users meet it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from ocean_export import cli
from ocean_runtime import OceanModel

Run = Callable[..., subprocess.CompletedProcess[bytes]]
EXPORT = "ocean_export.cli"


@pytest.fixture(scope="module")
def exported(command: Run, checkpoint_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the command makes of the checkpoint of tiny.onnx."""
    target = tmp_path_factory.mktemp("export") / "model.onnx"
    done = command(EXPORT, checkpoint_folder, "-o", target)
    assert done.returncode == 0, done.stderr.decode()
    assert b"largest error over 1,000 steps of 20 streams at batch 1, 2, 7" in done.stdout
    return target


def test_a_checkpoint_becomes_one_file_that_runs(command: Run, exported: Path) -> None:
    assert [p.name for p in exported.parent.iterdir()] == ["model.onnx"]
    model = OceanModel.load(exported)
    model.stream().step(1)
    assert model.contract.parity["closed_loop"]["output"]["share"] < 1
    assert b"two lines of Romeo and Juliet" in command(EXPORT, "--inspect", exported).stdout


def test_state_id_is_the_same_after_every_export(exported: Path, tiny: OceanModel) -> None:
    assert OceanModel.load(exported).contract.state_id == tiny.contract.state_id


def test_a_graph_that_differs_leaves_no_file_and_exits_with_1(
    checkpoint_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from ocean_export import lean

    good = lean.lean_graph

    def bad(model: object) -> onnx.ModelProto:
        proto = good(model)  # type: ignore[arg-type]
        weight = next(w for w in proto.graph.initializer if w.name == "layer1.value.weight")
        values = onnx.numpy_helper.to_array(weight).copy()
        values[3, 3] *= 1.1
        weight.raw_data = values.tobytes()
        return proto

    monkeypatch.setattr(lean, "lean_graph", bad)
    assert cli.main([str(checkpoint_folder), "-o", str(tmp_path / "model.onnx")]) == 1
    assert list(tmp_path.iterdir()) == []
    assert "no file was written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("/nowhere", "-o", "TMP/m.onnx"), "/nowhere holds no checkpoint.json"),
        (
            ("CHECKPOINT", "-o", "/nowhere/m.onnx"),
            "/nowhere/m.onnx can't be written: there is no folder /nowhere",
        ),
        (
            ("adopt", "/no/model.onnx", "-o", "/nowhere/m.onnx"),
            "/nowhere/m.onnx can't be written: there is no folder /nowhere",
        ),
        (("--inspect", "/nowhere"), "no model file at /nowhere"),
        (("--inspect", "CHECKPOINT"), "no model file at"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    checkpoint_folder: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = {"CHECKPOINT": str(checkpoint_folder)}
    assert cli.main([named.get(a, a.replace("TMP", str(tmp_path))) for a in arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["source", "--precis", "int8"], ["adopt", "foreign.onnx", "--stat", "a:b"]]
)
def test_an_option_cut_short_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert "unrecognized arguments: --" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["torch", "onnx"])
def test_a_missing_package_is_one_sentence(
    environment: dict[str, str], checkpoint_folder: Path, tmp_path: Path, missing: str
) -> None:
    import sys

    script = (
        f"import sys; sys.modules[{missing!r}] = None\nfrom ocean_export.cli import main\n"
        f"sys.exit(main([{str(checkpoint_folder)!r}, '-o', {str(tmp_path / 'm.onnx')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == f"ocean-export: needs {missing}: pip install 'oceanstate[export]'\n"


def test_what_is_no_path_is_one_sentence(tmp_path: Path) -> None:
    from ocean_export import AdoptError, adopt_file, export_checkpoint

    for act, given in ((adopt_file, (3, tmp_path / "m.onnx")), (adopt_file, (tmp_path / "m.onnx", 3))):
        with pytest.raises(AdoptError, match="is 3, a int; give the path of a file"):
            act(*given)  # type: ignore[arg-type]
    for given in ((3, tmp_path / "m.onnx"), (tmp_path, 3)):
        with pytest.raises(ValueError, match="is 3, a int; give the path of a file"):
            export_checkpoint(*given)  # type: ignore[arg-type]
