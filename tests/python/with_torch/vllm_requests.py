"""Requests for attune's backend of vLLM, whose classes are faked, and what f64 gives for them."""

import importlib
import math
import random
import sys
import types
from dataclasses import replace

import pytest
import torch

import vllm_stub as vllm


@pytest.fixture(scope="module", autouse=True)
def faked_classes():
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "vllm"}
    vllm.install()
    yield
    for name in list(sys.modules):
        if name.split(".")[0] == "vllm" or name in ("attune.vllm._backend", "attune.vllm._mla"):
            del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def backend():
    return importlib.import_module("attune.vllm._backend")


LAYER = types.SimpleNamespace(_k_scale_float=0.05, _v_scale_float=0.04)
DTYPES = {torch.float32: (3e-5, 6e-6), torch.bfloat16: (3e-2, 2e-2), torch.float16: (4e-3, 3e-3)}


class Requests:
    """Requests with the keys and values that they had so far, and a cache of vLLM's for them."""

    def __init__(self, heads, kv_heads, dim, dtype, block_size=16, blocks=64, cache_dtype="auto", seed=1, dim_v=0):
        self.heads, self.kv_heads, self.dim, self.dtype, self.block_size = heads, kv_heads, dim, dtype, block_size
        self.cache_dtype, self.dim_v = cache_dtype, dim_v or dim
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        content, stored = dim + self.dim_v, dtype
        if cache_dtype == "fp8":
            stored = torch.uint8
        if cache_dtype == "bfloat16":
            stored = torch.bfloat16
        if cache_dtype == "int8_per_token_head":
            content, stored = content + 8, torch.int8
        self.cache = torch.zeros((blocks, kv_heads, block_size, content), dtype=torch.uint8 if stored.itemsize == 1
                                 else stored)
        if stored.itemsize > 1:
            self.cache.fill_(float("nan"))  # what nobody wrote must not be read
        self.cache = self.cache.view(stored)
        self.free = list(range(blocks))
        self.random.shuffle(self.free)
        self.keys, self.values, self.tables = {}, {}, {}

    def share(self, name, other, blocks):
        """A new request that begins with so many blocks of another."""
        count = blocks * self.block_size
        self.keys[name], self.values[name] = self.keys[other][:count], self.values[other][:count]
        self.tables[name] = self.tables[other][:blocks]

    def draw(self, count, heads, dim=0):
        return torch.randn((count, heads, dim or self.dim), generator=self.generator).to(self.dtype)

    def common(self, counts, **more):
        """The metadata of a step in which request r gets counts[r] tokens, and its new keys and values."""
        names = list(counts)
        self.random.shuffle(names)  # in no order
        total = sum(counts.values())
        key, value = self.draw(total + 3, self.kv_heads), self.draw(total + 3, self.kv_heads, self.dim_v)
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
            both = (self.keys[name], LAYER._k_scale_float), (self.values[name], LAYER._v_scale_float)
            k, v = (rounded(x, self.cache_dtype, scale).transpose(0, 1) for x, scale in both)
            k, v = (x.repeat_interleave(self.heads // self.kv_heads, 0) for x in (k, v))
            is_causal = causal if isinstance(causal, bool) else bool(causal[i])
            parts.append(attend(q, k, v, scale, is_causal, window, cap, slopes, sinks).transpose(0, 1))
        return torch.cat(parts)


def rounded(rows, cache_dtype, scale):
    """What a cache has of these keys or values [tokens, heads, dim], as f64."""
    if cache_dtype == "fp8":
        return (rows.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).double() * scale
    if cache_dtype == "int8_per_token_head":
        own = rows.float().abs().amax(-1, keepdim=True) / 127
        return (rows.float() / own).round().double() * own
    return rows.to(torch.bfloat16).double() if cache_dtype == "bfloat16" else rows.double()


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


SPEC = vllm.AttentionSpec()


def make(backend, r, spec=SPEC, scale=0.2, **options):
    options.setdefault("kv_cache_dtype", "auto")
    impl = backend.AttuneBackend.get_impl_cls()(r.heads, r.dim, scale, r.kv_heads, options.pop("alibi_slopes", None),
                                                options.pop("sliding_window", None), options.pop("kv_cache_dtype"),
                                                **options)
    sizes = dict(block_size=r.block_size, head_size=r.dim, head_size_v=r.dim_v)
    return impl, build_for(backend, [impl], r.dtype, replace(spec, **sizes))


def build_for(backend, impls, dtype=torch.float32, spec=SPEC, cache_dtype="auto", drafts=None, target=None):
    """target: the layer whose keys the last one reads, if its implementation was made without."""
    layers = {f"layer{i}": vllm.Attention(impl, impl.kv_sharing_target_layer_name) for i, impl in enumerate(impls)}
    if target:
        layers[f"layer{len(impls) - 1}"].kv_sharing_target_layer_name = target
    if not spec.head_size:
        spec = replace(spec, head_size=impls[0].head_size, head_size_v=None)
    config = types.SimpleNamespace(cache_config=types.SimpleNamespace(cache_dtype=cache_dtype), layers=layers,
                                   model_config=types.SimpleNamespace(dtype=dtype), speculative_config=drafts)
    return backend.AttuneBackend.get_builder_cls()(spec, list(layers), config, torch.device("cpu"))


def run(impl, builder, r, counts, layer=LAYER, **more):
    names, common, key, value = r.common(counts, **more)
    query = r.draw(common.num_actual_tokens + 3, r.heads)
    out = torch.full((query.shape[0], r.heads, r.dim_v), 7.0, dtype=r.dtype)
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
