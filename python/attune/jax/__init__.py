"""attune inside JAX (0.5 or newer), on the CPU: a function to call instead of jax.nn.dot_product_attention.

    import attune.jax
    out = attune.jax.attention(query, key, value, is_causal=True)

jit, vmap, grad and shard_map work. Attention runs on XLA's threads.
"""

from __future__ import annotations

from typing import Dict

from . import _native
from ._attention import attention
from ._linear import linear_attention

__all__ = ["attention", "linear_attention", "stats"]


def stats() -> Dict[str, int]:
    """Counts of this process: "calls" of attune from XLA, "runs" of kernels (more than calls, if dims of vmap could not
    become a part of the batch), "compiles", and "disk_hits"."""
    return _native.counts()
