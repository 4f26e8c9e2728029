"""zentorch, AMD's plug-in for PyTorch, behind the protocol of docs/bench.md. usage: zentorch_driver.py THREADS"""
import sys

import torch
import zentorch

from driver import Cannot, serve

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def prepare(p, all_threads):
    if p.kind != "attention" or p.kv:
        raise Cannot("attention of one dtype only")
    if p.dtype not in DTYPES:
        raise Cannot(f"no attention over {p.dtype}")
    if p.causal and p.rows != p.keys and p.rows > 1:
        raise Cannot("causality with more keys than rows begins at the first key")
    torch.set_num_threads(p.threads or all_threads)
    q, k, v = (torch.from_numpy(array).to(DTYPES[p.dtype]) for array in p.read_heads())
    if p.heads != p.kv_heads:  # it has no grouped heads: repeated once, which no call pays for
        k, v = (t.repeat_interleave(p.heads // p.kv_heads, 1) for t in (k, v))
    causal, result = bool(p.causal) and p.rows > 1, [None]

    def call():
        result[0] = torch.ops.zentorch.zentorch_sdpa(q, k, v, 0.0, causal, scale=p.scale)[0]

    return call, lambda: result[0].reshape(p.batch, p.heads, p.rows, p.dim).float().numpy()


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    torch.set_grad_enabled(False)
    serve(["sdpa"], f"zentorch {zentorch.__version__}", lambda p: prepare(p, threads))


if __name__ == "__main__":
    main()
