"""The structs of attune.h that Python fills in or reads.

Fields of attune.h never move: structs grow at their end, and begin with their size. So this package works with a newer
library. A problem is opaque here: it is read from text.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char, c_double, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32
from ctypes import c_char_p, c_uint64, c_void_p
from typing import Any, ClassVar

# Larger than every attune_problem; bytes that the library does not know are zero, as it asks.
PROBLEM_BYTES = 8192
SCHEDULE_BYTES = 1024  # ATTUNE_SCHEDULE_BYTES


class View(Structure):
    """attune_view and attune_mutable_view."""

    _fields_ = [("data", c_void_p)] + [(name, c_int64) for name in ("batch", "head", "token", "column")]


_views = "q k v k_scale v_scale k_new v_new out lse weights attn_mask attn_bias x x_kv x_v"
_pointers = "kv_lens causal_offsets cu_seqlens_q cu_seqlens_kv block_table alibi_slopes sinks cos sin position_ids"
_pointers += " row_ids kv_ids kv_id_lens q_norm k_norm parts parts_lse packed_weights keys_low values_low block_mask"
_pointers += " workspace"
_sizes = "seq_q seq_kv seq_new num_rows total_q total_kv num_pages max_pages mask_seq_kv bias_seq_kv rotary_positions"


class Arguments(Structure):
    """attune_arguments."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, View) for name in _views.split()]
        + [("tensors", View * 8)]
        + [(name, c_void_p) for name in _pointers.split()]
        + [("workspace_bytes", c_size_t)]
        + [(name, c_int64) for name in ["batch", "num_heads", "num_kv_heads"] + _sizes.split()]
        + [(name, c_int64) for name in ("rotary_batch_stride", "block_table_stride", "num_ids")]
        + [("softmax_scale", c_double)]
    )


# Sizes of a call that a caller may set by name.
SIZES = frozenset(["batch", "num_heads", "num_kv_heads", "rotary_batch_stride", "num_ids"] + _sizes.split())


class DLTensor(Structure):
    """attune_dltensor, which has the layout of DLPack's DLTensor."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("dtype_code", c_uint8),
        ("dtype_bits", c_uint8),
        ("dtype_lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Tensor(Structure):
    """attune_tensor."""

    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_int),
        ("rank", c_int),
        ("dims", c_int64 * 4),
        ("strides", c_int64 * 4),
        ("is_input", c_int),
        ("is_output", c_int),
        ("pointer_offset", c_size_t),
    ]


class RunOptions(Structure):
    """attune_run_options."""

    _fields_ = [("struct_size", c_size_t), ("runner", c_void_p), ("max_threads", c_uint32), ("cancel", c_void_p)]


LOG_FN = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class EventStruct(Structure):
    """attune_event."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int),
        ("status", c_int),
        ("key", c_char_p),
        ("problem", c_char_p),
        ("message", c_char_p),
        ("milliseconds", c_double),
    ]


EVENT_FN = ctypes.CFUNCTYPE(None, c_void_p, POINTER(EventStruct))


class ContextOptions(Structure):
    """attune_context_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("allocator", c_void_p),
        ("log", LOG_FN),
        ("log_user", c_void_p),
        ("runner", c_void_p),
        ("max_workers", c_uint32),
        ("isa", c_char_p),
        ("cache_dir", c_char_p),
        ("memory_cache_bytes", c_uint64),
        ("disk_cache_bytes", c_uint64),
        ("compile_mode", c_int),
        ("allow_interpreter", c_int),
        ("target", c_char_p),
        ("cache_base", c_char_p),
        ("event", c_void_p),
        ("event_user", c_void_p),
        ("machine", c_char_p),
        ("compile_timeout_ms", c_uint32),
        ("compile_processes", c_uint32),
        ("cache_pack", c_char_p),
        ("cache_keys", c_char_p),
        ("machine_code_only", c_uint32),
        ("background_niceness", c_uint32),
        ("check", c_uint32),
        ("stderr_level", c_int),
        ("strict", c_int),
        ("record", c_char_p),
    ]


class KernelInfo(Structure):
    """attune_kernel_info."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("engine", c_int),
        ("origin", c_int),
        ("schedule", c_char * SCHEDULE_BYTES),
        ("isa", c_char_p),
        ("num_phases", c_uint32),
        ("code_bytes", c_uint64),
        ("scratch_bytes", c_uint64),
        ("compile_ms", c_double),
        ("arithmetic", c_int),
        ("key", c_char * 33),
        ("machine", c_char_p),
    ]


class Statistics(Structure):
    """attune_statistics."""

    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_uint64)
        for name in (
            "memory_hits disk_hits compiles compile_failures memory_evictions disk_evictions damaged_files"
            " disk_write_failures worker_restarts memory_kernels memory_code_bytes stand_ins pack_hits bundle_hits"
            " tier0_hits"
        ).split()
    ]


