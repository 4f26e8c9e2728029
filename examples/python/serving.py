"""A server's steps: chunks of prompts and decoding tokens of several requests in one call, on a paged cache to which
the call itself appends. bf16, no wait for a compiler. As examples/serving.c: python3 serving.py [its output.f32]"""
import sys

import attune
import numpy as np
import serving_data as data  # the requests, their rows, and a check of the output

attention = attune.Attention(num_heads=data.HEADS, num_kv_heads=data.KV_HEADS, head_dim=data.DIM, dtype="bf16",
                             is_causal=True, kv="paged", page_size=16, appends=True, deadline_us=0)
cache, steps = attune.PagedCache(attention, num_pages=64), 0
outputs: dict = {name: [] for name in data.PROMPTS}
running = set(outputs)
while running:
    chunks = {}
    for name in sorted(running):  # the next chunk of a prompt, or one token
        first, prompt = cache.length(name), data.PROMPTS[name]
        chunks[name] = range(first, min(first + 64, prompt) if first < prompt else first + 1)
        cache.append(name, len(chunks[name]))
    q, k, v = data.rows(chunks)
    starts = np.cumsum([0, *map(len, chunks.values())])
    out = attention.run(q, k, v, cu_seqlens_q=starts, max_threads=2, **cache.batch(chunks))
    for name, piece in zip(chunks, np.split(out, starts[1:-1])):
        outputs[name].append(piece)
        if cache.length(name) == data.TOTALS[name]:
            cache.free(name)
            running.remove(name)
    steps += 1
print(f"{steps} steps, {cache.free_pages} of {cache.num_pages} pages are free again")
sys.exit(data.check(outputs, *sys.argv[1:]))
