"""The attention function of attune.transformers: against f64, and what runs as stock."""

import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is missing")
transformers = pytest.importorskip("transformers", reason="transformers is missing")
pytest.importorskip("attune.torch", reason="attune.torch is missing")
from attention_reference import attention as reference  # noqa: E402
from transformers import masking_utils as stock  # noqa: E402
from transformers.models.gemma2 import modeling_gemma2  # noqa: E402

import attune.transformers as at  # noqa: E402

at.register()
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float64: 1e-11}


class Layer(torch.nn.Module):
    def __init__(self, is_causal=True, groups=1):
        super().__init__()
        self.is_causal, self.num_key_value_groups, self.head_dim = is_causal, groups, 16


def tensors(batch=2, heads=4, kv_heads=2, queries=9, keys=None, dim=16, dim_v=None, dtype=torch.float32):
    torch.manual_seed(queries)
    keys = queries if keys is None else keys
    shapes = (heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, dim_v or dim)
    return [torch.randn(batch, *shape).to(dtype) for shape in shapes]


def run(layer, qkv, mask=None, **arguments):
    out, weights = at.attune_attention(layer, *qkv, mask, **arguments)
    assert weights is None or arguments.get("output_attentions")
    return out.transpose(1, 2)


def close(got, want, dtype=torch.float32):
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want.double(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def mask_of(qkv, padding=None, window=0, causal=True):
    q_length, kv_length = qkv[0].shape[2], qkv[1].shape[2]
    if causal:
        function = stock.sliding_window_causal_mask_function(window) if window else stock.causal_mask_function
    else:
        function = stock.bidirectional_mask_function
    arguments = dict(
        batch_size=qkv[0].shape[0], q_length=q_length, kv_length=kv_length, q_offset=kv_length - q_length,
        mask_function=function, attention_mask=padding, allow_is_causal_skip=causal,
        allow_is_bidirectional_skip=not causal,
    )  # fmt: skip
    full = dict(arguments, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    return at.attune_mask(**arguments), stock.sdpa_mask(**full)


PADDINGS = {
    "none": lambda keys: None,
    "right": lambda keys: torch.arange(keys) < torch.tensor([[keys], [keys // 2 + 1]]),
    "left": lambda keys: torch.arange(keys) >= torch.tensor([[0], [keys // 2]]),
    "one entry hidden": lambda keys: torch.tensor([[True], [False]]).expand(2, keys),
}


@pytest.fixture(autouse=True)
def fresh_counts():
    at.reset_stats()
    with torch.no_grad():
        yield


@pytest.mark.sample(30)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", [(9, 9), (1, 1), (1, 23), (5, 20), (33, 33)])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("window", [0, 4])
def test_causal(sizes, padding, window, dtype):
    qkv = tensors(queries=sizes[0], keys=sizes[1], dtype=dtype)
    mask, full = mask_of(qkv, PADDINGS[padding](sizes[1]), window)
    close(run(Layer(groups=2), qkv, mask, scaling=0.3), reference(*qkv, attn_mask=full, softmax_scale=0.3)[0], dtype)
    close(run(Layer(groups=2), qkv, full, scaling=0.3), reference(*qkv, attn_mask=full, softmax_scale=0.3)[0], dtype)
    assert at.stats()["stock"] == 0 and at.stats()["attune"] == 2


@pytest.mark.sample(6)
@pytest.mark.parametrize("sizes", [(9, 9), (4, 31), (1, 12)])
@pytest.mark.parametrize("padding", PADDINGS)
def test_bidirectional(sizes, padding):
    qkv = tensors(queries=sizes[0], keys=sizes[1], dim_v=24)
    mask, full = mask_of(qkv, PADDINGS[padding](sizes[1]), causal=False)
    close(run(Layer(is_causal=False, groups=2), qkv, mask), reference(*qkv, attn_mask=full)[0])
    forms = {"none": "none", "right": "lengths", "left": "keys", "one entry hidden": "lengths"}
    assert at.stats()["masks"] == {forms[padding]: 1}


@pytest.mark.parametrize("queries", [1, 12])
def test_caps_sinks_and_biases(queries):
    qkv = tensors(queries=queries, keys=12)
    sinks, bias = torch.randn(4), torch.randn(1, 4, queries, 12)
    mask, full = mask_of(qkv, PADDINGS["left"](12), window=5)
    layer = Layer(groups=2)
    close(run(layer, qkv, mask, softcap=2.0), reference(*qkv, attn_mask=full, logits_soft_cap=2.0)[0])
    close(run(layer, qkv, mask, s_aux=sinks.bfloat16()), reference(*qkv, attn_mask=full, sinks=sinks.bfloat16())[0])
    close(run(layer, qkv, mask, position_bias=bias), reference(*qkv, attn_mask=full, attn_bias=bias)[0])
    added = torch.where(full, 0.0, -torch.inf)
    close(run(layer, qkv, added), reference(*qkv, attn_mask=full)[0])
    close(run(layer, qkv, added, position_bias=bias), reference(*qkv, attn_mask=full, attn_bias=bias)[0])
    assert at.stats()["stock"] == 0 and at.stats()["attune"] == 5


def test_causality_counts_without_a_mask_only():
    qkv = tensors()
    everything = torch.ones(1, 1, 9, 9, dtype=torch.bool)
    close(run(Layer(), qkv), reference(*qkv, is_causal=True)[0])
    close(run(Layer(), qkv, everything), reference(*qkv)[0])
    close(run(Layer(), qkv, is_causal=False), reference(*qkv)[0])
    close(run(Layer(is_causal=False), qkv, is_causal=True), reference(*qkv, is_causal=True)[0])
    one = tensors(queries=1, keys=9)
    close(run(Layer(), one), reference(*one)[0])


def test_causal_without_a_mask_needs_equal_lengths():
    with pytest.raises(ValueError, match="4 queries over 9 keys"):
        run(Layer(), tensors(queries=4, keys=9))


def test_a_choice_of_keys_is_not_ignored():
    with pytest.raises(NotImplementedError, match="'block_indices'"):
        run(Layer(), tensors(), block_indices=torch.zeros(1))


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_the_cache_is_in_key_and_value_already(name):
    """By its name up to transformers 5.23, and by that from 5.24 on."""
    qkv = tensors()
    one = transformers.DynamicCache()
    for cache in one, transformers.EncoderDecoderCache(one, one), None:
        close(run(Layer(groups=2), qkv, **{name: cache}), reference(*qkv, is_causal=True)[0])
    assert at.stats()["attune"] == 3 and at.stats()["reasons"] == {}


def test_a_paged_cache_runs_as_stock():
    run(Layer(groups=2), tensors(), cache=object())
    assert at.stats()["reasons"] == {"paged cache": 1}


def test_strides_are_kept():
    batch_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors()]
    close(run(Layer(groups=2), batch_first), reference(*batch_first, is_causal=True)[0])
    every_second = [t[..., ::2] for t in tensors(dim=32)]
    close(run(Layer(groups=2), every_second), reference(*every_second, is_causal=True)[0])
    mask = (torch.rand(2, 1, 9, 18) < 0.9)[..., ::2]
    close(run(Layer(groups=2), batch_first, mask), reference(*batch_first, attn_mask=mask)[0])
    assert at.stats()["reasons"] == {"innermost strides": 1, "innermost stride of the mask": 1}


@pytest.mark.parametrize(
    "reason, changes",
    [
        ("dropout", dict(dropout=0.5)),
        ("argument extra", dict(extra=3)),
        ("mask of type torch.float64", dict(mask=torch.zeros(1, 1, 9, 9, dtype=torch.float64))),
        ("mask of 2 dimensions on cpu", dict(mask=torch.ones(9, 9, dtype=torch.bool))),
    ],
)
def test_what_attune_does_not_support_runs_as_stock(reason, changes):
    qkv, changes = tensors(), dict(changes)
    mask = changes.pop("mask", None)
    if reason.startswith("mask of type"):
        with pytest.raises(RuntimeError):
            run(Layer(groups=2), qkv, mask)
    else:
        torch.manual_seed(1)
        got = run(Layer(groups=2), qkv, mask, **changes)
        torch.manual_seed(1)
        stock_sdpa = transformers.integrations.sdpa_attention.sdpa_attention_forward
        want, _ = stock_sdpa(Layer(groups=2), *qkv, mask, **changes)
        assert torch.equal(got, want.transpose(1, 2))
    assert at.stats() == {"attune": 0, "stock": 1, "masks": {}, "reasons": {reason: 1}}


def gemma_layer():
    config = transformers.Gemma2Config(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=1
    )
    return modeling_gemma2.Gemma2Attention(config, 0)


@pytest.mark.parametrize("padding", ["none", "left"])
def test_weights_come_from_the_models_eager_attention(padding):
    qkv, layer = tensors(), gemma_layer().eval()
    mask, full = mask_of(qkv, PADDINGS[padding](9))
    out, weights = at.attune_attention(layer, *qkv, mask, scaling=0.25, softcap=5.0, output_attentions=True)
    seen = full.any(-1)[:, :, :, None]
    want = reference(*qkv, attn_mask=full, logits_soft_cap=5.0, softmax_scale=0.25)[0]
    close(torch.where(seen, out.transpose(1, 2), 0.0), want)
    assert weights.shape == (2, 4, 9, 9) and at.stats()["reasons"] == {"output_attentions": 1}


def test_a_layer_without_eager_attention_says_so():
    with pytest.raises(NotImplementedError, match="Layer has no eager attention"):
        run(Layer(), tensors(), softcap=2.0, dropout=0.5)


def test_gradients():
    with torch.enable_grad():
        qkv = [t.requires_grad_() for t in tensors()]
        mask, full = mask_of(qkv, PADDINGS["left"](9))
        got = torch.autograd.grad(run(Layer(groups=2), qkv, mask).square().sum(), qkv)
        want = torch.autograd.grad(reference(*qkv, attn_mask=full)[0].square().sum(), qkv)
        for mine, other in zip(got, want):
            close(mine, other)
        layer = gemma_layer().eval()
        out = at.attune_attention(layer, *qkv, mask, scaling=0.25, softcap=5.0)[0]
        got = torch.autograd.grad(out[full.any(-1)[:, 0]].square().sum(), qkv)
        reference_out = reference(*qkv, attn_mask=full, logits_soft_cap=5.0, softmax_scale=0.25)[0]
        reference_out = reference_out.transpose(1, 2)
        want = torch.autograd.grad(reference_out[full.any(-1)[:, 0]].square().sum(), qkv)
        for mine, other in zip(got, want):
            close(mine, other)
    assert "gradients in a call with a cap, sinks, a bias or keys of AttuneCache" in at.stats()["reasons"]


@pytest.mark.parametrize("dtype", ["bf16", "i8"])
def test_a_cache_of_another_type_is_read_as_it_is_stored(dtype):
    cache = at.AttuneCache(dtype=dtype)
    layer, kept = Layer(groups=2), []
    for queries in (7, 1, 3, 1):
        q, k, v = tensors(queries=queries)
        keys, values = cache.update(k, v, 0)
        mask, full = mask_of((q, keys), PADDINGS["left"](keys.shape[2]))
        got = run(layer, (q, keys, values), mask)
        again = run(layer, (q, keys, values), mask)  # the new rows are stored by now
        stored = [rows.rows.decode(rows.which) for rows in (keys, values)]
        kept.append(got)
        close(got, reference(q, *stored, attn_mask=full)[0])
        close(again, got)
    assert at.stats()["stock"] == 0 and at.stats()["masks"] == {"append": 4, "codes": 4}


def test_failures_run_as_stock_with_one_warning(monkeypatch):
    from attune.transformers import _attention

    def broken(*args, **kwargs):
        raise RuntimeError("the code generator is missing")

    monkeypatch.setattr(_attention._ops, "attention", broken)
    monkeypatch.setattr(_attention, "_warned", False)
    qkv = tensors()
    with pytest.warns(RuntimeWarning, match="the code generator is missing") as caught:
        for _ in range(3):
            close(run(Layer(groups=2), qkv), reference(*qkv, is_causal=True)[0])
    assert len(caught) == 1 and at.stats()["reasons"] == {"error: the code generator is missing": 3}


def test_an_older_transformers_is_refused(monkeypatch):
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.1")
    with pytest.raises(ImportError, match="5 or later, and this is 4.57.1"):
        at._check_version()
