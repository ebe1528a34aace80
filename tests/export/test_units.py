"""Models of sensors, exported: the normalisation is in the graph, and all numbers are in their units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from make_tiny_sensors import tiny_sensors
from ocean_export import export_checkpoint
from ocean_export.contract import state_id
from ocean_export.graph import step_graph
from ocean_export.units import in_units
from ocean_export.verify import make_trial
from ocean_runtime import OceanModel
from ocean_train import checkpoint
from ocean_train.observations import InUnits, Scaling


@pytest.mark.parametrize("target", ["next", "columns", "classes"])
def test_the_exported_file_is_the_trained_model_in_units(tmp_path: Path, target: str) -> None:
    tiny_sensors(tmp_path / "c", target)  # type: ignore[arg-type]
    export_checkpoint(tmp_path / "c", tmp_path / "m.onnx")
    saved = checkpoint.load(tmp_path / "c")
    observations = saved.observations
    assert observations is not None
    model = OceanModel.load(tmp_path / "m.onnx")
    x = saved.heldout.numpy()[:50]
    relative = torch.from_numpy(observations.relative(x).astype(np.float32))
    with torch.no_grad():
        said, _ = InUnits(saved.model(), observations)(relative[None])
    found = model.stream().run(x)
    references = np.array([e.reference for e in observations.outputs])
    np.testing.assert_allclose(found, said[0].double().numpy() + references, rtol=0, atol=2e-5)
    contract = model.contract
    assert contract.kind == "features" and contract.inputs[0].elements == observations.inputs
    assert contract.outputs[0].elements == observations.outputs
    assert contract.outputs[0].predicts == ("observation" if target == "next" else "")
    assert (contract.rate_hz, contract.max_age_s) == (20.0, 0.5)


def test_far_out_inputs_are_clipped_in_the_graph(tmp_path: Path) -> None:
    tiny_sensors(tmp_path, "classes")
    saved = checkpoint.load(tmp_path)
    assert saved.observations is not None
    export_checkpoint(tmp_path, tmp_path / "m.onnx")
    model = OceanModel.load(tmp_path / "m.onnx")
    north = saved.observations.inputs[2].reference
    far, farther = model.stream().step([1e3, 0, north]), model.stream().step([1e9, 0, north])
    np.testing.assert_array_equal(far, farther)


def test_normalisation_is_part_of_whose_state_fits(tmp_path: Path) -> None:
    tiny_sensors(tmp_path)
    saved = checkpoint.load(tmp_path)
    observations = saved.observations
    assert observations is not None
    model = saved.model()
    shifted = Scaling((0.2, *observations.input_scaling.offset[1:]), observations.input_scaling.scale)
    import dataclasses

    other = dataclasses.replace(observations, input_scaling=shifted)
    rated = dataclasses.replace(observations, rate_hz=50.0)
    assert state_id(model, observations) != state_id(model, other)
    assert state_id(model, observations) == state_id(model, rated)
    assert state_id(model, observations) != state_id(model)


def test_a_wrong_normalisation_fails_the_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_sensors(tmp_path)
    saved = checkpoint.load(tmp_path)
    assert saved.observations is not None
    graph = in_units(step_graph(saved.model()), saved.observations)
    for weight in graph.graph.initializer:
        if weight.name == "units.output_scale":
            values = onnx.numpy_helper.to_array(weight) * np.float32(1.01)
            weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    from ocean_export.contract import attach, contract_of
    from ocean_export.verify import reference, verify

    (tmp_path / "m.onnx").write_bytes(attach(graph, contract_of(saved, saved.model())))
    stepper = InUnits(saved.model(), saved.observations)
    trial = make_trial(stepper, 200, observations=saved.observations, recording=saved.heldout.numpy())
    parity = verify(OceanModel.load(tmp_path / "m.onnx"), trial, reference(stepper, trial))
    assert not parity.passed


def test_the_trial_reads_the_recording(tmp_path: Path) -> None:
    tiny_sensors(tmp_path)
    saved = checkpoint.load(tmp_path)
    assert saved.observations is not None
    stepper = InUnits(saved.model(), saved.observations)
    trial = make_trial(stepper, 400, observations=saved.observations, recording=saved.heldout.numpy())
    relative = saved.observations.relative(saved.heldout.numpy()).astype(np.float32)
    assert trial.inputs.shape == (400, 20, 3)
    np.testing.assert_array_equal(trial.inputs[:300, 0], relative)
    np.testing.assert_array_equal(trial.inputs[300:, 0], relative[:100])
    np.testing.assert_array_equal(trial.inputs[0, 10], relative[150])


@pytest.mark.parametrize("part", ["observations", "targets", "reset"])
def test_a_checkpoint_whose_held_out_rows_do_not_fit_is_refused(tmp_path: Path, part: str) -> None:
    import dataclasses

    tiny_sensors(tmp_path)
    saved = checkpoint.load(tmp_path)
    assert saved.heldout_targets is not None and saved.heldout_reset is not None
    changes = {
        "observations": {"heldout": saved.heldout[:, :2]},
        "targets": {"heldout_targets": saved.heldout_targets[:9]},
        "reset": {"heldout_reset": saved.heldout_reset.float()},
    }[part]
    checkpoint.save(tmp_path, dataclasses.replace(saved, **changes))  # type: ignore[arg-type]
    with pytest.raises(checkpoint.CheckpointError, match="do not fit the model"):
        checkpoint.load(tmp_path)
