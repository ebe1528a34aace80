"""The lean graph is the trained module: the same numbers, few nodes, standard operators."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ocean_export import lean
from ocean_export.graph import step_graph
from ocean_export.lean import lean_graph
from ocean_train.model import OceanConfig, OceanTransformer


def randomised(model: OceanTransformer, seed: int = 3) -> OceanTransformer:
    """The model with every LayerNorm and bias random too, so that each one matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def assert_is_the_module(proto: onnx.ModelProto, model: OceanTransformer, batch: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    config = model.config
    x = (
        random.integers(config.inputs, size=batch)
        if config.kind == "tokens"
        else random.standard_normal((batch, config.inputs)).astype(np.float32)
    )
    ocean = random.standard_normal((batch, config.width)).astype(np.float32)
    found = session(proto).run(None, {proto.graph.input[0].name: x, "ocean": ocean})
    with torch.no_grad():
        expected = model.step(torch.from_numpy(x), torch.from_numpy(ocean))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), atol=2e-5, rtol=2e-5)


@given(
    st.sampled_from(
        [(1, 1), (8, 2), (8, 8), (12, 3), (64, 4), (100, 4), (100, 50), (192, 4), (200, 2), (200, 200)]
    ),
    st.integers(1, 3),
    st.sampled_from([1.0, 100.0]),
    st.sampled_from([3, 900]),
    st.sampled_from(["tokens", "classes", "regression", "features"]),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=40)
def test_it_computes_the_step_at_any_size(
    size: tuple[int, int], layers: int, tau: float, inputs: int, what: str, batch: int, seed: int
) -> None:
    width, heads = size
    sizes = {"width": width, "layers": layers, "heads": heads, "max_time_constant": tau}
    config = (
        OceanConfig(inputs, inputs, **sizes)
        if what == "tokens"
        else OceanConfig(inputs, 4, **sizes, kind="tokens", head="classes")
        if what == "classes"
        else OceanConfig(7, 4, **sizes, kind="features", head="regression")
    )
    model = randomised(OceanTransformer(config, seed=seed % 1000))
    assert_is_the_module(lean_graph(model), model, batch, seed)


@pytest.mark.parametrize("two_rows", [0, 10**9])
@pytest.mark.parametrize("square", [0, 10**9])
def test_every_layout_computes_the_step(two_rows: int, square: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "TWO_ROWS_FROM", two_rows)
    monkeypatch.setattr(lean, "SQUARE_HEADS_UP_TO", square)
    model = randomised(OceanTransformer(OceanConfig(40, 40, 48, 3, 4)))
    for batch in (1, 5):
        assert_is_the_module(lean_graph(model), model, batch, seed=batch)


@pytest.mark.parametrize("width", [48, 256])
@pytest.mark.parametrize("learned", [False, True])
def test_a_leak_costs_three_nodes_and_no_node_without_one(width: int, learned: bool) -> None:
    relay = randomised(OceanTransformer(OceanConfig(40, 40, width, 2, 4)))
    leak = OceanConfig(40, 40, width, 2, 4, max_time_constant=64.0, learn_time_constants=learned)
    leaky = randomised(OceanTransformer(leak))
    assert_is_the_module(lean_graph(leaky), leaky, batch=3, seed=1)
    assert len(lean_graph(leaky).graph.node) == len(lean_graph(relay).graph.node) + 3


def test_a_layer_norm_that_lets_nothing_through_is_folded_too() -> None:
    model = randomised(OceanTransformer(OceanConfig(30, 30, 16, 2, 2)))
    with torch.no_grad():
        for block in lean.blocks(model):
            block.norm1.weight[:5] = torch.tensor([0.0, 1e-30, -1e-9, 1e-4, -2.0])
    assert_is_the_module(lean_graph(model), model, batch=3, seed=0)


def test_a_bias_that_is_a_hidden_unit_costs_no_node() -> None:
    """With or without b2 the graph has as many nodes, and W2's product takes the residual."""
    bare = OceanTransformer(OceanConfig(30, 30, 16, 2, 2))
    biased = randomised(OceanTransformer(OceanConfig(30, 30, 16, 2, 2)))
    assert [n.op_type for n in lean_graph(biased).graph.node].count("Add") == 0
    assert len(lean_graph(biased).graph.node) == len(lean_graph(bare).graph.node)
    with torch.no_grad():
        lean.blocks(biased)[0].w2.bias.mul_(1000)  # type: ignore[union-attr]
    assert_is_the_module(lean_graph(biased), biased, batch=3, seed=0)


def test_it_has_the_inputs_and_outputs_of_the_plain_graph(model: OceanTransformer) -> None:
    plain, short = step_graph(model), lean_graph(model)
    assert [(v.name, v.type) for v in short.graph.input] == [(v.name, v.type) for v in plain.graph.input]
    assert [(v.name, v.type) for v in short.graph.output] == [(v.name, v.type) for v in plain.graph.output]


def test_float32_needs_only_standard_operators_of_opset_20() -> None:
    for width in (64, 256):
        proto = lean_graph(OceanTransformer(OceanConfig(65, 65, width, 2, 4)))
        assert [(o.domain, o.version) for o in proto.opset_import] == [("", 20)]
        assert proto.ir_version == 9
        assert {node.domain for node in proto.graph.node} == {""}


def test_it_has_half_the_nodes_of_the_plain_graph() -> None:
    model = OceanTransformer(OceanConfig(65, 65, 64, 2, 4))
    assert len(lean_graph(model).graph.node) <= 0.5 * len(step_graph(model).graph.node)


def test_every_node_and_value_has_the_models_words() -> None:
    proto = lean_graph(OceanTransformer(OceanConfig(65, 65, 64, 2, 4)))
    words = ("layer", "ocean", "token", "embed", "normalised", "logits", "heads", "head", "ones", "zeros")
    names = [n.name for n in proto.graph.node] + [w.name for w in proto.graph.initializer]
    assert len(set(names)) == len(names)
    assert all(name.startswith(words) for name in names)
    reads = {name for node in proto.graph.node for name in node.input}
    assert all(w.name in reads for w in proto.graph.initializer), "a weight that nothing reads"


def test_a_wrong_fold_would_show() -> None:
    """Each folded matrix matters: scaled a little, in any layer, it gives another step."""
    model = randomised(OceanTransformer(OceanConfig(30, 30, 16, 2, 2)))
    proto = lean_graph(model)
    for index, original in enumerate(proto.graph.initializer):
        if original.name == "zeros":
            continue
        changed = onnx.ModelProto()
        changed.CopyFrom(proto)
        weight = changed.graph.initializer[index]
        weight.raw_data = (onnx.numpy_helper.to_array(weight) * np.float32(1.05)).tobytes()
        with pytest.raises(AssertionError):
            assert_is_the_module(changed, model, batch=4, seed=1)
