"""attune::index: attune.index as an operator, which torch.compile and torch.export keep in the graph. It runs on
PyTorch's threads."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from .._index import index as _index
from . import _native

_SCHEMA = (
    "(Tensor q, Tensor k, Tensor w, int num_ids, bool is_causal=False, Tensor? q_scale=None, Tensor? k_scale=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_kv=None, Tensor? kv_lens=None, Tensor? block_table=None) "
    "-> (Tensor ids, Tensor lens)"
)


@torch.library.custom_op("attune::index", mutates_args=(), device_types="cpu", schema=_SCHEMA)
def index(
    q: Tensor, k: Tensor, w: Tensor, num_ids: int, is_causal: bool = False, q_scale: Optional[Tensor] = None,
    k_scale: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_kv: Optional[Tensor] = None,
    kv_lens: Optional[Tensor] = None, block_table: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:  # fmt: skip
    chosen = _index(
        q, k, w, num_ids, is_causal=is_causal, q_scale=q_scale, k_scale=k_scale, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_kv=cu_seqlens_kv, kv_lens=kv_lens, block_table=block_table, runner=_native.Runner(),
    )  # fmt: skip
    return chosen.ids, chosen.lens


@index.register_fake
def _fake(q: Tensor, k: Tensor, w: Tensor, num_ids: int, *args: object, **kwargs: object) -> Tuple[Tensor, Tensor]:
    shape = q.shape[:-2]
    return q.new_empty((*shape, num_ids), dtype=torch.int32), q.new_empty(shape, dtype=torch.int32)
