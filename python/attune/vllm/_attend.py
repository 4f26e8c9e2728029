"""What a layer of vLLM's attends to, as an attune.Attention and its plans. Needs torch, and nothing of vLLM.

A cache of vLLM is [blocks, kv_heads, block_size, content], with any strides of blocks and heads. What a block and head
hold lies there as attune reads it:

    │ K of block_size keys │ V of block_size keys │ i8: scales of K │ scales of V │
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy
import torch

import attune

from ..torch import runner
from . import _prefix, is_set

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_HALVES = {"bf16": torch.bfloat16, "f16": torch.float16}  # types of caches without scales
_lock = threading.Lock()
_counts: Dict[str, int] = {"steps": 0, "calls": 0, "tokens": 0}


def stats() -> Dict[str, int]:
    """What attune.vllm.stats() gives."""
    with _lock:
        counts = dict(_counts)
    counts["compiles"] = attune.info()["statistics"]["compiles"]
    return counts


def count(name: str, by: int = 1) -> None:
    """Adds to one of the counts."""
    with _lock:
        _counts[name] = _counts.get(name, 0) + by


def count_step(tokens: int) -> None:
    """A step of a group of layers, which computes so many tokens."""
    count("steps")
    count("tokens", tokens)


def leave(reason: str, logger: Any) -> None:
    """Notes that vLLM's own kernels compute a layer, and says so once in its log."""
    count(f"layers.stock.{reason}")
    logger.info_once("attune leaves %s to vLLM's own backend", reason)


def is_reproducible() -> bool:
    """Whether the bits of a request must not depend on its batch."""
    return is_set("ATTUNE_VLLM_REPRODUCIBLE")


def _can_compile() -> bool:
    """Whether kernels can be compiled now. A failure is not cached: memory or files may be short for a while only."""
    try:
        _try_to_compile()
    except attune.Error:
        return False
    return True


@functools.lru_cache(maxsize=None)
def _try_to_compile() -> None:
    """Compiles a small kernel: the code generator may be missing, or of another build."""
    problem = attune.Problem(num_heads=1, seq_q=1, seq_kv=1, head_dim=1)
    context = attune.Context(max_workers=1, cache_dir="", cache_base="", cache_pack="", record="", stderr_level="none")
    origin = attune.compile(problem, context=context).info["origin"]
    if origin != "compiler":
        raise attune.CodegenError(f"a kernel came from '{origin}', not from the compiler")


def _may_share() -> bool:
    """Whether a step may take two passes: bits may depend on the batch, and kernels of their own are compiled when the
    first such step needs them. Otherwise slower kernels would compute."""
    is_never = os.environ.get("ATTUNE_COMPILE") == "never"
    return not is_never and not is_reproducible() and not os.environ.get("ATTUNE_DEADLINE_US")


