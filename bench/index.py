"""The index beside PyTorch's products and topk, one thread, by the clock of the processor.

    python3 bench/index.py [--heads N] [--dim N] [--ids N]        (needs torch; PYTHONPATH=python)

PyTorch's scores are a product, relu_ in place, and a product with the weights, query by query so that little memory is
touched; topk follows. Its products of bf16 and of int8 (torch._int_mm) are those that it has.
"""
import argparse
import statistics
import time

import torch

import attune


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


def seconds(call):
    start = time.thread_time()
    call()
    return time.thread_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--ids", type=int, default=2048)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{attune.info()['cpu_description']}, PyTorch {torch.__version__}, medians of calls in turns")
    print(f"{'':6}{'queries':>8}{'keys':>8}{'topk ms':>10}{'attune ms':>11}{'ratio':>7}{'Gop/s':>8}")
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        for queries, keys in ((1, 16384), (1, 131072), (64, 16384)):
            q, k, w, scales = draw(dtype, queries, keys, options.heads, options.dim)

            def theirs():
                return [row.topk(options.ids) for row in stock_scores(q, k, w, scales)]

            def ours():
                return attune.index(q, k, w, options.ids, threads=1, **scales)

            shared = set(theirs()[0].indices.tolist()) & set(ours().ids[0, 0].tolist())
            assert len(shared) > 0.97 * options.ids, len(shared)  # PyTorch rounds scores of bf16 to bf16
            pairs = [(seconds(theirs), seconds(ours)) for _ in range(9 if queries == 1 else 3)]
            stock_s, own_s = (statistics.median(column) for column in zip(*pairs))
            ops = 2 * queries * keys * options.heads * options.dim
            print(f"{str(dtype)[6:]:9}{queries:5}{keys:8}{stock_s * 1e3:10.2f}{own_s * 1e3:11.2f}{stock_s / own_s:7.1f}"
                  f"{ops / own_s / 1e9:8.0f}", flush=True)


if __name__ == "__main__":
    main()
