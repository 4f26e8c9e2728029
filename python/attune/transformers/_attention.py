"""The attention function of the implementation "attune", and its way back to stock."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Optional, Tuple

import torch
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from .._attention import attention
from . import _ops
from ._codes import CachedTensor
from ._masks import Hint, hint_of
from ._stats import count_attune, count_stock

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

# Arguments that carry nothing for attention on dense tensors: positions are in the mask, sizes in the tensors. Stock
# SDPA ignores them, too. sliding_window is among them because the mask holds the window already, and the cache because
# key and value come from it: it is past_key_values up to transformers 5.23, and cache from 5.24 on.
_IGNORED = frozenset(
    "cache_position cu_seq_lens_k cu_seq_lens_q cu_seqlens deterministic layer_idx max_length_k max_length_q "
    "num_items_in_batch output_hidden_states output_router_logits past_key_values position_embeddings position_ids "
    "return_dict seq_idx sliding_window use_cache".split()
)
# Models with sparse attention pass their choice of keys as `indices` to implementations other than "eager" and "sdpa".
# Of more queries than these a mask of the chosen keys is faster than a list for each query.
_MOST_LISTS = 16

_warned = False


def attune_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[torch.Tensor] = None,
    position_bias: Optional[torch.Tensor] = None,
    **kwargs: object,
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Attention of transformers' interface: query [B, H, L, D], key and value [B, Hkv, T, D] to [B, L, H, D].

    As in transformers, causality applies only without a mask and with more than one query; windows are in the mask. A
    call that attune does not support runs as stock; ``stats()`` names the reason.
    """
    if kwargs.get("block_indices") is not None:
        raise NotImplementedError(
            f"{type(module).__name__} passes its choice of keys as 'block_indices' and not as a mask, which the "
            f"attention implementation 'attune' does not know; use 'sdpa' or 'eager' for this model"
        )
    choice: Any = kwargs.pop("indices", None)
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    if causal and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{type(module).__name__} asks for causal attention of {query.shape[2]} queries over {key.shape[2]} keys "
            f"without a mask, which does not say where the queries stand; pass a mask"
        )
    call = _Call(module, query, key, value, attention_mask, scaling, softcap, s_aux, position_bias, causal)
    if choice is not None:
        call.choose(choice)
    reason = _unsupported(call, dropout, kwargs)
    if reason is None:
        try:
            return call.run(), None
        except RuntimeError as error:
            reason = f"error: {error}"
            _warn_once(error)
    count_stock(reason)
    return _stock(call, dropout, is_causal, kwargs)


def _warn_once(error: RuntimeError) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"attune failed, so attention runs as stock: {error}", RuntimeWarning, stacklevel=3)


