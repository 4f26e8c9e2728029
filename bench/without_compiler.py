"""How much longer calls take on the virtual machine than by machine code: linear attention, index, latent attention.

    python3 bench/without_compiler.py        (needs NumPy; PYTHONPATH=python)

One thread, by the clock of the processor, in turns; medians. Sizes of the heads are those of models. Tier 0 is off,
which has kernels of linear attention.
"""
import os
import statistics

import numpy as np

import attune
from machine import seconds

os.environ["ATTUNE_TIER0"] = "off"  # read when a context is made
rng = np.random.default_rng(1)


def normal(*shape):
    return rng.standard_normal(shape, dtype="f4")


def linear(context, tokens):
    """16 heads of 128, as in Qwen3-Next."""
    q, k, v = (normal(1, tokens, 16, 128) for _ in range(3))
    decay, beta = -rng.random((1, tokens, 16), "f4"), rng.random((1, tokens, 16), "f4")
    state = np.zeros((1, 16, 128, 128), "f4")
    return lambda: attune.linear_attention(q, k, v, decay=decay, beta=beta, state=state, qk_norm_eps=1e-6,
                                           max_threads=1, context=context)


def index(context, queries, keys):
    """64 heads of 128 and 2048 keys of all, as in DeepSeek-V3.2."""
    q, k, w = normal(1, queries, 64, 128), normal(1, keys, 128), normal(1, queries, 64)
    return lambda: attune.index(q, k, w, 2048, max_threads=1, context=context)


def mla(context, new, past):
    """16 heads and the sizes of DeepSeek-V2-Lite."""
    heads, embed, rank, nope, rope, v = 16, 2048, 512, 128, 64, 128
    shapes = {"q_proj": (heads * (nope + rope), embed), "kv_a_proj_with_mqa": (rank + rope, embed),
              "kv_b_proj": (heads * (nope + v), rank), "o_proj": (embed, heads * v)}
    weights = {f"{name}.weight": normal(*shape) / shape[1] ** 0.5 for name, shape in shapes.items()}
    weights["kv_a_layernorm.weight"] = np.ones(rank, "f4")
    block = attune.MLA(weights, num_heads=heads, qk_nope_head_dim=nope, qk_rope_head_dim=rope, page_size=64,
                       context=context)
    pages = -(-(past + new) // 64)
    x, cache = normal(new, embed), normal(pages, 64, block.width)
    cos, sin = normal(past + new, rope // 2), normal(past + new, rope // 2)
    table = np.arange(pages, dtype="i4")[None]
    step = dict(kv_lens=[past + new], block_table=table, cu_seqlens=[0, new], max_threads=1)
    return lambda: block.run(x, cache, cos, sin, **step)


ROWS = [
    ("linear attention, a prompt of 512 tokens", linear, 512),
    ("linear attention, a token", linear, 1),
    ("the index, 1 query, 16384 keys", index, 1, 16384),
    ("latent attention, a prompt of 512 tokens", mla, 512, 0),
    ("latent attention, a token after 4096", mla, 1, 4096),
]


def main():
    contexts = [attune.Context(cache_dir="", compile_mode=mode) for mode in ("in-process", "never")]
    print(attune.info()["cpu_description"])
    print(f"{'f32':44}{'compiled ms':>12}{'vm ms':>10}{'times':>7}")
    for name, make, *sizes in ROWS:
        calls = [make(context, *sizes) for context in contexts]
        pairs = [[seconds(call) for call in calls] for _ in range(7)]
        code, vm = (statistics.median(column) for column in zip(*pairs))
        print(f"{name:44}{code * 1e3:12.2f}{vm * 1e3:10.2f}{vm / code:7.1f}", flush=True)


if __name__ == "__main__":
    main()
