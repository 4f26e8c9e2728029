"""A server's steps: chunks of prompts and decoding tokens of several requests in one call, on a paged cache to which
the call itself appends. bf16, eight query heads on two KV heads, and no step that waits for a compiler. As
examples/serving.c.

    python3 serving.py [out.f32]

It prints the largest difference from NumPy in f64. out.f32 is what examples/serving.c has written: it is compared, too.
"""

import sys

import attune
import numpy as np

HEADS, KV_HEADS, DIM, CHUNK, NEW_TOKENS = 8, 2, 64, 64, 12
PROMPTS = {"Ada": 150, "Ben": 7, "Cleo": 300, "Dan": 64}  # requests and the lengths of their prompts
MOST = max(PROMPTS.values()) + NEW_TOKENS


# ---- The model: data in place of projections ----


def values(tensor, request, tokens, heads):
    """f32 [token, head, column]: multiples of 1/128 from -1 to 1, which bf16 holds exactly."""
    token, head, column = np.ogrid[tokens.start : tokens.stop, :heads, :DIM]
    x = ((tensor * 4 + request) * 512 + token) * 8 + head
    x = (x * 64 + column) * 2654435761 & 0xFFFFFFFF
    return (((x ^ x >> 16) % 257) / 128 - 1).astype("f4")


def to_bf16(x):
    return (np.ascontiguousarray(x).view("u4") >> 16).astype("u2").view("V2")


def to_f32(x):
    return (x.view("u2").astype("u4") << 16).view("f4")


def model(name, tokens):
    """q, k and v of some tokens of a request."""
    request = list(PROMPTS).index(name)
    return [values(tensor, request, tokens, heads) for tensor, heads in enumerate((HEADS, KV_HEADS, KV_HEADS))]


def expected(name):
    q, k, v = (x.astype("f8") for x in model(name, range(PROMPTS[name] + NEW_TOKENS)))
    k, v = (np.repeat(x, HEADS // KV_HEADS, 1) for x in (k, v))
    p = np.exp(np.einsum("ihd,jhd->hij", q, k) / np.sqrt(DIM)) * np.tri(len(q))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)


# ---- The server ----


def serve(requests):
    outputs: dict = {name: [] for name in requests}
    attention = attune.Attention(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="bf16", is_causal=True,
                                 kv="paged", page_size=16, appends=True, deadline_us=0)
    cache = attune.PagedCache(attention, num_pages=64)
    steps = 0
    while requests:
        chunks = {}
        for name, prompt in requests.items():  # the next chunk of a prompt, or one token
            first = cache.length(name)
            chunks[name] = range(first, min(first + CHUNK, prompt) if first < prompt else first + 1)
            cache.append(name, len(chunks[name]))
        q, k, v = (to_bf16(np.concatenate(x)) for x in zip(*[model(*chunk) for chunk in chunks.items()]))
        starts = np.cumsum([0, *map(len, chunks.values())])
        out = to_f32(attention.run(q, k, v, cu_seqlens_q=starts, threads=2, **cache.batch(requests)))
        for name, piece in zip(chunks, np.split(out, starts[1:-1])):
            outputs[name].append(piece)
            if cache.length(name) == PROMPTS[name] + NEW_TOKENS:
                cache.free(name)
        requests = {name: prompt for name, prompt in requests.items() if name in cache}
        steps += 1
    print(f"{steps} steps, {cache.free_pages} of {cache.num_pages} pages are free again")
    return {name: np.concatenate(pieces) for name, pieces in outputs.items()}


def main():
    outputs = serve(PROMPTS)
    largest = max(np.abs(outputs[name] - expected(name)).max() for name in PROMPTS)
    print(f"largest difference: {largest:.1e}")
    if len(sys.argv) > 1:
        theirs = np.fromfile(sys.argv[1], "f4").reshape(len(PROMPTS), MOST, HEADS, DIM)
        pairs = [(theirs[i, : len(outputs[name])], expected(name)) for i, name in enumerate(PROMPTS)]
        largest = max(largest, *[np.abs(ours - own).max() for ours, own in pairs])
        print(f"largest difference, of {sys.argv[1]} too: {largest:.1e}")
    return int(largest > 4e-3)  # bf16 keeps 8 bits


if __name__ == "__main__":
    sys.exit(main())
