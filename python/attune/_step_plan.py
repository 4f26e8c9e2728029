"""A step of an Attention, planned once for all layers."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Dict

from ._errors import InvalidArgumentError
from ._library import check, lib, when_freed
from ._structs import Step
from ._tensor import layout

if TYPE_CHECKING:
    from ._steps import Attention

_READY = 8  # forms of a layer's tensors that a plan remembers


class StepPlan:
    """A step that Attention.plan() has checked and divided into tasks, for all layers to run on tensors of their own.

        plan = attention.plan(cu_seqlens_q=starts, kv_lens=lens, block_table=table, num_pages=pages)
        for layer in layers:
            out = plan.run(q, k, v, k_cache=layer.k_cache, v_cache=layer.v_cache)

    The plan has copies of the lists. Any number of threads may run it at once.
    """

    def __init__(self, attention: Attention, step: Step, sizes: Dict[str, int], kept: list) -> None:
        pointer = ctypes.c_void_p()
        self._handle = attention._open()
        check(lib.attune_step_plan_create(self._handle.pointer, ctypes.byref(step), ctypes.byref(pointer)))
        when_freed(self, _destroy, pointer, self._handle)
        self._pointer, self._attention, self._sizes = pointer, attention, sizes
        self._tokens = {"q": _last(step.cu_seqlens_q, step.batch)}
        starts_kv = step.cu_seqlens_kv or (step.cu_seqlens_q if attention.kv == "tensors" or attention.appends else 0)
        self._tokens["k"] = self._tokens["v"] = _last(starts_kv, step.batch)
        self._num_pages = step.num_pages
        self._ready: Dict[tuple, Step] = {}
        del kept  # until here the lists lived

    def _refuse(self, given: Dict[str, Any]) -> None:
        attention = self._attention
        for name in given:
            if name not in attention._places:
                raise InvalidArgumentError(f"{name} was given to a plan of an attention whose kv is {attention.kv!r},"
                                           f" with appends={attention.appends}")

    def _check(self, given: Dict[str, Any]) -> None:
        """That the sequences end within the tensors, and pages within the caches: the library sees pointers only."""
        for name, least in self._tokens.items():
            if name in given and given[name].shape[0] < least:
                own = given[name].shape[0]
                raise InvalidArgumentError(f"{name} has {own} tokens, but the plan's sequences have {least}")
        for name in ("k_cache", "v_cache") if self._attention.kv == "paged" else ():
            if name in given and given[name].shape[0] < self._num_pages:
                own = given[name].shape[0]
                raise InvalidArgumentError(f"{name} has {own} pages; the plan was made for {self._num_pages}")

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
        max_threads: int = 0,
        runner: Any = None,
        cancel: Any = None,
        **bindings: Any,
    ) -> Any:
        """Equals Attention.run() of a step with the plan's lists, bit for bit. Caches have at least as many pages as
        the plan was made for. Each run may have other tensors, with other strides."""
        attention = self._attention
        kept: list = []
        given = dict(
            q=q, k=k, v=v, k_cache=k_cache, v_cache=v_cache, k_scale=k_scale, v_scale=v_scale, out=out, lse=lse
        )
        given = {name: value for name, value in given.items() if value is not None}
        parts = [(name, layout(value)) for name, value in given.items()]
        key = tuple(parts) if all([known is not None for _, known in parts]) else None
        ready = self._ready.get(key) if key else None
        if ready is not None:
            step = attention._again(ready, given)
        else:
            self._refuse(given)
            step = attention._fill(given, kept, dict(self._sizes))
            if key:
                if len(self._ready) >= _READY:
                    self._ready.clear()
                self._ready[key] = Step.from_buffer_copy(step)
        self._check(given)
        out, lse = attention._complete(step, (q, v, out, lse), bindings, max_threads, runner, cancel, kept)
        check(lib.attune_step_plan_run(self._pointer, ctypes.byref(step)))
        del kept  # until here they lived
        return out if "lse" not in attention._places else (out, lse)

    def __repr__(self) -> str:
        return f"<attune.StepPlan of {self._sizes.get('batch', 0)} sequences, {self._attention!r}>"

    def __deepcopy__(self, memo: dict) -> StepPlan:
        return self


def _last(starts: int, batch: int) -> int:
    return ctypes.c_int32.from_address(starts + 4 * batch).value if starts else 0


def _destroy(pointer: ctypes.c_void_p, handle: Any) -> None:
    lib.attune_step_plan_destroy(pointer)
