"""Packed weights of blocks: when they are forgotten."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Dict, Optional

import torch

from . import _native

_definitions: Optional[torch.library.Library] = None
_watched: Dict[int, "weakref.ref[torch.Tensor]"] = {}
_lock = threading.RLock()  # a tensor may die, and call back, at any time


def _watch(*tensors: torch.Tensor) -> bool:
    """Called when the weights of a block have been packed: forgets them with the first of these tensors that dies.

    Returns whether all are parameters; others may be made for one call, as those of autocast are."""
    library = _native.library()
    for tensor in tensors:
        address = tensor._cdata
        with _lock:
            known = _watched.get(address)
            if known is not None and known() is tensor:
                continue

            def died(reference: object, address: int = address) -> None:
                library.attune_torch_forget(address)
                with _lock:
                    if _watched.get(address) is reference:
                        del _watched[address]

            _watched[address] = weakref.ref(tensor, died)
    return all(isinstance(tensor, torch.nn.Parameter) for tensor in tensors)


def prepare() -> None:
    """Defines what the adapter calls. Does nothing the second time."""
    global _definitions
    with _lock:
        if _definitions is not None:
            return
        library = _native.library()
        library.attune_torch_forget.argtypes = [ctypes.c_void_p]
        library.attune_torch_forget.restype = None
        library.attune_torch_verify_weights.argtypes = [ctypes.c_int]
        library.attune_torch_verify_weights.restype = None
        library.attune_torch_packed_bytes.restype = ctypes.c_size_t
        library.attune_torch_limit_packed.argtypes = [ctypes.c_size_t]
        library.attune_torch_limit_packed.restype = ctypes.c_size_t
        _definitions = torch.library.Library("attune", "FRAGMENT")
        _definitions.define("_watch_weights(Tensor qkv, Tensor qkv_bias, Tensor out, Tensor out_bias) -> bool")
        _definitions.impl("_watch_weights", _watch, "CompositeExplicitAutograd")


def verify(everything: bool) -> None:
    """Whether each call compares all values of its weights with those that were packed."""
    prepare()
    _native.library().attune_torch_verify_weights(int(everything))


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
