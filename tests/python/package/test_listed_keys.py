"""Attention over listed keys: attune.attention(kv_ids=) and steps, beside NumPy in f64."""

import attune
import numpy as np
import pytest

HEADS, KV_HEADS, DIM, KEYS, MOST = 4, 2, 16, 90, 24


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def lists(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, KEYS, (*shape, MOST)).astype(np.int32)


def attended(q, k, v, ids):
    """A query [heads, dim] and the keys ids of k and v [kv_heads, keys, dim]."""
    out = np.zeros((HEADS, DIM))
    for h in range(HEADS):
        own_k, own_v = (np.asarray(x[h * KV_HEADS // HEADS], np.float64)[ids] for x in (k, v))
        scores = own_k @ q[h].astype(np.float64) / np.sqrt(DIM)
        if len(ids):
            p = np.exp(scores - scores.max())
            out[h] = p @ own_v / p.sum()
    return out


def test_a_list_for_each_query():
    q = numbers(2, HEADS, 3, DIM)
    k, v = (numbers(2, KV_HEADS, KEYS, DIM, seed=seed) for seed in (1, 2))
    ids, lens = lists(2, 3), np.array([[24, 5, 0], [1, 24, 7]], np.int32)
    out = attune.attention(q, k, v, kv_ids=ids, kv_id_lens=lens)
    for b in range(2):
        for i in range(3):
            expected = attended(q[b, :, i], k[b], v[b], ids[b, i, : lens[b, i]])
            np.testing.assert_allclose(out[b, :, i], expected, atol=5e-6)


def test_a_list_for_each_sequence_and_other_layouts():
    q = numbers(2, 3, HEADS, DIM)
    k, v = (numbers(2, KEYS, KV_HEADS, DIM, seed=seed) for seed in (1, 2))
    ids = lists(2, 1).astype(np.int64)
    out = attune.attention(q, k, v, kv_ids=ids, layout="bshd")
    for b in range(2):
        for i in range(3):
            expected = attended(q[b, i], k[b].swapaxes(0, 1), v[b].swapaxes(0, 1), ids[b, 0])
            np.testing.assert_allclose(out[b, i], expected, atol=5e-6)


def test_sequences_one_after_the_other():
    starts_q, starts_kv = np.array([0, 2, 5], np.int32), np.array([0, KEYS, 2 * KEYS], np.int32)
    q = numbers(5, HEADS, DIM)
    k, v = (numbers(2 * KEYS, KV_HEADS, DIM, seed=seed) for seed in (1, 2))
    ids = lists(5)
    out = attune.attention(q, k, v, layout="thd", cu_seqlens_q=starts_q, cu_seqlens_kv=starts_kv, kv_ids=ids)
    for token in range(5):
        b = int(token >= 2)
        own_k, own_v = (x[b * KEYS : (b + 1) * KEYS].swapaxes(0, 1) for x in (k, v))
        np.testing.assert_allclose(out[token], attended(q[token], own_k, own_v, ids[token]), atol=5e-6)


def test_steps_on_pages():
    page, pages = 16, 12
    starts, lens = np.array([0, 1, 3], np.int32), np.array([KEYS, KEYS - 1], np.int32)
    k, v = numbers(pages, page, KV_HEADS, DIM, seed=1), numbers(pages, page, KV_HEADS, DIM, seed=2)
    table = np.random.default_rng(5).permutation(pages).reshape(2, 6).astype(np.int32)
    q, ids = numbers(3, HEADS, DIM), np.minimum(lists(3), KEYS - 2)
    heads = dict(num_heads=HEADS, head_dim=DIM, num_kv_heads=KV_HEADS)
    attention = attune.Attention(**heads, kv="paged", page_size=page, extra="kv_ids=query")
    tensors = dict(q=q, k_cache=k, v_cache=v, kv_ids=ids[None])
    sizes = dict(cu_seqlens_q=starts, kv_lens=lens, block_table=table)
    out = attention.run(**tensors, **sizes)
    for token in range(3):
        own_k, own_v = (x[table[int(token >= 1)]].reshape(-1, KV_HEADS, DIM).swapaxes(0, 1) for x in (k, v))
        np.testing.assert_allclose(out[token], attended(q[token], own_k, own_v, ids[token]), atol=5e-6)
    plan = attention.plan(**sizes, num_pages=pages)
    np.testing.assert_array_equal(plan.run(**tensors), out)
    ids[1, 3] = KEYS - 1  # of a sequence with as many keys: a plan reads the lists of each run
    with pytest.raises(attune.InvalidArgumentError, match="kv_ids has key 89 at place 3 of the list of query 1"):
        plan.run(**tensors)


def test_refusals():
    q, k = numbers(1, HEADS, 3, DIM), numbers(1, KV_HEADS, KEYS, DIM)
    with pytest.raises(attune.InvalidArgumentError, match="kv_ids has 1 dimensions; it must have 3, or 2"):
        attune.attention(q, k, k, kv_ids=lists()[:3])
    with pytest.raises(attune.Error, match="is_causal=1 depends on where a key is"):
        attune.attention(q, k, k, kv_ids=lists(1, 3), is_causal=True)
