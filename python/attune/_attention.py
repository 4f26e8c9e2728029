"""attention(): one function for arrays and tensors, without a problem to write."""

from __future__ import annotations

import re
from array import array
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ._context import default_context
from ._errors import InvalidArgumentError, InvalidTypeError
from ._kernel import Kernel
from ._library import check, run_options
from ._plan import Plan
from ._problem import DYNAMIC, Problem
from ._structs import Arguments
from ._tensor import PYTHON_NAMES, dtype_name, empty, empty_output, refuse_masked
from ._tensor import layout as _key_of
from ._values import choice, flag, integer, kind, number, text

LAYOUTS = ("thd", "bshd", "bhsd")
_CAP = 512  # call sites that are remembered
# All layers of a model call one plan with the same lengths. Few models have as many, so the first token does not wait
# for a kernel for lengths that may never come back. attune.torch has the same number.
_REPEATS = 64
_sites: Dict[tuple, Union[Kernel, Plan]] = {}
_ready: Dict[tuple, Tuple[Union[Kernel, Plan], Arguments]] = {}  # by all but the addresses
_MOST = 2**31 - 1
_OTHER_INTEGER = re.compile(r"(int(8|16|64)|uint\d+)$")
_FLOATS = ("f32", "f16", "bf16", "f64", "f8")
_STRIDED = ("q", "k", "v", "out", "attn_mask", "attn_bias")


_DIMS = {
    "bhsd": "[batch, heads, length, dim], or [heads, length, dim] for all",
    "bshd": "[batch, length, heads, dim], or [length, heads, dim] for all",
    "thd": "[tokens, heads, dim]",
}


def _check_rank(value: Any, name: str, layout: str) -> None:
    if len(value.shape) not in ((3,) if layout == "thd" else (3, 4)):
        raise InvalidArgumentError(f"{name} has the shape {list(value.shape)}; it must be {_DIMS[layout]}")


def _shape4(value: Any, name: str) -> Tuple[int, ...]:
    _check_rank(value, name, "bhsd")
    return tuple(value.shape)


def _python_name(value: Any) -> str:
    name = dtype_name(value)
    return PYTHON_NAMES.get(name, name)


def _float_name(value: Any, name: str) -> str:
    """The dtype of a tensor of floats, for the problem."""
    dtype = dtype_name(value)
    if dtype not in _FLOATS:
        names = ", ".join(PYTHON_NAMES[allowed] for allowed in _FLOATS if allowed != "f8" or name in ("k", "v"))
        raise InvalidArgumentError(f"{name} is {_python_name(value)}; it must be one of {names}")
    return dtype


def _lift(value: Any, name: str, layout: str = "bhsd") -> Any:
    """A view as [batch, heads, length, dim], with a batch of one if there is none."""
    if name in ("q", "k", "v", "out"):
        value = value[None] if len(value.shape) == 3 else value
        return value.swapaxes(1, 2) if layout != "bhsd" and len(value.shape) == 4 else value
    if name in ("kv_ids", "kv_id_lens"):
        return _lift_lists(value, 3 if name == "kv_ids" else 2, name)
    return value[None] if name == "lse" and len(value.shape) == 2 else value


def _lift_lists(value: Any, rank: int, name: str) -> Any:
    """Lists of keys with a batch of one if there is none."""
    own = len(getattr(value, "shape", ()))
    if own not in (rank, rank - 1):
        raise InvalidArgumentError(f"{name} has {own} dimensions; it must have {rank}, or {rank - 1} without a batch")
    return value[None] if own < rank else value


def _wide(value: Any) -> bool:
    """Whether neighbours of the innermost dimension are not neighbours in memory."""
    if not value.shape or value.shape[-1] <= 1 or 0 in value.shape:  # NumPy's strides of nothing are 0
        return False
    strides = getattr(value, "strides", None)
    return value.stride(-1) != 1 if strides is None else strides[-1] != value.itemsize


