"""linear_attention: a state in place of keys and values."""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ._attention import _numbers
from ._context import Context, as_context
from ._errors import InvalidArgumentError
from ._lent import _check_list, _lend, _Lent, _refuse_repeats
from ._library import check, lib
from ._problem import _NAMES
from ._structs import LinearDesc, LinearStep, sized
from ._tensor import _DTYPES, address, code_name, empty, layout
from ._values import choice, flag, number, set_threads

RULES = ("linear", "gated", "delta", "gated_delta")
GATES = ("none", "silu", "sigmoid")
_FLOATS = ("f32", "bf16", "f16")
_CAP = 64  # calls that are remembered


class _Handle:
    """What the library made for one description. It lives as long as the process, as few descriptions do."""

    def __init__(self, context: Context, desc: ctypes.Structure, create: Any, destroy: Any) -> None:
        pointer = ctypes.c_void_p()
        check(create(context._pointer, ctypes.byref(desc), ctypes.byref(pointer)))
        self.pointer, self.context = pointer, context
        weakref.finalize(self, destroy, pointer).atexit = False


@functools.lru_cache(maxsize=64)
def _handle_of(context: Context, fields: Tuple[Tuple[str, Any], ...]) -> _Handle:
    desc = sized(LinearDesc)
    desc.scale = float("nan")
    for name, value in fields:
        setattr(desc, name, value)
    return _Handle(context, desc, lib.attune_linear_create, lib.attune_linear_destroy)


def _name_of(lent: _Lent, name: str, allowed: Sequence[str]) -> str:
    for dtype in allowed:
        if lent.dtype == _DTYPES[dtype]:
            return dtype
    words = ", ".join(allowed[:-1]) + (" or " if len(allowed) > 1 else "") + allowed[-1]
    raise InvalidArgumentError(f"{name} is {code_name(*lent.dtype)}; it must be {words}")


def _check_shape(name: str, lent: _Lent, wanted: Sequence[Optional[int]]) -> None:
    """None: any."""
    if len(lent.shape) != len(wanted) or any(b is not None and a != b for a, b in zip(lent.shape, wanted)):
        dims = ", ".join("any" if dim is None else str(dim) for dim in wanted)
        raise InvalidArgumentError(f"{name} has the shape {list(lent.shape)}; it must be [{dims}]")


def _set_view(view: Any, name: str, lent: _Lent, has_rows: bool) -> None:
    """Strides in the order [batch, token, heads, (row)]; without a batch [token, heads, (row)]."""
    strides = list(lent.strides)
    if has_rows and lent.shape[-1] > 1 and lent.strides[-1] != 1:
        raise InvalidArgumentError(f"{name}: the elements of a row must lie side by side, but the innermost stride is"
                                   f" {lent.strides[-1]}")
    if any(stride < 0 for stride in strides):
        raise InvalidArgumentError(f"{name} has negative strides")
    outer = strides[:-1] if has_rows else strides
    is_shared = name == "beta" and lent.shape[-1] == 1  # by all heads
    _refuse_repeats(lent, name, range(len(outer) - is_shared))
    view.data = lent.data
    view.batch = outer[0] if len(outer) == 3 else 0
    view.token, view.head = outer[-2], 0 if is_shared else outer[-1]
    if is_shared and not view.batch and not view.token:
        view.token = 1  # of one token: all 0 would mean contiguous


