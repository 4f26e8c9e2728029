"""vLLM's classes of an attention backend, by attune."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Dict, Optional

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata, MultipleOf
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import CrossAttentionSpec, EncoderOnlyAttentionSpec

from .._errors import Error
from . import _attend

logger = init_logger("vllm.attune")

# Types of caches by vLLM's names; "": the model's. Others are the stock backend's.
_CACHES = {"auto": "", "float16": "f16", "bfloat16": "bf16", "fp8": "f8", "fp8_e4m3": "f8",
           "int8_per_token_head": "i8"}  # fmt: skip
_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


@functools.lru_cache(maxsize=1024)
def _scales(scale: float, heads: int) -> torch.Tensor:
    """A scale for each head."""
    return torch.full((heads,), scale, dtype=torch.float32)


class AttuneBackend(CPUAttentionBackend):
    """The stock backend's place. It asks for the same layout of caches, [blocks, heads, block_size, content]."""

    forward_includes_kv_cache_update: bool = True  # a step appends and attends in one call
    supported_kv_cache_dtypes: ClassVar[list] = [*_CACHES, "fp8_e5m2"]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list:
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
        return replace(spec, state_content_bytes=spec.head_size + spec.head_size_v + 8)

    @staticmethod
    def get_impl_cls() -> type:
        return AttuneImpl

    @staticmethod
    def get_builder_cls() -> type:
        return AttuneBuilder


@dataclass
class AttuneMetadata(CPUAttentionMetadata):
    """What vLLM's own kernels read, and a step for attune's layers of a group. vLLM may copy it field by field."""

    step: Any = None  # an _attend.Step, always
    is_causal_by_request: bool = False


class AttuneBuilder(CPUAttentionMetadataBuilder):
    """Makes a step of what the scheduler says. Metadata of vLLM's own kernels is made where a layer of the group needs
    it."""

    def __init__(self, kv_cache_spec: Any, layer_names: list, vllm_config: Any, device: torch.device) -> None:
        refusal = None
        try:
            super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        except NotImplementedError as error:  # no kernel for such a cache on this CPU; all else is settled before
            refusal = error
        self.is_cross_attention = isinstance(kv_cache_spec, CrossAttentionSpec)
        self.is_encoder_only_attention = isinstance(kv_cache_spec, EncoderOnlyAttentionSpec)
        found = get_layers_from_vllm_config(vllm_config, Attention, layer_names).values()
        ours = [layer for layer in found if isinstance(layer.impl, AttuneImpl)]
        impls = [layer.impl for layer in ours]
        has_drafts = vllm_config.speculative_config is not None
        for layer, impl in zip(ours, impls):
            target = layer.kv_sharing_target_layer_name
            impl.kv_sharing_target_layer_name = target  # drafts of Gemma 4 get theirs after the layer is made
            writers = get_layers_from_vllm_config(vllm_config, Attention, [target] if target else []).values()
            writer = next((layer.impl for layer in writers), None)  # it comes before, so it is prepared
            impl.prepare(vllm_config.model_config.dtype, kv_cache_spec, has_drafts, writer)
        self.has_stock = any(impl.stock_reason for impl in impls)
        if self.has_stock and refusal:
            raise refusal
        has_cache = not self.is_encoder_only_attention and not self.is_cross_attention
        self.has_new_keys = has_cache and any(impl.kv_sharing_target_layer_name is None for impl in impls)
        computed = sum(not impl.stock_reason for impl in impls)
        logger.info("attune computes attention of %d of %d layers", computed, len(found))

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> AttuneMetadata:
        """The same as vLLM's, and a step. Called once for all layers of a group."""
        common = common_attn_metadata
        requests, causal = common.num_reqs, common.causal
        by_request = isinstance(causal, torch.Tensor)
        if self.has_stock:
            metadata = super().build(common_prefix_len, common, fast_build)
            metadata.__class__ = AttuneMetadata
        else:
            metadata = AttuneMetadata(
                num_actual_tokens=common.num_actual_tokens, max_query_len=common.max_query_len,
                query_start_loc=common.query_start_loc, max_seq_len=common.max_seq_len, seq_lens=common.seq_lens,
                block_table=common.block_table_tensor, slot_mapping=common.slot_mapping, scheduler_metadata=None,
                causal=not by_request and not self.is_cross_attention and bool(causal),
            )  # fmt: skip
        _attend.count_step(common.num_actual_tokens)
        metadata.step = _attend.Step(
            common.query_start_loc[: requests + 1],
            common.seq_lens[:requests],
            None if self.is_encoder_only_attention else common.block_table_tensor[:requests],
            common.num_actual_tokens,
            ~causal[:requests].bool() if by_request else None,
            common.slot_mapping if self.has_new_keys else None,
            self.kv_cache_spec.block_size,
        )
        metadata.is_causal_by_request = by_request and not self.is_cross_attention
        return metadata


