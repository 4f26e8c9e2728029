"""Attention of a small JAX model by attune: jit, vmap and gradients are as with jax.nn.dot_product_attention.

    pip install ./python "jax[cpu]"
    python3 examples/python/jax_attention.py
"""

import jax
import jax.numpy as jnp

import attune.jax


def layer(weights, x, attention):
    """Grouped-query attention with a residual: 12 heads on 4."""
    q, k, v = jnp.split(x @ weights, [768, 1024], axis=-1)
    q, k, v = (part.reshape(*part.shape[:-1], -1, 64) for part in (q, k, v))
    return x + attention(q, k, v, is_causal=True).reshape(x.shape)


weights = jax.random.normal(jax.random.key(0), (768, 1280)) / 28
x = jax.random.normal(jax.random.key(1), (2, 256, 768))

ours = jax.jit(lambda weights, x: layer(weights, x, attune.jax.attention))
stock = jax.jit(lambda weights, x: layer(weights, x, jax.nn.dot_product_attention))
print("largest difference from JAX:", float(jnp.abs(ours(weights, x) - stock(weights, x)).max()))

gradient = jax.jit(jax.grad(lambda weights, x: (ours(weights, x) ** 2).mean()))(weights, x)
print("norm of the gradient:", float(jnp.linalg.norm(gradient)))

# Entries of different lengths, without their batch: vmap makes them one.
lengths = jnp.asarray([[100], [256]], jnp.int32)
q = x.reshape(2, 256, 12, 64)
padded = jax.vmap(lambda q, n: attune.jax.attention(q, q, q, key_value_seq_lengths=n))(q, lengths)
print("shape with vmap:", padded.shape)
print("what happened:", attune.jax.stats())
