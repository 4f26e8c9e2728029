"""scaled_dot_product_attention of PyTorch by attune, with gradients, and an operator that PyTorch does not have.

    pip install ./python torch
    python3 examples/python/torch_sdpa.py
"""

import torch
import torch.nn.functional as F

import attune.torch

q, k, v = torch.randn(3, 1, 12, 256, 64, requires_grad=True).unbind(0)
stock = F.scaled_dot_product_attention(q, k, v, is_causal=True)

with attune.torch.enable():
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # any model's calls: nothing in it changes
    out.sum().backward()  # PyTorch's own backward, on attune's output
print("largest difference from stock PyTorch:", (out - stock).abs().max().item())

# Decoding with a cache that grows in place: one token for each of two sequences of different lengths.
k_cache, v_cache = torch.zeros(2, 2, 12, 1024, 64)
lengths = torch.tensor([1, 1], dtype=torch.int32)  # after appending
with torch.inference_mode():
    for step in range(3):
        q, k_new, v_new = torch.randn(3, 2, 12, 1, 64)
        token = torch.ops.attune.attention_append(q, k_new, v_new, k_cache, v_cache, None, None, lengths)
        lengths += 1
print("shape of a decoded token's attention:", tuple(token.shape))
print("what ran where:", attune.torch.stats())
