"""The index beside PyTorch's products and topk, one thread, by the clock of the processor.

    python3 bench/index.py [--heads N] [--dim N] [--ids N]        (needs torch; PYTHONPATH=python)

PyTorch computes the same in two ways, and topk follows. "einsum" is how models write it: all products in f32, then
relu, then the weights. "mm" is as little work as PyTorch can do it with: a product in the type of q, relu_ in place,
and a product with the weights, query by query. Its product of int8 is torch._int_mm.
"""
import argparse
import statistics

import torch

import attune
from machine import seconds


def draw(dtype, queries, keys, heads, dim):
    torch.manual_seed(1)
    q, k = torch.randn(1, queries, heads, dim), torch.randn(1, keys, dim)
    w, scales = torch.randn(1, queries, heads), {}
    if dtype == torch.int8:
        q_max, k_max = q.abs().amax(-1) / 127, k.abs().amax(-1) / 127
        q, k = (q / q_max[..., None]).round(), (k / k_max[..., None]).round()
        scales = dict(q_scale=q_max, k_scale=k_max)
    return q.to(dtype), k.to(dtype), w, scales


def stock_scores(q, k, w, scales):
    """[queries, keys], query by query."""
    for i in range(q.shape[1]):
        if q.dtype == torch.int8:
            products = torch._int_mm(q[0, i], k[0].T).relu_().float()
            yield (w[0, i] * scales["q_scale"][0, i]) @ products * scales["k_scale"][0]
        else:
            products = torch.mm(q[0, i], k[0].T).relu_()
            yield w[0, i].to(q.dtype) @ products


def written_plainly(q, k, w, scales):
    """[queries, keys], as a model has it."""
    w = w[0] * scales["q_scale"][0] if scales else w[0]
    scores = torch.einsum("qhd,kd->qhk", q[0].float(), k[0].float()).relu()
    scores = torch.einsum("qh,qhk->qk", w, scores)
    return scores * scales["k_scale"][0] if scales else scores


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--ids", type=int, default=2048)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{attune.info()['cpu_description']}, PyTorch {torch.__version__}, medians of calls in turns")
    print(f"{'':6}{'queries':>8}{'keys':>8}{'einsum ms':>11}{'mm ms':>9}{'attune ms':>11}{'ratios':>14}{'Gop/s':>8}")
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        for queries, keys in ((1, 16384), (1, 131072), (16, 16384)):
            q, k, w, scales = draw(dtype, queries, keys, options.heads, options.dim)

            def plain():
                return written_plainly(q, k, w, scales).topk(options.ids).indices

            def least():
                return [row.topk(options.ids).indices for row in stock_scores(q, k, w, scales)]

            def ours():
                return attune.index(q, k, w, options.ids, max_threads=1, **scales).ids[0]

            shared = len(set(plain()[0].tolist()) & set(ours()[0].tolist()))
            assert shared > 0.99 * options.ids, shared
            calls = plain, least, ours
            rounds = [[seconds(call) for call in calls] for _ in range(9 if queries == 1 else 3)]
            of_plain, of_least, own = (statistics.median(column) for column in zip(*rounds))
            ops = 2 * queries * keys * options.heads * options.dim
            print(f"{str(dtype)[6:]:9}{queries:5}{keys:8}{of_plain * 1e3:11.2f}{of_least * 1e3:9.2f}{own * 1e3:11.2f}"
                  f"{of_plain / own:7.1f}{of_least / own:7.1f}{ops / own / 1e9:8.0f}", flush=True)


if __name__ == "__main__":
    main()
