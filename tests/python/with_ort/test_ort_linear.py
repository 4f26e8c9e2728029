"""LinearAttention, ONNX's (opset 27) and com.microsoft's: by the execution provider and by custom operators, beside
ONNX's reference evaluator, stock ONNX Runtime, and a loop in NumPy with f64."""

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import ort_support as support
import pytest
from onnx import TensorProto, load_model_from_string
from onnx.reference import ReferenceEvaluator

NAMES = ("query", "key", "value", "past_state", "decay", "beta")
RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
OPERATORS = {"": "LinearAttention", "com.microsoft": "com.microsoft.LinearAttention"}
TOLERANCE = {np.float32: 2e-5, np.float16: 4e-3}


def inputs(rule="gated_delta", batch=2, tokens=7, heads=(4, 2, 2), dims=(24, 40), by_key=False, shared_beta=False,
           past=True, dtype=np.float32, state=None):
    """heads: of q, of k, of v; dims: of k, of v."""
    rng = np.random.default_rng(tokens)
    (h_q, h_k, h_v), (d_k, d_v) = heads, dims

    def draw(columns):
        return rng.standard_normal((batch, tokens, columns)).astype(dtype)

    decay, beta = RULES[rule]
    key = draw(h_k * d_k).reshape(batch, tokens, h_k, d_k)
    key = key / np.sqrt((key * key).sum(-1, keepdims=True))
    return {
        "query": draw(h_q * d_k), "key": key.reshape(batch, tokens, h_k * d_k).astype(dtype), "value": draw(h_v * d_v),
        "past_state": rng.standard_normal((batch, h_v, d_k, d_v)).astype(state or dtype) if past else None,
        "decay": -np.abs(draw(h_v * d_k if by_key else h_v)) if decay else None,
        "beta": rng.random((batch, tokens, 1 if shared_beta else h_v)).astype(dtype) if beta else None,
    }


def make(given, heads=(4, 2, 2), rule="gated_delta", domain="com.microsoft", **attributes):
    kind = support.TYPES[given["query"].dtype]
    state = kind if given["past_state"] is None else support.TYPES[given["past_state"].dtype]
    return support.model("LinearAttention", given, {"output": kind, "present_state": state}, domain=domain, opset=27,
                         q_num_heads=heads[0], kv_num_heads=heads[2], update_rule=rule, **attributes)


