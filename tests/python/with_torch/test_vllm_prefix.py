"""Prefixes that requests share, in attune's backend for vLLM with vLLM's classes faked."""

import itertools
import operator
import os
import random
import subprocess
import sys
import types

import pytest
import torch

from vllm_requests import CASES, DTYPES, LAYER, Requests, backend, faked_classes, make, run  # noqa: F401

import attune
from attune.vllm import _attend, _prefix

SHARED = {name: CASES[name] for name in ("plain", "soft_cap", "sinks")}
OTHERS = [("fp8", 0.02), ("int8_per_token_head", 0.02), ("bfloat16", 0.02)]


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch):
    monkeypatch.setattr(_prefix, "LEAST_KEYS", 16)
    monkeypatch.setattr(_prefix, "LEAST_SAVED", 16)
    monkeypatch.setattr(_prefix, "MOST_QUERIES", 1000)


def in_order(r):
    """Requests keep the order in which they are given."""
    r.random = random.Random(0)
    r.random.shuffle = lambda names: None
    return r


def family(backend, r, **options):
    """A layer, and requests of which some begin with the same blocks: a, b, c, and x, y."""
    impl, builder = make(backend, r, **options)
    run(impl, builder, r, {"a": 71, "x": 40, "z": 5})
    r.share("b", "a", 4), r.share("c", "a", 3), r.share("y", "x", 2)
    return impl, builder


STEP = {"a": 1, "b": 20, "c": 1, "z": 1, "x": 2, "y": 7, "w": 30}


def shared_steps():
    return _attend.stats().get("steps.shared", 0)


