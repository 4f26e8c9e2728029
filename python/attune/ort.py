"""attune inside ONNX Runtime: kernels for the attention operators of models.

    import attune.ort, onnxruntime
    options = onnxruntime.SessionOptions()
    attune.ort.register(options)                        # the execution provider: ONNX Runtime 1.24 or newer
    session = onnxruntime.InferenceSession("model.onnx", options)

attune computes the nodes that it supports, and ONNX Runtime computes the others. register_ops() adds custom operators
instead, for ONNX Runtime from 1.17 on: attune then computes all nodes of these operators, and creating a session fails
if it does not support one. All work is done on ONNX Runtime's threads. stats() counts what ran.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Dict, Optional

from . import _adapter, _library  # noqa: F401  libattune is loaded first, so that the adapter takes the same one

__all__ = ["library_path", "register", "register_ops", "stats"]

PROVIDER = "AttuneExecutionProvider"

_lock = threading.Lock()
_registered = False
_loaded: Optional[ctypes.CDLL] = None


def library_path() -> str:
    """The path of libattune-ort.so: ATTUNE_ORT_LIBRARY, else next to ATTUNE_LIBRARY, in the package, or in a source
    tree."""
    return _adapter.path("ort")


def register(options: Any, blocks: bool = True, context_pack: Optional[str] = None) -> None:
    """Adds attune's execution provider to SessionOptions, before the CPU's. The first call registers the library with
    ONNX Runtime, for the whole process.

    blocks: False: attention alone, without the projections before and after it.
    context_pack: a signed pack of kernels, for options with ep.context_enable (docs/onnxruntime.md)."""
    import onnxruntime

    global _registered
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise RuntimeError(
            "attune's execution provider needs ONNX Runtime 1.24 or newer; this one is "
            f"{onnxruntime.__version__}: use register_ops"
        )
    with _lock:
        if not _registered:
            onnxruntime.register_execution_provider_library("attune", library_path())
            _registered = True
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]
    if not devices:
        raise RuntimeError("ONNX Runtime found no CPU for attune's execution provider")
    wish = {} if blocks else {"blocks": "0"}
    if context_pack is not None:
        wish["context_pack"] = os.fspath(context_pack)
    options.add_provider_for_devices(devices[:1], wish)


def register_ops(options: Any) -> None:
    """Adds attune's custom operators to SessionOptions: they override ONNX Runtime's own."""
    options.register_custom_ops_library(library_path())


def stats() -> Dict[str, int]:
    """Counters of this process by name, such as "GroupQueryAttention.ran"."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _adapter.load("ort")
    return _adapter.counters(_loaded.attune_ort_stats)
