"""Kernels: one compiled problem each."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping
from typing import Any, Dict, Optional, Tuple, Union

from ._context import Context, as_context
from ._errors import InvalidArgumentError, InvalidTypeError
from ._library import check, lib, quick, run_options, schedule_of, when_freed
from ._problem import _NAMES, Problem, TensorInfo, as_problem, tensors_of
from ._structs import SIZES, Arguments, KernelInfo, sized
from ._tensor import address, empty, layout, lend, spread
from ._values import integer, kind, number

_byref = ctypes.byref
_ARGUMENTS_BYTES = ctypes.sizeof(Arguments)
_READY = 64  # calls that a kernel remembers
_ORIGINS = ("memory", "disk", "compiler", "pack", "bundle", "vm", "tier0")
_ENGINES = ("jit", "interpreter", "vm")


def _is_mask(item: Tuple[str, Any]) -> bool:
    return item[0] in ("attn_mask", "attn_bias")


class Call:
    """What kernels and plans share: arguments by tensor name. A subclass binds and runs."""

    problem: Problem
    context: Context
    _tensors: Dict[str, TensorInfo]
    _names: Dict[str, bytes]
    _ready: Dict[tuple, Arguments]

    def _describe(self, problem: Problem, context: Context) -> None:
        self.problem, self.context = problem, context
        self._tensors = {tensor.name: tensor for tensor in tensors_of(problem)}
        self._names = {name: name.encode() for name in self._tensors}
        self._ready = {}
        self._has_scale = problem.fields.get("softmax_scale") == "dynamic"
        self._blank = Arguments()
        check(quick.attune_arguments_init_sized(_byref(self._blank), _ARGUMENTS_BYTES, problem._struct))

    def _bind(self, arguments: Arguments, name: bytes, address: int) -> int:
        raise NotImplementedError

    def _set_size(self, arguments: Arguments, name: str, value: int) -> None:
        if name not in SIZES:
            raise InvalidArgumentError(f"there is no size named {name!r}: sizes are {', '.join(sorted(SIZES))}")
        setattr(arguments, name, integer(value, f"the size {name}", -(2**63), 2**63 - 1))

    def _batch_of(self, tensors: Mapping[str, Any]) -> int:
        """The batch that the tensors tell; 0: none that is known here."""
        is_ragged = "cu_seqlens_q" in self._tensors
        for name in ("cu_seqlens_q",) if is_ragged else ("q", "x", "out"):
            value, info = tensors.get(name), self._tensors.get(name)
            shape = [len(value)] if isinstance(value, array) else [*getattr(value, "shape", ())]
            if info is not None and shape and len(shape) == len(info.shape):
                return int(shape[0]) - is_ragged
        return 0

    def _take(self, arguments: Arguments, tensors: Mapping[str, Any]) -> list:
        """Binds tensors, and gives what must be kept until the call is done."""
        kept = []
        for name, value in sorted(tensors.items(), key=_is_mask):  # the others tell what masks spread to
            if value is None:
                continue
            info = self._tensors.get(name)
            if info is None:
                known = ", ".join(self._tensors)
                raise InvalidArgumentError(f"the problem has no tensor named {name!r}: it has {known}")

            def wanted(name: str = name) -> TensorInfo:
                return next(item for item in tensors_of(self.problem, _byref(arguments)) if item.name == name)

            if _is_mask((name, value)):
                value = spread(value, info.shape, wanted)
            address, keep = lend(value, name, info.is_output, wanted)
            kept.append(keep)
            status = self._bind(arguments, self._names[name], address)
            if status:
                check(status)
        return kept

    def _scale(self, scale: Any) -> float:
        """The scale of one call. The library reads it only if the problem asks for one."""
        scale = number(scale, "softmax_scale")
        if not self._has_scale:
            raise InvalidArgumentError(f"softmax_scale is {scale:g}, but the problem lacks softmax_scale=dynamic")
        return scale

    def _arguments(
        self, tensors: Mapping[str, Any], sizes: Optional[Mapping[str, int]], scale: Optional[float] = None
    ) -> Tuple[Arguments, list]:
        arguments = Arguments.from_buffer_copy(self._blank)
        if scale is not None:
            arguments.softmax_scale = self._scale(scale)
        arguments.batch = max(self._batch_of(tensors), 0) or arguments.batch
        if sizes:
            if not isinstance(sizes, Mapping):
                raise InvalidTypeError(f"sizes is {kind(sizes)}; it must be a dict")
            for name, value in sizes.items():
                self._set_size(arguments, name, value)
        return arguments, self._take(arguments, tensors)

    # A call with tensors of the same layouts as one before needs their addresses only.

    @staticmethod
    def _key(tensors: Mapping[str, Any]) -> Optional[tuple]:
        key = tuple([(name, layout(value)) for name, value in tensors.items() if value is not None])
        return None if any([known is None for _, known in key]) else key

    def _again(self, ready: Arguments, tensors: Mapping[str, Any]) -> Arguments:
        arguments = Arguments.from_buffer_copy(ready)
        for name, value in tensors.items():
            if value is not None:
                place = ctypes.addressof(arguments) + self._tensors[name].pointer_offset
                ctypes.c_void_p.from_address(place).value = address(value)
        return arguments

    def _remember(self, key: tuple, arguments: Arguments) -> None:
        if len(self._ready) >= _READY:
            self._ready.clear()
        self._ready[key] = arguments

    def _outputs(self, arguments: Arguments, tensors: Mapping[str, Any]) -> Dict[str, Any]:
        """Allocates the outputs that `tensors` lacks."""
        result = {}
        for tensor in tensors_of(self.problem, _byref(arguments)):
            if tensor.is_output and tensors.get(tensor.name) is None:
                if tensor.is_input or -1 in tensor.shape:
                    raise InvalidArgumentError(f"{tensor.name} of shape {list(tensor.shape)} must be given")
                result[tensor.name] = empty(list(tensors.values()), tensor.dtype, tensor.shape)
        return result

    def _go(self, arguments: Arguments, options: Any) -> int:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<attune.{type(self).__name__} of {str(self.problem)!r}>"

    def __deepcopy__(self, memo: dict) -> Call:
        return self

    def run(
        self,
        *,
        sizes: Mapping[str, int] | None = None,
        max_threads: int = 0,
        softmax_scale: float | None = None,
        runner: Any = None,
        cancel: Any = None,
        **tensors: Any,
    ) -> None:
        """Runs on tensors given by name: ``kernel.run(q=q, k=k, v=v, out=out)``.

        Tensors are NumPy arrays, torch CPU tensors, or anything else with ``__dlpack__`` or the buffer protocol, with
        strides, and are never copied. A flat buffer is read as a contiguous tensor. A mask or bias is broadcast as in
        NumPy, except its last dim.
        sizes: sizes that the problem leaves open and no tensor has, and those that differ from the problem's, such as
            ``{"num_heads": 4}``. The batch is that of q or x, or of the sequences in cu_seqlens_q.
        max_threads: the most threads that may work, the caller included; 0 means all of the context's.
        softmax_scale: of this call, if the problem has ``softmax_scale=dynamic``.
        runner: the host's threads, such as attune.torch.runner(); None: those of the context.
        cancel: an array of one int32. When another thread sets it to 1, the call ends by attune.CancelledError.
        """
        key = None if sizes or softmax_scale is not None else self._key(tensors)
        ready = self._ready.get(key) if key else None
        if ready is not None:
            arguments, kept = self._again(ready, tensors), None
        else:
            arguments, kept = self._arguments(tensors, sizes, softmax_scale)
        status = self._go(arguments, run_options(max_threads, runner, cancel))
        if status:
            check(status)
        if key and ready is None:
            self._remember(key, arguments)
        del kept  # until here the tensors lived

    def __call__(
        self,
        *,
        sizes: Mapping[str, int] | None = None,
        max_threads: int = 0,
        softmax_scale: float | None = None,
        runner: Any = None,
        cancel: Any = None,
        **tensors: Any,
    ) -> Any:
        """Runs, and returns the outputs that `tensors` lacks: one, or a tuple of several.

        They are torch tensors if one of the inputs is, otherwise NumPy arrays.
        """
        arguments, kept = self._arguments(tensors, sizes, softmax_scale)
        outputs = self._outputs(arguments, tensors)
        kept += self._take(arguments, outputs)
        status = self._go(arguments, run_options(max_threads, runner, cancel))
        if status:
            check(status)
        del kept
        values = tuple(outputs.values())
        return values[0] if len(values) == 1 else values or None


def _release(pointer: ctypes.c_void_p, context: Context) -> None:
    lib.attune_kernel_release(pointer)


class Kernel(Call):
    """A compiled problem, made by `compile`. Any number of threads may run it at once.

    A kernel is pickled as its problem and schedule. Unpickling compiles it, or finds it in a cache.
    """

    def __init__(self, problem: Problem, schedule: str | None, context: Context) -> None:
        pointer = ctypes.c_void_p()
        check(lib.attune_compile(context._pointer, problem._struct, schedule_of(schedule), _byref(pointer)))
        self._pointer = pointer
        when_freed(self, _release, pointer, context)
        self._asked = schedule
        self._describe(problem, context)

    def _bind(self, arguments: Arguments, name: bytes, address: int) -> int:
        return quick.attune_bind_dlpack(_byref(arguments), self._pointer, name, address)

    def _go(self, arguments: Arguments, options: Any) -> int:
        return lib.attune_run_with(self.context._pointer, self._pointer, _byref(arguments), options)

    def workspace_bytes(
        self, *, sizes: Mapping[str, int] | None = None, max_threads: int = 0, runner: Any = None
    ) -> int:
        """Bytes of temporary memory of a call."""
        arguments, _ = self._arguments({}, sizes)
        size = ctypes.c_size_t()
        options = run_options(max_threads, runner, None)
        pointers = (self.context._pointer, self._pointer, _byref(arguments), options, _byref(size))
        check(quick.attune_workspace_size_with(*pointers))
        return size.value

    @property
    def info(self) -> Dict[str, Union[str, int, float]]:
        """Facts about the kernel: key, engine, origin, isa, schedule, compile_ms, code_bytes …"""
        info = sized(KernelInfo)
        check(lib.attune_kernel_get_info(self._pointer, _byref(info)))
        return {
            "key": info.key.decode(),
            "engine": _ENGINES[info.engine],
            "origin": _ORIGINS[info.origin],
            "isa": (info.isa or b"").decode(),
            "machine": (info.machine or b"").decode(),
            "schedule": info.schedule.decode(),
            "arithmetic": _NAMES[info.arithmetic],
            "num_phases": info.num_phases,
            "code_bytes": info.code_bytes,
            "scratch_bytes": info.scratch_bytes,
            "compile_ms": info.compile_ms,
        }

    def __reduce__(self):
        return (compile, (self.problem, self._asked))


def compile(
    problem: str | Problem, schedule: str | None = None, context: Context | None = None
) -> Kernel:
    """Returns a kernel for a problem: from memory, else from the disk cache, else newly compiled.

    schedule: text such as "strategy=q_lanes,lanes=8,…". attune chooses the numbers that it lacks. None: the tuned
        schedule if there is one, else attune's choice.
    """
    return Kernel(as_problem(problem), schedule, as_context(context))
