"""A tree of drafted tokens in one step of speculative decoding, by mask_mod.

    pip install ./python numpy
    python3 examples/python/tree_mask.py [--keys=2048] [--branches=4] [--depth=4] [--seconds=2]

A draft model proposes several continuations, which share their beginnings: a tree. The large model looks at all of its
tokens in one call. Each sees the whole cache and its own ancestors, which follow the cache in the order of the tree:

    mask_mod = "kv < seq_kv - seq_q | tree[q, clamp(kv - (seq_kv - seq_q))]"

The tree is a tensor, and so another tree of as many tokens, or a longer cache, is the same kernel. Beside it: each path
from the root to a leaf as a sequence of its own, which computes shared tokens again and reads the cache for each path.
"""

import argparse
import time

import attune
import numpy as np

HEADS, KV_HEADS, DIM = 16, 4, 64


def make_tree(branches, depth):
    """The parent of each token (-1: the cache's last), the tokens of a level side by side; and the paths to leaves."""
    parents: list[int] = []
    paths: list[list[int]] = []
    for branch in range(branches):
        path = []
        for level in range(depth):
            if level == 0 and branch % 2:  # every second branch shares its first token with the one before
                path.append(paths[-1][0])
                continue
            parents.append(path[-1] if path else -1)
            path.append(len(parents) - 1)
        paths.append(path)
    return parents, paths


def ancestors(parents):
    """tree[i, j]: whether token j is token i or an ancestor of it."""
    tree = np.eye(len(parents), dtype=bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            tree[i] |= tree[parent]
    return tree


def best_times(calls, seconds):
    """The best time of each in milliseconds; they take turns."""
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            best[i] = min(best[i], (time.perf_counter() - begin) * 1e3)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keys", type=int, default=2048)
    parser.add_argument("--branches", type=int, default=4)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    parents, paths = make_tree(options.branches, options.depth)
    tokens, base, random = len(parents), options.keys, np.random.default_rng(1)
    tree = ancestors(parents)
    q = random.standard_normal((1, HEADS, tokens, DIM), dtype=np.float32)
    k, v = (random.standard_normal((1, KV_HEADS, base + tokens, DIM), dtype=np.float32) for _ in range(2))

    common = dict(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, seq_kv=attune.DYNAMIC)
    step = attune.compile(attune.Problem(
        seq_q=tokens, tensors='"tree:bool[q, q]"',
        mask_mod='"kv < seq_kv - seq_q | tree[q, clamp(kv - (seq_kv - seq_q))]"', **common))
    out = np.empty_like(q)

    # Path by path: the cache and the path's own tokens, of which each sees those before.
    chain = attune.Problem(seq_q=options.depth, is_causal=True, causal_align="bottom_right", **common)
    path_step = attune.compile(chain)
    sequences = []
    for path in paths:
        rows = [*range(base), *(base + token for token in path)]
        sequences.append((np.ascontiguousarray(q[:, :, path]), np.ascontiguousarray(k[:, :, rows]),
                          np.ascontiguousarray(v[:, :, rows]), np.empty((1, HEADS, len(path), DIM), np.float32)))

    def by_paths():
        for path_q, path_k, path_v, path_out in sequences:
            path_step.run(q=path_q, k=path_k, v=path_v, out=path_out)

    step.run(q=q, k=k, v=v, tree=tree, out=out)
    by_paths()
    off = max(np.abs(out[:, :, path] - path_out).max() for path, (*_, path_out) in zip(paths, sequences))
    print(f"largest difference: {off:.1e}")
    mine, theirs = best_times([lambda: step.run(q=q, k=k, v=v, tree=tree, out=out), by_paths], options.seconds)
    print(f"{tokens} tokens in {len(paths)} paths after {base} keys: {mine:.3f} ms as a tree, {theirs:.3f} ms path by "
          f"path, {theirs / mine:.1f} times as fast")


if __name__ == "__main__":
    main()
