"""index: which keys a query attends to, as DeepSeek V3.2 and GLM 5 choose them."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ._context import Context, as_context
from ._errors import InvalidArgumentError
from ._lent import _check_list, _lend, _Lent, _list_of, _refuse_repeats
from ._library import check, lib
from ._linear import _check_shape, _Handle, _name_of
from ._problem import _NAMES
from ._structs import IndexDesc, IndexStep, sized
from ._tensor import empty
from ._values import flag, integer, set_threads

_MOST_IDS = 65536


class IndexResult(NamedTuple):
    """Lists of keys for attention: ids as kv_ids, lens as kv_id_lens. scores is None without has_scores."""

    ids: Any
    lens: Any
    scores: Any


@functools.lru_cache(maxsize=64)
def _handle_of(context: Context, fields: Tuple[Tuple[str, Any], ...]) -> _Handle:
    desc = sized(IndexDesc)
    for name, value in fields:
        setattr(desc, name, value)
    return _Handle(context, desc, lib.attune_index_create, lib.attune_index_destroy)


def _set_view(view: Any, name: str, lent: _Lent, lead: int, has_rows: bool) -> None:
    """Strides of [(batch or page), token, (head), (row)], of which `lead` dims come before heads and rows."""
    if lent.shape and lent.shape[-1] > 1 and has_rows and lent.strides[-1] != 1:
        raise InvalidArgumentError(f"{name}: the elements of a row must lie side by side, but the innermost stride is"
                                   f" {lent.strides[-1]}")
    if any(stride < 0 for stride in lent.strides):
        raise InvalidArgumentError(f"{name} has negative strides")
    if len(lent.strides) == lead + 2:
        _refuse_repeats(lent, name, range(lead + 1))
    view.data = lent.data
    view.batch, view.token = lent.strides[0] if lead == 2 else 0, lent.strides[lead - 1]
    view.head = lent.strides[lead] if len(lent.strides) == lead + 2 else 1  # all 0 would mean contiguous


def index(
    q: Any,
    k: Any,
    w: Any,
    num_ids: int,
    *,
    is_causal: bool = False,
    q_scale: Any = None,
    k_scale: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_kv: Any = None,
    kv_lens: Any = None,
    block_table: Any = None,
    has_scores: bool = False,
    ids: Any = None,
    lens: Any = None,
    scores: Any = None,
    max_threads: int = 0,
    runner: Any = None,
    cancel: Any = None,
    context: Context | None = None,
) -> IndexResult:
    """The num_ids best keys of each query, of NumPy arrays and torch CPU tensors: (ids, lens, scores).

    The score of a key is the sum of w[h] max(0, q[h] . k) over the heads h; with int8 and f8 (E4M3) it is k_scale times
    the sum of (w[h] q_scale[h]) max(0, q[h] . k).

    q: [batch, queries, heads, dim], with cu_seqlens_q [queries, heads, dim]; f32, bf16, f16, or int8 or f8 with scales.
    k: of the same dtype, [batch, keys, dim], with cu_seqlens_kv [keys, dim], with block_table [pages, page_size, dim].
    w: [batch, queries, heads], or [queries, heads]; f32, bf16 or f16.
    q_scale, k_scale: with int8 and f8: f32, 0 or above, with the dims of w and those of k without dim.
    is_causal: a query attends to no key after it; the last query of a sequence is at its last key.
    cu_seqlens_q, cu_seqlens_kv: [batch + 1], where each sequence begins.
    kv_lens: [batch], the keys of each sequence. block_table: [batch, pages of a sequence].
    has_scores: returns the scores of the chosen keys, too.
    ids, lens, scores: int32, int32, f32; allocated if they are not given, torch's if q is a torch tensor.
    max_threads, runner, cancel: as in attune.Attention.run.

    ids is [batch, queries, num_ids], or [queries, num_ids]: numbers of keys in their sequence, in ascending order, with
    -1 in unused places. lens is [batch, queries], or [queries]: min(num_ids, visible keys). Of two keys with equal
    scores the first one is chosen, and NaN is below all numbers. A query has the same list in every batch and for every
    number of threads.
    """
    tensors = dict(q=q, k=k, w=w, q_scale=q_scale, k_scale=k_scale)
    lists = dict(cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, kv_lens=kv_lens, block_table=block_table)
    lent = {name: _lend(value, name, False) for name, value in tensors.items() if value is not None}
    numbers = {name: _lend(_list_of(value, name), name, False) for name, value in lists.items() if value is not None}
    for name, values in numbers.items():
        _check_list(values, name)
    fields = _fields(lent, numbers, integer(num_ids, "num_ids", 1, _MOST_IDS))
    fields.update(is_causal=flag(is_causal, "is_causal"), has_scores=flag(has_scores, "has_scores"))
    step = _step_of(lent, numbers, fields)
    shape = lent["q"].shape[:-2]
    result = IndexResult(empty((q,), "i32", (*shape, num_ids)) if ids is None else ids,
                         empty((q,), "i32", shape) if lens is None else lens,
                         (empty((q,), "f32", (*shape, num_ids)) if scores is None else scores) if has_scores else None)
    kept = [_put_output(step, "ids", result.ids, [*shape, num_ids], "i32"),
            _put_output(step, "lens", result.lens, shape, "i32")]
    if has_scores:
        kept.append(_put_output(step, "scores", result.scores, [*shape, num_ids], "f32"))
    set_threads(step, max_threads, runner, cancel)
    handle = _handle_of(as_context(context), tuple(sorted(fields.items())))
    check(lib.attune_index_run(handle.pointer, ctypes.byref(step)))
    del kept
    return result


def _put_output(step: IndexStep, name: str, value: Any, shape: Sequence[int], dtype: str) -> _Lent:
    lent = _lend(value, name, True)
    _check_shape(name, lent, shape)
    _name_of(lent, name, (dtype,))
    stride = 1
    for dim, own in zip(reversed(lent.shape), reversed(lent.strides)):
        if dim > 1 and own != stride:
            raise InvalidArgumentError(f"{name} must be contiguous")
        stride *= dim
    setattr(step, name, lent.data)
    return lent


def _fields(lent: Dict[str, _Lent], lists: Dict[str, _Lent], num_ids: int) -> Dict[str, int]:
    """What a description says of the tensors, whose shapes are checked."""
    is_ragged, is_paged = "cu_seqlens_q" in lists, "block_table" in lists
    _check_shape("q", lent["q"], [None] * (3 if is_ragged else 4))
    *lead, heads, dim = lent["q"].shape
    batch = lists["cu_seqlens_q"].shape[0] - 1 if is_ragged else lead[0]
    dims: List[Optional[int]] = [None] if "cu_seqlens_kv" in lists else [None if is_paged else batch, None]
    _check_shape("k", lent["k"], [*dims, dim])
    _check_shape("w", lent["w"], [*lead, heads])
    dtype = _name_of(lent["q"], "q", ("f32", "bf16", "f16", "i8", "f8"))
    has_scales = dtype in ("i8", "f8")
    _name_of(lent["k"], "k", (dtype,))
    for name, shape in (("q_scale", lent["w"].shape), ("k_scale", lent["k"].shape[:-1])):
        if (name in lent) != has_scales:
            state = "missing" if has_scales else "given"
            raise InvalidArgumentError(f"{name} is {state}; int8 and f8 have it, and no other")
        if name in lent:
            _check_shape(name, lent[name], shape)
            _name_of(lent[name], name, ("f32",))
    for name, wanted in (("cu_seqlens_kv", [batch + 1]), ("kv_lens", [batch]), ("block_table", [batch, None])):
        if name in lists:
            _check_shape(name, lists[name], wanted)
    w_dtype = _name_of(lent["w"], "w", ("f32", "bf16", "f16"))
    return dict(num_heads=heads, head_dim=dim, num_ids=num_ids, dtype=_NAMES.index(dtype),
                w_dtype=_NAMES.index(w_dtype), page_size=lent["k"].shape[1] if is_paged else 0)


def _check_end(name: str, lent: _Lent, tokens: int, what: str) -> None:
    """The tensor has as many tokens as the list says."""
    last = ctypes.c_int32.from_address(lent.data + 4 * (lent.shape[0] - 1)).value if lent.shape[0] else 0
    if last != tokens:
        raise InvalidArgumentError(f"{name} ends with {last}, but {what} has {tokens} tokens")


def _step_of(lent: Dict[str, _Lent], lists: Dict[str, _Lent], fields: Dict[str, int]) -> IndexStep:
    step = sized(IndexStep)
    is_ragged, is_paged = "cu_seqlens_q" in lists, "block_table" in lists
    lead, lead_k = 1 if is_ragged else 2, 1 if "cu_seqlens_kv" in lists else 2
    for name, lent_dims, has_rows in (("q", lead, True), ("k", lead_k, True), ("w", lead, True),
                                      ("q_scale", lead, True), ("k_scale", lead_k, False)):
        if name in lent:
            _set_view(getattr(step, name), name, lent[name], lent_dims, has_rows)
    for name, values in lists.items():
        setattr(step, name, values.data)
    step.batch = lists["cu_seqlens_q"].shape[0] - 1 if is_ragged else lent["q"].shape[0]
    if is_ragged:
        _check_end("cu_seqlens_q", lists["cu_seqlens_q"], lent["q"].shape[0], "q")
    else:
        step.seq_q = lent["q"].shape[1]
    if "cu_seqlens_kv" in lists:
        _check_end("cu_seqlens_kv", lists["cu_seqlens_kv"], lent["k"].shape[0], "k")
    elif is_paged:
        table = lists["block_table"]
        step.num_pages, step.max_pages = lent["k"].shape[0], table.shape[1]
        step.block_table_stride = table.strides[0] if table.shape[0] > 1 else 0
    else:
        step.seq_kv = lent["k"].shape[1]
    return step
