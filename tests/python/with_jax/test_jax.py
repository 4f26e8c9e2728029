"""attune.jax.attention beside jax.nn.dot_product_attention."""

from jax_support import TOLERANCES, close, jax, jnp, np, tensors

import attune.jax
import pytest
from attune.jax import _plain
from attune.jax._attention import attention

stock = jax.nn.dot_product_attention
LENS = jnp.asarray([5, 11], jnp.int32)
RANDOM = np.random.default_rng(1)
RULES = {
    "plain": {},
    "causal": dict(is_causal=True),
    "scale": dict(scale=0.3),
    "mask": dict(mask=jnp.asarray(RANDOM.random((2, 6, 7, 11)) > 0.4).at[..., 0].set(True)),
    "mask_of_heads": dict(mask=jnp.asarray(RANDOM.random((1, 6, 1, 11)) > 0.4).at[..., 0].set(True)),
    "mask_of_rows": dict(mask=jnp.asarray(RANDOM.random((2, 1, 7, 11)) > 0.4).at[..., 0].set(True)),
    "bias": dict(bias=jnp.asarray(RANDOM.standard_normal((2, 6, 7, 11)), jnp.float32)),
    "bias_of_keys": dict(bias=jnp.asarray(RANDOM.standard_normal((1, 1, 1, 11)), jnp.float32)),
    "bias_of_rows": dict(bias=jnp.asarray(RANDOM.standard_normal((2, 6, 7, 1)), jnp.float32)),
    "bias_of_entries": dict(bias=jnp.asarray(RANDOM.standard_normal((2, 1, 1, 1)), jnp.float32)),
    "bias_and_mask": dict(bias=jnp.ones((1, 6, 7, 11), jnp.float32), mask=jnp.ones((7, 11), bool).at[:, 4].set(False)),
    "window": dict(local_window_size=(2, 3)),
    "causal_window": dict(is_causal=True, local_window_size=3),
    "kv_lengths": dict(key_value_seq_lengths=LENS),
    "both_lengths": dict(key_value_seq_lengths=LENS, query_seq_lengths=jnp.asarray([3, 7], jnp.int32)),
    "all_at_once": dict(
        is_causal=True, key_value_seq_lengths=LENS, local_window_size=(4, 0), scale=-0.2,
        bias=jnp.asarray(RANDOM.standard_normal((1, 6, 7, 11)), jnp.float32),
    ),
}  # fmt: skip


def calls():
    return attune.jax.stats()["calls"]


@pytest.mark.sample(16)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_values(rules, dtype):
    q, k, v = tensors(dtype)
    before = calls()
    found = attention(q, k, v, **rules).block_until_ready()
    assert calls() == before + 1
    assert found.dtype == q.dtype and found.shape == q.shape
    # JAX computes its softmax in f32, even for f64.
    close(found, stock(q, k, v, **rules), dtype, 1 if dtype != "float64" else 1e7)
    if dtype == "float64":
        close(found, exact(q, k, v, **rules), dtype)


def exact(q, k, v, bias=None, mask=None, scale=None, is_causal=False, query_seq_lengths=None,
          key_value_seq_lengths=None, local_window_size=None):  # fmt: skip
    """Plain loops."""
    batch, rows, heads, dim = q.shape
    keys, group = k.shape[1], heads // k.shape[2]
    left, right = (local_window_size,) * 2 if isinstance(local_window_size, int) else local_window_size or (99, 99)
    bias = np.broadcast_to(0 if bias is None else np.asarray(bias, np.float64), (batch, heads, rows, keys))
    mask = np.broadcast_to(True if mask is None else mask, (batch, heads, rows, keys))
    lens = np.full(batch, keys) if key_value_seq_lengths is None else np.asarray(key_value_seq_lengths)
    q_lens = np.full(batch, rows) if query_seq_lengths is None else np.asarray(query_seq_lengths)
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros((batch, rows, heads, v.shape[3]))
    for b, i, h in np.ndindex(batch, rows, heads):
        seen = [
            j for j in range(keys)
            if j < lens[b] and i < q_lens[b] and mask[b, h, i, j] and i - left <= j <= i + right
            and (j <= i or not is_causal)
        ]  # fmt: skip
        scores = [(dim**-0.5 if scale is None else scale) * q[b, i, h] @ k[b, j, h // group] + bias[b, h, i, j]
                  for j in seen]  # fmt: skip
        if seen:
            powers = np.exp(np.asarray(scores) - max(scores))
            out[b, i, h] = powers @ v[b, seen, h // group] / powers.sum()
    return out


@pytest.mark.sample(4)
@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 1), (8, 2)])
@pytest.mark.parametrize("rows, keys", [(1, 1), (1, 40), (33, 33), (64, 100)])
def test_heads_and_lengths(heads, kv_heads, rows, keys):
    q, k, v = tensors(heads=heads, kv_heads=kv_heads, rows=rows, keys=keys)
    close(attention(q, k, v), stock(q, k, v))
    close(attention(q, k, v, is_causal=True), stock(q, k, v, is_causal=True))


