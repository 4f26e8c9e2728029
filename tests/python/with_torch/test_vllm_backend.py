"""attune's backend for vLLM with vLLM's classes faked: steps of many requests beside f64, request by request."""

import importlib
import math
import os
import random
import sys
import types
from dataclasses import replace

import pytest
import torch

import vllm_stub as vllm

import attune


@pytest.fixture(scope="module", autouse=True)
def faked_classes():
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "vllm"}
    vllm.install()
    yield
    for name in list(sys.modules):
        if name.split(".")[0] == "vllm" or name.startswith("attune.vllm._backend"):
            del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def backend():
    return importlib.import_module("attune.vllm._backend")


DTYPES = {torch.float32: (3e-5, 6e-6), torch.bfloat16: (3e-2, 2e-2), torch.float16: (4e-3, 3e-3)}


class Requests:
    """Requests with the keys and values that they had so far, and a cache of vLLM's for them."""

    def __init__(self, heads, kv_heads, dim, dtype, block_size=16, blocks=64, cache_dtype="auto", seed=1):
        self.heads, self.kv_heads, self.dim, self.dtype, self.block_size = heads, kv_heads, dim, dtype, block_size
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        content, stored = 2 * dim, dtype
        if cache_dtype == "fp8":
            stored = torch.uint8
        if cache_dtype == "int8_per_token_head":
            content, stored = 2 * dim + 8, torch.int8
        self.cache = torch.zeros((blocks, kv_heads, block_size, content), dtype=torch.uint8 if stored.itemsize == 1
                                 else stored)
        if stored.itemsize > 1:
            self.cache.fill_(float("nan"))  # what nobody wrote must not be read
        self.cache = self.cache.view(stored)
        self.free = list(range(blocks))
        self.random.shuffle(self.free)
        self.keys, self.values, self.tables = {}, {}, {}

    def draw(self, count, heads):
        return torch.randn((count, heads, self.dim), generator=self.generator).to(self.dtype)

    def common(self, counts, **more):
        """The metadata of a step in which request r gets counts[r] tokens, and its new keys and values."""
        names = list(counts)
        self.random.shuffle(names)  # in no order
        total = sum(counts.values())
        key, value = self.draw(total + 3, self.kv_heads), self.draw(total + 3, self.kv_heads)
        starts, slots, first = [0], [], 0
        for name in names:
            new = slice(first, first + counts[name])
            for rows, all_rows in ((key, self.keys), (value, self.values)):
                old = all_rows.get(name, rows[:0])
                all_rows[name] = torch.cat([old, rows[new]])
            table = self.tables.setdefault(name, [])
            while len(table) * self.block_size < len(self.keys[name]):
                table.append(self.free.pop())
            for position in range(len(self.keys[name]) - counts[name], len(self.keys[name])):
                slots.append(table[position // self.block_size] * self.block_size + position % self.block_size)
            first += counts[name]
            starts.append(first)
        columns = max(len(self.tables[name]) for name in names) + 2
        table = torch.full((len(names) + 1, columns), 10**6, dtype=torch.int32)  # no block has such a number
        for row, name in enumerate(names):
            table[row, : len(self.tables[name])] = torch.tensor(self.tables[name])
        lens = torch.tensor([len(self.keys[name]) for name in names], dtype=torch.int32)
        common = vllm.CommonAttentionMetadata(torch.tensor(starts, dtype=torch.int32), lens, len(names), total, table,
                                              torch.tensor(slots), **more)
        return names, common, key, value

    def expected(self, names, common, query, scale, *, causal=True, window=0, cap=0.0, slopes=None, sinks=None):
        parts, starts = [], common.query_start_loc.tolist()
        for i, name in enumerate(names):
            q = query[starts[i] : starts[i + 1]].double().transpose(0, 1)
            k, v = (x[name].double().transpose(0, 1).repeat_interleave(self.heads // self.kv_heads, 0)
                    for x in (self.keys, self.values))
            is_causal = causal if isinstance(causal, bool) else bool(causal[i])
            parts.append(attend(q, k, v, scale, is_causal, window, cap, slopes, sinks).transpose(0, 1))
        return torch.cat(parts)


def attend(q, k, v, scale, causal, window, cap, slopes, sinks):
    scores = q @ k.transpose(1, 2) * scale
    position = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    distance = position - torch.arange(k.shape[1])
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if slopes is not None:
        scores = scores - torch.tensor(slopes).double()[:, None, None] * distance.abs()
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if causal:
        hidden |= distance < 0
    if window:
        hidden |= distance.abs() >= window
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)], 2)
    p = torch.softmax(scores, 2)
    return p[..., : k.shape[1]] @ v


