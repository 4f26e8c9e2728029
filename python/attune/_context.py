"""Contexts: caches and threads."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Callable, Dict, NamedTuple, Optional

from ._errors import InvalidArgumentError, InvalidTypeError
from ._library import check as accept
from ._library import lib, when_freed
from ._structs import EVENT_FN, LOG_FN, ContextOptions, EventStruct, MachineInfo, Statistics, sized
from ._values import flag, integer, kind, path, text

_MODES = {None: 0, "in-process": 1, "worker": 2, "never": 3}
_LEVELS = {None: 0, "none": 1, "error": 2, "warning": 3, "info": 4, "debug": 5}
_EVENTS = "miss disk_hit compile_begin compile_end evicted damaged swapped bundle_hit tier0_hit".split()


class Event(NamedTuple):
    """What a context did: a `kind` ("miss", "disk_hit", "compile_begin", "compile_end", "evicted", "damaged",
    "swapped", "bundle_hit", "tier0_hit"); the `status` of a compile that ended, 0 for success; the `key` of the kernel,
    32 hex digits; the `problem`; a `message`; the `milliseconds` of a compile, or of reading and loading."""

    kind: str
    status: int
    key: str
    problem: str
    message: str
    milliseconds: float

    @staticmethod
    def of(one: EventStruct) -> Event:
        name = _EVENTS[one.kind] if one.kind < len(_EVENTS) else str(one.kind)
        key, problem, message = (
            (text or b"").decode("utf-8", "replace") for text in (one.key, one.problem, one.message)
        )
        return Event(name, one.status, key, problem, message, one.milliseconds)


def _optional(convert: Callable[[Any, str], bytes], value: Any, name: str) -> Optional[bytes]:
    return None if value is None else convert(value, name)


def _destroy(pointer: int, log: Any) -> None:
    # `log` is the callback that the library may call until now.
    lib.attune_context_destroy(pointer)


class Context:
    """Caches of kernels and threads to run them. Any number of threads may use one at once, and children after a fork.

    Most programs need none: functions with `context=None` use `default_context()`.

    max_workers: threads of attune's own pool, the caller included; 0: as many as the process may use CPUs.
    isa, machine: an instruction set and a tuning class other than this CPU's.
    cache_dir, cache_base: directories of the disk cache; "" for none. attune only reads cache_base.
    memory_cache_bytes, disk_cache_bytes: limits of the caches; 0 for the defaults.
    compile_mode: "in-process", "worker", or "never": tier 0 or the virtual machine runs kernels that no cache has.
    compile_timeout_ms, compile_processes: limits of workers.
    allow_interpreter: run by the interpreter, slowly, if there is no machine code.
    target: an instruction set to interpret for, which this CPU may lack.
    check: refuse calls whose inputs have NaN or infinity that reaches an output, or whose sequences append to a page
        that another one uses; also by ATTUNE_CHECK=1.
    stderr_level: "error", "warning", "info" or "debug": lines on stderr about misses, compiles and failures; "none": no
        lines, whatever ATTUNE_LOG says.
    log: a function of a level (0 error, 1 warning, 2 information) and a message.
    cache_pack: a signed pack of kernels. cache_keys: the directory of the public keys that may have signed it.
    machine_code_only: compile() raises if a kernel cannot be compiled; the virtual machine does not run it.
    background_niceness: of the thread that compiles for plans, from 0 (that of the thread that starts it) to 19.
    strict: compile nothing: a kernel that no cache has raises NotCachedError; also by ATTUNE_STRICT=1.
    record: a file that gets a line for each kernel that had to be compiled; "" for none, whatever ATTUNE_RECORD says.
    event: a function of an Event (a miss, a compile, a disk hit …), called on the thread where it happens.
    """

    def __init__(
        self,
        *,
        max_workers: int = 0,
        isa: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_base: str | os.PathLike[str] | None = None,
        memory_cache_bytes: int = 0,
        disk_cache_bytes: int = 0,
        compile_mode: str | None = None,
        compile_timeout_ms: int = 0,
        compile_processes: int = 0,
        allow_interpreter: bool = False,
        target: str | None = None,
        machine: str | None = None,
        log: Callable[[int, str], None] | None = None,
        check: bool = False,
        stderr_level: str | None = None,
        cache_pack: str | os.PathLike[str] | None = None,
        cache_keys: str | os.PathLike[str] | None = None,
        machine_code_only: bool = False,
        background_niceness: int = 0,
        strict: bool = False,
        record: str | os.PathLike[str] | None = None,
        event: Callable[[Event], None] | None = None,
    ) -> None:
        if not isinstance(compile_mode, (str, type(None))) or compile_mode not in _MODES:
            raise InvalidArgumentError(
                f"compile_mode is {compile_mode!r}; it must be 'in-process', 'worker' or 'never'"
            )
        if not isinstance(stderr_level, (str, type(None))) or stderr_level not in _LEVELS:
            raise InvalidArgumentError(
                f"stderr_level is {stderr_level!r}; it must be 'none', 'error', 'warning', 'info' or 'debug'"
            )
        for name, function in (("log", log), ("event", event)):
            if function is not None and not callable(function):
                raise InvalidTypeError(f"{name} is {kind(function)}; it must be a function")
        options = sized(ContextOptions)
        callback = None
        if log is not None:
            callback = LOG_FN(lambda user, level, message: log(level, message.decode("utf-8", "replace")))
            options.log = callback
        options.max_workers = integer(max_workers, "max_workers")
        options.isa, options.machine = _optional(text, isa, "isa"), _optional(text, machine, "machine")
        options.target = _optional(text, target, "target")
        options.cache_dir = _optional(path, cache_dir, "cache_dir")
        options.cache_base = _optional(path, cache_base, "cache_base")
        options.memory_cache_bytes = integer(memory_cache_bytes, "memory_cache_bytes", 0, 2**64 - 1)
        options.disk_cache_bytes = integer(disk_cache_bytes, "disk_cache_bytes", 0, 2**64 - 1)
        options.compile_mode = _MODES[compile_mode]
        options.compile_timeout_ms = integer(compile_timeout_ms, "compile_timeout_ms")
        options.compile_processes = integer(compile_processes, "compile_processes")
        options.allow_interpreter = flag(allow_interpreter, "allow_interpreter")
        options.check = flag(check, "check")
        options.stderr_level = _LEVELS[stderr_level]
        options.cache_pack = _optional(path, cache_pack, "cache_pack")
        options.cache_keys = _optional(path, cache_keys, "cache_keys")
        options.machine_code_only = flag(machine_code_only, "machine_code_only")
        options.background_niceness = integer(background_niceness, "background_niceness", 0, 19)
        options.strict, options.record = flag(strict, "strict"), _optional(path, record, "record")
        told = None
        if event is not None:
            told = EVENT_FN(lambda user, one: event(Event.of(one.contents)))
            options.event = ctypes.cast(told, ctypes.c_void_p)
        pointer = ctypes.c_void_p()
        accept(lib.attune_context_create(ctypes.byref(options), ctypes.byref(pointer)))
        self._pointer = pointer
        when_freed(self, _destroy, pointer, (callback, told))

    def statistics(self) -> Dict[str, int]:
        """Counts since the context was made: memory_hits, disk_hits, compiles …"""
        statistics = sized(Statistics)
        accept(lib.attune_get_statistics(self._pointer, ctypes.byref(statistics)))
        return {name: getattr(statistics, name) for name, *_ in Statistics._fields_[1:]}

    def machine(self) -> Dict[str, Any]:
        """The machine and the build: cpu, isa, llvm, cache_dir …"""
        info = sized(MachineInfo)
        accept(lib.attune_get_machine_info(self._pointer, ctypes.byref(info)))
        result = {}
        for name, *_ in MachineInfo._fields_[1:]:
            value = getattr(info, name)
            result[name] = value if isinstance(value, int) else (value or b"").decode("utf-8", "replace")
        return result

    def __repr__(self) -> str:
        machine = self.machine()
        return f"<attune.Context of {machine['max_workers']} threads, {machine['isa']}, cache {machine['cache_dir']!r}>"

    def __copy__(self) -> Context:
        return self  # of which there is one, as of a file

    def __deepcopy__(self, memo: dict) -> Context:
        return self

    def __reduce__(self):
        raise TypeError("an attune.Context cannot be pickled: it holds threads and code. Pickle attune.Problem")


_lock = threading.Lock()
_default: Optional[Context] = None


def default_context() -> Context:
    """The context of this process, made by the first call. Its options come from the environment."""
    global _default
    if _default is None:
        with _lock:
            if _default is None:
                _default = Context()
    return _default


def as_context(context: Any) -> Context:
    """A context, or the default one for None."""
    if context is None:
        return default_context()
    if not isinstance(context, Context):
        raise InvalidTypeError(f"context is {kind(context)}; it must be an attune.Context")
    return context


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)
