"""attune's attention in vLLM on CPUs.

    ATTUNE_VLLM=1 python -m vllm.entrypoints.openai.api_server --model MODEL

    # or, before an engine is made:
    import attune.vllm
    attune.vllm.enable()
    attune.vllm.stats()                     # what this process has computed

vLLM finds it by the entry point `attune` of vllm.general_plugins, which does nothing until one of the two is said.
ATTUNE_VLLM_REPRODUCIBLE=1: attention has the same bits in every batch, chunk and number of threads. docs/vllm.md is the
manual.

_backend.py and _mla.py derive from vLLM's classes; _attend.py and _prefix.py compute, and know nothing of vLLM.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from typing import Any, Dict, Tuple

__all__ = ["disable", "enable", "register", "stats", "TESTED"]

TESTED = ("0.32.0",)
_BACKEND = "attune.vllm._backend.AttuneBackend"
_MLA_BACKEND, _MLA_PREFILL = "attune.vllm._mla.AttuneMLABackend", "attune.vllm._mla.AttuneMLAPrefill"
_state: Dict[str, Any] = {"registered": False, "mla": False}


def is_set(variable: str) -> bool:
    """Whether a variable of the environment is 1. A ValueError if it is something else than 0, 1 or empty."""
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{variable} is {value!r}; it must be 0 or 1")
    return value == "1"


def _logger() -> Any:
    """The one of all of attune's lines in vLLM's log."""
    from vllm.logger import init_logger

    return init_logger("vllm.attune")


# What _backend.py and _mla.py use of vLLM: by module, names in it and members of these.
_NEEDED = {
    "vllm.logger": ("init_logger",),
    "vllm.envs": ("environment_variables",),
    "vllm.config": ("get_layers_from_vllm_config",),
    "vllm.model_executor.layers.attention": ("Attention",),
    "vllm.v1.kv_cache_interface": ("AttentionSpec", "CrossAttentionSpec", "EncoderOnlyAttentionSpec"),
    "vllm.v1.attention.backends.registry": ("register_backend", "AttentionBackendEnum.CPU_ATTN"),
    "vllm.v1.attention.backend": ("AttentionType.ENCODER", "AttentionType.ENCODER_ONLY",
                                  "AttentionType.ENCODER_DECODER", "CommonAttentionMetadata", "MultipleOf"),
    "vllm.v1.attention.backends.cpu_attn": ("CPUAttentionBackend.supported_kv_cache_dtypes",
                                            "CPUAttentionBackendImpl.do_kv_cache_update",
                                            "CPUAttentionMetadata", "CPUAttentionMetadataBuilder.build"),
}  # fmt: skip
_NEEDED_BY_MLA = {
    "vllm.v1.attention.backends.registry": ("AttentionBackendEnum.CPU_MLA",),
    "vllm.v1.attention.backends.mla.cpu_mla": ("CPUMLABackend", "CPUMLAImpl.forward_mqa"),
    "vllm.v1.attention.backends.mla.prefill.cpu_sdpa": ("CPUSDPAMLAPrefillBackend._ragged_sdpa",),
    "vllm.v1.attention.backends.mla.prefill.registry": ("MLAPrefillBackendEnum.CPU", "register_mla_prefill_backend"),
    "vllm.model_executor.layers.attention.mla_attention": ("MLACommonMetadataBuilder._build_decode",
                                                           "QueryLenSupport.VARLEN"),
}  # fmt: skip
# Parameters of functions of vLLM's own implementation, in order.
_PARAMETERS = {
    "__init__": "num_heads head_size scale num_kv_heads alibi_slopes sliding_window kv_cache_dtype logits_soft_cap"
                " attn_type kv_sharing_target_layer_name sinks",
    "forward": "layer query key value kv_cache attn_metadata output output_scale output_block_scale",
    "do_kv_cache_update": "layer key value kv_cache slot_mapping",
}  # fmt: skip
# Fields that attune reads or gives, among others.
_FIELDS = {
    ("vllm.v1.attention.backend", "CommonAttentionMetadata"): (
        "query_start_loc seq_lens num_reqs num_actual_tokens max_query_len max_seq_len block_table_tensor slot_mapping"
        " causal"),
    ("vllm.model_executor.layers.attention", "Attention"): "kv_sharing_target_layer_name",
    ("vllm.v1.kv_cache_interface", "AttentionSpec"): (
        "block_size head_size head_size_v kv_quant_mode state_content_bytes"),
    ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionMetadata"): (
        "num_actual_tokens max_query_len query_start_loc max_seq_len seq_lens block_table slot_mapping"
        " scheduler_metadata causal"),
}  # fmt: skip


def _lacking(needed: Dict[str, Tuple[str, ...]]) -> str:
    """What this vLLM lacks of that, in a few words; "" if nothing."""
    for module, names in needed.items():
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            return f"{module} ({error})"
        for name in names:
            try:
                functools.reduce(getattr, name.split("."), found)
            except AttributeError:
                return f"{module}.{name}"
    return ""


def _missing() -> str:
    """What this vLLM lacks of what the backend needs, in a few words; "" if nothing."""
    lacking = _lacking(_NEEDED)
    if lacking:
        return lacking
    stock = importlib.import_module("vllm.v1.attention.backends.cpu_attn")
    for name, expected in _PARAMETERS.items():
        own = list(inspect.signature(getattr(stock.CPUAttentionBackendImpl, name)).parameters)[1:]
        if own != expected.split():
            return f"CPUAttentionBackendImpl as it was: {name} takes {', '.join(own)}"
    for (module, name), fields in _FIELDS.items():
        own = list(inspect.signature(getattr(importlib.import_module(module), name)).parameters)
        for field in fields.split():
            if field not in own:
                return f"{module}.{name}.{field}"
    return ""


def _broken() -> str:
    """Why attune cannot compute in this process; "" if it can."""
    try:
        from .. import info, torch

        info()  # its context reads the environment
        torch.runner()
        is_set("ATTUNE_VLLM_REPRODUCIBLE")
    except Exception as error:  # whatever it is: a server without attune is better than none
        return str(error)
    return ""


def _forget_choices() -> None:
    """vLLM remembers which backend it chose for engines that this process has made before."""
    for module in ("vllm.v1.attention.selector", "vllm.v1.attention.backends.mla.prefill.selector"):
        try:
            functions = vars(importlib.import_module(module)).values()
        except ImportError:
            continue
        for function in functions:
            if getattr(function, "__module__", "") == module and hasattr(function, "cache_clear"):
                function.cache_clear()


def enable() -> bool:
    """Replaces vLLM's backend for CPUs by attune's, for engines that this process makes from now on.

    False, and one line in vLLM's log, if this vLLM lacks what the backend needs, or if attune itself does not work.
    Processes that vLLM starts read ATTUNE_VLLM=1, which this sets.
    """
    if _state["registered"]:
        return True
    import vllm

    version, logger = getattr(vllm, "__version__", "?"), _logger()
    missing = _missing()
    if missing:
        logger.warning("attune stays off: vLLM %s has no %s", version, missing)
        return False
    broken = _broken()
    if broken:
        logger.warning("attune stays off: %s", broken)
        return False
    if version.split("+")[0] not in TESTED:
        logger.warning("attune was tested with vLLM %s, and this is %s", ", ".join(TESTED), version)
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, _BACKEND)
    # A part of the keys of compiled models: with vLLM's own backend they have calls that write the cache.
    importlib.import_module("vllm.envs").environment_variables["ATTUNE_VLLM"] = lambda: "1"
    lacking = _lacking(_NEEDED_BY_MLA)
    if lacking:
        logger.warning("attune leaves latent attention to vLLM: %s has no %s", version, lacking)
    else:
        from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum, register_mla_prefill_backend

        register_backend(AttentionBackendEnum.CPU_MLA, _MLA_BACKEND)
        register_mla_prefill_backend(MLAPrefillBackendEnum.CPU, _MLA_PREFILL)
        _state["mla"] = True
    _forget_choices()
    os.environ["ATTUNE_VLLM"] = "1"
    _state["registered"] = True
    return True


def disable() -> None:
    """Engines that are made from now on have vLLM's own attention."""
    os.environ.pop("ATTUNE_VLLM", None)
    if _state["registered"]:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        AttentionBackendEnum.CPU_ATTN.clear_override()
        importlib.import_module("vllm.envs").environment_variables.pop("ATTUNE_VLLM", None)
        if _state["mla"]:
            from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum

            AttentionBackendEnum.CPU_MLA.clear_override()
            MLAPrefillBackendEnum.CPU.clear_override()
        _forget_choices()
        _state.update(registered=False, mla=False)


def register() -> None:
    """The entry point of vllm.general_plugins: enables attune if ATTUNE_VLLM is 1."""
    try:
        wanted = is_set("ATTUNE_VLLM")
    except ValueError as error:
        _logger().warning("attune stays off: %s", error)
        return
    if wanted:
        enable()


def stats() -> Dict[str, int]:
    """Counts of this process: steps, calls (one for each layer of a step), tokens, and kernels compiled.

    A model whose layers have caches of several kinds, as windows beside full attention, has a step for each kind.
    "steps.shared": those whose shared prefixes were read once for all requests. "steps.stored": those whose keys went
    to slots one by one. "layers.stock.REASON": layers that vLLM's own kernels compute. An engine with several processes
    has them in its workers.
    """
    from . import _attend

    return _attend.stats()
