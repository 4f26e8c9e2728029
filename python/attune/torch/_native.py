"""libattune-torch.so by ctypes."""

from __future__ import annotations

import ctypes
import threading
from typing import Dict, Optional

from .. import _adapter
from .._structs import Runner as RunnerStruct

SDPA, BLOCK, REPRODUCIBLE, VERIFY = 1, 2, 4, 8

_lock = threading.Lock()
_library: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """The adapter, loaded once. It finds PyTorch in the process, and refuses one that is older than 2.10."""
    global _library
    if _library is not None:
        return _library
    with _lock:
        if _library is None:
            import torch  # noqa: F401  the adapter looks for its library

            loaded = _adapter.load("torch")
            loaded.attune_torch_open.restype = ctypes.c_char_p
            loaded.attune_torch_set_enabled.restype = ctypes.c_char_p
            loaded.attune_torch_context.restype = ctypes.c_void_p
            loaded.attune_torch_runner.argtypes = [ctypes.c_void_p]
            loaded.attune_torch_runner.restype = None
            failure = loaded.attune_torch_open()
            if failure:
                raise RuntimeError(failure.decode())
            _library = loaded
    return _library


class Runner:
    """PyTorch's threads, as many as the calling thread had when it was made: `runner` of attune.Attention's steps."""

    def __init__(self) -> None:
        self._struct = RunnerStruct()
        library().attune_torch_runner(ctypes.byref(self._struct))
        self.pointer = ctypes.addressof(self._struct)

    @property
    def max_workers(self) -> int:
        return int(self._struct.max_workers)


def counters() -> Dict[str, int]:
    """The adapter's counters by name, such as "sdpa.ran"."""
    return _adapter.counters(library().attune_torch_stats)
