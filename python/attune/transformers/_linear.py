"""The gated delta rule of transformers' models (Qwen3-Next, Qwen3.5, Olmo Hybrid …) by attune, and its way back."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from .._linear import linear_attention
from ..torch import runner
from ._attention import _warn_once
from ._stats import count_attune, count_stock

_CHUNK, _RECURRENT = "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_EPS = 1e-6  # of the functions' own norms

_replaced: Dict[Tuple[str, str], Callable] = {}
_lock = threading.Lock()


def replace_linear_attention(model: torch.nn.Module) -> int:
    """Lets attune compute the gated delta rule in this model's layers of linear attention, prompts and tokens alike.

        model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-Next-80B-A3B-Instruct", attn_implementation="attune")
        attune.transformers.replace_linear_attention(model)

    Returns the number of modules with such layers; 0: the model has none, or transformers has the rule elsewhere. It
    changes all models of the same architecture, which share the functions. Calls that attune does not support run as
    stock, and stats() counts them by reason. restore_linear_attention() ends it.
    """
    layers = 0
    for module in model.modules():
        home = sys.modules.get(type(module).__module__)
        names = _names_in(type(module))
        if home is None or not names:
            continue
        layers += 1
        with _lock:
            for name in names:
                if (home.__name__, name) not in _replaced:
                    stock = getattr(home, name)
                    _replaced[home.__name__, name] = stock
                    setattr(home, name, _chunk(stock) if name == _CHUNK else _recurrent(stock))
    return layers


def restore_linear_attention() -> None:
    """Gives all models transformers' own functions back."""
    with _lock:
        for (home, name), stock in _replaced.items():
            setattr(sys.modules[home], name, stock)
        _replaced.clear()


def _names_in(kind: type) -> Tuple[str, ...]:
    """The functions that a layer's forward calls by name, in its own module."""
    forward = getattr(kind.__dict__.get("forward"), "__wrapped__", kind.__dict__.get("forward"))
    code = getattr(forward, "__code__", None)
    home = sys.modules.get(kind.__module__)
    return tuple(name for name in (_CHUNK, _RECURRENT) if code and name in code.co_names and hasattr(home, name))


def _chunk(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def rule(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
        chunk_size: int = 64, initial_state: Optional[torch.Tensor] = None, output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False, **kwargs: Any,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:  # fmt: skip
        again = functools.partial(stock, chunk_size=chunk_size, **kwargs)
        return _run(
            again, kwargs, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel
        )

    return rule


def _recurrent(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def rule(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
        initial_state: Optional[torch.Tensor] = None, output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False, **kwargs: Any,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:  # fmt: skip
        again = functools.partial(stock, **kwargs)
        return _run(
            again, kwargs, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel
        )

    return rule


def _unsupported(tensors: Tuple[torch.Tensor, ...], kwargs: Dict[str, Any]) -> Optional[str]:
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        return "linear: gradients"
    if any(not one.is_cpu for one in tensors):
        return "linear: not on the CPU"
    if len({one.dtype for one in tensors[:3]}) > 1 or any(one.dtype not in _DTYPES for one in tensors):
        return f"linear: dtype {', '.join(sorted({str(one.dtype)[6:] for one in tensors}))}"
    for name in ("cu_seqlens", "seq_idx"):
        if kwargs.get(name) is not None:
            return f"linear: {name}"
    return None


def _run(
    stock: Callable, kwargs: Dict[str, Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
    beta: torch.Tensor, initial_state: Optional[torch.Tensor], output_final_state: bool, has_norm: bool,
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:  # fmt: skip
    reason = _unsupported((q, k, v, g, beta), kwargs)
    if reason is None:
        try:
            state = _state(q, v, initial_state)
            rows = [one if one.stride(-1) == 1 else one.contiguous() for one in (q, k, v)]
            out = _compute(rows, g, beta, state, _EPS if has_norm else 0.0)
            count_attune("linear")
            return out, state if output_final_state else None
        except RuntimeError as error:
            reason = f"error: {error}"
            _warn_once(error)
    count_stock(reason)
    return stock(
        q, k, v, g=g, beta=beta, initial_state=initial_state, output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=has_norm,
    )  # fmt: skip


def _compute(rows: List[torch.Tensor], g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor, eps: float) -> Any:
    """By the operator where a compiler traces, else without it: PyTorch's part of an operator of Python takes longer
    than a token."""
    if torch.compiler.is_compiling():
        return torch.ops.attune.linear_attention(*rows, g, beta, state, qk_norm_eps=eps)
    return linear_attention(*rows, decay=g, beta=beta, state=state, qk_norm_eps=eps, runner=runner())[0]


def _state(q: torch.Tensor, v: torch.Tensor, initial: Optional[torch.Tensor]) -> torch.Tensor:
    """A copy, as the caller's must stay: caches may go back to it."""
    if initial is None:
        return torch.zeros(v.shape[0], v.shape[2], q.shape[-1], v.shape[-1])
    return initial.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