def linear_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    decay: Any = None,
    beta: Any = None,
    state: Any = None,
    rule: str = "gated_delta",
    scale: float | None = None,
    qk_norm_eps: float = 0,
    norm_weights: Any = None,
    out_norm_eps: float = 1e-6,
    gate: Any = None,
    gate_function: str = "silu",
    cu_seqlens: Any = None,
    state_ids: Any = None,
    out: Any = None,
    reproducible: bool = False,
    max_threads: int = 0,
    runner: Any = None,
    cancel: Any = None,
    context: Context | None = None,
) -> Tuple[Any, Any]:
    """Linear attention of NumPy arrays and torch CPU tensors: (out, state).

    Each head of v has a state S [head_dim, head_dim_v]. Token after token, with a = exp(decay):

        linear        S = S + k v^T
        gated         S = a S + k v^T
        delta         S = S + beta k (v - S^T k)^T
        gated_delta   S = a S + beta k (v - a S^T k)^T
        out = scale S^T q, then norm and gate if they are given

    q is [batch, length, heads, dim], k [batch, length, k_heads, dim], v [batch, length, v_heads, dim_v]; with
        cu_seqlens [tokens, heads, dim], where sequence b has the tokens from cu_seqlens[b] to before cu_seqlens[b + 1].
        They are f32, bf16 or f16. One of the numbers of heads of q and v divides the other; k_heads divides v_heads.
    decay: for the gated rules, logarithms: [batch, length, v_heads], or [.., v_heads, dim] for one of each row of the
        state. f32, bf16 or f16. Above 0 the state grows.
    beta: for the delta rules: [batch, length, v_heads], or [.., 1] for all heads; by default 1.
    state: f32 or bf16, [batch, v_heads, dim, dim_v], with state_ids [states, …]. It is changed in place. None: zeros,
        in a new f32 tensor.
    scale: by default 1 / sqrt(dim).
    qk_norm_eps: rows of q and k are divided by sqrt(sum of x^2 + qk_norm_eps) first; 0: they are not.
    norm_weights, out_norm_eps: rows of out are divided by sqrt(mean of x^2 + out_norm_eps) and multiplied by weights
        [dim_v], which are of the type of q: an RMS norm. Without weights there is none.
    gate: g, of the shape and type of out. out is multiplied by gate_function of it: "silu", g / (1 + exp(-g)), as in
        Qwen3-Next, or "sigmoid", 1 / (1 + exp(-g)), as in Kimi Linear.
    state_ids: [batch], the state of each sequence, all different.
    out: [batch, length, max(heads, v_heads), dim_v]; allocated if it is not given, torch's if q is a torch tensor.
    reproducible: True: a prompt has the same bits however it is cut into calls. Otherwise it is computed in chunks of 8
        tokens, which is faster, and has the same bits for cuts at multiples of 8 tokens.
    max_threads, runner, cancel: as in attune.Attention.run.

    A sequence has the same bits in every batch. With norm or gate, out is rounded to its type before and after them, as
    in models: in f16 a number above 65504 before the norm becomes infinite, and NaN after it.
    """
    tensors = dict(q=q, k=k, v=v, decay=decay, beta=beta, state=state, state_ids=state_ids, out=out, gate=gate,
                   norm_weights=norm_weights)  # fmt: skip
    numbers = (scale, qk_norm_eps, out_norm_eps, gate_function, reproducible)
    given = {name: value for name, value in tensors.items() if value is not None}
    parts = [(name, layout(value)) for name, value in given.items()]
    is_plain = state is not None and cu_seqlens is None and all([known is not None for _, known in parts])
    key = (tuple(parts), rule, numbers, context) if is_plain else None
    ready = _ready.get(key) if key else None
    if ready is not None:
        if out is None:
            out = given["out"] = empty((q,), ready.dtype, ready.shape)
        step = _again(ready.step, given)
    else:
        ready, state, out = _describe(given, rule, numbers, cu_seqlens, as_context(context))
        step = LinearStep.from_buffer_copy(ready.step)
        if key and not ready.is_converted:
            if len(_ready) >= _CAP:
                _ready.clear()
            _ready[key] = ready
    set_threads(step, max_threads, runner, cancel)
    check(lib.attune_linear_run(ready.handle.pointer, ctypes.byref(step)))
    return out, state


class _Call(NamedTuple):
    """A call that was looked at: others of the same layouts need their addresses only."""

    handle: _Handle
    step: LinearStep
    dtype: str
    shape: Tuple[int, ...]  # of out
    is_converted: bool  # a list was: it is converted anew in each call
    kept: list


_ready: Dict[tuple, _Call] = {}


def _again(known: LinearStep, given: Dict[str, Any]) -> LinearStep:
    step = LinearStep.from_buffer_copy(known)
    for name, value in given.items():
        if name in ("state_ids", "norm_weights"):
            setattr(step, name, address(value))
        else:
            getattr(step, name).data = address(value)
    return step


def _lists(given: Dict[str, Any], cu_seqlens: Any) -> Tuple[Dict[str, _Lent], bool]:
    lists, is_converted = {}, False
    for name, value in (("cu_seqlens", cu_seqlens), ("state_ids", given.get("state_ids"))):
        if value is not None:
            numbers = _numbers(value, "i", name)
            is_converted |= numbers is not value
            lists[name] = _lend(numbers, name, False)
            _check_list(lists[name], name)
    return lists, is_converted


def _gates(lent: Dict[str, _Lent], lead: List[int], v_heads: int, dim: int) -> Dict[str, int]:
    """What a description says of decay and beta."""
    fields: Dict[str, int] = {}
    if "decay" in lent:
        by_key = len(lent["decay"].shape) == len(lead) + 2
        _check_shape("decay", lent["decay"], [*lead, v_heads, dim] if by_key else [*lead, v_heads])
        fields.update(decay=2 if by_key else 1, decay_dtype=_NAMES.index(_name_of(lent["decay"], "decay", _FLOATS)))
    if "beta" in lent:
        _check_shape("beta", lent["beta"], [*lead, 1 if lent["beta"].shape[-1:] == [1] else v_heads])
        fields.update(has_beta=1, beta_dtype=_NAMES.index(_name_of(lent["beta"], "beta", _FLOATS)))
    return fields


def _heads(lent: Dict[str, _Lent], rank: int) -> Dict[str, int]:
    """What a description says of q, k and v."""
    _check_shape("q", lent["q"], [None] * rank)
    lead = lent["q"].shape[:-2]
    _check_shape("k", lent["k"], [*lead, None, lent["q"].shape[-1]])
    _check_shape("v", lent["v"], [*lead, None, None])
    dtype = _name_of(lent["q"], "q", _FLOATS)
    for name in "kv":
        _name_of(lent[name], name, (dtype,))
    return dict(num_heads=lent["q"].shape[-2], num_kv_heads=lent["v"].shape[-2], num_k_heads=lent["k"].shape[-2],
                head_dim=lent["q"].shape[-1], head_dim_v=lent["v"].shape[-1], dtype=_NAMES.index(dtype))


