"""A state on disk: restored, it goes on as if it had never stopped; damaged, it is refused."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_runtime import OceanModel, SnapshotError
from ocean_runtime import snapshot as snapshots

tokens = st.lists(st.integers(0, 20), min_size=0, max_size=12)


@given(tokens, tokens)
@settings(deadline=None)
def test_restored_equals_never_stopped(
    tiny: OceanModel, tmp_path_factory: pytest.TempPathFactory, before: list[int], after: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "state.safetensors"
    stopped, never = tiny.stream(), tiny.stream()
    stopped.run(before)
    never.run(before)
    stopped.save(path)
    restored = tiny.stream()
    restored.restore(path)
    assert restored.steps == never.steps == len(before)
    assert np.array_equal(restored.ocean, never.ocean)
    assert (restored.prediction is None) == (never.prediction is None) == (not before)
    assert np.array_equal(restored.run(after), never.run(after))


def test_a_snapshot_does_not_move_with_its_stream(tiny: OceanModel) -> None:
    stream = tiny.stream()
    stream.step(1)
    saved = stream.snapshot()
    expected = stream.step(2)
    stream.resume(saved)
    assert np.array_equal(stream.step(2), expected)
    stream.resume(saved)
    assert np.array_equal(stream.step(2), expected)


def test_every_flipped_byte_and_every_cut_is_found(tiny: OceanModel, tmp_path: Path) -> None:
    path, stream = tmp_path / "state", tiny.stream()
    stream.run([1, 2, 3])
    stream.save(path)
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x10]) + whole[i + 1 :])
        with pytest.raises(SnapshotError, match=r"damaged|newer than this runtime"):
            stream.restore(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SnapshotError, match="damaged"):
            stream.restore(path)
    assert stream.steps == 3


def test_another_models_state_is_refused_and_both_are_named(tiny: OceanModel, tmp_path: Path) -> None:
    stream = tiny.stream()
    stream.step(1)
    foreign = dataclasses.replace(stream.snapshot(), state_id="sha256:0123456789abcdef")
    snapshots.write(foreign, tmp_path / "state")
    with pytest.raises(SnapshotError, match=rf"sha256:0123456789ab.*{tiny.contract.state_id[:19]}"):
        stream.restore(tmp_path / "state")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": {"ocean": np.zeros((1, 15), np.float32)}}, r"\[1, 15\]"),
        ({"states": {"ocean": np.zeros((1, 16), np.float64)}}, "float64"),
        ({"states": {"ocean": np.full((1, 16), np.nan, np.float32)}}, "not finite"),
        ({"states": {}}, "the model has"),
        ({"steps": -1}, "can't be"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(
    tiny: OceanModel, change: dict[str, object], message: str
) -> None:
    stream = tiny.stream()
    stream.step(1)
    before = stream.ocean
    with pytest.raises(SnapshotError, match=message):
        stream.resume(dataclasses.replace(stream.snapshot(), **change))  # type: ignore[arg-type]
    assert np.array_equal(stream.ocean, before)


def test_a_missing_file_or_folder_is_one_sentence(tiny: OceanModel, tmp_path: Path) -> None:
    stream = tiny.stream()
    with pytest.raises(SnapshotError, match="no snapshot at"):
        stream.restore(tmp_path / "none")
    with pytest.raises(SnapshotError, match="no snapshot at"):
        stream.restore(tmp_path)
    with pytest.raises(SnapshotError, match=r"can't be saved .*there is no folder .*; the stream goes on"):
        stream.save(tmp_path / "missing" / "state")
    stream.step(1)


def test_a_file_that_cannot_be_made_is_named_and_not_its_temporary_one(
    tiny: OceanModel, tmp_path: Path
) -> None:
    path = tmp_path / ("x" * 250)
    with pytest.raises(SnapshotError, match="can't be saved") as refused:
        tiny.stream().save(path)
    assert path.name in str(refused.value) and ".tmp" not in str(refused.value)


def test_saving_leaves_no_other_file_behind(tiny: OceanModel, tmp_path: Path) -> None:
    for _ in range(3):
        tiny.stream().save(tmp_path / "state")
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_a_damaged_snapshot_is_passed_over_wherever_the_packages_lie(tmp_path: Path, tiny_path: Path) -> None:
    """Those of `pip install --target FOLDER` lie in no folder named site-packages."""
    (tmp_path / "vendored").mkdir()
    (tmp_path / "vendored" / "safetensors").symlink_to(Path(safetensors.__file__).parent)
    code = f"""
import sys
sys.path[:0] = {[str(tmp_path / "vendored"), *sys.path]!r}
from ocean_runtime import OceanModel
import safetensors
assert "vendored" in safetensors.__file__
stream = OceanModel.load({str(tiny_path)!r}).stream()
for steps in (1, 2):
    stream.step(3)
    stream.save("state", keep=2)
path = __import__("pathlib").Path("state")
path.write_bytes(path.read_bytes().replace(b'"dtype"', b'"dtypo"'))
print(stream.restore("state").snapshot.steps)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"1\n"