LAYER = types.SimpleNamespace(_k_scale_float=0.05, _v_scale_float=0.04)
SPEC = vllm.AttentionSpec()


def make(backend, r, spec=SPEC, scale=0.2, **options):
    options.setdefault("kv_cache_dtype", "auto")
    impl = backend.AttuneBackend.get_impl_cls()(r.heads, r.dim, scale, r.kv_heads, options.pop("alibi_slopes", None),
                                                options.pop("sliding_window", None), options.pop("kv_cache_dtype"),
                                                **options)
    return impl, build_for(backend, [impl], r.dtype, replace(spec, block_size=r.block_size))


def build_for(backend, impls, dtype=torch.float32, spec=SPEC, cache_dtype="auto"):
    layers = {f"layer{i}": vllm.Attention(impl) for i, impl in enumerate(impls)}
    config = types.SimpleNamespace(cache_config=types.SimpleNamespace(cache_dtype=cache_dtype), layers=layers,
                                   model_config=types.SimpleNamespace(dtype=dtype))
    return backend.AttuneBackend.get_builder_cls()(spec, list(layers), config, torch.device("cpu"))


def run(impl, builder, r, counts, layer=LAYER, **more):
    names, common, key, value = r.common(counts, **more)
    query = r.draw(common.num_actual_tokens + 3, r.heads)
    out = torch.full((query.shape[0], r.heads, r.dim), 7.0, dtype=r.dtype)
    metadata = builder.build(0, common)
    assert impl.forward(layer, query, key, value, r.cache, metadata, out) is out
    assert (out[common.num_actual_tokens:] == 7).all()  # padding is not written
    return names, common, query, out[: common.num_actual_tokens]


SLOPES = [0.5, 0.25, 0.125, 0.0625]
SINKS = torch.tensor([0.3, -1.0, 2.0, 0.0])
CASES = {
    "plain": ({}, {}),
    "window": ({"sliding_window": 20}, {"window": 20}),
    "soft_cap": ({"logits_soft_cap": 4.0}, {"cap": 4.0}),
    "alibi": ({"alibi_slopes": SLOPES}, {"slopes": SLOPES}),
    "sinks": ({"sinks": SINKS}, {"sinks": SINKS}),
    "all": ({"sliding_window": 9, "logits_soft_cap": 3.0, "sinks": SINKS}, {"window": 9, "cap": 3.0, "sinks": SINKS}),
}
STEPS = [{"a": 37, "b": 1}, {"a": 1, "b": 20, "c": 5}, {"a": 1, "b": 1, "c": 1, "d": 64},
         {"a": 4, "b": 5, "c": 1, "d": 1}]


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


@pytest.mark.parametrize("cache", ["auto", "fp8", "int8_per_token_head"])
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
        tolerance = {"auto": 2e-5, "fp8": 0.15, "int8_per_token_head": 0.03}[cache]
        torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cache, tolerance", [("fp8", 0.15), ("int8_per_token_head", 0.03)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantised_caches(backend, cache, tolerance, dtype):
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


