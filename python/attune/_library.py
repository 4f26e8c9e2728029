"""Finds libattune and declares its functions for ctypes.

Functions of `lib` give up the GIL while they run. Those of `quick` keep it, because they take less time than giving it
up and getting it back; none of them waits for anything.
"""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p
from typing import Any, Callable, List, Tuple, Union

from . import _errors, _tensor, _values
from ._structs import Arguments, RunOptions, Tensor

OLDEST = (0, 3)

# Name, type of the result, types of the arguments. c_int is attune_status: other than 0 raises.
_SLOW: List[Tuple[str, object, list]] = [
    ("attune_version", c_char_p, []),
    ("attune_status_name", c_char_p, [c_int]),
    ("attune_context_create", c_int, [c_void_p, POINTER(c_void_p)]),
    ("attune_context_destroy", None, [c_void_p]),
    ("attune_compile", c_int, [c_void_p, c_void_p, c_char_p, POINTER(c_void_p)]),
    ("attune_kernel_release", None, [c_void_p]),
    ("attune_kernel_get_info", c_int, [c_void_p, c_void_p]),
    ("attune_run_with", c_int, [c_void_p, c_void_p, POINTER(Arguments), c_void_p]),
    ("attune_run_interpreted", c_int, [c_void_p, c_void_p, c_char_p, POINTER(Arguments)]),
    ("attune_tune", c_int, [c_void_p, c_void_p, POINTER(Arguments), c_void_p, c_void_p]),
    ("attune_schedule_predict", c_int, [c_void_p, c_void_p, c_char_p, c_void_p]),
    ("attune_schedule_reason", c_int, [c_void_p, c_void_p, c_int, c_void_p]),
    ("attune_get_statistics", c_int, [c_void_p, c_void_p]),
    ("attune_get_machine_info", c_int, [c_void_p, c_void_p]),
    ("attune_pack_weights", c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    ("attune_plan_create", c_int, [c_void_p, c_void_p, c_void_p, POINTER(c_void_p)]),
    ("attune_plan_run", c_int, [c_void_p, POINTER(Arguments), c_void_p]),
    ("attune_plan_get_info", c_int, [c_void_p, c_void_p]),
    ("attune_plan_destroy", None, [c_void_p]),
    ("attune_block_mask_create", c_int, [c_void_p, c_void_p, POINTER(Arguments), POINTER(c_void_p)]),
    ("attune_block_mask_destroy", None, [c_void_p]),
    ("attune_attention_create", c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    ("attune_attention_destroy", None, [c_void_p]),
    ("attune_attention_prepare", c_int, [c_void_p]),
    ("attune_attention_run", c_int, [c_void_p, c_void_p]),
    ("attune_step_plan_create", c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    ("attune_step_plan_run", c_int, [c_void_p, c_void_p]),
    ("attune_step_plan_destroy", None, [c_void_p]),
    ("attune_linear_create", c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    ("attune_linear_destroy", None, [c_void_p]),
    ("attune_linear_run", c_int, [c_void_p, c_void_p]),
    ("attune_conv_create", c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    ("attune_conv_destroy", None, [c_void_p]),
    ("attune_conv_run", c_int, [c_void_p, c_void_p]),
    ("attune_mla_create", c_int, [c_void_p, c_void_p, c_void_p, POINTER(c_void_p)]),
    ("attune_mla_destroy", None, [c_void_p]),
    ("attune_mla_prepare", c_int, [c_void_p]),
    ("attune_mla_run", c_int, [c_void_p, c_void_p]),
    ("attune_index_create", c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    ("attune_index_destroy", None, [c_void_p]),
    ("attune_index_run", c_int, [c_void_p, c_void_p]),
    ("attune_blocks_create", c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    ("attune_blocks_destroy", None, [c_void_p]),
    ("attune_blocks_run", c_int, [c_void_p, c_void_p]),
    ("attune_blocks_from_lists", c_int, [c_void_p, c_int64, c_int64, c_int64, c_void_p]),
    ("attune_blocks_from_csr", c_int, [c_void_p, c_void_p, c_int64, c_int64, c_void_p]),
]
_QUICK: List[Tuple[str, object, list]] = [
    ("attune_last_message", c_char_p, []),
    ("attune_problem_init", c_int, [c_void_p, c_size_t]),
    ("attune_problem_parse", c_int, [c_void_p, c_char_p]),
    ("attune_problem_print", c_size_t, [c_void_p, c_char_p, c_size_t]),
    ("attune_problem_check", c_int, [c_void_p]),
    ("attune_problem_flops", c_double, [c_void_p]),
    ("attune_arguments_init_sized", c_int, [POINTER(Arguments), c_size_t, c_void_p]),
    ("attune_bind_dlpack", c_int, [POINTER(Arguments), c_void_p, c_char_p, c_void_p]),
    ("attune_tensors", c_int, [c_void_p, POINTER(Arguments), POINTER(Tensor), c_size_t, POINTER(c_size_t)]),
    ("attune_workspace_size_with", c_int, [c_void_p, c_void_p, POINTER(Arguments), c_void_p, POINTER(c_size_t)]),
    ("attune_weight_name", c_char_p, [c_int]),
    ("attune_mha_weights_init_sized", c_int, [c_void_p, c_size_t, c_void_p, c_int]),
    ("attune_packed_weights_size", c_int, [c_void_p, POINTER(c_size_t)]),
    ("attune_plan_arguments_init_sized", c_int, [c_void_p, POINTER(Arguments), c_size_t]),
    ("attune_plan_bind", c_int, [c_void_p, POINTER(Arguments), c_char_p, c_void_p]),
    ("attune_plan_set_size", c_int, [c_void_p, POINTER(Arguments), c_char_p, c_int64]),
    ("attune_attention_desc_init", c_int, [c_void_p, c_size_t]),
    ("attune_attention_problem", c_size_t, [c_void_p, c_char_p, c_size_t]),
    ("attune_attention_cache_size", c_int, [c_void_p, c_int64, c_int64, c_void_p]),
    ("attune_attention_get_info", c_int, [c_void_p, c_void_p]),
]


def _places() -> List[str]:
    """Paths where the library may lie, in order. ATTUNE_LIBRARY stands for itself."""
    named = os.environ.get("ATTUNE_LIBRARY")
    if named:
        return [os.path.abspath(named)]
    package = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(package))
    places = [os.path.join(package, "lib", "libattune.so.0")]
    if os.path.exists(os.path.join(root, "include", "attune.h")):
        places.append(os.path.join(root, "build", "libattune.so"))
    return places


def _open() -> str:
    """The path, or the name that the system's loader knows, of a library that can be loaded."""
    places = _places()
    for path in places:
        if os.path.exists(path):
            return path
    if os.environ.get("ATTUNE_LIBRARY"):
        raise ImportError(f"ATTUNE_LIBRARY names {places[0]}, and there is no such file")
    try:
        ctypes.CDLL("libattune.so.0")
    except OSError:
        tried = ", ".join(places)
        raise ImportError(
            f"libattune.so.0 was not found: not in {tried}, nor where the system looks for libraries. "
            "Set ATTUNE_LIBRARY to its path, or run 'make' in attune's sources"
        ) from None
    return "libattune.so.0"


def _declare(library: Any, functions: Any) -> None:
    for name, result, arguments in functions:
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{path} has no {name}: this package needs attune {OLDEST[0]}.{OLDEST[1]}") from None
        function.restype = result
        function.argtypes = arguments


path = _open()
try:
    lib = ctypes.CDLL(path)
    quick = ctypes.PyDLL(path)
except OSError as error:
    raise ImportError(f"libattune cannot be loaded: {error}") from None
_declare(lib, _SLOW)
_declare(quick, _QUICK)
version: str = lib.attune_version().decode()
if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
    raise ImportError(f"{path} is attune {version}: this package needs {OLDEST[0]}.{OLDEST[1]} or newer")


def library_path() -> str:
    """The path of the C library in use, or its bare name if the system's loader found it."""
    return path


def _dtypes(match: re.Match) -> str:
    own = _tensor.code_name(int(match[1]), int(match[2]))
    return f"is {own}; it must be {_tensor.PYTHON_NAMES.get(match[3], match[3])}"


# Sentences that speak of C or of DLPack, and how Python says the same.
_IN_PYTHON: List[Tuple[str, Union[str, Callable]]] = [
    (r"^the pointer to (\w+) is NULL$", r"\1 is missing"),
    (r"has DLPack type code (\d+), (\d+) bits, 1 lanes; it must be (\w+): code.*", _dtypes),
    (r"has 1 dimensions; attune_tensors gives it (\d)", r"has 1 dimension; it needs \1"),
    (r"dimensions; attune_tensors gives it (\d)", r"dimensions; it needs \1"),
]


def check(status: int) -> None:
    """Raises the exception for a status, with the library's sentence."""
    if status:
        message = quick.attune_last_message().decode("utf-8", "replace")
        for pattern, words in _IN_PYTHON:
            message = re.sub(pattern, words, message)
        raise _errors.of_status(status, message or lib.attune_status_name(status).decode())


def schedule_of(text: str | None) -> bytes | None:
    """A schedule as the library takes it; None is attune's own choice."""
    return None if text is None else _values.text(text, "schedule")


def when_freed(owner: object, function: Callable[..., Any], *arguments: Any) -> None:
    """Calls function(*arguments) when nobody has `owner` any more. Not at the end of the process, which frees all, and
    where threads may still be in a call."""
    finalizer: Any = weakref.finalize(owner, function, *arguments)
    finalizer.atexit = False


def run_options(max_threads: int, runner: Any, cancel: Any) -> Any:
    """A pointer to attune_run_options, or None where nothing is asked for."""
    if type(max_threads) is int and not max_threads and runner is None and cancel is None:
        return None
    options = RunOptions()
    options.struct_size = ctypes.sizeof(RunOptions)
    _values.set_threads(options, max_threads, runner, cancel)
    return byref(options)