class MachineInfo(Structure):
    """attune_machine_info."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_char_p) for name in "cpu isa isas llvm cache_dir codegen_path worker_path generator_id".split()]
        + [("max_workers", c_uint32), ("cache_base", c_char_p), ("cpu_description", c_char_p)]
        + [(name, c_uint32) for name in "cpu_family cpu_model cpu_stepping".split()]
        + [(name, c_char_p) for name in (
            "machine machine_source cache_refusal cache_base_refusal machine_description cache_pack cache_pack_refusal"
        ).split()]
    )


class TuneOptions(Structure):
    """attune_tune_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("budget_seconds", c_double),
        ("progress", c_void_p),
        ("progress_user", c_void_p),
    ]


class TuneOutcome(Structure):
    """attune_tune_result."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("schedule", c_char * SCHEDULE_BYTES),
        ("is_faster", c_int),
        ("ratio", c_double),
        ("ratio_low", c_double),
        ("ratio_high", c_double),
        ("space", c_uint64),
        ("measured", c_uint64),
        ("failed", c_uint64),
        ("wrong", c_uint64),
        ("wrong_schedule", c_char * SCHEDULE_BYTES),
        ("seconds", c_double),
        ("threads", c_uint32),
        ("reserved", c_uint32),
        ("seconds_before", c_double),
        ("seconds_after", c_double),
        ("spread_before", c_double),
        ("spread_after", c_double),
        ("noise", c_double),
        ("detectable", c_double),
        ("interrupted", c_double),
    ]


class Prediction(Structure):
    """attune_prediction."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t), ("schedule", c_char * SCHEDULE_BYTES)]
        + [(name, c_double) for name in "scores softmax values tasks products flops_per_cycle".split()]
        + [("is_tuned", c_int)]
    )


class Reason(Structure):
    """attune_reason."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t), ("row", c_int), ("line", c_int)]
        + [(name, c_char_p) for name in "subject condition factor evidence".split()]
        + [("schedule", c_char * SCHEDULE_BYTES), ("cost", c_double)]
    )


class PlanOptions(Structure):
    """attune_plan_options."""

    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_uint32) for name in "max_specialised repeats background least_gain".split()
    ] + [("deadline_us", c_int64)]


class PlanInfo(Structure):
    """attune_plan_info."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t), ("few_rows", c_int64)]
        + [(name, c_uint32) for name in ("few_kernels", "many_kernels", "specialised_kernels", "is_ready")]
        + [(name, c_uint64) for name in ("few_calls", "many_calls", "specialised_calls", "cut_calls", "stopgap_calls",
                                         "compiled_calls", "tier0_calls", "vm_calls")]
    )


class AttentionDesc(Structure):
    """attune_attention_desc."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in "num_heads num_kv_heads head_dim head_dim_v".split()]
        + [(name, c_int) for name in "dtype layout is_causal".split()]
        + [("window_left", c_int64), ("window_right", c_int64), ("softmax_scale", c_double), ("kv", c_int)]
        + [("page_size", c_int64)]
        + [(name, c_int) for name in "kv_dtype kv_scales appends has_lse reproducible".split()]
        + [("extra", c_char_p), ("deadline_us", c_int64)]
    )


class AttentionInfo(Structure):
    """attune_attention_info."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_uint64) for name in "compiled_calls tier0_calls vm_calls".split()]
        + [("is_ready", c_int)]
    )


class Binding(Structure):
    """attune_binding."""

    _fields_ = [("name", c_char_p), ("tensor", c_void_p)]


class Runner(Structure):
    """attune_runner."""

    _fields_ = [("struct_size", c_size_t), ("parallel_for", c_void_p), ("submit", c_void_p), ("user", c_void_p),
                ("max_workers", c_uint32)]


class Step(Structure):
    """attune_step."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in "batch seq_q seq_kv".split()]
        + [(name, View) for name in "q k v k_cache v_cache k_scale v_scale out lse".split()]
        + [(name, c_void_p) for name in "cu_seqlens_q cu_seqlens_kv kv_lens block_table".split()]
        + [(name, c_int64) for name in "block_table_stride max_pages num_pages".split()]
        + [("bindings", POINTER(Binding)), ("num_bindings", c_size_t), ("max_threads", c_uint32)]
        + [(name, c_void_p) for name in "runner cancel workspace".split()]
        + [("workspace_bytes", c_size_t)]
    )


class LinearDesc(Structure):
    """attune_linear_desc."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in "num_heads num_kv_heads num_k_heads head_dim head_dim_v".split()]
        + [(name, c_int) for name in "dtype decay_dtype beta_dtype state_dtype rule decay has_beta".split()]
        + [("scale", c_double), ("qk_norm_eps", c_double), ("out_norm_eps", c_double)]
        + [("gate", c_int), ("reproducible", c_int)]
    )


