"""com.microsoft MultiHeadAttention by attune beside stock ONNX Runtime."""

import numpy as np
import ort_support as support
import pytest
from onnx import TensorProto

HEADS, DIM = 3, 16
NAMES = ["query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value"]
OUTPUTS = {"output": TensorProto.FLOAT, "present_key": TensorProto.FLOAT, "present_value": TensorProto.FLOAT}


def normal(*dims, seed=1):
    return np.random.default_rng(seed + sum(dims)).standard_normal(dims, dtype=np.float32)


def inputs(batch=2, queries=7, keys=7, value_dim=DIM, **others):
    """q, k and v, and what else is given."""
    plain = {
        "query": normal(batch, queries, HEADS * DIM, seed=1),
        "key": normal(batch, keys, HEADS * DIM, seed=2),
        "value": normal(batch, keys, HEADS * value_dim, seed=3),
    } | others
    return {name: plain.get(name) for name in NAMES}


def padding(rows):
    return np.array(rows, np.int32)


PREFIX = padding([[1] * 7, [1] * 4 + [0] * 3])
HOLES = padding([[0, 1, 1, 0, 1, 1, 1], [1, 0, 1, 1, 1, 0, 0]])
EACH = (np.random.default_rng(5).random((2, 7, 7)) > 0.3).astype(np.int32)
PAST = {"past_key": normal(2, HEADS, 5, DIM, seed=4), "past_value": normal(2, HEADS, 5, DIM, seed=5)}

CASES = {
    "plain": (inputs(), {}),
    "cross": (inputs(queries=5, keys=11), {}),
    "other_value_dim": (inputs(value_dim=24), {}),
    "separate_heads": (inputs(key=normal(2, HEADS, 9, DIM), value=normal(2, HEADS, 9, DIM, seed=8)), {}),
    "scale": (inputs(), {"scale": 0.5}),
    "causal": (inputs(), {"unidirectional": 1}),
    "bias": (inputs(bias=normal(3 * HEADS * DIM)), {}),
    "lengths": (inputs(key_padding_mask=padding([7, 4])), {}),
    "prefix": (inputs(key_padding_mask=PREFIX), {}),
    "holes": (inputs(key_padding_mask=HOLES), {}),
    "no_key": (inputs(key_padding_mask=padding([[1] * 7, [0] * 7])), {}),
    "mask_of_each_query": (inputs(key_padding_mask=EACH), {}),
    "attention_bias": (inputs(attention_bias=normal(2, HEADS, 7, 7)), {}),
    "attention_bias_of_all": (inputs(attention_bias=normal(1, 1, 7, 7)), {}),
    "attention_bias_of_heads": (inputs(attention_bias=normal(1, HEADS, 7, 7)), {}),
    "attention_bias_and_mask": (inputs(attention_bias=normal(2, 1, 7, 7), key_padding_mask=HOLES), {}),
    "past": (inputs(**PAST), {}),
    "past_causal": (inputs(**PAST), {"unidirectional": 1}),
    "past_of_one_token": (inputs(queries=1, keys=1, **PAST), {"unidirectional": 1}),
    "causal_query_alone": (inputs(queries=1, keys=9), {"unidirectional": 1}),
    "causal_query_alone_of_heads": (
        inputs(queries=1, key=normal(2, HEADS, 9, DIM), value=normal(2, HEADS, 9, DIM, seed=8)), {"unidirectional": 1}),
    "causal_query_alone_after_past": (inputs(queries=1, keys=4, **PAST), {"unidirectional": 1}),
    "past_and_mask": (inputs(**PAST, key_padding_mask=padding([[1] * 12, [1] * 9 + [0] * 3])), {"unidirectional": 1}),
    "past_and_bias": (inputs(**PAST, bias=normal(3 * HEADS * DIM)), {}),
    "long": (inputs(batch=1, queries=200, keys=200), {}),
}


def run(given, attributes, entry, outputs=OUTPUTS):
    model = support.model("MultiHeadAttention", given, outputs, domain="com.microsoft", num_heads=HEADS, **attributes)
    return support.session(model, entry).run(None, support.feeds(given))


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("name", CASES)
def test_like_stock(name, entry):
    given, attributes = CASES[name]
    before = support.ran("MultiHeadAttention")
    got = run(given, attributes, entry)
    assert support.ran("MultiHeadAttention") == before + 1
    # Where no key is kept, stock adds -10000 to all scores, and loses their last digits.
    atol = 1e-3 if name == "no_key" else 2e-6
    for have, wanted in zip(got, run(given, attributes, None)):
        np.testing.assert_allclose(have, wanted, rtol=2e-5, atol=atol)


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("name", ["plain", "past", "holes"])
def test_without_present(name, entry):
    """A model that does not want the caches."""
    given, attributes = CASES[name]
    wanted = run(given, attributes, None)[0]
    np.testing.assert_allclose(run(given, attributes, entry, {"output": TensorProto.FLOAT})[0], wanted, rtol=2e-5,
                               atol=2e-6)


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_half(entry):
    """ONNX Runtime has no kernel of float16; the values of f32 are the reference."""
    given = inputs()
    wanted = run(given, {}, None)[0]
    halves = {name: None if array is None else array.astype(np.float16) for name, array in given.items()}
    got = run(halves, {}, entry, {"output": TensorProto.FLOAT16})[0]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float32), wanted, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_shapes_vary(entry):
    """One session, other sizes in each call."""
    given, attributes = CASES["plain"]
    model = support.model("MultiHeadAttention", given, OUTPUTS, domain="com.microsoft", num_heads=HEADS)
    ours, stock = support.session(model, entry), support.session(model)
    for batch, queries in ((1, 1), (3, 20), (2, 65), (1, 1), (2, 7)):
        feeds = support.feeds(inputs(batch=batch, queries=queries, keys=queries))
        for have, wanted in zip(ours.run(None, feeds), stock.run(None, feeds)):
            np.testing.assert_allclose(have, wanted, rtol=2e-5, atol=2e-6)
