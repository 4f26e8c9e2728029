"""Multi-head latent attention of transformers' models (DeepSeek-V2 and V3 and those that share their code) by attune,
and its way back."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch
from transformers import cache_utils
from transformers.cache_utils import DynamicLayer

from .._mla import MLA
from ..torch import runner
from ._attention import _warn_once
from ._masks import hint_of
from ._stats import count_attune, count_stock

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ORIGINS = (
    ("deepseek_v3", "DeepseekV3Attention"),
    ("deepseek_v2", "DeepseekV2Attention"),
    ("deepseek_v32", "DeepseekV32Attention"),
)
_ROTARY = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_emb")
# Layers of a cache that keep latents; those of an index keep its keys, too.
_LAYERS = (DynamicLayer, getattr(cache_utils, "DynamicIndexedLayer", DynamicLayer))
_LEAST_ROOM = 256  # tokens that a cache grows by

_replaced: Dict[type, Callable] = {}
_blocks: "weakref.WeakKeyDictionary[torch.nn.Module, _Block]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class _Block(NamedTuple):
    """A packed copy of a module's weights, and the weights that it is a copy of."""

    mla: MLA
    weights: Tuple[Tuple[int, int], ...]  # addresses and versions


def replace_mla(model: torch.nn.Module) -> int:
    """Lets attune compute this model's blocks of multi-head latent attention: projections, attention, and W_O.

        model = AutoModelForCausalLM.from_pretrained("deepseek-ai/DeepSeek-V2-Lite")
        attune.transformers.replace_mla(model)

    Returns the number of modules with the forward of DeepSeek-V2 or V3, which other models share; 0: the model has
    none, or transformers computes it in another way. It changes all models of the same architecture, which share the
    function. The first call of a module packs a copy of its weights, and later calls pack again after a change. Calls
    that attune does not support run as stock, and stats() counts them by reason. restore_mla() ends it.
    """
    count = 0
    for module in model.modules():
        kind = type(module)
        with _lock:
            if kind not in _replaced and _is_known(kind):
                _replaced[kind] = kind.forward
                kind.forward = _forward(kind.forward)
            count += kind in _replaced
    return count


def restore_mla() -> None:
    """Gives all models transformers' own forward back, and frees the packed weights."""
    with _lock:
        for kind, stock in _replaced.items():
            kind.forward = stock  # type: ignore[attr-defined]
        _replaced.clear()
        _blocks.clear()


# ---- Which modules ----


def _code(function: Any) -> Any:
    code = getattr(inspect.unwrap(function), "__code__", None) if function else None
    return (code.co_code, code.co_names) if code else None


def _is_known(kind: type) -> bool:
    """Models that are derived from DeepSeek's have copies of its functions."""
    home = sys.modules.get(kind.__module__)
    if not hasattr(kind, "expand_kv") or home is None:
        return False
    for name, attention in _ORIGINS:
        try:
            other = __import__(f"transformers.models.{name}.modeling_{name}", fromlist=[attention])
        except ImportError:
            continue
        origin = getattr(other, attention, None)
        same = all(_code(getattr(kind, part, None)) == _code(getattr(origin, part, None))
                   for part in ("forward", "expand_kv"))  # fmt: skip
        if same and all(_code(getattr(home, part, None)) == _code(getattr(other, part, None)) for part in _ROTARY):
            return True
    return False


# ---- A call ----