class _Call:
    """The arguments of one call."""

    def __init__(self, module, query, key, value, mask, scaling, soft_cap, sinks, position_bias, causal):
        self.module, self.query, self.key, self.value = module, query, key, value
        self.mask, self.scaling, self.soft_cap, self.sinks = mask, scaling, soft_cap, sinks
        self.position_bias, self.causal = position_bias, causal
        self.choice: Optional[torch.Tensor] = None

    def choose(self, choice: torch.Tensor) -> None:
        """Queries see these keys alone, [batch, queries, keys]: as a list where they are few, and in the mask."""
        keys, queries = self.key.shape[2], self.query.shape[2]
        if choice.shape[-1] >= keys:
            return  # all of them
        hidden = torch.ones(*choice.shape[:2], keys, dtype=torch.bool).scatter_(-1, choice.long(), False)[:, None]
        if self.mask is None and self.causal:
            hidden |= torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
        if self.mask is None:
            self.mask = ~hidden
        elif self.mask.dtype == torch.bool:
            self.mask = self.mask & ~hidden
        else:
            self.mask = self.mask.masked_fill(hidden, torch.finfo(self.mask.dtype).min)
        self.causal = False
        if queries <= _MOST_LISTS and self.mask.dtype == torch.bool and self.mask.shape[1] == 1:
            self.choice = choice

    def _run_listed(self, choice: torch.Tensor) -> torch.Tensor:
        seen = self.mask[:, 0].expand(choice.shape[0], -1, -1).gather(-1, choice.long())
        order = (~seen).to(torch.uint8).argsort(dim=-1, stable=True)  # hidden keys come last
        out = attention(
            self.query, self.key, self.value, kv_ids=choice.gather(-1, order).to(torch.int32),
            kv_id_lens=seen.sum(-1, dtype=torch.int32), softmax_scale=self.scaling,
            logits_soft_cap=self.soft_cap or None, max_threads=torch.get_num_threads(),
        )  # fmt: skip
        count_attune("listed")
        return out

    def run(self) -> torch.Tensor:
        if self.choice is not None and self.sinks is None and self.position_bias is None:
            if not isinstance(self.key, CachedTensor):
                return self._run_listed(self.choice).transpose(1, 2).contiguous()
        hint = None
        if self.mask is not None and self.mask.dtype == torch.bool:
            hint = hint_of(self.mask, self.query.shape[2], self.key.shape[2])
        out = None
        if isinstance(self.key, CachedTensor) and self._bias() is None:
            out = self._run_cached(hint)
        if out is None:
            out = self._run_dense(hint)
        return out.transpose(1, 2).contiguous()

    def _bias(self) -> Optional[torch.Tensor]:
        """The float mask, with the position bias if there is one."""
        if self.mask is not None and self.mask.dtype != torch.bool:
            return self.mask if self.position_bias is None else self.mask + self.position_bias
        return self.position_bias

    def _common(self) -> dict:
        sinks = None if self.sinks is None else self.sinks.reshape(-1).to(torch.float32)
        return dict(sinks=sinks, logits_soft_cap=float(self.soft_cap or 0.0), softmax_scale=self.scaling)

    def _run_dense(self, hint: Optional[Hint]) -> torch.Tensor:
        key, value = self.key, self.value
        bias = self._bias()
        arguments = dict(self._common(), attn_bias=bias, is_causal=self.causal)
        kind = "none" if bias is None else "bias"
        if hint is not None:
            if hint.keys - hint.first != key.shape[2]:
                key, value = key[:, :, hint.first : hint.keys], value[:, :, hint.first : hint.keys]
            arguments.update(_by_hint(hint))
            kind = _kind(hint, kind)
            if hint.kv_lens is None:
                arguments["attn_mask"] = hint.key_mask
            else:
                arguments["kv_lens"] = hint.kv_lens
            if bias is not None:
                arguments["attn_bias"] = bias[..., hint.first : hint.keys]
        elif self.mask is not None and self.mask.dtype == torch.bool:
            arguments["attn_mask"], kind = self.mask, "mask"
        out, _ = _ops.attention(self.query, key, value, **arguments)
        count_attune(kind)
        return out

    def _run_cached(self, hint: Optional[Hint]) -> Optional[torch.Tensor]:
        """Attention on a cache of another type, which takes the new rows in the same call."""
        arguments = dict(self._common(), is_causal=self.causal)
        first = 0
        if hint is not None:
            if hint.keys != self.key.shape[2] or (hint.causal and not _at_the_end(hint, self.query.shape[2])):
                return None
            first = hint.first
            arguments.update(_by_hint(hint), attn_mask=hint.key_mask)
            del arguments["causal_align"]
        elif self.mask is not None:
            arguments["attn_mask"] = self.mask
        return self.key.attend(self.query, self.value, first, arguments)


def _at_the_end(hint: Hint, q_length: int) -> bool:
    return hint.bottom_right or q_length == hint.keys - hint.first


def _by_hint(hint: Hint) -> dict:
    return dict(
        is_causal=hint.causal,
        causal_align="bottom_right" if hint.bottom_right else "top_left",
        window_left=hint.window_left,
        window_right=hint.window_right,
    )


def _kind(hint: Hint, kind: str) -> str:
    if hint.kv_lens is not None:
        return "lengths"
    if hint.key_mask is not None:
        return "keys"
    return "window" if hint.window_left >= 0 or hint.window_right >= 0 or hint.first else kind