class AttuneImpl(CPUAttentionBackendImpl):
    """Attention of one layer. stock_reason: why vLLM's own kernels compute it, or "".

    What writes a layer's cache also reads it: vLLM's kernels have an order of their own within a block."""

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
        if kv_cache_dtype not in AttuneBackend.supported_kv_cache_dtypes:
            raise ValueError(f"kv_cache_dtype is {kv_cache_dtype!r}: neither attune nor vLLM has a kernel for CPUs")
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap,
            attn_type, kv_sharing_target_layer_name, sinks,
        )  # fmt: skip
        self._layers: Dict[tuple, _attend.Layer] = {}
        self._cache: Optional[tuple] = None
        self._head_size_v = head_size
        self.stock_reason = "" if kv_cache_dtype in _CACHES else f"a cache of {kv_cache_dtype}"
        if self.stock_reason:
            _attend.leave(self.stock_reason, logger)

    def prepare(self, dtype: torch.dtype, spec: Any, has_drafts: bool, writer: Optional[AttuneImpl]) -> None:
        """Compiles the layer's kernels, or takes them from the cache, before the first request. What attune cannot do
        is vLLM's from here on: nothing has been written to a cache yet. writer: the layer whose keys this one reads."""
        if self.stock_reason:
            return
        self._head_size_v = spec.head_size_v
        self.stock_reason = writer.stock_reason if writer else ""
        self.stock_reason = self.stock_reason or self._refusal(dtype, spec, has_drafts)
        if not self.stock_reason:
            return
        if self.kv_cache_dtype not in CPUAttentionBackend.supported_kv_cache_dtypes:
            raise ValueError(
                f"kv_cache_dtype is {self.kv_cache_dtype!r}, which vLLM's own backend for CPUs cannot read, and attune"
                f" leaves {self.stock_reason} to it"
            )
        if spec.head_size_v != self.head_size:
            raise ValueError(
                f"values have {spec.head_size_v} columns and keys {self.head_size}, which vLLM's own backend for CPUs"
                f" cannot compute, and attune leaves {self.stock_reason} to it"
            )
        if writer and not writer.stock_reason:
            raise ValueError(
                f"attune leaves {self.stock_reason} to vLLM's own backend for CPUs, which cannot read the keys that"
                f" attune writes for {self.kv_sharing_target_layer_name}"
            )
        _attend.leave(self.stock_reason, logger)

    def _refusal(self, dtype: torch.dtype, spec: Any, has_drafts: bool) -> str:
        """Why attune cannot compute this layer; "" if it can, and its kernels are compiled. Keys of encoders, and those
        of drafts beyond the longest request, are stored one by one."""
        if dtype not in _attend.DTYPES:
            return f"a model of {dtype}"
        is_encoder, is_cross = self.attn_type in _ENCODERS, self.attn_type == AttentionType.ENCODER_DECODER
        appends = not is_encoder and not is_cross and self.kv_sharing_target_layer_name is None
        is_causal = not is_cross and not getattr(spec, "non_causal", False)
        kind = self._kind(is_causal, False, dtype, 0 if is_encoder else spec.block_size, appends)
        kinds = [kind]
        if is_cross or (appends and has_drafts):
            kinds = [kind, kind._replace(appends=False), _attend.writer_of(kind)]
        try:
            for one in kinds:
                _attend.attention_of(one).prepare()
        except Error as error:
            return f"a layer ({error})"
        return ""

    def _kind(
        self, is_causal: bool, is_by_request: bool, dtype: torch.dtype, block_size: int, appends: bool
    ) -> _attend.Layer:
        """What this layer is in such a step. block_size: 0 without a cache."""
        key = (is_causal, is_by_request, dtype, block_size, appends)
        layer = self._layers.get(key)
        if layer is None:
            is_encoder = self.attn_type in _ENCODERS
            layer = self._layers[key] = _attend.Layer(
                num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_size=self.head_size,
                head_size_v=self._head_size_v, dtype=_attend.DTYPES[dtype], scale=self.scale,
                kv="tensors" if is_encoder else "paged",
                block_size=block_size, cache_dtype="" if is_encoder else _CACHES[self.kv_cache_dtype],
                is_causal=is_causal and not is_encoder, is_causal_by_request=is_by_request,
                window=self.sliding_window, soft_cap=float(self.logits_soft_cap),
                has_alibi=self.alibi_slopes is not None, has_sinks=self.sinks is not None, appends=appends,
                is_reproducible=_attend.is_reproducible(),
            )
        return layer

    def _views(self, kv_cache: torch.Tensor) -> _attend.Cache:
        """attune's tensors in this layer's cache, made anew if it lies elsewhere."""
        key = (kv_cache.data_ptr(), kv_cache.shape)
        if self._cache is None or self._cache[0] != key:
            dtype = _CACHES[self.kv_cache_dtype]
            if dtype == "f8" and kv_cache.dtype != torch.float8_e4m3fn:
                kv_cache = kv_cache.view(torch.float8_e4m3fn)
            self._cache = (key, _attend.views(kv_cache, self.head_size, self._head_size_v, dtype))
        cache: _attend.Cache = self._cache[1]
        return cache

    def _tensors(self, layer: Any) -> Dict[str, Any]:
        """Slopes, sinks, and scales of fp8. The last two are read for each step: weights may be loaded again."""
        tensors: Dict[str, Any] = {}
        if self.alibi_slopes is not None:
            tensors["alibi_slopes"] = self.alibi_slopes
        if self.sinks is not None:
            tensors["sinks"] = self.sinks.detach().to(torch.float32).contiguous()
        if _CACHES[self.kv_cache_dtype] == "f8" and self.attn_type not in _ENCODERS:
            for name, scale in (("k_scale", layer._k_scale_float), ("v_scale", layer._v_scale_float)):
                tensors[name] = _scales(float(scale), self.num_kv_heads)
        return tensors

    def do_kv_cache_update(
        self, layer: Any, key: Any, value: Any, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Writes keys that are no queries, or whose slots are not those to which a step appends. vLLM calls it for
        drafts of DFlash, which project the keys of all layers at once."""
        if self.stock_reason:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
        elif self.attn_type not in _ENCODERS:
            cache = self._views(kv_cache)
            kind = self._kind(True, False, key.dtype, cache.k.shape[1], False)
            _attend.store(kind, cache, key, value, slot_mapping, self._tensors(layer))

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
        """query [tokens, heads, head_size], output with columns of a value; key, value [tokens, kv_heads, columns];
        kv_cache [blocks, kv_heads, block_size, content]. Appends keys and values, and attends to them and those
        before."""
        if attn_metadata is None:  # vLLM warms up
            return output
        has_new = key is not None and self.kv_sharing_target_layer_name is None
        if self.stock_reason or output_scale is not None or output_block_scale is not None:
            if has_new:  # vLLM's own backend is called for that before
                self.do_kv_cache_update(layer, key, value, kv_cache, attn_metadata.slot_mapping)
            return super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
            )
        is_encoder, step = self.attn_type in _ENCODERS, attn_metadata.step
        cache = None if is_encoder else self._views(kv_cache)
        appends, tensors = has_new and step.appends, self._tensors(layer)
        block_size = 0 if cache is None else cache.k.shape[1]
        by_request = attn_metadata.is_causal_by_request
        kind = self._kind(attn_metadata.causal, by_request, query.dtype, block_size, appends)
        if has_new and not appends:
            self.do_kv_cache_update(layer, key, value, kv_cache, attn_metadata.slot_mapping)
        _attend.attend(step, kind, query, key, value, cache, output, tensors)
        return output
