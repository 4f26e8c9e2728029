"""FlashAttention's functions by attune, with the signatures, layouts and meanings that its documentation gives them.

They compute no gradients, dropout_p must be 0, and tensors are on the CPU. Dtypes and head dimensions are attune's."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor

from .._errors import InvalidArgumentError, UnsupportedError
from .._steps import Attention
from .._values import flag, integer, number

_Outputs = Union[Tensor, Tuple[Tensor, ...]]


_attentions: Dict[tuple, Attention] = {}
_CAP = 256


def _attention(**options: Any) -> Attention:
    key = tuple(options.items())
    attention = _attentions.get(key)
    if attention is None:
        if len(_attentions) >= _CAP:
            _attentions.clear()
        attention = _attentions[key] = Attention(**options)
    return attention


def _check(dropout_p: float, **tensors: Optional[Tensor]) -> None:
    if number(dropout_p, "dropout_p"):
        raise UnsupportedError(f"dropout_p is {dropout_p}; it must be 0: attune has no dropout", 5)
    for name, value in tensors.items():
        if value is not None and value.requires_grad and torch.is_grad_enabled():
            raise InvalidArgumentError(
                f"{name} requires grad, and this function computes no gradient: call it under torch.no_grad()"
            )


def _rows(value: Optional[Tensor]) -> Optional[Tensor]:
    """The tensor with the elements of a row side by side, as FlashAttention makes it."""
    return value if value is None or value.stride(-1) == 1 else value.contiguous()


def _run(
    attention_options: Any, q: Tensor, k: Tensor, v: Tensor, softmax_scale: Optional[float], causal: bool,
    window_size: Tuple[int, int], softcap: float, alibi_slopes: Optional[Tensor], has_lse: bool, tensors: Any,
    extra: str = "",
) -> Tuple[Tensor, Optional[Tensor]]:
    """A step of the attention that these arguments describe: out and lse. k and v are those that have the heads."""
    left, right = window_size
    if number(softcap, "softcap") > 0:
        extra += f",logits_soft_cap={float(softcap)!r}"
    if alibi_slopes is not None:
        extra, tensors = extra + ",has_alibi_slopes=1", dict(tensors, alibi_slopes=alibi_slopes)
    attention = _attention(
        num_heads=q.shape[-2], num_kv_heads=k.shape[-2], head_dim=q.shape[-1], head_dim_v=v.shape[-1], dtype=q.dtype,
        kv_dtype=k.dtype, is_causal=flag(causal, "causal"), window_left=int(left), window_right=int(right),
        softmax_scale=None if softmax_scale is None else number(softmax_scale, "softmax_scale"),
        has_lse=flag(has_lse, "return_attn_probs"), extra=extra.lstrip(",") or None, **attention_options,
    )
    result = attention.run(_rows(q), max_threads=torch.get_num_threads(), **tensors)
    return result if has_lse else (result, None)


def _outputs(results: List[Tuple[Tensor, Optional[Tensor]]], dims: Tuple[int, int]) -> Any:
    """The results of several sequences as one; dims are those of sequences in out and in lse."""
    out, lse = zip(*results)
    return torch.cat(out, dims[0]), None if lse[0] is None else torch.cat(lse, dims[1])


def _each(call: Callable[..., Any], batch: int, dims: Tuple[int, int], alibi_slopes: Optional[Tensor]) -> Any:
    """call(sequences, slopes), at once or, where each sequence has slopes of its own, for each."""
    if alibi_slopes is None or alibi_slopes.dim() < 2 or not batch:
        return call(slice(None), alibi_slopes)
    if alibi_slopes.shape[0] != batch:
        raise InvalidArgumentError(f"alibi_slopes has {alibi_slopes.shape[0]} rows, but the batch is {batch}")
    return _outputs([call(slice(b, b + 1), alibi_slopes[b]) for b in range(batch)], dims)


def _result(found: Tuple[Tensor, Optional[Tensor]], has_probs: bool) -> _Outputs:
    out, lse = found
    return out if lse is None else (out, lse, out.new_empty(0)) if has_probs else (out, lse)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Outputs:
    """Attention of q [batch, seq, heads, dim] to k and v [batch, keys, kv_heads, dim]. kv_heads divides heads.

    dropout_p: must be 0.
    softmax_scale: by default 1 / sqrt(dim).
    causal: the last query is at the last key: query i attends to the keys up to i + keys - seq.
    window_size: (left, right): the number of keys before and after its position to which a query attends; -1 for all.
    softcap: above 0: scores become softcap * tanh(score / softcap).
    alibi_slopes: f32 [heads] or [batch, heads]: -slope * |i + keys - seq - j| is added to the score of key j.
    deterministic: ignored: the same call always gives the same result.
    return_attn_probs: returns (out, softmax_lse, S_dmask): softmax_lse is f32 [batch, heads, seq], and S_dmask is
        empty.

    A query without a visible key gives 0, and -infinity in softmax_lse. The result is [batch, seq, heads, dim].
    """
    _check(dropout_p, q=q, k=k, v=v)

    def call(b: slice, slopes: Optional[Tensor]) -> Any:
        tensors = dict(k=_rows(k[b]), v=_rows(v[b]))
        return _run(dict(layout="bshd"), q[b], k, v, softmax_scale, causal, window_size, softcap, slopes,
                    return_attn_probs, tensors)

    return _result(_each(call, q.shape[0], (0, 0), alibi_slopes), return_attn_probs)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Optional[Tensor] = None,
) -> _Outputs:
    """`flash_attn_func` for sequences of different lengths, one after the other.

    q: [tokens, heads, dim]; k, v: [keys, kv_heads, dim].
    cu_seqlens_q, cu_seqlens_k: int32 [batch + 1]: sequence b has the tokens from cu_seqlens[b] to before
        cu_seqlens[b + 1].
    max_seqlen_q, max_seqlen_k: ignored.
    block_table: int32 [batch, pages of a sequence]: k and v are then pages, [pages, page_size, kv_heads, dim], of any
        page_size, and cu_seqlens_k has the keys of each sequence.
    return_attn_probs: softmax_lse is f32 [heads, tokens].
    """
    _check(dropout_p, q=q, k=k, v=v)

    def call(b: slice, slopes: Optional[Tensor]) -> Any:
        starts, keys, own_q, own_k, own_v = cu_seqlens_q, cu_seqlens_k, q, k, v
        options: Dict[str, Any] = dict(layout="thd")
        if b.start is not None:  # one sequence
            starts, keys = (one[b.start : b.start + 2] for one in (starts, keys))
            own_q, starts = q[int(starts[0]) : int(starts[1])], starts - starts[0]
            if block_table is None:
                own_k, own_v = (one[int(keys[0]) : int(keys[1])] for one in (k, v))
                keys = keys - keys[0]
        tensors: Dict[str, Any] = dict(cu_seqlens_q=starts)
        if block_table is None:
            tensors.update(k=_rows(own_k), v=_rows(own_v), cu_seqlens_kv=keys)
        else:
            options.update(kv="paged", page_size=k.shape[1])
            tensors.update(k_cache=k, v_cache=v, kv_lens=keys[1:] - keys[:-1], block_table=block_table[b])
        return _run(options, own_q, k, v, softmax_scale, causal, window_size, softcap, slopes, return_attn_probs,
                    tensors)

    batch = cu_seqlens_q.shape[0] - 1
    return _result(_each(call, batch, (0, 1), alibi_slopes), return_attn_probs)


def _rotated(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x [batch, seq, heads, dim] with its first columns rotated for positions [batch, seq]."""
    half = cos.shape[-1]
    c, s = (one[positions.long()][:, :, None].float() for one in (cos, sin))
    first, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    pair = first.unflatten(-1, (half, 2) if interleaved else (2, half))
    a, b = pair.unbind(-1 if interleaved else -2)
    turned = torch.stack((a * c - b * s, a * s + b * c), -1 if interleaved else -2).flatten(-2)
    return torch.cat((turned.to(x.dtype), rest), -1)


