"""PyTorch behind the protocol of docs/bench.md. usage: torch_driver.py THREADS"""
import functools
import math
import sys

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import linear, scaled_dot_product_attention

from driver import Cannot, serve

METHODS = {
    "attention": ["sdpa", "sdpa-bshd", "sdpa-grouped", "bmm", "bmm-turned", "flex"],
    "block": ["linear", "packed", "mha"],
    "products": ["linear", "packed"],
}


MOST_SCORES = 1 << 25
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def tensor(array, p):
    """Operands have one dtype here: that of keys and values, where they have another."""
    dtype = p.kv or p.dtype
    if dtype not in DTYPES:
        raise Cannot(f"no attention over {dtype}")
    return torch.from_numpy(array).to(DTYPES[dtype])


def attention(p):
    q, k, v = (tensor(array, p) for array in p.read_heads())
    grouped = p.heads != p.kv_heads
    causal, mask = bool(p.causal), None
    if causal and p.rows != p.keys:  # is_causal means from the first key on; here the last row sees all
        causal, mask = False, torch.ones(p.rows, p.keys, dtype=torch.bool).tril(p.keys - p.rows)
    if p.method == "sdpa-bshd":  # as projections leave them: tokens of one head are not neighbours
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    if p.method == "sdpa-grouped":  # the heads of a group as rows of one: K and V are read once
        if not grouped or p.rows != 1:
            raise Cannot("for one row of each of several heads only")
        q, grouped = q.reshape(p.batch, p.kv_heads, p.heads // p.kv_heads, p.dim), False
    result = [None]
    if p.method.startswith("bmm"):
        return by_products(p, q, k, v, causal or mask is not None)
    if p.method == "flex":
        return flexible(p, q, k, v)

    def call():
        result[0] = scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=p.scale, enable_gqa=grouped)

    return call, lambda: result[0].reshape(p.batch, p.heads, p.rows, p.dim).float().numpy()


# As its template for CPUs has it, for each shape anew: some seconds, and a C++ compiler.
torch._dynamo.config.recompile_limit = 1 << 20
compiled_flex_attention = torch.compile(flex_attention, dynamic=False)


@functools.lru_cache(maxsize=None)
def hidden_blocks(rows, keys):
    """Kept, because another mask function would be compiled anew."""
    past = keys - rows
    return create_block_mask(lambda b, h, row, key: row + past >= key, None, None, rows, keys, "cpu")


def flexible(p, q, k, v):
    block_mask = hidden_blocks(p.rows, p.keys) if p.causal and p.rows > 1 else None
    result = [None]

    def call():
        result[0] = compiled_flex_attention(q, k, v, block_mask=block_mask, scale=p.scale,
                                            enable_gqa=p.heads != p.kv_heads)

    call()  # compiles
    return call, lambda: result[0].reshape(p.batch, p.heads, p.rows, p.dim).float().numpy()


def by_products(p, q, k, v, is_causal):
    """Without tiles: faster for one row, and where products of bf16 are."""
    if p.batch * p.heads * p.rows * p.keys > MOST_SCORES:
        raise Cannot("too many scores at a time")
    q = q.reshape(p.batch * p.kv_heads, -1, p.dim)
    k = k.reshape(p.batch * p.kv_heads, p.keys, p.dim).transpose(1, 2)
    v = v.reshape(p.batch * p.kv_heads, p.keys, p.dim)
    is_turned = p.method == "bmm-turned"  # one row in f32 as K q, whose product reads K as it lies
    if is_turned and p.rows != 1:
        raise Cannot("for one row only")
    mask = torch.full((p.rows, p.keys), -math.inf, dtype=q.dtype).triu(p.keys - p.rows + 1)
    mask = mask.repeat(p.heads // p.kv_heads, 1)
    result = [None]

    def turned():
        scores = torch.bmm(k.transpose(1, 2), (q * p.scale).transpose(1, 2))
        result[0] = torch.bmm(torch.softmax(scores, 1).transpose(1, 2), v)

    def call():
        scores = torch.baddbmm(mask, q, k, alpha=p.scale) if is_causal else torch.bmm(q * p.scale, k)
        result[0] = torch.bmm(torch.softmax(scores, -1), v)

    return turned if is_turned else call, lambda: result[0].reshape(p.batch, p.heads, p.rows, p.dim).float().numpy()


def packed_linear(p, weight, bias, rows):
    """oneDNN's product with the weights in its own order, as torch.compile has it after freezing."""
    weight = torch.ops.mkldnn._reorder_linear_weight(weight.to_mkldnn(), rows)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def projection(p, name, inputs, outputs):
    weight = tensor(p.read(f"{name}_weight", outputs, inputs), p)
    bias = tensor(p.read(f"{name}_bias", outputs), p)
    if p.method == "packed":
        return packed_linear(p, weight, bias, p.batch * p.rows)
    return lambda x: linear(x, weight, bias)


def module_block(p):
    """torch.nn.MultiheadAttention; evaluating without gradients it takes its fast path."""
    if p.causal:
        raise Cannot("the fast path takes no causal mask")
    module = torch.nn.MultiheadAttention(p.embed, p.heads, batch_first=True).eval()
    names = {"in_proj_weight": "qkv_weight", "in_proj_bias": "qkv_bias"}
    names |= {"out_proj.weight": "out_weight", "out_proj.bias": "out_bias"}
    state = module.state_dict()
    module.load_state_dict({name: torch.from_numpy(p.read(names[name], *state[name].shape)) for name in state})
    module = module.to(torch.bfloat16 if p.dtype == "bf16" else torch.float32)
    return lambda x: module(x, x, x, need_weights=False)[0]


def functional_block(p):
    project_in = projection(p, "qkv", p.embed, 3 * p.embed)
    project_out = projection(p, "out", p.embed, p.embed)

    def forward(x):
        heads = project_in(x).view(p.batch, p.rows, 3, p.heads, p.dim).permute(2, 0, 3, 1, 4)
        out = scaled_dot_product_attention(*heads.unbind(0), is_causal=bool(p.causal), scale=p.scale)
        return project_out(out.transpose(1, 2).reshape(p.batch, p.rows, p.embed))

    return forward


def products(p):
    first = projection(p, "q", p.embed, p.embed)
    second = projection(p, "out", p.embed, p.embed)
    return lambda x: second(first(x))


def on_x(p, forward):
    x = tensor(p.read("x", p.batch, p.rows, p.embed), p)
    result = [None]

    def call():
        result[0] = forward(x)

    return call, lambda: result[0].float().numpy()


def prepare(p, all_threads):
    if p.method not in METHODS[p.kind]:
        raise Cannot(f"{p.method} is not for that")
    torch.set_num_threads(p.threads or all_threads)
    if p.kind == "attention":
        return attention(p)
    if p.kind == "products":
        return on_x(p, products(p))
    return on_x(p, module_block(p) if p.method == "mha" else functional_block(p))


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    torch.set_grad_enabled(False)
    methods = sorted({method for methods in METHODS.values() for method in methods})
    serve(methods, f"PyTorch {torch.__version__}", lambda p: prepare(p, threads))


if __name__ == "__main__":
    main()
