"""attune.flex_attention beside PyTorch's compiled flex_attention on 22 variants, interleaved in one run.

    python3 bench/engines/flex.py [--threads=1,2] [--tokens=1024] [--seconds=2] [--only=name,…] [--json=FILE]

For each variant both are called in turn for so many seconds, and the best time of each counts. PyTorch gets its
BlockMask made beforehand, and Inductor's kernel compiled; attune's call traces the function and finds the mask's tiles
each time. Results are compared with each other first. Columns: milliseconds of both, and the quotient: how many times
as fast attune is.
"""

import argparse
import json
import sys
import time

import attune
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

HEADS, DIM = 8, 64


def variants(n):
    """name: (score_mod, mask_mod, number of KV heads)."""
    g = torch.Generator().manual_seed(1)
    side = int(n**0.5)
    documents = torch.sort(torch.randint(0, 8, (n,), generator=g)).values.int()
    slopes = 2.0 ** -torch.arange(1, HEADS + 1)
    table = torch.randn(HEADS, 257, generator=g)
    bias = torch.randn(HEADS, n, n, generator=g)
    gain = torch.rand(HEADS, generator=g) + 0.5
    prefix, length = torch.tensor([n // 4]).int(), torch.tensor([n - n // 3]).int()

    def causal(b, h, q, kv):
        return q >= kv

    def window(b, h, q, kv):
        return (q >= kv) & (q - kv <= 128)

    def both_sides(b, h, q, kv):
        return (q - kv).abs() <= 64

    def prefix_lm(b, h, q, kv):
        return (kv <= prefix[b]) | (q >= kv)

    def document(b, h, q, kv):
        return documents[q] == documents[kv]

    def causal_document(b, h, q, kv):
        return (q >= kv) & (documents[q] == documents[kv])

    def dilated(b, h, q, kv):
        return ((q - kv).abs() <= 192) & ((q - kv) % 3 == 0)

    def image(b, h, q, kv):
        return ((q // side - kv // side).abs() <= 5) & ((q % side - kv % side).abs() <= 5)

    def global_tokens(b, h, q, kv):
        return (kv < 16) | (q < 16) | ((q - kv).abs() <= 64)

    def blocks(b, h, q, kv):
        return q // 128 == kv // 128

    def strided(b, h, q, kv):
        return (q >= kv) & ((q - kv < 64) | (kv % 64 == 63))

    def padding(b, h, q, kv):
        return kv < length[b]

    def alibi(s, b, h, q, kv):
        return s + slopes[h] * (kv - q)

    def cap(s, b, h, q, kv):
        return 30 * torch.tanh(s / 30)

    def relative(s, b, h, q, kv):
        return s + table[h, torch.clamp(q - kv + 128, 0, 256)]

    def full_bias(s, b, h, q, kv):
        return s + bias[h, q, kv]

    def gate(s, b, h, q, kv):
        return s * torch.sigmoid(s)

    def by_head(s, b, h, q, kv):
        return s * gain[h]

    def checkerboard(s, b, h, q, kv):
        return torch.where((q + kv) % 2 == 0, s, s * 0.5)

    return {
        "noop": (None, None, HEADS), "causal": (None, causal, HEADS), "sliding_window": (None, window, HEADS),
        "window_both_sides": (None, both_sides, HEADS), "prefix_lm": (None, prefix_lm, HEADS),
        "document": (None, document, HEADS), "causal_document": (None, causal_document, HEADS),
        "dilated_window": (None, dilated, HEADS), "image_window": (None, image, HEADS),
        "global_tokens": (None, global_tokens, HEADS), "blockwise_local": (None, blocks, HEADS),
        "strided": (None, strided, HEADS), "key_padding": (None, padding, HEADS), "alibi": (alibi, None, HEADS),
        "causal_alibi": (alibi, causal, HEADS), "soft_cap": (cap, None, HEADS),
        "causal_soft_cap_gqa": (cap, causal, 2), "relative_table": (relative, None, HEADS),
        "full_bias": (full_bias, None, HEADS), "sigmoid_gate": (gate, None, HEADS),
        "scaled_by_head": (by_head, None, HEADS), "checkerboard": (checkerboard, None, HEADS),
    }


def best_times(calls, seconds):
    """The best of each, in turn. The pause lets the other's threads go to sleep: those of GNU's OpenMP, which PyTorch
    has, spin for some 5 ms."""
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, call in enumerate(calls):
            time.sleep(0.015)
            begin = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - begin)
    return best


def measure(name, functions, options, threads):
    score_mod, mask_mod, kv_heads = functions
    n = options.tokens
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, heads, n, DIM, generator=g) for heads in (HEADS, kv_heads, kv_heads))
    torch.set_num_threads(threads)
    torch._dynamo.reset()
    block_mask = mask_mod and create_block_mask(mask_mod, 1, 1, n, n, device="cpu")
    compiled = torch.compile(flex_attention)
    gqa = kv_heads != HEADS

    def theirs():
        return compiled(q, k, v, score_mod, block_mask, enable_gqa=gqa)

    def ours():
        return attune.flex_attention(q, k, v, score_mod, mask_mod=mask_mod, enable_gqa=gqa, max_threads=threads)

    with torch.no_grad():
        torch.testing.assert_close(ours(), theirs(), atol=2e-4, rtol=1e-3)
        mine, other = best_times([ours, theirs], options.seconds)
    return {"variant": name, "threads": threads, "attune_ms": mine * 1e3, "torch_ms": other * 1e3,
            "ratio": other / mine}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for name, functions in variants(options.tokens).items():
        if options.only and name not in options.only.split(","):
            continue
        for threads in map(int, options.threads.split(",")):
            row = measure(name, functions, options, threads)
            rows.append(row)
            print(f"{name:22}{threads:3}{row['attune_ms']:10.2f}{row['torch_ms']:10.2f}{row['ratio']:8.2f}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
