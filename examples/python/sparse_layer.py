"""A layer with sparse attention as DeepSeek V3.2 has it: an index chooses a few keys for each query, and attention of
absorbed latents attends to these. A prompt comes in chunks, then tokens one by one, on paged caches.

    python3 sparse_layer.py [--tokens=300] [--ids=48]

It prints the largest difference from NumPy in f64, which computes the same without caches and with all weights.
"""

import argparse
import sys

import attune
import numpy as np

WIDTH, HEADS, NOPE, ROPE, RANK, OUT = 96, 4, 24, 8, 40, 20  # of x; of attention: latent rows have RANK + ROPE columns
INDEX_HEADS, INDEX_DIM = 8, 32
PAGE, CHUNK, STEPS = 16, 64, 6

RNG = np.random.default_rng(7)


def weights(*shape):
    return RNG.standard_normal(shape) / np.sqrt(shape[0])


W_Q, W_LATENT, W_ROPE = weights(WIDTH, HEADS * (NOPE + ROPE)), weights(WIDTH, RANK), weights(WIDTH, ROPE)
W_UK, W_UV, W_O = weights(RANK, HEADS, NOPE), weights(RANK, HEADS, OUT), weights(HEADS * OUT, WIDTH)
W_INDEX_Q, W_INDEX_K = weights(WIDTH, INDEX_HEADS * INDEX_DIM), weights(WIDTH, INDEX_DIM)
W_INDEX_W = weights(WIDTH, INDEX_HEADS)
SCALE = (NOPE + ROPE) ** -0.5


# ---- What is computed for each token, in f64 ----


def norm(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def rotate(x, positions):
    """The rotary embedding of the last dim, by halves."""
    half = x.shape[-1] // 2
    angles = positions.reshape(-1, *[1] * (x.ndim - 1)) * 1e4 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


def hadamard(x):
    """Spreads outliers over a row before it becomes bytes. Products of two such rows are what they were."""
    matrix = np.ones((1, 1))
    while len(matrix) < x.shape[-1]:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return x @ matrix / np.sqrt(len(matrix))


def to_bytes(x):
    """int8, and a scale for each row."""
    scale = np.abs(x).max(-1).astype("f4") / 127
    return np.rint(x / scale[..., None]).astype("i1"), scale


def queries(x, positions):
    q = (x @ W_Q).reshape(len(x), HEADS, NOPE + ROPE)
    return q[..., :NOPE], rotate(q[..., NOPE:], positions)


def latents(x, positions):
    return np.concatenate([norm(x @ W_LATENT), rotate(x @ W_ROPE, positions)], -1)


def index_queries(x):
    """Their bytes and scales, and the weights of heads."""
    q, scale = to_bytes(hadamard((x @ W_INDEX_Q).reshape(len(x), INDEX_HEADS, INDEX_DIM)))
    return q, scale, (x @ W_INDEX_W).astype("f4")


def index_keys(x):
    return to_bytes(hadamard(norm(x @ W_INDEX_K)))


# ---- The layer by attune ----


class Layer:
    def __init__(self, pages, num_ids):
        self.num_ids, self.length = num_ids, 0
        self.table = RNG.permutation(pages).astype("i4")[None]  # pages lie anywhere
        self.latent = np.zeros((pages, PAGE, 1, RANK + ROPE), "f4")
        self.keys, self.scales = np.zeros((pages, PAGE, INDEX_DIM), "i1"), np.zeros((pages, PAGE), "f4")
        self.attention = attune.Attention(
            num_heads=HEADS, num_kv_heads=1, head_dim=RANK + ROPE, head_dim_v=RANK, softmax_scale=SCALE, kv="paged",
            page_size=PAGE, extra="v_in_k=1,kv_ids=query,has_kv_id_lens=1")  # fmt: skip

    def step(self, x):
        """The tokens x [tokens, WIDTH] that come next."""
        positions = self.length + np.arange(len(x))
        page, row = self.table[0, positions // PAGE], positions % PAGE
        self.latent[page, row, 0] = latents(x, positions)
        self.keys[page, row], self.scales[page, row] = index_keys(x)
        self.length += len(x)
        lists: dict = dict(cu_seqlens_q=[0, len(x)], kv_lens=[self.length], block_table=self.table)
        q, scale, w = index_queries(x)
        chosen = attune.index(q, self.keys, w, self.num_ids, q_scale=scale, k_scale=self.scales, is_causal=True,
                              **lists)  # fmt: skip
        nope, rope = queries(x, positions)
        absorbed = np.concatenate([np.einsum("thn,rhn->thr", nope, W_UK), rope], -1).astype("f4")
        mixed = self.attention.run(absorbed, k_cache=self.latent, kv_ids=chosen.ids[None],
                                   kv_id_lens=chosen.lens[None], **lists)
        return np.einsum("thr,rho->tho", mixed, W_UV).reshape(len(x), -1) @ W_O


# ---- The same in NumPy ----


def expected(x, num_ids):
    positions = np.arange(len(x))
    q, scale, w = index_queries(x)
    keys, key_scale = index_keys(x)
    scores = np.maximum(np.einsum("thd,sd->ths", q.astype("f8"), keys.astype("f8")), 0)
    scores = np.einsum("ths,th->ts", scores, w.astype("f8") * scale) * key_scale
    nope, rope = queries(x, positions)
    rows = latents(x, positions)
    k, v = np.einsum("sr,rhn->shn", rows[:, :RANK], W_UK), np.einsum("sr,rho->sho", rows[:, :RANK], W_UV)
    logits = (np.einsum("thn,shn->ths", nope, k) + np.einsum("thr,sr->ths", rope, rows[:, RANK:])) * SCALE
    out = np.zeros((len(x), HEADS, OUT))
    for t in positions:
        best = np.argsort(-scores[t, : t + 1], kind="stable")[:num_ids]
        p = np.exp(logits[t][:, best] - logits[t][:, best].max(-1, keepdims=True))
        out[t] = np.einsum("hs,sho->ho", p / p.sum(-1, keepdims=True), v[best])
    return out.reshape(len(x), -1) @ W_O


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--ids", type=int, default=48)
    options = parser.parse_args()
    x = RNG.standard_normal((options.tokens, WIDTH))
    layer = Layer(options.tokens // PAGE + 2, options.ids)
    prompt = max(options.tokens - STEPS, 0)
    ends = [*range(0, prompt, CHUNK), *range(prompt, options.tokens + 1)]
    out = np.concatenate([layer.step(x[first:end]) for first, end in zip(ends, ends[1:])])
    largest = np.abs(out - expected(x, options.ids)).max()
    print(f"{len(ends) - 1} steps, {options.ids} of up to {options.tokens} keys: largest difference {largest:.1e}")
    return int(not largest < 1e-4)


if __name__ == "__main__":
    sys.exit(main())
