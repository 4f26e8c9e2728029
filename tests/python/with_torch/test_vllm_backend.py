"""attune's backend for vLLM with vLLM's classes faked: steps of many requests beside f64, request by request."""

import dataclasses
import gc
import itertools
import sys
import types
import weakref

import pytest
import torch

import vllm_stub as vllm
from vllm_requests import CASES, DTYPES, LAYER, SINKS, STEPS, Requests, backend, faked_classes, make, run  # noqa: F401


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_steps(backend, name, dtype):
    """Prompts, chunks of prompts, decoding and verifying, in one step and in no order."""
    options, wanted = CASES[name]
    r = Requests(4, 2, 32, dtype)
    impl, builder = make(backend, r, **options)
    for counts in STEPS:
        names, common, query, out = run(impl, builder, r, counts)
        expected = r.expected(names, common, query, 0.2, **wanted)
        torch.testing.assert_close(out.double(), expected, rtol=DTYPES[dtype][0], atol=DTYPES[dtype][1])


@pytest.mark.parametrize("dim, block_size", [(64, 32), (80, 48), (72, 16), (128, 128)])
def test_sizes(backend, dim, block_size):
    r = Requests(6, 2, dim, torch.float32, block_size)
    impl, builder = make(backend, r)
    for counts in STEPS:
        names, common, query, out = run(impl, builder, r, counts)
        torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=3e-5, atol=6e-6)


@pytest.mark.parametrize("cache", ["auto", "fp8", "int8_per_token_head"])
def test_values_of_another_size(backend, cache):
    """Keys of 48 columns and values of 32, in steps and slot by slot."""
    r = Requests(4, 2, 48, torch.float32, cache_dtype=cache, dim_v=32)
    impl, builder = make(backend, r, kv_cache_dtype=cache)
    tolerance = 3e-5 if cache == "auto" else 0.02
    for counts in STEPS:
        names, common, query, out = run(impl, builder, r, counts)
        torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=tolerance, atol=tolerance)
    names, common, key, value = r.common({"e": 20})
    impl.do_kv_cache_update(LAYER, key, value, r.cache, common.slot_mapping)
    names, common, query, out = run(impl, builder, r, {"e": 3})
    torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=tolerance, atol=tolerance)


def test_layers_share_a_plan(backend):
    """Two layers of one kind and one with a window: a plan for each kind, made once a step."""
    r = [Requests(4, 2, 32, torch.float32, seed=seed) for seed in (1, 1, 1)]
    layers = [make(backend, r[0])[0], make(backend, r[0])[0], make(backend, r[0], sliding_window=5)[0]]
    builder = make(backend, r[0])[1]
    _, common, key, value = r[0].common({"a": 9, "b": 3})
    query, metadata = r[0].draw(15, 4), builder.build(0, common)
    out = torch.empty(15, 4, 32)
    for layer, requests in zip(layers, r):
        layer.forward(LAYER, query, key, value, requests.cache, metadata, out)
    assert len(metadata.step._plans) == 2


def test_nothing_is_kept(backend):
    """The plans of a step are freed with its metadata, without Python's collector."""
    r = Requests(4, 2, 32, torch.float32)
    impl, builder = make(backend, r)
    _, common, key, value = r.common({"a": 9, "b": 3})
    metadata = builder.build(0, common)
    query = r.draw(12, 4)
    impl.forward(LAYER, query, key, value, r.cache, metadata, torch.empty_like(query))
    plans = [weakref.ref(plan) for plan in metadata.step._plans.values()]
    assert plans and all(plan() for plan in plans)
    gc.disable()
    try:
        del metadata
        assert not any(plan() for plan in plans)
    finally:
        gc.enable()


def test_metadata_that_is_copied(backend):
    """--kv-sharing-fast-prefill gives layers a class of its own, with the fields of the builder's metadata."""
    r = Requests(4, 2, 32, torch.float32)
    impl, builder = make(backend, r)
    names, common, key, value = r.common({"a": 9, "b": 3})
    made, query = builder.build(0, common), r.draw(12, 4)
    copy = type("Copy", (type(made),), {"__init__": lambda self: None})()
    for field in dataclasses.fields(made):
        setattr(copy, field.name, getattr(made, field.name))
    out = impl.forward(LAYER, query, key, value, r.cache, copy, torch.empty_like(query))
    torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=3e-5, atol=6e-6)


