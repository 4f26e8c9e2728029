"""attune in vLLM, whose classes are faked: how it is switched on, and what it leaves to vLLM's own kernels."""

import ast
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vllm_stub as vllm
from vllm_requests import LAYER, SINKS, SPEC, Requests, backend, build_for, faked_classes, make, run  # noqa: F401

import attune


def test_entry_point(monkeypatch):
    import attune.vllm

    monkeypatch.setitem(attune.vllm._state, "registered", False)
    monkeypatch.setattr(vllm, "registered", vllm.registered)
    monkeypatch.delenv("ATTUNE_VLLM", raising=False)
    keys = sys.modules["vllm.envs"].environment_variables  # in keys of compiled models
    vllm.registered.clear(), keys.clear()
    attune.vllm.register()
    assert not vllm.registered and not keys
    monkeypatch.setenv("ATTUNE_VLLM", "1")
    attune.vllm.register()
    assert {member.name: path.removeprefix("attune.vllm.") for member, path in vllm.registered.items()} == {
        "CPU_ATTN": "_backend.AttuneBackend", "CPU_MLA": "_mla.AttuneMLABackend", "CPU": "_mla.AttuneMLAPrefill"}
    assert attune.vllm.enable() and os.environ["ATTUNE_VLLM"] == "1"
    assert keys["ATTUNE_VLLM"]() == "1"


def test_another_version(monkeypatch):
    import attune.vllm

    monkeypatch.setitem(attune.vllm._state, "registered", False)
    monkeypatch.setenv("ATTUNE_VLLM", "0")
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.40.1")
    assert attune.vllm.enable()
    assert vllm.logged[-1] == "attune was tested with vLLM 0.32.0, and this is 0.40.1"
    attune.vllm._state["registered"] = False
    stock = sys.modules["vllm.v1.attention.backends.cpu_attn"]
    monkeypatch.setattr(stock, "CPUAttentionBackendImpl", type("CPUAttentionBackendImpl", (vllm.StockImpl,), {
        "__init__": lambda self, num_heads, head_size: None}))
    vllm.registered.clear()
    assert not attune.vllm.enable() and not vllm.registered
    assert "__init__ takes num_heads, head_size" in vllm.logged[-1]
    monkeypatch.delattr(sys.modules["vllm.v1.attention.backends.cpu_attn"], "CPUAttentionBackendImpl")
    assert not attune.vllm.enable() and not vllm.registered
    missing = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackendImpl"
    assert f"stays off: vLLM 0.40.1 has no {missing}" in vllm.logged[-1]


def refusal(monkeypatch):
    """What enable() says, which registers nothing."""
    import attune.vllm

    monkeypatch.setitem(attune.vllm._state, "registered", False)
    monkeypatch.setenv("ATTUNE_VLLM", "0")
    vllm.registered.clear()
    assert not attune.vllm.enable() and not vllm.registered
    return vllm.logged[-1]


@pytest.mark.parametrize("module, name", [
    ("vllm.v1.kv_cache_interface", "EncoderOnlyAttentionSpec"), ("vllm.config", "get_layers_from_vllm_config"),
    ("vllm.v1.attention.backend", "MultipleOf"), ("vllm.model_executor.layers.attention", "Attention"),
])  # fmt: skip
def test_a_missing_name(monkeypatch, module, name):
    """attune stays off, instead of failing when an engine is made."""
    monkeypatch.delattr(sys.modules[module], name)
    assert refusal(monkeypatch) == f"attune stays off: vLLM 0.32.0 has no {module}.{name}"


@pytest.mark.parametrize("module, name, missing", [
    ("vllm.v1.attention.backend", "CommonAttentionMetadata", "num_actual_tokens"),
    ("vllm.v1.kv_cache_interface", "AttentionSpec", "head_size_v"),
])  # fmt: skip
def test_a_missing_field(monkeypatch, module, name, missing):
    class Other:
        def __init__(self, query_start_loc, seq_lens, num_reqs, block_size, head_size):
            pass

    monkeypatch.setattr(sys.modules[module], name, Other)
    assert refusal(monkeypatch).endswith(f"has no {module}.{name}.{missing}")


