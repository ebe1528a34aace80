"""ocean-run on arrays: .npz and Parquet give the numbers of the same rows as CSV."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ocean_runtime import InputError, OceanModel
from ocean_runtime.arrays import Arrays
from ocean_runtime.contract import Element

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
RUN = "ocean_runtime.cli"
ACTIVITY = Path(__file__).parents[1] / "fixtures" / "tiny_activity.onnx"
NAMES = ("/imu:angular_velocity.x", "/joint_states:position[1]")
START = np.datetime64("2026-12-07T08:00:00", "ns")


def columns(rows: int = 30) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """Two sensors with a hole, and a gap after row 20."""
    random = np.random.default_rng(0)
    values = random.normal(size=(rows, 2))
    values[5, 0] = np.nan
    time = 0.02 * np.arange(rows) + np.where(np.arange(rows) < 20, 0, 9)
    return {"t": time, NAMES[0]: values[:, 0], NAMES[1]: values[:, 1]}


def as_csv(path: Path, given: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]) -> Path:
    rows = zip(*(array.tolist() for array in given.values()), strict=True)
    path.write_text("\n".join([",".join(given), *(",".join(map(repr, row)) for row in rows)]) + "\n")
    return path


def write(path: Path, given: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **given)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(given), path)
    return path


@pytest.mark.parametrize("kind", [".npz", ".parquet"])
def test_arrays_give_the_numbers_of_a_csv(command: Run, tmp_path: Path, kind: str) -> None:
    given = columns()
    path = write(tmp_path / f"log{kind}", given)
    whole = command(RUN, ACTIVITY, as_csv(tmp_path / "log.csv", given), "--time", "t")
    found = command(RUN, ACTIVITY, path, "--time", "t")
    assert whole.returncode == found.returncode == 0, found.stderr.decode()
    assert found.stdout == whole.stdout and whole.stdout.count(b"\n") == 31
    no_time = command(RUN, ACTIVITY, path)
    assert no_time.returncode == 0 and no_time.stdout.splitlines()[0].startswith(b"row,class,p(rest)")


@pytest.mark.parametrize("kind", [".npz", ".parquet"])
def test_a_state_goes_on_over_two_files(command: Run, tmp_path: Path, kind: str) -> None:
    given = columns(20)
    whole = command(RUN, ACTIVITY, write(tmp_path / f"log{kind}", given), "--time", "t")
    found = []
    for i, part in enumerate((slice(0, 7), slice(7, 20))):
        path = write(tmp_path / f"part{i}{kind}", {name: array[part] for name, array in given.items()})
        done = command(RUN, ACTIVITY, path, "--time", "t", "--state", tmp_path / "state")
        assert done.returncode == 0, done.stderr.decode()
        found += [line.split(b",", 1)[1] for line in done.stdout.splitlines()[1:]]
    assert found == [line.split(b",", 1)[1] for line in whole.stdout.splitlines()[1:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({NAMES[0]: np.array(["up"] * 30)}, "in column '/imu:angular_velocity.x', which is not numeric"),
        ({"t": np.zeros(29)}, "must hold arrays of one length"),
        ({"t": np.full(30, np.nan)}, "row 1 has no time in column 't'"),
    ],
)
def test_arrays_that_will_not_do_are_one_sentence(
    command: Run,
    tmp_path: Path,
    change: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]],
    message: str,
) -> None:
    done = command(RUN, ACTIVITY, write(tmp_path / "log.npz", {**columns(), **change}), "--time", "t")
    assert done.returncode == 1 and message in done.stderr.decode()
    assert len(done.stderr.decode().splitlines()) == 1
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 cut off")
    done = command(RUN, ACTIVITY, tmp_path / "broken.npz")
    assert done.returncode == 1 and b"can't be read as .npz" in done.stderr and done.stderr.count(b"\n") == 1


def test_what_parquet_holds(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table(
        {
            "when": pyarrow.array([START, START + np.timedelta64(20, "ms")]),
            "whole": pyarrow.array([1, None], pyarrow.int32()),
            "flag": pyarrow.array([True, None]),
            "who": pyarrow.array(["a", None]).dictionary_encode(),
            "speed [m/s]": pyarrow.array([0.5, 1.5], pyarrow.float32()),
            "list": pyarrow.array([[1, 2], [3]]),
        }
    )
    parquet.write_table(table, tmp_path / "log.parquet")
    arrays = Arrays(tmp_path / "log.parquet")
    assert arrays.columns[4] == Element("speed", "m/s")
    rows = list(
        arrays.rows(
            [Element("whole"), Element("flag"), Element("speed")],
            Element("who"),
            arrays.clock(Element("when")),
        )
    )
    np.testing.assert_array_equal([row.values for row in rows], [[1, 1, 0.5], [np.nan, np.nan, 1.5]])
    assert [row.episode for row in rows] == ["a", ""]
    assert np.diff([row.time or 0.0 for row in rows]).tolist() == pytest.approx([0.02], abs=1e-6)
    with pytest.raises(InputError, match="'list', which is not numeric"):
        arrays.numbers(arrays.find(Element("list")))


def test_parquet_needs_pyarrow(command: Run, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError(name='pyarrow')\n")
    (tmp_path / "log.parquet").write_bytes(b"PAR1")
    before = environment["PYTHONPATH"]
    environment["PYTHONPATH"] = f"{tmp_path}:{before}"
    try:
        done = command(RUN, ACTIVITY, tmp_path / "log.parquet")
    finally:
        environment["PYTHONPATH"] = before
    assert done.returncode == 1
    assert (
        done.stderr.decode()
        == "ocean-run: reading Parquet needs pyarrow: pip install 'oceanstate[parquet]'\n"
    )


def test_a_broken_parquet_file_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "log.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(InputError, match="can't be read as Parquet"):
        Arrays(tmp_path / "log.parquet")


def test_the_model_of_these_tests_takes_these_names() -> None:
    assert tuple(e.name for e in OceanModel.load(ACTIVITY).contract.inputs[0].elements) == NAMES
