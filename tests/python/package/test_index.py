"""attune.index beside NumPy: layouts, types, lists for attention, and a layer as DeepSeek V3.2 has it."""

import numpy as np
import pytest

import attune

RNG = np.random.default_rng(11)


def integers(most, *shape, dtype="f4"):
    """Small ones: scores are exact, and many are equal."""
    return RNG.integers(-most, most, shape, endpoint=True).astype(dtype)


def scores_of(q, k, w):
    """Of [queries, heads, dim] and [keys, dim]: [queries, keys], in f64."""
    products = np.einsum("qhd,kd->qhk", q.astype("f8"), k.astype("f8"))
    return np.einsum("qh,qhk->qk", w.astype("f8"), np.maximum(products, 0))


def best(scores, num_ids, first_seen=None):
    """The ids and how many there are. first_seen: keys that the first query sees, each further one one more."""
    queries, keys = scores.shape
    ids, lens = np.full((queries, num_ids), -1, "i4"), np.zeros(queries, "i4")
    for i, row in enumerate(scores):
        seen = keys if first_seen is None else max(first_seen + i, 0)
        lens[i] = min(num_ids, seen)
        ids[i, : lens[i]] = np.sort(np.argsort(-row[:seen], kind="stable")[:num_ids])
    return ids, lens


def draw(batch=2, queries=3, keys=90, heads=5, dim=12, dtype="f4"):
    return (integers(2, batch, queries, heads, dim, dtype=dtype), integers(2, batch, keys, dim, dtype=dtype),
            integers(3, batch, queries, heads))


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_dense(dtype, is_causal):
    q, k, w = draw(dtype=dtype)
    chosen = attune.index(q, k, w, 9, is_causal=is_causal, has_scores=True)
    for b in range(2):
        scores = scores_of(q[b], k[b], w[b])
        ids, lens = best(scores, 9, 88 if is_causal else None)
        assert np.array_equal(chosen.ids[b], ids) and np.array_equal(chosen.lens[b], lens)
        assert np.array_equal(chosen.scores[b], np.take_along_axis(scores, ids.astype("i8"), 1))


def test_real_numbers_and_types():
    """With scores that no rounding brings together the choice is that of f64."""
    q, k, w = RNG.standard_normal((1, 2, 4, 64)), RNG.standard_normal((1, 500, 64)), RNG.standard_normal((1, 2, 4))
    k *= np.linspace(0.1, 3, 500)[None, :, None]
    for dtype, tolerance in (("f4", 1e-5), ("f2", 1e-5)):
        call = q.astype(dtype), k.astype(dtype), w.astype("f4")
        chosen = attune.index(*call, 64, has_scores=True)
        assert not np.any(chosen.ids == -1)
        for i in range(2):
            scores = scores_of(*(x[0] for x in call))[i]
            own = scores[chosen.ids[0, i]]
            np.testing.assert_allclose(chosen.scores[0, i], own, rtol=1e-4, atol=1e-3)
            assert own.min() >= np.sort(scores)[-64] - tolerance * np.abs(scores).max()


def test_bytes_with_scales():
    q, k = integers(127, 1, 3, 6, 32, dtype="i1"), integers(127, 1, 200, 32, dtype="i1")
    w, q_scale = integers(3, 1, 3, 6), 2.0 ** RNG.integers(-9, -6, (1, 3, 6)).astype("f4")
    k_scale = 2.0 ** RNG.integers(-9, -6, (1, 200)).astype("f4")
    chosen = attune.index(q, k, w, 20, q_scale=q_scale, k_scale=k_scale)
    scores = scores_of(q[0], k[0], w[0] * q_scale[0]) * k_scale[0]
    assert np.array_equal(chosen.ids[0], best(scores, 20)[0])


def test_ragged_and_pages():
    page, starts, lens = 16, [0, 3, 4], [77, 20]
    q, pages, w = integers(2, 4, 5, 12), integers(2, 12, page, 12), integers(3, 4, 5)
    table = RNG.permutation(12)[:10].reshape(2, 5)
    call = dict(is_causal=True, cu_seqlens_q=starts)
    paged = attune.index(q, pages, w, 9, **call, kv_lens=lens, block_table=table)
    keys = [pages[table[b]].reshape(-1, 12)[: lens[b]] for b in range(2)]
    ragged = attune.index(q, np.concatenate(keys), w, 9, **call, cu_seqlens_kv=[0, 77, 97])
    for a, b in zip(paged[:2], ragged[:2]):
        assert np.array_equal(a, b)
    for b in range(2):
        part = slice(starts[b], starts[b + 1])
        ids, own = best(scores_of(q[part], keys[b], w[part]), 9, lens[b] - (starts[b + 1] - starts[b]) + 1)
        assert np.array_equal(paged.ids[part], ids) and np.array_equal(paged.lens[part], own)


