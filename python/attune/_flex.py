"""flex_attention(): attention with functions on scores, masks and probabilities, as PyTorch's has them."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Optional, Tuple

from ._attention import _float_name, _lift, _look, _python_name, _shape4, _strides, _wide
from ._block_mask import blocks_follow, function_of_blocks, kept_mask, lasting_mask, listed_blocks
from ._context import default_context
from ._errors import InvalidArgumentError
from ._kernel import Kernel
from ._library import check, run_options
from ._problem import DYNAMIC, Problem
from ._structs import Arguments
from ._tensor import dtype_name, empty, empty_output, layout, refuse_masked
from ._tracing.trace import Tracer, code_of, has_names
from ._values import flag, integer, number

_INT32 = (-(2**31), 2**31 - 1)
_CAP = 256  # kernels and calls that are remembered
_NO_BLOCKS = 1 << 30  # BLOCK_SIZE of a BlockMask that lists nothing
_LARGE_MASK = 1 << 24  # pairs of a mask whose table is not kept
_kernels: Dict[tuple, Kernel] = {}
_sizes: Dict[tuple, Dict[str, int]] = {}  # of calls that were right, by the place that `_place_of` gives them
# By their functions as well: the kernel, the arguments but for their addresses, and the table that these point to.
_ready: Dict[tuple, Tuple[Kernel, Arguments, Any]] = {}


def _as_taken(value: Any, name: str) -> Any:
    """A captured tensor in a type and with strides that a kernel takes: a copy where it has others."""
    refuse_masked(value, name)
    if "strided" not in str(getattr(value, "layout", "strided")):
        raise InvalidArgumentError(f"the tensor {name} is {value.layout}; functions read strided tensors")
    if dtype_name(value) not in ("f32", "f16", "bf16", "f64", "i32", "i8", "bool"):
        if "int" not in _python_name(value):
            raise InvalidArgumentError(f"the tensor {name} is {_python_name(value)}, which functions cannot read")
        for item in (value.min(), value.max()):
            integer(int(item), f"an element of the tensor {name}", *_INT32)
        value = value.astype("i4") if hasattr(value, "astype") else value.int()
    if _wide(value):
        value = value.copy() if hasattr(value, "astype") else value.contiguous()
    strides = _strides(value)
    repeats = any(stride == 0 and size > 1 for stride, size in zip(strides, value.shape)) and not any(strides[:-1])
    if not repeats and value.shape[-1] > 1 and strides[-1] != 0:
        return value
    return value.copy() if hasattr(value, "astype") else value.clone(memory_format=_contiguous())


def _contiguous() -> Any:
    import torch

    return torch.contiguous_format


def _check_fits(block_mask: Any, sizes: Dict[str, int]) -> None:
    """As PyTorch does: a mask for other lengths may hide other keys. One without blocks fits any lengths."""
    if min(block_mask.BLOCK_SIZE) >= _NO_BLOCKS:
        return
    queries, keys = block_mask.shape[-2:]
    if (queries, keys) != (sizes["q"], sizes["kv"]):
        what = f"block_mask is for {queries} queries and {keys} keys, and here are {sizes['q']} and {sizes['kv']}"
        raise InvalidArgumentError(what)


def _says_all(block_mask: Any, sizes: Dict[str, int]) -> bool:
    """Whether its mask_mod alone gives the blocks, also of sequences and heads that share those of the first one."""
    shared = {name for have, name in zip(block_mask.kv_num_blocks.shape[:2], "bh") if have < sizes[name]}
    mask = Tracer(sizes, False).trace(block_mask.mask_mod, "mask_mod") if shared else ""
    if shared & set(re.findall(r"\b[bh]\b", mask or "")):
        return False
    return blocks_follow(block_mask)


def _function_of(block_mask: Any, sizes: Dict[str, int]) -> Optional[Callable]:
    """What a BlockMask lets a query see, as PyTorch has it: full blocks, and in the other blocks it lists, what its
    mask_mod shows."""
    _check_fits(block_mask, sizes)
    has_own = getattr(block_mask.mask_mod, "__name__", "") != "noop_mask"
    if has_own and (min(block_mask.BLOCK_SIZE) >= _NO_BLOCKS or _says_all(block_mask, sizes)):
        return block_mask.mask_mod
    listed, full = listed_blocks(block_mask)
    for have, name, what in zip(listed.shape[:2], "bh", ("batch", "num_heads")):
        if have not in (1, sizes[name]):
            raise InvalidArgumentError(f"block_mask has blocks for {what}={have}, and here it is {sizes[name]}")
    return function_of_blocks(block_mask, *((listed, full) if has_own else (None, listed | full)))


def _fields(q: Any, k: Any, v: Any, enable_gqa: bool) -> Dict[str, Any]:
    batch, heads, seq_q, dim = _shape4(q, "q")
    kv_heads, seq_kv = _shape4(k, "k")[1:3]
    if heads != kv_heads and not enable_gqa:
        raise InvalidArgumentError(f"q has {heads} heads and k {kv_heads}; set enable_gqa=True if heads share keys")
    fields: Dict[str, Any] = dict(
        dtype=_float_name(q, "q"), k_dtype=_float_name(k, "k"), v_dtype=_float_name(v, "v"), batch=batch,
        num_heads=heads, num_kv_heads=kv_heads, seq_q=seq_q or DYNAMIC, seq_kv=seq_kv or DYNAMIC,
        head_dim=dim, head_dim_v=_shape4(v, "v")[3],
    )
    for name, value in (("q", q), ("k", k), ("v", v)):
        if _wide(value):
            fields[name + "_strides"] = tuple(_strides(value))
    return fields


def flex_attention(
    q: Any,
    k: Any,
    v: Any,
    score_mod: Optional[Callable] = None,
    block_mask: Any = None,
    *,
    mask_mod: Optional[Callable] = None,
    prob_mod: Optional[Callable] = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    strict_index: bool = False,
    out: Any = None,
    max_threads: int = 0,
    runner: Any = None,
    cancel: Any = None,
) -> Any:
    """softmax(score_mod(scale * q k^T)) v where mask_mod holds: PyTorch's flex_attention on the CPU.

    q is [batch, heads, length, dim], k and v are [batch, kv_heads, keys, dim], as in `attention`.
    score_mod: a function of (score, b, h, q_idx, kv_idx), and mask_mod one of (b, h, q_idx, kv_idx), as for
        torch.nn.attention.flex_attention. They are called once, traced into text (docs/functions.md), and become a part
        of the kernel. Captured tensors are read in place; those of other integers than int32 and int8, or whose
        innermost stride is not 1, are copied in each call.
    prob_mod: a function of (prob, b, h, q_idx, kv_idx) that returns the factor of a value; PyTorch has none.
    block_mask: PyTorch's BlockMask for these lengths. Full blocks are visible, partial ones are filtered by its
        mask_mod, and all others are hidden. Make a new one if tensors that mask_mod reads have changed.
    strict_index: rejects an index of a tensor that cannot be proved in range, instead of clamping it.
    enable_gqa: heads of q may share heads of k and v.
    The rest is as in `attention`.
    """
    functions = {"score_mod": score_mod, "mask_mod": mask_mod, "prob_mod": prob_mod}
    given = {"q": q, "k": k, "v": v} if out is None else {"q": q, "k": k, "v": v, "out": out}
    place = None if block_mask is not None else _place_of(given, scale, (enable_gqa, return_lse, strict_index))
    found = _find(place, functions)
    if found is None:
        if out is not None:
            _look(out, "out")
        fields, tracer, tensors = described(
            q, k, v, score_mod, block_mask, mask_mod=mask_mod, prob_mod=prob_mod, scale=scale, enable_gqa=enable_gqa,
            return_lse=return_lse, strict_index=strict_index,
        )
    threads = run_options(max_threads, runner, cancel)
    given["out"] = out = empty_output(q, v) if out is None else out
    if return_lse:
        given["lse"] = empty((q,), "f64" if dtype_name(q) == "f64" else "f32", q.shape[:-1])
    if found is not None:
        (kernel, arguments, _), captured = found
        check(kernel._go(kernel._again(arguments, {**captured, **given}), threads))
    elif fields["batch"]:  # of none there is nothing to compute
        tensors.update((name, _lift(given[name], name)) for name in ("out", "lse") if name in given)
        _remember(place, functions, fields, tracer, tensors, attend(fields, tracer, tensors, threads, block_mask))
    return (out, given["lse"]) if return_lse else out


# A call with the functions and layouts of one before needs addresses only. Functions that look up names are traced each
# time: what they reach may have changed.


def _place_of(tensors: Dict[str, Any], scale: Any, flags: Tuple[Any, ...]) -> Optional[tuple]:
    """What of a call decides its problem beside the functions; None: each of its tensors must be looked at."""
    layouts = tuple([layout(value) for value in tensors.values()])
    is_plain = type(scale) in (float, type(None)) and all([type(one) is bool for one in flags])
    return (layouts, scale, flags) if is_plain and None not in layouts else None


def _key_of(place: tuple, texts: list, tracer: Tracer, captured: Dict[str, Any]) -> Optional[tuple]:
    layouts = tuple([layout(value) for value in captured.values()])
    return None if None in layouts else (place, *texts, tracer.declarations(), layouts)


def _codes_of(functions: Dict[str, Any]) -> Optional[tuple]:
    """The code of each function; None: there is more to one of them."""
    codes = tuple([None if f is None else code_of(f) for f in functions.values()])
    return codes if all([code or f is None for code, f in zip(codes, functions.values())]) else None


def _find(place: Optional[tuple], functions: Dict[str, Any]) -> Optional[Tuple[tuple, Dict[str, Any]]]:
    """What of `_ready` fits, and the tensors that the functions read."""
    if place is None:
        return None
    codes = _codes_of(functions)
    ready = _ready.get((place, codes)) if codes else None
    if ready is not None:
        return ready, {}
    sizes = _sizes.get(place)
    if sizes is None:
        return None
    tracer = Tracer(sizes, place[2][2])
    texts = [tracer.trace(f, name) for name, f in functions.items()]
    captured = {name: _as_taken(value, name) for name, value in tracer.tensors.items()}
    key = _key_of(place, texts, tracer, captured)
    ready = _ready.get(key) if key else None
    return None if ready is None else (ready, captured)


def _keeps_table(mask_mod: Optional[str], tracer: Tracer) -> bool:
    """Whether what the mask hides is the same in each call of these sizes, and its table is not large."""
    names = set(re.findall(r"\w+", mask_mod or ""))
    is_small = tracer.sizes["q"] * tracer.sizes["kv"] <= _LARGE_MASK
    return bool(names) and is_small and not names & {"b", "h", *tracer.tensors}


def _remember(
    place: Optional[tuple], functions: Dict[str, Any], fields: Dict[str, Any], tracer: Tracer,
    tensors: Dict[str, Any], made: Tuple[Kernel, Arguments],
) -> None:
    if place is None:
        return
    texts = [fields[name] for name in ("score_mod", "mask_mod", "prob_mod")]
    key = _key_of(place, texts, tracer, {name: tensors[name] for name in tracer.tensors})
    if key is None:
        return
    for kept in (_sizes, _ready):
        if len(kept) >= _CAP:
            kept.clear()
    kernel, arguments = made
    table = lasting_mask(kernel, arguments) if _keeps_table(fields["mask_mod"], tracer) else None
    arguments.block_mask = table.pointer if table else None
    _sizes[place], _ready[key] = tracer.sizes, (kernel, arguments, table)
    codes = _codes_of(functions)
    if codes and not any(code and has_names(code) for code in codes):
        _ready[place, codes] = _ready[key]


def described(
    q: Any,
    k: Any,
    v: Any,
    score_mod: Optional[Callable] = None,
    block_mask: Any = None,
    *,
    mask_mod: Optional[Callable] = None,
    prob_mod: Optional[Callable] = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    strict_index: bool = False,
) -> Tuple[Dict[str, Any], Tracer, Dict[str, Any]]:
    """Of a call: the fields of its problem except `tensor`, the tracer, and the tensors q, k and v."""
    for name, value in (("q", q), ("k", k), ("v", v)):
        _look(value, name)
    if block_mask is not None and mask_mod is not None:
        raise InvalidArgumentError("block_mask and mask_mod are both given")
    tensors = {"q": _lift(q, "q"), "k": _lift(k, "k"), "v": _lift(v, "v")}
    batch, heads, seq_q = _shape4(tensors["q"], "q")[:3]
    sizes = {"b": batch, "h": heads, "q": seq_q, "kv": _shape4(tensors["k"], "k")[2]}
    if block_mask is not None:
        mask_mod = _function_of(block_mask, sizes)
    tracer = Tracer(sizes, flag(strict_index, "strict_index"))
    functions = {"score_mod": score_mod, "mask_mod": mask_mod, "prob_mod": prob_mod}
    fields = _fields(tensors["q"], tensors["k"], tensors["v"], flag(enable_gqa, "enable_gqa"))
    fields.update({name: tracer.trace(f, name) for name, f in functions.items()})
    fields["has_lse"] = flag(return_lse, "return_lse")
    if scale is not None:
        fields["softmax_scale"] = number(scale, "scale")
    return fields, tracer, tensors


def attend(
    fields: Dict[str, Any], tracer: Tracer, tensors: Dict[str, Any], threads: Any, block_mask: Any = None
) -> Tuple[Kernel, Arguments]:
    """Runs the problem of these fields, whose functions the tracer has written, on tensors by name. Gives the kernel,
    and the arguments of the call.

    threads: as run_options gives them.
    block_mask: the BlockMask that mask_mod is of, which keeps the table of what is hidden; None: made in this call.
    """
    fields["tensors"] = tracer.declarations()
    for name, value in tracer.tensors.items():
        tensors[name] = _as_taken(value, name)
    key = tuple(fields.items())
    kernel = _kernels.get(key)
    if kernel is None:
        kernel = Kernel(Problem(**fields), None, default_context())
        if len(_kernels) >= _CAP:
            _kernels.clear()
        _kernels[key] = kernel
    arguments, kept = kernel._arguments(tensors, None)
    if block_mask is not None:
        read = set(re.findall(r"\w+", fields["mask_mod"] or ""))
        captured = [value for name, value in tracer.tensors.items() if name in read]
        mask = kept_mask(block_mask, kernel, arguments, captured)
        arguments.block_mask = mask.pointer if mask else None
    check(kernel._go(arguments, threads))
    del kept
    return kernel, arguments
