"""attune::linear_attention and attune::causal_conv: attune's functions as operators, which torch.compile and
torch.export keep in the graph. They run on PyTorch's threads and compute no gradients."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from .._conv import causal_conv as _causal_conv
from .._linear import linear_attention as _linear_attention
from . import _native

_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor? decay, Tensor? beta, Tensor(a!) state, str rule='gated_delta', "
    "float? scale=None, float qk_norm_eps=0.0, Tensor? cu_seqlens=None, Tensor? state_ids=None, "
    "Tensor? norm_weights=None, float out_norm_eps=1e-6, Tensor? gate=None, str gate_function='silu', "
    "bool reproducible=False) -> Tensor"
)


@torch.library.custom_op("attune::linear_attention", mutates_args=("state",), device_types="cpu", schema=_SCHEMA)
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, decay: Optional[Tensor], beta: Optional[Tensor], state: Tensor,
    rule: str = "gated_delta", scale: Optional[float] = None, qk_norm_eps: float = 0.0,
    cu_seqlens: Optional[Tensor] = None, state_ids: Optional[Tensor] = None, norm_weights: Optional[Tensor] = None,
    out_norm_eps: float = 1e-6, gate: Optional[Tensor] = None, gate_function: str = "silu",
    reproducible: bool = False,
) -> Tensor:  # fmt: skip
    out, _ = _linear_attention(
        q, k, v, decay=decay, beta=beta, state=state, rule=rule, scale=scale, qk_norm_eps=qk_norm_eps,
        cu_seqlens=cu_seqlens, state_ids=state_ids, norm_weights=norm_weights, out_norm_eps=out_norm_eps, gate=gate,
        gate_function=gate_function, reproducible=reproducible, runner=_native.Runner(),
    )  # fmt: skip
    return out


@linear_attention.register_fake
def _fake(q: Tensor, k: Tensor, v: Tensor, *args: object, **kwargs: object) -> Tensor:
    return q.new_empty((*q.shape[:-2], max(q.shape[-2], v.shape[-2]), v.shape[-1]))


_CONV_SCHEMA = (
    "(Tensor x, Tensor weights, Tensor? bias, Tensor(a!) state, bool has_silu=False, int dilation=1, "
    "Tensor? cu_seqlens=None, Tensor? state_ids=None) -> Tensor"
)


@torch.library.custom_op("attune::causal_conv", mutates_args=("state",), device_types="cpu", schema=_CONV_SCHEMA)
def causal_conv(
    x: Tensor, weights: Tensor, bias: Optional[Tensor], state: Tensor, has_silu: bool = False, dilation: int = 1,
    cu_seqlens: Optional[Tensor] = None, state_ids: Optional[Tensor] = None,
) -> Tensor:  # fmt: skip
    out, _ = _causal_conv(
        x, weights, bias=bias, state=state, has_silu=has_silu, dilation=dilation, cu_seqlens=cu_seqlens,
        state_ids=state_ids, runner=_native.Runner(),
    )  # fmt: skip
    return out


@causal_conv.register_fake
def _conv_fake(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    return x.new_empty(x.shape)
