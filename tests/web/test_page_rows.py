"""Rows of sensors on the page: the same steps as ocean-run takes, and what is shown of them."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ocean_export.contract import attach
from ocean_runtime import Contract
from ocean_runtime import snapshot as snapshots

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install '.[dev]'")
from playwright.sync_api import Page, expect

Ask = Callable[..., Any]
Run = Callable[..., subprocess.CompletedProcess[bytes]]

NAMES = ("/imu:angular_velocity.x [rad/s]", "/joint_states:position[1]", "/odom:north [m]")


def table(rows: int, seed: int = 0, begin: int = 0) -> str:
    """What tiny_sensors.onnx reads, with cells that are missing."""
    draw = np.random.default_rng(seed)
    lines = [",".join(("note", *NAMES))]
    for i in range(begin, begin + rows):
        cells = [f"{np.sin(i / 5):.6f}", f"{draw.normal():.6f}", f"{4512345 + 0.01 * i:.4f}"]
        if i % 7 == 3:
            cells[i % 3] = ("", "NaN", "-")[i % 3]
        lines.append(",".join(('"a, ""b"""', *cells)))
    return "\n".join(lines) + "\n"


@pytest.fixture
def sensors(page: Page, tiny_path: Path) -> Page:
    page.set_input_files("#model-file", tiny_path.with_name("tiny_sensors.onnx"))
    expect(page.locator("#status")).to_have_text("tiny_sensors.onnx is loaded.")
    return page


def give(page: Page, text: str, name: str = "drive.csv") -> None:
    page.set_input_files("#rows-file", {"name": name, "mimeType": "text/csv", "buffer": text.encode()})


def test_predictions_are_those_of_ocean_run(ask: Ask, tiny_path: Path, tmp_path: Path, command: Run) -> None:
    model, path = tiny_path.with_name("tiny_sensors.onnx"), tmp_path / "drive.csv"
    text = table(60)
    path.write_text(text)
    done = command("ocean_runtime.cli", model, path)
    assert done.returncode == 0, done.stderr
    lines = list(csv.reader(io.StringIO(done.stdout.decode())))[1:]
    expected = np.array([[float(cell or "nan") for cell in line[1:]] for line in lines])
    found = ask(
        """async ({file, text}) => {
          const { Client } = await import('/js/client.js');
          const records = [];
          const client = new Client((event) => records.push(...event.records));
          await client.call('load', { bytes: Uint8Array.from(file), name: 'm.onnx' });
          await client.call('rows', { bytes: new TextEncoder().encode(text), name: 'drive.csv' });
          return records.map((r) => r.predicted && Array.from(r.predicted));
        }""",
        {"file": list(model.read_bytes()), "text": text},
    )
    assert len(found) == 60
    shown = np.array([[np.nan] * 3 if row is None else row for row in found])
    # The page shows a prediction at the row that it was made for.
    np.testing.assert_allclose(shown[1:], expected[:-1], rtol=1e-6, atol=1e-5)
    assert np.isnan(shown[0]).all()


def test_a_table_is_shown_against_the_truth(sensors: Page) -> None:
    give(sensors, table(200))
    expect(sensors.locator("#status")).to_have_text(re.compile(r"^drive.csv: 200 rows, 200 steps"))
    expect(sensors.locator("#errors tr")).to_have_count(4)
    expect(sensors.locator("#errors tr").nth(3)).to_contain_text("/odom:north")
    sensors.select_option("#quantity", label="/odom:north [m]")
    expect(sensors.locator("#prediction .u-legend")).to_contain_text("predicted")
    expect(sensors.locator("#prediction canvas")).to_be_visible()
    expect(sensors.locator("#steps")).to_have_text("200")


