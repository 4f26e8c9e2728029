"""What the tests of attune.torch share: references, and random calls."""

import os
import random
import subprocess
import sys

import torch
import torch.nn.functional as F

sdpa = F.scaled_dot_product_attention

# torch.testing's defaults. Stock PyTorch rounds probabilities to 16 bits, so it is compared by the tolerances of
# PyTorch's own test of this kernel (test_transformers.py, test_scaled_dot_product_fused_attention_vs_math_cpu).
STOCK_TOLERANCES = {torch.bfloat16: dict(rtol=5e-2, atol=5e-2), torch.float16: dict(rtol=1e-2, atol=1e-2)}


def assert_exact(out, by_reference, q, k, v):
    """Whether `out` is by_reference(q, k, v), which is f64, by torch.testing's defaults. Where the CPU multiplies pairs
    of bf16, attune rounds probabilities to bf16 as stock PyTorch does. Each product p v may then be off by 2^-9 of
    itself, and so may the sum that it is divided by."""
    exact = by_reference(q, k, v)
    if out.dtype != torch.bfloat16:
        torch.testing.assert_close(out, exact.to(out.dtype))
        return
    allowed = 1e-5 + 1.6e-2 * exact.abs() + by_reference(q, k, v.abs()) / 2**8
    off = (out.double() - exact).abs()
    wrong = ~((off <= allowed) | (exact.isnan() & out.isnan()))
    assert out.shape == exact.shape and not wrong.any(), f"{wrong.sum()} of {off.numel()}, off by {off[wrong].max()}"


def run_alone(code, **environment):
    """A program in a process of its own."""
    prelude = """
import os, torch, attune.torch, warnings
sdpa = torch.nn.functional.scaled_dot_product_attention
"""
    return subprocess.run(
        [sys.executable, "-c", prelude + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def reference(q, k, v, hidden=None, bias=None, scale=None):
    """Attention in f64. A row that sees no key is 0. Gradients flow."""
    q, k, v = (t.double() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias.double()
    hidden = torch.zeros((), dtype=torch.bool) if hidden is None else hidden
    hidden = (hidden | (scores == -torch.inf)).expand_as(scores)
    empty = hidden.all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(hidden & ~empty, -torch.inf).masked_fill(empty, 0.0), -1)
    return weights.masked_fill(hidden, 0.0) @ v


def _layout(rng, shape, dtype):
    """A random tensor [batch, heads, length, dim] in one of the layouts that models have."""
    b, h, n, d = shape
    kind = rng.choice(["bhsd", "bshd", "packed", "slice", "expanded"])
    if kind == "bshd":
        return torch.randn(b, n, h, d, dtype=dtype).transpose(1, 2)
    if kind == "packed":
        return torch.randn(b, n, 3, h, d, dtype=dtype)[:, :, 1].transpose(1, 2)
    if kind == "slice":
        return torch.randn(b, h, n + 5, d, dtype=dtype)[:, :, 3 : n + 3]
    if kind == "expanded":
        return torch.randn(1, h, n, d, dtype=dtype).expand(b, h, n, d)
    return torch.randn(b, h, n, d, dtype=dtype)


def random_call(seed):
    """A random call: (q, k, v, options of scaled_dot_product_attention, what a reference needs)."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64])
    group, kv_heads = rng.choice([1, 1, 2, 3]), rng.choice([1, 2, 4])
    batch, rows, keys = rng.randint(1, 3), rng.choice([1, 1, 2, 5, 16, 33]), rng.choice([1, 7, 16, 40, 65])
    dim = rng.choice([8, 16, 64])
    heads = group * kv_heads
    q = _layout(rng, (batch, heads, rows, dim), dtype)
    k, v = (_layout(rng, (batch, kv_heads, keys, dim), dtype) for _ in "kv")
    options, hidden, bias = {"enable_gqa": group > 1}, None, None
    kind = rng.choice(["none", "causal", "bool", "bool", "float"])
    shape = [rng.choice([1, batch]), rng.choice([1, heads]), rng.choice([1, rows]), rng.choice([1, keys])]
    if kind == "causal":
        options["is_causal"] = True
        hidden = torch.arange(keys)[None] > torch.arange(rows)[:, None]
    elif kind == "bool":
        mask = torch.rand(shape) < rng.choice([0.2, 0.8])
        if rng.random() < 0.5:
            mask[..., rng.randrange(shape[2]), :] = False  # a row without keys
        options["attn_mask"], hidden = mask, ~mask
    elif kind == "float":
        bias = torch.randn(shape, dtype=dtype)
        if rng.random() < 0.5:
            bias[torch.rand(shape) < 0.3] = -torch.inf
        options["attn_mask"] = bias
    if rng.random() < 0.3:
        options["scale"] = rng.choice([0.05, 0.3, 1.0])
    return q, k, v, options, dict(hidden=hidden, bias=bias, scale=options.get("scale"))
