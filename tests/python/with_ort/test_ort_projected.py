"""com.microsoft Attention, which has the weights of its products: by attune beside stock ONNX Runtime."""

import numpy as np
import ort_support as support
import pytest
from onnx import TensorProto
from test_ort_blocks import BATCH, HEADS, ROWS, WIDTH, Block, compare, normal

import attune.ort

MASK = np.arange(ROWS) < [[7], [4]]
HOLES = np.array([[0, 1, 1, 0, 1, 1, 1], [1, 0, 1, 1, 1, 0, 0]], np.int32)
EACH = (np.random.default_rng(5).random((BATCH, ROWS, ROWS)) > 0.3).astype(np.int32)
CASES = {
    "plain": ({}, {}),
    "causal": ({}, {"unidirectional": 1}),
    "scale": ({}, {"scale": 0.7}),
    "other_value_width": ({}, {"qkv_hidden_sizes": [WIDTH, WIDTH, 2 * WIDTH]}),
    "lengths": ({"mask_index": np.array([7, 4], np.int32)}, {}),
    "prefix": ({"mask_index": MASK.astype(np.int32)}, {}),
    "holes": ({"mask_index": HOLES}, {}),
    "mask_of_each_query": ({"mask_index": EACH}, {}),
    "attention_bias": ({"attention_bias": normal(BATCH, HEADS, ROWS, ROWS)}, {}),
    "attention_bias_of_all": ({"attention_bias": normal(1, 1, ROWS, ROWS)}, {}),
    "causal_and_mask": ({"mask_index": MASK.astype(np.int32)}, {"unidirectional": 1}),
}
X = {"x": normal(BATCH, ROWS, WIDTH)}


def make(given, attributes, has_bias=True, has_product=False, width=WIDTH):
    block = Block([None, None, width])
    columns = sum(attributes.get("qkv_hidden_sizes", [3 * WIDTH]))
    weight = block.constant(normal(WIDTH, columns) / 3)
    bias = block.constant(normal(columns)) if has_bias else ""
    for name, array in given.items():
        kind = TensorProto.INT32 if array.dtype == np.int32 else TensorProto.FLOAT
        block.inputs[name] = (kind, [None] * array.ndim)
    names = ["mask_index" if "mask_index" in given else "", "", "attention_bias" if "attention_bias" in given else ""]
    out = block("Attention", "x", weight, bias, *names, domain="com.microsoft", num_heads=HEADS, **attributes)
    inner = columns - 2 * WIDTH
    return block.model(block.linear(out, inner=inner) if has_product else out)


def ran():
    return attune.ort.stats().get("com.microsoft.Attention.ran", 0)


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("name", CASES)
def test_a_node(name, entry):
    given, attributes = CASES[name]
    model, before = make(given, attributes), ran()
    got = support.session(model, entry, blocks=False).run(None, X | given)[0]
    assert ran() == before + 1
    np.testing.assert_allclose(got, support.session(model).run(None, X | given)[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("has_product", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_block(name, has_product):
    given, attributes = CASES[name]
    compare(make(given, attributes, has_product=has_product), X | given)


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_without_a_bias(entry):
    model, before = make({}, {}, has_bias=False), ran()
    got = support.session(model, entry, blocks=False).run(None, X)[0]
    assert ran() == before + 1
    zeros = Block()
    weight, bias = zeros.constant(normal(WIDTH, 3 * WIDTH) / 3), zeros.constant(np.zeros(3 * WIDTH, np.float32))
    out = zeros("Attention", "x", weight, bias, domain="com.microsoft", num_heads=HEADS)
    np.testing.assert_allclose(got, support.session(zeros.model(out)).run(None, X)[0], rtol=2e-5, atol=2e-5)


def weights_that_vary():
    block = Block()
    block.inputs["w"] = (TensorProto.FLOAT, [WIDTH, 3 * WIDTH])
    bias = block.constant(normal(3 * WIDTH))
    return block.model(block("Attention", "x", "w", bias, domain="com.microsoft", num_heads=HEADS))


def test_weights_that_vary():
    """The provider leaves the node; custom operators refuse the session."""
    compare(weights_that_vary(), X | {"w": normal(WIDTH, 3 * WIDTH) / 5}, blocks=0)
    with pytest.raises(Exception, match=r"cannot compute node 'Attention_1' \(Attention\): its weights are not a"):
        support.session(weights_that_vary(), "ops")


def test_present_stays():
    block = Block()
    weight, bias = block.constant(normal(WIDTH, 3 * WIDTH) / 3), block.constant(normal(3 * WIDTH))
    out = block("Attention", "x", weight, bias, domain="com.microsoft", num_heads=HEADS)
    block.nodes[-1].output.append("present")
    block.outputs.append("present")
    model = block.model(out)
    compare(model, X, blocks=0)
    with pytest.raises(Exception, match="it has past or present"):
        support.session(model, "ops")


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_bad_calls(entry):
    session = support.session(make({}, {}, width=None), entry, blocks=False)
    with pytest.raises(Exception, match=r"\(Attention\): x is of shape \[2, 7, 23\]; it must be of shape"):
        session.run(None, {"x": normal(BATCH, ROWS, WIDTH - 1)})
    given = {"mask_index": np.ones((BATCH, ROWS - 1), np.int32)}
    session = support.session(make(given, {}), entry, blocks=False)
    with pytest.raises(Exception, match=r"mask_index is of shape \[2, 6\]"):
        session.run(None, X | given)
