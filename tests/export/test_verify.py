"""Verification must decide: a good export passes, a wrong weight anywhere does not."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from ocean_export.verify import ROWS, STEPS, Errors, Parity, Step, Trial, make_trial, reference, verify
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
    assert trial.inputs.shape == (STEPS, ROWS)
    assert set(trial.inputs.reshape(-1)) == set(range(model.config.inputs))
    assert ((trial.ocean != 0).all(axis=1) == (np.arange(ROWS) < ROWS // 2)).all()
    assert not trial.ocean[ROWS // 2 :].any()


def test_a_large_vocabulary_makes_the_loop_longer() -> None:
    from ocean_train.model import OceanConfig

    model = OceanTransformer(OceanConfig(501, 501, width=8, layers=1, heads=1))
    assert set(make_trial(model, steps=3).inputs.reshape(-1)) == set(range(501))


def test_a_good_export_passes(
    tiny: OceanModel, trial: Trial, expected: list[Step], record_property: Callable[[str, object], None]
) -> None:
    parity = verify(tiny, trial, expected)
    print(parity)
    record_property("share of the limit", parity.share)
    assert parity.passed
    assert parity.compared == 1 and parity.predictable_steps == STEPS
    assert max(error.allowed for error in parity.single_step.values()) < 1e-5, "a single step must stay sharp"


def test_no_allowance_lets_a_nan_pass(tiny: OceanModel, trial: Trial, expected: list[Step]) -> None:
    output, state = expected[4].wanted
    broken = [*expected[:4], expected[4]._replace(wanted=(output * np.nan, state)), *expected[5:]]
    parity = verify(tiny, trial, broken)
    assert not parity.passed
    assert parity.single_step["output"].step == 5
    assert "gives numbers that are not finite in the output in a single step, at step 5" in parity.failure


def check_mutants(
    path: Path, target: Path, count: int, trial: Trial, expected: list[Step], model: OceanTransformer
) -> tuple[int, int]:
    """How many mutants verification caught, and how many have an effect; an effect that it missed fails.

    The effect is measured over other inputs. At the edge of what is allowed the two may differ, so only an effect
    of twice that must be caught.
    """
    other = make_trial(model, len(trial.inputs), seed=1)
    others = list(reference(model, other))
    caught = effects = 0
    for name, mutant in mutants(path, target, count):
        found, effect = verify(mutant, trial, expected), verify(mutant, other, others).share
        caught += not found.passed
        effects += effect > 1
        assert not found.passed or effect < 2, f"{name}: {effect:.1f} times what is allowed was missed"
    return caught, effects


def test_wrong_weights_are_caught(
    tiny_path: Path, tmp_path: Path, shorter: tuple[Trial, list[Step]], model: OceanTransformer
) -> None:
    trial, expected = shorter
    caught, effects = check_mutants(tiny_path, tmp_path / "mutant.onnx", 4, trial, expected, model)
    assert caught >= effects > 0


@pytest.mark.soak
def test_a_hundred_wrong_weights(
    tiny_path: Path, tmp_path: Path, trial: Trial, expected: list[Step], model: OceanTransformer
) -> None:
    caught, effects = check_mutants(tiny_path, tmp_path / "mutant.onnx", 100, trial, expected, model)
    print(
        f"of 100 weights scaled by 1.1, {effects} change a result by more than rounding; {caught} were caught"
    )


Change = Callable[[onnx.ModelProto], None]


def weight(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """A graph with one weight changed."""

    def wrong(proto: onnx.ModelProto) -> None:
        (found,) = (w for w in proto.graph.initializer if w.name == name)
        found.raw_data = change(onnx.numpy_helper.to_array(found)).astype(np.float32).tobytes()

    return wrong


def attribute(node: str, name: str, value: object) -> Change:
    """A graph with one attribute of a node changed."""

    def wrong(proto: onnx.ModelProto) -> None:
        (found,) = (n for n in proto.graph.node if n.name == node)
        kept = [a for a in found.attribute if a.name != name]
        del found.attribute[:]
        found.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])

    return wrong


def swapped(values: np.ndarray) -> np.ndarray:
    return values[[1, 0, *range(2, len(values))]]


def earlier_ocean(proto: onnx.ModelProto) -> None:
    """The state is what the layer before the last one gives."""
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = ["last" if name == "ocean_next" else name for name in names]
    proto.graph.node.append(onnx.helper.make_node("Identity", ["layer0.output"], ["ocean_next"]))


def mixed(source: Callable[[int], int], size: int | None = None) -> Change:
    """Row i reads the ocean of row source(i), at one batch size alone or at all."""

    def wrong(proto: onnx.ModelProto) -> None:
        for node in proto.graph.node:
            node.input[:] = ["mixed" if name == "ocean" else name for name in node.input]
        place = np.arange(65)
        there = np.array([source(i) for i in place]) if size is None else place
        at_size = np.array([source(i) % size for i in place]) if size is not None else place
        constants = {"there": there, "at_size": at_size, "size": np.int64(size or 0), "zero": np.int64(0)}
        for name, values in (
            constants | {"one": np.ones(1, np.int64), "none": np.zeros(1, np.int64)}
        ).items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values), name))
        make = onnx.helper.make_node
        nodes = [
            make("Shape", ["ocean"], ["batch"], start=0, end=1),
            make("Equal", ["batch", "size"], ["same"]),
            make("Where", ["same", "at_size", "there"], ["rows"]),
            make("Slice", ["rows", "none", "batch"], ["taken"]),
            make("Gather", ["ocean", "taken"], ["mixed"]),
        ]
        nodes += proto.graph.node
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)

    return wrong


NORMS = ("ocean.normalised", "layer0.normalised2", "layer1.normalised", "layer1.normalised2", "normalised")
WRONG: dict[str, Change] = {
    "two rows of a weight swapped": weight("layer1.out.weight", swapped),
    "two tokens swapped": weight("token.query", swapped),
    "two heads summed as one": weight("heads", np.ones_like),
    **{f"{name} dropped": weight(name, np.zeros_like) for name in (
        "layer0.first.weight.bias", "layer1.first.weight.bias", "layer0.key.weight.bias", "layer1.value.weight.bias",
        "layer1.normalised.bias", "normalised.bias")},
    "the last bias dropped": weight("layer1.second.weight", lambda w: np.concatenate([w[:64], 0 * w[64:]])),
    **{f"epsilon of 1e-4 in {name}": attribute(name, "epsilon", 1e-4) for name in NORMS},
    **{f"tanh in {name}": attribute(name, "approximate", "tanh") for name in ("layer0.activated", "layer1.activated")},
    "the ocean before the last layer": earlier_ocean,
    "row 1 reads row 0's ocean": mixed(lambda i: 0 if i == 1 else i),
    **{f"rows rotated in a batch of {n}": mixed(lambda i: i + 1, n) for n in (2, 3, 4, 7, 8, 12, 16)},
}  # fmt: skip


@pytest.fixture(scope="module")
def shorter(model: OceanTransformer) -> tuple[Trial, list[Step]]:
    trial = make_trial(model, 300)
    return trial, list(reference(model, trial))


def verified(path: Path, wrong: Change, target: Path, trial: Trial, expected: list[Step]) -> Parity:
    proto = onnx.load(path)
    del proto.metadata_props[1:]  # the seal
    wrong(proto)
    target.write_bytes(proto.SerializeToString())
    parity = verify(OceanModel.load(target), trial, expected)
    print(f"{parity.share:,.1f} times what is allowed")
    return parity


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_graph_is_caught(
    wrong: str, tiny_path: Path, tmp_path: Path, shorter: tuple[Trial, list[Step]]
) -> None:
    assert verified(tiny_path, WRONG[wrong], tmp_path / "wrong.onnx", *shorter).share > 2


UNITS = ("units.offset", "units.scale", "units.output_offset", "units.output_scale")


@pytest.mark.parametrize("element", range(3))
@pytest.mark.parametrize("name", UNITS)
def test_a_normalisation_that_is_stale_by_one_part_in_a_thousand_is_caught(
    name: str, element: int, sensors: tuple[Path, Trial, list[Step]], tmp_path: Path
) -> None:
    path, trial, expected = sensors

    def stale(values: np.ndarray) -> np.ndarray:
        return values * np.where(np.arange(len(values)) == element, 1.001, 1)

    (w,) = (w for w in onnx.load(path).graph.initializer if w.name == name)
    parity = verified(path, weight(name, stale), tmp_path / "wrong.onnx", trial, expected)
    # A constant of 0 stays what it is.
    assert parity.passed if onnx.numpy_helper.to_array(w)[element] == 0 else parity.share > 2


@pytest.fixture(scope="module")
def sensors(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trial, list[Step]]:
    from make_tiny_sensors import tiny_sensors
    from ocean_export import export_checkpoint
    from ocean_train import checkpoint
    from ocean_train.observations import InUnits

    folder = tmp_path_factory.mktemp("sensors")
    tiny_sensors(folder)
    export_checkpoint(folder, folder / "model.onnx")
    saved = checkpoint.load(folder)
    assert saved.observations is not None
    stepper = InUnits(saved.model(), saved.observations)
    trial = make_trial(stepper, 300, observations=saved.observations, recording=saved.heldout.numpy())
    return folder / "model.onnx", trial, list(reference(stepper, trial))


def test_parity_says_what_was_measured_and_allowed(
    tiny: OceanModel, trial: Trial, expected: list[Step]
) -> None:
    parity: Parity = verify(tiny, trial, expected)
    values = parity.to_dict()
    for place in ("single_step", "closed_loop"):
        for error in values[place].values():
            assert 0 < error["largest"] <= error["allowed"] and 0 < error["share"] < 1 <= error["step"]
            assert f"{error['largest']:.1e}" in str(parity)


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
    """A model that magnifies roundings: now and then a row of its loop leaves the others' by a per mille."""
    return magnifying(tmp_path_factory.mktemp("wild"), 3)


