"""Random steps of attune's backend for vLLM, whose classes are faked, request by request beside f64."""

import os
import random
from collections import Counter

import pytest
import torch

import vllm_stub as vllm
from vllm_requests import DTYPES, LAYER, Requests, backend, build_for, faked_classes, make  # noqa: F401

from attune.vllm import _attend, _prefix

STEPS = int(os.environ.get("ATTUNE_TEST_VLLM_STEPS", "48"))
DEFAULT_SEED = 11
SEED = int(os.environ.get("ATTUNE_TEST_VLLM_SEED", DEFAULT_SEED))
STEPS_OF_A_LAYER = 6
SINKS = [0.3, -1.0, 2.0, 0.0]


class Engine(Requests):
    """What vLLM does with requests: they begin with blocks of others, also with those that these write in the same
    step; they leave, and others get their blocks; drafts are refused. The lists of a step are overwritten by the next.

    Blocks hold NaN until they are written, and again when nobody has them any more."""

    def __init__(self, draw, *args, **options):
        super().__init__(*args, **options)
        self.draws, self.users, self.root = draw, Counter(), {}
        self.caches = [self.cache.clone(), self.cache.clone()]
        for block in range(len(self.cache)):
            self.poison(block)
        self.starts, self.lens = torch.zeros(33, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
        self.table = torch.zeros((33, 64), dtype=torch.int32)

    def poison(self, block):
        for cache in self.caches:
            cache[block].view(torch.uint8).fill_(255)

    def leave(self, name):
        for block in self.tables.pop(name):
            self.users[block] -= 1
            if not self.users[block]:
                self.poison(block)
                self.free.append(block)
        del self.keys[name], self.values[name], self.root[name]

    def begin(self, name, other, blocks):
        """With so many blocks of another request, or as many as it has whole."""
        blocks = min(blocks, len(self.keys[other]) // self.block_size)
        self.share(name, other, blocks)
        self.users.update(self.tables[name])

    def extend(self, name, key, value):
        for new, rows in ((key, self.keys), (value, self.values)):
            rows[name] = torch.cat([rows.get(name, new[:0]), new])
        table = self.tables.setdefault(name, [])
        while len(table) * self.block_size < len(self.keys[name]):
            table.append(self.free.pop())
            self.users[table[-1]] += 1

    def refuse(self, name, most):
        """Drops up to so many of the last keys, unless another request has them."""
        table = self.tables[name]
        for _ in range(self.draws.randrange(most + 1)):
            count = len(self.keys[name]) - 1
            if count > 0 and self.users[table[count // self.block_size]] == 1:
                self.keys[name], self.values[name] = self.keys[name][:count], self.values[name][:count]
        while len(table) * self.block_size >= len(self.keys[name]) + self.block_size:
            block = table.pop()
            self.users[block] -= 1
            self.poison(block)
            self.free.append(block)

    def step(self, counts, beginners, **more):
        """Metadata as common() gives it. beginners: {name: (other, blocks)} of those that begin in this step."""
        for name in counts:
            self.root.setdefault(name, self.root.get(beginners[name][0], name) if name in beginners else name)
        names = list(counts)
        self.draws.shuffle(names)
        if self.draws.random() < 0.85:  # those with the same beginning follow one another
            names.sort(key=lambda name: self.root[name])
        total = sum(counts.values())
        key, value = self.draw(total + 3, self.kv_heads), self.draw(total + 3, self.kv_heads)
        firsts, first = {}, 0
        for row, name in enumerate(names):
            firsts[name], first = first, first + counts[name]
            self.starts[row + 1] = first
        for name in sorted(names, key=lambda name: name in beginners):
            if name in beginners:
                self.begin(name, *beginners[name])
            new = slice(firsts[name], firsts[name] + counts[name])
            self.extend(name, key[new], value[new])
        slots = []
        self.table.fill_(10**6)  # no block has such a number
        for row, name in enumerate(names):
            table, length = self.tables[name], len(self.keys[name])
            self.table[row, : len(table)] = torch.tensor(table)
            self.lens[row] = length
            positions = range(length - counts[name], length)
            slots += [table[at // self.block_size] * self.block_size + at % self.block_size for at in positions]
        common = vllm.CommonAttentionMetadata(self.starts[: len(names) + 1], self.lens[: len(names)], len(names), total,
                                              self.table[: len(names) + 1], torch.tensor(slots), **more)  # fmt: skip
        return names, common, key, value


def random_layer(draw, heads):
    """Options of a layer, and what f64 needs to know of them."""
    options, wanted = {}, {}
    if draw.random() < 0.2:
        options["sliding_window"] = wanted["window"] = draw.choice([1, 7, 16, 33, 100])
    if draw.random() < 0.3:
        options["logits_soft_cap"] = wanted["cap"] = draw.choice([2.0, 10.0])
    if draw.random() < 0.2:
        options["alibi_slopes"] = wanted["slopes"] = [2.0 ** -(1 + h) for h in range(heads)]
    if draw.random() < 0.3:
        options["sinks"] = wanted["sinks"] = torch.tensor([SINKS[h % 4] for h in range(heads)])
    return options, wanted


def random_group(draw, backend):
    """An engine, a builder, layers of one group with what f64 needs to know of them, and a tolerance. The last layer
    reads the keys of the first."""
    kv_heads, group = draw.choice([(1, 4), (2, 1), (2, 4), (3, 3), (1, 1)])
    heads, dtype = kv_heads * group, draw.choice(list(DTYPES))
    others = [("fp8", 0.02), ("int8_per_token_head", 0.02), ("bfloat16", 0.02)]
    cache, rounding = draw.choice([("auto", 0)] * 4 + others)
    if dtype != torch.float32 and cache == "bfloat16":
        cache, rounding = "auto", 0
    dim, block = draw.choice([16, 20, 32, 64, 80, 96, 128]), draw.choice([16, 32, 48, 128])
    engine = Engine(draw, heads, kv_heads, dim, dtype, block, 9000 // block, cache, seed=draw.randrange(10**6))
    layers = []
    for number in range(draw.choice([1, 2, 3])):
        options, wanted = random_layer(draw, heads) if number or draw.random() < 0.5 else ({}, {})
        target = {"kv_sharing_target_layer_name": "layer0"} if number == 2 else {}
        impl = make(backend, engine, kv_cache_dtype=cache, **options, **target)[0]
        layers.append((impl, options, wanted))
    spec = vllm.AttentionSpec(block_size=block)
    builder = build_for(backend, [layer[0] for layer in layers], dtype, spec)
    return engine, builder, layers, [max(rounding, tolerance) for tolerance in DTYPES[dtype]]


def random_counts(draw, engine):
    """So many new tokens of each request of a step, and requests that begin with blocks of others."""
    for name in list(engine.tables):
        if draw.random() < 0.1 or len(engine.keys[name]) > 600:
            engine.leave(name)
    most = draw.choice([1, 1, 5, 90])
    alive = [name for name in engine.tables if draw.random() < 0.8]
    counts = {name: draw.choice([1, 1, 1, 2, draw.randrange(1, most + 1)]) for name in alive}
    beginners, other = {}, None
    for _ in range(draw.choice([0, 2, 5]) if alive else 4):
        name = f"r{draw.randrange(10**9)}"
        counts[name] = draw.choice([1, 3, draw.randrange(1, 200)])
        others = [one for one in {**engine.tables, **counts} if one != name and one not in beginners]
        if others and draw.random() < 0.8:
            newest = others[-1:] if draw.random() < 0.5 else others  # it may have no keys before this step
            other = other if other and draw.random() < 0.7 else draw.choice(newest)
            beginners[name] = other, draw.randrange(1, 20)
    return dict(list(counts.items())[-20:]), beginners


def check_step(draw, engine, builder, layers, tolerance, what):
    counts, beginners = random_counts(draw, engine)
    causal = draw.choice([True] * 8 + [False, torch.tensor([draw.random() < 0.5 for _ in counts])])
    names, common, key, value = engine.step(counts, beginners, causal=causal)
    lost, others = 0, [other for other, _ in beginners.values()]
    if causal is True and draw.random() < 0.1 and names[-1] not in others:  # drafts beyond the longest request
        lost = draw.randrange(1, counts[names[-1]] + 1)
        common.slot_mapping[-lost:] = -1
    rows = common.num_actual_tokens - lost  # a draft without a slot has no key, so nobody asks what it attends to
    metadata = builder.build(0, common)
    for number, (impl, options, wanted) in enumerate(layers):
        query = engine.draw(common.num_actual_tokens + 3, engine.heads)
        out = torch.full_like(query, 7.0)
        impl.forward(LAYER, query, key, value, engine.caches[number % 2], metadata, out)
        expected = engine.expected(names, common, query, 0.2, causal=causal, **wanted)
        torch.testing.assert_close(
            out[:rows].double(), expected[:rows], rtol=tolerance[0], atol=tolerance[1],
            msg=lambda text: f"{what}, layer {number}: {engine.dtype}, {engine.cache_dtype}, {engine.heads} heads,"
                             f" {engine.dim}, {engine.block_size}, {options}, {counts}, {beginners}, {causal}, {lost}:"
                             f" {text}",
        )  # fmt: skip
        assert (out[common.num_actual_tokens:] == 7).all()
    for name in names:
        if name == names[-1] and lost:
            engine.keys[name], engine.values[name] = engine.keys[name][:-lost], engine.values[name][:-lost]
        if counts[name] > 1 and draw.random() < 0.3:
            engine.refuse(name, max(0, counts[name] - 1 - (lost if name == names[-1] else 0)))


def test_random_steps(backend, monkeypatch):
    """Lengths, windows, caps, slopes, sinks, types, caches, sizes and shared blocks by a fixed seed. How many steps
    share is known of this one only."""
    draw = random.Random(SEED)
    before = _attend.stats().get("steps.shared", 0)
    for number in range(STEPS // STEPS_OF_A_LAYER):
        monkeypatch.setattr(_prefix, "LEAST_KEYS", draw.choice([1, 1, 64]))
        monkeypatch.setattr(_prefix, "LEAST_SAVED", draw.choice([1, 1, 100]))
        monkeypatch.setattr(_prefix, "MOST_QUERIES", draw.choice([4, 1000, 1000]))
        group = random_group(draw, backend)
        for step in range(STEPS_OF_A_LAYER):
            check_step(draw, *group, f"{number}.{step}")
    assert SEED != DEFAULT_SEED or _attend.stats().get("steps.shared", 0) > before + STEPS // 10
