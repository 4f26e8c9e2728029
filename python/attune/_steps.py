"""Attention: described once, then run on the tensors of each step."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

from ._attention import LAYOUTS, _numbers
from ._context import Context, as_context
from ._errors import InvalidArgumentError
from ._lent import _check_dtype, _check_list, _distances, _lend, _list_of
from ._library import check, lib, quick, when_freed
from ._problem import _NAMES, Problem, TensorInfo, _pair, _plain
from ._step_plan import StepPlan
from ._structs import AttentionDesc, AttentionInfo, Binding, CacheBytes, Step, sized
from ._tensor import address, empty, layout, lend
from ._values import MOST_DEADLINE_US, choice, flag, integer, number, set_threads, text

_KINDS = ("tensors", "cache", "paged")
_SCALES = tuple("none head token group channel inline inline_min token_min group_min channel_min".split())
_READY = 64  # steps that an attention remembers
_PANEL_TOKENS = 16
_LISTS = ("cu_seqlens_q", "cu_seqlens_kv", "kv_lens", "block_table")
_LARGE = (-(2**63), 2**63 - 1)


class CacheSize(NamedTuple):
    """The size of caches: the bytes of each tensor (0: there is none), and the length of a row, one key of one head, in
    elements, or in bytes for i4 and inline scales."""

    k_bytes: int
    v_bytes: int
    k_scale_bytes: int
    v_scale_bytes: int
    k_row: int
    v_row: int


class _Place(NamedTuple):
    """A tensor of a step: its dims in the order in which callers have them. A name stands for a size of the step."""

    info: TensorInfo
    dims: Tuple[Union[int, str], ...]
    axes: Tuple[Optional[int], Optional[int], Optional[int]]  # where dims has sequences (or pages), heads and tokens


class _Handle:
    """What the library made. Whoever runs a step keeps it alive, so that close() in another thread is safe."""

    def __init__(self, context: Context, desc: AttentionDesc) -> None:
        pointer = ctypes.c_void_p()
        check(lib.attune_attention_create(context._pointer, ctypes.byref(desc), ctypes.byref(pointer)))
        self.pointer = pointer
        when_freed(self, _destroy, pointer, context)


def _destroy(pointer: ctypes.c_void_p, context: Context) -> None:
    lib.attune_attention_destroy(pointer)


def _dtype(value: Any, name: str) -> int:
    plain = _plain(value, name)
    if plain not in _NAMES[1:]:
        raise InvalidArgumentError(f"{name} is {plain!r}; it must be one of {', '.join(_NAMES[1:])}")
    return _NAMES.index(plain)


def _extra(value: str | Mapping[str, Any] | None) -> Optional[bytes]:
    if isinstance(value, Mapping):
        value = ",".join(_pair(name, item) for name, item in value.items() if item is not None)
    return text(value, "extra") if value else None


class Attention:
    """Attention for engines: described once, then run on the tensors of each step.

        attention = attune.Attention(num_heads=32, num_kv_heads=8, head_dim=128, dtype="bf16", is_causal=True,
                                     kv="paged", page_size=16, appends=True)
        cache = attune.PagedCache(attention, num_pages=1024)
        out = attention.run(q, k, v, cu_seqlens_q=starts, **cache.batch(sequences))

    num_heads, num_kv_heads, head_dim, head_dim_v: num_kv_heads is by default num_heads, head_dim_v is head_dim.
    dtype: of q, k, v and out: "f32", "f16", "bf16" or "f64", or a dtype of NumPy or torch.
    layout: the order of dimensions. "thd": [tokens, heads, dim], sequences one after the other as cu_seqlens_q says.
        "bshd": [batch, seq, heads, dim]. "bhsd": [batch, heads, seq, dim].
    is_causal: a query attends to no key after it; the last query of a sequence is at its last key.
    window_left, window_right: the number of keys before and after a query to which it attends; -1: all.
    softmax_scale: by default 1 / sqrt(head_dim).
    kv: where keys and values are. "tensors": in k and v of the step. "cache": in k_cache and v_cache,
        [batch, seq, kv_heads, dim], with "bhsd" [batch, kv_heads, seq, dim]; not with "thd". "paged": the same in
        pages, [pages, page_size, kv_heads, dim], with "bhsd" [pages, kv_heads, page_size, dim].
    kv_dtype, kv_scales: of the caches, also "i8", "f8" and "i4", with the scales "head", "token", "group" …
        (attune/types.h).
    appends: a step first writes its k and v after each sequence's cached keys.
    has_lse: a step also returns the logarithm of the sum of exponentials.
    reproducible: a row has the same bits in every batch, chunk and kind of step.
    extra: other fields of the problem, as text ("logits_soft_cap=30,has_sinks=1") or as a dict.
    deadline_us: the most microseconds that a step waits for a compile, up to 60,000,000; then a fallback computes. 0:
        it never waits. None: ATTUNE_DEADLINE_US, else as long as it takes.

    Kernels are compiled by the first step of a kind, or by prepare(). Any number of threads may run steps at once.
    close(), or the end of a `with` block, frees it when the last running step has ended.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int = 0,
        head_dim_v: int = 0,
        dtype: Any = "f32",
        layout: str = "thd",
        is_causal: bool = False,
        window_left: int = -1,
        window_right: int = -1,
        softmax_scale: float | None = None,
        kv: str = "tensors",
        page_size: int = 0,
        kv_dtype: Any = None,
        kv_scales: str | None = None,
        appends: bool = False,
        has_lse: bool = False,
        reproducible: bool = False,
        extra: str | Mapping[str, Any] | None = None,
        deadline_us: int | None = None,
        context: Context | None = None,
    ) -> None:
        desc = AttentionDesc()
        check(quick.attune_attention_desc_init(ctypes.byref(desc), ctypes.sizeof(desc)))
        desc.num_heads, desc.head_dim = integer(num_heads, "num_heads", *_LARGE), integer(head_dim, "head_dim", *_LARGE)
        desc.num_kv_heads = integer(num_kv_heads, "num_kv_heads", *_LARGE)
        desc.head_dim_v = integer(head_dim_v, "head_dim_v", *_LARGE)
        desc.window_left = integer(window_left, "window_left", *_LARGE)
        desc.window_right = integer(window_right, "window_right", *_LARGE)
        desc.page_size = integer(page_size, "page_size", *_LARGE)
        desc.layout, desc.kv = choice(layout, LAYOUTS, "layout"), choice(kv, _KINDS, "kv")
        desc.dtype = _dtype(dtype, "dtype")
        desc.kv_dtype = 0 if kv_dtype is None else _dtype(kv_dtype, "kv_dtype")
        desc.kv_scales = 0 if kv_scales is None else 1 + choice(kv_scales, _SCALES, "kv_scales")
        desc.is_causal, desc.appends = flag(is_causal, "is_causal"), flag(appends, "appends")
        desc.has_lse, desc.reproducible = flag(has_lse, "has_lse"), flag(reproducible, "reproducible")
        if softmax_scale is not None:
            desc.softmax_scale = number(softmax_scale, "softmax_scale")
        if deadline_us is not None:
            desc.deadline_us = integer(deadline_us, "deadline_us", 0, MOST_DEADLINE_US)
        desc.extra = _extra(extra)
        self.context = as_context(context)
        self.layout, self.kv, self.page_size, self.appends = layout, kv, desc.page_size, bool(desc.appends)
        self._handle: Optional[_Handle] = _Handle(self.context, desc)
        self._options = dict(
            num_heads=num_heads, head_dim=head_dim, num_kv_heads=num_kv_heads, head_dim_v=head_dim_v, dtype=dtype,
            layout=layout, is_causal=is_causal, window_left=window_left, window_right=window_right,
            softmax_scale=softmax_scale, kv=kv, page_size=page_size, kv_dtype=kv_dtype, kv_scales=kv_scales,
            appends=appends, has_lse=has_lse, reproducible=reproducible, extra=extra, deadline_us=deadline_us,
        )
        self._problem = self._read_problem()
        self._places, self._bound = self._settle()
        self._ready: Dict[tuple, Step] = {}

    def _open(self) -> _Handle:
        handle = self._handle
        if handle is None:
            raise InvalidArgumentError("the attention is closed")
        return handle

    def _read_problem(self) -> Problem:
        pointer = self._open().pointer
        size = quick.attune_attention_problem(pointer, None, 0) + 1
        canonical = ctypes.create_string_buffer(size)
        quick.attune_attention_problem(pointer, canonical, size)
        return Problem(canonical.value.decode())

    # ---- What a step has ----

    def _place(self, name: str, info: TensorInfo) -> _Place:
        """Dims of the problem are [sequence or page, head, token, row]; scales and lse keep that order."""
        is_ragged, shape = self.layout == "thd", list(info.shape)
        if name.endswith("_scale") and len(shape) < 3:
            return _Place(info, tuple(shape), (None, None, None))
        cached = name.endswith(("_cache", "_scale"))
        if cached:
            sizes = ("num_pages", self.page_size) if self.kv == "paged" else ("batch", "seq_kv")
            is_panels = name.endswith("_cache") and self._problem.fields.get(name[0] + "_layout") == "panels"
            dims: list = [sizes[0], shape[1], ("panels" if shape[2] < 0 else shape[2]) if is_panels else sizes[1]]
        else:
            of_keys = name in "kv" and self.kv == "tensors"
            dims = ["batch", shape[1], ("tokens_kv" if is_ragged else "seq_kv") if of_keys else
                    ("tokens" if is_ragged else "seq_q")]
        dims += shape[3:]
        order = [0, 1, 2, 3][: len(dims)]
        if name != "lse" and not name.endswith("_scale") and self.layout != "bhsd":
            order = [0, 2, 1, 3]
        if is_ragged and not cached:
            order.remove(0)
        axes = tuple(order.index(axis) if axis in order else None for axis in range(3))
        return _Place(info, tuple(dims[axis] for axis in order), (axes[0], axes[1], axes[2]))

    def _settle(self) -> Tuple[Dict[str, _Place], Dict[str, TensorInfo]]:
        """The tensors of a step by the names that run() has for them; those that `extra` adds."""
        names = {"q": "q", "k": "k", "v": "v", "out": "out", "lse": "lse", "k_scale": "k_scale", "v_scale": "v_scale"}
        if self.kv != "tensors":
            names.update(k="k_cache", v="v_cache", k_new="k", v_new="v")
        places, bound = {}, {}
        for info in self._problem.tensors:
            name = names.get(info.name)
            if name:
                places[name] = self._place(name, info)
            elif info.name not in _LISTS:
                bound[info.name] = info
        return places, bound

    @property
    def problem(self) -> Problem:
        """The problem, for `attune.explain` and the command."""
        return self._problem

    # ---- A step ----

    def _view(self, step: Step, name: str, value: Any, sizes: Dict[str, int], kept: list) -> None:
        place = self._places[name]
        lent = _lend(value, name, place.info.is_output)
        kept.append(lent.kept)
        _check_dtype(lent, place.info.dtype, name)
        fits = len(lent.shape) == len(place.dims)
        for dim, wanted in zip(lent.shape, place.dims) if fits else ():
            fits = fits and dim == (sizes.setdefault(wanted, dim) if isinstance(wanted, str) else wanted)
        if not fits:
            wanted = ", ".join(str(sizes.get(dim, dim) if isinstance(dim, str) else dim) for dim in place.dims)
            raise InvalidArgumentError(f"{name} has the shape {lent.shape}; it must be [{wanted}]")
        view = getattr(step, name)
        view.data = lent.data
        if 0 not in lent.shape:
            has_rows = len(place.info.shape) != 3
            view.batch, view.head, view.token = _distances(lent, name, place.axes, has_rows)

    def _list(self, step: Step, name: str, value: Any, sizes: Dict[str, int], kept: list) -> None:
        lent = _lend(value, name, False)
        kept.append(lent.kept)
        _check_list(lent, name)
        count = lent.shape[0] - name.startswith("cu_")
        if count < 0 or count != sizes.setdefault("batch", count):
            raise InvalidArgumentError(f"{name} has {lent.shape[0]} elements at dimension 0, but the batch is"
                                       f" {sizes.get('batch', 0)}")
        setattr(step, name, lent.data)
        if name == "block_table":
            step.max_pages, step.block_table_stride = lent.shape[1], lent.strides[0] if count > 1 else 0

    def _fill(self, given: Mapping[str, Any], kept: list, sizes: Dict[str, int]) -> Step:
        step: Step = sized(Step)
        for name in ("cu_seqlens_q", "cu_seqlens_kv"):  # these have the batch
            if name in given:
                self._list(step, name, given[name], sizes, kept)
        for name in self._places:
            if name in given:
                self._view(step, name, given[name], sizes, kept)
            elif name not in ("out", "lse"):
                raise InvalidArgumentError(f"{name} is missing")
        for name in ("kv_lens", "block_table"):
            if name in given:
                self._list(step, name, given[name], sizes, kept)
        if "panels" in sizes:
            sizes.setdefault("seq_kv", sizes["panels"] * _PANEL_TOKENS)
        step.batch, step.seq_q = sizes.get("batch", 0), sizes.get("seq_q", 0)
        step.seq_kv, step.num_pages = sizes.get("seq_kv", 0), sizes.get("num_pages", 0)
        return step

    def _refuse(self, given: Mapping[str, Any]) -> None:
        lists = {"cu_seqlens_q": self.layout == "thd", "kv_lens": self.kv != "tensors",
                 "cu_seqlens_kv": self.layout == "thd" and self.kv == "tensors", "block_table": self.kv == "paged"}
        for name in given:
            if name not in self._places and not lists.get(name):
                raise InvalidArgumentError(f"{name} was given to an attention whose layout is {self.layout!r} and whose"
                                           f" kv is {self.kv!r}, with appends={self.appends}")
        for name, is_needed in lists.items():
            if is_needed and name not in given and name != "cu_seqlens_kv":
                raise InvalidArgumentError(f"{name} is missing")

    @staticmethod
    def _check_tokens(step: Step, given: Mapping[str, Any]) -> None:
        """That the sequences end within the tensors: the library sees pointers only."""
        for name, tensor in (("cu_seqlens_q", "q"), ("cu_seqlens_kv", "k")):
            starts = getattr(step, name) or (step.cu_seqlens_q if tensor == "k" and "kv_lens" not in given else None)
            if not starts or tensor not in given:
                continue
            last = ctypes.c_int32.from_address(starts + 4 * step.batch).value
            if last > given[tensor].shape[0]:
                raise InvalidArgumentError(f"{name} ends at {last}, but {tensor} has {given[tensor].shape[0]} tokens")

    def _bind(self, tensors: Mapping[str, Any], kept: list) -> Any:
        bindings = (Binding * len(tensors))()
        for binding, (name, value) in zip(bindings, tensors.items()):
            if name not in self._bound:
                known = ", ".join(self._bound) or "nothing"
                raise InvalidArgumentError(f"the attention has no tensor named {name!r}: its extra asks for {known}")
            if isinstance(value, (list, tuple, range)):
                value = _numbers(value, "i" if self._bound[name].dtype == "i32" else "f", name)
            info = self._bound[name]
            where, keep = lend(value, name, info.is_output, lambda info=info: info if -1 not in info.shape else None)
            kept += [value, keep]
            binding.name, binding.tensor = name.encode(), where
        return bindings

    def _again(self, ready: Step, given: Mapping[str, Any]) -> Step:
        step = Step.from_buffer_copy(ready)
        for name, value in given.items():
            if name in self._places:
                getattr(step, name).data = address(value)
            else:
                setattr(step, name, address(value))
        return step

    def _new_out(self, q: Any, v: Any) -> Any:
        return empty((q,), self._places["out"].info.dtype, (*q.shape[:-1], self._places["out"].info.shape[-1]))

    def _new_lse(self, q: Any) -> Any:
        shape = list(q.shape[:-1])
        if self.layout != "bhsd":
            shape[-2:] = shape[:-3:-1]
        return empty((q,), self._places["lse"].info.dtype, shape)

    def _complete(
        self, step: Step, tensors: Tuple[Any, Any, Any, Any], bindings: Mapping[str, Any], max_threads: int,
        runner: Any, cancel: Any, kept: list
    ) -> Tuple[Any, Any]:
        """Puts what every run has into a step: outputs, which are made if they are missing, bindings, threads and the
        flag that ends it.

        tensors: q, v, out and lse. Returns out and lse."""
        q, v, out, lse = tensors
        if out is None:
            out = self._new_out(q, v)
            step.out.data = address(out)
        if lse is None and "lse" in self._places:
            lse = self._new_lse(q)
            step.lse.data = address(lse)
        if bindings:
            step.bindings, step.num_bindings = self._bind(bindings, kept), len(bindings)
        set_threads(step, max_threads, runner, cancel)
        return out, lse

    def run(
        self,
        q: Any,
        k: Any = None,
        v: Any = None,
        *,
        k_cache: Any = None,
        v_cache: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        out: Any = None,
        lse: Any = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_kv: Any = None,
        kv_lens: Any = None,
        block_table: Any = None,
        max_threads: int = 0,
        runner: Any = None,
        cancel: Any = None,
        **bindings: Any,
    ) -> Any:
        """Computes a step, appends if the attention does, and returns `out`, or (out, lse) with has_lse.

        Tensors are NumPy arrays, torch CPU tensors or anything with ``__dlpack__``, and are never copied. Rows must be
        contiguous; other strides are free. Everything is checked before anything is written.

        q, out: in the attention's layout. out is allocated if it is not given: torch's if q is a torch tensor.
        k, v: kv="tensors": the keys. appends: those to append, as many as queries.
        k_cache, v_cache, k_scale, v_scale: the caches, written to only if the attention appends. Scales are f32: of
            heads [kv_heads], of tokens [batch or pages, kv_heads, keys], of groups with one dim more.
        lse: [batch, heads, seq], with "thd" [heads, tokens].
        cu_seqlens_q, cu_seqlens_kv: "thd": [batch + 1]; sequence b has the tokens from cu_seqlens_q[b] to before
            cu_seqlens_q[b + 1]. Rows of no sequence are not computed: a new `out` has arbitrary numbers there.
            cu_seqlens_kv is that of k and v with kv="tensors", by default cu_seqlens_q.
        kv_lens: caches: [batch], the keys of each sequence, appended ones included.
        block_table: paged: [batch, max_pages], the pages of each sequence; or a list of lists of any lengths.
        max_threads: the most threads that may work, the caller included; 0 means all of the context's.
        runner: the host's threads, such as attune.torch.runner(); None: those of the context.
        cancel: an array of one int32. When another thread sets it to 1, the step ends by attune.CancelledError.
        bindings: the tensors that `extra` needs, by name: sinks, attn_bias, cos …
        """
        handle = self._open()
        given = dict(
            q=q, k=k, v=v, k_cache=k_cache, v_cache=v_cache, k_scale=k_scale, v_scale=v_scale, out=out, lse=lse,
            cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, kv_lens=kv_lens, block_table=block_table,
        )
        given = {name: value for name, value in given.items() if value is not None}
        parts = [(name, layout(value)) for name, value in given.items()]
        key = tuple(parts) if all([known is not None for _, known in parts]) else None
        ready = self._ready.get(key) if key else None
        kept: list = []
        if ready is not None:
            step = self._again(ready, given)
        else:
            self._refuse(given)
            lists = {name: _list_of(given[name], name) for name in _LISTS if name in given}
            if any(value is not given[name] for name, value in lists.items()):
                key = None  # converted anew in each call
            given.update(lists)
            step = self._fill(given, kept, {})
            if key:
                if len(self._ready) >= _READY:
                    self._ready.clear()
                self._ready[key] = Step.from_buffer_copy(step)
        self._check_tokens(step, given)
        out, lse = self._complete(step, (q, v, out, lse), bindings, max_threads, runner, cancel, kept)
        check(lib.attune_attention_run(handle.pointer, ctypes.byref(step)))
        del kept, handle  # until here they lived
        return out if "lse" not in self._places else (out, lse)

    def plan(
        self,
        *,
        cu_seqlens_q: Any = None,
        cu_seqlens_kv: Any = None,
        kv_lens: Any = None,
        block_table: Any = None,
        num_pages: int = 0,
        batch: int = 0,
        seq_q: int = 0,
        seq_kv: int = 0,
    ) -> StepPlan:
        """Checks a step and divides its work once, for layers that run it on tensors of their own.

        cu_seqlens_q, cu_seqlens_kv, kv_lens, block_table: as in run(). They are copied.
        num_pages: paged: the pages of each layer's caches, at least.
        batch: the number of sequences, if no list has it. seq_q, seq_kv: "bshd" and "bhsd": the queries of each
            sequence, and the keys of each in k or in the cache.
        """
        given = dict(cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, kv_lens=kv_lens, block_table=block_table)
        lists = {name: _list_of(value, name) for name, value in given.items() if value is not None}
        step: Step = sized(Step)
        kept: list = [lists]
        sizes: Dict[str, int] = {}
        self._refuse(lists)
        for name, value in lists.items():
            self._list(step, name, value, sizes, kept)
        sizes.setdefault("batch", integer(batch, "batch"))
        if self.layout != "thd":
            sizes["seq_q"], sizes["seq_kv"] = integer(seq_q, "seq_q"), integer(seq_kv, "seq_kv")
        step.batch, step.num_pages = sizes.get("batch", 0), integer(num_pages, "num_pages")
        step.seq_q, step.seq_kv = sizes.get("seq_q", 0), sizes.get("seq_kv", 0)
        return StepPlan(self, step, sizes, kept)

    # ---- The rest ----

    def prepare(self) -> None:
        """Compiles the kernels for decoding and prompts now, or loads them from the cache, so that no step waits."""
        handle = self._open()
        check(lib.attune_attention_prepare(handle.pointer))

    @property
    def info(self) -> Dict[str, int]:
        """What its steps have run so far: kernels that were compiled for it (compiled_calls), built-in ones of tier 0
        (tier0_calls), and the virtual machine (vm_calls). is_ready is 1 if no step waits for a compile."""
        info, handle = sized(AttentionInfo), self._open()
        check(quick.attune_attention_get_info(handle.pointer, ctypes.byref(info)))
        return {name: getattr(info, name) for name, _ in AttentionInfo._fields_[1:]}

    def cache_size(self, pages: int, seq_kv: int = 0) -> CacheSize:
        """The size of contiguous caches of `pages` pages, or with kv="cache" of `pages` sequences of seq_kv keys."""
        size, handle = sized(CacheBytes), self._open()
        pages, seq_kv = integer(pages, "pages", 0, _LARGE[1]), integer(seq_kv, "seq_kv", 0, _LARGE[1])
        check(quick.attune_attention_cache_size(handle.pointer, pages, seq_kv, ctypes.byref(size)))
        return CacheSize(*[getattr(size, name) for name in CacheSize._fields])

    def close(self) -> None:
        """Frees it, when the last running step has ended. Does nothing the second time."""
        self._handle = None

    def __enter__(self) -> Attention:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<attune.Attention of {str(self._problem)!r}, layout {self.layout!r}>"

    def __deepcopy__(self, memo: dict) -> Attention:
        return self

    def __reduce__(self):
        return (functools.partial(Attention, **self._options), ())
