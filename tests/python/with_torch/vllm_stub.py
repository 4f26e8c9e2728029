"""The few classes of vLLM that attune's backend is written against, so that it is tested without vLLM."""

import enum
import functools
import sys
import types
from dataclasses import dataclass
from typing import Any

import torch

VERSION = "0.32.0"
logged = []
registered = {}


class Logger:
    def _log(self, text, *values):
        logged.append(text % values if values else text)

    info = warning = info_once = warning_once = _log


class AttentionType(str, enum.Enum):
    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


@dataclass(frozen=True)
class MultipleOf:
    base: int


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: Any = True
    max_query_len: int = 0
    max_seq_len: int = 0


class CPUAttentionBackend:
    supported_kv_cache_dtypes = ["auto", "fp8", "fp8_e4m3", "fp8_e5m2"]

    @staticmethod
    def get_name():
        return "CPU_ATTN"


class StockImpl:
    """Notes what is called."""

    def __init__(self, num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype,
                 logits_soft_cap=None, attn_type=AttentionType.DECODER, kv_sharing_target_layer_name=None, sinks=None):
        self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, scale, num_kv_heads
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.sliding_window = -1 if sliding_window is None else sliding_window
        self.kv_cache_dtype, self.logits_soft_cap, self.attn_type = kv_cache_dtype, logits_soft_cap or 0, attn_type
        self.kv_sharing_target_layer_name, self.sinks = kv_sharing_target_layer_name, sinks
        self.calls = []

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        self.calls.append(("update", key, slot_mapping))

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
                output_block_scale=None):
        self.calls.append(("forward", attn_metadata.scheduler_metadata))
        return output


@dataclass
class StockMetadata:
    num_actual_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor
    max_seq_len: int
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    scheduler_metadata: Any
    causal: bool = True


class StockBuilder:
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.kv_cache_spec = kv_cache_spec
        if vllm_config.cache_config.cache_dtype == "no kernel":
            raise NotImplementedError("as for fp8 on CPUs without AVX-512")

    def build(self, common_prefix_len, common, fast_build=False):
        causal = common.causal is True and not self.is_cross_attention
        return StockMetadata(common.num_actual_tokens, 0, common.query_start_loc, 0, common.seq_lens,
                             common.block_table_tensor, common.slot_mapping, "scheduled", causal)


class Attention:
    """A layer of a model."""

    def __init__(self, impl, kv_sharing_target_layer_name=None):
        self.impl, self.kv_sharing_target_layer_name = impl, kv_sharing_target_layer_name
        self._k_scale_float, self._v_scale_float = 0.05, 0.04


def get_layers_from_vllm_config(vllm_config, kind, names):
    return {name: vllm_config.layers[name] for name in names if name in vllm_config.layers}


# ---- Multi-head latent attention ----


class QueryLenSupport(enum.Enum):
    SINGLE_ONLY = "single_only"
    VARLEN = "varlen"


class MLABuilder:
    """Gives the metadata of decoding to those requests that get one token, or three where drafts may be verified, and
    of prompts to the others. The first of them come first."""

    query_len_support = QueryLenSupport.SINGLE_ONLY

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.prefill_backend = vllm_config.prefill_backend

    def _build_decode(self, block_table_tensor, seq_lens_device, **rest):
        return types.SimpleNamespace(block_table=block_table_tensor, seq_lens=seq_lens_device)

    def build(self, common_prefix_len, common, fast_build=False):
        starts = common.query_start_loc
        most = 1 if self.query_len_support is QueryLenSupport.SINGLE_ONLY else 3
        decodes = int((starts.diff() <= most).sum())
        tokens = int(starts[decodes])
        prefill = types.SimpleNamespace(query_start_loc=starts[decodes:] - tokens)
        self.prefill_backend.prepare_metadata(prefill)
        decode = self._build_decode(
            block_table_tensor=common.block_table_tensor[:decodes], seq_lens_device=common.seq_lens[:decodes],
            query_start_loc_device=starts[: decodes + 1], num_decode_tokens=tokens)  # fmt: skip
        return types.SimpleNamespace(decode=decode, prefill=prefill, num_decode_tokens=tokens)


