"""GroupQueryAttention with caches of int8 and int4, norms of queries and keys, and causal=0: the execution provider
beside stock ONNX Runtime, and beside NumPy where ONNX Runtime has no kernel for the CPU."""

import numpy as np
import ort_support as support
import pytest
from onnx import TensorProto
from test_ort_group_query import CASES, DIM, HEADS, KV_HEADS, NAMES, ROTARY, inputs, normal, same, tables

SCALES = {"PER_TENSOR": [1], "PER_CHANNEL": [1, KV_HEADS, 1, DIM]}
CACHE = {8: TensorProto.INT8, 4: TensorProto.UINT8}
support.TYPES.setdefault(np.dtype(np.uint8), TensorProto.UINT8)


def quantised(given, bits, mode, dtype=np.float32):
    """The same call with caches of `bits` bits: past_key and past_value, or an empty past, become random bytes."""
    rng = np.random.default_rng(bits)
    floats = {name: array.astype(dtype) for name, array in given.items()
              if array is not None and array.dtype == np.float32}
    batch, room = len(given["seqlens_k"]), 0 if given["past_key"] is None else given["past_key"].shape[2]
    dims = (batch, KV_HEADS, room, DIM if bits == 8 else DIM // 2)
    past = {name: (rng.integers(-128, 128, dims).astype(np.int8) if bits == 8 else
                   rng.integers(0, 256, dims).astype(np.uint8)) for name in ("past_key", "past_value")}
    scales = {name: (rng.uniform(0.5, 1.5, SCALES[mode]) * (0.02 if bits == 8 else 0.3)).astype(np.float32)
              for name in ("k_scale", "v_scale")}
    every = given | floats | past | scales
    return {name: every.get(name) for name in [*NAMES, "k_scale", "v_scale"]}


def make(given, attributes, bits=0, mode="NONE", kind=TensorProto.FLOAT):
    cache = CACHE.get(bits, kind)
    if bits:
        attributes = attributes | {"kv_cache_bit_width": bits, "k_quant_type": mode, "v_quant_type": mode}
    return support.model("GroupQueryAttention", given,
                         {"output": kind, "present_key": cache, "present_value": cache}, domain="com.microsoft",
                         num_heads=HEADS, kv_num_heads=KV_HEADS, **attributes)


def run(model, given, entry):
    before = support.ran("GroupQueryAttention")
    out = support.session(model, entry).run(None, support.feeds(given))
    assert support.ran("GroupQueryAttention") == before + (entry is not None)
    return out


def lengths(given):
    return given["seqlens_k"] + 1


QUANTISED = [name for name in CASES if name not in ("prompt_without_rotary", "long", "scale")]


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("bits", [8, 4])
def test_like_stock(name, bits):
    given, attributes = CASES[name]
    mode = ("PER_TENSOR", "PER_CHANNEL")[QUANTISED.index(name) % 2]
    given = quantised(given, bits, mode)
    model = make(given, attributes, bits, mode)
    (out, *present), (wanted, *stock) = run(model, given, "ep"), run(model, given, None)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=2e-5)
    for have, want in zip(present, stock):
        for row, length in enumerate(lengths(given)):
            assert np.array_equal(have[row, :, :length], want[row, :, :length])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("mode", SCALES)
def test_generation_with_both_scales(bits, mode):
    """A prompt and then tokens, each with the caches that the step before left."""
    ours = stock = None
    caches = {}
    for length, rows in ((6, 6), (7, 1), (8, 1), (11, 3)):
        given = quantised(inputs([length], rows, room=length - rows), bits, mode) | caches
        model = make(given, ROTARY, bits, mode)
        ours, stock = run(model, given, "ep"), run(model, given, None)
        np.testing.assert_allclose(ours[0], stock[0], rtol=1e-4, atol=2e-5)
        assert np.array_equal(ours[1], stock[1]) and np.array_equal(ours[2], stock[2])
        caches = {"past_key": ours[1], "past_value": ours[2]}


