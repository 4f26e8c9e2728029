"""attune's attention in vLLM on CPUs.

    ATTUNE_VLLM=1 vllm serve MODEL          # or, before an engine is made:
    import attune.vllm
    attune.vllm.enable()
    attune.vllm.stats()                     # what this process has computed

vLLM finds it by the entry point `attune` of vllm.general_plugins, which does nothing until one of the two is said.
ATTUNE_VLLM_REPRODUCIBLE=1: attention has the same bits in every batch, chunk and number of threads. docs/vllm.md is the
manual.
"""

from __future__ import annotations

import os
from typing import Any, Dict

__all__ = ["enable", "register", "stats", "TESTED"]

TESTED = ("0.32.0",)
_BACKEND = "attune.vllm._backend.AttuneBackend"
_state: Dict[str, Any] = {"registered": False}


def _logger() -> Any:
    from vllm.logger import init_logger

    return init_logger("vllm.attune")


def _missing() -> str:
    """What this vLLM lacks of what the backend needs, in a few words; "" if nothing."""
    import importlib

    needed = {
        "vllm.v1.attention.backends.registry": ("register_backend", "AttentionBackendEnum"),
        "vllm.v1.attention.backend": ("AttentionImpl", "AttentionMetadataBuilder", "AttentionType",
                                      "CommonAttentionMetadata"),
        "vllm.v1.attention.backends.cpu_attn": ("CPUAttentionBackend", "CPUAttentionBackendImpl",
                                                "CPUAttentionMetadataBuilder"),
    }
    for module, names in needed.items():
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            return f"{module} ({error})"
        for name in names:
            if not hasattr(found, name):
                return f"{module}.{name}"
    if not hasattr(importlib.import_module("vllm.v1.attention.backends.registry").AttentionBackendEnum, "CPU_ATTN"):
        return "AttentionBackendEnum.CPU_ATTN"
    return ""


def enable() -> bool:
    """Puts attune's backend in the place of vLLM's for CPUs, for engines that this process makes from now on.

    False, and one line in vLLM's log, if this vLLM lacks what the backend needs. Processes that vLLM starts read
    ATTUNE_VLLM=1, which this sets.
    """
    if _state["registered"]:
        return True
    import vllm

    version, logger = getattr(vllm, "__version__", "?"), _logger()
    missing = _missing()
    if missing:
        logger.warning("attune stays off: vLLM %s has no %s", version, missing)
        return False
    if version.split("+")[0] not in TESTED:
        logger.warning("attune was tested with vLLM %s, and this is %s", ", ".join(TESTED), version)
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, _BACKEND)
    os.environ["ATTUNE_VLLM"] = "1"
    _state["registered"] = True
    logger.info("attune computes attention")
    return True


def register() -> None:
    """The entry point of vllm.general_plugins: enables attune if ATTUNE_VLLM is 1."""
    if os.environ.get("ATTUNE_VLLM", "0") not in ("", "0"):
        enable()


def stats() -> Dict[str, int]:
    """Counts of this process: steps, calls (one for each layer of a step), tokens, and kernels compiled. An engine with
    several processes has them in its workers."""
    from . import _attend

    return _attend.stats()