def test_another_way_to_write_keys(monkeypatch):
    monkeypatch.setattr(vllm.StockImpl, "do_kv_cache_update", lambda self, layer, key_value: None)
    assert refusal(monkeypatch).endswith("as it was: do_kv_cache_update takes layer, key_value")


@pytest.mark.parametrize("module", ["_backend", "_mla"])
def test_all_names_are_asked_for(backend, module):
    """What a module imports of vLLM is in the lists by which enable() decides."""
    import attune.vllm

    lists = attune.vllm._NEEDED, attune.vllm._NEEDED_BY_MLA if module == "_mla" else {}
    known = {(where, name.split(".")[0]) for needed in lists for where, names in needed.items() for name in names}
    source = Path(backend.__file__).with_name(f"{module}.py").read_text()
    used = {(node.module, name.name) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("vllm") for name in node.names}  # fmt: skip
    assert used and used <= known, used - known


def stock_step(impl, builder, r, key=True, **more):
    """Runs a step of a layer that vLLM's own kernels compute."""
    names, common, new_key, value = r.common({"a": 5, "b": 2}, **more)
    query = r.draw(7, r.heads)
    metadata = builder.build(0, common)
    impl.forward(LAYER, query, new_key if key else None, value, r.cache, metadata, torch.empty_like(query))
    return common


def test_a_broken_package(monkeypatch):
    """An adapter that cannot be loaded leaves vLLM as it is."""
    import attune.torch
    import attune.vllm

    monkeypatch.setitem(attune.vllm._state, "registered", False)
    monkeypatch.setenv("ATTUNE_VLLM", "1")

    def fail():
        raise RuntimeError("libattune-torch.so is of another version")

    monkeypatch.setattr(attune.torch._native, "Runner", fail)
    vllm.registered.clear()
    attune.vllm.register()
    assert not vllm.registered and vllm.logged[-1] == "attune stays off: libattune-torch.so is of another version"


@pytest.mark.parametrize("variable", ["ATTUNE_VLLM", "ATTUNE_VLLM_REPRODUCIBLE"])
@pytest.mark.parametrize("value", ["false", "yes", " 1"])
def test_wrong_variables(monkeypatch, variable, value):
    """What is neither 0 nor 1 is named, and attune stays off: who asks for the same bits must not get others."""
    import attune.vllm

    monkeypatch.setitem(attune.vllm._state, "registered", False)
    monkeypatch.setenv("ATTUNE_VLLM", "1")
    monkeypatch.setenv(variable, value)
    vllm.registered.clear()
    attune.vllm.register()
    assert not vllm.registered and vllm.logged[-1] == f"attune stays off: {variable} is '{value}'; it must be 0 or 1"


def test_a_refused_environment(monkeypatch):
    """What the library refuses is said once, and not by each layer."""
    import attune.vllm

    def fail():
        raise attune.InvalidArgumentError('ATTUNE_COMPILE is "often"; it must be worker, in-process or never', 1)

    monkeypatch.setattr(attune, "info", fail)
    assert refusal(monkeypatch) == 'attune stays off: ATTUNE_COMPILE is "often"; it must be worker, in-process or never'


def test_off_again(monkeypatch):
    import attune.vllm

    monkeypatch.setitem(attune.vllm._state, "registered", False)
    monkeypatch.setenv("ATTUNE_VLLM", "0")
    member, chosen = vllm.AttentionBackendEnum.CPU_ATTN, vllm._cached_get_attn_backend
    chosen.cache_clear()
    assert chosen(member) == "stock"  # of an engine before, which vLLM remembers
    attune.vllm.enable()
    assert chosen(member) == "attune.vllm._backend.AttuneBackend"
    attune.vllm.disable()
    assert chosen(member) == "stock"
    assert not vllm.registered and "ATTUNE_VLLM" not in os.environ
    assert not sys.modules["vllm.envs"].environment_variables
    attune.vllm.disable()


def test_what_stock_computes(backend):
    """A cache of fp8_e5m2: vLLM's kernels write it, because the backend says that attention includes that."""
    r = Requests(4, 2, 32, torch.float32)
    impl, builder = make(backend, r, kv_cache_dtype="fp8_e5m2")
    assert "attune leaves a cache of fp8_e5m2 to vLLM's own backend" in vllm.logged
    common = stock_step(impl, builder, r)
    assert [call[0] for call in impl.calls] == ["update", "forward"]
    assert impl.calls[0][2] is common.slot_mapping and impl.calls[1][1] == "scheduled"
    impl.calls.clear()
    stock_step(impl, builder, r, key=False)
    assert [call[0] for call in impl.calls] == ["forward"]
    sharing, builder = make(backend, r, kv_cache_dtype="fp8_e5m2", kv_sharing_target_layer_name="layer")
    stock_step(sharing, builder, r)
    assert [call[0] for call in sharing.calls] == ["forward"]


