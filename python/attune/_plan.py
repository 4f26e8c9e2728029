"""Plans: one handle for a call whose sizes vary."""

from __future__ import annotations

import ctypes
from typing import Any, Dict

from ._context import Context, as_context
from ._kernel import Call
from ._library import check, lib, quick, when_freed
from ._problem import Problem, as_problem
from ._structs import Arguments, PlanInfo, PlanOptions, sized
from ._values import MOST_DEADLINE_US, flag, integer, text

_byref = ctypes.byref
_ARGUMENTS_BYTES = ctypes.sizeof(Arguments)


def _destroy(pointer: ctypes.c_void_p, context: Context) -> None:
    lib.attune_plan_destroy(pointer)


class Plan(Call):
    """One handle for a call whose sizes vary: prompts of all lengths, then tokens one by one.

    The problem leaves seq_q, seq_kv or both open (``seq_q=DYNAMIC``). Kernels are compiled when first needed: one for
    few rows, one for many, and more for lengths that repeat. Batch, heads and strides may vary from call to call.

    specialise: False: never compile a kernel for lengths that repeat.
    repeats: calls in a row with the same lengths after which these get a kernel. If the layers of a model share a plan,
        set it to more than the number of layers; 3 is for a plan of one layer.
    background: compile kernels for which there is a fallback in a thread of its own. No call waits for them.
    least_gain: compile for lengths only if that is expected to be so many percent faster.
    deadline_us: the most microseconds that a call waits for a compile, up to 60,000,000; then a fallback computes. 0:
        it never waits. None: ATTUNE_DEADLINE_US, else as long as it takes.
    """

    def __init__(
        self,
        problem: str | Problem,
        specialise: bool = True,
        context: Context | None = None,
        repeats: int = 3,
        background: bool = False,
        least_gain: int = 0,
        deadline_us: int | None = None,
    ) -> None:
        problem, context = as_problem(problem), as_context(context)
        specialise = flag(specialise, "specialise")
        options = sized(PlanOptions)
        options.max_specialised, options.repeats = 8 if specialise else 0, integer(repeats, "repeats")
        options.background, options.least_gain = flag(background, "background"), integer(least_gain, "least_gain")
        deadline = -1 if deadline_us is None else integer(deadline_us, "deadline_us", 0, MOST_DEADLINE_US)
        options.deadline_us = deadline
        pointer = ctypes.c_void_p()
        check(lib.attune_plan_create(context._pointer, problem._struct, _byref(options), _byref(pointer)))
        self._pointer, self._specialise, self._repeats = pointer, specialise, options.repeats
        self._background, self._least_gain = bool(options.background), options.least_gain
        self._deadline_us = deadline_us
        when_freed(self, _destroy, pointer, context)
        self._describe(problem, context)
        check(quick.attune_plan_arguments_init_sized(pointer, _byref(self._blank), _ARGUMENTS_BYTES))

    def _bind(self, arguments: Arguments, name: bytes, address: int) -> int:
        return quick.attune_plan_bind(self._pointer, _byref(arguments), name, address)

    def _set_size(self, arguments: Arguments, name: str, value: int) -> None:
        value = integer(value, f"the size {name}", -(2**63), 2**63 - 1)
        check(quick.attune_plan_set_size(self._pointer, _byref(arguments), text(name, "a name in sizes"), value))

    def _go(self, arguments: Arguments, options: Any) -> int:
        return lib.attune_plan_run(self._pointer, _byref(arguments), options)

    @property
    def info(self) -> Dict[str, int]:
        """Counts: kernels compiled and calls, by kind."""
        info = sized(PlanInfo)
        check(lib.attune_plan_get_info(self._pointer, _byref(info)))
        return {name: getattr(info, name) for name, _ in PlanInfo._fields_[1:]}

    def __reduce__(self):
        options = (self._repeats, self._background, self._least_gain, self._deadline_us)
        return (Plan, (self.problem, self._specialise, None, *options))
