"""The two operators of PyTorch that attention and caches call."""

from __future__ import annotations

import torch


def load() -> None:
    """Loads ``attune::attention`` and ``attune::attention_append``, unless PyTorch knows them already."""
    if not hasattr(torch.ops.attune, "attention"):
        import attune.torch  # noqa: F401  (the import defines the operators)


def attention(*args, **kwargs):
    return torch.ops.attune.attention(*args, **kwargs)


def attention_append(*args, **kwargs):
    return torch.ops.attune.attention_append(*args, **kwargs)
