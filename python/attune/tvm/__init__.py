"""attune as a module of TVM-FFI: functions for any framework with DLPack tensors.

    import tvm_ffi
    attune = tvm_ffi.load_module(attune.tvm.library_path())
    attune.attention(q, k, v, out, True)     # is_causal

Nothing here needs TVM-FFI itself.
"""

from __future__ import annotations

import os
import pathlib

__all__ = ["library_path"]


def library_path() -> str:
    """The path of libattune-tvm.so: ATTUNE_TVM_LIBRARY, else beside the libattune.so that is asked for, in the package,
    or in a source tree."""
    named = os.environ.get("ATTUNE_TVM_LIBRARY")
    if named:
        return named
    here = pathlib.Path(__file__).resolve()
    folders = [here.parents[1] / "lib", here.parents[3] / "build"]
    if os.environ.get("ATTUNE_LIBRARY"):
        folders.insert(0, pathlib.Path(os.environ["ATTUNE_LIBRARY"]).resolve().parent)
    for folder in folders:
        if (folder / "libattune-tvm.so").exists():
            return str(folder / "libattune-tvm.so")
    raise ImportError("libattune-tvm.so was not found in " + ", ".join(map(str, folders)))