def test_bits_of_a_request(backend, monkeypatch):
    """ATTUNE_VLLM_REPRODUCIBLE=1: a request has the same bits alone, in a batch, and in chunks."""
    monkeypatch.setenv("ATTUNE_VLLM_REPRODUCIBLE", "1")
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn((50, heads, 32), generator=generator) for heads in (4, 2, 2))
    results = []
    cases = ([50], {}), ([20, 20, 5, 1, 1, 1, 1, 1], {}), ([49, 1], {"x": 7, "y": 1}), ([1, 49], {"x": 33})
    for chunks, others in cases:
        r = Requests(4, 2, 32, torch.float32)
        impl, builder = make(backend, r)
        parts, first = [], 0
        for count in chunks:
            names, common, key, value = r.common({"a": count, **others})
            query = r.draw(key.shape[0], 4)
            start = common.query_start_loc[names.index("a")]
            for mine, own in ((query, q), (key, k), (value, v)):
                mine[start : start + count] = own[first : first + count]
            out = torch.empty(query.shape[0], 4, 32)
            impl.forward(LAYER, query, key, value, r.cache, builder.build(0, common), out)
            parts.append(out[start : start + count])
            first += count
        results.append(torch.cat(parts))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_random_steps(backend):
    """Lengths, windows, caps, sinks, types and sizes by a fixed seed."""
    draw = random.Random(11)
    for number in range(12):
        kv_heads, group = draw.choice([(1, 4), (2, 1), (2, 4)])
        dtype = draw.choice(list(DTYPES))
        options, wanted = draw.choice([CASES["plain"], CASES["window"], CASES["soft_cap"]])
        dim, block = draw.choice([32, 64, 96]), draw.choice([16, 32])
        r = Requests(kv_heads * group, kv_heads, dim, dtype, block, 200, seed=number)
        impl, builder = make(backend, r, **options)
        for _ in range(4):
            names = "abcdefg"[: draw.randrange(1, 8)]
            counts = {name: draw.choice([1, 1, 1, 2, 5, draw.randrange(1, 90)]) for name in names}
            names, common, query, out = run(impl, builder, r, counts)
            expected = r.expected(names, common, query, 0.2, **wanted)
            torch.testing.assert_close(out.double(), expected, rtol=DTYPES[dtype][0], atol=DTYPES[dtype][1])


# ---- Switching it on ----


def test_entry_point(monkeypatch):
    import attune.vllm

    monkeypatch.setitem(attune.vllm._state, "registered", False)
    monkeypatch.setattr(vllm, "registered", vllm.registered)
    monkeypatch.delenv("ATTUNE_VLLM", raising=False)
    vllm.registered.clear()
    attune.vllm.register()
    assert not vllm.registered
    monkeypatch.setenv("ATTUNE_VLLM", "1")
    attune.vllm.register()
    assert list(vllm.registered.values()) == ["attune.vllm._backend.AttuneBackend"]
    assert attune.vllm.enable() and os.environ["ATTUNE_VLLM"] == "1"


def test_another_version(monkeypatch):
    import attune.vllm

    monkeypatch.setitem(attune.vllm._state, "registered", False)
    monkeypatch.setenv("ATTUNE_VLLM", "0")
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.40.1")
    assert attune.vllm.enable()
    assert vllm.logged[-1] == "attune was tested with vLLM 0.32.0, and this is 0.40.1"
    attune.vllm._state["registered"] = False
    stock = sys.modules["vllm.v1.attention.backends.cpu_attn"]
    monkeypatch.setattr(stock, "CPUAttentionBackendImpl", type("CPUAttentionBackendImpl", (vllm.StockImpl,), {
        "__init__": lambda self, num_heads, head_size: None}))
    vllm.registered.clear()
    assert not attune.vllm.enable() and not vllm.registered
    assert "__init__ takes num_heads, head_size" in vllm.logged[-1]
    monkeypatch.delattr(sys.modules["vllm.v1.attention.backends.cpu_attn"], "CPUAttentionBackendImpl")
    assert not attune.vllm.enable() and not vllm.registered
    missing = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackendImpl"
    assert f"stays off: vLLM 0.40.1 has no {missing}" in vllm.logged[-1]


def stock_step(impl, builder, r, key=True, **more):
    """Runs a step of a layer that vLLM's own kernels compute."""
    names, common, new_key, value = r.common({"a": 5, "b": 2}, **more)
    query = r.draw(7, r.heads)
    metadata = builder.build(0, common)
    impl.forward(LAYER, query, new_key if key else None, value, r.cache, metadata, torch.empty_like(query))
    return common


def test_a_broken_package(monkeypatch):
    """An adapter that cannot be loaded leaves vLLM as it is."""
    import attune.torch
    import attune.vllm

    monkeypatch.setitem(attune.vllm._state, "registered", False)
    monkeypatch.setenv("ATTUNE_VLLM", "1")

    def fail():
        raise RuntimeError("libattune-torch.so is of another version")

    monkeypatch.setattr(attune.torch._native, "Runner", fail)
    vllm.registered.clear()
    attune.vllm.register()
    assert not vllm.registered and vllm.logged[-1] == "attune stays off: libattune-torch.so is of another version"


def test_off_again(monkeypatch):
    import attune.vllm

    monkeypatch.setitem(attune.vllm._state, "registered", False)
    monkeypatch.setenv("ATTUNE_VLLM", "0")
    attune.vllm.enable()
    attune.vllm.disable()
    assert not vllm.registered and "ATTUNE_VLLM" not in os.environ
    attune.vllm.disable()


