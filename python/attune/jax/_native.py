"""libattune-jax.so by ctypes, and its handler in XLA's registry."""

from __future__ import annotations

import ctypes
from typing import Dict

import jax

from .. import _adapter

OLDEST = (0, 5)
TARGET = "attune_attention"

if jax.__version_info__[:2] < OLDEST:
    raise ImportError(f"attune.jax needs JAX {OLDEST[0]}.{OLDEST[1]} or newer; this is {jax.__version__}")


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("calls", "runs", "compiles", "disk_hits")]


def _load() -> ctypes.CDLL:
    loaded = _adapter.load("jax")
    loaded.attune_jax_get_counts.argtypes = [ctypes.POINTER(_Counts)]
    loaded.attune_jax_get_counts.restype = None
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(loaded.attune_jax_attention), platform="cpu")
    return loaded


library = _load()


def counts() -> Dict[str, int]:
    """The adapter's counters."""
    found = _Counts()
    library.attune_jax_get_counts(ctypes.byref(found))
    return {name: getattr(found, name) for name, *_ in _Counts._fields_}
