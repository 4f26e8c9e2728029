"""The Python side of attune's operators: shapes for compilers (fake kernels), gradients, autocast and vmap.

The operators are defined and computed in libattune-torch.so."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

attention = torch.ops.attune.attention
attention_append = torch.ops.attune.attention_append

_Outputs = Tuple[Tensor, Tensor]


# ---- Shapes ----


def _check_devices(op: str, q: Tensor, *others: Any) -> None:
    for other in others:
        if isinstance(other, Tensor) and other.device != q.device:
            raise RuntimeError(f"attune::{op}: q is on {q.device} and another tensor on {other.device}")


@torch.library.register_fake("attune::attention")
def _attention_fake(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> _Outputs:
    _check_devices("attention", q, k, v, *args, *kwargs.values())
    batch, heads, rows, _ = q.shape
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = q.new_empty((batch, rows, heads, v.shape[-1])).transpose(1, 2)
    return out, q.new_empty((batch, rows, heads), dtype=wide).transpose(1, 2)


@torch.library.register_fake("attune::attention_append")
def _append_fake(q: Tensor, k_new: Tensor, v_new: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    _check_devices("attention_append", q, k_new, v_new, *args, *kwargs.values())
    batch, heads, rows, _ = q.shape
    return q.new_empty((batch, rows, heads, v_new.shape[-1])).transpose(1, 2)


# ---- Gradients ----
#
# attune computes no gradients. PyTorch's own flash backward does, from attune's output and lse: it computes the
# probabilities anew from scores and lse, so every rule that hides keys becomes a mask for it.


def _refusal(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor], cap: float) -> str:
    """Why these arguments have no backward; "" if they have one."""
    if cap > 0:
        return "logits_soft_cap has no backward"
    if bias is not None and bias.requires_grad:
        return "the gradient of attn_bias is not computed"
    if sinks is not None and sinks.requires_grad:
        return "the gradient of sinks is not computed"
    if v.shape[-1] != q.shape[-1]:
        return "values of another head dimension than queries have no backward"
    return ""


def _hidden(
    q: Tensor,
    k: Tensor,
    mask: Optional[Tensor],
    kv_lens: Optional[Tensor],
    is_causal: bool,
    bottom_right: bool,
    left: int,
    right: int,
) -> Optional[Tensor]:
    """Which keys are hidden from a query, by all rules at once; None: no key is."""
    rows, keys = q.shape[-2], k.shape[-2]
    hidden = None if mask is None else ~mask
    lengths = None if kv_lens is None else kv_lens.to(torch.int64)[:, None, None, None]
    j = torch.arange(keys)
    if lengths is not None:
        hidden = (j >= lengths) if hidden is None else hidden | (j >= lengths)
    if is_causal or left >= 0 or right >= 0:
        base = 0 if not bottom_right else (keys if lengths is None else lengths) - rows
        p = torch.arange(rows)[:, None] + base
        far = torch.zeros((), dtype=torch.bool)
        if is_causal:
            far = far | (j > p)
        if left >= 0:
            far = far | (j < p - left)
        if right >= 0:
            far = far | (j > p + right)
        hidden = far if hidden is None else hidden | far
    return hidden


def _setup_context(ctx: Any, inputs: Tuple[Any, ...], output: _Outputs) -> None:
    q, k, v, mask, bias, kv_lens, sinks, *options = inputs
    refusal = _refusal(q, k, v, bias, sinks, options[4])
    if refusal:
        raise RuntimeError(f"attune::attention: {refusal}; call it under torch.no_grad(), or detach its arguments")
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, mask, bias, kv_lens, out, lse)
    ctx.options = options


def _backward(ctx: Any, grad_out: Optional[Tensor], grad_lse: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
    q, k, v, mask, bias, kv_lens, out, lse = ctx.saved_tensors
    is_causal, causal_align, left, right, _, scale = ctx.options
    bottom_right = causal_align == "bottom_right"
    none: List[Optional[Tensor]] = [None] * 10
    if grad_out is None:
        return (None, None, None, *none)
    # Plain causality is an option of the backward; any other rule becomes an additive mask.
    plain = mask is None and bias is None and kv_lens is None and left < 0 and right < 0
    plain = plain and not (is_causal and bottom_right and q.shape[-2] != k.shape[-2])
    additive = None
    if not plain:
        hidden = _hidden(q, k, mask, kv_lens, is_causal, bottom_right, left, right)
        # Scores must be those that lse was computed from: a bias of another type is not rounded to that of q.
        dtype = q.dtype if bias is None or bias.dtype == q.dtype else lse.dtype
        additive = torch.zeros((), dtype=dtype) if bias is None else bias.to(dtype)
        if hidden is not None:
            additive = torch.where(hidden, torch.full((), float("-inf"), dtype=dtype), additive)
        shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        additive = additive.expand(shape).contiguous()
    # A row without a visible key has the lse -infinity; PyTorch's backward expects 0 there.
    lse = torch.where(lse == float("-inf"), torch.zeros((), dtype=lse.dtype), lse)
    grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, q, k, v, out, lse, 0.0, is_causal and plain, attn_mask=additive, scale=scale
    )
    return (*grads, *none)


torch.library.register_autograd("attune::attention", _backward, setup_context=_setup_context)


def _append_autograd(keyset: Any, *args: Any, **kwargs: Any) -> Tensor:
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*args, **kwargs):
        raise RuntimeError(
            "attune::attention_append has no backward: call it under torch.no_grad(), or detach its arguments"
        )
    with torch._C._AutoDispatchBelowAutograd():
        return attention_append.default.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)


def _append_in_place(keyset: Any, *args: Any, **kwargs: Any) -> Tensor:
    """The caches change in place: what has saved one for its own backward must notice."""
    changed = [t for t in args[3:7] if t is not None]
    if not torch.is_inference_mode_enabled() and any(t.is_inference() for t in changed):
        raise RuntimeError(
            "attune::attention_append: a cache is an inference tensor, which changes within inference_mode only; "
            "clone it, or call within torch.inference_mode()"
        )
    torch._C._increment_version([t for t in changed if not t.is_inference()])
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return attention_append.default.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args, **kwargs)


# ---- Autocast ----


def _cast(*tensors: Optional[Tensor]) -> List[Optional[Tensor]]:
    dtype = torch.get_autocast_dtype("cpu")
    wanted = (torch.float32, torch.float16, torch.bfloat16)
    return [t.to(dtype) if t is not None and t.dtype in wanted else t for t in tensors]


def _attention_autocast(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> _Outputs:
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return attention(*_cast(q, k, v), *args, **kwargs)


def _append_autocast(
    q: Tensor, k_new: Tensor, v_new: Tensor, k_cache: Tensor, v_cache: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        (narrow,) = _cast(q)
        assert narrow is not None  # as q
        dtype = narrow.dtype if k_cache.dtype == torch.int8 else k_cache.dtype
        return attention_append(narrow, k_new.to(dtype), v_new.to(dtype), k_cache, v_cache, *args, **kwargs)


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_library = torch.library.Library("attune", "FRAGMENT")
_library.impl("attention_append", _append_autograd, "Autograd", with_keyset=True)
_library.impl("attention_append", _append_in_place, "ADInplaceOrView", with_keyset=True)
_library.impl("attention", _attention_autocast, "AutocastCPU")
_library.impl("attention_append", _append_autocast, "AutocastCPU")


# ---- vmap: the mapped dim becomes a part of the batch ----


def _fold(tensor: Optional[Tensor], dim: Optional[int], size: int, rank: int, batch: int) -> Optional[Tensor]:
    """[n, b, …] as [n * b, …]: with the mapped dim in front, repeated if there is none, and `rank` dims after it."""
    if tensor is None:
        return None
    tensor = tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    while tensor.dim() < rank + 1:
        tensor = tensor.unsqueeze(1)
    tensor = tensor.expand(size, batch, *tensor.shape[2:])
    return tensor.reshape(size * batch, *tensor.shape[2:])


def _attention_vmap(
    info: Any, in_dims: Tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any
) -> Tuple[_Outputs, Tuple[int, int]]:
    names = ["attn_mask", "attn_bias", "kv_lens", "sinks"]
    optional = [args[i] if i < len(args) else kwargs.get(n) for i, n in enumerate(names)]
    dims = list(in_dims) + [None] * (7 - len(in_dims))
    if isinstance(dims[6], int):
        raise RuntimeError("attune::attention: sinks cannot be mapped by vmap")
    n = info.batch_size
    batch = q.shape[0 if dims[0] is None else (1 if dims[0] == 0 else 0)]
    folded = [_fold(t, d, n, 4, batch) for t, d in zip((q, k, v), dims)]
    masks = [_fold(t, d, n, 4, batch) for t, d in zip(optional[:2], dims[3:5])]
    lens = _fold(optional[2], dims[5], n, 1, batch)
    rest = {key: value for key, value in kwargs.items() if key not in names}
    out, lse = attention(*folded, *masks, lens, optional[3], *args[4:], **rest)
    return (out.unflatten(0, (n, batch)), lse.unflatten(0, (n, batch))), (0, 0)


torch.library.register_vmap("attune::attention", _attention_vmap)


def _append_vmap(info: Any, in_dims: Tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "attune::attention_append writes into its caches: vmap cannot map it; call it with a larger batch"
    )


torch.library.register_vmap("attune::attention_append", _append_vmap)
