"""Loading: a file must hold a contract, and keep it."""

import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ocean_runtime import Contract, ContractError, OceanModel, SnapshotError
from ocean_runtime.contract import Element


def rewritten(source: Path, target: Path, **change: Any) -> Path:
    """The file with fields of its contract changed, and not sealed."""
    proto = onnx.load(source)
    del proto.metadata_props[1:]
    contract = Contract.from_json(proto.metadata_props[0].value)
    proto.metadata_props[0].value = dataclasses.replace(contract, **change).to_json()
    onnx.save(proto, target)
    return target


def test_contract_survives_json(tiny: OceanModel) -> None:
    assert Contract.from_json(tiny.contract.to_json()) == tiny.contract


def test_contract_is_enough_to_run_the_model(tiny: OceanModel) -> None:
    contract = tiny.contract
    assert contract.kind == "tokens"
    assert contract.outputs[0].predicts == contract.inputs[0].name == "token"
    assert contract.states[0].shape == ("B", 16)
    assert contract.tokenizer is not None
    assert contract.tokenizer.decode(contract.tokenizer.encode("ROMEO:")) == "ROMEO:"
    assert contract.parity["errors"]["float64"]["state"]["largest"] < 1e-5


def test_missing_file_folder_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="no model file at"):
        OceanModel.load(tmp_path / "none.onnx")
    with pytest.raises(ContractError, match="no model file at"):
        OceanModel.load(tmp_path)
    other = tmp_path / "other.onnx"
    for content in (b"", b"hello", bytes(range(256)) * 100):
        other.write_bytes(content)
        with pytest.raises(ContractError, match=r"other\.onnx"):
            OceanModel.load(other)


@pytest.mark.parametrize("given", [3, None, b"tiny.onnx", ["tiny.onnx"]])
def test_what_is_no_path_is_one_sentence(tiny: OceanModel, given: Any) -> None:
    expected = f"is {given!r}, a {type(given).__name__}; give the path of a file"
    with pytest.raises(ContractError, match=re.escape(f"the model {expected}")):
        OceanModel.load(given)
    for act in (tiny.stream().save, tiny.stream().restore):
        with pytest.raises(SnapshotError, match=re.escape(f"the snapshot {expected}")):
            act(given)


