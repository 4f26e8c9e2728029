"""The same attention in JAX's own operators: XLA differentiates it, so it is the backward of attune's kernels.

It follows attune.h: a row without a visible key is 0, with an lse of -infinity."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp


class Options(NamedTuple):
    """What is compiled in, besides shapes and types."""

    scale: float
    is_causal: bool
    bottom_right: bool
    window: Tuple[int, int]  # -1: all
    soft_cap: float  # 0: none
    has_lse: bool
    reproducible: bool


def seen(options: Options, rows: int, keys: int, mask: Any, kv_lens: Any) -> Optional[jax.Array]:
    """Which keys a query attends to, by all rules at once, broadcastable to [batch, heads, rows, keys]; None: all."""
    rules = [] if mask is None else [mask]
    j = jnp.arange(keys)
    lengths = keys if kv_lens is None else kv_lens[:, None, None, None]
    if kv_lens is not None:
        rules.append(j < lengths)
    left, right = options.window
    if options.is_causal or left >= 0 or right >= 0:
        p = jnp.arange(rows)[:, None] + (lengths - rows if options.bottom_right else 0)
        rules += [j <= p] if options.is_causal else []
        rules += [j >= p - left] if left >= 0 else []
        rules += [j <= p + right] if right >= 0 else []
    if not rules:
        return None
    every = rules[0]
    for rule in rules[1:]:
        every = every & rule
    return every.reshape((1,) * (4 - every.ndim) + every.shape)


def _grouped(scores: jax.Array, kv_heads: int) -> jax.Array:
    """[b, heads, t, s] as [b, kv heads, group, t, s], where 1 head stands for all."""
    b, heads, t, s = scores.shape
    return scores.reshape((b, 1, 1, t, s) if heads == 1 else (b, kv_heads, heads // kv_heads, t, s))


def attention(
    options: Options, q: Any, k: Any, v: Any, bias: Any, sinks: Any, mask: Any, kv_lens: Any
) -> Tuple[jax.Array, jax.Array]:
    """out, and lse [batch, heads, queries]."""
    batch, rows, heads, dim = q.shape
    keys, kv_heads = k.shape[1:3]
    wide = jnp.float64 if q.dtype == jnp.float64 else jnp.float32
    grouped = q.reshape(batch, rows, kv_heads, heads // kv_heads, dim).astype(wide)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k.astype(wide)) * options.scale
    if options.soft_cap:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    if bias is not None:
        scores = scores + _grouped(bias, kv_heads).astype(wide)
    visible = seen(options, rows, keys, mask, kv_lens)
    by_bias = scores != -jnp.inf
    visible = by_bias if visible is None else _grouped(visible, kv_heads) & by_bias
    scores = jnp.where(visible, scores, 0)
    most = jnp.max(jnp.where(visible, scores, -jnp.inf), -1, keepdims=True, initial=-jnp.inf)
    sink = None if sinks is None else sinks.astype(wide).reshape(1, kv_heads, heads // kv_heads, 1, 1)
    if sink is not None:
        most = jnp.maximum(most, sink)
    most = jax.lax.stop_gradient(jnp.where(jnp.isfinite(most), most, 0))
    powers = jnp.where(visible, jnp.exp(scores - most), 0)
    total = powers.sum(-1, keepdims=True)
    if sink is not None:
        total = total + jnp.exp(sink - most)
    is_empty = total == 0
    total = jnp.where(is_empty, 1, total)
    out = jnp.einsum("bkgts,bskh->btkgh", powers / total, v.astype(wide))
    lse = jnp.where(is_empty, -jnp.inf, most + jnp.log(total))
    return out.reshape(batch, rows, heads, v.shape[3]).astype(q.dtype), lse.reshape(batch, heads, rows)