def loop(given, heads, rule, scale=None):
    """The rules in f64, with K heads that several heads of V share, and fewer or more heads of Q."""
    given = {name: None if array is None else array.astype(np.float64) for name, array in given.items()}
    (batch, tokens, _), (h_q, h_k, h_v) = given["query"].shape, heads
    q, k, v = (given[name].reshape(batch, tokens, count, -1) for name, count in zip(NAMES, heads))
    scale = scale or 1 / np.sqrt(k.shape[3])
    state = given["past_state"]
    state = np.zeros((batch, h_v, k.shape[3], v.shape[3])) if state is None else state.copy()
    out = np.zeros((batch, tokens, max(h_q, h_v), v.shape[3]))
    for b, t, h in np.ndindex(batch, tokens, h_v):
        key = k[b, t, h * h_k // h_v]
        if given["decay"] is not None:
            state[b, h] *= np.exp(given["decay"][b, t].reshape(h_v, -1)[h])[:, None]
        wanted = v[b, t, h] - (key @ state[b, h] if "delta" in rule else 0)
        beta = 1 if given["beta"] is None else given["beta"][b, t][h if given["beta"].shape[2] > 1 else 0]
        state[b, h] += np.outer(key, beta * wanted)
        for o in range(h * out.shape[2] // h_v, (h + 1) * out.shape[2] // h_v):
            out[b, t, o] = scale * q[b, t, o * h_q // out.shape[2]] @ state[b, h]
    return out.reshape(batch, tokens, out.shape[2] * out.shape[3]), state


def run(model, given, entry, domain="com.microsoft", threads=0):
    before = support.ran(OPERATORS[domain])
    got = support.session(model, entry, threads).run(None, support.feeds(given))
    assert support.ran(OPERATORS[domain]) == before + (entry is not None)
    return got


def compare(have, wanted, tolerance):
    for one, other in zip(have, wanted, strict=True):
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=tolerance, atol=tolerance)


FOLDER = Path(os.environ.get("CONFORMANCE_DIR", "/nonexistent")) / "onnx-linear-attention"
CASES = sorted(case.parent for case in FOLDER.glob("*/case.json"))


@pytest.mark.skipif(not CASES, reason="CONFORMANCE_DIR has no onnx-linear-attention")
@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_onnx_case(folder, entry):
    case = json.loads((folder / "case.json").read_text())
    given = {name: np.load(folder / file) for name, file in case["inputs"].items()}
    given = {name: given.get(name) for name in NAMES}
    kind = support.TYPES[given["query"].dtype]
    model = support.model("LinearAttention", given, {"output": kind, "present_state": kind}, opset=27,
                          **case["attributes"])
    for have, file in zip(run(model, given, entry, ""), case["outputs"].values(), strict=True):
        np.testing.assert_allclose(have, np.load(folder / file), rtol=case["rtol"], atol=case["atol"])


SHAPES = {
    "one_token": dict(tokens=1),
    "prompt": dict(tokens=70, batch=1),
    "without_past": dict(past=False),
    "one_head_of_v": dict(heads=(5, 1, 1), dims=(8, 8)),
    "by_key": dict(by_key=True, shared_beta=True),
}


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("domain", OPERATORS)
@pytest.mark.parametrize("rule", RULES)
def test_rules(rule, domain, entry):
    given = inputs(rule)
    compare(run(make(given, rule=rule, domain=domain), given, entry, domain), loop(given, (4, 2, 2), rule), 2e-5)


@pytest.mark.parametrize("domain", OPERATORS)
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, domain):
    given, heads = inputs(**SHAPES[name]), SHAPES[name].get("heads", (4, 2, 2))
    compare(run(make(given, heads, domain=domain), given, "ep", domain), loop(given, heads, "gated_delta"), 2e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rule", RULES)
def test_like_onnx_reference(rule, dtype):
    given = inputs(rule, dtype=dtype, by_key=rule == "gated")
    model = make(given, (4, 2, 2), rule, domain="", scale=0.5)
    wanted = ReferenceEvaluator(load_model_from_string(model)).run(None, support.feeds(given))
    have = run(model, given, "ep", "")
    assert [array.dtype for array in have] == [array.dtype for array in wanted]
    compare(have, wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("heads", [(4, 2, 2), (2, 2, 4), (2, 1, 2)])
@pytest.mark.parametrize("rule", RULES)
def test_like_stock(rule, heads):
    """Stock has kernels of f32 for com.microsoft's."""
    given = inputs(rule, heads=heads)
    model = make(given, heads, rule)
    compare(run(model, given, "ep"), support.session(model).run(None, support.feeds(given)), 2e-5)


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_f16(entry):
    given = inputs(dtype=np.float16)
    have = run(make(given), given, entry)
    assert have[1].dtype == np.float16
    compare(have, loop(given, (4, 2, 2), "gated_delta"), TOLERANCE[np.float16])


def test_state_of_f32_with_f16():
    given = inputs(dtype=np.float16, state=np.float32)
    out, state = run(make(given), given, "ep")
    assert (out.dtype, state.dtype) == (np.float16, np.float32)
    compare((out, state), loop(given, (4, 2, 2), "gated_delta"), TOLERANCE[np.float16])


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_bfloat16(entry):
    given = inputs()
    rounded = {name: array.astype(ml_dtypes.bfloat16).astype(np.float32) for name, array in given.items()}
    model = support.within(make(given), TensorProto.BFLOAT16)
    compare(run(model, rounded, entry), loop(rounded, (4, 2, 2), "gated_delta"), 4e-2)


@pytest.mark.parametrize("threads", [1, 2])
def test_cuts_at_multiples_of_8_have_the_same_bits(threads):
    given, model = inputs(tokens=70), make(inputs(tokens=70))
    session = support.session(model, "ep", threads)
    out, state = session.run(None, support.feeds(given))
    parts, now = [], given["past_state"]
    for cut in slice(0, 8), slice(8, 40), slice(40, 70):
        part = {name: array if name == "past_state" else array[:, cut] for name, array in given.items()}
        found, now = session.run(None, part | {"past_state": now})
        parts.append(found)
    np.testing.assert_array_equal(np.concatenate(parts, 1), out)
    np.testing.assert_array_equal(now, state)


def test_no_token_keeps_the_state():
    given = inputs(tokens=0)
    out, state = run(make(given), given, "ep")
    assert out.shape == (2, 0, 160)
    np.testing.assert_array_equal(state, given["past_state"])


def test_in_place():
    """past_state and present_state are one buffer, as in a loop that binds them."""
    given = inputs(tokens=3)
    session = support.session(make(given), "ep")
    wanted = session.run(None, support.feeds(given))

    state = onnxruntime.OrtValue.ortvalue_from_numpy(given["past_state"].copy())
    binding = session.io_binding()
    for name, array in given.items():
        if name != "past_state":
            binding.bind_cpu_input(name, array)
    binding.bind_ortvalue_input("past_state", state)
    binding.bind_output("output")
    binding.bind_ortvalue_output("present_state", state)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), wanted[0])
    np.testing.assert_array_equal(state.numpy(), wanted[1])


def test_other_sizes_in_later_calls():
    """The model leaves the sizes of heads open."""
    session = support.session(make(inputs()), "ep")
    for dims in (24, 40), (16, 8), (24, 40):
        given = inputs(dims=dims)
        compare(session.run(None, support.feeds(given)), loop(given, (4, 2, 2), "gated_delta"), 2e-5)


LEFT = {
    "without_decay": ({"decay": None}, {}, "update_rule is gated_delta: the input decay must be there"),
    "with_beta": ({}, {"rule": "gated"}, "update_rule is gated: the input beta must not be there"),
    "window_of_states": ({"past_state": np.zeros((2, 2, 2, 24, 40), np.float32)}, {"state_window": 2},
                         "state_window is 2; attune computes it with 0 only"),
}


@pytest.mark.parametrize("name", LEFT)
def test_refusals(name):
    change, attributes, sentence = LEFT[name]
    model = make(inputs() | change, **attributes)
    with pytest.raises(Exception, match=sentence):
        support.session(model, "ops")
    before = support.ran(OPERATORS["com.microsoft"])
    if name == "with_beta":  # the provider leaves the node to stock, which computes it
        support.session(model, "ep").run(None, support.feeds(inputs() | change))
    else:
        with pytest.raises(Exception, match="onnxruntime.*LinearAttention|linear_attention"):
            support.session(model, "ep").run(None, support.feeds(inputs() | change))
    assert support.ran(OPERATORS["com.microsoft"]) == before


BAD = {
    "past_state": ((2, 2, 24, 39), r"past_state is of shape \[2, 2, 24, 39\]; it must be of shape \[2, 2, 24, 40\]"),
    "decay": ((2, 7, 6), "decay has 3 numbers for each head; it must have 1 or 24"),
    "beta": ((2, 7, 3), "beta has 3 numbers for each token; it must have 1 or 2"),
    "value": ((2, 7, 79), "value has 79 columns, which is no multiple of 2"),
    "key": ((2, 8, 48), r"key is of shape \[2, 8, 48\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shapes(name):
    shape, sentence = BAD[name]
    given = inputs()
    with pytest.raises(Exception, match=f"attune, node 'the_node' .LinearAttention.: {sentence}"):
        support.session(make(given), "ep").run(None, given | {name: np.zeros(shape, np.float32)})
