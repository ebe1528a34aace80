"""Files that a save must not destroy."""

from pathlib import Path

from ocean_ros.saver import set_aside


def test_what_was_set_aside_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    for content in ("first", "second", "third"):
        path.write_text(content)
        path.with_name(f"{path.name}.1").write_text(f"before {content}")
        told = set_aside(path, "sha256:mine", 1 << 20)
        assert len(told) == 2 and not path.exists()
    found = {p.name.removeprefix(path.name): p.read_text() for p in tmp_path.iterdir()}
    assert found == {
        **{".damaged": "first", ".damaged.1": "before first"},
        **{".damaged-2": "second", ".damaged-2.1": "before second"},
        **{".damaged-3": "third", ".damaged-3.1": "before third"},
    }