@pytest.mark.parametrize("cache", ["int4_per_token_head", "nvfp4", "foo"])
def test_caches_that_nobody_has(backend, cache):
    """vLLM does not look, and its kernels would compute something."""
    with pytest.raises(ValueError, match=f"kv_cache_dtype is '{cache}': neither attune nor vLLM"):
        make(backend, Requests(4, 2, 32, torch.float32), kv_cache_dtype=cache)


def test_layers_of_both_kinds(backend):
    """One layer that attune computes and one that it does not, in one group, have the same metadata."""
    r, other = Requests(4, 2, 32, torch.float32), Requests(4, 2, 32, torch.float32)
    ours, theirs = make(backend, r)[0], make(backend, r, kv_cache_dtype="fp8_e5m2")[0]
    builder = build_for(backend, [ours, theirs])
    names, common, query, out = run(ours, builder, r, {"a": 9, "b": 4})
    torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=3e-5, atol=6e-6)
    assert vllm.logged[-1] == "attune computes attention of 1 of 2 layers"
    stock_step(theirs, builder, other)
    assert [call[0] for call in theirs.calls] == ["update", "forward"]


def refuse(backend, monkeypatch, is_refused=lambda kind: True):
    """attune refuses such layers."""
    attention_of = backend._attend.attention_of

    def of(kind):
        return attune.Attention(num_heads=3, num_kv_heads=2, head_dim=32) if is_refused(kind) else attention_of(kind)

    monkeypatch.setattr(backend._attend, "attention_of", of)


def test_layers_that_attune_refuses(backend, monkeypatch):
    """A model of another type, a failure of the library: vLLM computes, and no cache has been written before."""
    r = Requests(4, 2, 32, torch.float32)
    impl = make(backend, r)[0]
    build_for(backend, [impl], torch.float64)
    assert impl.stock_reason == "a model of torch.float64" and vllm.logged[-2].startswith("attune leaves a model of")
    refuse(backend, monkeypatch)
    impl, builder = make(backend, r)
    assert "num_kv_heads" in impl.stock_reason
    stock_step(impl, builder, r)
    assert [call[0] for call in impl.calls] == ["update", "forward"]


def test_caches_without_a_stock_kernel(backend):
    """vLLM's builder refuses fp8 on some CPUs; attune needs none of its kernels there."""
    r = Requests(4, 2, 32, torch.float32, cache_dtype="int8_per_token_head")
    impl = make(backend, r, kv_cache_dtype="int8_per_token_head")[0]
    builder = build_for(backend, [impl], cache_dtype="no kernel")
    names, common, query, out = run(impl, builder, r, {"a": 9, "b": 4})
    torch.testing.assert_close(out.double(), r.expected(names, common, query, 0.2), rtol=0.03, atol=0.03)
    stock = make(backend, r, kv_cache_dtype="fp8_e5m2")[0]
    with pytest.raises(NotImplementedError, match="as for fp8 on CPUs"):
        build_for(backend, [impl, stock], cache_dtype="no kernel")


def test_caches_that_only_attune_has(backend, monkeypatch):
    """What attune refuses is not left to kernels that cannot read such a cache."""
    refuse(backend, monkeypatch)
    r = Requests(4, 2, 32, torch.float32, cache_dtype="int8_per_token_head")
    with pytest.raises(ValueError, match="kv_cache_dtype is 'int8_per_token_head'.*a layer .*num_kv_heads"):
        make(backend, r, kv_cache_dtype="int8_per_token_head")


def test_kernels_before_the_first_request(backend):
    r = Requests(4, 2, 32, torch.float32, block_size=48)
    impl, builder = make(backend, r, scale=0.1234)
    before = attune.info()["statistics"]["compiles"]
    run(impl, builder, r, {"a": 5, "b": 2})
    assert attune.info()["statistics"]["compiles"] == before