def test_truncated_file_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    whole = tiny_path.read_bytes()
    for part in (1, 2, 3):
        cut = tmp_path / "cut.onnx"
        cut.write_bytes(whole[: len(whole) * part // 4])
        with pytest.raises(ContractError, match=r"cut\.onnx"):
            OceanModel.load(cut)


def test_a_bit_that_fell_is_found(tiny_path: Path, tmp_path: Path) -> None:
    """Most of the bits are weights: the graph would run, and give other numbers."""
    content = tiny_path.read_bytes()
    path = tmp_path / "damaged.onnx"
    random = np.random.default_rng(0)
    for place in random.integers(len(content), size=40):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(
            ContractError, match=r"damaged\.onnx is damaged, or was changed .* export it again"
        ):
            OceanModel.load(path)


def test_a_file_without_a_seal_loads(tiny_path: Path, tmp_path: Path) -> None:
    """As versions before seals wrote it, or one that was changed on purpose and whose seal was removed."""
    path = rewritten(tiny_path, tmp_path / "unsealed.onnx", rate_hz=50.0)
    assert OceanModel.load(path).contract.rate_hz == 50.0


def test_file_without_contract_says_how_to_get_one(tiny_path: Path, tmp_path: Path) -> None:
    proto = onnx.load(tiny_path)
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "bare.onnx")
    with pytest.raises(ContractError, match="no Ocean State contract; make the file with ocean-export"):
        OceanModel.load(tmp_path / "bare.onnx")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "no version"),
        (
            '{"version": 99}',
            "version 99 and this runtime reads up to 1; upgrade it: pip install -U oceanstate",
        ),
        ('{"version": 1}', "inputs"),
        ('{"version": 1, "x": NaN}', "NaN"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_json_that_is_no_contract_is_refused(text: str, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        Contract.from_json(text)


def test_contract_at_odds_with_the_graph_is_refused(
    tiny: OceanModel, tiny_path: Path, tmp_path: Path
) -> None:
    contract, target = tiny.contract, tmp_path / "odd.onnx"
    token, state = contract.inputs[0], contract.states[0]
    for change, message in (
        (
            {"inputs": (dataclasses.replace(token, name="word"),), "outputs": _unlinked(contract)},
            "an input 'token' that the contract lacks",
        ),
        ({"inputs": (dataclasses.replace(token, dtype="int32"),)}, "dtype int32, the graph int64"),
        ({"inputs": (dataclasses.replace(token, shape=()),)}, r"shape \[\], the graph \[B\]"),
        ({"states": (dataclasses.replace(state, shape=("B", 17)),)}, r"shape \[B, 17\], the graph \[B, 16\]"),
        (
            {"states": (dataclasses.replace(state, output="other"),)},
            "'ocean_next' that the contract lacks|'other'",
        ),
    ):
        with pytest.raises(ContractError, match=message):
            OceanModel.load(rewritten(tiny_path, target, **change))


def test_contract_at_odds_with_itself_is_refused(tiny: OceanModel) -> None:
    contract = tiny.contract
    token, state = contract.inputs[0], contract.states[0]
    endless = dataclasses.replace(token, shape=("B", 1), elements=(Element("a", low=-(10**400)),))
    for change, message in (
        ({"kind": "sound"}, "kind is 'sound', but this runtime knows tokens, features or raw"),
        ({"states": ()}, "no state pair"),
        ({"inputs": ()}, "at least one input"),
        ({"tokenizer": None}, "no tokenizer"),
        ({"inputs": (token, token)}, "names 'token' twice"),
        ({"inputs": (dataclasses.replace(token, dtype="int3"),)}, "choose float32"),
        ({"states": (dataclasses.replace(state, shape=("B", 0)),)}, "positive size"),
        ({"states": (dataclasses.replace(state, shape=("B", "B")),)}, "two batch axes"),
        ({"states": (dataclasses.replace(state, shape=("B", 1 << 40)),)}, "over 2"),
        ({"outputs": (dataclasses.replace(contract.outputs[0], predicts="x"),)}, "no input"),
        ({"rate_hz": 0.0}, "rate_hz must be positive and finite"),
        ({"max_age_s": 10**400}, "max_age_s must be positive and finite"),
        ({"time": "a\x1b[2J"}, "can't be printed"),
        ({"inputs": (endless,)}, "not finite"),
    ):
        with pytest.raises(ContractError, match=message):
            dataclasses.replace(contract, **change)  # type: ignore[arg-type]


def test_external_data_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    proto = onnx.load(tiny_path)
    del proto.metadata_props[1:]  # the seal
    onnx.save(
        proto,
        tmp_path / "outside.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    with pytest.raises(ContractError, match=r"outside\.onnx"):
        OceanModel.load(tmp_path / "outside.onnx")


def test_runtime_runs_where_torch_cannot_be_imported(tiny_path: Path, environment: dict[str, str]) -> None:
    script = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'onnx', 'onnxscript', 'ocean_train')));"
        "import ocean_runtime, ocean_runtime.cli;"
        f"print(ocean_runtime.OceanModel.load({str(tiny_path)!r}).stream().step(1).shape)"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_missing_onnxruntime_is_one_sentence(
    tiny_path: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    blocker = tmp_path / "onnxruntime"
    blocker.mkdir()
    (blocker / "__init__.py").write_text("raise ModuleNotFoundError('No module', name='onnxruntime')")
    path = f"{tmp_path}:{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "ocean_runtime.cli", str(tiny_path), "--info"],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert b"pip install 'oceanstate[cpu]'" in done.stderr
    assert b"Traceback" not in done.stderr


def test_model_file_may_be_moved_and_deleted_while_it_runs(tiny_path: Path, tmp_path: Path) -> None:
    copy = shutil.copy(tiny_path, tmp_path / "copy.onnx")
    model = OceanModel.load(copy)
    Path(copy).unlink()
    model.stream().step(1)


def _unlinked(contract: Contract) -> Any:
    return (dataclasses.replace(contract.outputs[0], predicts=""),)


def test_a_provider_that_onnxruntime_lacks_is_refused(tiny_path: Path) -> None:
    """onnxruntime itself would go on with the CPU."""
    with pytest.raises(ContractError, match=r"has no execution provider 'NoSuchProvider'; it has .*CPUExec"):
        OceanModel.load(tiny_path, providers=["NoSuchProvider", "CPUExecutionProvider"])
    assert OceanModel.load(tiny_path, providers=["CPUExecutionProvider"]).stream().step(0).size


@pytest.mark.parametrize("batch", [None, 3])
def test_bound_calls_are_the_graphs_own_and_share_nothing(tiny: OceanModel, batch: int | None) -> None:
    rows = batch or 1
    random, bound = np.random.default_rng(0), tiny.bound(rows)
    kept, given = [], []
    for _ in range(5):
        feed = {
            "token": random.integers(0, 20, rows),
            "ocean": random.standard_normal((rows, 16)).astype(np.float32),
        }
        given.append({name: array.copy() for name, array in feed.items()})
        kept.append(bound(feed))
        for array in feed.values():
            array[...] = 0  # the caller's own
    for feed, results in zip(given, kept, strict=True):
        for one, other in zip(results, tiny.compute(feed), strict=True):
            np.testing.assert_array_equal(one, other)
