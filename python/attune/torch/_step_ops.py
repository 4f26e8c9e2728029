"""attune::attention_ragged, attention_paged and attention_paged_append: steps of attune.Attention as operators.

torch.compile and torch.export keep them in the graph. They run on PyTorch's threads and compute no gradients."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor

from . import _native
from ._flash import _attention

_Outputs = Tuple[Tensor, Tensor]

_OPTIONS = (
    "Tensor? sinks=None, Tensor? alibi_slopes=None, bool is_causal={}, int window_left=-1, int window_right=-1, "
    "float logits_soft_cap=0.0, float? softmax_scale=None) -> (Tensor out, Tensor lse)"
)
_LISTS = "Tensor cu_seqlens_q, Tensor kv_lens, Tensor block_table, "
_RAGGED = "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor? cu_seqlens_kv=None, " + _OPTIONS.format(False)
_PAGED = (
    "(Tensor q, Tensor k_cache, Tensor v_cache, "
    + _LISTS
    + "Tensor? k_scale=None, Tensor? v_scale=None, "
    + _OPTIONS.format(True)
)
_APPEND = (
    "(Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, "
    + _LISTS
    + "Tensor(c!)? k_scale=None, Tensor(d!)? v_scale=None, "
    + _OPTIONS.format(True)
)


class _Options:
    """What all three operators have after their own arguments. PyTorch leaves out arguments that are not given."""

    def __init__(
        self,
        causal_by_default: bool,
        sinks: Optional[Tensor] = None,
        alibi_slopes: Optional[Tensor] = None,
        is_causal: Optional[bool] = None,
        window_left: int = -1,
        window_right: int = -1,
        logits_soft_cap: float = 0.0,
        softmax_scale: Optional[float] = None,
    ) -> None:
        is_causal = causal_by_default if is_causal is None else is_causal
        self.fields: Dict[str, Any] = dict(
            is_causal=is_causal, window_left=window_left, window_right=window_right, softmax_scale=softmax_scale
        )
        self.tensors = {"sinks": sinks, "alibi_slopes": alibi_slopes}
        extra = [f"has_{name}=1" for name, value in self.tensors.items() if value is not None]
        if logits_soft_cap:
            extra.append(f"logits_soft_cap={float(logits_soft_cap)!r}")
        self.fields["extra"] = ",".join(extra) or None


def _run(q: Tensor, keys: Tensor, values: Tensor, options: _Options, fields: Any, **tensors: Optional[Tensor]) -> Any:
    attention = _attention(
        num_heads=q.shape[-2], num_kv_heads=keys.shape[-2], head_dim=q.shape[-1], head_dim_v=values.shape[-1],
        dtype=q.dtype, layout="thd", has_lse=True, **options.fields, **fields,
    )  # fmt: skip
    given: Dict[str, Any] = {name: one for name, one in {**tensors, **options.tensors}.items() if one is not None}
    out, lse = attention.run(q, runner=_native.Runner(), **given)
    return out, lse


def _fake(q: Tensor, values: Tensor) -> _Outputs:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    tokens, heads, _ = q.shape
    return q.new_empty((tokens, heads, values.shape[-1])), q.new_empty((heads, tokens), dtype=wide)


@torch.library.custom_op("attune::attention_ragged", mutates_args=(), device_types="cpu", schema=_RAGGED)
def attention_ragged(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_kv: Optional[Tensor] = None, *args: Any,
    **kwargs: Any,
) -> _Outputs:  # fmt: skip
    options = _Options(False, *args, **kwargs)
    return _run(q, k, v, options, {}, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv)


@attention_ragged.register_fake
def _ragged_fake(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> _Outputs:
    return _fake(q, v)


def _scales(scale: Optional[Tensor]) -> Optional[str]:
    """Which scales a cache has, by their dims."""
    return None if scale is None else {1: "head", 3: "token"}.get(scale.dim(), "group")


@torch.library.custom_op("attune::attention_paged", mutates_args=(), device_types="cpu", schema=_PAGED)
def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, cu_seqlens_q: Tensor, kv_lens: Tensor, block_table: Tensor,
    k_scale: Optional[Tensor] = None, v_scale: Optional[Tensor] = None, *args: Any, **kwargs: Any,
) -> _Outputs:  # fmt: skip
    fields = dict(kv="paged", page_size=k_cache.shape[1], kv_dtype=k_cache.dtype, kv_scales=_scales(k_scale))
    return _run(
        q, k_cache, v_cache, _Options(True, *args, **kwargs), fields, k_cache=k_cache, v_cache=v_cache, k_scale=k_scale,
        v_scale=v_scale, cu_seqlens_q=cu_seqlens_q, kv_lens=kv_lens, block_table=block_table,
    )  # fmt: skip


@attention_paged.register_fake
def _paged_fake(q: Tensor, k_cache: Tensor, v_cache: Tensor, *args: Any, **kwargs: Any) -> _Outputs:
    return _fake(q, v_cache)


@torch.library.custom_op(
    "attune::attention_paged_append", mutates_args=("k_cache", "v_cache", "k_scale", "v_scale"), device_types="cpu",
    schema=_APPEND,
)  # fmt: skip
def attention_paged_append(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, cu_seqlens_q: Tensor, kv_lens: Tensor,
    block_table: Tensor, k_scale: Optional[Tensor] = None, v_scale: Optional[Tensor] = None, *args: Any, **kwargs: Any,
) -> _Outputs:  # fmt: skip
    fields = dict(
        kv="paged", page_size=k_cache.shape[1], kv_dtype=k_cache.dtype, kv_scales=_scales(k_scale), appends=True
    )
    return _run(
        q, k_cache, v_cache, _Options(True, *args, **kwargs), fields, k=k, v=v, k_cache=k_cache, v_cache=v_cache,
        k_scale=k_scale, v_scale=v_scale, cu_seqlens_q=cu_seqlens_q, kv_lens=kv_lens, block_table=block_table,
    )  # fmt: skip


@attention_paged_append.register_fake
def _append_fake(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> _Outputs:
    return _fake(q, v)