def test_rows_go_on_in_python_and_back(sensors: Page, tiny_path: Path, tmp_path: Path, command: Run) -> None:
    """Three parts of a table, the second of which ocean-run reads, end where the whole does."""
    model, state = tiny_path.with_name("tiny_sensors.onnx"), tmp_path / "state.safetensors"
    give(sensors, table(30))
    expect(sensors.locator("#status")).to_have_text(re.compile("30 steps"))
    with sensors.expect_download() as download:
        sensors.click("#save")
    download.value.save_as(state)
    heading, *lines = table(90).splitlines(keepends=True)
    part = "".join([heading, *lines[30:60]])
    done = command("ocean_runtime.cli", model, "-", "--state", state, stdin=part.encode())
    assert done.returncode == 0 and b"going on from step 30" in done.stderr, done.stderr
    sensors.set_input_files("#state-file", state)
    expect(sensors.locator("#status")).to_have_text("Going on from step 60 in state.safetensors.")
    give(sensors, "".join([heading, *lines[60:]]))
    expect(sensors.locator("#steps")).to_have_text("90")
    with sensors.expect_download() as download:
        sensors.click("#save")
    download.value.save_as(state)
    again = tmp_path / "whole.safetensors"
    done = command("ocean_runtime.cli", model, "-", "--state", again, stdin=table(90).encode())
    assert done.returncode == 0, done.stderr
    one, other = snapshots.read(state), snapshots.read(again)
    assert (one.steps, one.context) == (other.steps, other.context)
    for key in one.states:
        np.testing.assert_allclose(one.states[key], other.states[key], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "1,2,3\n4,5,6\n",
        table(3).replace("rad/s", "deg/s"),
        table(3).replace(NAMES[2], NAMES[1]),
        table(3) + "note,1,2\n",
        table(3) + "note,1,two,3\n",
    ],
    ids=["empty", "other columns", "numbers", "unit", "twice", "few cells", "word"],
)
def test_a_wrong_table_gets_the_runtimes_sentence(
    sensors: Page, text: str, tiny_path: Path, command: Run, tmp_path: Path
) -> None:
    path = tmp_path / "drive.csv"
    path.write_text(text)
    done = command("ocean_runtime.cli", tiny_path.with_name("tiny_sensors.onnx"), path)
    assert done.returncode == 1
    sentence = done.stderr.decode().strip().splitlines()[-1].removeprefix("ocean-run: ")
    give(sensors, text)
    expect(sensors.locator("#status.error")).to_be_visible()
    shown = sensors.locator("#status").inner_text()
    # The options of a command have no place on the page.
    assert sentence.replace(str(path), path.name).startswith(shown), (shown, sentence)


def test_classes_are_shown_as_probabilities(page: Page, tiny_path: Path) -> None:
    page.set_input_files("#model-file", tiny_path.with_name("tiny_activity.onnx"))
    expect(page.locator("#status")).to_have_text("tiny_activity.onnx is loaded.")
    expect(page.locator("#quantity option")).to_have_text(["p(rest)", "p(walk)"])
    give(page, table(20))
    expect(page.locator("#steps")).to_have_text("20")
    expect(page.locator("#prediction .u-legend")).to_contain_text("p(rest)")


def test_episodes_begin_where_ocean_run_begins_them(
    ask: Ask, tiny_path: Path, tmp_path: Path, command: Run
) -> None:
    """By gaps of the contract's clock, in another unit than the table's; and by its column of episodes."""
    proto = onnx.load(tiny_path.with_name("tiny_sensors.onnx"))
    contract = Contract.from_json(proto.metadata_props[0].value)
    model, path = tmp_path / "timed.onnx", tmp_path / "drive.csv"
    model.write_bytes(attach(proto, dataclasses.replace(contract, time="stamp [s]", episode="run")))
    heading, *lines = table(40).splitlines()
    # 20 rows a second; a gap before row 11, a step back before row 21, a repeated time at 26, another run at row 31.
    stamps = [50.0 * i + 5000 * (10 <= i < 20) for i in range(40)]
    stamps[25] = stamps[24]
    rows = [f"{stamp},{i // 30},{line}" for i, (stamp, line) in enumerate(zip(stamps, lines, strict=True))]
    text = "\n".join([f"stamp [ms],run,{heading}", *rows]) + "\n"
    path.write_text(text)
    done = command("ocean_runtime.cli", model, path)
    assert done.returncode == 0, done.stderr
    expected = [line[-3:] for line in csv.reader(io.StringIO(done.stdout.decode()))][1:]
    found = ask(
        """async ({file, text}) => {
          const { Model } = await import('/js/stream.js');
          const { Rows } = await import('/js/rows.js');
          const rows = new Rows(await Model.load(Uint8Array.from(file), 'm.onnx'));
          const oceans = [];
          const told = await rows.read(new TextEncoder().encode(text), 'drive.csv', (record) => {
            oceans.push(record.ocean && Array.from(rows.inUnits(rows.stream.prediction)));
            return true;
          });
          return [oceans, told];
        }""",
        {"file": list(model.read_bytes()), "text": text},
    )
    steps, told = found
    assert (told["rows"], told["steps"], told["episodes"]) == (
        40,
        sum(cells[0] != "" for cells in expected),
        3,
    )
    for mine, theirs in zip(steps, expected, strict=True):
        assert (mine is None) == (theirs[0] == "")
        if mine is not None:
            np.testing.assert_allclose(mine, np.array(theirs, float), rtol=1e-6, atol=1e-5)


def test_times_are_read_as_dates_and_in_their_unit(ask: Ask) -> None:
    times = ask(
        """async (text) => {
          const { Table, element } = await import('/js/table.js');
          const table = new Table(new TextEncoder().encode(text), 't.csv');
          const clock = table.clock(element('stamp [s]'));
          return Array.from(table.rows(), ([n, row]) => clock(n, row));
        }""",
        "stamp [ms],x\r\n1000,1\r\n2026-12-07T08:00:00.5Z,2\r\n2500,3",
    )
    assert times == [1.0, 1796630400.5, 2.5]
