"""attune::block_shares: attune.blocks.scores as an operator, which torch.compile and torch.export keep in the graph. It
runs on PyTorch's threads."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ..blocks import scores
from . import _native

_SCHEMA = (
    "(Tensor q, Tensor k, int block_size=128, int stride=16, bool is_causal=False, float? softmax_scale=None) -> Tensor"
)


@torch.library.custom_op("attune::block_shares", mutates_args=(), device_types="cpu", schema=_SCHEMA)
def block_shares(
    q: Tensor, k: Tensor, block_size: int = 128, stride: int = 16, is_causal: bool = False,
    softmax_scale: Optional[float] = None,
) -> Tensor:  # fmt: skip
    return scores(q, k, block_size=block_size, stride=stride, is_causal=is_causal, softmax_scale=softmax_scale,
                  runner=_native.Runner())  # fmt: skip


@block_shares.register_fake
def _fake(q: Tensor, k: Tensor, block_size: int = 128, *args: object, **kwargs: object) -> Tensor:
    blocks = [(x.shape[2] + block_size - 1) // block_size for x in (q, k)]
    return q.new_empty((*q.shape[:2], *blocks), dtype=torch.float32)
