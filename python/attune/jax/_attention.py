"""attune.jax.attention: checks while tracing, one custom call, and its gradient."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any, Optional, Tuple, Union

import jax
import jax.numpy as jnp

import attune

from . import _native, _plain

_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}


# ---- Checks, while tracing ----


def _number(value: Any, name: str) -> float:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} is traced; attune needs a number, which is compiled in")
    try:
        return float(value)
    except TypeError:
        raise TypeError(f"{name} is {type(value).__name__}; it must be a number") from None


def _tokens(array: Any, name: str) -> jax.Array:
    array = jnp.asarray(array)
    if array.ndim not in (3, 4):
        raise ValueError(f"{name} has {array.ndim} dims; it must have [batch, length, heads, dim], or no batch")
    if array.dtype.name not in _DTYPES:
        raise TypeError(f"{name} is {array.dtype.name}; it must be float32, bfloat16, float16 or float64")
    return array[None] if array.ndim == 3 else array


def _check_shapes(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    for name, array in (("key", k), ("value", v)):
        if array.dtype != q.dtype:
            raise TypeError(f"{name} is {array.dtype.name} and query {q.dtype.name}; they must be the same")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(f"key has the shape {k.shape}; a query of {q.shape} needs its batch and its last dim")
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(f"value has the shape {v.shape}; it needs the batch, length and heads of key, {k.shape}")
    if not k.shape[2] or q.shape[2] % k.shape[2]:
        raise ValueError(f"query has {q.shape[2]} heads, which is no multiple of the {k.shape[2]} heads of key")
    if not q.shape[3] or not v.shape[3]:
        raise ValueError("the last dim of query, key or value is 0")


def _scores(array: Any, name: str, sizes: Tuple[int, ...]) -> Optional[jax.Array]:
    """A mask or a bias with four dims."""
    if array is None:
        return None
    array = jnp.asarray(array)
    if array.ndim > 4 or any(have not in (1, want) for have, want in zip(array.shape[::-1], sizes[::-1])):
        raise ValueError(f"{name} has the shape {array.shape}, which cannot be broadcast to {sizes}")
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if array.shape[2:] == (1, 1):  # one value for all scores of a head: attune wants at least a row of them
        array = jnp.broadcast_to(array, (*sizes[:2], 1, sizes[3]))
    return array


def _lengths(lengths: Any, name: str, batch: int, most: int) -> Optional[jax.Array]:
    if lengths is None:
        return None
    lengths = jnp.asarray(lengths)
    if lengths.shape != (batch,) or lengths.dtype != jnp.int32:
        found = f"{lengths.dtype.name} of the shape {lengths.shape}"
        raise ValueError(f"{name} is {found}; it must be int32 of ({batch},)")
    return jnp.clip(lengths, 0, most)


def _window(window: Union[None, int, Tuple[int, int]]) -> Tuple[int, int]:
    if window is None:
        return -1, -1
    pair = window if isinstance(window, (tuple, list)) else (window, window)
    try:
        left, right = (operator.index(side) for side in pair)
    except (TypeError, ValueError):
        left = right = -1
    if left < 0 or right < 0 or any(isinstance(side, bool) for side in pair):
        raise ValueError(f"local_window_size is {window}; it must be a number of keys, 0 or more, or two of them")
    return left, right


def _check_dtypes(q: jax.Array, bias: Any, mask: Any, sinks: Any) -> None:
    if mask is not None and mask.dtype != jnp.bool_:
        raise TypeError(f"mask is {mask.dtype.name}; it must be bool: numbers that are added are a bias")
    if bias is not None and bias.dtype.name not in _DTYPES:
        raise TypeError(f"bias is {bias.dtype.name}; it must be float32, bfloat16, float16 or float64")
    if bias is not None and bias.dtype == jnp.float64 and q.dtype != jnp.float64:
        raise TypeError(f"bias is float64; with a query of {q.dtype.name} it must be narrower")
    if sinks is not None and (sinks.shape != (q.shape[2],) or sinks.dtype != jnp.float32):
        found = f"{sinks.dtype.name} of the shape {sinks.shape}"
        raise ValueError(f"sinks is {found}; it must be float32 of ({q.shape[2]},), one for each head")


# ---- The call ----


def _problem(options: _plain.Options, q: Any, k: Any, v: Any, bias: Any, sinks: Any, mask: Any, kv_lens: Any) -> str:
    """The text of the problem. The kernel serves any batch and numbers of heads at the same group. Masks have both dims
    in full: where they are broadcast, the call has a stride of 0."""
    group = q.shape[2] // k.shape[2]
    left, right = options.window
    fields = {
        "dtype": _DTYPES[q.dtype.name], "batch": 2, "num_heads": 2 * group, "num_kv_heads": 2,
        "seq_q": q.shape[1], "seq_kv": k.shape[1], "head_dim": q.shape[3], "head_dim_v": v.shape[3],
        "window_left": left, "window_right": right,
        "is_causal": int(options.is_causal), "causal_align": "bottom_right" if options.bottom_right else "top_left",
        "has_lse": int(options.has_lse), "has_kv_lens": int(kv_lens is not None), "has_sinks": int(sinks is not None),
        "reproducible": int(options.reproducible),
    }  # fmt: skip
    if options.scale != 1 / math.sqrt(q.shape[3]):
        fields["softmax_scale"] = repr(options.scale)
    if options.soft_cap:
        fields["logits_soft_cap"] = repr(options.soft_cap)
    for name, scores in (("attn_mask", mask), ("attn_bias", bias)):
        if scores is not None:
            fields[name + "_dims"] = f"2:{2 * group}:{scores.shape[2]}:{scores.shape[3]}"
    if bias is not None:
        fields["bias_dtype"] = _DTYPES[bias.dtype.name]
    return ",".join(f"{name}={value}" for name, value in fields.items())


def _call(options: _plain.Options, q: Any, k: Any, v: Any, bias: Any, sinks: Any, mask: Any, kv_lens: Any) -> Any:
    text = str(attune.Problem(_problem(options, q, k, v, bias, sinks, mask, kv_lens)))
    batch, rows, heads, _ = q.shape
    results = [jax.ShapeDtypeStruct((batch, rows, heads, v.shape[3]), q.dtype)]
    if options.has_lse:
        wide = jnp.float64 if q.dtype == jnp.float64 else jnp.float32
        results.append(jax.ShapeDtypeStruct((batch, heads, rows), wide))
    operands = [array for array in (q, k, v, mask, bias, kv_lens, sinks) if array is not None]
    found = jax.ffi.ffi_call(_native.TARGET, results, vmap_method="expand_dims")(*operands, problem=text)
    return tuple(found)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options: _plain.Options, *arrays: Any) -> Any:
    return _call(options, *arrays)


def _forward(options: _plain.Options, *arrays: Any) -> Any:
    return _attend(options, *arrays), arrays  # not _call, so that gradients have gradients


def _backward(options: _plain.Options, arrays: Tuple[Any, ...], cotangents: Tuple[Any, ...]) -> Any:
    """XLA's own, of the same function in JAX's operators."""
    rest = arrays[5:]

    def plain(*differentiable: Any) -> Any:
        return _plain.attention(options, *differentiable, *rest)[: len(cotangents)]

    _, pull = jax.vjp(plain, *arrays[:5])
    return (*pull(tuple(cotangents)), None, None)


_attend.defvjp(_forward, _backward)


def attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: Optional[float] = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: Union[None, int, Tuple[int, int]] = None,
    return_residual: bool = False,
    causal_align: str = "top_left",
    logits_soft_cap: Optional[float] = None,
    sinks: Any = None,
    reproducible: bool = False,
) -> Any:
    """Attention with the arguments of jax.nn.dot_product_attention, on the CPU.

    query is [batch, queries, heads, dim], key and value are [batch, keys, kv heads, dim], all of one float type; or all
    without batch. Values may have another last dim. bias and mask are broadcastable to [batch, heads, queries, keys].
    A row without a visible key is 0, and -inf in the residual; so is a row from query_seq_lengths on.

    Arguments that JAX's function lacks: causal_align="bottom_right" puts the last query at the last key, for causality
    and windows; "top_left", as in JAX, the first query at the first key. With logits_soft_cap scores become
    logits_soft_cap * tanh(score / logits_soft_cap). sinks (float32 [heads]) is the logit of one more key, whose value
    is 0. reproducible gives a row the same bits whatever the other sizes are. With return_residual the second result is
    the logarithm of the sums of exponentials, float32 (float64 for float64) [batch, queries, heads].

    Arrays are traced; the other arguments are compiled in. Arguments that attune cannot compute raise a TypeError, a
    ValueError or an attune.Error with one sentence."""
    is_single = jnp.ndim(query) == 3
    q, k, v = (_tokens(array, name) for array, name in ((query, "query"), (key, "key"), (value, "value")))
    _check_shapes(q, k, v)
    batch, rows, heads, dim = q.shape
    sizes = (batch, heads, rows, k.shape[1])
    bias, mask = _scores(bias, "bias", sizes), _scores(mask, "mask", sizes)
    sinks = None if sinks is None else jnp.asarray(sinks)
    _check_dtypes(q, bias, mask, sinks)
    q_lens = _lengths(query_seq_lengths, "query_seq_lengths", batch, rows)
    kv_lens = _lengths(key_value_seq_lengths, "key_value_seq_lengths", batch, sizes[3])
    if causal_align not in ("top_left", "bottom_right"):
        raise ValueError(f"causal_align is {causal_align!r}; it must be 'top_left' or 'bottom_right'")
    bottom_right = causal_align == "bottom_right"
    cap = 0.0 if logits_soft_cap is None else _number(logits_soft_cap, "logits_soft_cap")
    options = _plain.Options(
        1 / math.sqrt(dim) if scale is None else _number(scale, "scale"), bool(is_causal), bottom_right,
        _window(local_window_size), cap, bool(return_residual), bool(reproducible),
    )  # fmt: skip
    compute = _attend if all(sizes) else _plain.attention
    found = compute(options, q, k, v, bias, sinks, mask, kv_lens)
    out = found[0]
    residual = jnp.swapaxes(found[1], 1, 2) if return_residual else None
    if q_lens is not None:
        is_row = (jnp.arange(rows) < q_lens[:, None])[:, :, None]
        out = jnp.where(is_row[..., None], out, 0)
        residual = None if residual is None else jnp.where(is_row, residual, -jnp.inf)
    out = out[0] if is_single else out
    if residual is None:
        return out
    return out, residual[0] if is_single else residual