def _store(cache: Tensor, new: Tensor, lens: Tensor, table: Optional[Tensor]) -> None:
    """Writes new rows behind the cached ones of each sequence."""
    at = lens.long()[:, None] + torch.arange(new.shape[1])
    if at.numel() and int(at.max()) >= cache.shape[1] * (1 if table is None else table.shape[1]):
        raise InvalidArgumentError(f"cache_seqlens and {new.shape[1]} new keys exceed the cache")
    page = torch.arange(len(lens))[:, None] if table is None else table.long().gather(1, at // cache.shape[1])
    cache[page, at % cache.shape[1]] = new.to(cache.dtype)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    cache_seqlens: Optional[Union[int, Tensor]] = None,
    cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Optional[Tensor] = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> _Outputs:
    """Attention of q [batch, seq, heads, dim] to a cache, to which k and v are appended in place first.

    k_cache, v_cache: [batch, capacity, kv_heads, dim], or, with block_table, [pages, page_size, kv_heads, dim] of any
        page_size. Rows must be contiguous; other strides are free.
    k, v: [batch, new, kv_heads, dim], written from cache_seqlens on.
    rotary_cos, rotary_sin: [positions, rotary_dim / 2], of q's dtype; with k and v only. k is rotated for the positions
        from cache_seqlens on, and so is q with causal or a window; otherwise all of q for the position cache_seqlens.
        rotary_interleaved: pairs of columns are (0, 1), (2, 3) …; otherwise (0, rotary_dim / 2) …
    cache_seqlens: int or int32 [batch]: keys that the cache has before this call. None: all of it is keys.
    cache_batch_idx: int32 [batch]: the cache's sequence of each sequence of q. All different if keys are appended.
    cache_leftpad: must be None.
    block_table: int32 [batch, pages of a sequence].
    num_splits: ignored.
    return_softmax_lse: returns (out, softmax_lse), f32 [batch, heads, seq].

    The rest is as in `flash_attn_func`. Elements of a cache after a sequence's keys may be anything.
    """
    _check(0, q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v)
    if cache_leftpad is not None:
        raise UnsupportedError("cache_leftpad is given; attune has no padding before a sequence", 5)
    if block_table is not None and cache_batch_idx is not None:
        raise InvalidArgumentError("block_table and cache_batch_idx are both given")
    if (k is None) != (v is None) or (rotary_cos is None) != (rotary_sin is None):
        raise InvalidArgumentError("k and v, and rotary_cos and rotary_sin, must be given together")
    if rotary_cos is not None and k is None:
        raise InvalidArgumentError("rotary_cos is given without k and v")
    if k is not None and cache_seqlens is None:
        raise InvalidArgumentError("k is given without cache_seqlens")
    (batch, seq), table, capacity = q.shape[:2], block_table, k_cache.shape[1]
    if cache_batch_idx is not None:  # a sequence of the cache is one long page
        table = cache_batch_idx[:, None]
    elif table is None:
        k_cache, v_cache = k_cache[:batch], v_cache[:batch]
    if not isinstance(cache_seqlens, Tensor):
        most = capacity * (1 if block_table is None else block_table.shape[1])
        length = most if cache_seqlens is None else integer(cache_seqlens, "cache_seqlens", 0, 2**31 - 1)
        cache_seqlens = torch.full((batch,), length, dtype=torch.int32)
    lens: Tensor = cache_seqlens
    new = 0 if k is None else k.shape[1]
    extra = ""
    rotary: Dict[str, Tensor] = {}
    moves = flag(causal, "causal") or tuple(window_size) != (-1, -1)  # whether queries have positions
    if k is not None and rotary_cos is not None and rotary_sin is not None:
        if new == seq and (moves or seq == 1):
            extra = f"rotary_dim={2 * rotary_cos.shape[-1]},rotary_interleaved={int(rotary_interleaved)}"
            rotary = dict(cos=rotary_cos[None], sin=rotary_sin[None])
        else:
            own = lens[:, None] + torch.arange(max(new, seq), dtype=torch.int32)
            k = _rotated(k, own[:, :new], rotary_cos, rotary_sin, rotary_interleaved)
            at = own[:, :seq] if moves else lens[:, None].expand(batch, seq)
            q = _rotated(q, at, rotary_cos, rotary_sin, rotary_interleaved)
    appends = new > 0 and new == seq
    if k is not None and v is not None and new and not appends:
        _store(k_cache, k, lens, table)
        _store(v_cache, v, lens, table)

    def call(b: slice, slopes: Optional[Tensor]) -> Any:
        options: Dict[str, Any] = dict(layout="bshd", kv="cache", appends=appends)
        tensors: Dict[str, Any] = dict(rotary, k_cache=k_cache, v_cache=v_cache, kv_lens=(lens + new)[b])
        if table is not None:
            options.update(kv="paged", page_size=capacity)
            tensors.update(block_table=table[b])
        else:
            tensors.update(k_cache=k_cache[b], v_cache=v_cache[b])
        if appends and k is not None and v is not None:
            tensors.update(k=_rows(k[b]), v=_rows(v[b]))
        return _run(options, q[b], k_cache, v_cache, softmax_scale, causal, window_size, softcap, slopes,
                    return_softmax_lse, tensors, extra)

    return _result(_each(call, batch, (0, 0), alibi_slopes), False)