def test_without_a_batch():
    q, k, v = tensors(batch=1)
    found, residual = attention(q[0], k[0], v[0], return_residual=True)
    assert found.shape == (7, 6, 16) and residual.shape == (7, 6)
    close(found, stock(q[0], k[0], v[0]))


def test_windows_of_numpy():
    q, k, v = tensors()
    expected = attention(q, k, v, local_window_size=(2, 1))
    assert (attention(q, k, v, local_window_size=(np.int64(2), np.int32(1))) == expected).all()
    assert (attention(q, k, v, local_window_size=np.int64(2)) == attention(q, k, v, local_window_size=2)).all()


def test_the_residual_of_padded_queries():
    """They see no key, so that a merge of parts by their residuals leaves them out."""
    q, k, v = tensors()
    lens = jnp.asarray([3, 7], jnp.int32)
    out, residual = attention(q, k, v, query_seq_lengths=lens, return_residual=True)
    assert (out[0, 3:] == 0).all() and (residual[0, 3:] == -jnp.inf).all()
    full = attention(q, k, v, return_residual=True)[1]
    close(residual[0, :3], full[0, :3])
    close(residual[1], full[1])
    slope = jax.grad(lambda x: attention(x, k, v, query_seq_lengths=lens, return_residual=True)[1][:, :3].sum())(q)
    assert jnp.isfinite(slope).all() and (slope[0, :3] != 0).any() and (slope[0, 3:] == 0).all()


def test_the_residual_is_the_logarithm_of_the_sums():
    q, k, v = tensors()
    out, residual = attention(q, k, v, is_causal=True, return_residual=True)
    expected, lse = _plain.attention(_plain.Options(0.25, True, False, (-1, -1), 0, True, False), q, k, v, *[None] * 4)
    assert residual.dtype == jnp.float32 and residual.shape == (2, 7, 6)
    close(out, expected)
    close(residual, jnp.swapaxes(lse, 1, 2))


def test_values_of_another_width():
    q, k, v = tensors(dim_v=24)
    assert attention(q, k, v).shape == (2, 7, 6, 24)
    close(attention(q, k, v)[..., :16], stock(q, k, v[..., :16]))


def test_the_last_query_at_the_end_of_the_keys():
    q, k, v = tensors()
    found = attention(q, k, v, is_causal=True, causal_align="bottom_right")
    close(found, stock(q, k, v, mask=jnp.tril(jnp.ones((7, 11), bool), 4)[None, None]))
    lens = jnp.asarray([9, 11], jnp.int32)
    found = attention(q, k, v, is_causal=True, causal_align="bottom_right", key_value_seq_lengths=lens)
    j, i = jnp.arange(11), jnp.arange(7)[:, None]
    close(found, stock(q, k, v, mask=(j <= i + lens[:, None, None] - 7)[:, None]))


def test_cap_and_sinks():
    q, k, v = tensors("float64")
    sinks = jnp.asarray([0.5, -1, 2, 0, 1, 3], jnp.float32)
    scores = jnp.einsum("btnh,bsnh->bnts", q, jnp.repeat(k, 3, 2)) / 4
    scores = 2 * jnp.tanh(scores / 2)
    scores = jnp.concatenate([scores, jnp.broadcast_to(sinks[None, :, None, None], (2, 6, 7, 1))], -1)
    expected = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, -1)[..., :11], jnp.repeat(v, 3, 2))
    close(attention(q, k, v, logits_soft_cap=2.0, sinks=sinks), expected, "float64")


def test_rows_without_a_key_are_0():
    q, k, v = tensors()
    out, residual = attention(q, k, v, mask=jnp.zeros((1, 1, 1, 1), bool), return_residual=True)
    assert (out == 0).all() and (residual == -jnp.inf).all()
    out = attention(q, k.at[0, 5:].set(jnp.nan), v.at[0, 5:].set(jnp.inf), key_value_seq_lengths=LENS)
    assert jnp.isfinite(out).all()


def test_lengths_out_of_range_are_the_nearest_one_in_range():
    q, k, v = tensors()
    lens = jnp.asarray([-3, 900], jnp.int32)
    out = attention(q, k, v, key_value_seq_lengths=lens)
    assert (out[0] == 0).all()
    close(out[1], stock(q, k, v)[1])


def test_empty_sizes():
    q, k, v = tensors()
    assert attention(q[:, :0], k, v).shape == (2, 0, 6, 16)
    assert attention(q[:0], k[:0], v[:0]).shape == (0, 7, 6, 16)
    out, residual = attention(q, k[:, :0], v[:, :0], return_residual=True)
    assert (out == 0).all() and (residual == -jnp.inf).all()


def test_reproducible_rows_have_the_same_bits():
    q, k, v = tensors(rows=40, keys=40, dim=64)
    whole = attention(q, k, v, is_causal=True, reproducible=True)
    last = attention(q[:, -1:], k, v, is_causal=True, causal_align="bottom_right", reproducible=True)
    assert (whole[:, -1:] == last).all()
