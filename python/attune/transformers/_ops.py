"""The two operators of PyTorch that attention and caches call.

Where no gradient is recorded they go past PyTorch's autograd: its part of an operator is Python, and takes as long as
attention over a short cache.
"""

from __future__ import annotations

import torch


def load() -> None:
    """Loads ``attune::attention`` and ``attune::attention_append``, unless PyTorch knows them already."""
    if not hasattr(torch.ops.attune, "attention"):
        import attune.torch  # noqa: F401  (the import defines the operators)


def _call(operator, args, kwargs):
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return operator(*args, **kwargs)
    with torch._C._AutoDispatchBelowAutograd():
        return operator.default(*args, **kwargs)


def attention(*args, **kwargs):
    return _call(torch.ops.attune.attention, args, kwargs)


def attention_append(*args, **kwargs):
    return _call(torch.ops.attune.attention_append, args, kwargs)
