"""attune's classes for latent attention in vLLM, with vLLM's own faked."""

import importlib
import sys
import types

import pytest
import torch

import vllm_stub as vllm
from vllm_requests import DTYPES, attend, faked_classes  # noqa: F401

HEADS, RANK, NOPE, ROPE, OWN, PAGE = 4, 64, 32, 16, 24, 16


@pytest.fixture
def mla():
    return importlib.import_module("attune.vllm._mla")


def mla_parts(mla, dtype):
    """A layer, a builder, and what computes prompts."""
    impl = mla.AttuneMLABackend.get_impl_cls()(HEADS, RANK + ROPE, 0.11, RANK)
    config = types.SimpleNamespace(
        model_config=types.SimpleNamespace(dtype=dtype), compilation_config=types.SimpleNamespace(
            static_forward_context={"layer": types.SimpleNamespace(impl=impl)}))  # fmt: skip
    config.prefill_backend = mla.AttuneMLAPrefill(HEADS, 0.11, NOPE, ROPE, OWN, config)
    spec = vllm.AttentionSpec(RANK + ROPE, PAGE)
    return impl, mla.AttuneMLABackend.get_builder_cls()(spec, ["layer"], config, torch.device("cpu"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_latents(mla, dtype):
    """Decoding and verifying attend to pages of latents, prompts to keys and values of their own, whose rows lie
    apart."""
    generator, tolerance = torch.Generator().manual_seed(3), DTYPES[dtype][1]

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    impl, builder = mla_parts(mla, dtype)
    cache, table = draw(9, PAGE, RANK + ROPE), torch.tensor([[5, 2, 8], [7, 10**6, 10**6], [0, 1, 3], [4, 6, 6]])
    common = vllm.CommonAttentionMetadata(
        torch.tensor([0, 1, 4, 24, 29], dtype=torch.int32), torch.tensor([41, 7, 20, 5], dtype=torch.int32), 4, 29,
        table.int(), torch.arange(29))  # fmt: skip
    metadata, nope, rope = builder.build(0, common), draw(4, HEADS, RANK), draw(4, HEADS, ROPE)
    out, lse = impl.forward_mqa((nope, rope), cache, metadata, None)
    assert lse is None and out.shape == (4, HEADS, RANK)
    for request, (new, length) in enumerate(((slice(0, 1), 41), (slice(1, 4), 7))):
        rows = cache[table[request][: -(-length // PAGE)]].flatten(0, 1)[:length].double()
        q = torch.cat([nope, rope], 2)[new].double().transpose(0, 1)
        expected = attend(q, rows[None], rows[None, :, :RANK], 0.11, True, 0, 0, None, None).transpose(0, 1)
        torch.testing.assert_close(out[new].double(), expected, rtol=tolerance, atol=tolerance)
    q, k, both = draw(25, HEADS, NOPE + ROPE), draw(25, HEADS, NOPE + ROPE), draw(25, HEADS, NOPE + OWN)
    starts, backend = metadata.prefill.query_start_loc, builder.prefill_backend
    for causal in (True, False):
        out, lse = backend._ragged_sdpa(q, k, both[..., NOPE:], starts, starts, causal, True)
        alone = backend._ragged_sdpa(q, k, both[..., NOPE:], starts, starts, causal, False)
        for first, last in ((0, 20), (20, 25)):
            own = [x[first:last].double().transpose(0, 1) for x in (q, k, both[..., NOPE:])]
            expected = attend(*own, 0.11, causal, 0, 0, None, None).transpose(0, 1)
            for mine in (out, alone):
                torch.testing.assert_close(mine[first:last].double(), expected, rtol=tolerance, atol=tolerance)
            if not causal:
                sums = (own[0] @ own[1].transpose(1, 2) * 0.11).logsumexp(2)
                torch.testing.assert_close(lse[:, first:last].double(), sums, rtol=1e-2, atol=tolerance)


def test_latents_that_attune_refuses(mla):
    """A model of another type has vLLM's own kernels, and one line of log."""
    impl, builder = mla_parts(mla, torch.float64)
    assert impl.forward_mqa(None, None, None, None) == ("stock", None)
    backend, q = builder.prefill_backend, torch.zeros(1, HEADS, NOPE + ROPE, dtype=torch.float64)
    assert backend._ragged_sdpa(q, q, q, None, None, True, False) == "stock"
    assert "attune leaves a model of torch.float64 to vLLM's own backend" in vllm.logged
    assert vllm.logged[-1] == "attune computes attention of 0 of 1 layers"


def test_a_version_without_latents(monkeypatch):
    """Other attention is attune's all the same."""
    import attune.vllm

    monkeypatch.setitem(attune.vllm._state, "registered", False)
    monkeypatch.setenv("ATTUNE_VLLM", "0")
    monkeypatch.delattr(sys.modules["vllm.v1.attention.backends.mla.cpu_mla"].CPUMLAImpl, "forward_mqa")
    vllm.registered.clear()
    assert attune.vllm.enable() and [member.name for member in vllm.registered] == ["CPU_ATTN"]
    assert vllm.logged[-1].startswith("attune leaves latent attention to vLLM: 0.32.0 has no vllm.v1")
    attune.vllm.disable()
    assert not vllm.registered