@pytest.fixture(scope="module")
def chaotic(tmp_path_factory: pytest.TempPathFactory) -> tuple[OceanTransformer, Path]:
    """A model in whose loop any rounding grows until nothing is left of the state."""
    return magnifying(tmp_path_factory.mktemp("chaotic"), 8)


def magnifying(folder: Path, factor: float) -> tuple[OceanTransformer, Path]:
    """A checkpoint and its export. What reads the ocean, and what goes into it, is larger than it was."""
    from make_tiny import tiny_checkpoint
    from ocean_export import export_checkpoint
    from ocean_train import checkpoint

    tiny_checkpoint(folder)
    saved = checkpoint.load(folder)
    weights = {
        name: w * factor if name.endswith(("wq.weight", "wo.weight", "w2.weight")) else w
        for name, w in saved.weights.items()
    }
    checkpoint.save(folder, dataclasses.replace(saved, weights=weights))
    export_checkpoint(folder, folder / "model.onnx", prefill=True)
    return checkpoint.load(folder).model(), folder / "model.onnx"


@pytest.mark.parametrize("which", ["wild", "chaotic"])
def test_a_model_that_magnifies_rounding_is_compared_as_far_as_it_is_predictable(
    which: str, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    model, path = request.getfixturevalue(which)
    trial = make_trial(model, 300)
    parity = verify(OceanModel.load(path), trial, reference(model, trial))
    print(parity)
    record_property("share of the limit", parity.share)
    assert parity.passed
    assert max(error.allowed for error in parity.closed_loop.values()) > 1e-4, "else this model shows nothing"
    if which == "chaotic":
        assert 5 <= parity.predictable_steps < 300 and 0.01 < parity.compared < 1
        assert "the closed loop was compared as far as they agree" in str(parity)


@pytest.mark.parametrize("which", ["wild", "chaotic"])
def test_a_wrong_weight_is_caught_where_the_loop_magnifies_it(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model, path = request.getfixturevalue(which)
    trial = make_trial(model, 300)
    expected = list(reference(model, trial))
    for name, mutant in mutants(path, tmp_path / "mutant.onnx", 8, seed=1):
        parity = verify(mutant, trial, expected)
        print(f"{name} scaled by 1.1: {parity.share:,.0f} times what is allowed")
        assert not parity.passed and "differs from the trained model by" in parity.failure
