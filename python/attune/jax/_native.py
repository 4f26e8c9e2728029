"""libattune-jax.so by ctypes, and its handler in XLA's registry."""

from __future__ import annotations

import ctypes
import os
import pathlib
from typing import Dict

import jax

OLDEST = (0, 5)
TARGET = "attune_attention"

if jax.__version_info__[:2] < OLDEST:
    raise ImportError(f"attune.jax needs JAX {OLDEST[0]}.{OLDEST[1]} or newer; this is {jax.__version__}")


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("calls", "runs", "compiles", "disk_hits")]


def _path() -> str:
    """ATTUNE_JAX_LIBRARY, else beside the libattune.so that is asked for, in the package, or in a source tree."""
    named = os.environ.get("ATTUNE_JAX_LIBRARY")
    if named:
        return named
    here = pathlib.Path(__file__).resolve()
    folders = [here.parents[1] / "lib", here.parents[3] / "build"]
    if os.environ.get("ATTUNE_LIBRARY"):
        folders.insert(0, pathlib.Path(os.environ["ATTUNE_LIBRARY"]).resolve().parent)
    for folder in folders:
        if (folder / "libattune-jax.so").exists():
            return str(folder / "libattune-jax.so")
    raise ImportError("libattune-jax.so was not found in " + ", ".join(map(str, folders)))


def _load() -> ctypes.CDLL:
    if os.environ.get("ATTUNE_LIBRARY"):
        ctypes.CDLL(os.environ["ATTUNE_LIBRARY"])  # before the adapter, which takes what is loaded
    loaded = ctypes.CDLL(_path())
    loaded.attune_jax_get_counts.argtypes = [ctypes.POINTER(_Counts)]
    loaded.attune_jax_get_counts.restype = None
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(loaded.attune_jax_attention), platform="cpu")
    return loaded


library = _load()


def counts() -> Dict[str, int]:
    """The adapter's counters."""
    found = _Counts()
    library.attune_jax_get_counts(ctypes.byref(found))
    return {name: getattr(found, name) for name, _ in _Counts._fields_}
