"""attune as a plug-in of ggml, for llama.cpp and other programs on it.

Programs load it by themselves if an environment variable names it:

    export GGML_BACKEND_PATH=$(python -c "import attune.ggml; print(attune.ggml.library_path())")

llama-cpp-python does not, so:

    import attune.ggml, llama_cpp
    attune.ggml.load()                       # before the first Llama
    llama_cpp.Llama("model.gguf", flash_attn=True)
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from . import _adapter

__all__ = ["library_path", "load"]


def library_path() -> str:
    """The path of libggml-attune.so: ATTUNE_GGML_LIBRARY, else next to ATTUNE_LIBRARY, in the package, or in a source
    tree."""
    return _adapter.path("ggml", "libggml-attune.so")


def load() -> None:
    """Loads the plug-in into the ggml of this process, which llama_cpp has loaded. RuntimeError: there is no ggml, or
    it refused the plug-in; its log says why. Only models that are made later use it. A second call changes nothing."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"(/\S*/libggml\.so\S*)$", maps, re.M)
    if not found:
        raise RuntimeError("attune.ggml.load: this process has no libggml.so; import llama_cpp first")
    ggml = ctypes.CDLL(found[1])
    ggml.ggml_backend_reg_by_name.restype = ggml.ggml_backend_load.restype = ctypes.c_void_p
    if not ggml.ggml_backend_reg_by_name(b"attune") and not ggml.ggml_backend_load(library_path().encode()):
        raise RuntimeError(f"attune.ggml.load: ggml did not load {library_path()}")
