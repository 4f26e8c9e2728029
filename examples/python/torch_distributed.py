"""Attention over keys that lie on several ranks: each computes its parts, and op=merge makes one result of them.

    pip install ./python torch numpy
    torchrun --nproc-per-node=2 examples/python/torch_distributed.py

The parts are the same for any number of ranks, and are merged in their order, so the bits do not depend on which rank
has which part. --shuffle=SEED hands them out in another way.
"""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist

import attune

HEADS, KV_HEADS, QUERIES, DIM, PARTS, KEYS = 8, 2, 16, 64, 8, 512  # keys of each part

# Every part of the keys has the same problem; the parts of all ranks have the same kernel.
PART = f"num_heads={HEADS},num_kv_heads={KV_HEADS},seq_q={QUERIES},seq_kv={KEYS},head_dim={DIM},has_lse=1"
MERGE = f"op=merge,num_parts={PARTS},num_heads={HEADS},seq_q={QUERIES},head_dim={DIM},has_lse=1"


def part_of_keys(part):
    """Keys and values of a part, which only its rank ever has: here random numbers in place of a cache."""
    generator = torch.Generator().manual_seed(part)
    return torch.randn(2, 1, KV_HEADS, KEYS, DIM, generator=generator)


def attend(q, owners):
    """The whole result on every rank. owners: the rank that has a part, of each part."""
    out, lse = torch.empty(PARTS, HEADS * QUERIES, DIM), torch.empty(PARTS, HEADS * QUERIES)
    kernel = attune.compile(PART)
    for part in range(PARTS):
        if owners[part] != dist.get_rank():
            continue
        k, v = part_of_keys(part)
        kernel.run(
            q=q, k=k, v=v, out=out[part].view(1, HEADS, QUERIES, DIM), lse=lse[part].view(1, HEADS, QUERIES)
        )
    for part in range(PARTS):  # what travels is as large as the queries, however many keys there are
        dist.broadcast(out[part], owners[part])
        dist.broadcast(lse[part], owners[part])
    merged, sums = torch.empty(1, HEADS, QUERIES, DIM), torch.empty(1, HEADS, QUERIES)
    attune.compile(MERGE).run(parts=out, parts_lse=lse, out=merged, lse=sums)
    return merged


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shuffle", type=int, help="hand the parts out in a random order of this seed")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    order = torch.arange(PARTS)
    if options.shuffle is not None:
        order = torch.randperm(PARTS, generator=torch.Generator().manual_seed(options.shuffle))
    owners = [int((order == part).nonzero()) % ranks for part in range(PARTS)]
    q = torch.randn(1, HEADS, QUERIES, DIM, generator=torch.Generator().manual_seed(1000))
    merged = attend(q, owners)

    # For comparison only: nobody has all keys otherwise.
    k, v = (torch.cat(rows, 2) for rows in zip(*(part_of_keys(part) for part in range(PARTS))))
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    bits = hashlib.sha256(merged.numpy().tobytes()).hexdigest()[:16]
    mine, error = [part for part in range(PARTS) if owners[part] == rank], (merged - whole).abs().max().item()
    print(f"rank {rank} of {ranks}: parts {mine}, bits {bits}, error {error:.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