def check(backend, r, tolerance, options, wanted):
    impl, builder = family(backend, in_order(r), **options)
    for counts in (STEP, {name: 1 for name in STEP}, {"a": 1, "b": 1}, {"y": 3, "x": 1, "c": 2, "b": 1}):
        before = shared_steps()
        names, common, query, out = run(impl, builder, r, counts)
        assert shared_steps() == before + 1
        expected = r.expected(names, common, query, 0.2, **wanted)
        torch.testing.assert_close(out.double(), expected, rtol=tolerance[0], atol=tolerance[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHARED)
def test_shared_prefixes(backend, name, dtype):
    check(backend, Requests(4, 2, 32, dtype), DTYPES[dtype], *SHARED[name])


@pytest.mark.parametrize("cache, tolerance", OTHERS)
def test_caches_of_other_types(backend, cache, tolerance):
    r = Requests(6, 2, 64, torch.float32, cache_dtype=cache)
    check(backend, r, (tolerance, tolerance), {"kv_cache_dtype": cache}, {})


def test_values_of_another_size(backend):
    check(backend, Requests(4, 2, 48, torch.float32, dim_v=32), DTYPES[torch.float32], {}, {})


def test_keys_of_an_earlier_layer(backend):
    """A layer that shares the keys of another appends nothing."""
    r = in_order(Requests(4, 2, 32, torch.float32))
    impl, builder = family(backend, r)
    sharing, _ = make(backend, r, kv_sharing_target_layer_name="layer")
    names, common, query, out = run(impl, builder, r, STEP)
    before, again = r.cache.clone(), torch.empty_like(query)
    other = torch.full((query.shape[0], 2, 32), 9.0)
    sharing.forward(LAYER, query, other, other, r.cache, builder.build(0, common), again)
    torch.testing.assert_close(again[: out.shape[0]], out, rtol=2e-5, atol=2e-6)
    assert torch.equal(before.nan_to_num(3), r.cache.nan_to_num(3))


def test_a_step_is_counted_once():
    """Whatever kinds of layers it has."""
    starts, lens, table = lists([0, 1, 2], [40, 40], [[1, 2, 3], [1, 2, 4]]).values()
    step = _attend.Step(starts, lens, table, 2, slots=torch.tensor([3 * 16 + 7, 4 * 16 + 7]), block_size=16)
    layer = _attend.Layer(num_heads=2, num_kv_heads=1, head_size=16, dtype="f32", scale=1.0, block_size=16)
    before = shared_steps()
    for kind in (layer, layer._replace(appends=True), layer._replace(window=20)):
        step.plan(kind, 8)
    assert shared_steps() == before + 1


class Late(dict):
    """What requests have; b and c begin with what a has then, of which this is so much."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def get(self, name, default=None):
        if name in ("b", "c") and name not in self:
            self[name] = self["a"][: self.count]
        return super().get(name, default)

    def setdefault(self, name, default=None):
        return super().setdefault(name, self.get(name, default))


def test_keys_of_the_same_step(backend):
    """b and c begin with blocks of a, which a writes in this step. NaN is there before."""
    r = in_order(Requests(4, 2, 32, torch.float32))
    r.keys, r.values, r.tables = Late(64), Late(64), Late(4)
    impl, builder = make(backend, r)
    before = shared_steps()
    names, common, query, out = run(impl, builder, r, {"a": 71, "b": 20, "c": 3})
    assert shared_steps() == before + 1
    torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=3e-5, atol=6e-6)


@pytest.mark.parametrize("name", ["window", "alibi"])
def test_layers_of_one_pass(backend, name):
    """What a query sees of a prefix depends on its position."""
    options, wanted = CASES[name]
    r = in_order(Requests(4, 2, 32, torch.float32))
    impl, builder = family(backend, r, **options)
    before = shared_steps()
    names, common, query, out = run(impl, builder, r, STEP)
    torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2, **wanted), rtol=3e-5, atol=6e-6)
    assert shared_steps() == before


@pytest.mark.parametrize("variable", ["ATTUNE_VLLM_REPRODUCIBLE", "ATTUNE_DEADLINE_US"])
def test_one_pass_that_is_asked_for(backend, monkeypatch, variable):
    """A row must not depend on who shares its prefix; no step may wait for kernels of the second pass."""
    monkeypatch.setenv(variable, "1")
    r = in_order(Requests(4, 2, 32, torch.float32))
    impl, builder = family(backend, r)
    before = shared_steps()
    run(impl, builder, r, STEP)
    assert shared_steps() == before


def test_without_a_compiler(backend, monkeypatch):
    """Two passes would run by the virtual machine."""
    monkeypatch.setenv("ATTUNE_COMPILE", "never")
    r = in_order(Requests(4, 2, 32, torch.float32))
    before = shared_steps()
    impl, builder = family(backend, r)
    run(impl, builder, r, STEP)
    assert shared_steps() == before


def test_kernels_before_a_step_appends():
    """A step that has appended cannot take the single pass any more, so it must not wait, or fail, after that."""
    starts, lens, table = lists([0, 1, 2], [40, 40], [[1, 2, 3], [1, 2, 4]]).values()
    step = _attend.Step(starts, lens, table, 2, slots=torch.tensor([3 * 16 + 7, 4 * 16 + 7]), block_size=16)
    plan = step.plan(_attend.Layer(2, 1, 16, "f32", 0.7, block_size=16, appends=True), 8)
    for one in (plan._own, plan._prefix):
        assert one._attention.info["is_ready"]


def refuse(*arguments, **options):
    raise attune.CodegenError("the code generator did not answer")


@pytest.mark.parametrize("owner, name, fails", [
    (attune, "compile", refuse), (attune.Attention, "prepare", refuse), (attune.Attention, "info", {"is_ready": 0}),
])  # fmt: skip
def test_a_kernel_that_cannot_be_compiled(backend, monkeypatch, owner, name, fails):
    """A step takes one pass before anything is appended; the next one that can takes two. A kernel that computes until
    another can be compiled is slower than one pass."""
    r = in_order(Requests(4, 2, 32, torch.float32))
    impl, builder = family(backend, r)
    _prefix.joining_of.cache_clear()
    for is_refused in (True, False):
        before = shared_steps()
        with monkeypatch.context() as patch:
            if is_refused:
                patch.setattr(owner, name, fails)
            names, common, query, out = run(impl, builder, r, STEP if is_refused else {name: 1 for name in STEP})
        torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=3e-5, atol=6e-6)
        assert shared_steps() == before + (not is_refused)


@pytest.mark.parametrize("variables, can_compile", [
    ({}, True), ({"ATTUNE_CODEGEN": __file__}, False), ({"ATTUNE_STRICT": "1"}, False),
])  # fmt: skip
def test_code_generators(variables, can_compile):
    """A file that attune refuses, such as the code generator of another build, compiles nothing."""
    script = "from attune.vllm import _attend; print(_attend._can_compile())"
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | variables, text=True, capture_output=True)
    assert done.stdout.strip() == str(can_compile), done.stderr


def stand_in(*arguments, **options):
    return types.SimpleNamespace(info={"origin": "vm"})


@pytest.mark.parametrize("compile", [refuse, stand_in])
def test_a_code_generator_that_answers_later(monkeypatch, compile):
    _attend._try_to_compile.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(attune, "compile", compile)
        assert not _attend._can_compile()
    assert _attend._can_compile()


def lists(starts, lens, table):
    return {name: torch.as_tensor(one, dtype=torch.int32)
            for name, one in (("cu_seqlens_q", starts), ("kv_lens", lens), ("block_table", table))}  # fmt: skip


def test_lists():
    """Requests 0 to 2 share two blocks of 16, of which the last has new keys in a third; 3 is alone; 4 and 5 share a
    block, and their tables are equal beyond what they have."""
    tables = [[1, 2, 3, 0], [1, 2, 4, 5], [1, 2, 6, 0], [7, 8, 0, 0], [9, 11, 13, 13], [9, 12, 13, 13]]
    found = _prefix.find(lists([0, 1, 3, 4, 5, 6, 9], [40, 60, 33, 20, 18, 30], tables), 16)
    assert found.prefix["cu_seqlens_q"].tolist() == [0, 4, 5, 9]
    assert found.prefix["kv_lens"].tolist() == [32, 0, 16]
    assert [row[:2] for row in found.prefix["block_table"].tolist()] == [[1, 2], [7, 8], [9, 11]]
    assert found.own["kv_lens"].tolist() == [8, 28, 1, 20, 2, 14]
    assert [row[0] for row in found.own["block_table"].tolist()] == [3, 4, 6, 7, 11, 12]
    assert found.own["cu_seqlens_q"].tolist() == [0, 1, 3, 4, 5, 6, 9]


def test_wide_tables():
    """vLLM's tables have columns for the longest context: what is made of one has those of its requests."""
    table = torch.arange(4, dtype=torch.int32)[:, None].repeat(1, 5000)
    table[:, :20] = 9
    found = _prefix.find(lists([0, 1, 2, 3, 4], [330, 340, 325, 360], table), 16)
    assert found.prefix["block_table"].shape == (1, 20)
    assert found.own["block_table"].tolist() == [[row] * 3 for row in range(4)]


@pytest.mark.parametrize("lens, table", [
    ([40], [[1, 2, 3]]), ([40, 40], [[1, 2, 3], [4, 2, 3]]), ([40, 16], [[1, 2, 3], [1, 2, 3]]), ([9, 9], [[1], [1]]),
])  # fmt: skip
def test_nothing_is_shared(lens, table):
    """A request alone, first blocks that differ, and blocks that are not whole before the new key."""
    assert _prefix.find(lists(list(range(len(lens) + 1)), lens, table), 16) is None


def neighbours(groups, common, blocks):
    """A step of requests that decode with blocks of 128: groups have sizes, and share so many blocks, of which the
    first are common to all."""
    rows = [list(range(common)) + [1000 * group + block for block in range(common, shared)] + [10**6 + 10 * group + one]
            for group, (size, shared) in enumerate(zip(groups, blocks), 1) for one in range(size)]  # fmt: skip
    width = max(len(row) for row in rows)
    table = [row + [0] * (width - len(row)) for row in rows]
    return lists(list(range(len(rows) + 1)), [128 * len(row) - 28 for row in rows], table)


@pytest.mark.parametrize("groups, blocks, begins", [
    ([16, 1], [64, 2], [0, 16]), ([1, 16], [2, 64], [0, 1]), ([8, 1, 8], [64, 2, 64], [0, 8, 9]),
    ([16] * 4, [64] * 4, [0, 16, 32, 48]), ([50, 2, 50], [2, 5, 2], [0]), ([20, 2, 20], [2, 64, 2], [0, 20, 22]),
])  # fmt: skip
def test_groups_with_a_common_beginning(monkeypatch, groups, blocks, begins):
    """All begin with 256 keys, and groups share more: runs end where that saves reading most keys."""
    monkeypatch.setattr(_prefix, "LEAST_KEYS", 256)
    found = _prefix.find(neighbours(groups, 2, blocks), 128)
    assert found.prefix["cu_seqlens_q"].tolist() == begins + [sum(groups)]
    assert found.prefix["kv_lens"].max() == 128 * (max(blocks) if len(begins) > 1 else 2)


def test_runs_that_save_most():
    """Of 200 random lists no way to cut them saves more."""
    draw = random.Random(3)
    for _ in range(200):
        links = [draw.choice([0, 1, 2, 2, 3, 7]) for _ in range(draw.randrange(1, 10))]
        links[draw.randrange(len(links))] = 2
        begins, blocks = _prefix._runs(tuple(links))
        ends = [*begins[1:], len(links) + 1]
        parts = [links[begin : end - 1] for begin, end in zip(begins, ends)]
        assert [min(part, default=0) for part in parts] == [block if part else 0 for part, block in zip(parts, blocks)]
        cuts = itertools.product((False, True), repeat=len(links))
        assert saved(parts) == max(saved(cut_at(links, cut)) for cut in cuts)


def rows_of(kind, count, draw):
    """Links in the patterns of samples of one prompt, and of any requests."""
    base = draw.choice([0, 1, 50, 900])
    if kind == "rising":
        return sorted(draw.randrange(base + 1000) for _ in range(count))
    if kind == "waves":
        return [base + draw.randrange(1, 9) * (at % 37) for at in range(count)]
    if kind == "groups":
        size, high = draw.randrange(2, 6), draw.randrange(1, 300)
        return [base + high if at % size else base + 1 for at in range(1, count + 1)]
    return [base + draw.randrange(draw.choice([2, 10, 1000])) for _ in range(count)]


@pytest.mark.parametrize("kind", ["groups", "random", "rising", "waves"])
def test_runs_of_many_requests(kind):
    """As much is saved as by trying all last runs of each end. Of links of many numbers each may count for less, by as
    much as the numbers that are tried lie apart."""
    draw = random.Random(4)
    for _ in range(40):
        links = rows_of(kind, draw.randrange(1, 90), draw)
        if not any(links):
            continue
        most = [0]
        for end in range(1, len(links) + 2):
            most.append(max(most[at] + (end - 1 - at) * min(links[at : end - 1], default=0) for at in range(end)))
        begins, blocks = (one.tolist() for one in _prefix._runs(tuple(links)))
        sizes = [end - begin - 1 for begin, end in zip(begins, [*begins[1:], len(links) + 1])]
        numbers = set(links) - {0}
        apart = 0 if len(numbers) <= 8 else (max(numbers) - min(numbers)) // 7 + 1
        assert most[-1] >= sum(map(operator.mul, sizes, blocks)) >= most[-1] - apart * len(links)


@pytest.mark.parametrize("links", [
    [104, 100] * 512, [104, 104, 104, 100] * 256, [300, 100] * 512, [100] * 1024, list(range(1, 1024)),
    [at % 511 + 1 for at in range(1023)],
], ids=["pairs", "fours", "long pairs", "one prefix", "rising", "rising twice"])  # fmt: skip
def test_few_operations_find_runs(links):
    """Lines of Python that 1024 requests take, which the machine's load does not decide."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        _prefix._runs.__wrapped__(tuple(links[:1023]))
    finally:
        sys.settrace(before)
    assert count < 60 * len(links)


def cut_at(links, cut):
    parts = [[]]
    for link, is_cut in zip(links, cut):
        parts.append([]) if is_cut else parts[-1].append(link)
    return parts


def saved(parts):
    return sum(len(part) * min(part, default=0) for part in parts)


def test_what_is_worth_it(monkeypatch):
    """Four requests that share 32 keys save 96."""
    step = lists([0, 1, 2, 3, 4], [40] * 4, [[1, 2, block] for block in (3, 4, 5, 6)])
    for least, is_worth_it in ((96, True), (97, False)):
        monkeypatch.setattr(_prefix, "LEAST_SAVED", least)
        assert (_prefix.find(step, 16) is not None) == is_worth_it


def test_steps_with_prompts(monkeypatch):
    """Two requests share, and one with a prompt does not: eight queries are few enough, nine are too many."""
    monkeypatch.undo()
    monkeypatch.setattr(_prefix, "LEAST_SAVED", 256)
    blocks = list(range(1, 17))
    for queries, is_shared in ((6, True), (7, False)):
        table = [blocks + [20], blocks + [21], [30] * 17]
        found = _prefix.find(lists([0, 1, 2, 2 + queries], [260, 260, 20], table), 16)
        assert (found is not None) == is_shared
