"""Packed weights of blocks: when they are forgotten."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Dict, Optional

import torch

from . import _native

_definitions: Optional[torch.library.Library] = None
_watched: Dict[int, "weakref.ref[torch.UntypedStorage]"] = {}  # by Tensor.data_ptr()
_lock = threading.RLock()  # memory may die, and call back, at any time


def _are_parameters(*tensors: torch.Tensor) -> bool:
    return all(isinstance(tensor, torch.nn.Parameter) for tensor in tensors)


def _watch(*tensors: torch.Tensor) -> bool:
    """Called when the weights of a block have been packed: forgets them with the first memory of theirs that dies.

    The tensors themselves get no weak references, which torch.utils.swap_tensors refuses. Returns whether all are
    parameters; others may be made for one call, as those of autocast are."""
    library = _native.library()
    for tensor in tensors:
        memory, address = tensor.untyped_storage(), tensor.data_ptr()
        with _lock:
            known = _watched.get(address)
            if known is not None and known() is memory:
                continue

            def died(reference: object, address: int = address) -> None:
                library.attune_torch_forget_memory(address)
                with _lock:
                    if _watched.get(address) is reference:
                        del _watched[address]

            _watched[address] = weakref.ref(memory, died)
    return _are_parameters(*tensors)


def prepare() -> None:
    """Defines what the adapter calls. Does nothing the second time."""
    global _definitions
    with _lock:
        if _definitions is not None:
            return
        library = _native.library()
        library.attune_torch_forget.argtypes = [ctypes.c_void_p]
        library.attune_torch_forget.restype = None
        library.attune_torch_forget_memory.argtypes = [ctypes.c_void_p]
        library.attune_torch_forget_memory.restype = None
        library.attune_torch_packed_bytes.restype = ctypes.c_size_t
        library.attune_torch_limit_packed.argtypes = [ctypes.c_size_t]
        library.attune_torch_limit_packed.restype = ctypes.c_size_t
        os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
        _definitions = torch.library.Library("attune", "FRAGMENT")
        for name, function in (("_watch_weights", _watch), ("_are_parameters", _are_parameters)):
            _definitions.define(name + "(Tensor qkv, Tensor qkv_bias, Tensor out, Tensor out_bias) -> bool")
            _definitions.impl(name, function, "CompositeExplicitAutograd")


def packed_bytes() -> int:
    """Bytes of packed weights now."""
    prepare()
    return int(_native.library().attune_torch_packed_bytes())


def refresh(module: Optional[torch.nn.Module] = None) -> None:
    """Forgets packed weights, of one module or of all. The next call packs them again."""
    prepare()
    library = _native.library()
    if module is None:
        library.attune_torch_forget(None)
        return
    for tensor in (*module.parameters(), *module.buffers()):
        library.attune_torch_forget(tensor._cdata)
