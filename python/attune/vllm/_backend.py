"""vLLM's classes of an attention backend, by attune."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Dict, Optional

import torch
from vllm.logger import init_logger
from vllm.v1.attention.backend import (
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import CrossAttentionSpec, EncoderOnlyAttentionSpec

from . import _attend

logger = init_logger("vllm.attune")

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
# Types of caches by vLLM's names. Others are the stock backend's.
_CACHES = {"auto": "", "float16": "", "bfloat16": "", "fp8": "f8", "fp8_e4m3": "f8", "int8_per_token_head": "i8"}
_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


def _left_to_stock() -> str:
    """Why the stock backend computes a model, by its configuration; "" if it does not."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    if config is None:
        return ""
    cache = config.cache_config.cache_dtype
    if cache not in _CACHES:
        return f"a cache of {cache}"
    if config.model_config is not None and config.model_config.dtype not in _DTYPES:
        return f"a model of {config.model_config.dtype}"
    return ""


class AttuneBackend(CPUAttentionBackend):
    """The stock backend's place. It asks for the same layout of caches, [blocks, heads, block_size, content]."""

    forward_includes_kv_cache_update: bool = True  # a step appends and attends in one call
    supported_kv_cache_dtypes: ClassVar[list] = [*_CACHES, "fp8_e5m2"]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list:
        from vllm.v1.attention.backend import MultipleOf

        return [MultipleOf(16)]

    @classmethod
    def get_supported_head_sizes(cls) -> list:
        return []  # any

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return _attend.is_reproducible()

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Each key and head has two scales more where they are int8."""
        mode = getattr(spec, "kv_quant_mode", None)
        if not getattr(mode, "is_per_token_head", False) or spec.state_content_bytes is not None:
            return spec
        return replace(spec, state_content_bytes=_attend.content_bytes(spec.head_size, "i8", 1))

    @staticmethod
    def get_impl_cls() -> type:
        reason = _left_to_stock()
        if reason:
            logger.info_once("attune leaves %s to vLLM's own backend", reason)
        return CPUAttentionBackendImpl if reason else AttuneImpl

    @staticmethod
    def get_builder_cls() -> type:
        return AttuneBuilder


@dataclass
class AttuneMetadata:
    """A step, for all layers of a group."""

    step: _attend.Step
    causal: bool
    slot_mapping: torch.Tensor
    causal_by_request: bool = False


class AttuneBuilder(AttentionMetadataBuilder[AttuneMetadata]):
    """Makes a step of what the scheduler says. A group of layers that the stock backend computes has its builder."""

    def __new__(cls, kv_cache_spec: Any, layer_names: list, vllm_config: Any, device: torch.device) -> Any:
        if vllm_config.cache_config.cache_dtype in _CACHES:
            return super().__new__(cls)
        return CPUAttentionMetadataBuilder(kv_cache_spec, layer_names, vllm_config, device)

    def __init__(self, kv_cache_spec: Any, layer_names: list, vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.is_cross = isinstance(kv_cache_spec, CrossAttentionSpec)
        self.is_encoder = isinstance(kv_cache_spec, EncoderOnlyAttentionSpec)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> AttuneMetadata:
        common = common_attn_metadata
        requests, causal = common.num_reqs, common.causal
        by_request = isinstance(causal, torch.Tensor)
        step = _attend.Step(
            common.query_start_loc[: requests + 1],
            common.seq_lens[:requests],
            None if self.is_encoder else common.block_table_tensor[:requests],
            common.num_actual_tokens,
            ~causal[:requests].bool() if by_request else None,
        )
        return AttuneMetadata(step, not by_request and not self.is_cross and bool(causal), common.slot_mapping,
                              by_request and not self.is_cross)


class AttuneImpl(AttentionImpl):
    """Attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.num_queries_per_kv = self.num_heads // self.num_kv_heads
        self.sliding_window = -1 if sliding_window is None else sliding_window
        self.kv_cache_dtype, self.attn_type = kv_cache_dtype, attn_type
        self.logits_soft_cap = float(logits_soft_cap or 0)
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        if sinks is not None and sinks.shape[0] != num_heads:
            raise ValueError(f"sinks has {sinks.shape[0]} elements; there are {num_heads} heads")
        self.sinks = sinks
        self._layers: Dict[tuple, _attend.Layer] = {}
        self._cache: Optional[tuple] = None
        self._bindings: Optional[Dict[str, Any]] = None

    def _kind(self, metadata: AttuneMetadata, dtype: torch.dtype, block_size: int, appends: bool) -> _attend.Layer:
        key = (metadata.causal, metadata.causal_by_request, dtype, block_size, appends)
        layer = self._layers.get(key)
        if layer is None:
            is_encoder = self.attn_type in _ENCODERS
            layer = self._layers[key] = _attend.Layer(
                num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_size=self.head_size,
                dtype=_DTYPES[dtype], scale=self.scale, kv="tensors" if is_encoder else "paged", block_size=block_size,
                cache_dtype="" if is_encoder else _CACHES[self.kv_cache_dtype],
                is_causal=metadata.causal and not is_encoder, is_causal_by_request=metadata.causal_by_request,
                window=self.sliding_window, soft_cap=self.logits_soft_cap, has_alibi=self.alibi_slopes is not None,
                has_sinks=self.sinks is not None, appends=appends, is_reproducible=_attend.is_reproducible(),
            )
        return layer

    def _views(self, kv_cache: torch.Tensor) -> _attend.Cache:
        key = (kv_cache.data_ptr(), kv_cache.shape)
        if self._cache is None or self._cache[0] != key:
            dtype = _CACHES[self.kv_cache_dtype]
            if dtype == "f8" and kv_cache.dtype != torch.float8_e4m3fn:
                kv_cache = kv_cache.view(torch.float8_e4m3fn)
            self._cache = (key, _attend.views(kv_cache, self.head_size, dtype))
        cache: _attend.Cache = self._cache[1]
        return cache

    def _tensors(self, layer: Any) -> Dict[str, Any]:
        """What all steps have, made when weights are loaded: sinks, slopes, and scales of fp8."""
        if self._bindings is None:
            self._bindings = {}
            if self.alibi_slopes is not None:
                self._bindings["alibi_slopes"] = self.alibi_slopes
            if self.sinks is not None:
                self._bindings["sinks"] = self.sinks.detach().to(torch.float32).contiguous()
            if _CACHES[self.kv_cache_dtype] == "f8" and self.attn_type not in _ENCODERS:
                for name, scale in (("k_scale", layer._k_scale_float), ("v_scale", layer._v_scale_float)):
                    self._bindings[name] = torch.full((self.num_kv_heads,), float(scale), dtype=torch.float32)
        return self._bindings

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: AttuneMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query, output [tokens, heads, head_size]; key, value [tokens, kv_heads, head_size]; kv_cache
        [blocks, kv_heads, block_size, content]. Appends keys and values, and attends to them and those before."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("attune's backend does not quantise its output")
        if attn_metadata is None:  # vLLM warms up
            return output
        is_encoder, is_cross = self.attn_type in _ENCODERS, self.attn_type == AttentionType.ENCODER_DECODER
        cache = None if is_encoder else self._views(kv_cache)
        has_new = key is not None and self.kv_sharing_target_layer_name is None
        tensors = self._tensors(layer)
        if is_cross and has_new:  # keys of the encoder, which are no queries
            assert cache is not None and key is not None and value is not None
            scales = (float(layer._k_scale_float), float(layer._v_scale_float))
            _attend.store(cache, key, value, attn_metadata.slot_mapping, scales)
        block_size = 0 if cache is None else cache.k.shape[1]
        kind = self._kind(attn_metadata, query.dtype, block_size, has_new and not is_encoder and not is_cross)
        _attend.attend(attn_metadata.step, kind, query, key, value, cache, output, tensors)
        return output