@pytest.mark.parametrize("attn_type, spec, options", [
    ("ENCODER_DECODER", "CrossAttentionSpec", {}), ("DECODER", "AttentionSpec", {"drafts": "ngrams"}),
    ("DECODER", "AttentionSpec", {}),
])  # fmt: skip
def test_kernels_of_all_steps(backend, attn_type, spec, options):
    """Those that store keys of encoders and of drafts, and those of models without causality, too."""
    is_causal = attn_type == "DECODER" and bool(options)
    r = Requests(4, 2, 32, torch.float32, block_size=80)
    spec = getattr(vllm, spec, None) or getattr(sys.modules["vllm.v1.kv_cache_interface"], spec)
    impl = make(backend, r, attn_type=vllm.AttentionType[attn_type])[0]
    build_for(backend, [impl], spec=spec(block_size=80, non_causal=not is_causal), **options)
    attention_of, appends = backend._attend.attention_of, attn_type == "DECODER"
    kind = impl._kind(is_causal, False, torch.float32, 80, appends)
    assert attention_of(kind).info["is_ready"]
    if is_causal or not appends:
        assert attention_of(kind._replace(appends=False)).info["is_ready"]
        assert attention_of(backend._attend.writer_of(kind)).info["is_ready"]


def test_readers_of_stock_keys(backend, monkeypatch):
    """The layers that read a cache have the kernels of the layer that writes it: each has an order of its own."""
    refuse(backend, monkeypatch, lambda kind: kind.appends)
    r = Requests(4, 2, 32, torch.float32)
    writer = make(backend, r)[0]
    reader = make(backend, r, kv_sharing_target_layer_name="layer0")[0]
    builder = build_for(backend, [writer, reader])
    assert writer.stock_reason and reader.stock_reason == writer.stock_reason
    stock_step(reader, builder, r)
    assert [call[0] for call in reader.calls] == ["forward"]


def test_drafts_that_share_keys(backend, monkeypatch):
    """vLLM gives a draft of Gemma 4 the layer whose keys it reads when it is already made."""
    r = Requests(4, 2, 32, torch.float32)
    writer, reader = make(backend, r)[0], make(backend, r)[0]
    builder = build_for(backend, [reader], target="other", drafts="ngrams")
    names, common, _, _ = r.common({"a": 3})
    step = builder.build(0, common).step
    assert not builder.has_new_keys and not step.appends
    refuse(backend, monkeypatch, lambda kind: kind.appends)
    build_for(backend, [writer, reader], target="layer0")
    assert writer.stock_reason and reader.stock_reason == writer.stock_reason


def test_readers_that_attune_refuses(backend, monkeypatch):
    """vLLM's own kernels cannot read what attune has written: the engine does not start."""
    r = Requests(4, 2, 32, torch.float32)
    writer = make(backend, r)[0]
    reader = make(backend, r, kv_sharing_target_layer_name="other", sinks=SINKS)[0]
    reader.kv_sharing_target_layer_name, reader.stock_reason = "layer0", ""
    refuse(backend, monkeypatch, lambda kind: kind.has_sinks)
    with pytest.raises(ValueError, match="a layer .*cannot read the keys that attune writes for layer0"):
        build_for(backend, [writer, reader])


def test_values_of_another_size_that_attune_refuses(backend, monkeypatch):
    """vLLM's own kernels compute values of the size of keys alone: the engine does not start."""
    r = Requests(4, 2, 48, torch.float32, dim_v=32)
    impl = make(backend, r)[0]
    refuse(backend, monkeypatch, lambda kind: True)
    with pytest.raises(ValueError, match="values have 32 columns and keys 48, .* attune leaves a layer"):
        build_for(backend, [impl], spec=replace(SPEC, head_size=48, head_size_v=32))


def test_stats(backend):
    import attune.vllm

    before = attune.vllm.stats()
    r = Requests(4, 2, 32, torch.float32)
    impl, builder = make(backend, r)
    run(impl, builder, r, {"a": 5, "b": 2})
    after = attune.vllm.stats()
    assert [after[name] - before[name] for name in ("steps", "calls", "tokens")] == [1, 1, 7]
    assert impl.forward(LAYER, None, None, None, None, None, SINKS) is SINKS  # vLLM warms up
