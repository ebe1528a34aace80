"""Verification must decide: a good export passes, a wrong weight anywhere does not."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from ocean_export.verify import BATCHES, STEPS, Errors, Parity, Step, Trial, make_trial, reference, verify
from ocean_runtime import OceanModel
from ocean_train.model import OceanTransformer


@pytest.fixture(scope="module")
def trial(model: OceanTransformer) -> Trial:
    return make_trial(model)


@pytest.fixture(scope="module")
def expected(model: OceanTransformer, trial: Trial) -> list[Step]:
    return list(reference(model, trial))


def mutants(path: Path, target: Path, count: int, seed: int = 0) -> Iterator[tuple[str, OceanModel]]:
    """`count` models, each with one weight, drawn from all of them, scaled by 1.1."""
    random = np.random.default_rng(seed)
    proto = onnx.load(path)
    del proto.metadata_props[1:]  # the seal
    weights = [
        w for w in proto.graph.initializer if w.data_type == onnx.TensorProto.FLOAT and len(w.dims) > 0
    ]
    sizes = np.array([np.prod(w.dims) for w in weights])
    for place in random.choice(int(sizes.sum()), count, replace=False):
        which = int(np.searchsorted(np.cumsum(sizes), place, side="right"))
        element = int(place - sizes[:which].sum())
        original = weights[which].raw_data
        values = onnx.numpy_helper.to_array(weights[which]).copy()
        values.reshape(-1)[element] *= 1.1
        weights[which].raw_data = values.tobytes()
        target.write_bytes(proto.SerializeToString())
        yield f"{weights[which].name}[{element}]", OceanModel.load(target)
        weights[which].raw_data = original


def test_inputs_hold_every_token_and_the_loop_is_long(model: OceanTransformer, trial: Trial) -> None:
    assert trial.inputs.shape == (STEPS, sum(BATCHES))
    assert set(trial.inputs.reshape(-1)) == set(range(model.config.inputs))
    assert np.all(np.abs(trial.ocean).max(axis=1) > 0)


def test_a_large_vocabulary_makes_the_loop_longer() -> None:
    from ocean_train.model import OceanConfig

    model = OceanTransformer(OceanConfig(501, 501, width=8, layers=1, heads=1))
    assert set(make_trial(model, steps=3).inputs.reshape(-1)) == set(range(501))


def test_a_good_export_passes(tiny: OceanModel, trial: Trial, expected: list[Step]) -> None:
    parity = verify(tiny, trial, expected)
    print(parity)
    assert parity.passed
    assert parity.largest < 1e-5


def test_no_tolerance_lets_a_nan_pass(tiny: OceanModel, trial: Trial, expected: list[Step]) -> None:
    broken = [{name: (output * np.nan, state) for name, (output, state) in step.items()} for step in expected]
    parity = verify(tiny, trial, broken)
    assert not parity.passed
    assert parity.errors["float32"]["output"].step == 1


def check_mutants(
    path: Path, target: Path, count: int, trial: Trial, expected: list[Step]
) -> tuple[int, int]:
    """How many mutants verification caught, and how many have an effect; an effect that it missed fails.

    The effect is measured apart from verification: against the unchanged file, over other inputs, as
    many. At the edge of the tolerance the two may differ, so only an effect of twice it must be caught.
    """
    original = OceanModel.load(path)
    random = np.random.default_rng(1)
    longer = Trial(
        random.integers(trial.inputs.max() + 1, size=(STEPS, sum(BATCHES))),
        random.standard_normal(trial.ocean.shape).astype(np.float32),
    )
    unchanged = list(_as_reference(original, longer))
    caught = effects = 0
    for name, mutant in mutants(path, target, count):
        found = verify(mutant, trial, expected)
        effect = verify(mutant, longer, unchanged).largest
        caught += not found.passed
        effects += effect > found.tolerance
        assert not found.passed or effect < 2 * found.tolerance, f"{name}: effect {effect:.1e} was missed"
    return caught, effects


def _as_reference(model: OceanModel, trial: Trial) -> Iterator[Step]:
    from ocean_export.verify import REFERENCES, closed_loop

    for found in closed_loop(model, trial):
        yield dict.fromkeys(REFERENCES, found)


def test_wrong_weights_are_caught(
    tiny_path: Path, tmp_path: Path, trial: Trial, expected: list[Step]
) -> None:
    caught, effects = check_mutants(tiny_path, tmp_path / "mutant.onnx", 4, trial, expected)
    assert caught >= effects > 0


@pytest.mark.soak
def test_a_hundred_wrong_weights(tiny_path: Path, tmp_path: Path, trial: Trial, expected: list[Step]) -> None:
    caught, effects = check_mutants(tiny_path, tmp_path / "mutant.onnx", 100, trial, expected)
    print(
        f"of 100 weights scaled by 1.1, {effects} change a result by more than the tolerance; {caught} were caught"
    )


def test_parity_says_where_the_error_is(tiny: OceanModel, trial: Trial, expected: list[Step]) -> None:
    parity: Parity = verify(tiny, trial, expected)
    assert "float64: state" in str(parity)
    assert f"at step {parity.errors['float64']['state'].step}" in str(parity)


def test_what_stays_the_same_hides_nothing_that_is_wrong_about_changes() -> None:
    """A height of 1,000 ± 0.1 m beside a speed of 0 ± 1 m/s: a tenth of either's deviation is an error."""
    wanted = np.array([[1000.0, 0.0], [1000.1, 1.0]])
    rounded = wanted.astype(np.float32)
    state = np.zeros((2, 3))
    for wrong, least, most in (
        (rounded - wanted, 0, 1e-5),
        (np.array([0.01, 0.0]), 9e-4, 1e-1),
        (np.array([0.0, 0.1]), 9e-2, 1.1e-1),
    ):
        errors = Errors(np.array([0.1, 1.0]))
        errors.add((wanted, state), (wanted, state))
        errors.add((wanted + wrong, state), (wanted, state))
        found = errors.largest()["output"]
        assert found.step == 2 and least <= found.largest <= most


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> tuple[OceanTransformer, Path]:
    """A model that magnifies roundings until PyTorch's own float32 leaves its float64 by a per mille."""
    from make_tiny import tiny_checkpoint
    from ocean_export import cli
    from ocean_train import checkpoint

    folder = tmp_path_factory.mktemp("wild")
    tiny_checkpoint(folder)
    saved = checkpoint.load(folder)
    weights = {
        name: w * 3 if name.endswith(("wq.weight", "wo.weight", "w2.weight")) else w
        for name, w in saved.weights.items()
    }
    checkpoint.save(folder, dataclasses.replace(saved, weights=weights))
    assert cli.main([str(folder), "-o", str(folder / "wild.onnx")]) == 0
    return checkpoint.load(folder).model(), folder / "wild.onnx"


def test_a_loop_may_drift_as_far_as_rounding_does(wild: tuple[OceanTransformer, Path]) -> None:
    model, path = wild
    trial = make_trial(model, 500)
    parity = verify(OceanModel.load(path), trial, reference(model, trial))
    assert parity.own_drift > parity.tolerance, "else this model shows nothing"
    assert f"so the loop may differ by 4 times that, {parity.allowed:.1e}" in str(parity)
    assert parity.passed and parity.one_step.largest < 1e-5


def test_a_wrong_weight_is_caught_where_the_loop_may_drift(
    wild: tuple[OceanTransformer, Path], tmp_path: Path
) -> None:
    model, path = wild
    trial = make_trial(model, 300)
    expected = list(reference(model, trial))
    for name, mutant in mutants(path, tmp_path / "mutant.onnx", 8, seed=1):
        parity = verify(mutant, trial, expected)
        moved = parity.one_step.largest
        assert moved < parity.tolerance or not parity.passed, f"{name}: {moved:.1e} was missed"
        if not parity.passed:
            assert "differs from the trained model by" in parity.failure