class MLAImpl:
    def __init__(self, num_heads, head_size, scale, kv_lora_rank):
        self.num_heads, self.head_size, self.scale, self.kv_lora_rank = num_heads, head_size, scale, kv_lora_rank

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        return "stock", None


class MLABackend:
    pass


class MLAPrefill:
    def __init__(self, num_heads, scale, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, vllm_config):
        self.num_heads, self.scale, self.v_head_dim, self.vllm_config = num_heads, scale, v_head_dim, vllm_config
        self.qk_nope_head_dim, self.qk_rope_head_dim = qk_nope_head_dim, qk_rope_head_dim

    def prepare_metadata(self, prefill_metadata):
        self._prefill_metadata = prefill_metadata

    def _ragged_sdpa(self, q, k, v, q_cu_seq_lens, kv_cu_seq_lens, causal, return_softmax_lse):
        return "stock"


@dataclass
class AttentionSpec:
    head_size: int = 0
    block_size: int = 16
    state_content_bytes: Any = None
    kv_quant_mode: Any = None
    non_causal: bool = False
    head_size_v: Any = None

    def __post_init__(self):
        self.head_size_v = self.head_size_v or self.head_size


class AttentionBackendEnum(enum.Enum):
    CPU_ATTN = "stock"
    CPU_MLA = "stock MLA"

    def clear_override(self):
        registered.pop(self, None)


class MLAPrefillBackendEnum(enum.Enum):
    CPU = "stock prompts"

    def clear_override(self):
        registered.pop(self, None)


def register_backend(member, path):
    registered[member] = path


@functools.cache
def _cached_get_attn_backend(member):
    return registered.get(member, "stock")


_cached_get_attn_backend.__module__ = "vllm.v1.attention.selector"


def _module(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


def install():
    """Puts the classes where vLLM has them."""
    _module("vllm", __version__=VERSION)
    _module("vllm.envs", environment_variables={})
    _module("vllm.logger", init_logger=lambda name: Logger())
    _module("vllm.config", get_layers_from_vllm_config=get_layers_from_vllm_config)
    _module("vllm.model_executor")
    _module("vllm.model_executor.layers")
    _module("vllm.model_executor.layers.attention", Attention=Attention)
    _module("vllm.v1")
    _module("vllm.v1.attention")
    _module("vllm.v1.attention.backend", AttentionType=AttentionType,
            CommonAttentionMetadata=CommonAttentionMetadata, MultipleOf=MultipleOf)
    _module("vllm.v1.attention.selector", _cached_get_attn_backend=_cached_get_attn_backend)
    _module("vllm.v1.attention.backends")
    _module("vllm.v1.attention.backends.registry", AttentionBackendEnum=AttentionBackendEnum,
            register_backend=register_backend)
    _module("vllm.v1.attention.backends.cpu_attn", CPUAttentionBackend=CPUAttentionBackend,
            CPUAttentionBackendImpl=StockImpl, CPUAttentionMetadata=StockMetadata,
            CPUAttentionMetadataBuilder=StockBuilder)
    _module("vllm.v1.attention.backends.mla")
    _module("vllm.v1.attention.backends.mla.cpu_mla", CPUMLABackend=MLABackend, CPUMLAImpl=MLAImpl)
    _module("vllm.v1.attention.backends.mla.prefill")
    _module("vllm.v1.attention.backends.mla.prefill.cpu_sdpa", CPUSDPAMLAPrefillBackend=MLAPrefill)
    _module("vllm.v1.attention.backends.mla.prefill.registry", MLAPrefillBackendEnum=MLAPrefillBackendEnum,
            register_mla_prefill_backend=register_backend)
    _module("vllm.model_executor.layers.attention.mla_attention", MLACommonMetadataBuilder=MLABuilder,
            QueryLenSupport=QueryLenSupport)
    _module("vllm.v1.kv_cache_interface", AttentionSpec=AttentionSpec,
            CrossAttentionSpec=type("CrossAttentionSpec", (AttentionSpec,), {}),
            EncoderOnlyAttentionSpec=type("EncoderOnlyAttentionSpec", (AttentionSpec,), {}))
