"""attention() for NumPy arrays, beside the same in NumPy; then a kernel for a key-value cache.

    pip install ./python numpy
    python3 examples/python/numpy_attention.py
"""

import attune
import numpy as np


def attention_in_numpy(q, k, v):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(q.shape[2], k.shape[2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


random = np.random.default_rng(1)
q, k, v = (random.standard_normal((2, 12, 256, 64), dtype=np.float32) for _ in range(3))

out = attune.attention(q, k, v, is_causal=True)
print("largest difference from NumPy:", np.abs(out - attention_in_numpy(q, k, v)).max())

# A cache with room for 1024 keys of each sequence. A call appends one key and one value, and attends to all so far.
step = attune.compile(
    attune.Problem(batch=2, num_heads=12, seq_q=1, seq_kv=1024, seq_new=1, head_dim=64, has_kv_lens=True)
)
cache_k, cache_v = (np.zeros((2, 12, 1024, 64), np.float32) for _ in range(2))
for length in range(1, 5):
    rows = slice(length - 1, length)
    lengths = np.full(2, length, np.int32)
    token = step(
        q=q[:, :, rows], k_new=k[:, :, rows], v_new=v[:, :, rows], k=cache_k, v=cache_v, kv_lens=lengths
    )
    print(f"token {length}: largest difference from the prompt's:", np.abs(token - out[:, :, rows]).max())