def _strides(value: Any) -> List[int]:
    strides = getattr(value, "strides", None)
    return list(value.stride()) if strides is None else [stride // value.itemsize for stride in strides]


def _numbers(value: Any, code: str, name: str) -> Any:
    """A list of numbers as an array of the type that the kernel reads, integers of any width as int32."""
    if isinstance(value, (list, tuple, range)):
        if code == "i":
            return array("i", [integer(item, name, 0, _MOST) for item in value])
        return array("f", [number(item, name) for item in value])
    if code != "i" or not _is_tensor(value) or not _OTHER_INTEGER.match(_python_name(value)):
        return value
    refuse_masked(value, name)
    for item in (value.min(), value.max()) if 0 not in value.shape else ():
        integer(int(item), name, 0, _MOST)
    return value.astype("i4") if hasattr(value, "astype") else value.int()


def _look(value: Any, name: str) -> None:
    """Refuses a value whose shape cannot be asked for."""
    if getattr(value, "is_nested", False):
        raise InvalidTypeError(f"{name} is a nested tensor; pad it, and give its lengths as kv_lens")
    if not _is_tensor(value):
        raise InvalidTypeError(f"{name} is {kind(value)}; attention takes NumPy arrays and torch tensors")
    refuse_masked(value, name)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and not getattr(value, "is_nested", False) and hasattr(value, "shape")


def _mask_dims(value: Any, name: str, sizes: Sequence[int], fields: Dict[str, Any]) -> tuple:
    """The dims of a mask or bias as fields of the problem: 1, or the problem's sizes where they are the call's."""
    own = list(value.shape)
    if len(own) > 4:
        raise InvalidArgumentError(f"{name} has {len(own)} dimensions; it may have at most 4")
    dims: list = []
    names = ("batch", "num_heads", "seq_q", "num_ids" if "num_ids" in fields else "seq_kv")
    for dim, size, what in zip([1] * (4 - len(own)) + own, sizes, names):
        if dim != size and dim != 1:
            per_key = f"; for each sequence's keys give {name}[:, None, None, :]" if own == [sizes[0], sizes[3]] else ""
            raise InvalidArgumentError(f"{name} has the shape {own}, but {what} is {size}{per_key}")
        dims.append(fields[what] if dim == size else 1)
    return tuple(dims)


def _take_lists(tensors: Dict[str, Any], fields: Dict[str, Any], batch: int, is_ragged: bool) -> int:
    """The fields of listed keys; returns how many each list may have."""
    lists = tensors["kv_ids"].shape
    by_sequence = lists[1] == 1 and lists[0] == batch and (is_ragged or tensors["q"].shape[2] != 1)
    fields["kv_ids"] = "sequence" if by_sequence else "query"
    fields["num_ids"] = DYNAMIC
    fields["has_kv_id_lens"] = tensors.get("kv_id_lens") is not None
    return int(lists[2])


def _fields(tensors: Dict[str, Any], options: tuple, lse: bool) -> Tuple[Dict[str, Any], bool]:
    """The problem of a call, and whether a plan for all lengths can take it."""
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    batch, heads, seq_q, dim = _shape4(q, "q")
    kv_heads, seq_kv = _shape4(k, "k")[1:3]
    dim_v = _shape4(v, "v")[3]
    is_causal, causal_align, scale, left, right, soft_cap = options
    starts = tensors.get("cu_seqlens_q")
    fields: Dict[str, Any] = dict(
        dtype=_float_name(q, "q"), k_dtype=_float_name(k, "k"), v_dtype=_float_name(v, "v"), num_heads=heads,
        num_kv_heads=kv_heads, head_dim=dim, head_dim_v=dim_v, is_causal=is_causal, causal_align=causal_align,
        window_left=left, window_right=right, softmax_scale=scale, logits_soft_cap=soft_cap or None, has_lse=lse,
    )
    for name in ("kv_lens", "sinks", "alibi_slopes"):
        fields["has_" + name] = tensors.get(name) is not None
    wide = {name: value for name, value in tensors.items() if name in _STRIDED and value is not None and _wide(value)}
    by_plan = not wide
    sizes = (batch, heads, seq_q, seq_kv)
    fields["seq_q"] = DYNAMIC if by_plan or not seq_q or starts is not None else seq_q
    fields["seq_kv"] = DYNAMIC if by_plan or not seq_kv or starts is not None else seq_kv
    if starts is not None:
        fields["is_ragged"], batch = True, len(starts) - 1
    if tensors.get("kv_ids") is not None:
        sizes = (*sizes[:3], _take_lists(tensors, fields, batch, starts is not None))
    mask, bias = tensors.get("attn_mask"), tensors.get("attn_bias")
    if not by_plan or mask is not None or bias is not None:
        fields["batch"] = batch or 1  # a batch of nothing is checked as one of 1
    if mask is not None:
        if dtype_name(mask) != "bool":
            own = _python_name(mask)
            raise InvalidArgumentError(f"attn_mask is {own}; it must be bool (numbers to be added are attn_bias)")
        fields["attn_mask_dims"] = _mask_dims(mask, "attn_mask", sizes, fields)
    if bias is not None:
        fields["attn_bias_dims"] = _mask_dims(bias, "attn_bias", sizes, fields)
        fields["bias_dtype"] = _float_name(bias, "attn_bias")
    for name, value in wide.items():
        strides = _strides(value)
        fields[name + "_strides"] = (0,) * (4 - len(strides)) + tuple(strides)
    return fields, by_plan


def _check_nothing(tensors: Dict[str, Any], fields: Dict[str, Any]) -> None:
    """Checks a call with a batch of 0, which the library does not have: there is nothing to compute."""
    Problem(**fields)
    for name in ("k", "v", "out", "kv_lens") if "cu_seqlens_q" not in tensors else ():
        if name in tensors and len(tensors[name]):
            raise InvalidArgumentError(f"{name} has {len(tensors[name])} at dimension 0, but batch is 0")


def _first(
    tensors: Dict[str, Any], options: tuple, lse: bool, threads: Any
) -> Optional[Tuple[Union[Kernel, Plan], Arguments]]:
    """A call whose tensors are checked one by one. Gives how to repeat it; None: there was nothing to compute."""
    fields, by_plan = _fields(tensors, options, lse)
    starts = tensors.get("cu_seqlens_q")
    if not tensors["q"].shape[0] or (starts is not None and len(starts) == 1):
        _check_nothing(tensors, fields)
        return None
    key = tuple(fields.items())
    site = _sites.get(key)
    if site is None:
        problem = Problem(**fields)
        site = Plan(problem, repeats=_REPEATS) if by_plan else Kernel(problem, None, default_context())
        if len(_sites) >= _CAP:
            _sites.clear()
        _sites[key] = site
    arguments, kept = site._arguments(tensors, None)
    check(site._go(arguments, threads))
    del kept
    return site, arguments


def _take_starts(tensors: Dict[str, Any], layout: str, cu_seqlens_q: Any, cu_seqlens_kv: Any) -> None:
    """Adds cu_seqlens to the tensors of a call; refuses them where they mean nothing."""
    if cu_seqlens_q is None and cu_seqlens_kv is None:
        return
    if layout != "thd" or cu_seqlens_q is None:
        name = "cu_seqlens_q" if cu_seqlens_q is not None else "cu_seqlens_kv"
        needed = "layout='thd'" if layout != "thd" else "cu_seqlens_q"
        raise InvalidArgumentError(f"{name} is given; it needs {needed}")
    for name in ("attn_mask", "attn_bias", "kv_lens"):
        if tensors[name] is not None:
            raise InvalidArgumentError(f"{name} and cu_seqlens_q are both given; {name} is for sequences of one length")
    tensors["cu_seqlens_q"] = _numbers(cu_seqlens_q, "i", "cu_seqlens_q")
    tensors["cu_seqlens_kv"] = tensors["cu_seqlens_q"]
    if cu_seqlens_kv is not None:
        tensors["cu_seqlens_kv"] = _numbers(cu_seqlens_kv, "i", "cu_seqlens_kv")
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        value = tensors[name]
        if not isinstance(value, array) and (not _is_tensor(value) or len(value.shape) != 1) or not len(value):
            raise InvalidArgumentError(f"{name} must be one-dimensional, with one element more than sequences")


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    layout: str = "bhsd",
    attn_mask: Any = None,
    attn_bias: Any = None,
    is_causal: bool = False,
    causal_align: str = "bottom_right",
    softmax_scale: float | None = None,
    window_left: int = -1,
    window_right: int = -1,
    logits_soft_cap: float | None = None,
    sinks: Any = None,
    kv_lens: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_kv: Any = None,
    alibi_slopes: Any = None,
    kv_ids: Any = None,
    kv_id_lens: Any = None,
    out: Any = None,
    has_lse: bool = False,
    max_threads: int = 0,
    runner: Any = None,
    cancel: Any = None,
) -> Any:
    """softmax(softmax_scale * q k^T) v for NumPy arrays and torch CPU tensors, which are read in place.

    The arguments are named as the fields and tensors of a problem (attune/expert/problem.h). dtypes are f32, f16, bf16
    and f64; k and v may also be f8 (E4M3). Strides may be anything but negative.

    layout: the order of dimensions of q, k, v and out.
        "bhsd": q is [batch, heads, length, dim], k and v are [batch, kv_heads, keys, dim]; without a batch,
            [heads, length, dim]. kv_heads divides heads. v may have another dim.
        "bshd": [batch, length, heads, dim]; without a batch, [length, heads, dim].
        "thd": [tokens, heads, dim]: one sequence, or several of different lengths, one after the other.
    cu_seqlens_q, cu_seqlens_kv: "thd": [batch + 1]; sequence b has the tokens from cu_seqlens_q[b] to before
        cu_seqlens_q[b + 1]. Rows of no sequence are not computed: a new `out` has arbitrary numbers there.
        cu_seqlens_kv is that of k and v, by default cu_seqlens_q.
    attn_mask: bool, True where a key is visible; it broadcasts to [batch, heads, length, keys].
    attn_bias: added to the scores; it broadcasts in the same way.
    is_causal: a query attends to no key after its position. causal_align: "bottom_right" (the last query is at the last
        key, as with a cache and in FlashAttention) or "top_left" (the first query is at the first key, as with
        is_causal of torch's scaled_dot_product_attention). With as many queries as keys the two are the same. It also
        sets the positions for windows and ALiBi.
    softmax_scale: by default 1 / sqrt(dim).
    window_left, window_right: the number of keys before and after the position that a query attends to; -1: all.
    logits_soft_cap: scores become logits_soft_cap * tanh(score / logits_soft_cap).
    sinks: f32 [heads], the logit of one more key, whose value is 0.
    kv_lens: [batch], the number of valid keys of each sequence. Integers other than int32 are converted.
    alibi_slopes: f32 [heads].
    kv_ids: int32, the keys that a query attends to, in any order: a list for each query, [batch, length, n], with "thd"
        [tokens, n]; or one for all queries of a sequence, [batch, 1, n]. attn_mask and attn_bias then have n columns.
    kv_id_lens: int32, the shape of kv_ids without n: the length of each list, by default n.
    out: an array or tensor to write to.
    has_lse: the result is (out, lse), with lse the logarithm of the sum of exponentials, [batch, heads, length], with
        "thd" [heads, tokens].
    max_threads: the most threads that may work, the caller included; 0 means all.
    runner: the host's threads, such as attune.torch.runner(); None: those of the context.
    cancel: an array of one int32. When another thread sets it to 1, the call ends by attune.CancelledError.

    A row without visible keys gives 0, and -infinity in lse. Returns `out`: a torch tensor if q is one, otherwise a
    NumPy array. It computes no gradient: torch tensors that require grad are refused unless grad mode is off.
    """
    choice(layout, LAYOUTS, "layout")
    if is_causal is not False:
        is_causal = flag(is_causal, "is_causal")
    if causal_align not in ("top_left", "bottom_right"):
        text(causal_align, "causal_align")  # the library refuses other words
    if softmax_scale is not None:
        softmax_scale = number(softmax_scale, "softmax_scale")
    if window_left != -1 or window_right != -1:
        window_left = integer(window_left, "window_left", -1, _MOST)
        window_right = integer(window_right, "window_right", -1, _MOST)
    if logits_soft_cap is not None:
        logits_soft_cap = number(logits_soft_cap, "logits_soft_cap")
    has_lse = flag(has_lse, "has_lse")
    tensors = dict(
        q=q, k=k, v=v, attn_mask=attn_mask, attn_bias=attn_bias, out=out, kv_lens=_numbers(kv_lens, "i", "kv_lens"),
        sinks=_numbers(sinks, "f", "sinks"), alibi_slopes=_numbers(alibi_slopes, "f", "alibi_slopes"),
        kv_ids=_numbers(kv_ids, "i", "kv_ids"), kv_id_lens=_numbers(kv_id_lens, "i", "kv_id_lens"),
    )
    if layout == "thd" or cu_seqlens_q is not None or cu_seqlens_kv is not None:
        _take_starts(tensors, layout, cu_seqlens_q, cu_seqlens_kv)
    tensors = {name: value for name, value in tensors.items() if value is not None}
    options = (is_causal, causal_align, softmax_scale, window_left, window_right, logits_soft_cap)
    parts = [(name, _key_of(value)) for name, value in tensors.items()]
    is_known = all([known is not None for _, known in parts])
    key = (tuple(parts), options, has_lse, layout) if is_known else None
    ready = _ready.get(key) if key else None
    if ready is None:
        for name, value in tensors.items():
            if name in _STRIDED:
                _look(value, name)
        for name in ("q", "k", "v"):
            if name not in tensors:
                _look(None, name)
            _check_rank(tensors[name], name, layout)
        _float_name(q, "q")
    threads, lse = run_options(max_threads, runner, cancel), None
    if out is None:
        tensors["out"] = out = empty_output(q, v)
    if has_lse:
        shape = list(q.shape[:-1])
        if layout != "bhsd":
            shape[-2:] = shape[:-3:-1]
        lse = tensors["lse"] = empty((q,), "f64" if dtype_name(q) == "f64" else "f32", shape)
    if ready is not None:
        site, arguments = ready
        check(site._go(site._again(arguments, tensors), threads))
    else:
        lifted = {name: _lift(value, name, layout) for name, value in tensors.items()}
        made = _first(lifted, options, has_lse, threads)
        if key and made:
            if len(_ready) >= _CAP:
                _ready.clear()
            _ready[key] = made
    return (out, lse) if has_lse else out
