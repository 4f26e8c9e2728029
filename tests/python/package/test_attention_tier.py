"""attune.Attention and attune.PagedCache on NumPy arrays, compared with NumPy in f64."""

import pickle
import threading

import attune
import numpy as np
import pytest

HEADS, KV_HEADS, DIM, DIM_V, PAGE, CAPACITY = 6, 2, 32, 64, 4, 24
EQUAL = [(5, 21), (5, 21), (5, 21)]  # queries and keys of each sequence
ENDS = [(5, 21), (5, 9), (5, 5)]
MIXED = [(5, 21), (1, 14), (9, 9)]


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


def reference(q, k, v, is_causal=True, window_left=-1, soft_cap=None, sinks=None):
    """out [tokens, heads, dim] and lse [heads, tokens] of one sequence."""
    q, k, v = q.astype("f8"), *(np.repeat(x.astype("f8"), HEADS // KV_HEADS, 1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
    if soft_cap:
        scores = soft_cap * np.tanh(scores / soft_cap)
    i, j = np.arange(len(q))[:, None] + len(k) - len(q), np.arange(len(k))
    seen = ((j <= i) | (not is_causal)) & ((j >= i - window_left) | (window_left < 0))
    weights = np.exp(np.where(seen, scores, -np.inf))
    total = weights.sum(-1, keepdims=True) + (0 if sinks is None else np.exp(np.array(sinks))[:, None, None])
    return np.einsum("hij,jhd->ihd", weights / total, v), np.log(total[..., 0])


def spread(x):
    """The same elements, with others between rows."""
    wide = np.full((*x.shape[:-1], x.shape[-1] + 3), np.nan, x.dtype)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


class Step:
    """Tensors of a step in a layout, and what it computes."""

    def __init__(self, layout, kv, appends, lengths, is_strided=False):
        self.layout, self.lengths = layout, lengths
        batch, table = len(lengths), np.arange(3 * CAPACITY // PAGE, dtype="i4").reshape(-1, 3).T[::-1].copy()
        self.q = [draw(b, n, HEADS, DIM) for b, (n, _) in enumerate(lengths)]
        self.k = [draw(10 + b, n, KV_HEADS, DIM) for b, (_, n) in enumerate(lengths)]
        self.v = [draw(20 + b, n, KV_HEADS, DIM_V) for b, (_, n) in enumerate(lengths)]
        news = [n if appends else 0 for n, _ in lengths]
        view = spread if is_strided else np.ascontiguousarray
        self.given = {"q": view(self.batch(self.q))}
        if kv == "tensors":
            self.given.update(k=view(self.batch(self.k)), v=view(self.batch(self.v)))
        elif appends:
            for name, x in (("k", self.k), ("v", self.v)):
                self.given[name] = view(self.batch([one[len(one) - n :] for one, n in zip(x, news)]))
        starts = [np.cumsum([0, *own]).astype("i4") for own in zip(*lengths)]
        if layout == "thd":
            self.given["cu_seqlens_q"] = starts[0]
            if kv == "tensors":
                self.given["cu_seqlens_kv"] = starts[1]
        if kv == "tensors":
            return
        self.given["kv_lens"] = np.array([n for _, n in lengths], "i4")
        if kv == "paged":
            self.given["block_table"] = table
        for name, x in (("k_cache", self.k), ("v_cache", self.v)):
            slots = np.full((batch, CAPACITY, *x[0].shape[1:]), np.nan, "f4")
            for b, new in enumerate(news):
                slots[b, : len(x[b]) - new] = x[b][: len(x[b]) - new]
            if kv == "paged":
                pages = np.empty((table.size, PAGE, *x[0].shape[1:]), "f4")
                pages[table.ravel()] = slots.reshape(table.size, PAGE, *x[0].shape[1:])
                slots = pages
            self.given[name] = view(slots if layout != "bhsd" else slots.swapaxes(1, 2))

    def batch(self, sequences):
        if self.layout == "thd":
            return np.concatenate(sequences)
        return np.stack(sequences) if self.layout == "bshd" else np.stack(sequences).swapaxes(1, 2)

    def check(self, result, **options):
        out, lse = result if isinstance(result, tuple) else (result, None)
        starts = np.cumsum([0, *(n for n, _ in self.lengths)])
        for b in range(len(self.lengths)):
            expected, log = reference(self.q[b], self.k[b], self.v[b], **options)
            own = slice(starts[b], starts[b + 1])
            rows = out[own] if self.layout == "thd" else out[b] if self.layout == "bshd" else out[b].swapaxes(0, 1)
            np.testing.assert_allclose(rows, expected, atol=1e-5)
            if lse is not None:
                np.testing.assert_allclose(lse[:, own] if self.layout == "thd" else lse[b], log, atol=1e-5)


def make(layout="thd", kv="tensors", appends=False, **options):
    heads = dict(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, head_dim_v=DIM_V)
    page_size = PAGE if kv == "paged" else 0
    options = {**heads, "is_causal": True, **options}
    return attune.Attention(layout=layout, kv=kv, appends=appends, page_size=page_size, **options)


FORMS = [(layout, kv, appends) for layout in ("thd", "bshd", "bhsd")
         for kv, appends in (("tensors", False), ("cache", False), ("cache", True), ("paged", False), ("paged", True))
         if (layout, kv) != ("thd", "cache")]


def lengths_of(layout, kv):
    return MIXED if layout == "thd" else EQUAL if kv == "tensors" else ENDS


@pytest.mark.parametrize("is_strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("layout, kv, appends", FORMS)
def test_every_form_computes_the_same(layout, kv, appends, is_strided):
    with make(layout, kv, appends, has_lse=True) as attention:
        for _ in range(2):  # the second call is one whose layouts are known
            step = Step(layout, kv, appends, lengths_of(layout, kv), is_strided)
            out, lse = attention.run(**step.given)
            assert out.shape == (*step.given["q"].shape[:-1], DIM_V) and lse.dtype == np.float32
            step.check((out, lse))
            into = dict(out=spread(out * 0), lse=lse * 0)
            assert attention.run(**step.given, **into)[0] is into["out"]
            step.check((into["out"], into["lse"]))


@pytest.mark.parametrize("is_strided", [False, True])
@pytest.mark.parametrize("layout, kv, appends", FORMS)
def test_a_plan_serves_all_layers(layout, kv, appends, is_strided):
    lengths = lengths_of(layout, kv)
    steps = [Step(layout, kv, appends, lengths, is_strided) for _ in range(2)]
    with make(layout, kv, appends) as attention:
        lists = {name: x.copy() for name, x in steps[0].given.items() if x.dtype == np.int32}
        sizes = dict(batch=len(lengths), seq_q=5, seq_kv=21 if kv == "tensors" else CAPACITY)
        plan = attention.plan(**lists, **sizes, num_pages=3 * CAPACITY // PAGE)
        for x in lists.values():
            x.fill(-1)
    for step in steps:
        tensors = {name: x for name, x in step.given.items() if x.dtype != np.int32}
        for _ in range(2):
            step.check(plan.run(**tensors))
    if kv == "paged":
        with pytest.raises(attune.InvalidArgumentError, match="has 5 pages; the plan was made for 18"):
            plan.run(**{**tensors, "k_cache": tensors["k_cache"][:5], "v_cache": tensors["v_cache"][:5]})
    with pytest.raises(attune.InvalidArgumentError, match="[qk] has"):
        plan.run(**{**tensors, "q": tensors["q"][:2]})


def test_appended_keys_stay():
    step = Step("bhsd", "cache", True, ENDS)
    make("bhsd", "cache", True).run(**step.given)
    for b, (_, n) in enumerate(ENDS):
        assert np.array_equal(step.given["k_cache"][b, :, :n].swapaxes(0, 1), step.k[b])
        assert np.isnan(step.given["v_cache"][b, :, n:]).all()


def test_reproducible_rows_have_the_same_bits():
    seen = set()
    for layout, kv, appends in FORMS:
        step = Step(layout, kv, appends, EQUAL)
        out = make(layout, kv, appends, reproducible=True).run(**step.given)
        rows = out.reshape(3, 5, HEADS, DIM_V) if layout == "thd" else out if layout == "bshd" else out.swapaxes(1, 2)
        seen.add(rows.tobytes())
    assert len(seen) == 1


def test_options():
    step = Step("thd", "paged", False, MIXED)
    step.check(make(kv="paged", window_left=6).run(**step.given), window_left=6)
    step.check(make(kv="paged", is_causal=False).run(**step.given), is_causal=False)
    sinks = [0.5, -1, 2, 0, 1, -2]
    for extra in ("logits_soft_cap=1.5,has_sinks=1", dict(logits_soft_cap=1.5, has_sinks=True)):
        attention = make(kv="paged", extra=extra)
        assert attention.problem.fields["logits_soft_cap"] == "1.5"
        step.check(attention.run(**step.given, sinks=sinks), soft_cap=1.5, sinks=sinks)
        step.check(attention.run(**step.given, sinks=np.array(sinks, "f4")), soft_cap=1.5, sinks=sinks)
    own = attune.Context(cache_dir="", max_workers=1)
    attention = make(kv="paged", deadline_us=0, context=own)
    step.check(attention.run(**step.given, max_threads=1))
    assert attention.context is own and attention.problem == make(kv="paged").problem


def test_integers_of_other_types():
    attention, step = make(kv="paged"), Step("thd", "paged", False, MIXED)
    lists = {name: value for name, value in step.given.items() if value.dtype == np.int32}
    for convert in (np.ndarray.tolist, lambda x: x.astype("i8"), lambda x: x.astype("u2"), lambda x: x):
        for _ in range(2):
            given = {name: convert(x) for name, x in lists.items()}
            step.check(attention.run(**{**step.given, **given}))


def test_a_block_table_may_be_lists_of_any_lengths():
    step = Step("thd", "paged", False, MIXED)
    pages = [-(-length // PAGE) for length in step.given["kv_lens"]]
    rows = [row[:count].tolist() for row, count in zip(step.given["block_table"], pages)]
    assert len(set(map(len, rows))) > 1
    step.check(make(kv="paged").run(**{**step.given, "block_table": rows}))
    with pytest.raises(attune.InvalidArgumentError, match="block_table has the row 3; it must be a list"):
        make(kv="paged").run(**{**step.given, "block_table": [3]})


def test_a_block_table_may_be_a_view_of_a_wider_one():
    attention, step = make(kv="paged"), Step("thd", "paged", False, MIXED)
    wide = np.full((3, 9), 2**31 - 1, "i4")
    wide[:, :6] = step.given["block_table"]
    step.check(attention.run(**{**step.given, "block_table": wide[:, :6]}))


def test_bf16():
    attention, step = make("bshd", dtype="bf16"), Step("bshd", "tensors", False, EQUAL)
    step.q, step.k, step.v = ([(x.view("u4") >> 16 << 16).view("f4") for x in own] for own in (step.q, step.k, step.v))
    given = {name: (np.ascontiguousarray(step.batch(own)).view("u4") >> 16).astype("u2").view("V2")
             for name, own in (("q", step.q), ("k", step.k), ("v", step.v))}
    out = attention.run(**given)
    assert out.dtype == "V2"
    out = (out.view("u2").astype("u4") << 16).view("f4")
    for b in range(3):
        np.testing.assert_allclose(out[b], reference(step.q[b], step.k[b], step.v[b])[0], atol=2e-2)


def test_no_sequences():
    q, k, v = draw(0, 0, 5, HEADS, DIM), draw(0, 0, 5, KV_HEADS, DIM), draw(0, 0, 5, KV_HEADS, DIM_V)
    assert make("bshd").run(q, k, v).size == 0
    cache = attune.PagedCache(make(kv="paged"), 4)
    out = make(kv="paged").run(draw(0, 0, HEADS, DIM), cu_seqlens_q=[0], **cache.batch([]))
    assert out.shape == (0, HEADS, DIM_V)


# ---- Refusals ----


def changed(**new):
    return lambda given: {**given, **{name: f(given[name]) for name, f in new.items()}}


REFUSED = {
    "innermost": (changed(q=lambda x: np.repeat(x, 2, -1)[..., ::2]), "q: the elements of a row must lie side by side"),
    "dim": (changed(q=lambda x: x[..., :16]), r"q has the shape \[15, 6, 16\]; it must be \[15, 6, 32\]"),
    "rank": (changed(q=lambda x: x[None]), r"q has the shape \[1, 15, 6, 32\]"),
    "new": (changed(k=lambda x: x[:-1]), r"k has the shape \[14, 2, 32\]; it must be \[15, 2, 32\]"),
    "pages": (changed(v_cache=lambda x: x[1:]), r"v_cache has the shape \[17, 4, 2, 64\]; it must be \[18, 4, 2, 64\]"),
    "negative": (changed(q=lambda x: x[::-1]), "q has negative strides"),
    "repeated": (changed(q=lambda x: np.broadcast_to(x[:1, :1], x.shape)), "q repeats one row"),
    "dtype": (changed(k=lambda x: x.astype("f8")), "k is float64; it must be float32"),
    "cache dtype": (changed(k_cache=lambda x: x.astype("f2")), "k_cache is float16; it must be float32"),
    "read-only": (changed(k_cache=lambda x: np.broadcast_to(x, x.shape)), "k_cache is read-only"),
    "missing": (lambda given: {**given, "v": None}, "v is missing"),
    "missing lengths": (lambda given: {**given, "kv_lens": None}, "kv_lens is missing"),
    "starts": (changed(cu_seqlens_q=lambda x: x + [0, 0, 0, 1]), "cu_seqlens_q ends at 16, but q has 15 tokens"),
    "unordered": (changed(cu_seqlens_q=lambda x: x[[0, 2, 1, 3]]), "cu_seqlens_q"),
    "table": (changed(block_table=lambda x: x + 1), r"block_table\["),
    "table of one dim": (changed(block_table=lambda x: x[0]), "block_table has 1 dimensions; it must have 2"),
    "table rows": (changed(block_table=lambda x: x[:2]), "block_table has 2 elements at dimension 0, but"),
    "lengths": (changed(kv_lens=lambda x: x + 100), r"kv_lens\["),
    "negative lengths": (changed(kv_lens=lambda x: [-1, 2, 3]), "kv_lens is -1"),
    "not wanted": (lambda given: {**given, "cu_seqlens_kv": [0, 1, 2, 3]}, "cu_seqlens_kv was given to an attention"),
    "unknown": (lambda given: {**given, "sinks": np.zeros(6, "f4")}, "no tensor named 'sinks': its extra asks for"),
    "max_threads": (lambda given: {**given, "max_threads": -1}, "max_threads is -1"),
    "type": (lambda given: {**given, "q": "words"}, "q is a str"),
}


@pytest.mark.parametrize("change, sentence", REFUSED.values(), ids=REFUSED)
def test_a_wrong_step_writes_nothing(change, sentence):
    attention, step = make(kv="paged", appends=True), Step("thd", "paged", True, MIXED)
    kept = {name: step.given[name].copy() for name in ("k_cache", "v_cache")}
    out = np.full((15, HEADS, DIM_V), 7, "f4")
    for _ in range(2):  # with known layouts, too
        with pytest.raises(attune.InvalidArgumentError, match=sentence):
            attention.run(**{"out": out, **change(step.given)})
    assert (out == 7).all()
    for name, before in kept.items():
        assert np.array_equal(step.given[name], before, equal_nan=True)
    step.check(attention.run(**step.given))
    with pytest.raises(attune.InvalidArgumentError, match=sentence):
        attention.run(**{"out": out, **change(step.given)})


@pytest.mark.parametrize("options, kind, sentence", [
    (dict(layout="dht"), attune.InvalidArgumentError, "layout is 'dht'; it must be 'thd', 'bshd' or 'bhsd'"),
    (dict(kv="pages"), attune.InvalidArgumentError, "kv is 'pages'; it must be 'tensors', 'cache' or 'paged'"),
    (dict(kv="cache"), attune.UnsupportedError, "ATTUNE_THD"),
    (dict(appends=True), attune.InvalidArgumentError, "appends is 1, but there is no cache"),
    (dict(dtype="f12"), attune.InvalidArgumentError, "dtype is 'f12'"),
    (dict(kv_scales="row"), attune.InvalidArgumentError, "kv_scales is 'row'"),
    (dict(kv="paged", kv_dtype="i8", kv_scales="none"), attune.InvalidProblemError, "scales"),
    (dict(num_heads=5), attune.InvalidProblemError, "num_heads"),
    (dict(head_dim=2.5), attune.InvalidTypeError, "head_dim is 2.5; it must be an integer"),
    (dict(is_causal="yes"), attune.InvalidTypeError, "is_causal is 'yes'"),
    (dict(extra="page_size=8"), attune.InvalidArgumentError, "extra has page_size"),
    (dict(extra="no_such_field=1"), attune.InvalidProblemError, "extra: .*no_such_field"),
    (dict(extra={"has_sinks=1,page_size": 8}), attune.InvalidProblemError, "is not a field"),
    (dict(deadline_us=10**9), attune.InvalidArgumentError, "deadline_us is 1000000000"),
    (dict(softmax_scale=float("nan")), attune.InvalidArgumentError, "softmax_scale is nan"),
    (dict(context="none"), attune.InvalidTypeError, "context is a str"),
])
def test_a_wrong_description(options, kind, sentence):
    with pytest.raises(kind, match=sentence):
        make(**options)


# ---- Life ----


def test_closing():
    step = Step("thd", "tensors", False, MIXED)
    with make() as attention:
        attention.prepare()
        step.check(attention.run(**step.given))
    attention.close()
    for call in (attention.prepare, attention.__enter__, lambda: attention.run(**step.given)):
        with pytest.raises(attune.InvalidArgumentError, match="the attention is closed"):
            call()
    assert "closed" not in repr(attention) and attention.problem.fields["num_heads"] == HEADS


def test_closing_while_steps_run():
    attention, step, failures = make(), Step("thd", "tensors", False, MIXED), []
    begun = threading.Barrier(5)

    def work():
        begun.wait()
        try:
            while True:
                step.check(attention.run(**step.given))
        except attune.InvalidArgumentError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    attention.close()
    for thread in threads:
        thread.join()
    assert failures == ["the attention is closed"] * 4


def test_pickling():
    attention, step = make(extra=dict(logits_soft_cap=2.0), has_lse=True), Step("thd", "tensors", False, MIXED)
    again = pickle.loads(pickle.dumps(attention))
    assert again.problem == attention.problem and again.layout == attention.layout
    step.check(again.run(**step.given), soft_cap=2.0)


# ---- Caches ----


def test_sizes_of_caches():
    for options, expected in (
        (dict(), (10 * 2 * 4 * 32 * 4, 10 * 2 * 4 * 64 * 4, 0, 0, 32, 64)),
        (dict(kv_dtype="i8", kv_scales="token"), (10 * 2 * 4 * 32, 10 * 2 * 4 * 64, 320, 320, 32, 64)),
        (dict(kv_dtype="i8", kv_scales="inline"), (10 * 2 * 4 * 34, 10 * 2 * 4 * 68, 0, 0, 34, 68)),
        (dict(kv_dtype="i4"), (10 * 2 * 4 * 16, 10 * 2 * 4 * 32, 320, 640, 16, 32)),
    ):
        attention = make(kv="paged", **options)
        size, cache = attention.cache_size(10), attune.PagedCache(attention, 10)
        assert size == expected and size.k_bytes == cache.k_cache.nbytes and size.v_bytes == cache.v_cache.nbytes
        assert size.k_scale_bytes == (0 if cache.k_scale is None else cache.k_scale.nbytes)
    assert make("bhsd", "cache").cache_size(3, 100).k_bytes == 3 * 2 * 100 * 32 * 4
    with pytest.raises(attune.InvalidArgumentError, match="the attention has no cache"):
        make().cache_size(1)


@pytest.mark.parametrize("layout", ["thd", "bshd", "bhsd"])
@pytest.mark.parametrize("options, tolerance", [
    (dict(), 1e-5),
    (dict(kv_dtype="i8", kv_scales="head"), 0.1),
    (dict(kv_dtype="i8", kv_scales="token"), 0.05),
    (dict(kv_dtype="i8", kv_scales="inline"), 0.05),
    (dict(kv_dtype="i4", kv_scales="group"), 0.6),
    (dict(kv_dtype="f8"), 0.3),
], ids=lambda x: " ".join(map(str, x.values())) if isinstance(x, dict) else "")
def test_sequences_grow_on_pages(layout, options, tolerance):
    """A prompt and then tokens, each appended by the step itself."""
    attention = make(layout, "paged", True, **options)
    cache = attune.PagedCache(attention, 16)
    for scale in (cache.k_scale, cache.v_scale):
        if scale is not None and scale.ndim == 1:
            assert np.isnan(scale).all()
            scale[:] = 4 / 127
    tokens = {name: [draw(seed + b, 15, heads, dim) for b in range(2)]
              for name, seed, heads, dim in (("q", 0, HEADS, DIM), ("k", 2, KV_HEADS, DIM), ("v", 4, KV_HEADS, DIM_V))}
    for begin, end in ((0, 5), (5, 12), (12, 13), (13, 14), (14, 15)):
        given = {name: np.stack([x[begin:end] for x in own]) for name, own in tokens.items()}
        if layout == "thd":
            given = {name: x.reshape(-1, *x.shape[2:]) for name, x in given.items()}
            given["cu_seqlens_q"] = np.arange(3) * (end - begin)
        elif layout == "bhsd":
            given = {name: x.swapaxes(1, 2) for name, x in given.items()}
        for seq in "ab":
            cache.append(seq, end - begin)
        out = attention.run(**given, **cache.batch("ab"))
        out = out.reshape(2, -1, HEADS, DIM_V) if layout == "thd" else out if layout == "bshd" else out.swapaxes(1, 2)
        for b in range(2):
            q, k, v = (tokens[name][b][:end] for name in "qkv")
            expected = reference(q[begin:], k, v)
            np.testing.assert_allclose(out[b], expected[0], atol=tolerance)


def plain_cache(num_pages):
    return attune.PagedCache(make(kv="paged", appends=True), num_pages)


def test_pages_are_handed_out_and_taken_back():
    cache = plain_cache(5)
    cache.append("a", 5)
    cache.append(2, 4)
    cache.append("a", 3)
    assert cache.free_pages == 2 and cache.length("a") == 8 and cache.length(2) == 4 and "b" not in cache
    assert cache.sequences == ["a", 2] and cache.length("b") == 0
    batch = cache.batch(["a", 2])
    assert batch["kv_lens"].tolist() == [8, 4] and batch["block_table"].tolist() == [[0, 1], [2, 0]]
    assert batch["k_cache"] is cache.k_cache and "k_scale" not in batch
    cache.truncate("a", 4)
    assert cache.free_pages == 3 and cache.batch(["a"])["block_table"].tolist() == [[0]]
    cache.free("a")
    cache.append("c")
    assert cache.free_pages == 3 and cache.batch(["c"])["block_table"].tolist() == [[0]]
    assert repr(cache) == "<attune.PagedCache of 2 sequences, 3 of 5 pages free>"


def test_too_few_pages_change_nothing():
    cache = plain_cache(3)
    cache.append("a", 9)
    cache.free("a")
    cache.append("a", 6)
    for seq, n, wanted in (("a", 7, 2), ("b", 5, 2)):
        with pytest.raises(attune.OutOfMemoryError, match=rf"sequence '{seq}' needs {wanted} more pages for {n} tokens,"
                                                          " and 1 of 3 are free"):
            cache.append(seq, n)
    assert cache.sequences == ["a"] and cache.length("a") == 6 and cache.free_pages == 1
    cache.append("a", 6)
    assert cache.free_pages == 0
    cache.fork("a", "b")
    cache.truncate("b", 6)
    with pytest.raises(attune.OutOfMemoryError, match="needs 1 more pages for 1 tokens, and 0 of 3"):
        cache.append("b")  # its last page is shared


def test_a_shared_page_is_copied_before_it_is_written():
    attention = make(kv="paged", appends=True)
    cache = attune.PagedCache(attention, 8)
    q, k, v = draw(0, 12, HEADS, DIM), draw(1, 12, KV_HEADS, DIM), draw(2, 12, KV_HEADS, DIM_V)

    def step(seqs, pieces):
        for seq, piece in zip(seqs, pieces):
            cache.append(seq, len(piece))
        at, starts = np.concatenate(pieces), np.cumsum([0, *map(len, pieces)])
        return np.split(attention.run(q[at], k[at], v[at], cu_seqlens_q=starts, **cache.batch(seqs)), starts[1:-1])

    step(["a"], [[0, 1, 2, 3, 4, 5]])
    cache.fork("a", "b")
    cache.fork("a", "c")
    assert cache.free_pages == 6
    results = step("abc", [[6], [7, 8], [9, 10, 11]])
    assert cache.free_pages == 8 - 1 - 3 - 1  # the full page is shared, c has one more
    table = cache.batch("abc")["block_table"]
    assert len(set(table[:, 0])) == 1 and len(set(table[:, 1])) == 3
    for out, own in zip(results, ([6], [7, 8], [9, 10, 11])):
        every = [0, 1, 2, 3, 4, 5, *own]
        np.testing.assert_allclose(out, reference(q[own], k[every], v[every])[0], atol=1e-5)
    for seq in "bac":
        cache.free(seq)
    assert cache.free_pages == 8 and not cache.sequences


def test_the_debug_mode_finds_nothing_wrong_with_its_pages():
    """Uninitialised rows, pages that are shared, and columns of the table that mean nothing."""
    attention = make(kv="paged", appends=True, context=attune.Context(check=True, max_workers=1))
    cache = attune.PagedCache(attention, 16)
    cache.k_cache[:] = cache.v_cache[:] = np.nan

    def step(**counts):
        for seq, n in counts.items():
            cache.append(seq, n)
        total, starts = sum(counts.values()), np.cumsum([0, *counts.values()])
        q, k, v = draw(0, total, HEADS, DIM), draw(1, total, KV_HEADS, DIM), draw(2, total, KV_HEADS, DIM_V)
        return attention.run(q, k, v, cu_seqlens_q=starts, **cache.batch(list(counts)))

    step(a=5, b=14)
    cache.fork("a", "c")
    assert np.isfinite(step(a=1, b=3, c=1)).all()
    batch = cache.batch("ab")
    batch["block_table"][1, 4] = batch["block_table"][0, 0]
    with pytest.raises(attune.InvalidArgumentError, match="block_table"):
        attention.run(draw(0, 2, HEADS, DIM), draw(1, 2, KV_HEADS, DIM), draw(2, 2, KV_HEADS, DIM_V),
                      cu_seqlens_q=[0, 1, 2], **batch)


def test_refusals_of_the_cache():
    cache = plain_cache(4)
    cache.append("a")
    for sentence, call in (
        ("no sequence 'x'", lambda: cache.free("x")),
        ("no sequence 'x'", lambda: cache.batch(["a", "x"])),
        ("no sequence 'x'", lambda: cache.fork("x", "y")),
        ("has a sequence 'a' already", lambda: cache.fork("a", "a")),
        ("n is -1", lambda: cache.append("a", -1)),
        ("length is 2; it must be from 0 to 1", lambda: cache.truncate("a", 2)),
        ("kv is 'tensors'; a PagedCache needs 'paged'", lambda: attune.PagedCache(make(), 4)),
        ("num_pages is 0", lambda: plain_cache(0)),
        ("attention is a str", lambda: attune.PagedCache("attention", 4)),
    ):
        with pytest.raises(attune.InvalidArgumentError, match=sentence):
            call()