def _unsupported(call: _Call, dropout: float, kwargs: dict) -> Optional[str]:
    """The reason why a call runs as stock, or None."""
    query, key, value = call.query, call.key, call.value
    if kwargs.get("output_attentions"):
        return "output_attentions"
    if dropout:
        return "dropout"
    if not isinstance(kwargs.get("cache"), (Cache, type(None))):
        return "paged cache"
    for name, argument in kwargs.items():
        if argument is not None and name not in _IGNORED and name not in ("output_attentions", "cache"):
            return f"argument {name}"
    if torch.jit.is_tracing():
        return "torch.jit tracing"
    if not (query.is_cpu and key.is_cpu and value.is_cpu):
        return f"device {query.device.type}"
    if query.dtype not in _DTYPES or not query.dtype == key.dtype == value.dtype:
        return f"types {query.dtype}, {key.dtype}, {value.dtype}"
    if query.dim() != 4 or query.shape[0] != key.shape[0] or 0 in query.shape or 0 in key.shape:
        return "shapes"
    if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1]:
        return "numbers of heads"
    if not (_is_dense(query) and _is_dense(key) and _is_dense(value)):
        return "innermost strides"
    if call.sinks is not None and call.sinks.numel() != query.shape[1]:
        return "shape of the sinks"
    return _unsupported_mask(call) or _unsupported_gradients(call)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.stride(3) == 1 or tensor.shape[3] == 1


def _unsupported_mask(call: _Call) -> Optional[str]:
    for name, mask in (("mask", call.mask), ("position bias", call.position_bias)):
        if mask is None:
            continue
        if mask.dim() != 4 or mask.device.type != "cpu":
            return f"{name} of {mask.dim()} dimensions on {mask.device.type}"
        if mask.dtype not in (torch.bool, call.query.dtype):
            return f"{name} of type {mask.dtype}"
        sizes = (call.query.shape[0], call.query.shape[1], call.query.shape[2], call.key.shape[2])
        if any(have not in (1, want) for have, want in zip(mask.shape, sizes)):
            return f"{name} of another shape"
        if mask.stride(3) > 1 and mask.shape[3] != 1:
            return f"innermost stride of the {name}"
    return None


def _unsupported_gradients(call: _Call) -> Optional[str]:
    if not torch.is_grad_enabled():
        return None
    tensors = (call.query, call.key, call.value, call.sinks, call.position_bias)
    needed = any(tensor is not None and tensor.requires_grad for tensor in tensors)
    special = call.soft_cap is not None or call.sinks is not None or call.position_bias is not None
    if needed and (special or isinstance(call.key, CachedTensor)):
        return "gradients in a call with a cap, sinks, a bias or keys of AttuneCache"
    return None


def _stock(call: _Call, dropout: float, is_causal: Optional[bool], kwargs: dict) -> Any:
    """Stock attention: the model's own eager function where PyTorch's SDPA lacks something, else SDPA."""
    eager = getattr(sys.modules[type(call.module).__module__], "eager_attention_forward", None)
    lacks = call.soft_cap is not None or call.sinks is not None or kwargs.get("output_attentions")
    if not lacks:
        return sdpa_attention_forward(
            call.module, call.query, call.key, call.value, call.mask, dropout=dropout, scaling=call.scaling,
            is_causal=is_causal, position_bias=call.position_bias, **kwargs,
        )  # fmt: skip
    if eager is None:
        raise NotImplementedError(
            f"{type(call.module).__name__} has no eager attention, which a soft cap, sinks and output_attentions need "
            f"where attune does not support the call"
        )
    extra = dict(kwargs)
    for name, argument in (("softcap", call.soft_cap), ("s_aux", call.sinks), ("position_bias", call.position_bias)):
        if argument is not None:
            extra[name] = argument
    scaling = call.scaling if call.scaling is not None else call.query.shape[-1] ** -0.5
    return eager(
        call.module, call.query, call.key, call.value, _float_mask(call), scaling=scaling, dropout=dropout, **extra
    )


def _float_mask(call: _Call) -> Optional[torch.Tensor]:
    """The mask as eager functions add it to the scores."""
    mask = call.mask
    if mask is None and call.causal:
        size = call.query.shape[2]
        mask = torch.ones(1, 1, size, size, dtype=torch.bool, device=call.query.device).tril()
    if mask is None or mask.dtype != torch.bool:
        return mask
    zero = torch.zeros((), dtype=call.query.dtype, device=mask.device)
    return torch.where(mask, zero, torch.finfo(call.query.dtype).min)
