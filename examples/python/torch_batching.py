"""Continuous batching in PyTorch: requests come and go, with chunks of prompts and decoding in one step.

A step is planned once and run by each layer on its own paged cache. The tokens are those of each request alone, without
a cache, by PyTorch's own attention.
"""

import attune
import attune.torch
import torch
from torch.nn.functional import scaled_dot_product_attention

LAYERS, HEADS, KV_HEADS, DIM, WORDS, CHUNK, PAGE = 3, 6, 2, 32, 101, 16, 16
torch.manual_seed(0)
WIDTH = HEADS * DIM
EMBED, POSITIONS = torch.randn(WORDS, WIDTH), torch.randn(512, WIDTH)
QKV = [torch.randn(WIDTH, (HEADS + 2 * KV_HEADS) * DIM) / WIDTH**0.5 for _ in range(LAYERS)]
OUT = [torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(LAYERS)]
PROMPTS = {name: torch.randint(WORDS, (length,)).tolist() for name, length in zip("abcdef", (70, 3, 33, 1, 100, 20))}
ARRIVES = {"a": 0, "b": 0, "c": 2, "d": 3, "e": 3, "f": 9}  # in which step
NEW = 12


def model(tokens, positions, attend):
    """Logits of each token. attend(layer, q, k, v): attention of [tokens, heads, dim]."""
    x = EMBED[tokens] + POSITIONS[positions]
    for layer in range(LAYERS):
        q, k, v = (x @ QKV[layer]).unflatten(-1, (-1, DIM)).split([HEADS, KV_HEADS, KV_HEADS], -2)
        x = torch.nn.functional.layer_norm(x + attend(layer, q, k, v).flatten(1) @ OUT[layer], (WIDTH,))
    return x @ EMBED.T


def alone(prompt):
    """Greedy tokens of one request, each computed from all tokens before it."""
    def attend(_, *qkv):
        q, k, v = (x.transpose(0, 1)[None] for x in qkv)
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    tokens = list(prompt)
    for _ in range(NEW):
        tokens.append(int(model(tokens, range(len(tokens)), attend)[-1].argmax()))
    return tokens


def serve():
    attention = attune.Attention(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, is_causal=True, kv="paged",
                                 page_size=PAGE, appends=True)
    cache = attune.PagedCache(attention, num_pages=48, like=EMBED)
    caches = [(cache.k_cache, cache.v_cache)]  # of each layer; the pages of a request are the same in all of them
    caches += [tuple(torch.empty_like(x) for x in caches[0]) for _ in range(LAYERS - 1)]
    tokens, runner, step = {name: list(p) for name, p in PROMPTS.items()}, attune.torch.runner(), 0
    running: list = []
    while step <= max(ARRIVES.values()) or running:
        running += [name for name in PROMPTS if ARRIVES[name] == step]
        firsts = {name: cache.length(name) for name in running}
        chunks = {name: tokens[name][first : first + CHUNK] for name, first in firsts.items()}
        for name, chunk in chunks.items():
            cache.append(name, len(chunk))
        starts = torch.tensor([0] + [len(chunk) for chunk in chunks.values()]).cumsum(0).int()
        lists = {name: x for name, x in cache.batch(running).items() if name in ("kv_lens", "block_table")}
        plan = attention.plan(cu_seqlens_q=starts, num_pages=cache.num_pages, **lists)

        def attend(layer, q, k, v):
            return plan.run(q, k, v, k_cache=caches[layer][0], v_cache=caches[layer][1], runner=runner)

        positions = [first + i for name, first in firsts.items() for i in range(len(chunks[name]))]
        logits = model(sum(chunks.values(), []), positions, attend)
        for name, last in zip(list(running), (starts[1:] - 1).tolist()):
            if cache.length(name) == len(tokens[name]):  # the prompt is through
                tokens[name].append(int(logits[last].argmax()))
            if len(tokens[name]) == len(PROMPTS[name]) + NEW:
                cache.free(name)
                running.remove(name)
        step += 1
    return tokens, step


with torch.no_grad():
    served, steps = serve()
    same = sum(served[name] == alone(prompt) for name, prompt in PROMPTS.items())
print(f"{steps} steps, {same} of {len(PROMPTS)} requests have the tokens that they have alone")
