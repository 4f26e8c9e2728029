"""MLA: a block of multi-head latent attention with its weights."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Dict, List, Mapping, Optional

from ._attention import _numbers
from ._context import Context, as_context
from ._errors import InvalidArgumentError
from ._lent import _check_list, _lend, _Lent
from ._library import check, lib
from ._problem import _NAMES
from ._structs import MlaDesc, MlaStep, MlaWeights, sized
from ._tensor import _DTYPES, code_name, empty
from ._values import choice, flag, integer, number, set_threads

FORMS = ("by_cost", "absorbed", "unabsorbed")
_FLOATS = ("f32", "bf16", "f16")

# By the names of transformers' modules, and the members of attune_mla_weights.
_MEMBERS = {
    "q_proj.weight": "q_proj",
    "q_a_proj.weight": "q_a_proj",
    "q_a_proj.bias": "q_a_bias",
    "q_a_layernorm.weight": "q_a_layernorm",
    "q_b_proj.weight": "q_b_proj",
    "kv_a_proj_with_mqa.weight": "kv_a_proj",
    "kv_a_proj_with_mqa.bias": "kv_a_bias",
    "kv_a_layernorm.weight": "kv_a_layernorm",
    "kv_b_proj.weight": "kv_b_proj",
    "o_proj.weight": "o_proj",
    "o_proj.bias": "o_bias",
}


def _check(lent: _Lent, name: str, dtype: str, shape: List[Optional[int]]) -> None:
    """None in a shape: any."""
    if lent.dtype != _DTYPES[dtype]:
        raise InvalidArgumentError(f"{name} is {code_name(*lent.dtype)}; it must be {dtype}")
    if len(lent.shape) != len(shape) or any(b is not None and a != b for a, b in zip(lent.shape, shape)):
        dims = ", ".join("any" if dim is None else str(dim) for dim in shape)
        raise InvalidArgumentError(f"{name} has the shape {list(lent.shape)}; it must be [{dims}]")


def _is_contiguous(lent: _Lent) -> bool:
    stride = 1
    for dim, step in zip(reversed(lent.shape), reversed(lent.strides)):
        if dim != 1 and step != stride:
            return False
        stride *= dim
    return True


def _rows(lent: _Lent, name: str) -> int:
    """The stride of rows that follow each other in all dimensions but the last."""
    shape, strides = lent.shape, lent.strides
    if shape[-1] > 1 and strides[-1] != 1:
        raise InvalidArgumentError(f"{name}: the elements of a row must lie side by side")
    if len(shape) == 3 and shape[0] > 1 and shape[1] > 1 and strides[0] != shape[1] * strides[1]:
        raise InvalidArgumentError(f"{name}: the rows of all sequences must be equally far apart")
    stride = strides[0] if len(shape) == 3 and shape[1] == 1 else strides[-2]
    if stride <= 0 and 0 not in shape and any(dim > 1 for dim in shape[:-1]):
        raise InvalidArgumentError(f"{name} has a row stride of {stride}; copy it")
    return stride


class MLA:
    """A block of multi-head latent attention: projections, a cache of latents, attention and the output projection of
    DeepSeek-V2 and V3, Kimi and their like.

        block = attune.MLA(layer.self_attn.state_dict(), num_heads=128, qk_nope_head_dim=128, qk_rope_head_dim=64,
                           page_size=64)
        pages = torch.zeros(num_pages, 64, block.width, dtype=torch.bfloat16)
        out = block.run(x, pages, cos, sin, kv_lens=lens, block_table=table, cu_seqlens=starts)

    weights: a layer's, with transformers' names: q_proj.weight, or q_a_proj.weight, q_a_layernorm.weight and
        q_b_proj.weight; kv_a_proj_with_mqa.weight, kv_a_layernorm.weight, kv_b_proj.weight, o_proj.weight; and biases
        of q_a_proj, kv_a_proj_with_mqa and o_proj. All of one dtype, f32, bf16 or f16, which is that of x, cache and
        out, too. They are copied.
    page_size: rows of a page of the cache, a multiple of 16. 0: the cache is contiguous.
    rope_interleaved: columns 2 i and 2 i + 1 are a pair, as in DeepSeek's weights; False: i and i + half.
    softmax_scale: by default 1 / sqrt(qk_nope_head_dim + qk_rope_head_dim). A model with YaRN multiplies it by
        mscale^2.
    form: "absorbed", "unabsorbed", or "by_cost": the one with fewer multiply-adds, for each sequence (attune/mla.h).
    reproducible: a row has the same bits in every batch and chunk. Not with form="by_cost".
    has_ids: steps may list the keys of their tokens, as in DeepSeek-V3.2. Not with form="unabsorbed".

    width is the number of columns of a row of the cache, kv_lora_rank + qk_rope_head_dim.
    """

    def __init__(
        self,
        weights: Mapping[str, Any],
        *,
        num_heads: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        page_size: int = 0,
        rope_interleaved: bool = True,
        softmax_scale: float | None = None,
        norm_eps: float = 1e-6,
        form: str = "by_cost",
        reproducible: bool = False,
        has_ids: bool = False,
        context: Context | None = None,
    ) -> None:
        desc = sized(MlaDesc)
        desc.num_heads = integer(num_heads, "num_heads", 1, 1024)
        desc.qk_nope_head_dim = integer(qk_nope_head_dim, "qk_nope_head_dim", 1, 512)
        desc.qk_rope_head_dim = integer(qk_rope_head_dim, "qk_rope_head_dim", 2, 512)
        desc.page_size = integer(page_size, "page_size")
        desc.rope_interleaved = flag(rope_interleaved, "rope_interleaved")
        desc.softmax_scale = float("nan") if softmax_scale is None else number(softmax_scale, "softmax_scale")
        desc.norm_eps = number(norm_eps, "norm_eps")
        desc.form = choice(form, FORMS, "form")
        desc.reproducible = flag(reproducible, "reproducible")
        desc.has_ids = flag(has_ids, "has_ids")
        lent = self._read_weights(weights, desc)
        given = sized(MlaWeights)
        for name, one in lent.items():
            setattr(given, _MEMBERS[name], one.data)
        pointer = ctypes.c_void_p()
        self.context = as_context(context)
        check(lib.attune_mla_create(self.context._pointer, ctypes.byref(desc), ctypes.byref(given),
                                    ctypes.byref(pointer)))  # fmt: skip
        self._pointer = pointer
        self._end = weakref.finalize(self, lib.attune_mla_destroy, pointer)
        self._end.atexit = False
        self.dtype = _NAMES[desc.dtype]
        self.embed_dim, self.out_dim, self.width = desc.embed_dim, desc.out_dim, desc.kv_lora_rank + qk_rope_head_dim
        self.page_size, self._half = page_size, qk_rope_head_dim // 2

    @staticmethod
    def _read_weights(weights: Mapping[str, Any], desc: MlaDesc) -> Dict[str, _Lent]:
        """Checks shapes, from which the other sizes of the description follow."""
        unknown = sorted(set(weights) - set(_MEMBERS))
        if unknown:
            raise InvalidArgumentError(f"there is no weight {unknown[0]}; there are {', '.join(_MEMBERS)}")
        lent = {name: _lend(value, name, False) for name, value in weights.items() if value is not None}
        for name in ("kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight", "kv_b_proj.weight", "o_proj.weight"):
            if name not in lent:
                raise InvalidArgumentError(f"the weight {name} is missing")
        has_low = "q_a_proj.weight" in lent
        for name in ["q_a_layernorm.weight", "q_b_proj.weight"] if has_low else ["q_proj.weight"]:
            if name not in lent:
                raise InvalidArgumentError(f"the weight {name} is missing")
        dtype = next((name for name in _FLOATS if lent["o_proj.weight"].dtype == _DTYPES[name]), None)
        if dtype is None:
            found = code_name(*lent["o_proj.weight"].dtype)
            raise InvalidArgumentError(f"o_proj.weight is {found}; it must be f32, bf16 or f16")
        heads, nope, rope = desc.num_heads, desc.qk_nope_head_dim, desc.qk_rope_head_dim
        for name in ("kv_a_proj_with_mqa.weight", "o_proj.weight"):
            _check(lent[name], name, dtype, [None, None])
        embed, rank = lent["kv_a_proj_with_mqa.weight"].shape[1], lent["kv_a_proj_with_mqa.weight"].shape[0] - rope
        out, v_dim = lent["o_proj.weight"].shape[0], lent["o_proj.weight"].shape[1] // heads
        if not out or not v_dim:
            raise InvalidArgumentError(f"o_proj.weight has the shape {lent['o_proj.weight'].shape}: it has no elements")
        low = lent["q_a_proj.weight"].shape[0] if has_low else 0
        shapes: Dict[str, List[Optional[int]]] = {
            "q_proj.weight": [heads * (nope + rope), embed],
            "q_a_proj.weight": [low, embed],
            "q_a_proj.bias": [low],
            "q_a_layernorm.weight": [low],
            "q_b_proj.weight": [heads * (nope + rope), low],
            "kv_a_proj_with_mqa.weight": [rank + rope, embed],
            "kv_a_proj_with_mqa.bias": [rank + rope],
            "kv_a_layernorm.weight": [rank],
            "kv_b_proj.weight": [heads * (nope + v_dim), rank],
            "o_proj.weight": [out, heads * v_dim],
            "o_proj.bias": [out],
        }
        for name, one in lent.items():
            _check(one, name, dtype, shapes[name])
            if not _is_contiguous(one):
                raise InvalidArgumentError(f"{name} is not contiguous")
        desc.embed_dim, desc.out_dim, desc.v_head_dim = embed, out, v_dim
        desc.q_lora_rank, desc.kv_lora_rank, desc.dtype = low, rank, _NAMES.index(dtype)
        return lent

    def prepare(self) -> None:
        """Compiles the kernels for one token and for prompts now, or takes them from the cache."""
        check(lib.attune_mla_prepare(self._pointer))

    def run(
        self,
        x: Any,
        cache: Any,
        cos: Any,
        sin: Any,
        *,
        kv_lens: Any = None,
        block_table: Any = None,
        cu_seqlens: Any = None,
        positions: Any = None,
        kv_ids: Any = None,
        kv_id_lens: Any = None,
        out: Any = None,
        max_threads: int = 0,
        runner: Any = None,
        cancel: Any = None,
    ) -> Any:
        """Appends the tokens x to the cache, and returns their outputs.

        x: [batch, length, embed_dim]; with cu_seqlens [tokens, embed_dim], where sequence b has the tokens from
            cu_seqlens[b] to before cu_seqlens[b + 1].
        cache: [pages, page_size, width], or without pages [batch, rows, width]. Rows of the new tokens are written.
        cos, sin: f32 [positions, qk_rope_head_dim / 2].
        kv_lens: [batch], the tokens of each sequence, new ones included. None without pages: all rows of the cache.
        block_table: [batch, pages], the pages of each sequence.
        positions: [tokens], each new token's row of cos and sin; None: its place in its sequence.
        kv_ids: int32 [batch, length, ids], with cu_seqlens [tokens, ids]: the keys to which each token attends, as
            numbers of tokens in its sequence, new ones included. None: a token attends to itself and all before it.
        kv_id_lens: int32, the shape of kv_ids without its last dim: the length of each list. None: lists are full.
        max_threads, runner, cancel: as in attune.Attention.run.
        """
        step = sized(MlaStep)
        kept: List[Any] = []
        rank = 2 if cu_seqlens is not None else 3
        given = _lend(x, "x", False)
        _check(given, "x", self.dtype, [None] * (rank - 1) + [self.embed_dim])
        lead = given.shape[:-1]
        if out is None:
            out = empty((x,), self.dtype, (*lead, self.out_dim))
        result, rows = _lend(out, "out", True), _lend(cache, "cache", True)
        _check(result, "out", self.dtype, [*lead, self.out_dim])
        step.x.data, step.x.token = given.data, _rows(given, "x")
        step.out.data, step.out.token = result.data, _rows(result, "out")
        tokens = lead[0] if rank == 2 else lead[0] * lead[1]
        step.batch = lead[0] if rank == 3 else self._starts(step, cu_seqlens, tokens, kept)
        step.seq = lead[1] if rank == 3 else 0
        self._set_cache(step, rows, kv_lens, block_table, kept)
        self._set_rotary(step, cos, sin, positions, tokens, kept)
        self._set_lists(step, kv_ids, kv_id_lens, lead, kept)
        set_threads(step, max_threads, runner, cancel)
        check(lib.attune_mla_run(self._pointer, ctypes.byref(step)))
        return out

    @staticmethod
    def _list(value: Any, name: str, shape: List[Optional[int]], kept: List[Any]) -> _Lent:
        lent = _lend(_numbers(value, "i", name), name, False)
        kept.append(lent)
        _check(lent, name, "i32", shape)
        _check_list(lent, name)
        return lent

    def _starts(self, step: MlaStep, cu_seqlens: Any, tokens: int, kept: List[Any]) -> int:
        starts = self._list(cu_seqlens, "cu_seqlens", [None], kept)
        batch = starts.shape[0] - 1
        if batch < 0 or ctypes.c_int32.from_address(starts.data + 4 * batch).value != tokens:
            raise InvalidArgumentError(f"cu_seqlens does not end with the {tokens} tokens of x")
        step.cu_seqlens = starts.data
        return batch

    def _set_cache(self, step: MlaStep, cache: _Lent, kv_lens: Any, block_table: Any, kept: List[Any]) -> None:
        rows = self.page_size or None
        _check(cache, "cache", self.dtype, [None if rows else step.batch, rows, self.width])
        if cache.shape[2] > 1 and cache.strides[2] != 1:
            raise InvalidArgumentError("cache: the elements of a row must lie side by side")
        for axis, stride in enumerate(cache.strides[:2]):
            if cache.shape[axis] > 1 and stride <= 0 and 0 not in cache.shape:
                raise InvalidArgumentError(f"cache has a stride of {stride} at dimension {axis}; copy it")
        step.cache.data, step.cache.batch, step.cache.token = cache.data, cache.strides[0], cache.strides[1]
        if kv_lens is not None:
            step.kv_lens = self._list(kv_lens, "kv_lens", [step.batch], kept).data
        if (block_table is not None) != bool(rows):
            raise InvalidArgumentError(f"block_table is {'missing' if rows else 'given'}, and page_size is {rows or 0}")
        if not rows:
            step.cache_rows = cache.shape[1]
            return
        table = self._list(block_table, "block_table", [step.batch, None], kept)
        step.num_pages, step.block_table, step.max_pages = cache.shape[0], table.data, table.shape[1]
        step.block_table_stride = table.strides[0] if step.batch > 1 else 0

    @staticmethod
    def _set_lists(step: MlaStep, kv_ids: Any, kv_id_lens: Any, lead: List[int], kept: List[Any]) -> None:
        for name, value, dims in (("kv_ids", kv_ids, [*lead, None]), ("kv_id_lens", kv_id_lens, lead)):
            if value is None:
                continue
            lent = _lend(_numbers(value, "i", name), name, False)
            _check(lent, name, "i32", list(dims))
            if not _is_contiguous(lent):
                raise InvalidArgumentError(f"{name} is not contiguous")
            kept.append(lent)
            setattr(step, name, lent.data)
            if name == "kv_ids":
                step.num_ids = lent.shape[-1]

    def _set_rotary(self, step: MlaStep, cos: Any, sin: Any, positions: Any, tokens: int, kept: List[Any]) -> None:
        rows: Optional[int] = None
        for name, value in (("cos", cos), ("sin", sin)):
            lent = _lend(value, name, False)
            _check(lent, name, "f32", [rows, self._half])
            if not _is_contiguous(lent):
                raise InvalidArgumentError(f"{name} is not contiguous")
            rows = step.num_positions = lent.shape[0]
            setattr(step, name, lent.data)
            kept.append(lent)
        if positions is not None:
            step.positions = self._list(positions, "positions", [tokens], kept).data
