"""Attention alone, in the place of torch.nn.functional.scaled_dot_product_attention."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine import Row, compare, overriding

LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def tensors(dtype, batch, heads, kv_heads, rows, keys, dim):
    """q, k and v as projections leave them: tokens of a head are not neighbours."""
    generator = torch.Generator().manual_seed(1)

    def one(count, length):
        return torch.randn(batch, length, count, dim, generator=generator).to(dtype).transpose(1, 2)

    return one(heads, rows), one(kv_heads, keys), one(kv_heads, keys)


def sdpa(
    name, goal, batch=1, heads=12, kv_heads=None, rows=512, keys=None, dim=64, causal=False, mask=None, dtype="f32",
):
    """A row for one shape. `mask`: None, or the share of keys that a boolean mask lets each query see."""

    def run(threads, seconds):
        dtype_here = DTYPES[dtype]
        q, k, v = tensors(dtype_here, batch, heads, kv_heads or heads, rows, keys or rows, dim)
        options = {"is_causal": causal, "enable_gqa": (kv_heads or heads) != heads}
        if mask:
            options["attn_mask"] = torch.arange(keys or rows).expand(batch, 1, 1, -1) < mask * (keys or rows)

        def call():
            return scaled_dot_product_attention(q, k, v, **options)

        return compare(*overriding(call), seconds, LIMITS[dtype_here])

    return Row(f"SDPA {name} {dtype}", goal, run)


ROWS = [
    sdpa("1×16 (the cost of a call)", 1.0, heads=1, rows=16, dim=16),
    *(
        row
        for dtype in DTYPES
        for row in (
            sdpa("12×128×64", None, rows=128, dtype=dtype),
            sdpa("12×512×64", None, dtype=dtype),
            sdpa("8×12×128×64", None, batch=8, rows=128, dtype=dtype),
            sdpa("12×512×64, padding as a mask", None, mask=0.75, dtype=dtype),
            sdpa("12×2048×64, causal", None, rows=2048, causal=True, dtype=dtype),
            sdpa("9 heads on 3×2048×64, causal", None, heads=9, kv_heads=3, rows=2048, causal=True, dtype=dtype),
            sdpa("9 heads on 3, 1 row of 4096 keys", None, heads=9, kv_heads=3, rows=1, keys=4096, dtype=dtype),
        )
    ),
]