def _forward(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def forward(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Tuple[Any, ...]:
        if torch.compiler.is_compiling():
            return stock(self, hidden_states, *args, **kwargs)
        reason = _unsupported(self, hidden_states, args, kwargs)
        if reason is None:
            try:
                out = _compute(self, hidden_states, kwargs)
                count_attune("mla")
                return out, None
            except RuntimeError as error:
                reason = f"error: {error}"
                _warn_once(error)
        count_stock(reason)
        return stock(self, hidden_states, *args, **kwargs)

    return forward


def _unsupported(module: Any, x: torch.Tensor, args: tuple, kwargs: Dict[str, Any]) -> Optional[str]:
    if args or kwargs.get("position_embeddings") is None:
        return "mla: arguments by position"
    if torch.is_grad_enabled() and (x.requires_grad or any(one.requires_grad for one in module.parameters())):
        return "mla: gradients"
    if module.training and module.attention_dropout:
        return "mla: dropout"
    if kwargs.get("output_attentions") or getattr(module.config, "output_attentions", False):
        return "mla: output_attentions"
    dtypes = {x.dtype, *(one.dtype for one in _weights_of(module).values())}
    if not x.is_cpu or torch.is_autocast_enabled("cpu") or x.dtype not in _DTYPES:
        return "mla: device, autocast or dtype"
    if len(dtypes) > 1:
        return "mla: mixed dtypes"
    if any(one._forward_hooks or one._forward_pre_hooks for one in module.children()):
        return "mla: hooks"
    past = _past(module, kwargs.get("past_key_values"))
    if past is None:
        return f"mla: cache {type(kwargs['past_key_values']).__name__}"
    tokens = x.shape[1]
    if _has_index(module) and kwargs.get("attention_mask") is None:
        return "mla: mask"
    if not _is_causal(module, kwargs.get("attention_mask"), tokens, past + tokens):
        return "mla: mask"
    return None


def _layer(module: Any, cache: Any) -> Any:
    """The layer of a dynamic cache, which keeps latents; None: another kind of cache."""
    if getattr(cache, "offloading", True):
        return None
    kind = getattr(cache, "layer_class_to_replicate", None)
    while kind is DynamicLayer and len(cache.layers) <= module.layer_idx:
        cache.layers.append(kind())
    layer = cache.layers[module.layer_idx] if module.layer_idx < len(cache.layers) else None
    return layer if type(layer) in _LAYERS else None


def _past(module: Any, cache: Any) -> Optional[int]:
    if cache is None:
        return 0
    layer = _layer(module, cache)
    return None if layer is None else layer.get_seq_length()


def _is_causal(module: Any, mask: Optional[torch.Tensor], tokens: int, keys: int) -> bool:
    """Whether each token attends to all tokens up to itself, and no others."""
    if mask is None:
        return tokens == 1 or (tokens == keys and module.config._attn_implementation != "eager")
    if mask.dim() != 4 or tuple(mask.shape[-2:]) != (tokens, keys):
        return False
    hint = hint_of(mask, tokens, keys)
    if hint is not None and hint.key_mask is None and hint.first == 0 and hint.keys == keys:
        return hint.window_left < 0 and hint.window_right < 0 and (hint.causal or tokens == 1)
    version = None if mask.is_inference() else mask._version
    known = getattr(mask, "_attune_causal", None)  # all layers get the same mask
    if known is None or version is None or known[0] != version:
        seen = torch.ones(tokens, keys, dtype=torch.bool).tril(keys - tokens)
        if mask.dtype == torch.bool:
            is_same = bool((mask == seen).all())
        else:
            hidden = mask <= torch.finfo(mask.dtype).min
            is_same = bool(torch.where(seen, mask == 0, hidden).all())
        known = version, is_same
        setattr(mask, "_attune_causal", known)
    return known[1]


def _has_index(module: Any) -> bool:
    """DeepSeek-V3.2: a module within the block chooses the keys of each token."""
    return hasattr(module, "indexer")


def _weights_of(module: Any) -> Dict[str, torch.Tensor]:
    """Of the block alone."""
    return {name: one for name, one in module.named_parameters() if not name.startswith("indexer.")}


def _packable(module: Any, weights: Dict[str, torch.Tensor]) -> Tuple[Dict[str, torch.Tensor], bool]:
    """The weights, and whether rotated columns are pairs of neighbours. DeepSeek-V3's function rotates neighbours and
    gives halves, which the cache then holds; so neighbours of the weights are taken apart. That of V2 gives neighbours.
    """
    tensors = {name: one.detach() for name, one in weights.items()}
    is_apart = True if _has_index(module) else getattr(module.config, "rope_interleave", None)
    if not is_apart:
        return tensors, is_apart is None
    rope, head = module.qk_rope_head_dim, module.qk_head_dim
    apart = torch.cat([torch.arange(0, rope, 2), torch.arange(1, rope, 2)])
    of_kv = torch.cat([torch.arange(module.kv_lora_rank), module.kv_lora_rank + apart])
    of_head = torch.cat([torch.arange(module.qk_nope_head_dim), module.qk_nope_head_dim + apart])
    of_q = (torch.arange(module.num_heads)[:, None] * head + of_head).flatten()
    order = {"q_proj": of_q, "q_b_proj": of_q, "kv_a_proj_with_mqa": of_kv}
    for name, one in tensors.items():
        if name.split(".")[0] in order:
            tensors[name] = one[order[name.split(".")[0]]]
    return tensors, False


def _block_of(module: Any) -> MLA:
    weights = _weights_of(module)
    now = tuple((one.data_ptr(), 0 if one.is_inference() else one._version) for one in weights.values())
    block = _blocks.get(module)
    if block is None or block.weights != now:
        with torch.no_grad():
            tensors, is_interleaved = _packable(module, weights)
            mla = MLA(
                {name: one.contiguous() for name, one in tensors.items()}, num_heads=module.num_heads,
                qk_nope_head_dim=module.qk_nope_head_dim, qk_rope_head_dim=module.qk_rope_head_dim,
                softmax_scale=module.scaling, rope_interleaved=is_interleaved,
                norm_eps=module.kv_a_layernorm.variance_epsilon, has_ids=_has_index(module),
            )  # fmt: skip
        block = _blocks[module] = _Block(mla, now)
    return block.mla


def _room(layer: Any, batch: int, past: int, new: int, rank: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Rows [batch, more than past + new, width], of which the layer's keys and values are the first columns and the
    others. A layer that was changed otherwise is copied, and so is one that is a copy: it has the rows of another."""
    rows, owner = layer.__dict__.get("_attune_rows", (None, 0)) if layer is not None else (None, 0)
    rows = rows if owner == id(layer) else None
    if rows is not None and rows.shape[0] == batch and rows.shape[1] >= past + new and rows.dtype == like.dtype:
        start = rows.data_ptr()
        if not past or (
            layer.keys.data_ptr() == start
            and layer.values.data_ptr() == start + rank * rows.element_size()
            and layer.keys.stride()[0::2] == layer.values.stride()[0::2] == (rows.stride(0), width)
        ):
            return rows
    more = 0 if layer is None else max(_LEAST_ROOM, (past + new) // 4)
    rows = like.new_empty(batch, past + new + more, width)
    if past:
        rows[:, :past, :rank] = layer.keys[:, 0]
        rows[:, :past, rank:] = layer.values[:, 0]
    return rows


def _angles(position_embeddings: Any, batch: int) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """cos and sin of the tokens, a row each, and the row of each token."""
    if isinstance(position_embeddings, torch.Tensor):
        cos, sin = position_embeddings.real, position_embeddings.imag
        half = cos.shape[-1]
    else:
        cos, sin = position_embeddings
        half = cos.shape[-1] // 2
    rows = cos.shape[0] * cos.shape[1]
    at = torch.arange(rows, dtype=torch.int32)
    if cos.shape[0] < batch:
        at = at.repeat(batch)
    cos, sin = (one[..., :half].float().reshape(rows, half).contiguous() for one in (cos, sin))
    return cos, sin, at


def _lists(module: Any, x: torch.Tensor, kwargs: Dict[str, Any], past: int) -> Dict[str, torch.Tensor]:
    """The keys that the module's index chooses. Its lists are filled up with hidden keys, which come off here."""
    q_resid = module.q_a_layernorm(module.q_a_proj(x))
    chosen = module.indexer(x, q_resid, kwargs["position_embeddings"], kwargs["attention_mask"][:, 0],
                            kwargs.get("position_ids"), past_key_values=kwargs.get("past_key_values"))  # fmt: skip
    batch, new, count = chosen.shape
    if past + new <= count:
        return {}  # all keys that a token attends to
    seen = past + 1 + torch.arange(new, dtype=torch.int32)
    first = torch.arange(count, dtype=torch.int32)
    ids = torch.where(seen[:, None] <= count, first, chosen.to(torch.int32)).contiguous()
    return dict(kv_ids=ids, kv_id_lens=seen.clamp(max=count).repeat(batch, 1))


def _compute(module: Any, x: torch.Tensor, kwargs: Dict[str, Any]) -> torch.Tensor:
    cache = kwargs.get("past_key_values")
    layer = None if cache is None else _layer(module, cache)
    before = getattr(layer, "indexer_keys", None)
    try:
        return _run(module, x, kwargs, layer)
    except RuntimeError:
        if _has_index(module) and layer is not None:  # stock appends them again
            layer.indexer_keys, layer.is_indexer_initialized = before, before is not None
        raise


def _run(module: Any, x: torch.Tensor, kwargs: Dict[str, Any], layer: Any) -> torch.Tensor:
    mla = _block_of(module)
    batch, new = x.shape[:2]
    past = 0 if layer is None else layer.get_seq_length()
    rank = module.kv_lora_rank
    rows = _room(layer, batch, past, new, rank, mla.width, x)
    cos, sin, positions = _angles(kwargs["position_embeddings"], batch)
    lens = torch.full((batch,), past + new, dtype=torch.int32)
    lists: Dict[str, Any] = _lists(module, x, kwargs, past) if _has_index(module) else {}
    out = mla.run(x.detach().contiguous(), rows, cos, sin, kv_lens=lens, positions=positions, runner=runner(), **lists)
    if layer is not None:
        if not layer.is_initialized:
            layer.lazy_initialization(x, x)
        layer._attune_rows = rows, id(layer)
        layer.keys = rows[:, None, : past + new, :rank]
        layer.values = rows[:, None, : past + new, rank:]
    return out
