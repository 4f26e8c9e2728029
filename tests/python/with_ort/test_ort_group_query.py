"""com.microsoft GroupQueryAttention by attune beside stock ONNX Runtime."""

import numpy as np
import ort_support as support
import pytest
from onnx import TensorProto

HEADS, KV_HEADS, DIM, POSITIONS = 4, 2, 32, 64
NAMES = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache",
         "sin_cache", "position_ids", "attention_bias", "head_sink"]
ROTARY = {"do_rotary": 1}


def normal(*dims, seed=1):
    return np.random.default_rng(seed + sum(dims)).standard_normal(dims, dtype=np.float32)


def tables(half=DIM // 2):
    angles = np.arange(POSITIONS)[:, None] / 10000 ** (np.arange(half) / half)
    return {"cos_cache": np.cos(angles).astype(np.float32), "sin_cache": np.sin(angles).astype(np.float32)}


def inputs(lengths, rows, room=None, packed=False, rotary=True, half=DIM // 2, **others):
    """A call after which entry b has lengths[b] keys, `rows` of them new; room: keys that past has room for."""
    batch, total = len(lengths), max(lengths)
    plain = {
        "query": normal(batch, rows, (HEADS + (2 * KV_HEADS if packed else 0)) * DIM, seed=1),
        "seqlens_k": np.array(lengths, np.int32) - 1,
        "total_sequence_length": np.array([total], np.int32),
    }
    if not packed:
        plain |= {name: normal(batch, rows, KV_HEADS * DIM, seed=seed) for name, seed in (("key", 2), ("value", 3))}
    if room is not None:
        plain |= {"past_key": normal(batch, KV_HEADS, room, DIM, seed=4),
                  "past_value": normal(batch, KV_HEADS, room, DIM, seed=5)}
    plain |= (tables(half) if rotary else {}) | others
    return {name: plain.get(name) for name in NAMES}


SINK = normal(HEADS)
CASES = {
    "prompt": (inputs([9, 9], 9), ROTARY),
    "prompt_without_rotary": (inputs([9, 9], 9, rotary=False), {}),
    "prompt_into_a_large_cache": (inputs([9, 9], 9, room=24), ROTARY),
    "prompt_packed": (inputs([9, 9], 9, packed=True), ROTARY),
    "token": (inputs([13], 1, room=12), ROTARY),
    "token_packed": (inputs([13, 13], 1, room=12, packed=True), ROTARY),
    "token_into_a_large_cache": (inputs([13, 13], 1, room=24), ROTARY),
    "tokens_of_other_lengths": (inputs([13, 5, 10], 1, room=12), ROTARY),
    "tokens_of_other_lengths_large": (inputs([13, 5, 10], 1, room=30), ROTARY),
    "first_token": (inputs([1], 1), ROTARY),
    "prompt_goes_on": (inputs([14], 5, room=9), ROTARY),
    "interleaved": (inputs([9, 9], 9), ROTARY | {"rotary_interleaved": 1}),
    "interleaved_token": (inputs([13], 1, room=12), ROTARY | {"rotary_interleaved": 1}),
    "rotary_of_a_part": (inputs([9, 9], 9, half=8), ROTARY),
    "window": (inputs([30], 30), ROTARY | {"local_window_size": 7}),
    "window_of_a_token": (inputs([30, 12], 1, room=29), ROTARY | {"local_window_size": 7}),
    "window_of_one": (inputs([9], 9), ROTARY | {"local_window_size": 1}),
    "cap": (inputs([9, 9], 9), ROTARY | {"softcap": 2.0}),
    "scale": (inputs([9, 9], 9), ROTARY | {"scale": 0.3}),
    "sink": (inputs([9, 9], 9, head_sink=SINK), ROTARY),
    "sink_of_a_token": (inputs([13, 6], 1, room=12, head_sink=SINK), ROTARY),
    "smooth": (inputs([9, 9], 9), ROTARY | {"smooth_softmax": 1}),
    "attention_bias": (inputs([9, 9], 9, attention_bias=normal(2, HEADS, 9, 9)), ROTARY),
    "attention_bias_of_all": (inputs([9, 9], 9, attention_bias=normal(1, 1, 9, 9)), ROTARY),
    "attention_bias_of_a_token": (inputs([13, 6], 1, room=12, attention_bias=normal(2, 1, 1, 13)), ROTARY),
    "positions": (inputs([13, 6], 1, room=12, position_ids=np.array([[20], [3]], np.int64)), ROTARY),
    "position_of_a_prompt": (inputs([9, 9], 9, position_ids=np.tile(np.arange(9) + 3, (2, 1))), ROTARY),
    "long": (inputs([60], 60), ROTARY),
}


def outputs(kind=TensorProto.FLOAT):
    return {"output": kind, "present_key": kind, "present_value": kind}


def make(given, attributes, kind=TensorProto.FLOAT):
    return support.model("GroupQueryAttention", given, outputs(kind), domain="com.microsoft", num_heads=HEADS,
                         kv_num_heads=KV_HEADS, **attributes)


def run(given, attributes, entry, kind=TensorProto.FLOAT):
    return support.session(make(given, attributes, kind), entry).run(None, support.feeds(given))


def same(got, wanted, **tolerance):
    for have, want in zip(got, wanted):
        np.testing.assert_allclose(have.astype(np.float32), want.astype(np.float32), **tolerance)


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("name", CASES)
def test_like_stock(name, entry):
    given, attributes = CASES[name]
    before = support.ran("GroupQueryAttention")
    got = run(given, attributes, entry)
    assert support.ran("GroupQueryAttention") == before + 1
    same(got, run(given, attributes, None), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("name", ["prompt", "tokens_of_other_lengths", "sink", "attention_bias"])
def test_half(name, entry):
    given, attributes = CASES[name]
    halves = {key: array.astype(np.float16) if array is not None and array.dtype == np.float32 else array
              for key, array in given.items()}
    same(run(halves, attributes, entry, TensorProto.FLOAT16), run(given, attributes, None), rtol=6e-3, atol=6e-3)


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_padded_prompt(entry):
    """Rows beyond an entry's length are padding: those before are as of a prompt without it."""
    given, attributes = CASES["prompt"]
    padded = given | {"seqlens_k": np.array([8, 4], np.int32)}
    got, wanted = run(padded, attributes, entry), run(given, attributes, None)
    np.testing.assert_allclose(got[0][0], wanted[0][0], rtol=3e-5, atol=3e-6)
    np.testing.assert_allclose(got[0][1, :5], wanted[0][1, :5], rtol=3e-5, atol=3e-6)


def bind(session, given, caches):
    """Runs with past and present in one buffer for each of k and v."""
    binding = session.io_binding()
    for name, array in support.feeds(given).items():
        if not name.startswith("past"):
            binding.bind_cpu_input(name, array)
    binding.bind_output("output", "cpu")
    for part, cache in zip(("key", "value"), caches):
        pointer, dims = cache.ctypes.data, list(cache.shape)
        binding.bind_input(f"past_{part}", "cpu", 0, np.float32, dims, pointer)
        binding.bind_output(f"present_{part}", "cpu", 0, np.float32, dims, pointer)
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy()


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_generation_in_one_buffer(entry):
    """A prompt and tokens, past and present sharing their memory, beside stock with growing caches."""
    room, batch = 20, 2
    prompt = inputs([6, 6], 6, room=room)
    ours = support.session(make(prompt, ROTARY), entry)
    stock = support.session(make(inputs([6, 6], 6, room=0), ROTARY))
    caches = [np.full((batch, KV_HEADS, room, DIM), 7, np.float32) for _ in range(2)]
    past = [np.zeros((batch, KV_HEADS, 0, DIM), np.float32) for _ in range(2)]
    for length, rows in ((6, 6), (7, 1), (8, 1), (9, 1)):
        given = inputs([length] * batch, rows, room=room)
        got = bind(ours, given, caches)
        feeds = support.feeds(given | {"past_key": past[0], "past_value": past[1]})
        wanted, *past = stock.run(None, feeds)
        np.testing.assert_allclose(got, wanted, rtol=3e-5, atol=3e-6)
        for cache, reference in zip(caches, past):
            np.testing.assert_allclose(cache[:, :, :length], reference, rtol=3e-5, atol=3e-6)
            assert (cache[:, :, length:] == 7).all()