def test_strides_are_kept():
    q, k, w = draw(batch=1)
    wide = np.zeros((1, 90, 40), "f4")
    wide[..., :12] = k
    same_w = np.broadcast_to(w[:, :1], w.shape)  # strides of 0
    chosen = attune.index(q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), wide[..., :12], same_w, 9)
    assert np.array_equal(chosen.ids, attune.index(q, k, same_w.copy(), 9).ids)
    again = attune.index(q, k, w, 9, ids=chosen.ids, lens=chosen.lens)
    assert again.ids is chosen.ids and np.array_equal(again.ids[0], best(scores_of(q[0], k[0], w[0]), 9)[0])


def test_attention_takes_the_lists():
    q, k, w = draw(batch=1, queries=4, keys=60)
    chosen = attune.index(q, k, w, 8, is_causal=True)
    rows = RNG.standard_normal((1, 2, 4, 16), dtype="f4"), *RNG.standard_normal((2, 1, 2, 60, 16), dtype="f4")
    out = attune.attention(*rows, kv_ids=chosen.ids, kv_id_lens=chosen.lens)
    mask = np.zeros((1, 1, 4, 60), bool)
    for i in range(4):
        mask[0, 0, i, chosen.ids[0, i, : chosen.lens[0, i]]] = True
    np.testing.assert_allclose(out, attune.attention(*rows, attn_mask=mask), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change, sentence", [
    (dict(num_ids=0), "num_ids is 0; it must be from 1 to 65536"),
    (dict(k=np.zeros((2, 90, 8), "f4")), r"k has the shape \[2, 90, 8\]; it must be \[2, any, 12\]"),
    (dict(k=np.zeros((2, 90, 12), "f2")), "k is float16; it must be f32"),
    (dict(w=np.zeros((2, 3, 4), "f4")), r"w has the shape \[2, 3, 4\]; it must be \[2, 3, 5\]"),
    (dict(w=np.zeros((2, 3, 5))), "w is float64; it must be f32, bf16 or f16"),
    (dict(q_scale=np.zeros((2, 3, 5), "f4")), "q_scale is given; int8 and f8 have it, and no other"),
    (dict(kv_lens=[90, 91]), r"kv_lens\[1\] is 91; there is room for 0 to 90 keys"),
    (dict(kv_lens=[90]), r"kv_lens has the shape \[1\]; it must be \[2\]"),
    (dict(ids=np.zeros((2, 3, 8), "i4")), r"ids has the shape \[2, 3, 8\]; it must be \[2, 3, 9\]"),
    (dict(ids=np.zeros((2, 3, 18), "i4")[..., ::2]), "ids must be contiguous"),
    (dict(ids=np.zeros((2, 3, 9), "i8")), "ids is int64; it must be i32"),
    (dict(is_causal=3), "is_causal is 3"),
    (dict(q=np.broadcast_to(np.zeros(12, "f4"), (2, 3, 5, 12))), "q repeats one row by strides of 0; copy it"),
    (dict(kv_lens=np.zeros(2, "f4")), "kv_lens is float32"),
    (dict(kv_lens=np.zeros(2, bool)), "kv_lens is bool"),
    (dict(kv_lens=np.zeros(4, "i4")[::2]), "kv_lens: its innermost stride is 2"),
    (dict(k=np.zeros((5, 18, 12), "f4"), kv_lens=[18, 18], block_table=np.zeros((2, 4), "i4")[:, ::2]),
     "block_table: its innermost stride is 2"),
    (dict(k=np.zeros((5, 18, 12), "f4"), kv_lens=[18, 18], block_table=np.broadcast_to(np.zeros(2, "i4"), (2, 2))),
     "block_table has a row stride of 0"),
])
def test_refusals(change, sentence):
    q, k, w = draw()
    with pytest.raises((attune.Error, ValueError, TypeError), match=sentence):
        attune.index(**(dict(q=q, k=k, w=w, num_ids=9) | change))


def test_refusals_of_lists():
    q, k, w = (x[0] for x in draw())
    with pytest.raises(attune.InvalidArgumentError, match="cu_seqlens_q ends with 4, but q has 3 tokens"):
        attune.index(q, k, w, 9, cu_seqlens_q=[0, 4], cu_seqlens_kv=[0, 90])
    with pytest.raises(attune.InvalidArgumentError, match="cu_seqlens_kv ends with 80, but k has 90 tokens"):
        attune.index(q, k, w, 9, cu_seqlens_q=[0, 3], cu_seqlens_kv=[0, 80])
    with pytest.raises(attune.InvalidArgumentError, match=r"block_table\[0, 1\] is 7; there are pages from 0 to 4"):
        attune.index(q, k.reshape(5, 18, 12), w, 9, cu_seqlens_q=[0, 3], kv_lens=[20], block_table=[[0, 7]])