class Layer(NamedTuple):
    """What decides about the kernels of a layer. Equal layers share an attention."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    dtype: str
    scale: float
    kv: str = "paged"  # or "tensors": nothing is cached
    block_size: int = 0
    cache_dtype: str = ""  # "f8", "i8", "f16" or "bf16"; "": dtype
    is_causal: bool = True
    is_causal_by_request: bool = False
    window: int = -1  # keys that a query sees, its own among them; -1: all
    soft_cap: float = 0.0
    has_alibi: bool = False
    has_sinks: bool = False
    appends: bool = False
    has_lse: bool = False
    head_size_v: int = 0  # 0: head_size
    is_latent: bool = False  # the first columns of a key are its value
    is_reproducible: bool = False

    @property
    def sees_whole_prefix(self) -> bool:
        """Whether the keys of a prefix may be attended to apart from those behind it."""
        return self.is_causal and self.window <= 0 and not self.has_alibi and not self.is_causal_by_request


def _functions(layer: Layer) -> Dict[str, str]:
    """Causality by request, as a mask: the position of query q of a step is q + seq_kv - seq_q."""
    if not layer.is_causal_by_request:
        return {}
    mask = "kv <= q + seq_kv - seq_q | is_free[b]"
    if layer.window > 0:
        mask = f"({mask}) & abs(q + seq_kv - seq_q - kv) < {layer.window}"
    return {"tensors": "is_free:bool[b]", "mask_mod": mask}


@functools.lru_cache(maxsize=None)
def attention_of(layer: Layer) -> attune.Attention:
    """The attention of all such layers of this process."""
    extra: Dict[str, Any] = _functions(layer)
    if layer.soft_cap:
        extra["logits_soft_cap"] = layer.soft_cap
    if layer.has_alibi:
        extra["has_alibi_slopes"] = 1
    if layer.has_sinks:
        extra["has_sinks"] = 1
    if layer.is_latent:
        extra["v_in_k"] = 1
    has_window = layer.window > 0 and not layer.is_causal_by_request
    causal = layer.is_causal and not layer.is_causal_by_request
    scales = {"f8": "head", "i8": "token"}.get(layer.cache_dtype)
    return attune.Attention(
        num_heads=layer.num_heads, num_kv_heads=layer.num_kv_heads, head_dim=layer.head_size,
        head_dim_v=layer.head_size_v, dtype=layer.dtype, layout="thd", has_lse=layer.has_lse, is_causal=causal,
        window_left=layer.window - 1 if has_window else -1,
        window_right=layer.window - 1 if has_window and not causal else -1, softmax_scale=layer.scale, kv=layer.kv,
        page_size=layer.block_size if layer.kv == "paged" else 0, kv_dtype=layer.cache_dtype or None, kv_scales=scales,
        appends=layer.appends, reproducible=layer.is_reproducible, extra=extra,
    )


class Step:
    """The lengths and blocks of a step, and what each kind of layer has planned for them.

    slots: where vLLM wants the new keys; None for keys that are no queries. appends: whether these are the places of
    the last keys of each request, where a step appends.
    """

    def __init__(
        self,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: Optional[torch.Tensor],
        num_tokens: int,
        is_free: Optional[torch.Tensor] = None,
        slots: Optional[torch.Tensor] = None,
        block_size: int = 0,
    ) -> None:
        self.lists: Dict[str, Any] = dict(
            cu_seqlens_q=_int32(query_start_loc), kv_lens=_int32(seq_lens),
            block_table=None if block_table is None else _int32(block_table),
        )
        self.num_tokens, self.is_free = num_tokens, is_free
        self.appends = slots is not None and _are_last(self.lists, slots.numpy(), block_size)
        self.runner = runner()
        self._block_size = block_size
        self._plans: Dict[Tuple[Layer, int], Any] = {}
        if slots is not None and not self.appends:
            count("steps.stored")

    @functools.cached_property
    def _shared(self) -> Optional[_prefix.Shared]:
        """The two passes of layers that may take them. Others do not look for them."""
        shared = _prefix.find(self.lists, self._block_size) if self.appends and _may_share() else None
        return shared if shared and _can_compile() else None

    def plan(self, layer: Layer, num_blocks: int) -> Any:
        """This step's plan for such layers and a cache of so many blocks; made for the first of them."""
        plan = self._plans.get((layer, num_blocks))
        if plan is None:
            plan = self._plans[layer, num_blocks] = self._new_plan(layer, num_blocks)
        return plan

    def _new_plan(self, layer: Layer, num_blocks: int) -> Any:
        lists = self.lists
        if layer.kv == "tensors":
            return attention_of(layer).plan(cu_seqlens_q=lists["cu_seqlens_q"])
        shared = self._shared if layer.sees_whole_prefix else None
        if shared:
            try:
                plan = _shared_plan(layer, num_blocks, shared)
            except attune.Error:  # a kernel of the two passes could not be compiled, for want of memory or files
                pass
            else:
                if not any(isinstance(other, _prefix.Plan) for other in self._plans.values()):
                    count("steps.shared")
                return plan
        return attention_of(layer).plan(num_pages=num_blocks, **lists)


