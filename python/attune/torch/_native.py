"""libattune-torch.so by ctypes."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from typing import Dict, Optional

SDPA, BLOCK, REPRODUCIBLE, VERIFY = 1, 2, 4, 8

_lock = threading.Lock()
_library: Optional[ctypes.CDLL] = None


def _path() -> str:
    """ATTUNE_TORCH_LIBRARY, else beside the libattune.so that is asked for, in the package, or in a source tree."""
    named = os.environ.get("ATTUNE_TORCH_LIBRARY")
    if named:
        return named
    here = pathlib.Path(__file__).resolve()
    folders = [here.parents[1] / "lib", here.parents[3] / "build"]
    if os.environ.get("ATTUNE_LIBRARY"):
        folders.insert(0, pathlib.Path(os.environ["ATTUNE_LIBRARY"]).resolve().parent)
    for folder in folders:
        if (folder / "libattune-torch.so").exists():
            return str(folder / "libattune-torch.so")
    raise ImportError("libattune-torch.so was not found in " + ", ".join(map(str, folders)))


def library() -> ctypes.CDLL:
    """The adapter, loaded once. It finds PyTorch in the process, and refuses one that is older than 2.10."""
    global _library
    if _library is not None:
        return _library
    with _lock:
        if _library is None:
            import torch  # noqa: F401  the adapter looks for its library

            if os.environ.get("ATTUNE_LIBRARY"):
                ctypes.CDLL(os.environ["ATTUNE_LIBRARY"])  # before the adapter, which takes what is loaded
            loaded = ctypes.CDLL(_path())
            loaded.attune_torch_open.restype = ctypes.c_char_p
            loaded.attune_torch_set_enabled.restype = ctypes.c_char_p
            loaded.attune_torch_stats.restype = ctypes.c_size_t
            loaded.attune_torch_stats.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            loaded.attune_torch_context.restype = ctypes.c_void_p
            failure = loaded.attune_torch_open()
            if failure:
                raise RuntimeError(failure.decode())
            _library = loaded
    return _library


def counters() -> Dict[str, int]:
    """The adapter's counters by name, such as "sdpa.ran"."""
    loaded = library()
    size = 4096
    while True:
        text = ctypes.create_string_buffer(size)
        length = loaded.attune_torch_stats(text, size)
        if length < size:
            break
        size = length + 256
    lines = (line.rsplit(" ", 1) for line in text.value.decode().splitlines())
    return {name: int(count) for name, count in lines}
