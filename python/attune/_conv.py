"""causal_conv: the convolution before linear attention."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Dict, List, Optional, Tuple

from ._context import Context, as_context
from ._errors import InvalidArgumentError
from ._lent import _lend, _Lent, _refuse_repeats
from ._library import check, lib
from ._linear import _FLOATS, _check_shape, _Handle, _lists, _name_of
from ._problem import _NAMES
from ._structs import ConvDesc, ConvStep, sized
from ._tensor import empty
from ._values import flag, integer, set_threads


@functools.lru_cache(maxsize=64)
def _handle_of(context: Context, fields: Tuple[Tuple[str, int], ...]) -> _Handle:
    desc = sized(ConvDesc)
    for name, value in fields:
        setattr(desc, name, value)
    return _Handle(context, desc, lib.attune_conv_create, lib.attune_conv_destroy)


def _set_view(view: Any, name: str, lent: _Lent) -> None:
    if any(stride < 0 for stride in lent.strides):
        raise InvalidArgumentError(f"{name} has negative strides")
    _refuse_repeats(lent, name, range(len(lent.shape)))
    view.data = lent.data
    view.batch = lent.strides[0] if len(lent.shape) == 3 else 0
    view.token, view.head = lent.strides[-2:]


def causal_conv(
    x: Any,
    weights: Any,
    *,
    bias: Any = None,
    state: Any = None,
    has_silu: bool = False,
    dilation: int = 1,
    cu_seqlens: Any = None,
    state_ids: Any = None,
    out: Any = None,
    max_threads: int = 0,
    runner: Any = None,
    cancel: Any = None,
    context: Context | None = None,
) -> Tuple[Any, Any]:
    """A depthwise causal convolution of NumPy arrays and torch CPU tensors, which models have before linear attention:
    (out, state).

        y = bias[c] + sum over i of weights[c, i] x[t - (taps - 1 - i) dilation, c]
        out[t, c] = y, or with has_silu y / (1 + exp(-y))

    x is [batch, length, channels]; with cu_seqlens [tokens, channels], where sequence b has the tokens from
        cu_seqlens[b] to before cu_seqlens[b + 1]. All tensors have one type, f32, bf16 or f16. Strides are free: pass
        [batch, channels, length] as a transposed view.
    weights: [channels, taps], contiguous. bias: [channels].
    state: [batch, (taps - 1) dilation, channels], the tokens before the first, with state_ids [states, …]. It is
        changed in place. None: zeros, in a new tensor.
    state_ids: [batch], the state of each sequence, all different.
    out: as x; allocated if it is not given, torch's if x is a torch tensor.
    max_threads, runner, cancel: as in attune.Attention.run.

    The tokens of a channel have the same bits however they are cut into calls, and whatever else is in the batch.
    """
    tensors = dict(x=x, weights=weights, bias=bias, state=state, out=out)
    lent = {name: _lend(value, name, name in ("state", "out")) for name, value in tensors.items() if value is not None}
    lists, _ = _lists({"state_ids": state_ids} if state_ids is not None else {}, cu_seqlens)
    lead, fields, batch = _describe(lent, lists, flag(has_silu, "has_silu"), integer(dilation, "dilation"))
    kept = (fields["taps"] - 1) * fields["dilation"]
    dtype, channels = _NAMES[fields["dtype"]], fields["channels"]
    if state is None:
        state = empty((x,), dtype, (batch, kept, channels))
        state[...] = 0
        lent["state"] = _lend(state, "state", True)
    if out is None:
        out = empty((x,), dtype, (*lead, channels))
        lent["out"] = _lend(out, "out", True)
    _check_shape("state", lent["state"], [None if "state_ids" in lists else batch, kept, channels])
    _check_shape("out", lent["out"], [*lead, channels])
    for name in lent:
        _name_of(lent[name], name, (dtype,))
    step = sized(ConvStep)
    step.batch, step.seq, step.num_states = batch, lead[-1] if len(lead) == 2 else 0, lent["state"].shape[0]
    for name in ("x", "out", *(["state"] if kept else [])):
        _set_view(getattr(step, name), name, lent[name])
    step.weights, step.bias = lent["weights"].data, lent["bias"].data if "bias" in lent else None
    step.cu_seqlens = lists["cu_seqlens"].data if "cu_seqlens" in lists else None
    step.state_ids = lists["state_ids"].data if "state_ids" in lists else None
    set_threads(step, max_threads, runner, cancel)
    handle = _handle_of(as_context(context), tuple(sorted(fields.items())))
    check(lib.attune_conv_run(handle.pointer, ctypes.byref(step)))
    return out, state


def _describe(
    lent: Dict[str, _Lent], lists: Dict[str, _Lent], has_silu: bool, dilation: int
) -> Tuple[List[int], Dict[str, int], int]:
    """The dims of x before its channels, the description, and how many sequences there are."""
    rank: List[Optional[int]] = [None] * (2 if "cu_seqlens" in lists else 3)
    _check_shape("x", lent["x"], rank)
    lead, channels = list(lent["x"].shape[:-1]), lent["x"].shape[-1]
    _check_shape("weights", lent["weights"], [channels, None])
    for name in ("weights", "bias"):
        if name in lent and any(n > 1 and step != size for n, step, size in
                                zip(lent[name].shape, lent[name].strides, [*lent[name].shape[1:], 1])):  # fmt: skip
            raise InvalidArgumentError(f"{name} is not contiguous")
    if "bias" in lent:
        _check_shape("bias", lent["bias"], [channels])
    batch = lead[0]
    if "cu_seqlens" in lists:
        starts = lists["cu_seqlens"]
        batch = starts.shape[0] - 1
        if batch < 0 or (batch and ctypes.c_int32.from_address(starts.data + 4 * batch).value > lead[0]):
            raise InvalidArgumentError(f"cu_seqlens ends beyond the {lead[0]} tokens of x")
    if "state_ids" in lists:
        _check_shape("state_ids", lists["state_ids"], [batch])
    dtype = _name_of(lent["x"], "x", _FLOATS)
    fields = dict(channels=channels, taps=lent["weights"].shape[1], dilation=dilation, dtype=_NAMES.index(dtype),
                  has_bias=int("bias" in lent), has_silu=int(has_silu))  # fmt: skip
    return lead, fields, batch
