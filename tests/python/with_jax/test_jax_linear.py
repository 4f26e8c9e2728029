"""attune.jax.linear_attention: the bits of attune.linear_attention, under jit, vmap and scan."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

import attune  # noqa: E402
import attune.jax  # noqa: E402

RNG = np.random.default_rng(3)


def draw(batch=2, length=9, dtype="f4"):
    rows = [RNG.standard_normal((batch, length, heads, dim)).astype(dtype) / 3 for heads, dim in
            ((2, 16), (2, 16), (4, 24))]
    gates = [-RNG.random((batch, length, 4)).astype("f4"), RNG.random((batch, length, 4)).astype("f4")]
    return *rows, *gates, RNG.standard_normal((batch, 4, 16, 24)).astype("f4")


def compute(q, k, v, decay, beta, state, **more):
    return attune.jax.linear_attention(q, k, v, decay=decay, beta=beta, state=state, **more)


def same(have, wanted):
    for one, other in zip(have, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.parametrize("dtype", ["f4", "f2", jnp.bfloat16])
def test_bits(dtype):
    q, k, v, decay, beta, state = draw(dtype=dtype)
    more = dict(gate=RNG.standard_normal((2, 9, 4, 24)).astype(dtype), norm_weights=np.ones(24, dtype))
    wanted = attune.linear_attention(q, k, v, decay=decay, beta=beta, state=state.copy(), **more)
    same(compute(q, k, v, decay, beta, state, **more), wanted)
    same(jax.jit(compute)(q, k, v, decay, beta, state, **more), wanted)


def test_without_a_state():
    q, k, v, decay, beta, _ = draw()
    wanted = attune.linear_attention(q, k, v, decay=decay, beta=beta)
    same(jax.jit(attune.jax.linear_attention)(q, k, v, decay=decay, beta=beta), wanted)


def test_vmap():
    call = [np.stack([one, one[::-1]]) for one in draw()]
    wanted = [attune.linear_attention(q, k, v, decay=decay, beta=beta, state=state.copy())
              for q, k, v, decay, beta, state in zip(*call)]
    same(jax.vmap(compute)(*call), [np.stack(parts) for parts in zip(*wanted)])


def test_scan_over_tokens():
    """Token after token gives the bits of the whole, if it is to be reproducible."""
    *tensors, state = draw()
    wanted = attune.linear_attention(*tensors[:3], decay=tensors[3], beta=tensors[4], state=state.copy(),
                                     reproducible=True)  # fmt: skip

    def token(state, now):
        out, state = compute(*(one[:, None] for one in now), state, reproducible=True)
        return state, out[:, 0]

    end, outs = jax.lax.scan(token, state, [jnp.moveaxis(one, 1, 0) for one in tensors])
    same((jnp.moveaxis(outs, 0, 1), end), wanted)


def test_refusals():
    q, k, v, decay, beta, state = draw()
    with pytest.raises(attune.InvalidArgumentError, match=r"state must be float32 \[2, 4, 16, 24\]; it is float32"):
        compute(q, k, v, decay, beta, state[:1])
    with pytest.raises(attune.InvalidArgumentError, match="q must have 4 dims"):
        compute(q[0], k, v, decay, beta, state)
    with pytest.raises(Exception, match="the rule linear has no decay"):
        jax.block_until_ready(compute(q, k, v, decay, beta, state, rule="linear"))
