"""attention(): one function for arrays and tensors, without a problem to write."""

from __future__ import annotations

from array import array
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ._context import default_context
from ._errors import InvalidArgumentError
from ._kernel import Kernel
from ._library import has_plans
from ._plan import Plan
from ._problem import DYNAMIC, Problem
from ._tensor import dtype_name, empty

_CAP = 512  # call sites that are remembered
_sites: Dict[tuple, Union[Kernel, Plan]] = {}


def _shape4(value: Any, name: str) -> Tuple[int, ...]:
    try:
        shape = tuple(value.shape)
        value.dtype
    except AttributeError:
        kind = type(value).__name__
        raise InvalidArgumentError(f"{name} is a {kind}: attention takes NumPy arrays and torch tensors") from None
    if len(shape) != 4:
        raise InvalidArgumentError(
            f"{name} has the shape {list(shape)}: it is [batch, heads, length, dim], or [heads, length, dim] for all"
        )
    return shape


def _lift(value: Any) -> Any:
    """A view of four dimensions, the new ones first."""
    return value[(None,) * (4 - len(value.shape))] if value is not None and len(value.shape) < 4 else value


def _wide(value: Any) -> bool:
    """Whether neighbours of the innermost dimension are not neighbours in memory."""
    if value.shape[-1] <= 1:
        return False
    strides = getattr(value, "strides", None)
    return value.stride(-1) != 1 if strides is None else strides[-1] != value.itemsize


