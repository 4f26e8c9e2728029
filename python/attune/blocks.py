"""Attention over blocks of keys that the caller chooses, as XAttention, MInference and similar methods do.

    import attune.blocks
    shares = attune.blocks.scores(q, k, block_size=128, stride=16, is_causal=True)
    shown = attune.blocks.choose(shares, share=0.9, is_causal=True)
    out = attune.blocks.attention(q, k, v, shown, block_size=128, is_causal=True)

q is [batch, heads, queries, dim], k and v are [batch, kv_heads, keys, dim]: NumPy arrays or torch CPU tensors of f32,
f16, bf16 or f64. Row block r has the queries from r * block_size on, key block c the keys from c * block_size on; the
last ones may be short. Blocks are counted from the first query and from the first key, also with is_causal. All
functions are thread-safe.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Optional, Tuple

import numpy as np

from ._context import Context, as_context
from ._errors import InvalidArgumentError, InvalidTypeError
from ._kernel import Kernel, compile
from ._lent import _lend, _Lent
from ._library import check, lib
from ._linear import _Handle
from ._problem import _NAMES, DYNAMIC, Problem
from ._structs import BlocksDesc, BlocksStep, sized
from ._tensor import dtype_name, empty
from ._values import flag, integer, number, set_threads

__all__ = ["attention", "scores", "choose"]


def _sizes(q: Any, k: Any, v: Optional[Any], block_size: Any) -> Tuple[int, int]:
    """Queries and keys."""
    integer(block_size, "block_size", 1, 65536)
    named = {"q": q, "k": k} if v is None else {"q": q, "k": k, "v": v}
    for name, value in named.items():
        if len(getattr(value, "shape", ())) != 4:
            raise InvalidArgumentError(f"{name} must have the shape [batch, heads, length, dim]")
    for name, value in named.items():
        if value.shape[0] != q.shape[0]:
            raise InvalidArgumentError(f"{name} has a batch of {value.shape[0]}, and q of {q.shape[0]}")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise InvalidArgumentError(f"k has {k.shape[1]} heads, which must divide the {q.shape[1]} of q")
    if v is not None and tuple(v.shape[:3]) != tuple(k.shape[:3]):
        raise InvalidArgumentError(f"v has the shape {list(v.shape)}; it must begin as that of k, {list(k.shape)}")
    if q.shape[3] != k.shape[3]:
        raise InvalidArgumentError(f"k has {k.shape[3]} columns, and q has {q.shape[3]}")
    return q.shape[2], k.shape[2]


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _is_torch(value: Any) -> bool:
    return hasattr(value, "unflatten")


# ---- Which blocks ----


def _numbers(values: np.ndarray, name: str) -> np.ndarray:
    """As int32, which the library reads."""
    if values.dtype.kind not in "iu":
        raise InvalidTypeError(f"{name} has the dtype {values.dtype}; it must be integers")
    limits = np.iinfo(np.int32)
    beyond = values[(values < limits.min) | (values > limits.max)]
    if beyond.size:
        raise InvalidArgumentError(
            f"{name} has the number {beyond[0]}, which is neither a number of a block nor a place in a list"
        )
    return np.ascontiguousarray(values, np.int32)


def _from_csr(indptr: np.ndarray, indices: np.ndarray, heads: int, rows: int, columns: int) -> np.ndarray:
    if indptr.ndim != 1 or indptr.size not in (rows + 1, heads * rows + 1):
        raise InvalidArgumentError(
            f"indptr has the shape {list(indptr.shape)}; for {rows} row blocks it must have {rows + 1} elements, or"
            f" {heads * rows + 1} for each of {heads} heads"
        )
    if indptr[-1] != indices.size:
        raise InvalidArgumentError(
            f"indptr must rise from 0 to the number of indices, which is {indices.size}; its last element is"
            f" {indptr[-1]}"
        )
    indptr, indices = _numbers(indptr, "indptr"), _numbers(indices, "indices")
    shown = np.empty((max(indptr.size - 1, 1) // max(rows, 1), rows, columns), bool)
    tables = (array.ctypes.data for array in (indptr, indices))
    check(lib.attune_blocks_from_csr(*tables, indptr.size - 1, columns, shown.ctypes.data))
    return shown


def _from_lists(lists: np.ndarray, columns: int) -> np.ndarray:
    """Numbers of key blocks; -1 fills a list up."""
    lists = _numbers(lists, "blocks")
    shown = np.empty((*lists.shape[:-1], columns), bool)
    rows = int(np.prod(lists.shape[:-1]))
    check(lib.attune_blocks_from_lists(lists.ctypes.data, rows, lists.shape[-1], columns, shown.ctypes.data))
    return shown


def _shown(blocks: Any, batch: int, heads: int, rows: int, columns: int, block_size: int) -> np.ndarray:
    """The blocks as bool [batch or 1, heads or 1, rows, columns]."""
    if isinstance(blocks, tuple):
        if len(blocks) != 2:
            raise InvalidArgumentError(f"blocks is a tuple of {len(blocks)}; it must be (indptr, indices)")
        shown = _from_csr(_array(blocks[0]), _array(blocks[1]), heads, rows, columns)
    else:
        shown = _array(blocks)
        if shown.dtype != bool:
            if shown.dtype.kind not in "iu" or not shown.ndim:
                raise InvalidTypeError(f"blocks has the dtype {shown.dtype}; it must be bool, or integers in lists")
            shown = _from_lists(shown, columns)
    shown = shown.reshape((1,) * (4 - shown.ndim) + shown.shape)
    wanted = (batch, heads, rows, columns)
    if shown.ndim != 4 or shown.shape[2:] != wanted[2:] or any(a not in (1, b) for a, b in zip(shown.shape, wanted)):
        given = shown if isinstance(blocks, tuple) else _array(blocks)
        raise InvalidArgumentError(
            f"blocks has the shape {list(given.shape)}; there are {batch} sequences, {heads} heads, {rows} row blocks "
            f"and {columns} key blocks of block_size {block_size}"
        )
    return shown


# ---- Attention ----


def _in_groups(value: Any, kv_heads: int) -> Any:
    """A view of [heads, length, dim] as [group, kv_heads, length, dim]: each group has a list of its own then."""
    group = value.shape[0] // kv_heads
    if _is_torch(value):
        return value.unflatten(0, (kv_heads, group)).transpose(0, 1)
    strides = value.strides
    return np.lib.stride_tricks.as_strided(
        value, (group, kv_heads, *value.shape[1:]), (strides[0], group * strides[0], *strides[1:])
    )


def _repeated(value: Any, count: int) -> Any:
    shape = (count, *value.shape)
    return value[None].expand(shape) if _is_torch(value) else np.broadcast_to(value, shape)


def _power(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


@functools.lru_cache(maxsize=64)
def _kernel_of(fields: Tuple[Tuple[str, Any], ...]) -> Kernel:
    return compile(Problem(**dict(fields)))


def _kernel(
    q: Any, k: Any, v: Any, shown: np.ndarray, block_size: int, options: Tuple[Tuple[str, Any], ...]
) -> Kernel:
    """One for each number of blocks, rounded up to a power of two, whatever the lengths."""
    rows, columns = shown.shape[-2:]
    has_heads = shown.ndim == 4
    dims, place = ("b, h, ", "b, h, ") if has_heads else ("", "")
    fields = (
        *options,
        ("batch", q.shape[0]),
        ("num_heads", q.shape[1]),
        ("num_kv_heads", k.shape[1]),
        ("seq_q", DYNAMIC),
        ("seq_kv", DYNAMIC),
        ("max_seq_q", rows * block_size),
        ("max_seq_kv", columns * block_size),
        ("head_dim", q.shape[3]),
        ("head_dim_v", v.shape[3]),
        ("dtype", dtype_name(q)),
        ("k_dtype", dtype_name(k)),
        ("v_dtype", dtype_name(v)),
        ("tensors", f"blocks:bool[{dims}{rows}, {columns}]"),
        ("mask_mod", f"blocks[{place}q // {block_size}, kv // {block_size}]"),
    )
    return _kernel_of(fields)


def _padded(shown: np.ndarray) -> np.ndarray:
    rows, columns = (_power(n) for n in shown.shape[-2:])
    out = np.zeros((*shown.shape[:-2], rows, columns), bool)
    out[..., : shown.shape[-2], : shown.shape[-1]] = shown
    return out


def attention(
    q: Any,
    k: Any,
    v: Any,
    blocks: Any,
    *,
    block_size: int = 128,
    is_causal: bool = False,
    softmax_scale: float | None = None,
    out: Any = None,
    max_threads: int = 0,
    runner: Any = None,
    cancel: Any = None,
) -> Any:
    """softmax(softmax_scale * q k^T) v over the keys in the chosen blocks. Others are not read.

    blocks: the key blocks to which each row block attends, in one of three forms.
        bool [heads, row blocks, key blocks], or with a batch before; heads may be 1.
        Integers [heads, row blocks, n]: the numbers of key blocks, in any order, with -1 in unused places.
        (indptr, indices), as in CSR: row block r of head h has the key blocks indices[indptr[i]] to before
            indices[indptr[i + 1]], with i = h * row_blocks + r. An indptr of row_blocks + 1 elements is for all heads.
    is_causal: hides the keys after a query's own position, too; the last query is at the last key.
    softmax_scale, out, max_threads, runner, cancel: as in attune.attention.

    A query without visible keys gives 0. Returns out: a torch tensor if q is one, else a NumPy array. The result is
    that of attune.attention with the same blocks as attn_mask. Heads that share keys may have different blocks. The
    time of a call is proportional to the number of chosen blocks.
    """
    queries, keys = _sizes(q, k, v, block_size)
    causal = flag(is_causal, "is_causal")
    options: Tuple[Tuple[str, Any], ...] = (("is_causal", 1),) if causal else ()
    if softmax_scale is not None:
        options += (("softmax_scale", number(softmax_scale, "softmax_scale")),)
    rows, columns = _ceil(queries, block_size), _ceil(keys, block_size)
    shown = _shown(blocks, q.shape[0], q.shape[1], rows, columns, block_size)
    shape = (*q.shape[:3], v.shape[3])
    if out is None:
        out = empty((q, k, v), dtype_name(q), shape)
    elif tuple(out.shape) != shape:
        raise InvalidArgumentError(f"out has the shape {list(out.shape)}; it must be {list(shape)}")
    if not rows or not columns:
        out[...] = 0
        return out
    shown = _padded(shown)
    for sequence in range(q.shape[0]):
        own = shown[sequence % shown.shape[0]]
        parts = q[sequence], k[sequence], v[sequence], out[sequence]
        if own.shape[0] == 1:
            tensors = [part[None] for part in parts]
            own = own[0]
        else:
            group = q.shape[1] // k.shape[1]
            tensors = [
                _repeated(part, group) if i in (1, 2) else _in_groups(part, k.shape[1]) for i, part in enumerate(parts)
            ]
            own = np.ascontiguousarray(own.reshape(k.shape[1], group, *own.shape[1:]).swapaxes(0, 1))
        kernel = _kernel(tensors[0], tensors[1], tensors[2], own, block_size, options)
        kernel.run(
            q=tensors[0], k=tensors[1], v=tensors[2], out=tensors[3], blocks=own, max_threads=max_threads,
            runner=runner, cancel=cancel,
        )  # fmt: skip
    return out


# ---- The estimator ----


@functools.lru_cache(maxsize=64)
def _estimator(context: Context, fields: Tuple[Tuple[str, Any], ...]) -> _Handle:
    desc = sized(BlocksDesc)
    for name, value in fields:
        setattr(desc, name, value)
    return _Handle(context, desc, lib.attune_blocks_create, lib.attune_blocks_destroy)


def _in_type(value: Any, dtype: str) -> Any:
    """The values in f32, if they have another type, or rows whose elements lie apart."""
    strides = value.stride() if _is_torch(value) else value.strides
    is_same, step = dtype_name(value) == dtype, 1 if _is_torch(value) else value.itemsize
    if is_same and (value.shape[3] == 1 or strides[3] == step) and min(strides) >= 0 and any(strides[:3]):
        return value
    if _is_torch(value):
        return (value if is_same else value.float()).contiguous()
    return np.array(value, value.dtype if is_same else np.float32, order="C")


def _set_view(view: Any, lent: _Lent) -> None:
    view.data, (view.batch, view.head, view.token, _) = lent.data, lent.strides


def scores(
    q: Any,
    k: Any,
    *,
    block_size: int = 128,
    stride: int = 16,
    is_causal: bool = False,
    softmax_scale: float | None = None,
    max_threads: int = 0,
    runner: Any = None,
    cancel: Any = None,
) -> Any:
    """Estimates how much each key block matters to each row block: f32 [batch, heads, row blocks, key blocks].

    This is XAttention's estimate (Xu et al., 2025): the softmax is taken over sums of scores, each sum along the
    antidiagonal of a square of stride x stride queries and keys. So it computes 1 / stride of all products. An element
    is the mean of a key block's probabilities over the squares of the row block; a row block adds up to 1 if each of
    its squares has a visible key. Tokens that the last square lacks count as zeros.

    stride divides block_size. With is_causal the last query is at the last key, and the difference of both lengths must
    be a multiple of stride. softmax_scale: of the attention that is estimated, by default 1 / sqrt(dim).
    max_threads, runner, cancel: as in attune.Attention.run.
    """
    queries, keys = _sizes(q, k, None, block_size)
    shares = empty((q,), "f32", (*q.shape[:2], _ceil(queries, block_size), _ceil(keys, block_size)))
    if not shares.shape[2] or not shares.shape[3]:
        return shares
    dtype = dtype_name(q) if dtype_name(q) == dtype_name(k) != "f64" else "f32"
    of_q, of_k = (_lend(_in_type(value, dtype), name, False) for name, value in (("q", q), ("k", k)))
    fields = dict(
        num_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        head_dim=q.shape[3],
        block_size=block_size,
        stride=integer(stride, "stride", 1, block_size),
        dtype=_NAMES.index(dtype),
        is_causal=flag(is_causal, "is_causal"),
        softmax_scale=q.shape[3] ** -0.5 if softmax_scale is None else number(softmax_scale, "softmax_scale"),
    )
    step = sized(BlocksStep)
    step.batch, step.seq_q, step.seq_kv = q.shape[0], queries, keys
    _set_view(step.q, of_q)
    _set_view(step.k, of_k)
    into = _lend(shares, "shares", True)
    step.shares = into.data
    set_threads(step, max_threads, runner, cancel)
    handle = _estimator(as_context(None), tuple(fields.items()))
    check(lib.attune_blocks_run(handle.pointer, ctypes.byref(step)))
    return shares


def choose(shares: Any, *, share: float = 0.9, is_causal: bool = False) -> np.ndarray:
    """Chooses the fewest key blocks of each row block whose `shares` add up to at least `share` of their sum.

    shares: from attune.blocks.scores, [..., row blocks, key blocks]. Of two equal shares the first one is chosen. The
    first key block is always chosen, and with is_causal also the last one of a row block that has a share or lies on
    the diagonal. Returns a NumPy array of bool of the same shape, for attune.blocks.attention.
    """
    share = number(share, "share")
    if not 0 <= share <= 1:
        raise InvalidArgumentError(f"share is {share:g}; it must be from 0 to 1")
    values = _array(shares).astype(np.float64)
    if values.ndim < 2:
        raise InvalidArgumentError(f"shares has the shape {list(values.shape)}; it needs row blocks and key blocks")
    order = np.argsort(-values, -1, kind="stable")
    ordered = np.take_along_axis(values, order, -1)
    before = np.cumsum(ordered, -1) - ordered
    taken = before < share * values.sum(-1, keepdims=True)
    shown = np.zeros(values.shape, bool)
    np.put_along_axis(shown, order, taken, -1)
    rows, columns = values.shape[-2:]
    if columns:
        shown[..., 0] = True
    if flag(is_causal, "is_causal") and columns:
        diagonal = np.clip(np.arange(rows) + columns - rows, 0, columns - 1)
        last = np.where(values > 0, np.arange(columns), 0).max(-1)
        np.put_along_axis(shown, np.maximum(last, diagonal)[..., None], True, -1)
    return shown