@pytest.mark.parametrize("bits", [8, 4])
def test_half_queries(bits):
    given, attributes = CASES["tokens_of_other_lengths"]
    exact = quantised(given, bits, "PER_CHANNEL")
    halves = quantised(given, bits, "PER_CHANNEL", np.float16)
    got = run(make(halves, attributes, bits, "PER_CHANNEL", TensorProto.FLOAT16), halves, "ep")
    wanted = run(make(exact, attributes, bits, "PER_CHANNEL"), exact, None)
    assert got[0].dtype == np.float16
    np.testing.assert_allclose(got[0].astype(np.float32), wanted[0], rtol=1e-2, atol=1e-2)


def test_numbers_beyond_the_scale():
    """ONNX Runtime's limits are -128 and -8, and what is no number is 0."""
    for bits, least, most in ((8, -128, 127), (4, -8, 7)):
        given = quantised(inputs([2], 2, rotary=False), bits, "PER_TENSOR")
        given["key"][0, 0, :4] = [-1e9, 1e9, 0, np.inf]
        given["key"][0, 1, :] = 0
        present = run(make(given, {}, bits, "PER_TENSOR"), given, "ep")[1][0, 0, 0]
        row = present if bits == 8 else np.stack([present & 15, present >> 4], -1).reshape(-1).astype(int) - 8
        assert list(row[:4]) == [least, most, 0, most]


# ---- Norms, which ONNX Runtime has no kernel for on CPUs ----

def normalised(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotated(x, first, table):
    half = table["cos_cache"].shape[1]
    rows = slice(first, first + x.shape[2])
    cos, sin = table["cos_cache"][rows].astype("f8"), table["sin_cache"][rows].astype("f8")
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos, rest], -1)


def split(x, heads):
    return x.reshape(x.shape[0], x.shape[1], heads, DIM).transpose(0, 2, 1, 3).astype("f8")


