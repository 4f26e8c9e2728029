"""The index of transformers' models with sparse attention (DeepSeek-V3.2, GLM-5 …) by attune, and its way back."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, Callable, Dict, Optional

import torch

from .._index import index
from ..torch import runner
from ._attention import _warn_once
from ._mla import _code, _is_causal
from ._stats import count_attune, count_stock

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Whose forward is known, and the function that rotates q and k there.
_ORIGINS = {
    "DeepseekV32Indexer": ("deepseek_v32", "apply_rotary_pos_emb"),
    "GlmMoeDsaIndexer": ("glm_moe_dsa", "apply_rotary_pos_emb_interleave"),
}

_replaced: Dict[type, Callable] = {}
_lock = threading.Lock()


def replace_index(model: torch.nn.Module) -> int:
    """Lets attune choose the keys in this model's layers of sparse attention.

        model = AutoModelForCausalLM.from_pretrained("deepseek-ai/DeepSeek-V3.2", attn_implementation="attune")
        attune.transformers.replace_index(model)

    Returns the number of modules with the index of DeepSeek-V3.2 or GLM-5, which other models share; 0: the model has
    none, or transformers computes it in another way. It changes all models of the same architecture, which share the
    function. Calls that attune does not support, such as those with padding, run as stock, and stats() counts them by
    reason. restore_index() ends it.
    """
    count = 0
    for module in model.modules():
        kind = type(module)
        with _lock:
            rotary = None if kind in _replaced else _rotary_of(kind)
            if rotary is not None:
                _replaced[kind] = kind.forward
                kind.forward = _forward(kind.forward, rotary)
            count += kind in _replaced
    return count


def restore_index() -> None:
    """Gives all models transformers' own forward back."""
    with _lock:
        for kind, stock in _replaced.items():
            kind.forward = stock  # type: ignore[attr-defined]
        _replaced.clear()


def _rotary_of(kind: type) -> Optional[Callable]:
    """The function that rotates, if the forward is one that is known: derived models have copies of both."""
    home = sys.modules.get(kind.__module__)
    if home is None or not hasattr(kind, "forward"):
        return None
    for origin, (name, rotary) in _ORIGINS.items():
        try:
            other = __import__(f"transformers.models.{name}.modeling_{name}", fromlist=[origin])
        except ImportError:
            continue
        pairs = ((kind.forward, getattr(getattr(other, origin, None), "forward", None)),
                 (getattr(home, rotary, None), getattr(other, rotary, None)))  # fmt: skip
        if all(_code(own) is not None and _code(own) == _code(known) for own, known in pairs):
            return getattr(home, rotary)
    return None


def _forward(stock: Callable, rotary: Callable) -> Callable:
    @functools.wraps(stock)
    def forward(
        self: Any, hidden_states: torch.Tensor, q_resid: torch.Tensor, position_embeddings: Any,
        attention_mask: torch.Tensor, position_ids: Any = None, past_key_values: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        if torch.compiler.is_compiling():
            return stock(self, hidden_states, q_resid, position_embeddings, attention_mask, position_ids,
                         past_key_values)
        reason = _unsupported(self, hidden_states, attention_mask)
        if reason is None:
            queries: Optional[_Queries] = None
            try:
                with torch.no_grad():
                    queries = _Queries(self, hidden_states, q_resid, position_embeddings, rotary)
                    chosen = queries.choose(past_key_values, attention_mask.shape[-1])
                count_attune("index")
                return chosen
            except RuntimeError as error:
                reason = f"error: {error}"
                _warn_once(error)
                if queries is not None and past_key_values is not None:
                    past_key_values = _Taken(past_key_values, queries.keys)
        count_stock(reason)
        return stock(self, hidden_states, q_resid, position_embeddings, attention_mask, position_ids, past_key_values)

    return forward


def _unsupported(module: Any, x: torch.Tensor, mask: torch.Tensor) -> Optional[str]:
    if not x.is_cpu or torch.is_autocast_enabled("cpu") or x.dtype not in _DTYPES:
        return "index: device, autocast or dtype"
    if mask.dim() != 3 or not _is_causal(module, mask[:, None], x.shape[1], mask.shape[-1]):
        return "index: mask"
    return None


class _Queries:
    """The queries and keys of a call, as the modules have them."""

    def __init__(self, module: Any, x: torch.Tensor, q_resid: torch.Tensor, angles: Any, rotary: Callable) -> None:
        self.module, self.x, self.keys = module, x, None
        width = module.qk_rope_head_dim
        q = module.wq_b(q_resid).view(*x.shape[:2], module.n_heads, module.head_dim)
        k = module.k_norm(module.wk(x)).unsqueeze(2)
        q_rotated, k_rotated = rotary(q[..., :width], k[..., :width], *angles, unsqueeze_dim=2)
        self.q = torch.cat([q_rotated, q[..., width:]], -1)
        self.k = torch.cat([k_rotated, k[..., width:]], -1).squeeze(2)

    def choose(self, cache: Any, length: int) -> torch.Tensor:
        """int32 [batch, tokens, ids]. Where a token attends to fewer keys, hidden ones fill the list up, each once."""
        module, k = self.module, self.k
        if cache is not None:
            k = self.keys = cache.update_indexer(k, module.layer_idx)
        if k.shape[1] != length:
            raise RuntimeError(f"there are {k.shape[1]} keys of the index, but the mask has {length}")
        count = min(module.index_topk, length)
        everything = torch.arange(count, dtype=torch.int32)
        if count == length:
            return everything.expand(*self.x.shape[:2], -1).contiguous()
        w = module.weights_proj(self.x.to(module.weights_proj.weight.dtype)).float()
        w = w * (module.n_heads**-0.5 * module.softmax_scale)
        ids, lens, _ = index(self.q.to(k.dtype), k, w, count, is_causal=True, runner=runner())
        return torch.where(ids < 0, everything, ids) if int(lens.min()) < count else ids


class _Taken:
    """A cache that has the keys of this call already."""

    def __init__(self, cache: Any, keys: Optional[torch.Tensor]) -> None:
        self.cache, self.keys = cache, keys

    def update_indexer(self, k: torch.Tensor, layer: int) -> torch.Tensor:
        return self.cache.update_indexer(k, layer) if self.keys is None else self.keys