def test_weights_that_are_loaded_again(backend):
    """Sinks and scales of fp8 are those that the layer has when it computes."""
    r = Requests(4, 2, 32, torch.float32)
    sinks = SINKS.bfloat16()
    impl, builder = make(backend, r, sinks=sinks)
    run(impl, builder, r, {"a": 9})
    sinks += 3
    names, common, query, out = run(impl, builder, r, {"a": 4})
    torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2, sinks=sinks), rtol=3e-5, atol=6e-6)
    r = Requests(4, 2, 32, torch.float32, cache_dtype="fp8")
    impl, builder = make(backend, r, kv_cache_dtype="fp8")
    run(impl, builder, r, {"a": 9}, types.SimpleNamespace(_k_scale_float=1.0, _v_scale_float=1.0))
    names, common, query, out = run(impl, builder, r, {"b": 40})
    torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=0.005, atol=0.005)


def test_keys_of_an_earlier_layer(backend):
    """kv_sharing: a layer attends to the cache of another, and appends nothing."""
    r = Requests(4, 2, 32, torch.float32)
    impl, builder = make(backend, r)
    sharing, _ = make(backend, r, kv_sharing_target_layer_name="layer")
    for counts in STEPS:
        names, common, query, out = run(impl, builder, r, counts)
        before, again = r.cache.clone(), torch.empty_like(query)
        other = torch.full((query.shape[0], 2, 32), 9.0)
        sharing.forward(LAYER, query, other, other, r.cache, builder.build(0, common), again)
        torch.testing.assert_close(again[: out.shape[0]], out, rtol=2e-5, atol=2e-6)
        assert torch.equal(before.nan_to_num(3), r.cache.nan_to_num(3))


@pytest.mark.parametrize("cache", ["auto", "fp8", "int8_per_token_head"])
def test_keys_that_a_model_writes(backend, cache):
    """Drafts of DFlash write keys themselves, by the function that vLLM's own backend has for it."""
    r = Requests(4, 2, 32, torch.float32, cache_dtype=cache)
    impl, builder = make(backend, r, kv_cache_dtype=cache)
    names, common, key, value = r.common({"a": 20, "b": 3})
    impl.do_kv_cache_update(LAYER, key, value, r.cache, common.slot_mapping)
    assert not impl.calls
    names, common, query, out = run(impl, builder, r, {"a": 2, "b": 1})
    tolerance = 3e-5 if cache == "auto" else 0.02
    torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=tolerance, atol=tolerance)


def test_causality_by_request(backend):
    r = Requests(4, 2, 32, torch.float32)
    for window in (None, 12):
        impl, builder = make(backend, r, sliding_window=window)
        causal = torch.tensor([True, False, True])
        names, common, query, out = run(impl, builder, r, {"a": 30, "b": 17, "c": 9}, causal=causal)
        expected = r.expected(names, common, query, 0.2, causal=causal, window=window or 0)
        torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-6)


def test_no_causality(backend):
    r = Requests(4, 2, 32, torch.float32)
    for window in (None, 6):
        impl, builder = make(backend, r, sliding_window=window)
        for counts in STEPS:
            names, common, query, out = run(impl, builder, r, counts, causal=False)
            expected = r.expected(names, common, query, 0.2, causal=False, window=window or 0)
            torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["ENCODER_ONLY", "ENCODER"])
def test_encoders(backend, kind):
    r = Requests(4, 2, 32, torch.float32)
    spec = sys.modules["vllm.v1.kv_cache_interface"].EncoderOnlyAttentionSpec()
    for window in (None, 6):
        r.keys.clear(), r.values.clear()
        impl, builder = make(backend, r, spec, attn_type=vllm.AttentionType[kind], sliding_window=window)
        names, common, query, out = run(impl, builder, r, {"a": 30, "b": 17, "c": 1})
        expected = r.expected(names, common, query, 0.2, causal=False, window=window or 0)
        torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("cache", ["auto", "fp8", "int8_per_token_head", "bfloat16"])
def test_cross_attention(backend, cache):
    """The encoder's keys come with the first step; later ones have none."""
    r = Requests(4, 2, 32, torch.float32, cache_dtype=cache)
    spec = sys.modules["vllm.v1.kv_cache_interface"].CrossAttentionSpec()
    impl, builder = make(backend, r, spec, attn_type=vllm.AttentionType.ENCODER_DECODER, kv_cache_dtype=cache)
    names, common, key, value = r.common({"a": 40, "b": 23})
    common.query_start_loc, common.num_actual_tokens = torch.tensor([0, 3, 7], dtype=torch.int32), 7
    for new in (True, False):
        query = r.draw(7, 4)
        out = torch.empty(7, 4, 32)
        impl.forward(LAYER, query, key if new else None, value if new else None, r.cache, builder.build(0, common), out)
        expected = r.expected(names, common, query, 0.2, causal=False)
        tolerance = 2e-5 if cache == "auto" else 0.02
        torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cache, tolerance", [("fp8", 0.02), ("int8_per_token_head", 0.02), ("bfloat16", 0.02)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_caches_of_other_types(backend, cache, tolerance, dtype):
    r = Requests(4, 2, 32, dtype, cache_dtype=cache)
    impl, builder = make(backend, r, kv_cache_dtype=cache)
    for counts in STEPS:
        names, common, query, out = run(impl, builder, r, counts)
        torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=tolerance, atol=tolerance)