class LinearStep(Structure):
    """attune_linear_step."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t), ("batch", c_int64), ("seq", c_int64), ("cu_seqlens", c_void_p)]
        + [(name, View) for name in "q k v decay beta out state".split()]
        + [("num_states", c_int64), ("state_ids", c_void_p), ("max_threads", c_uint32)]
        + [("runner", c_void_p), ("cancel", c_void_p), ("gate", View), ("norm_weights", c_void_p)]
    )


class ConvDesc(Structure):
    """attune_conv_desc."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in "channels taps dilation".split()]
        + [(name, c_int) for name in "dtype has_bias has_silu".split()]
    )


class ConvStep(Structure):
    """attune_conv_step."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t), ("batch", c_int64), ("seq", c_int64), ("x", View)]
        + [("weights", c_void_p), ("bias", c_void_p), ("out", View), ("state", View), ("max_threads", c_uint32)]
        + [(name, c_void_p) for name in "runner cancel cu_seqlens".split()]
        + [("num_states", c_int64), ("state_ids", c_void_p)]
    )


class BlocksDesc(Structure):
    """attune_blocks_desc."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in "num_heads num_kv_heads head_dim block_size stride".split()]
        + [("dtype", c_int), ("is_causal", c_int), ("softmax_scale", c_double)]
    )


class BlocksStep(Structure):
    """attune_blocks_step."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in "batch seq_q seq_kv".split()]
        + [("q", View), ("k", View), ("shares", c_void_p), ("max_threads", c_uint32)]
        + [("runner", c_void_p), ("cancel", c_void_p)]
    )


class MlaDesc(Structure):
    """attune_mla_desc."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in "embed_dim out_dim num_heads q_lora_rank kv_lora_rank".split()]
        + [(name, c_int64) for name in "qk_nope_head_dim qk_rope_head_dim v_head_dim".split()]
        + [("dtype", c_int), ("page_size", c_int64), ("rope_interleaved", c_int)]
        + [("softmax_scale", c_double), ("norm_eps", c_double)]
        + [(name, c_int) for name in "form reproducible has_ids".split()]
        + [("reserved", c_uint32)]
    )


class MlaWeights(Structure):
    """attune_mla_weights."""

    _fields_: ClassVar[Any] = [("struct_size", c_size_t)] + [
        (name, c_void_p)
        for name in "q_proj q_a_proj q_a_bias q_a_layernorm q_b_proj kv_a_proj kv_a_bias kv_a_layernorm kv_b_proj "
        "o_proj o_bias".split()
    ]


class MlaStep(Structure):
    """attune_mla_step."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t), ("batch", c_int64), ("seq", c_int64), ("cu_seqlens", c_void_p)]
        + [("kv_lens", c_void_p), ("x", View), ("out", View), ("cache", View), ("num_pages", c_int64)]
        + [("block_table", c_void_p), ("max_pages", c_int64), ("block_table_stride", c_int64), ("cache_rows", c_int64)]
        + [("cos", c_void_p), ("sin", c_void_p), ("num_positions", c_int64), ("positions", c_void_p)]
        + [("max_threads", c_uint32), ("runner", c_void_p), ("cancel", c_void_p)]
        + [("kv_ids", c_void_p), ("num_ids", c_int64), ("kv_id_lens", c_void_p)]
    )


class IndexDesc(Structure):
    """attune_index_desc."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in "num_heads head_dim num_ids".split()]
        + [("dtype", c_int), ("w_dtype", c_int), ("is_causal", c_int), ("page_size", c_int64), ("has_scores", c_int)]
    )


class IndexStep(Structure):
    """attune_index_step."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in "batch seq_q seq_kv".split()]
        + [(name, c_void_p) for name in "cu_seqlens_q cu_seqlens_kv kv_lens block_table".split()]
        + [(name, c_int64) for name in "block_table_stride max_pages num_pages".split()]
        + [(name, View) for name in "q k w q_scale k_scale".split()]
        + [(name, c_void_p) for name in "ids lens scores".split()]
        + [("max_threads", c_uint32), ("runner", c_void_p), ("cancel", c_void_p)]
    )


class CacheBytes(Structure):
    """attune_cache_size."""

    _fields_: ClassVar[Any] = (
        [("struct_size", c_size_t)]
        + [(name, c_size_t) for name in "k_bytes v_bytes k_scale_bytes v_scale_bytes".split()]
        + [("k_row", c_int64), ("v_row", c_int64)]
    )


class Weight(Structure):
    """attune_weight."""

    _fields_ = [("data", c_void_p), ("dtype", c_int), ("rank", c_int), ("dims", c_int64 * 4)]


class Weights(Structure):
    """attune_mha_weights."""

    _fields_ = [("struct_size", c_size_t), ("layout", c_int), ("tensor", Weight * 10)]


def sized(kind):
    """A zeroed struct that says its own size."""
    struct = kind()
    struct.struct_size = ctypes.sizeof(kind)
    return struct
