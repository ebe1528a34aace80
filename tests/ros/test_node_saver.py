"""Files that a save must not destroy."""

from pathlib import Path

from ocean_ros.saver import set_aside
from ocean_runtime import OceanModel

TINY = Path(__file__).parents[1] / "fixtures" / "tiny.onnx"


def save_twice(path: Path, token: int) -> list[bytes]:
    """A state and the one before it, at `path` and `path`.1."""
    stream = OceanModel.load(TINY).stream()
    for _ in range(2):
        stream.step(token)
        stream.save(path, keep=2)
    return [path.read_bytes(), path.with_name(f"{path.name}.1").read_bytes()]


def test_what_was_set_aside_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    written = []
    for token in (1, 2, 3):
        written.append(save_twice(path, token))
        told = set_aside(path, "sha256:mine", 1 << 20)
        assert len(told) == 2 and not path.exists()
    found = {
        p.name.removeprefix(path.name): p.read_bytes() for p in tmp_path.iterdir() if p.suffix != ".lock"
    }
    name = "." + OceanModel.load(TINY).contract.state_id.removeprefix("sha256:")[:8]
    assert found == {
        **{name: written[0][0], f"{name}.1": written[0][1]},
        **{f"{name}-2": written[1][0], f"{name}-2.1": written[1][1]},
        **{f"{name}-3": written[2][0], f"{name}-3.1": written[2][1]},
    }


def test_what_cannot_be_read_is_set_aside_and_strangers_files_stay(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    for content in ("first", "second"):
        path.write_text(content)
        path.with_name(f"{path.name}.1").write_text("a stranger's")
        assert len(set_aside(path, "sha256:mine", 1 << 20)) == 1 and not path.exists()
    found = {p.name.removeprefix(path.name): p.read_text() for p in tmp_path.iterdir() if p.suffix != ".lock"}
    assert found == {".damaged": "first", ".damaged-2": "second", ".1": "a stranger's"}