def by_numpy(given, eps, causal=True):
    """Attention in f64, of one length for all entries, with norms if there are any."""
    q, k, v = (split(given[name], heads) for name, heads in (("query", HEADS), ("key", KV_HEADS), ("value", KV_HEADS)))
    past = 0 if given["past_key"] is None else given["past_key"].shape[2]
    if given.get("q_norm_weight") is not None:
        q = normalised(q, given["q_norm_weight"].astype("f8"), eps)
        k = normalised(k, given["k_norm_weight"].astype("f8"), eps)
    q, k = rotated(q, past, given), rotated(k, past, given)
    if past:
        k = np.concatenate([given["past_key"].astype("f8"), k], 2)
        v = np.concatenate([given["past_value"].astype("f8"), v], 2)
    k, v = (x.repeat(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(DIM)
    if causal:
        seen = np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + past
        scores = np.where(seen, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    out = p / p.sum(-1, keepdims=True) @ v
    return out.transpose(0, 2, 1, 3).reshape(given["query"].shape)


def with_norms(given):
    return {name: given.get(name) for name in [*NAMES, "k_scale", "v_scale"]} | {
        "q_norm_weight": 1 + normal(DIM, seed=8) / 4, "k_norm_weight": 1 + normal(DIM, seed=9) / 4}


@pytest.mark.parametrize("name", ["prompt", "token", "prompt_goes_on"])
def test_norms(name):
    given = with_norms(CASES[name][0])
    out, *_ = run(make(given, ROTARY | {"qk_norm_epsilon": 1e-5}), given, "ep")
    np.testing.assert_allclose(out, by_numpy(given, 1e-5), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("bits", [8, 4])
def test_norms_with_a_quantised_cache(bits):
    """The same as without norms, of queries and keys that are normalised and rotated before."""
    plain = quantised(inputs([9], 9), bits, "PER_CHANNEL")
    given = with_norms(plain)
    got = run(make(given, ROTARY | {"q_norm_epsilon": 1e-5, "k_norm_epsilon": 1e-4}, bits, "PER_CHANNEL"), given, "ep")
    for part, heads, weight, eps in (("query", HEADS, "q_norm_weight", 1e-5), ("key", KV_HEADS, "k_norm_weight", 1e-4)):
        x = normalised(plain[part].reshape(1, 9, heads, DIM), given[weight], np.float32(eps))
        plain[part] = x.reshape(plain[part].shape).astype(np.float32)
    wanted = run(make(plain, ROTARY, bits, "PER_CHANNEL"), plain, None)
    np.testing.assert_allclose(got[0], wanted[0], rtol=2e-2, atol=2e-2)  # a number beside a half may go either way


def dequantised(cache, scale, bits):
    """ONNX Runtime's bytes as numbers, [batch, KV heads, keys, dim]. With 4 bits the lower half is the first column."""
    if bits == 4:
        cache = np.stack([cache & 15, cache >> 4], -1).reshape(*cache.shape[:3], DIM).astype("f8") - 8
    return cache.astype("f8") * scale.astype("f8").reshape(1, -1, 1, DIM if scale.size > 1 else 1)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("name", ["prompt", "token", "prompt_goes_on"])
@pytest.mark.parametrize("mode", SCALES)
@pytest.mark.parametrize("bits", [8, 4])
def test_against_f64(bits, mode, name, norms):
    """Attention in f64 to the numbers that the present caches hold."""
    given = quantised(CASES[name][0], bits, mode)
    attributes = ROTARY | {"qk_norm_epsilon": 1e-5} if norms else ROTARY
    if norms:
        given = with_norms(given)
    out, *present = run(make(given, attributes, bits, mode), given, "ep")
    q = split(given["query"], HEADS)
    past = given["past_key"].shape[2]
    if norms:
        q = normalised(q, given["q_norm_weight"].astype("f8"), 1e-5)
    q = rotated(q, past, given)
    k, v = (dequantised(cache, given[scale], bits).repeat(HEADS // KV_HEADS, 1)
            for cache, scale in zip(present, ("k_scale", "v_scale")))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(DIM)
    scores[..., np.arange(k.shape[2]) > np.arange(q.shape[2])[:, None] + past] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = (p / p.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(out.shape)
    np.testing.assert_allclose(out, wanted, rtol=3e-5, atol=3e-6)


# ---- causal=0 ----

@pytest.mark.parametrize("name", ["prompt", "token", "prompt_goes_on", "tokens_of_other_lengths_large"])
@pytest.mark.parametrize("bits", [0, 8])
def test_all_keys(name, bits):
    given, attributes = CASES[name]
    mode = "PER_TENSOR" if bits else "NONE"
    given = quantised(given, bits, mode) if bits else given
    model = make(given, attributes | {"causal": 0}, bits, mode)
    same(run(model, given, "ep")[:1], run(model, given, None)[:1], rtol=1e-4, atol=2e-5)


def test_padding_behind_a_prompt_that_sees_all_keys():
    given = CASES["prompt"][0] | {"seqlens_k": np.array([8, 4], np.int32)}
    got = run(make(given, ROTARY | {"causal": 0}), given, "ep")[0]
    for row, length in enumerate(lengths(given)):
        alone = {name: given[name][row:row + 1, :length] for name in ("query", "key", "value")} | tables()
        wanted = by_numpy({"past_key": None} | alone, 0, causal=False)
        np.testing.assert_allclose(got[row:row + 1, :length], wanted, rtol=3e-5, atol=3e-6)


# ---- What is refused ----

def refusal(given, attributes, bits=8, mode="PER_TENSOR"):
    with pytest.raises(Exception) as error:
        run(make(given, attributes, bits, mode), given, "ep")
    return str(error.value)


def test_scales_of_another_shape():
    given = quantised(inputs([9], 9), 8, "PER_TENSOR") | {"k_scale": np.ones(3, np.float32)}
    assert "k_scale has 3 elements; it must be float and have 1 or 64" in refusal(given, ROTARY)


def test_one_scale_beside_many():
    given = quantised(inputs([9], 9), 8, "PER_TENSOR") | {"v_scale": np.ones(64, np.float32)}
    assert "k_scale has 1 elements and v_scale 64" in refusal(given, ROTARY)


@pytest.mark.parametrize("attributes", [{"causal": 0, "local_window_size": 4}, {"kv_cache_bit_width": 2}])
def test_left_to_stock(attributes):
    """The provider leaves what it cannot compute, and does not count it."""
    given = CASES["prompt"][0]
    left = support.attune.ort.stats().get("ep.left", 0)
    try:
        support.session(make(given, ROTARY | attributes), "ep")
    except Exception:  # stock may refuse it as well
        pass
    assert support.attune.ort.stats().get("ep.left", 0) > left
