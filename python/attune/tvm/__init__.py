"""attune as a module of TVM-FFI: functions for any framework with DLPack tensors.

    import tvm_ffi
    attune = tvm_ffi.load_module(attune.tvm.library_path())
    attune.attention(q, k, v, out, True)     # is_causal

Nothing here needs TVM-FFI itself.
"""

from __future__ import annotations

from .. import _adapter

__all__ = ["library_path"]


def library_path() -> str:
    """The path of libattune-tvm.so: ATTUNE_TVM_LIBRARY, else next to ATTUNE_LIBRARY, in the package, or in a source
    tree."""
    return _adapter.path("tvm")
