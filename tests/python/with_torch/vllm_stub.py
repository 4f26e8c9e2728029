"""The few classes of vLLM that attune's backend is written against, so that it is tested without vLLM."""

import enum
import sys
import types
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

VERSION = "0.32.0"
logged = []
registered = {}
config = types.SimpleNamespace(cache_config=types.SimpleNamespace(cache_dtype="auto"),
                               model_config=types.SimpleNamespace(dtype=torch.float32))


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


class AttentionImpl:
    pass


T = TypeVar("T")


class AttentionMetadataBuilder(Generic[T]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.kv_cache_spec = kv_cache_spec


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: Any = True


class CPUAttentionBackend:
    @staticmethod
    def get_name():
        return "CPU_ATTN"


class StockImpl:
    pass


class StockBuilder:
    def __init__(self, *arguments):
        pass


@dataclass
class AttentionSpec:
    head_size: int = 0
    state_content_bytes: Any = None
    kv_quant_mode: Any = None


class AttentionBackendEnum(enum.Enum):
    CPU_ATTN = "stock"


def register_backend(member, path):
    registered[member] = path


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
    _module("vllm.logger", init_logger=lambda name: Logger())
    _module("vllm.config", get_current_vllm_config_or_none=lambda: config)
    _module("vllm.v1")
    _module("vllm.v1.attention")
    _module("vllm.v1.attention.backend", AttentionImpl=AttentionImpl, AttentionMetadataBuilder=AttentionMetadataBuilder,
            AttentionType=AttentionType, CommonAttentionMetadata=CommonAttentionMetadata, MultipleOf=MultipleOf)
    _module("vllm.v1.attention.backends")
    _module("vllm.v1.attention.backends.registry", AttentionBackendEnum=AttentionBackendEnum,
            register_backend=register_backend)
    _module("vllm.v1.attention.backends.cpu_attn", CPUAttentionBackend=CPUAttentionBackend,
            CPUAttentionBackendImpl=StockImpl, CPUAttentionMetadataBuilder=StockBuilder)
    _module("vllm.v1.kv_cache_interface", CrossAttentionSpec=type("CrossAttentionSpec", (AttentionSpec,), {}),
            EncoderOnlyAttentionSpec=type("EncoderOnlyAttentionSpec", (AttentionSpec,), {}))
