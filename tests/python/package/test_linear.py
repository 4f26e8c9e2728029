"""attune.linear_attention beside NumPy in f64, in layouts and types, and ONNX's cases of LinearAttention."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import attune

RNG = np.random.default_rng(5)


def reference(q, k, v, decay=None, beta=None, state=None, rule="gated_delta", scale=None, qk_norm_eps=0):
    """[batch, length, heads, dim], in f64."""
    q, k, v = (x.astype("f8") for x in (q, k, v))
    batch, length, heads, dim = q.shape
    v_heads, dim_v = v.shape[2:]
    if qk_norm_eps:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + qk_norm_eps) for x in (q, k))
    k = k.repeat(v_heads // k.shape[2], 2)
    out_heads = max(heads, v_heads)
    q = q.repeat(out_heads // heads, 2)
    s = np.zeros((batch, v_heads, dim, dim_v)) if state is None else state.astype("f8")
    out = np.zeros((batch, length, out_heads, dim_v))
    for t in range(length):
        if decay is not None:
            s = s * np.exp(decay[:, t].astype("f8")).reshape(batch, v_heads, -1, 1)
        r = v[:, t]
        if "delta" in rule:
            r = r - np.einsum("bhij,bhi->bhj", s, k[:, t])
        if beta is not None:
            r = r * beta[:, t].astype("f8")[..., None]
        s = s + k[:, t][..., None] * r[..., None, :]
        of_state = s.repeat(out_heads // v_heads, 1)
        out[:, t] = np.einsum("bhij,bhi->bhj", of_state, q[:, t]) * (dim ** -0.5 if scale is None else scale)
    return out, s


def draw(batch=2, length=19, heads=4, k_heads=4, v_heads=4, dim=16, dim_v=24, dtype="f4"):
    q, k, v = (RNG.standard_normal((batch, length, h, d)).astype(dtype)
               for h, d in ((heads, dim), (k_heads, dim), (v_heads, dim_v)))
    return dict(q=q, k=(k / 3).astype(dtype), v=v)


def gates(call, by_key=False, shared_beta=False):
    batch, length, v_heads = call["v"].shape[:3]
    dims = (batch, length, v_heads, *([call["k"].shape[3]] if by_key else []))
    return dict(decay=-RNG.random(dims).astype("f4"),
                beta=RNG.random((batch, length, 1 if shared_beta else v_heads)).astype("f4"))


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("by_key", [False, True])
def test_rules(rule, by_key):
    call = draw()
    more = gates(call, by_key)
    if "gated" not in rule:
        del more["decay"]
    if "delta" not in rule:
        del more["beta"]
    state = RNG.standard_normal((2, 4, 16, 24)).astype("f4")
    wanted = reference(**call, **more, state=state, rule=rule)
    out, after = attune.linear_attention(**call, **more, state=state, rule=rule)
    assert after is state
    np.testing.assert_allclose(out, wanted[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state, wanted[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads, k_heads, v_heads", [(8, 2, 2), (2, 2, 4), (4, 1, 1), (1, 3, 3)])
@pytest.mark.parametrize("dtype, tolerance", [("f4", 1e-5), ("f2", 1e-2)])
def test_heads_and_types(heads, k_heads, v_heads, dtype, tolerance):
    call = draw(heads=heads, k_heads=k_heads, v_heads=v_heads, dtype=dtype)
    more = gates(call, shared_beta=True)
    out, state = attune.linear_attention(**call, **more, scale=0.5, qk_norm_eps=1e-6)
    wanted = reference(**call, **more, scale=0.5, qk_norm_eps=1e-6)
    assert out.dtype == dtype and state.dtype == np.float32
    np.testing.assert_allclose(out, wanted[0], rtol=tolerance * 10, atol=tolerance)
    np.testing.assert_allclose(state, wanted[1], rtol=tolerance * 10, atol=tolerance)


@pytest.mark.parametrize("function", [None, "silu", "sigmoid"])
@pytest.mark.parametrize("dtype, tolerance", [("f4", 1e-5), ("f2", 1e-2)])
def test_norm_and_gate_of_out(function, dtype, tolerance):
    """As Qwen3-Next's and Kimi Linear's layers have them after the rule."""
    call = draw(heads=2, k_heads=2, dtype=dtype)
    more = gates(call)
    weights, gate = (RNG.standard_normal(dims).astype(dtype) for dims in ((24,), (2, 19, 4, 24)))
    opened = dict(gate=gate, gate_function=function) if function else {}
    out, _ = attune.linear_attention(**call, **more, norm_weights=weights, out_norm_eps=1e-5, **opened)
    wanted = reference(**call, **more)[0]
    wanted = wanted / np.sqrt((wanted * wanted).mean(-1, keepdims=True) + 1e-5) * weights.astype("f8")
    if function:
        g = gate.astype("f8")
        wanted = wanted * (g if function == "silu" else 1) / (1 + np.exp(-g))
    np.testing.assert_allclose(out, wanted, rtol=tolerance * 10, atol=tolerance * 10)
    parts = attune.linear_attention(**call, **more, **opened)[0] if function else None
    assert function is None or not np.allclose(parts, out)


def test_ragged_and_states_by_index():
    """The same as one by one, and other states are left alone."""
    call = {name: x[0] for name, x in draw(batch=1, length=23).items()}
    more = {name: x[0] for name, x in gates({name: x[None] for name, x in call.items()}).items()}
    states = RNG.standard_normal((5, 4, 16, 24)).astype("f4")
    before = states.copy()
    starts, ids = [0, 7, 7, 8, 23], [4, 2, 0, 1]
    out, _ = attune.linear_attention(**call, **more, state=states, cu_seqlens=starts, state_ids=ids)
    for b, slot in enumerate(ids):
        part = slice(starts[b], starts[b + 1])
        one, after = attune.linear_attention(**{name: x[None, part] for name, x in (call | more).items()},
                                             state=before[slot:slot + 1].copy())
        assert np.array_equal(out[part], one[0]) and np.array_equal(states[slot], after[0])
    assert np.array_equal(states[3], before[3])


def test_strides_are_kept():
    call = draw()
    turned = {name: x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for name, x in call.items()}
    more = gates(call)
    assert np.array_equal(attune.linear_attention(**call, **more)[0], attune.linear_attention(**turned, **more)[0])


@pytest.mark.parametrize("change, sentence", [
    (dict(q=None), "q is missing"),
    (dict(k=np.zeros((2, 19, 4, 8), "f4")), r"k has the shape \[2, 19, 4, 8\]; it must be \[2, 19, any, 16\]"),
    (dict(v=np.zeros((2, 19, 4, 24), "f2")), "v is float16; it must be f32"),
    (dict(rule="deltas"), "rule is 'deltas'"),
    (dict(rule="linear"), "the rule linear has no decay"),
    (dict(decay=np.zeros((2, 19, 3), "f4")), r"decay has the shape \[2, 19, 3\]; it must be \[2, 19, 4\]"),
    (dict(beta=np.zeros((2, 18, 4), "f4")), r"beta has the shape \[2, 18, 4\]"),
    (dict(state=np.zeros((2, 4, 16, 24))), "state is float64; it must be f32 or bf16"),
    (dict(state=np.zeros((1, 4, 16, 24), "f4")), r"state has the shape \[1, 4, 16, 24\]; it must be \[2, 4, 16, 24\]"),
    (dict(state=np.zeros((2, 4, 16, 24), "f4"), state_ids=[0, 2]), r"state_ids\[1\] is 2; there are states"),
    (dict(out=np.zeros((2, 19, 4, 23), "f4")), r"out has the shape \[2, 19, 4, 23\]"),
    (dict(gate=np.zeros((2, 19, 4), "f4")), r"gate has the shape \[2, 19, 4\]; it must be \[2, 19, 4, 24\]"),
    (dict(gate=np.zeros((2, 19, 4, 24), "f4"), gate_function="tanh"), "gate_function is 'tanh'"),
    (dict(norm_weights=np.zeros(24, "f2")), "norm_weights is float16; it must be f32"),
    (dict(norm_weights=np.zeros(24, "f4"), out_norm_eps=2), "out_norm_eps is 2; it must be 0, or from 1e-12 to 1"),
])
def test_refusals(change, sentence):
    call = draw()
    with pytest.raises((attune.InvalidArgumentError, ValueError), match=sentence):
        attune.linear_attention(**(call | gates(call) | change))


def repeated(shape, dtype="f4"):
    return np.broadcast_to(np.zeros(shape[-1], dtype), shape)


@pytest.mark.parametrize("change, sentence", [
    (dict(q=repeated((2, 19, 4, 16))), "q repeats one row by strides of 0; copy it"),
    (dict(decay=np.broadcast_to(np.float32(-0.1), (2, 19, 4))), "decay repeats one row by strides of 0"),
    (dict(beta=np.broadcast_to(np.float32(0.1), (2, 19, 1))), "beta repeats one row by strides of 0"),
    (dict(state=np.zeros((4, 4, 16, 24), "f4"), state_ids=np.arange(4, dtype="i4")[::2]), "innermost stride is 2"),
    (dict(state=np.zeros((4, 4, 16, 24), "f4"), state_ids=np.zeros(2, "f4")), "state_ids is float32"),
])
def test_views_that_repeat_or_skip(change, sentence):
    call = draw()
    with pytest.raises(attune.InvalidArgumentError, match=sentence):
        attune.linear_attention(**(call | gates(call) | change))


def test_one_beta_of_one_token_is_for_all_heads():
    call = draw(batch=1, length=1)
    one = RNG.random((1, 1, 4)).astype("f4")
    beta, decay = one[0, 0, :1][None, None], gates(call)["decay"]
    out, state = attune.linear_attention(**call, decay=decay, beta=beta)
    wanted, wanted_state = reference(**call, decay=decay, beta=np.repeat(beta, 4, -1))
    assert np.abs(out - wanted).max() < 1e-5 and np.abs(state - wanted_state).max() < 1e-5


def test_tokens_beyond_the_tensors():
    call = {name: x[0] for name, x in draw(batch=1).items()}
    with pytest.raises(attune.InvalidArgumentError, match="cu_seqlens ends beyond the 19 tokens of q"):
        attune.linear_attention(**call, rule="linear", cu_seqlens=[0, 20])


# ---- ONNX's cases ----

FOLDER = Path(os.environ.get("CONFORMANCE_DIR", "/nonexistent")) / "onnx-linear-attention"
CASES = sorted(path.parent.name for path in FOLDER.glob("*/case.json"))


@pytest.mark.skipif(not CASES, reason="CONFORMANCE_DIR has no onnx-linear-attention")
@pytest.mark.parametrize("name", CASES)
def test_onnx(name):
    case = json.loads((FOLDER / name / "case.json").read_text())
    tensors = {key: np.load(FOLDER / name / file) for key, file in (case["inputs"] | case["outputs"]).items()}
    attributes = case["attributes"]
    heads, v_heads = attributes["q_num_heads"], attributes["kv_num_heads"]
    batch, length = tensors["query"].shape[:2]

    def split(x, count):
        return x.reshape(batch, length, count, -1)

    call = dict(q=split(tensors["query"], heads), k=split(tensors["key"], v_heads), v=split(tensors["value"], v_heads),
                rule=attributes.get("update_rule", "gated_delta"))
    if attributes.get("scale"):
        call["scale"] = attributes["scale"]
    if "decay" in tensors:
        by_head = tensors["decay"].shape[-1] == v_heads
        call["decay"] = tensors["decay"] if by_head else split(tensors["decay"], v_heads)
    if "beta" in tensors:
        call["beta"] = tensors["beta"]
    if "past_state" in tensors:
        call["state"] = tensors["past_state"].astype(np.float32)
    out, state = attune.linear_attention(**call)
    exact = tensors["output"].dtype == np.float32
    close = dict(rtol=case["rtol"], atol=case["atol"] if exact else 1e-3)
    np.testing.assert_allclose(out.reshape(tensors["output"].shape), tensors["output"], **close)
    np.testing.assert_allclose(state, tensors["present_state"], **close)
