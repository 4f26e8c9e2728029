"""attune.blocks beside NumPy: lists of blocks in all forms, and the estimator that chooses them."""

import numpy as np
import pytest

import attune
import attune.blocks as blocks

B, H, KV, D = 2, 4, 2, 24
RNG = np.random.default_rng(3)


def tensors(queries, keys, dtype="f4"):
    return [RNG.standard_normal(dims).astype(dtype)
            for dims in ((B, H, queries, D), (B, KV, keys, D), (B, KV, keys, 16))]


def as_mask(shown, size, queries, keys):
    return shown.repeat(size, -2).repeat(size, -1)[..., :queries, :keys]


def wanted(q, k, v, shown, size, **options):
    mask = np.broadcast_to(as_mask(shown, size, q.shape[2], k.shape[2]), (B, H, q.shape[2], k.shape[2]))
    return attune.attention(q, k, v, attn_mask=np.ascontiguousarray(mask), **options)


@pytest.mark.parametrize("size", [16, 24, 64])
@pytest.mark.parametrize("queries, keys, causal", [(200, 200, True), (130, 200, False), (70, 200, True)])
def test_blocks_are_the_same_as_a_mask(size, queries, keys, causal):
    q, k, v = tensors(queries, keys)
    shown = RNG.random((B, H, -(-queries // size), -(-keys // size))) < 0.4
    got = blocks.attention(q, k, v, shown, block_size=size, is_causal=causal)
    np.testing.assert_allclose(got, wanted(q, k, v, shown, size, is_causal=causal), rtol=2e-5, atol=2e-6)
    shared = shown[:1, :1]
    got = blocks.attention(q, k, v, shared[0], block_size=size, is_causal=causal, softmax_scale=0.3)
    np.testing.assert_allclose(got, wanted(q, k, v, shared, size, is_causal=causal, softmax_scale=0.3), rtol=2e-5,
                               atol=2e-6)


def test_hidden_keys_are_not_read():
    q, k, v = tensors(100, 100)
    shown = np.ones((H, 7, 7), bool)
    shown[:, :, 3] = False
    k[:, :, 48:64] = v[:, :, 48:64] = np.nan
    assert np.isfinite(blocks.attention(q, k, v, shown, block_size=16)).all()


def test_lists_and_csr():
    q, k, v = tensors(100, 100)
    shown = RNG.random((H, 7, 7)) < 0.5
    shown[0, 3] = False  # rows that see nothing
    exact = blocks.attention(q, k, v, shown, block_size=16)
    assert (exact[:, 0, 48:64] == 0).all()
    lists = np.full((H, 7, 7), -1, np.int32)
    for head in range(H):
        for row in range(7):
            ids = np.flatnonzero(shown[head, row])[::-1]
            lists[head, row, :ids.size] = ids
    assert np.array_equal(blocks.attention(q, k, v, lists, block_size=16), exact)
    csr = np.concatenate([[0], np.cumsum(shown.reshape(-1, 7).sum(-1))]), np.nonzero(shown.reshape(-1, 7))[1]
    assert np.array_equal(blocks.attention(q, k, v, csr, block_size=16), exact)
    one = np.concatenate([[0], np.cumsum(shown[1].sum(-1))]), np.nonzero(shown[1])[1]
    assert np.array_equal(blocks.attention(q, k, v, one, block_size=16),
                          blocks.attention(q, k, v, shown[1:2], block_size=16))


def test_one_kernel_for_many_lengths():
    def made():
        statistics = attune.info()["statistics"]
        return statistics["compiles"] + statistics["disk_hits"]

    counts = []
    for length in (129, 140, 150):
        q, k, v = tensors(length, length)
        shown = np.ones((1, -(-length // 16), -(-length // 16)), bool)
        got = blocks.attention(q, k, v, shown, block_size=16, is_causal=True)
        counts.append(made())
        np.testing.assert_allclose(got, by_softmax(q, k, v), rtol=2e-5, atol=2e-6)
    assert counts[0] == counts[-1]


def by_softmax(q, k, v):
    k, v = (x.repeat(H // KV, 1).astype("f8") for x in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(D)
    scores[..., ~np.tri(q.shape[2], dtype=bool)] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def estimated(q, k, size, stride, causal):
    """The estimator in f64, square by square."""
    queries, keys = q.shape[2], k.shape[2]
    rows, columns = -(-queries // stride), -(-keys // stride)
    q, k = (np.concatenate([x, np.zeros((*x.shape[:2], -x.shape[2] % stride, D))], 2).astype("f8") for x in (q, k))
    k = k.repeat(H // KV, 1)
    sums = np.zeros((B, H, rows, columns))
    for t in range(stride):
        sums += q[:, :, stride - 1 - t::stride] @ k[:, :, t::stride].transpose(0, 1, 3, 2)
    sums *= D ** -0.5 / stride
    if causal:
        sums[..., np.arange(columns) > np.arange(rows)[:, None] + columns - rows] = -np.inf
    p = np.exp(sums - sums.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    in_block = size // stride
    by_columns = np.add.reduceat(p, np.arange(0, columns, in_block), -1)
    starts = np.arange(0, rows, in_block)
    return np.add.reduceat(by_columns, starts, -2) / np.diff(np.append(starts, rows))[:, None]


@pytest.mark.parametrize("queries, keys, causal", [(200, 200, True), (100, 180, False), (72, 200, True)])
def test_estimator(queries, keys, causal):
    q, k, _ = tensors(queries, keys)
    got = blocks.scores(q, k, block_size=32, stride=8, is_causal=causal)
    np.testing.assert_allclose(got, estimated(q, k, 32, 8, causal), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)


def test_half():
    q, k, v = tensors(100, 100, "f2")
    got = blocks.scores(q, k, block_size=32, stride=8)
    np.testing.assert_allclose(got, estimated(q, k, 32, 8, False), rtol=1e-3, atol=1e-5)
    shown = blocks.choose(got, share=0.5)
    exact = blocks.attention(*(x.astype("f4") for x in (q, k, v)), shown, block_size=32)
    got = blocks.attention(q, k, v, shown, block_size=32)
    np.testing.assert_allclose(got.astype("f4"), exact, rtol=1e-2, atol=1e-2)


def test_choose():
    shares = np.array([[0.5, 0.3, 0.2, 0], [0.1, 0.1, 0.7, 0.1], [0.25, 0.25, 0.25, 0.25]])
    shown = blocks.choose(shares, share=0.75)
    assert shown.tolist() == [[True, True, False, False], [True, False, True, False], [True, True, True, False]]
    assert blocks.choose(shares, share=1).sum(-1).tolist() == [3, 4, 4]
    causal = np.array([[0.6, 0, 0, 0], [0.1, 0.2, 0.7, 0], [0.25, 0.25, 0.25, 0.25]])
    shown = blocks.choose(causal, share=0, is_causal=True)  # the first, and the last that each row sees
    assert shown.tolist() == [[True, True, False, False], [True, False, True, False], [True, False, False, True]]


def test_the_last_visible_block_is_chosen_for_any_lengths():
    """130 queries and 194 keys: query 127, the last of row block 0, sees key 191, which is in key block 1."""
    q, k, _ = tensors(130, 194)
    shown = blocks.choose(blocks.scores(q, k, block_size=128, stride=16, is_causal=True), share=0, is_causal=True)
    assert shown[..., 0, 1].all() and shown[..., 1, 1].all()


def test_a_needle_is_found():
    """Keys of one block are like the queries of another: the estimator gives that block most."""
    q, k, _ = tensors(256, 256)
    direction = RNG.standard_normal(D)
    q[:, :, 192:224] += 3 * direction
    k[:, :, 64:96] += 3 * direction
    shares = blocks.scores(q, k, block_size=32, stride=8, is_causal=True)
    assert (shares[:, :, 6].argmax(-1) == 2).all() and shares[:, :, 6, 2].min() > 0.9


@pytest.mark.parametrize("change, sentence", [
    (dict(blocks=np.ones((H, 7, 6), bool)), r"blocks has the shape \[4, 7, 6\]; there are 2 sequences, 4 heads, 7 row"),
    (dict(blocks=np.full((H, 7, 2), 7)), r"lists\[0\] is the key block 7; it must be at least 0 and below 7"),
    (dict(blocks=np.full((H, 7, 2), -2)), r"lists\[0\] is the key block -2"),
    (dict(blocks=np.full((H, 7, 2), 2**40)), "blocks has the number 1099511627776"),
    (dict(blocks=(np.array([0, 1, 0, 1, 1, 1, 1, 1]), np.arange(1))), r"indptr\[1\] is 1 and indptr\[2\] 0"),
    (dict(blocks=(np.arange(8), np.full(7, 9))), r"indices\[0\] is the key block 9"),
    (dict(blocks=(np.arange(8), np.zeros(7))), "indices has the dtype float64; it must be integers"),
    (dict(blocks=np.ones((H, 7, 7))), "blocks has the dtype float64; it must be bool"),
    (dict(blocks=(np.arange(5), np.arange(4))), r"indptr has the shape \[5\]; for 7 row blocks"),
    (dict(blocks=(np.arange(8), np.arange(4))), "indptr must rise from 0 to the number of indices, which is 4"),
    (dict(blocks=(np.arange(8), np.arange(7) + 2**40)), "indices has the number 1099511627776"),
    (dict(blocks=np.full((H, 7, 7), -(2**33))), "blocks has the number -8589934592"),
    (dict(block_size=0), "block_size is 0"),
    (dict(q=np.zeros((2, 4, 100), "f4")), r"q must have the shape \[batch, heads, length, dim\]"),
    (dict(k=np.zeros((2, 3, 100, D), "f4")), "k has 3 heads, which must divide the 4 of q"),
    (dict(v=np.zeros((2, 2, 99, 16), "f4")), r"v has the shape \[2, 2, 99, 16\]"),
    (dict(out=np.zeros((2, 4, 100, 15), "f4")), r"out has the shape \[2, 4, 100, 15\]"),
])
def test_refusals(change, sentence):
    q, k, v = tensors(100, 100)
    call = dict(q=q, k=k, v=v, blocks=np.ones((H, 7, 7), bool), block_size=16) | change
    with pytest.raises((attune.InvalidArgumentError, attune.InvalidTypeError), match=sentence):
        blocks.attention(call.pop("q"), call.pop("k"), call.pop("v"), call.pop("blocks"), **call)


def test_refusals_of_the_estimator():
    q, k, _ = tensors(100, 101)
    with pytest.raises(attune.InvalidArgumentError, match="stride is 5; it must divide block_size, 16"):
        blocks.scores(q, k, block_size=16, stride=5)
    with pytest.raises(attune.InvalidArgumentError, match="seq_q is 100 and seq_kv 101, which differ by 1"):
        blocks.scores(q, k, block_size=16, stride=8, is_causal=True)
    with pytest.raises(attune.InvalidArgumentError, match="share is 1.5"):
        blocks.choose(np.ones((2, 2)), share=1.5)


@pytest.mark.parametrize("queries", (1024, 100, 1))
def test_an_attention_takes_the_table_as_the_header_says(queries):
    """Prompts and later steps: q counts from the first query of the step."""
    q, k, v = tensors(1024, 1024)
    table = RNG.random((q.shape[1], 16, 16)) < 0.5
    extra = ('tensors="blocks:bool[h, 16, 16]",'
             'mask_mod="blocks[h, clamp((q + seq_kv - seq_q) // 64), clamp(kv // 64)]"')
    attention = attune.Attention(num_heads=q.shape[1], num_kv_heads=k.shape[1], head_dim=D, head_dim_v=16,
                                 layout="bhsd", is_causal=True, extra=extra)
    rows = np.ascontiguousarray(q[:, :, -queries:])
    mask = table.repeat(64, 1).repeat(64, 2)[None, :, -queries:]
    wanted = attune.attention(rows, k, v, attn_mask=mask, is_causal=True)
    np.testing.assert_allclose(attention.run(rows, k, v, blocks=table), wanted, rtol=1e-5, atol=1e-5)
