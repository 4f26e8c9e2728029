"""Decoding with a prefix that all sequences of a batch share (cascade), and how much faster it is.

    pip install ./python numpy
    python3 examples/python/shared_prefix.py [--sequences=16] [--prefix=4096] [--own=64] [--seconds=2]

A system prompt is the same for all requests, and so are its keys and values. Attended to sequence by sequence they are
read once for each of them. Here one pass lets the queries of all sequences be rows of one problem over the prefix,
which is read once; a second pass is over the keys that each sequence has for itself; and op=merge joins the two by the
logarithms of their sums. Outputs go through strides, so nothing is copied.
"""

import argparse
import time

import attune
import numpy as np

HEADS, KV_HEADS, DIM = 16, 4, 64


class Cascade:
    """Attention of one query for each of `sequences` over a shared prefix, and over keys of its own."""

    def __init__(self, sequences):
        common = dict(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, seq_kv=attune.DYNAMIC, has_lse=True)
        self.sequences = sequences
        strides = (sequences * HEADS, 1, HEADS)  # of the logarithms as [1, heads, sequences]
        self.shared = attune.compile(attune.Problem(batch=1, seq_q=sequences, lse_strides=strides, **common))
        self.own = attune.compile(attune.Problem(batch=sequences, seq_q=1, **common))
        self.merge = attune.compile(
            attune.Problem(op="merge", batch=sequences, num_heads=HEADS, seq_q=1, head_dim=DIM, num_parts=2)
        )
        self.parts = np.empty((2, sequences, HEADS, DIM), np.float32)
        self.lse = np.empty((2, sequences, HEADS), np.float32)

    def __call__(self, q, prefix_k, prefix_v, own_k, own_v, out):
        by_heads = q.transpose(2, 1, 0, 3)  # [1, heads, sequences, dim]
        self.shared.run(q=by_heads, k=prefix_k, v=prefix_v, out=self.parts[0].transpose(1, 0, 2)[None],
                        lse=self.lse[0].T[None])
        self.own.run(q=q, k=own_k, v=own_v, out=self.parts[1][:, :, None], lse=self.lse[1][:, :, None])
        rows = self.sequences * HEADS
        self.merge.run(parts=self.parts.reshape(2, rows, DIM), parts_lse=self.lse.reshape(2, rows), out=out)


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
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--prefix", type=int, default=4096)
    parser.add_argument("--own", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    random = np.random.default_rng(1)

    def drawn(sequences, heads, rows):
        return random.standard_normal((sequences, heads, rows, DIM), dtype=np.float32)

    q = drawn(options.sequences, HEADS, 1)
    prefix_k, prefix_v = drawn(1, KV_HEADS, options.prefix), drawn(1, KV_HEADS, options.prefix)
    own_k, own_v = drawn(options.sequences, KV_HEADS, options.own), drawn(options.sequences, KV_HEADS, options.own)
    cascade, out, plain_out = Cascade(options.sequences), np.empty_like(q), np.empty_like(q)

    # Sequence by sequence: each has the prefix in its cache.
    k, v = (np.concatenate([np.repeat(prefix, options.sequences, 0), own], 2)
            for prefix, own in ((prefix_k, own_k), (prefix_v, own_v)))
    plain = attune.compile(attune.Problem(batch=options.sequences, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM,
                                          seq_q=1, seq_kv=attune.DYNAMIC))

    cascade(q, prefix_k, prefix_v, own_k, own_v, out)
    plain.run(q=q, k=k, v=v, out=plain_out)
    print(f"largest difference: {np.abs(out - plain_out).max():.1e}")
    mine, theirs = best_times([lambda: cascade(q, prefix_k, prefix_v, own_k, own_v, out),
                               lambda: plain.run(q=q, k=k, v=v, out=plain_out)], options.seconds)
    print(f"{options.sequences} sequences, a prefix of {options.prefix} keys and {options.own} of their own: "
          f"{mine:.3f} ms in two passes, {theirs:.3f} ms sequence by sequence, {theirs / mine:.1f} times as fast")


if __name__ == "__main__":
    main()
