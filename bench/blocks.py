"""The estimate of key blocks beside PyTorch's product and softmax, one thread, by the clock of the processor.

    python3 bench/blocks.py [--heads N] [--tokens N]        (needs torch; PYTHONPATH=python)

PyTorch multiplies reshaped tensors in their type: rows of `stride` queries, the last one first, and of `stride` keys.
"""
import argparse
import statistics

import torch

import attune.blocks
from machine import seconds

DIM = 128


def by_torch(q, k, block_size, stride):
    batch, heads, tokens, dim = q.shape
    groups, in_block = tokens // stride, block_size // stride
    q = q.reshape(batch, heads, groups, stride, dim).flip(3).reshape(batch, heads, groups, stride * dim)
    k = k.reshape(batch, 1, groups, stride * dim).expand(q.shape)
    scores = (q @ k.transpose(2, 3)).float() * (dim**-0.5 / stride)
    scores.masked_fill_(torch.ones(groups, groups, dtype=torch.bool).triu(1), float("-inf"))
    blocks = groups // in_block
    return scores.softmax(-1).view(batch, heads, blocks, in_block, blocks, in_block).sum(-1).mean(3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8192)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print("| type | block, stride | PyTorch | attune | times as fast | GFLOP/s |\n|---|---|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        q = torch.randn(1, options.heads, options.tokens, DIM).to(dtype)
        k = torch.randn(1, 1, options.tokens, DIM).to(dtype)
        for block_size, stride in ((128, 16), (128, 8), (64, 8), (128, 4)):

            def ours():
                return attune.blocks.scores(q, k, block_size=block_size, stride=stride, is_causal=True, max_threads=1)

            def theirs():
                return by_torch(q, k, block_size, stride)

            error = float((ours() - theirs()).abs().max())
            assert error < (1e-4 if dtype == torch.float32 else 1e-2), error
            pairs = [(seconds(theirs), seconds(ours)) for _ in range(7)]
            stock, own = (statistics.median(pair[i] for pair in pairs) for i in range(2))
            flops = options.heads * options.tokens**2 * DIM / stride
            name = str(dtype).replace("torch.", "")
            print(f"| {name} | {block_size}, {stride} | {stock * 1e3:.1f} ms | {own * 1e3:.1f} ms |"
                  f" {stock / own:.1f} | {flops / own / 1e9:.0f} |")


if __name__ == "__main__":
    main()
