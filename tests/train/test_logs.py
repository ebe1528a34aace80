"""Logs from disk to clean episodes: what is held, dropped, cut, refused."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bag_writer import imu, joints, number, text, write_bag
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_runtime import InputError, OceanModel
from ocean_runtime.contract import Element
from ocean_runtime.rows import step_rows
from ocean_runtime.tables import Row
from ocean_train.logs import Log, Request, read_log
from ocean_train.spool import Block, Findings, LogError, Spool

CSV = "who,stamp [s],speed [m/s],load,mode\n"


def read(path: Path, content: str | None = None, **asked: Any) -> Log:
    if content is not None:
        path.write_text(content)
    return read_log(Request((path,), **asked))


def test_every_number_that_is_nothing_else_is_a_feature(tmp_path: Path) -> None:
    log = read(tmp_path / "a.csv", CSV + "x,0,1,2,up\nx,1,3,4,up\n", episode="who", time="stamp")
    assert log.features == (Element("speed", "m/s"), Element("load"))
    assert log.target == "next" and log.outputs == log.features
    assert log.findings.ignored == ["mode"]
    np.testing.assert_array_equal(log.rows, [[1, 2], [3, 4]])
    assert log.rate_hz == 1.0


def test_a_missing_value_is_the_last_of_its_episode_and_never_a_later_one(tmp_path: Path) -> None:
    rows = "x,0,,1,a\nx,1,2,,a\nx,2,inf,nan,a\nx,3,3,5,a\ny,4,,6,a\ny,5,7,,a\n"
    log = read(tmp_path / "a.csv", CSV + rows, episode="who", time="stamp", max_age_s=9)
    np.testing.assert_array_equal(log.rows, [[2, 1], [2, 1], [3, 5], [7, 6]])
    assert log.episodes == ("a/x", "a/y") and log.starts.tolist() == [0, 3, 4]
    found = log.findings
    assert (found.missing.tolist(), found.infinite.tolist(), found.incomplete) == ([2, 3], [1, 0], 2)


def test_gaps_and_clocks_that_go_back_end_an_episode_and_repeats_are_left_out(tmp_path: Path) -> None:
    times = [0, 0.5, 0.5, 1.0, 3.0, 3.5, 2.0, 2.5]
    rows = "".join(f"x,{t},{i},0,a\n" for i, t in enumerate(times))
    log = read(tmp_path / "a.csv", CSV + rows, time="stamp")
    assert log.rows[:, 0].tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert log.starts.tolist() == [0, 3, 5, 7]
    found = log.findings
    assert (found.gaps, found.backwards, found.repeated, found.longest_gap_s) == (1, 1, 1, 2.0)


def test_units_of_time(tmp_path: Path) -> None:
    log = read(tmp_path / "a.csv", "t [ms],a\n0,1\n20,2\n40,3\n", time="t")
    assert log.rate_hz == 50
    with pytest.raises(InputError, match="the time is in 'h'; it may be in s, ms, us or ns"):
        read(tmp_path / "a.csv", "t [h],a\n0,1\n20,2\n", time="t")


@given(st.data())
@settings(deadline=None)
def test_cleaning_is_the_same_however_rows_are_cut_into_blocks(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 40))
    cell = st.sampled_from([1.0, 2.0, 3.0, np.nan, np.inf])
    values = np.array(data.draw(st.lists(st.tuples(cell, cell), min_size=n, max_size=n)))
    steps = data.draw(st.lists(st.sampled_from([0.1, 0.1, 0.0, 5.0, -1.0]), min_size=n, max_size=n))
    times = np.cumsum(steps)
    keys = data.draw(st.lists(st.sampled_from("aab"), min_size=n, max_size=n))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, n - 1)), max_size=4)) | {0, n})

    def spooled(edges: list[int]) -> tuple[Any, ...]:
        findings = Findings()
        spool = Spool(findings, 1.0)
        for a, b in pairwise(edges):
            if b > a:
                spool.add(Block(values[a:b], times[a:b], keys[a:b], None))
        if not spool.count:
            return (0,)
        rows, starts = spool.finish()
        return rows.tolist(), starts.tolist(), spool.names, findings.incomplete, findings.gaps

    whole = spooled([0, n])
    assert spooled(cuts) == whole
    if len(whole) > 1:
        assert np.isfinite(whole[0]).all()


@given(st.data())
@settings(deadline=None)
def test_ocean_run_steps_the_rows_that_training_reads(data: st.DataObject) -> None:
    model = OceanModel.load(Path(__file__).parents[1] / "fixtures" / "tiny_activity.onnx")
    cell = st.sampled_from([0.5, -1.0, 2.0, np.nan, np.inf])
    step = st.sampled_from([0.1, 0.3, 0.0, 2.0, -1.0])
    drawn = data.draw(st.lists(st.tuples(cell, cell, step, st.sampled_from("aab")), min_size=1, max_size=20))
    times = np.cumsum([d[2] for d in drawn]) + 1.7e9
    keys = [d[3] for d in drawn]
    values = np.array([d[:2] for d in drawn])
    spool = Spool(Findings(), 0.5)
    spool.add(Block(values, times, keys, None))
    read = [Row(i, times[i], keys[i], values[i].tolist()) for i in range(len(drawn))]
    found = [output for _, output in step_rows(model.stream(), read, max_age_s=0.5) if output is not None]
    expected: list[Any] = []
    if spool.count:
        rows, starts = spool.finish()
        for a, b in pairwise(starts):
            expected += list(model.stream().run(rows[a:b]))
    np.testing.assert_array_equal(np.array(found), np.array(expected))


def test_lines_of_blanks_are_no_rows(tmp_path: Path) -> None:
    for heading, rows in (("a", ["1", "2", "3"]), ("a,b", ["1,x", "2,", '"3",y'])):
        plain = read(tmp_path / "a.csv", "\n".join([heading, *rows]) + "\n", features=("a",))
        for blank in ("", "  ", "\t", "\r"):
            lines = [blank, heading, blank, rows[0], rows[1], blank, blank, rows[2], blank]
            spaced = read(tmp_path / "b.csv", "\n".join(lines) + "\n", features=("a",))
            np.testing.assert_array_equal(spaced.rows, plain.rows)
            assert spaced.sha256 == plain.sha256
    long = [f"{i % 7},1" for i in range(9000)]  # past the first block, where the quick way reads
    plain = read(tmp_path / "a.csv", "a,b\n" + "\n".join(long))
    spaced = read(tmp_path / "b.csv", "a,b\n" + "\n  \n".join(long))
    np.testing.assert_array_equal(spaced.rows, plain.rows)
    one = read(tmp_path / "c.csv", "a\n" + "\n  \n".join(line.split(",")[0] for line in long))
    np.testing.assert_array_equal(one.rows, plain.rows[:, :1])


def test_classes_are_in_order_and_by_value_where_they_are_numbers(tmp_path: Path) -> None:
    rows = "x,0,1,10,up\nx,1,2,9,down\nx,2,3,9,up\n"
    log = read(tmp_path / "a.csv", CSV + rows, features=("speed",), classes="mode")
    assert [e.name for e in log.outputs] == ["down", "up"]
    np.testing.assert_array_equal(log.rows, [[1, 1], [2, 0], [3, 1]])
    log = read(tmp_path / "a.csv", features=("speed",), classes="load")
    assert [e.name for e in log.outputs] == ["9", "10"]


def test_columns_in_another_order_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("load,speed [m/s]\n20,10\n40,30\n")
    (tmp_path / "a.csv").write_text("speed [m/s],load\n1,2\n3,4\n")
    log = read_log(Request((tmp_path / "a.csv", tmp_path / "b.csv")))
    np.testing.assert_array_equal(log.rows, [[1, 2], [3, 4], [10, 20], [30, 40]])
    assert log.episodes == ("a", "b")


def test_an_episode_has_the_same_name_however_many_logs_there_are(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("t,who,speed\n0,x,1\n1,x,2\n2,x,3\n9,x,4\n")
    for asked, names in (
        ({}, ("a",)),
        ({"time": "t"}, ("a", "a#2")),
        ({"episode": "who"}, ("a/x",)),
        ({"episode": "who", "time": "t"}, ("a/x", "a/x#2")),
    ):
        request = {"features": ("speed",), "max_age_s": 2.0, **asked}
        assert read(tmp_path / "a.csv", **request).episodes == names
        both = read_log(Request((tmp_path / "a.csv", tmp_path / "b.csv"), **request)).episodes
        assert both == (*names, *(name.replace("a", "b") for name in names))
    bag = write_bag(tmp_path / "bag", [(0.1 * i, "/imu", imu((i, 0, 0))) for i in range(9)])
    found = read(bag, features=("/imu:angular_velocity.x",), rate_hz=10)
    assert found.episodes == ("bag/1",)


def test_npz_arrays_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(
        path, **{"imu": np.arange(8.0).reshape(4, 2), "speed [m/s]": np.arange(4)}, who=np.array(list("aabb"))
    )
    log = read(path, episode="who")
    assert log.features == (Element("imu[0]"), Element("imu[1]"), Element("speed", "m/s"))
    assert log.starts.tolist() == [0, 2, 4]
    np.testing.assert_array_equal(log.rows[:, 2], [0, 1, 2, 3])


def test_npz_with_pickled_objects_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([{}, {}], object))
    with pytest.raises(LogError, match="without pickle"):
        read(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 but no zip")
    with pytest.raises(LogError, match=r"can't be read as \.npz"):
        read(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", a=np.zeros(3), b=np.zeros(4))
    with pytest.raises(LogError, match="arrays of one length"):
        read(tmp_path / "c.npz")


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_bags_with_a_class_and_a_gap(tmp_path: Path, storage: str) -> None:
    messages = [(t, "/imu", imu((t, 0, 0))) for t in np.arange(0, 6, 0.02) if not 2 < t < 4]
    messages += [(t, "/mode", number(float(t > 1))) for t in np.arange(0, 6, 0.1)]
    bag = write_bag(tmp_path / "bag", sorted(messages, key=lambda m: m[0]), storage)
    log = read(
        bag, features=("/imu:angular_velocity.x [rad/s]",), classes="/mode:data", rate_hz=50, max_age_s=0.5
    )
    assert log.features == (Element("/imu:angular_velocity.x", "rad/s"),)
    assert [e.name for e in log.outputs] == ["0", "1"]
    assert len(log.episodes) == 2 and log.findings.gaps == 1
    assert log.findings.longest_gap_s == pytest.approx(2.0, abs=0.05)
    np.testing.assert_array_equal(log.rows[:60, 1], log.rows[:60, 0] > 1.09)  # the next of /mode after 1.0
    assert "/imu (50 Hz" in log.findings.sources[0]


BAD = {
    "no such column": ("a,b\n1,2\n", {"features": ("c",)}, "no column 'c'; its columns are a, b"),
    "no rows": ("a,b\n", {}, "no row after its first line"),
    "nothing whole": ("a,b\n1,\n,2\n", {"episode": "a", "features": ("b",)}, None),
    "not numeric": ("a,b\n1,x\n", {"features": ("b",)}, "'x' in column 'b', which is not a number"),
    "no number at all": ("a\nx\n", {}, "no numeric column"),
    "both heads": ("a,b\n1,2\n", {"targets": ("a",), "classes": "b"}, "one head"),
    "feature and target": (
        "a,b\n1,2\n",
        {"features": ("a",), "targets": ("a",)},
        "a feature and something else",
    ),
    "one class": ("a,b\n1,x\n2,x\n", {"classes": "b"}, "'x' in every row"),
    "no class": ("a,b\n1,x\n2,\n", {"classes": "b"}, "row 2 has no class"),
    "no time": ("a,b\n1,1\n2,\n", {"time": "b"}, "row 2 has no time"),
    "slow": ("a,b\n1,0\n2,9\n3,18\n", {"time": "b"}, "longer than the maximum age of 1 s"),
    "a rate": ("a,b\n1,0\n", {"rate_hz": 9.0}, "--rate is for bags"),
    "max age": ("a,b\n1,0\n", {"max_age_s": -1.0}, "--max-age must be positive"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_log_that_will_not_do_is_one_sentence(tmp_path: Path, name: str) -> None:
    content, asked, message = BAD[name]
    if message is None:
        assert len(read(tmp_path / "a.csv", content, **asked).rows) == 1
        return
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "a.csv", content, **asked)


def test_bags_that_will_not_do(tmp_path: Path) -> None:
    messages = [(t, "/imu", imu((t, 0, 0))) for t in np.arange(0, 4, 0.02)]
    messages += [(t, "/slow", number(t)) for t in np.arange(0, 4, 0.8)]
    messages += [(t, "/joints", joints([t])) for t in np.arange(0, 4, 0.1)] + [(0.1, "/said", text("hi"))]
    bag = write_bag(tmp_path / "bag", sorted(messages, key=lambda m: m[0]))
    x, slow = "/imu:angular_velocity.x", "/slow:data"
    for asked, message in (
        ({"features": (x, slow), "rate_hz": 50, "max_age_s": 0.5}, "messages of /slow .* come every 0.8 s"),
        ({"features": ("/gps:x",), "rate_hz": 50}, "its topics are /imu, /joints, /said, /slow"),
        ({"features": (x,)}, "give the --rate"),
        ({"rate_hz": 50}, "name its --features"),
        ({"features": (x,), "rate_hz": 50, "time": "t"}, "a bag has its own clock"),
        ({"features": ("/said:data",), "rate_hz": 50}, "not a number but str"),
    ):
        with pytest.raises(ValueError, match=message):
            read(bag, **asked)
    with pytest.raises(LogError, match="there is no log at"):
        read(tmp_path / "none.csv")


def write_large(path: Path, megabytes: int) -> None:
    block = "".join(f"{i % 97},{i * 0.5:.6f},{i % 13 - 6:.9f},{i}\n" for i in range(20_000)).encode()
    with path.open("wb") as file:
        file.write(b"a,b,c,d\n")
        for _ in range(megabytes * 2**20 // len(block) + 1):
            file.write(block)


MEASURE = """
import resource, sys
from pathlib import Path
from ocean_train.features import prepare, windows
from ocean_train.logs import Request, read_log
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]), int(sys.argv[2])))
data = prepare(read_log(Request((Path(sys.argv[1]),))))
windows(data, 8, 64, 0)(3)
anonymous = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
print(len(data.log.rows), int(anonymous.split()[1]) // 1024)
"""


@pytest.mark.parametrize("megabytes", [8, pytest.param(2048, marks=pytest.mark.soak)])
def test_a_large_csv_is_read_in_bounded_memory(
    tmp_path: Path, environment: dict[str, str], megabytes: int
) -> None:
    """The address space for data is limited; the same limit serves 8 MB and 2 GB."""
    write_large(tmp_path / "large.csv", megabytes)
    limit = str(1 << 30)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "large.csv"), limit],
        capture_output=True,
        text=True,
        env={**environment, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows, anonymous = map(int, done.stdout.split())
    assert rows > megabytes * 25_000
    assert anonymous < 400, f"{anonymous} MB"
    print(f"{megabytes} MB of CSV, {rows:,} rows: {anonymous} MB of memory that is no file's")


def test_one_array_that_is_named_npz_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(8))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(LogError, match="holds one array without a name; write it by numpy"):
        read_log(Request((tmp_path / "one.npz",)))


@pytest.mark.parametrize("option", ["features", "targets"])
def test_a_column_given_twice_is_refused(tmp_path: Path, option: Any) -> None:
    path = tmp_path / "log.csv"
    path.write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(LogError, match=f"'a' is given twice in --{option}; name each column once"):
        read_log(Request((path,), **{option: ("a", "a [m]")}))