def test_what_stock_computes(backend):
    """A cache of fp8_e5m2: vLLM's kernels write it, because the backend says that attention includes that."""
    r = Requests(4, 2, 32, torch.float32)
    impl, builder = make(backend, r, kv_cache_dtype="fp8_e5m2")
    assert "attune leaves a cache of fp8_e5m2 to vLLM's own backend" in vllm.logged
    common = stock_step(impl, builder, r)
    assert [call[0] for call in impl.calls] == ["update", "forward"]
    assert impl.calls[0][2] is common.slot_mapping and impl.calls[1][1] == "scheduled"
    impl.calls.clear()
    stock_step(impl, builder, r, key=False)
    assert [call[0] for call in impl.calls] == ["forward"]
    sharing, builder = make(backend, r, kv_cache_dtype="fp8_e5m2", kv_sharing_target_layer_name="layer")
    stock_step(sharing, builder, r)
    assert [call[0] for call in sharing.calls] == ["forward"]


def test_layers_of_both_kinds(backend):
    """One layer that attune computes and one that it does not, in one group, have the same metadata."""
    r, other = Requests(4, 2, 32, torch.float32), Requests(4, 2, 32, torch.float32)
    ours, theirs = make(backend, r)[0], make(backend, r, kv_cache_dtype="fp8_e5m2")[0]
    builder = build_for(backend, [ours, theirs])
    names, common, query, out = run(ours, builder, r, {"a": 9, "b": 4})
    torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=3e-5, atol=6e-6)
    assert vllm.logged[-1] == "attune computes attention of 1 of 2 layers"
    stock_step(theirs, builder, other)
    assert [call[0] for call in theirs.calls] == ["update", "forward"]


def test_layers_that_attune_refuses(backend, monkeypatch):
    """A model of another type, a failure of the library: vLLM computes, and no cache has been written before."""
    r = Requests(4, 2, 32, torch.float32)
    impl = make(backend, r)[0]
    build_for(backend, [impl], torch.float64)
    assert impl.stock_reason == "a model of torch.float64" and vllm.logged[-2].startswith("attune leaves a model of")
    monkeypatch.setattr(backend._attend, "attention_of", lambda kind: attune.Attention(num_heads=3, num_kv_heads=2,
                                                                                       head_dim=32))
    impl, builder = make(backend, r)
    assert "num_kv_heads" in impl.stock_reason
    stock_step(impl, builder, r)
    assert [call[0] for call in impl.calls] == ["update", "forward"]


def test_caches_without_a_stock_kernel(backend):
    """vLLM's builder refuses fp8 on some CPUs; attune needs none of its kernels there."""
    r = Requests(4, 2, 32, torch.float32, cache_dtype="int8_per_token_head")
    impl = make(backend, r, kv_cache_dtype="int8_per_token_head")[0]
    builder = build_for(backend, [impl], cache_dtype="no kernel")
    names, common, query, out = run(impl, builder, r, {"a": 9, "b": 4})
    torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=0.03, atol=0.03)


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
    tolerance = {"auto": 3e-5, "fp8": 0.15, "int8_per_token_head": 0.03}[cache]
    own = slice(common.query_start_loc[names.index("a")], common.query_start_loc[names.index("a") + 1])
    expected = r.expected(names, common, query, 0.2)
    torch.testing.assert_close(out[own].double(), expected[own], rtol=tolerance, atol=tolerance)


def test_kernels_before_the_first_request(backend):
    r = Requests(4, 2, 32, torch.float32, block_size=48)
    impl, builder = make(backend, r, scale=0.1234)
    before = attune.info()["statistics"]["compiles"]
    run(impl, builder, r, {"a": 5, "b": 2})
    assert attune.info()["statistics"]["compiles"] == before


def test_stats(backend):
    import attune.vllm

    before = attune.vllm.stats()
    r = Requests(4, 2, 32, torch.float32)
    impl, builder = make(backend, r)
    run(impl, builder, r, {"a": 5, "b": 2})
    after = attune.vllm.stats()
    assert [after[name] - before[name] for name in ("steps", "calls", "tokens")] == [1, 1, 7]
    assert impl.forward(LAYER, None, None, None, None, None, SINKS) is SINKS  # vLLM warms up