def _shared_plan(layer: Layer, num_blocks: int, shared: _prefix.Shared) -> _prefix.Plan:
    prefix = layer._replace(is_causal=False, appends=False, has_sinks=False, has_lse=True)
    parts = (prefix, shared.prefix), (layer._replace(has_lse=True), shared.own)
    first, second = [_compiled(one).plan(num_pages=num_blocks, **own) for one, own in parts]
    columns = layer.head_size_v or layer.head_size
    return _prefix.Plan(first, second, _prefix.joining_of(layer.dtype, layer.num_heads, columns))


def _compiled(layer: Layer) -> attune.Attention:
    """The attention of such layers with all its kernels. An attune.Error if one could not be compiled."""
    attention = attention_of(layer)
    attention.prepare()
    if not attention.info["is_ready"]:
        raise attune.CodegenError("a slower kernel would compute until one can be compiled")
    return attention


def ragged_plan(layer: Layer, starts_q: torch.Tensor, starts_kv: torch.Tensor) -> Any:
    """A step whose keys are tensors: sequence b has the queries, and the keys, from starts[b] to before
    starts[b + 1]."""
    return attention_of(layer).plan(cu_seqlens_q=_int32(starts_q), cu_seqlens_kv=_int32(starts_kv))


def _are_last(lists: Dict[str, Any], slots: numpy.ndarray, block_size: int) -> bool:
    """Whether the slots of the new keys are those of the last keys of their requests. They are not where a draft runs
    over the longest request: vLLM then gives its keys no slot."""
    starts, lens, table = (lists[name].numpy() for name in ("cu_seqlens_q", "kv_lens", "block_table"))
    first, last = int(starts[0]), int(starts[-1])
    requests = numpy.repeat(numpy.arange(len(lens)), numpy.diff(starts))
    positions = numpy.arange(first, last) + numpy.repeat(lens - starts[1:], numpy.diff(starts))
    blocks = positions // block_size
    if last > first and (positions.min() < 0 or blocks.max() >= table.shape[1]):
        return False
    own = table[requests, blocks].astype(numpy.int64) * block_size + positions % block_size
    return numpy.array_equal(own, slots[first:last])


def _int32(value: torch.Tensor) -> torch.Tensor:
    """Lists of a plan are i32, which vLLM's are, too."""
    return value.to(torch.int32)


# ---- Caches ----


class Cache(NamedTuple):
    """The tensors of a layer's cache: views of vLLM's."""

    k: torch.Tensor  # [blocks, block_size, kv_heads, head_size]
    v: Optional[torch.Tensor]  # the same with head_size_v; None: in k
    k_scale: Optional[torch.Tensor]  # i8: f32 [blocks, kv_heads, block_size]
    v_scale: Optional[torch.Tensor]