def _strides(value: Any) -> List[int]:
    strides = getattr(value, "strides", None)
    return list(value.stride()) if strides is None else [stride // value.itemsize for stride in strides]


def _numbers(value: Any, code: str) -> Any:
    """A list of numbers as an array of the type that the kernel reads; anything else as it is."""
    return array(code, value) if isinstance(value, (list, tuple, range)) else value


def _mask_dims(value: Any, name: str, sizes: Sequence[int], dynamic: bool) -> list:
    """The dims of a mask or bias as fields of the problem: 1, or those of the call."""
    dims: list = []
    for dim, size, what in zip(value.shape, sizes, ("batch", "heads", "queries", "keys")):
        if dim != size and dim != 1:
            raise InvalidArgumentError(f"{name} has the shape {list(value.shape)}, and there are {size} {what}")
        dims.append(-1 if dynamic and what in ("queries", "keys") and dim == size else int(dim))
    return dims


def _window(window: Any) -> Tuple[int, int]:
    if window is None:
        return -1, -1
    left, right = (window, window) if isinstance(window, int) else window
    return (-1 if left is None else int(left)), (-1 if right is None else int(right))


def _site(q: Any, k: Any, v: Any, mask: Any, bias: Any, out: Any, options: Dict[str, Any]) -> Union[Kernel, Plan]:
    """The kernel or plan for a call: a plan for all lengths where the library and the strides allow it."""
    batch, heads, seq_q, dim = _shape4(q, "q")
    kv_heads, seq_kv = _shape4(k, "k")[1:3]
    dim_v = _shape4(v, "v")[3]
    strided = [(name, value) for name, value in (("q", q), ("k", k), ("v", v), ("out", out))
               if value is not None and _wide(value)]
    strided += [(name, value) for name, value in (("attn_mask", mask), ("attn_bias", bias))
                if value is not None and _wide(value)]
    by_plan = not strided and has_plans
    sizes = (batch, heads, seq_q, seq_kv)
    fields: Dict[str, Any] = dict(
        dtype=dtype_name(q), k_dtype=dtype_name(k), v_dtype=dtype_name(v), batch=batch, num_heads=heads,
        num_kv_heads=kv_heads, head_dim=dim, head_dim_v=dim_v, **options,
        seq_q=DYNAMIC if by_plan or not seq_q else seq_q, seq_kv=DYNAMIC if by_plan or not seq_kv else seq_kv,
    )
    if mask is not None:
        fields["attn_mask"] = _mask_dims(mask, "mask", sizes, by_plan)
    if bias is not None:
        fields["attn_bias"] = _mask_dims(bias, "bias", sizes, by_plan)
        fields["bias_dtype"] = dtype_name(bias)
    for name, value in strided:
        fields[name + "_strides"] = _strides(value)
    problem = Problem(**fields)
    return Plan(problem) if by_plan else Kernel(problem, None, default_context())


def _layout(value: Any) -> tuple:
    """What of a tensor decides which kernel it needs."""
    if value is None:
        return ()
    return value.shape, value.dtype, tuple(_strides(value)) if _wide(value) else 0


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    is_causal: bool = False,
    causal_align: str = "top_left",
    scale: float | None = None,
    window: int | Tuple[Optional[int], Optional[int]] | None = None,
    soft_cap: float | None = None,
    sinks: Any = None,
    kv_lens: Any = None,
    alibi_slopes: Any = None,
    out: Any = None,
    return_lse: bool = False,
    threads: int = 0,
) -> Any:
    """softmax(scale * q k^T) v for NumPy arrays and torch CPU tensors, which are read where they lie.

    q is [batch, heads, length, dim], k and v are [batch, kv_heads, keys, dim]; without a batch, [heads, length, dim].
    kv_heads divides heads. dim of v may be another. dtypes are f32, f16, bf16 and f64; k and v may also be f8 (E4M3).
    Any strides will do.

    mask: bool, True where a key is seen; it broadcasts to [batch, heads, length, keys].
    bias: added to the scores; it broadcasts in the same way.
    is_causal: a query sees no key after its own position. causal_align: "top_left" (the first query is at the first
        key) or "bottom_right" (the last query is at the last key, as with a cache).
    scale: by default 1 / sqrt(dim).
    window: (left, right), the number of keys seen before and after the position, None for all; n is (n, n).
    soft_cap: scores become soft_cap * tanh(score / soft_cap).
    sinks: f32 [heads], the logit of one more key, whose value is 0.
    kv_lens: int32 [batch], the number of valid keys of each entry.
    alibi_slopes: f32 [heads].
    out: an array or tensor to write to.
    return_lse: the result is (out, lse), with lse the logarithm of the sum of exponentials, [batch, heads, length].
    threads: the most threads that may work, the caller included; 0 means all.

    A row that sees no key gives 0, and -infinity in lse. Returns `out`: a torch tensor if q is one, otherwise a NumPy
    array. Nothing is differentiated: torch tensors that require grad are refused unless grad mode is off.
    """
    flat = len(getattr(q, "shape", ())) == 3
    if flat:
        q, k, v = _lift(q), _lift(k), _lift(v)
    target = _lift(out)
    mask, bias = _lift(mask), _lift(bias)
    kv_lens, sinks, alibi_slopes = _numbers(kv_lens, "i"), _numbers(sinks, "f"), _numbers(alibi_slopes, "f")
    switches = (kv_lens is not None, sinks is not None, alibi_slopes is not None)
    try:
        key = (_layout(q), _layout(k), _layout(v), _layout(mask), _layout(bias), _layout(target), is_causal,
               causal_align, scale, window, soft_cap, switches, return_lse)
        site = _sites.get(key)
    except AttributeError:
        site = key = None  # _shape4 names the value that is no tensor
    if site is None:
        if mask is not None and dtype_name(mask) != "bool":
            raise InvalidArgumentError(f"mask is of {mask.dtype}: it is bool; what is added to scores is `bias`")
        left, right = _window(window)
        options = dict(
            is_causal=bool(is_causal), causal_align=causal_align, softmax_scale=None if scale is None else float(scale),
            window_left=left, window_right=right, logits_soft_cap=float(soft_cap) if soft_cap else None,
            kv_lens=switches[0], sinks=switches[1], alibi_slopes=switches[2], lse=bool(return_lse),
        )
        site = _site(q, k, v, mask, bias, target, options)
        if len(_sites) >= _CAP:
            _sites.clear()
        _sites[key] = site
    batch, heads, seq_q, _ = q.shape
    if target is None:
        target = empty((q,), dtype_name(q), (batch, heads, seq_q, v.shape[3]))
    tensors = dict(q=q, k=k, v=v, out=target, attn_mask=mask, attn_bias=bias, kv_lens=kv_lens, sinks=sinks,
                   alibi_slopes=alibi_slopes)
    lse = None
    if return_lse:
        lse = tensors["lse"] = empty((q,), "f64" if dtype_name(q) == "f64" else "f32", (batch, heads, seq_q))
    site.run(threads=threads, **tensors)
    result = out if out is not None else target[0] if flat else target
    return (result, lse[0] if flat else lse) if return_lse else result
