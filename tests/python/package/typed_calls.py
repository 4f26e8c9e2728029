"""Calls of every public name, which a type checker reads and nobody runs. test_types.py checks that none is missing."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import attune
import attune.blocks
import attune.distributed
import attune.ggml
import attune.jax
import attune.onnx
import attune.ort
import attune.plot
import attune.torch
import attune.transformers
import attune.tvm
import attune.vllm


def one_call(q: Any, k: Any, v: Any) -> None:
    attune.attention(q, k, v, layout="thd", cu_seqlens_q=[0, 3, 4], is_causal=True, causal_align="top_left")
    attune.attention(q, k, v, attn_mask=q, attn_bias=k, softmax_scale=0.5, window_left=3, logits_soft_cap=30.0)
    out: Any = attune.linear_attention(q, k, v, decay=q, beta=k, rule="gated_delta", cu_seqlens=[0, 3])[0]
    attune.linear_attention(q, k, v, state=v, out=out, rule="linear", scale=0.5, qk_norm_eps=1e-6, max_threads=2)
    out, state = attune.causal_conv(q, k, bias=v, has_silu=True, cu_seqlens=[0, 3], state_ids=[1], max_threads=2)
    block = attune.MLA({"o_proj.weight": q}, num_heads=4, qk_nope_head_dim=32, qk_rope_head_dim=16, form="absorbed")
    block.prepare()
    out = block.run(q, k, v, v, kv_lens=[3], block_table=out, cu_seqlens=[0, 3], max_threads=block.width)
    chosen: attune.IndexResult = attune.index(q, k, v, 2048, kv_lens=[3], runner=attune.torch.runner(), cancel=q)
    attune.attention(q, k, v, kv_ids=chosen.ids, kv_id_lens=chosen.lens)
    attune.flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + i - j)


def steps(q: Any, k: Any, v: Any, starts: Any, context: attune.Context) -> None:
    with attune.Attention(num_heads=8, head_dim=64, kv="paged", page_size=16, appends=True, dtype="bf16") as attention:
        attention.prepare()
        counts: Dict[str, int] = attention.info
        problem: attune.Problem = attention.problem
        size: attune.CacheSize = attention.cache_size(pages=4)
        total: int = size.k_bytes + size.v_bytes + size.k_scale_bytes + size.v_scale_bytes + size.k_row + size.v_row
        cache = attune.PagedCache(attention, num_pages=4)
        attention.run(q, k, v, cu_seqlens_q=starts, k_cache=k, v_cache=v, kv_lens=starts, block_table=starts,
                      max_threads=1)
        plan: attune.StepPlan = attention.plan(cu_seqlens_q=starts, kv_lens=starts, block_table=starts, num_pages=4)
        plan.run(q, k, v, k_cache=k, v_cache=v, runner=attune.torch.runner(), cancel=starts)
        del problem, total, cache, counts
    attune.Attention(num_heads=8, head_dim=64, extra={"logits_soft_cap": 30}, deadline_us=0, context=context)


def kernels(q: Any, k: Any, v: Any, out: Any) -> None:
    context: attune.Context = attune.default_context()
    events: List[attune.Event] = []
    attune.Context(event=events.append, compile_mode="never", cache_pack="kernels.pack", background_niceness=19)
    problem = attune.Problem("num_heads=8", seq_q=attune.DYNAMIC, head_dim=64, is_causal=True)
    fields: Dict[str, Union[int, str]] = problem.fields
    tensor: attune.TensorInfo = problem.tensors[0]
    place: Tuple[str, str, Tuple[int, ...], bool] = tensor.name, tensor.dtype, tensor.shape, tensor.is_output
    kernel: attune.Kernel = attune.compile(problem, context=context)
    kernel.run(q=q, k=k, v=v, out=out, max_threads=1)
    out = kernel(q=q, k=k, v=v, runner=attune.torch.runner(), cancel=q)
    plan = attune.Plan(problem, deadline_us=0)
    plan.run(q=q, k=k, v=v, out=out)
    attune.warm([problem], context=context)
    result: attune.TuneResult = attune.tune(problem, seconds=1.0, sizes={"seq_kv": 64})
    faster: bool = result.is_faster
    checked: attune.CheckResult = attune.check(problem)
    largest: Optional[float] = checked.max_error
    text: str = attune.explain(problem) + attune.library_path() + attune.__version__
    about: Mapping[str, Any] = attune.info()
    del fields, place, faster, largest, text, about


def failures() -> None:
    try:
        attune.Problem("num_heads=0")
    except (
        attune.InvalidArgumentError, attune.InvalidTypeError, attune.InvalidProblemError, attune.InvalidScheduleError,
        attune.UnsupportedError, attune.OutOfMemoryError, attune.FileError, attune.CodegenError,
        attune.CheckFailedError, attune.NotCachedError, attune.CancelledError, attune.Error,
    ) as error:  # fmt: skip
        status: int = error.status
        del status


def engines(q: Any, k: Any, v: Any) -> None:
    with attune.torch.enable(sdpa=True, block="verify", reproducible=True):
        counts: Dict[str, int] = attune.torch.stats()
    attune.torch.refresh()
    attune.torch.disable()
    attune.torch.flash_attn_func(q, k, v, causal=True, window_size=(3, 0))
    attune.torch.flash_attn_varlen_func(q, k, v, q, q, 3, 3)
    attune.torch.flash_attn_with_kvcache(q, k, v, cache_seqlens=3)
    attune.jax.attention(q, k, v, is_causal=True, causal_align="bottom_right", logits_soft_cap=30.0)
    attune.jax.linear_attention(q, k, v, decay=q, beta=k, qk_norm_eps=1e-6)
    paths: str = attune.tvm.library_path()
    del counts, paths


def more(q: Any, k: Any, v: Any, model: Any, session_options: Any, client: Any) -> None:
    estimate = attune.blocks.scores(q, k, stride=8)
    chosen = attune.blocks.choose(estimate, share=0.9)
    attune.blocks.attention(q, k, v, chosen, block_size=64, is_causal=True)
    attune.onnx.flex_attention(q, k, v, scale=0.5)
    attune.onnx.evaluator(attune.onnx.rewrite(model))
    text: Dict[str, Any] = attune.onnx.function_text(model, "score_mod", (1, 8, 64, 64))
    operators = [attune.onnx.FlexAttention]
    attune.ort.register(session_options, blocks=False)
    attune.ort.register_ops(session_options)
    attune.ggml.load()
    paths = [attune.ggml.library_path(), attune.ort.library_path(), attune.tvm.library_path()]
    counts = [attune.ort.stats(), attune.jax.stats(), attune.transformers.stats()]
    attune.transformers.register()
    attune.transformers.reset_stats()
    layers: int = attune.transformers.replace_linear_attention(session_options)
    attune.transformers.restore_linear_attention()
    layers = attune.transformers.replace_mla(session_options)
    attune.transformers.restore_mla()
    layers = attune.transformers.replace_index(session_options)
    attune.transformers.restore_index()
    cache = attune.transformers.AttuneCache(dtype="int8")
    functions = [attune.transformers.attune_attention, attune.transformers.attune_mask]
    names: str = attune.transformers.NAME
    attune.vllm.register()
    enabled: bool = attune.vllm.enable()
    tested, served = attune.vllm.TESTED, attune.vllm.stats()
    attune.vllm.disable()
    found = attune.distributed.sweep(["num_heads=8"], client, threads=2, sizes={"seq_kv": 64})
    grouped = attune.distributed.by_machine(found)
    attune.distributed.tune(["num_heads=8"], client, seconds=1.0)
    failed: int = attune.distributed.check(client, 10).failed
    del text, operators, paths, counts, cache, functions, names, enabled, tested, served, grouped, failed


def pictures(document: Dict[str, Any], values: Any) -> None:
    attune.plot.weights(values, heads=[0], scale="sqrt").savefig("heads.svg")
    for figure in (attune.plot.sweep(document, x="seq_kv"), attune.plot.bench(document), attune.plot.cliffs(document)):
        figure.savefig("figure.svg")
    status: int = attune.plot.main(["bench", "bench.json", "bench.svg"])
    del status
