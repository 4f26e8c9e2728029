"""vLLM's classes of multi-head latent attention on CPUs, by attune.

Tokens of decoding attend to the latents as they lie in the cache [blocks, block_size, width], whose first columns are
the values; prompts attend to keys and values that vLLM computes of the latents. Both are what vLLM's own classes do.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
from vllm.logger import init_logger
from vllm.model_executor.layers.attention.mla_attention import MLACommonMetadataBuilder, QueryLenSupport
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend, CPUMLAImpl
from vllm.v1.attention.backends.mla.prefill.cpu_sdpa import CPUSDPAMLAPrefillBackend

from .._errors import Error
from . import _attend

logger = init_logger("vllm.attune")


class AttuneMLABackend(CPUMLABackend):
    """The stock backend's place, for latents of any width."""

    @classmethod
    def get_supported_head_sizes(cls) -> list:
        return []  # any

    @staticmethod
    def get_impl_cls() -> type:
        return AttuneMLAImpl

    @staticmethod
    def get_builder_cls() -> type:
        return AttuneMLABuilder


class AttuneMLABuilder(MLACommonMetadataBuilder):
    """Plans the decoding part of a step once for all layers."""

    query_len_support = QueryLenSupport.VARLEN  # drafts are verified as decoding

    def __init__(self, kv_cache_spec: Any, layer_names: list, vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = vllm_config.compilation_config.static_forward_context
        impls = [layers[name].impl for name in layer_names]
        ours = sum(impl.prepare(vllm_config.model_config.dtype, kv_cache_spec.block_size) for impl in impls)
        logger.info("attune computes attention of %d of %d layers", ours, len(impls))

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        _attend.count_step(common_attn_metadata.num_actual_tokens)
        return super().build(common_prefix_len, common_attn_metadata, fast_build)

    def _build_decode(self, *args: Any, **options: Any) -> Any:
        metadata = super()._build_decode(*args, **options)
        starts, lens = options["query_start_loc_device"], metadata.seq_lens
        metadata.step = _attend.Step(starts, lens, metadata.block_table, options["num_decode_tokens"])
        return metadata


class AttuneMLAImpl(CPUMLAImpl):
    """Attention of one layer. Writing the cache is inherited."""

    _kind: Optional[_attend.Layer] = None  # None: vLLM's own kernels

    def prepare(self, dtype: torch.dtype, block_size: int) -> bool:
        """Compiles the kernels for decoding. False, and a line of log: vLLM's own compute."""
        name = _attend.DTYPES.get(dtype)
        if name is None:
            _attend.leave(f"a model of {dtype}", logger)
            return False
        kind = _attend.Layer(
            num_heads=self.num_heads, num_kv_heads=1, head_size=self.head_size, head_size_v=self.kv_lora_rank,
            dtype=name, scale=self.scale, block_size=block_size, is_latent=True,
            is_reproducible=_attend.is_reproducible(),
        )  # fmt: skip
        try:
            _attend.attention_of(kind).prepare()
        except Error as error:
            _attend.leave(f"a layer ({error})", logger)
            return False
        self._kind = kind
        return True

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any, layer: Any
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """q: [tokens, heads, width], or its two parts. Gives [tokens, heads, kv_lora_rank]."""
        if self._kind is None:
            return super().forward_mqa(q, kv_c_and_k_pe_cache, attn_metadata, layer)
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        cache = _attend.Cache(kv_c_and_k_pe_cache.unsqueeze(2), None, None, None)
        out = q.new_empty((*q.shape[:-1], self.kv_lora_rank))
        _attend.attend(attn_metadata.decode.step, self._kind, q, None, None, cache, out, {})
        return out, None


class AttuneMLAPrefill(CPUSDPAMLAPrefillBackend):
    """Prompts: new tokens by causality, and those before them, whose part is joined by the logarithms of sums."""

    _plans: Dict[Any, Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_ours = True
        try:
            kind = self._kind(self.vllm_config.model_config.dtype, True, False)
            if kind is not None:
                _attend.attention_of(kind).prepare()
        except Error as error:
            self._is_ours = False
            logger.info_once("attune leaves prompts to vLLM's own backend (%s)", error)

    def _kind(self, dtype: torch.dtype, is_causal: bool, has_lse: bool) -> Optional[_attend.Layer]:
        if dtype not in _attend.DTYPES:
            return None
        return _attend.Layer(
            num_heads=self.num_heads, num_kv_heads=self.num_heads,
            head_size=self.qk_nope_head_dim + self.qk_rope_head_dim, head_size_v=self.v_head_dim,
            dtype=_attend.DTYPES[dtype], scale=self.scale, kv="tensors", is_causal=is_causal, has_lse=has_lse,
            is_reproducible=_attend.is_reproducible(),
        )  # fmt: skip

    @staticmethod
    def get_name() -> str:
        return "ATTUNE_MLA"

    def prepare_metadata(self, prefill_metadata: Any) -> None:
        super().prepare_metadata(prefill_metadata)
        self._plans = {}  # of this step, which all layers run

    def _ragged_sdpa(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        q_cu_seq_lens: torch.Tensor,
        kv_cu_seq_lens: torch.Tensor,
        causal: bool,
        return_softmax_lse: bool,
    ) -> Any:
        """q, k, v [tokens, heads, dim], one sequence after the other. Gives out, or out and lse [heads, tokens]."""
        kind = self._kind(q.dtype, causal, return_softmax_lse) if self._is_ours else None
        if kind is None:
            return super()._ragged_sdpa(q, k, v, q_cu_seq_lens, kv_cu_seq_lens, causal, return_softmax_lse)
        key = (kind, q_cu_seq_lens.data_ptr(), kv_cu_seq_lens.data_ptr())
        if key not in self._plans:
            self._plans[key] = _attend.ragged_plan(kind, q_cu_seq_lens, kv_cu_seq_lens)
        _attend.count("calls")
        return self._plans[key].run(q, k, v, runner=_attend.runner())