def _describe(
    given: Dict[str, Any], rule: str, numbers: Tuple[Any, Any, Any, str, bool], cu_seqlens: Any, context: Context
) -> Tuple[_Call, Any, Any]:
    """The call, its state and its output."""
    scale, qk_norm_eps, out_norm_eps, gate_function, reproducible = numbers
    fields: Dict[str, Any] = dict(rule=choice(rule, RULES, "rule"), qk_norm_eps=number(qk_norm_eps, "qk_norm_eps"),
                                  reproducible=flag(reproducible, "reproducible"))  # fmt: skip
    if scale is not None:
        fields["scale"] = number(scale, "scale")
    inputs = ["q", "k", "v", "decay", "beta", "gate", "norm_weights"]
    lent = {name: _lend(given[name], name, False) for name in inputs if name in given}
    for name in "qkv":
        if name not in lent:
            raise InvalidArgumentError(f"{name} is missing")
    lists, is_converted = _lists(given, cu_seqlens)
    fields.update(_heads(lent, 4 if cu_seqlens is None else 3))
    lead, dim, dim_v = list(lent["q"].shape[:-2]), fields["head_dim"], fields["head_dim_v"]
    v_heads, dtype = fields["num_kv_heads"], _NAMES[fields["dtype"]]
    fields.update(_gates(lent, lead, v_heads, dim))
    batch = lead[0] if cu_seqlens is None else lists["cu_seqlens"].shape[0] - 1
    state, out, has_ids = given.get("state"), given.get("out"), "state_ids" in lists
    if state is None:
        state = empty((given["q"],), "f32", (batch, v_heads, dim, dim_v))
        state[...] = 0
    lent["state"] = _lend(state, "state", True)
    _check_shape("state", lent["state"], [None if has_ids else batch, v_heads, dim, dim_v])
    fields["state_dtype"] = _NAMES.index(_name_of(lent["state"], "state", ("f32", "bf16")))
    shape = (*lead, max(fields["num_heads"], v_heads), dim_v)
    if out is None:
        out = empty((given["q"],), dtype, shape)
    lent["out"] = _lend(out, "out", True)
    _check_shape("out", lent["out"], shape)
    _name_of(lent["out"], "out", (dtype,))
    if "gate" in lent:
        fields["gate"] = 1 + choice(gate_function, GATES[1:], "gate_function")
        _check_shape("gate", lent["gate"], shape)
        _name_of(lent["gate"], "gate", (dtype,))
    if "norm_weights" in lent:
        fields["out_norm_eps"] = number(out_norm_eps, "out_norm_eps")
        _check_shape("norm_weights", lent["norm_weights"], [dim_v])
        _name_of(lent["norm_weights"], "norm_weights", (dtype,))
        if dim_v > 1 and lent["norm_weights"].strides[0] != 1:
            raise InvalidArgumentError("norm_weights must lie side by side")
    step = _step_of(lent, lists, batch, lead, has_ids)
    handle = _handle_of(context, tuple(sorted(fields.items())))
    return _Call(handle, step, dtype, shape, is_converted, [lists]), state, out


def _step_of(lent: Dict[str, _Lent], lists: Dict[str, _Lent], batch: int, lead: List[int], has_ids: bool) -> LinearStep:
    step = sized(LinearStep)
    step.batch, step.seq = batch, lead[-1] if len(lead) == 2 else 0
    for name in ("q", "k", "v", "out", *(["gate"] if "gate" in lent else [])):
        _set_view(getattr(step, name), name, lent[name], True)
    if "decay" in lent:
        _set_view(step.decay, "decay", lent["decay"], len(lent["decay"].shape) == len(lead) + 2)
    if "beta" in lent:
        _set_view(step.beta, "beta", lent["beta"], False)
    if "norm_weights" in lent:
        step.norm_weights = lent["norm_weights"].data
    states = lent["state"]
    if states.shape[-1] > 1 and states.strides[-1] != 1:
        raise InvalidArgumentError("state: the elements of a row must lie side by side")
    step.state.data, step.num_states = states.data, states.shape[0]
    step.state.batch, step.state.head, step.state.token = states.strides[:3]
    if "cu_seqlens" in lists:
        starts = lists["cu_seqlens"]
        if batch < 0 or (batch and ctypes.c_int32.from_address(starts.data + 4 * batch).value > lead[0]):
            raise InvalidArgumentError(f"cu_seqlens ends beyond the {lead[0]} tokens of q")
        step.cu_seqlens = starts.data
    if has_ids:
        _check_shape("state_ids", lists["state_ids"], [batch])
        step.state_ids = lists["state_ids"].data
    return step