def test_room_for_scales(backend):
    """A spec of int8 asks for the bytes that a key takes."""
    mode = types.SimpleNamespace(is_per_token_head=True)
    assert backend.AttuneBackend.customize_spec(vllm.AttentionSpec(64, 16, None, mode)).state_content_bytes == 136
    plain = vllm.AttentionSpec(64, 16, None, types.SimpleNamespace(is_per_token_head=False))
    assert backend.AttuneBackend.customize_spec(plain) is plain


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype, cache", [(torch.float32, "auto"), (torch.bfloat16, "auto"), (torch.bfloat16, "fp8"),
                                          (torch.float32, "int8_per_token_head")])  # fmt: skip
def test_bits_of_a_request(backend, monkeypatch, threads, dtype, cache):
    """ATTUNE_VLLM_REPRODUCIBLE=1: a request has the same bits alone, in a batch, in chunks, behind a cached prefix, in
    blocks of any size and on any number of threads."""
    monkeypatch.setenv("ATTUNE_VLLM_REPRODUCIBLE", "1")
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn((50, heads, 32), generator=generator).to(dtype) for heads in (4, 2, 2))

    def compute(r, name, first, chunks, others):
        """The tokens of a request from `first` on, in chunks, beside others."""
        impl, builder = make(backend, r, kv_cache_dtype=cache)
        parts = []
        for count in chunks:
            names, common, key, value = r.common({name: count, **others})
            query = r.draw(key.shape[0], 4)
            start = common.query_start_loc[names.index(name)]
            for mine, own in ((query, q), (key, k), (value, v)):
                mine[start : start + count] = own[first : first + count]
            out = torch.empty(query.shape[0], 4, 32, dtype=dtype)
            impl.forward(LAYER, query, key, value, r.cache, builder.build(0, common), out)
            parts.append(out[start : start + count])
            first += count
        return torch.cat(parts)

    cases = [([50], {}, 16), ([20, 20, 5, 1, 1, 1, 1, 1], {}, 32), ([49, 1], {"x": 7, "y": 1}, 16),
             ([1, 49], {"x": 33}, 48)]  # fmt: skip
    whole = None
    for (chunks, others, block_size), count in itertools.product(cases, (1, 2)):
        threads(count)
        r = Requests(4, 2, 32, dtype, block_size, cache_dtype=cache)
        out = compute(r, "a", 0, chunks, others)
        whole = out if whole is None else whole
        assert torch.equal(out, whole), (chunks, others, block_size, count)
    r.share("b", "a", 1)
    assert torch.equal(compute(r, "b", 48, [2], {"y": 3}), whole[48:])


@pytest.mark.parametrize("cache", ["auto", "fp8", "int8_per_token_head"])
def test_slots_of_their_own(backend, cache):
    """A token without a slot is not written, as a draft beyond the longest request; the others are."""
    r = Requests(4, 2, 32, torch.float32, cache_dtype=cache)
    impl, builder = make(backend, r, kv_cache_dtype=cache)
    run(impl, builder, r, {"a": 20, "b": 3})
    names, common, key, value = r.common({"a": 2, "b": 2})
    last = common.query_start_loc[names.index("b") + 1] - 1
    common.slot_mapping[last] = -1
    before, query = r.cache.clone(), r.draw(4, 4)
    metadata, out = builder.build(0, common), torch.empty(4, 4, 32)
    assert not metadata.step.appends
    impl.forward(LAYER, query, key, value, r.cache, metadata, out)
    size = r.cache.itemsize * 16 * 32
    keys = [c.view(torch.uint8).flatten(2)[..., :size].unflatten(2, (16, -1)) for c in (before, r.cache)]
    changed = {(int(block), int(row)) for block, _, row, _ in (keys[0] != keys[1]).nonzero()}
    slots = [int(slot) for slot in common.slot_mapping if slot >= 0]
    assert changed == {(slot // 16, slot % 16) for slot in slots} and len(slots) == 3
    tolerance = {"auto": 3e-5, "fp8": 0.02, "int8_per_token_head": 0.02}[cache]
    own = slice(common.query_start_loc[names.index("a")], common.query_start_loc[names.index("a") + 1])
    expected = r.expected(names, common, query, 0.2)
    torch.testing.assert_close(out[own].double(), expected[own], rtol=tolerance, atol=tolerance)