def views(kv_cache: torch.Tensor, head_size: int, head_size_v: int, dtype: str) -> Cache:
    """attune's tensors in a cache of vLLM's. The two innermost dims must be contiguous."""
    blocks, heads, size, content = kv_cache.shape
    of_block, of_head, of_key, of_element = kv_cache.stride()
    if of_element != 1 or of_key != content:
        raise ValueError(f"a block has the strides {of_key} and {of_element}; it must be contiguous")
    rows = kv_cache if dtype != "i8" else kv_cache.view(torch.int8)
    start, both = rows.storage_offset(), size * (head_size + head_size_v)
    k = rows.as_strided((blocks, size, heads, head_size), (of_block, head_size, of_head, 1), start)
    v = rows.as_strided(
        (blocks, size, heads, head_size_v), (of_block, head_size_v, of_head, 1), start + size * head_size
    )
    if dtype != "i8":
        return Cache(k, v, None, None)
    if any(number % 4 for number in (of_block, of_head, start, both)):
        raise ValueError(f"a block of {size} keys of {head_size} columns does not let scales lie at multiples of 4")
    floats = torch.empty(0, dtype=torch.float32).set_(rows.untyped_storage())
    first = (start + both) // 4
    k_scale, v_scale = (
        floats.as_strided((blocks, heads, size), (of_block // 4, of_head // 4, 1), at) for at in (first, first + size)
    )
    return Cache(k, v, k_scale, v_scale)


def writer_of(layer: Layer) -> Layer:
    """What writes keys that are no queries: a step that appends them, in which each attends to itself."""
    return Layer(
        num_heads=layer.num_kv_heads, num_kv_heads=layer.num_kv_heads, head_size=layer.head_size,
        head_size_v=layer.head_size_v, dtype=layer.cache_dtype if layer.cache_dtype in _HALVES else layer.dtype,
        scale=1.0, block_size=layer.block_size, cache_dtype=layer.cache_dtype, window=1, appends=True,
    )  # fmt: skip


def store(
    layer: Layer, cache: Cache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, bindings: Dict[str, Any]
) -> None:
    """Writes keys and values to the slots of a cache. Slots below 0 are left out. Each run of slots in a block is a
    sequence of a step."""
    most = min(slots.shape[0], key.shape[0])
    slots, key, value = slots[:most], key[:most], value[:most]
    taken = slots >= 0
    if not bool(taken.all()):
        slots, key, value = slots[taken], key[taken], value[taken]
    if slots.shape[0] == 0:
        return
    key, value = _as_cached(layer, key), _as_cached(layer, value)
    scales: Dict[str, Any] = {name: bindings[name] for name in ("k_scale", "v_scale") if name in bindings}
    plan = attention_of(writer_of(layer)).plan(**_runs(slots.numpy(), layer.block_size), num_pages=cache.k.shape[0])
    plan.run(key, key, value, out=torch.empty_like(value), runner=runner(), **_tensors_of(cache), **scales)


def _as_cached(layer: Layer, rows: torch.Tensor) -> torch.Tensor:
    """Rows of the model's type as they are appended. attune itself rounds to types that have scales."""
    return rows.to(_HALVES[layer.cache_dtype]) if layer.cache_dtype in _HALVES else rows


def _runs(slots: numpy.ndarray, block_size: int) -> Dict[str, Any]:
    """The lists of a step in which each run of slots in a block is a sequence."""
    begins = numpy.flatnonzero(numpy.diff(slots, prepend=slots[0]) != 1)
    begins = numpy.union1d(begins, numpy.flatnonzero(slots % block_size == 0))
    ends = numpy.append(begins[1:], len(slots))
    lists = numpy.append(begins, len(slots)), slots[ends - 1] % block_size + 1, slots[begins, None] // block_size
    names = ("cu_seqlens_q", "kv_lens", "block_table")
    return {name: torch.from_numpy(one.astype(numpy.int32)) for name, one in zip(names, lists)}


def _tensors_of(cache: Cache) -> Dict[str, Any]:
    """As keywords of a plan's run()."""
    given = dict(k_cache=cache.k, v_cache=cache.v, k_scale=cache.k_scale, v_scale=cache.v_scale)
    return {name: one for name, one in given.items() if one is not None}


def attend(
    step: Step,
    layer: Layer,
    query: torch.Tensor,
    key: Optional[torch.Tensor],
    value: Optional[torch.Tensor],
    cache: Optional[Cache],
    out: torch.Tensor,
    bindings: Dict[str, Any],
) -> None:
    """One layer of a step, into `out`. bindings: tensors that all steps have, as sinks, and scales of fp8."""
    tokens = step.num_tokens
    given = {} if cache is None else _tensors_of(cache)
    if layer.appends or layer.kv == "tensors":
        assert key is not None and value is not None
        given.update(k=_first(_as_cached(layer, key), tokens), v=_first(_as_cached(layer, value), tokens))
    if layer.is_causal_by_request:
        bindings = {**bindings, "is_free": step.is_free}
    plan = step.plan(layer, 0 if cache is None else cache.k.shape[0])
    plan.run(_first(query, tokens), out=_first(out, tokens), runner=step.runner, **given, **bindings)
    count("calls")


def _first(rows: torch.Tensor, tokens: int) -> torch.Tensor:
    """Without those that vLLM has padded. A view takes longer than asking for the shape."""
    return rows if rows.shape[0] == tokens else rows[:tokens]
