"""attune.MLA beside NumPy in f64: forms, caches, types, and what is refused."""

import numpy as np
import pytest

import attune

HEADS, EMBED, LOW, RANK, NOPE, ROPE, V, LENGTH = 4, 48, 40, 64, 32, 16, 24, 29


def draw(has_low=True, dtype="f4"):
    rng = np.random.default_rng(3)

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) * 1.5 / columns**0.5).astype(dtype)

    q = matrix(HEADS * (NOPE + ROPE), LOW if has_low else EMBED)
    low = {"q_a_proj.weight": matrix(LOW, EMBED), "q_a_layernorm.weight": (1 + rng.random(LOW)).astype(dtype),
           "q_b_proj.weight": q, "q_a_proj.bias": rng.standard_normal(LOW).astype(dtype)}  # fmt: skip
    return {
        **(low if has_low else {"q_proj.weight": q}),
        "kv_a_proj_with_mqa.weight": matrix(RANK + ROPE, EMBED),
        "kv_a_layernorm.weight": (1 + rng.random(RANK)).astype(dtype),
        "kv_b_proj.weight": matrix(HEADS * (NOPE + V), RANK),
        "o_proj.weight": matrix(EMBED, HEADS * V),
    }


def angles():
    angle = np.arange(LENGTH)[:, None] * 10000.0 ** (-np.arange(ROPE // 2) / (ROPE // 2))
    return np.cos(angle).astype("f4"), np.sin(angle).astype("f4")


def reference(weights, x, eps=1e-6, shown=None):
    w = {name: value.astype("f8") for name, value in weights.items()}
    cos, sin = (a.astype("f8") for a in angles())
    x = x.astype("f8")
    batch, length = x.shape[:2]

    def norm(y, name):
        return y / np.sqrt((y * y).mean(-1, keepdims=True) + eps) * w[name]

    def rotate(y):  # [batch, length, heads, rope]
        c, s = cos[None, :length, None], sin[None, :length, None]
        a, b = y[..., 0::2], y[..., 1::2]
        return np.stack([a * c - b * s, b * c + a * s], -1).reshape(y.shape)

    if "q_proj.weight" in w:
        q = x @ w["q_proj.weight"].T
    else:
        q = norm(x @ w["q_a_proj.weight"].T + w["q_a_proj.bias"], "q_a_layernorm.weight") @ w["q_b_proj.weight"].T
    q = q.reshape(batch, length, HEADS, NOPE + ROPE)
    kv = x @ w["kv_a_proj_with_mqa.weight"].T
    latent = norm(kv[..., :RANK], "kv_a_layernorm.weight")
    rotated = rotate(kv[:, :, None, RANK:])
    heads = (latent @ w["kv_b_proj.weight"].T).reshape(batch, length, HEADS, NOPE + V)
    scores = np.einsum("bqhd,bkhd->bhqk", q[..., :NOPE], heads[..., :NOPE])
    scores = scores + np.einsum("bqhd,bkd->bhqk", rotate(q[..., NOPE:]), rotated[:, :, 0])
    scores = scores * (NOPE + ROPE) ** -0.5
    scores[:, :, np.triu(np.ones((length, length), bool), 1)] = -np.inf
    if shown is not None:
        scores[np.broadcast_to(~shown[:, None], scores.shape)] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = np.einsum("bhqk,bkhd->bqhd", p, heads[..., NOPE:]).reshape(batch, length, -1)
    return out @ w["o_proj.weight"].T


def block(weights, **more):
    return attune.MLA(weights, num_heads=HEADS, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, **more)


def tokens(batch=2, dtype="f4"):
    return np.random.default_rng(7).standard_normal((batch, LENGTH, EMBED)).astype(dtype)


@pytest.mark.parametrize("form", ["by_cost", "absorbed", "unabsorbed"])
@pytest.mark.parametrize("has_low", [False, True])
def test_a_prompt_and_tokens(form, has_low):
    weights, x = draw(has_low), tokens()
    wanted, mla = reference(weights, x), block(weights, form=form)
    cache = np.zeros((2, LENGTH, mla.width), "f4")
    got = [mla.run(np.ascontiguousarray(x[:, at]), cache, *angles(), kv_lens=[at.stop] * 2)
           for at in (slice(0, 9), slice(9, 27), slice(27, 28), slice(28, 29))]  # fmt: skip
    np.testing.assert_allclose(np.concatenate(got, 1), wanted, rtol=1e-4, atol=1e-5)


def test_pages():
    weights, x = draw(), tokens()
    wanted, mla = reference(weights, x), block(weights, page_size=16)
    pages = np.zeros((5, 16, mla.width), "f4")
    table = np.array([[4, 1], [0, 2]], "i4")
    got = mla.run(np.concatenate([x[0], x[1, :20]]), pages, *angles(), kv_lens=[LENGTH, 20], block_table=table,
                  cu_seqlens=[0, LENGTH, LENGTH + 20])  # fmt: skip
    np.testing.assert_allclose(got[:LENGTH], wanted[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[LENGTH:], wanted[1, :20], rtol=1e-4, atol=1e-5)
    assert not pages[3].any()
    mixed = mla.run(x[1, 20:], pages, *angles(), kv_lens=[LENGTH, LENGTH], block_table=table, cu_seqlens=[0, 0, 9])
    np.testing.assert_allclose(mixed, wanted[1, 20:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reproducible", [False, True])
def test_listed_keys(reproducible):
    """Each token attends to itself and some tokens before it."""
    weights, x = draw(), tokens()
    rng = np.random.default_rng(5)
    shown = np.tril(rng.random((2, LENGTH, LENGTH)) < 0.4) | np.eye(LENGTH, dtype=bool)
    lens = shown.sum(-1).astype("i4")
    ids = np.full((2, LENGTH, lens.max()), 10**6, "i4")
    for at in np.ndindex(2, LENGTH):
        keys = np.flatnonzero(shown[at])
        ids[at][: lens[at]] = keys if reproducible else rng.permutation(keys)
    wanted = reference(weights, x, shown=shown)
    form = "absorbed" if reproducible else "by_cost"
    mla = block(weights, form=form, reproducible=reproducible, has_ids=True)
    cache = np.zeros((2, LENGTH, mla.width), "f4")
    got = [mla.run(np.ascontiguousarray(x[:, at]), cache, *angles(), kv_lens=[at.stop] * 2,
                   kv_ids=np.ascontiguousarray(ids[:, at]), kv_id_lens=np.ascontiguousarray(lens[:, at]))
           for at in (slice(0, 20), slice(20, 28), slice(28, 29))]  # fmt: skip
    np.testing.assert_allclose(np.concatenate(got, 1), wanted, rtol=1e-4, atol=1e-5)

    paged = block(weights, form=form, reproducible=reproducible, has_ids=True, page_size=16)
    pages, table = np.zeros((5, 16, mla.width), "f4"), np.array([[4, 1], [0, 2]], "i4")
    got = paged.run(x.reshape(-1, EMBED), pages, *angles(), kv_lens=[LENGTH] * 2, block_table=table,
                    cu_seqlens=[0, LENGTH, 2 * LENGTH], kv_ids=ids.reshape(2 * LENGTH, -1), kv_id_lens=lens.reshape(-1))
    np.testing.assert_allclose(got.reshape(2, LENGTH, -1), wanted, rtol=1e-4, atol=1e-5)
    full = paged.run(x.reshape(-1, EMBED), pages, *angles(), kv_lens=[LENGTH] * 2, block_table=table,
                     cu_seqlens=[0, LENGTH, 2 * LENGTH], kv_ids=np.arange(LENGTH)[None].repeat(2 * LENGTH, 0))
    np.testing.assert_allclose(full.reshape(2, LENGTH, -1)[:, -1], reference(weights, x)[:, -1], rtol=1e-4, atol=1e-5)


def test_f16():
    weights, x = draw(dtype="f2"), tokens(dtype="f2")
    mla = block(weights)
    mla.prepare()
    out = np.empty((2, LENGTH, EMBED), "f2")
    assert mla.run(x, np.zeros((2, LENGTH, mla.width), "f2"), *angles(), out=out, max_threads=1) is out
    wanted = reference(weights, x)
    assert np.abs(out - wanted).max() < 4e-3 * np.abs(wanted).max()


def test_what_is_wrong():
    weights, x = draw(), tokens()
    mla = block(weights)
    cache = np.zeros((2, LENGTH, mla.width), "f4")

    def refuses(sentence, call):
        with pytest.raises(attune.InvalidArgumentError, match=sentence):
            call()

    missing = {name: value for name, value in weights.items() if name != "kv_b_proj.weight"}
    refuses(r"the weight kv_b_proj.weight is missing", lambda: block(missing))
    refuses(r"there is no weight k_proj.weight", lambda: block({**weights, "k_proj.weight": x}))
    short = {**weights, "kv_b_proj.weight": weights["kv_b_proj.weight"][1:]}
    refuses(r"kv_b_proj.weight has the shape \[223, 64\]; it must be \[224, 64\]", lambda: block(short))
    refuses("form is 'fast'", lambda: block(weights, form="fast"))
    refuses("page_size is 20", lambda: block(weights, page_size=20))
    refuses("x is float16", lambda: mla.run(x.astype("f2"), cache, *angles()))
    refuses(r"cache has the shape \[2, 29, 79\]", lambda: mla.run(x, cache[..., 1:], *angles()))
    refuses("sequence 0 has 5 tokens in all", lambda: mla.run(x, cache, *angles(), kv_lens=[5, 5]))
    refuses("block_table is given", lambda: mla.run(x, cache, *angles(), block_table=np.zeros((2, 1), "i4")))
    refuses("cu_seqlens does not end with", lambda: mla.run(x[0], cache, *angles(), cu_seqlens=[0, 3]))
    repeated = np.broadcast_to(x[0, 0], x.shape)
    refuses("x has a row stride of 0; copy it", lambda: mla.run(repeated, cache, *angles()))
    one_row = np.lib.stride_tricks.as_strided(np.zeros(mla.width, "f4"), cache.shape, (0, 0, 4))
    refuses("cache has a stride of 0 at dimension 0", lambda: mla.run(x, one_row, *angles()))
    out = np.lib.stride_tricks.as_strided(np.zeros(EMBED, "f4"), x.shape, (0, 0, 4))
    refuses("out has a row stride of 0", lambda: mla.run(x, cache, *angles(), out=out))
    lists = np.zeros((2, LENGTH, 1), "i4")
    refuses("has_ids of the description is 0", lambda: mla.run(x, cache, *angles(), kv_ids=lists))
    refuses(r"kv_ids has the shape \[2, 1\]", lambda: mla.run(x, cache, *angles(), kv_ids=np.zeros((2, 1), "i4")))
    cos, sin = angles()
    refuses("sin has the shape", lambda: mla.run(x, cache, cos[:0], sin))
    refuses("it has no elements", lambda: block({**weights, "o_proj.weight": weights["o_proj.weight"][:0]}))
    assert not cache.any()
