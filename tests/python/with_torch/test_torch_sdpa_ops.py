"""attune's own operators for PyTorch: attune::attention and attune::attention_append."""

import functools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 10):
    pytest.skip("attune.torch needs PyTorch 2.10", allow_module_level=True)

import attune.torch  # noqa: F401  defines the operators
from attune.torch._ops import _hidden
from sdpa_support import assert_exact, reference

attention = torch.ops.attune.attention
append = torch.ops.attune.attention_append
REPEATS = 64  # calls in a row with the same lengths, until a kernel is compiled for them
CLOSE = dict(rtol=1e-5, atol=1e-5)
LENS = torch.tensor([3, 9], dtype=torch.int32)


def inputs(dtype=torch.float32, heads=4, kv_heads=2, rows=5, keys=9, dim=16):
    torch.manual_seed(0)
    return [torch.randn(2, h, n, dim, dtype=dtype) for h, n in ((heads, rows), (kv_heads, keys), (kv_heads, keys))]


def mask_with_an_empty_row():
    torch.manual_seed(1)
    mask = torch.rand(2, 1, 5, 9) > 0.4
    mask[0, 0, 2] = False
    return mask


RULES = {
    "plain": {},
    "causal": dict(is_causal=True),
    "top_left": dict(is_causal=True, causal_align="top_left"),
    "mask": dict(attn_mask=mask_with_an_empty_row()),
    "lengths_and_window": dict(kv_lens=LENS, is_causal=True, causal_align="bottom_right", window_left=2),
    "window": dict(window_left=1, window_right=2),
    "bias_and_scale": dict(
        attn_bias=torch.linspace(-1, 1, 2 * 4 * 5 * 9, dtype=torch.float64).view(2, 4, 5, 9), softmax_scale=0.3
    ),
}


def by_reference(
    q, k, v, attn_mask=None, attn_bias=None, kv_lens=None, is_causal=False, causal_align="bottom_right", **rest
):
    left, right = rest.get("window_left", -1), rest.get("window_right", -1)
    hidden = _hidden(q, k, attn_mask, kv_lens, is_causal, causal_align == "bottom_right", left, right)
    return reference(q, k, v, hidden, attn_bias, rest.get("softmax_scale"))


def as_dtype(rules, dtype):
    return {name: x.to(dtype) if name == "attn_bias" else x for name, x in rules.items()}


@pytest.mark.sample(12)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_values(rules, dtype):
    q, k, v = inputs(dtype)
    out, lse = attention(q, k, v, **as_dtype(rules, dtype))
    assert_exact(out, functools.partial(by_reference, **as_dtype(rules, dtype)), q, k, v)
    assert out.transpose(1, 2).is_contiguous() and lse.shape == q.shape[:3]


def test_rules_are_those_of_the_documentation():
    """_hidden is part of the backward and of these tests, so it is tested by hand."""
    q, k, _ = inputs(rows=2, keys=4)
    lens = torch.tensor([4, 2], dtype=torch.int32)
    hidden = _hidden(q, k, None, lens, True, True, 1, -1)
    assert (~hidden[0, 0]).int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]
    assert (~hidden[1, 0]).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]
    assert _hidden(q, k, None, None, False, False, -1, -1) is None


@pytest.mark.parametrize("mask_heads, dim", [(4, 8), (1, 24)])
@pytest.mark.parametrize("has_rows", [False, True])
@pytest.mark.parametrize("is_bias", [False, True])
def test_a_kernel_that_a_batch_of_one_brought_serves_masks_of_each_entry(mask_heads, dim, has_rows, is_bias):
    """Lengths that come back get a kernel of their own, which then serves all batches."""

    def check(batch):
        q, k, v = (torch.randn(batch, 4, 20, dim) for _ in range(3))
        mask = torch.rand(batch, mask_heads, 20 if has_rows else 1, 20) > 0.4
        mask[..., 0] = True
        bias = torch.randn(mask.shape).masked_fill(~mask, -torch.inf)
        out, _ = attention(q, k, v, attn_bias=bias) if is_bias else attention(q, k, v, attn_mask=mask)
        torch.testing.assert_close(out.double(), reference(q, k, v, ~mask, bias if is_bias else None), **CLOSE)

    def kernels():
        return sum(attune.torch.stats().get(name, 0) for name in ("compiles", "disk_hits"))

    torch.manual_seed(0)
    check(1)
    before = kernels()
    for _ in range(REPEATS):
        check(1)
    assert kernels() == before + 1
    for batch in (1, 3, 2):
        check(batch)
    assert kernels() == before + 1


def test_cap_and_sinks():
    q, k, v = inputs(torch.float64)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    out, lse = attention(q, k, v, sinks=sinks, logits_soft_cap=2.0)
    scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 4
    scores = torch.cat([2 * torch.tanh(scores / 2), sinks.double()[None, :, None, None].expand(2, 4, 5, 1)], -1)
    torch.testing.assert_close(out, torch.softmax(scores, -1)[..., :9] @ v.repeat_interleave(2, 1))
    torch.testing.assert_close(lse, torch.logsumexp(scores, -1))


def test_empty_sizes_and_other_widths():
    q, k, v = inputs()
    out, lse = attention(q[:, :, :0], k, v)
    assert out.shape == (2, 4, 0, 16) and lse.shape == (2, 4, 0)
    out, lse = attention(q, k[:, :, :0], v[:, :, :0])
    assert (out == 0).all() and (lse == -torch.inf).all()
    assert attention(q[:, :0], k[:, :0], v[:, :0])[0].shape == (2, 0, 5, 16)
    out, _ = attention(q, k, v[..., :6])
    torch.testing.assert_close(out, reference(q, k, v[..., :6]).float())


@pytest.mark.sample(8)
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 2e-5), (torch.bfloat16, 5e-2)])
def test_gradients(rules, dtype, tolerance):
    ours = [t.requires_grad_() for t in inputs(dtype)]
    exact = [t.detach().double().requires_grad_() for t in ours]
    rules = as_dtype(rules, dtype)
    out, expected = attention(*ours, **rules)[0], by_reference(*exact, **rules)
    weights = torch.randn_like(expected)
    out.backward(weights.to(dtype))
    expected.backward(weights)
    for a, b in zip(ours, exact):
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias_dtype", [torch.float32, torch.float16])
def test_gradients_with_a_bias_of_another_type(dtype, bias_dtype):
    """A large bias, common to a row, cancels; rounded to the type of q it would not."""
    ours = [t.requires_grad_() for t in inputs(dtype)]
    exact = [t.detach().double().requires_grad_() for t in ours]
    bias = (300 * torch.rand(5, 1) + torch.rand(5, 9) / 2).to(bias_dtype)
    weights = torch.randn(2, 4, 5, 16, dtype=torch.float64)
    attention(*ours, attn_bias=bias)[0].backward(weights.to(dtype))
    by_reference(*exact, attn_bias=bias.double()).backward(weights)
    for a, b in zip(ours, exact):
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (dict(logits_soft_cap=2.0), "logits_soft_cap has no backward"),
        (dict(attn_bias=torch.zeros(5, 9, requires_grad=True)), "gradient of attn_bias"),
        (dict(sinks=torch.zeros(4, requires_grad=True)), "gradient of sinks"),
    ],
)
def test_without_a_backward_gradients_are_refused(arguments, sentence):
    q, k, v = inputs()
    with pytest.raises(RuntimeError, match=sentence):
        attention(q.requires_grad_(), k, v, **arguments)
    with torch.no_grad():
        attention(q, k, v, **arguments)


# ---- Appending ----


def caches(dtype, capacity=32):
    k, v = torch.randn(2, 2, 2, capacity, 16)
    if dtype != torch.int8:
        return k.to(dtype), v.to(dtype), None, None
    zeros = torch.zeros(2, 2, capacity)
    return k.to(dtype), v.to(dtype), zeros, zeros.clone()


def values(cache, scale):
    return cache.double() if scale is None else cache.double() * scale.double()[..., None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("rows", [1, 4])
def test_append(dtype, rows):
    torch.manual_seed(0)
    fresh = torch.float32 if dtype == torch.int8 else dtype
    k, v, k_scale, v_scale = caches(dtype)
    old = values(k, k_scale), values(v, v_scale)
    lens = torch.tensor([4, 30], dtype=torch.int32)
    q = torch.randn(2, 4, rows, 16)
    k_new, v_new = torch.randn(2, 2, 2, rows, 16).to(fresh)
    pointer = k.data_ptr()
    out = append(q, k_new, v_new, k, v, k_scale, v_scale, lens, window_left=20)
    assert k.data_ptr() == pointer
    wide = values(k, k_scale), values(v, v_scale)
    step = 0.02 if dtype == torch.int8 else 0
    for b, n in enumerate(lens.tolist()):
        for now, before, new in zip(wide, old, (k_new, v_new)):
            assert (now[b, :, n - rows : n] - new[b].double()).abs().max() <= step
            assert torch.equal(now[b, :, n:], before[b, :, n:])
            assert torch.equal(now[b, :, : n - rows], before[b, :, : n - rows])
        p, j = torch.arange(rows)[:, None] + n - rows, torch.arange(n)
        part = [t[b : b + 1, :, :n] for t in wide]
        exact = reference(q[b : b + 1], *part, hidden=(j > p) | (j < p - 20))
        torch.testing.assert_close(out[b : b + 1], exact.float(), rtol=1e-4, atol=1e-5)


def test_append_takes_masks_of_the_longest_entry_or_of_the_capacity():
    torch.manual_seed(0)
    k, v, _, _ = caches(torch.float32)
    q, (k_new, v_new) = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 2, 1, 16)
    lens = torch.tensor([4, 6], dtype=torch.int32)
    mask = torch.ones(2, 1, 1, 32, dtype=torch.bool)
    mask[1, 0, 0, :3] = False
    long = append(q, k_new, v_new, k, v, None, None, lens, mask)
    short = append(q, k_new, v_new, k, v, None, None, lens, mask[..., :6])
    exact = reference(q[1:], k[1:, :, 3:6], v[1:, :, 3:6])
    torch.testing.assert_close(long[1:], exact.float())
    assert torch.equal(long, short)


def test_a_cache_that_autograd_needs_is_known_to_have_changed():
    k, v, _, _ = caches(torch.float32)
    q = torch.randn(2, 4, 1, 16, requires_grad=True)
    out = attention(q, k, v)[0].sum()
    with torch.no_grad():
        append(q, k[:, :, :1].clone(), v[:, :, :1].clone(), k, v, None, None, LENS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
    with pytest.raises(RuntimeError, match="attention_append has no backward"):
        append(q, k[:, :, :1].clone(), v[:, :, :1].clone(), k, v, None, None, LENS)


def test_append_refuses_inference_tensors_outside_of_inference_mode():
    q, k, v = inputs()
    with torch.inference_mode():
        caches_ = k.clone(), v.clone()
        new = k[:, :, :1].clone()
        append(q[:, :, :1], new, new, *caches_, None, None, LENS)
    kept = caches_[0].clone()
    for grad in (torch.no_grad, torch.enable_grad):
        with grad(), pytest.raises(RuntimeError, match="a cache is an inference tensor"):
            append(q[:, :, :1], new + 1, new, *caches_, None, None, LENS)
    assert torch.equal(caches_[0], kept)


# ---- Bad input ----

Q, K, V = inputs()
BAD = [
    (lambda: attention(Q[0], K, V), "q has 3 dims; it must have 4"),
    (lambda: attention(Q.to("meta"), K, V), "q is on meta and another tensor on cpu"),
    (lambda: attention(Q, K, V, kv_lens=LENS.to("meta")), "q is on cpu and another tensor on meta"),
    (lambda: attention(Q, K[:, :0], V[:, :0]), "k has 0 heads; q has 4"),
    (lambda: attention(Q, K.double(), V), "k must have the dtype of q"),
    (lambda: attention(Q.int(), K, V), "q must be float32, bfloat16"),
    (lambda: attention(Q, K[:1], V), "k has the size 1 in dim 0; it must have 2"),
    (lambda: attention(Q, K, V[:, :, :4]), "v has the size 4 in dim 2; it must have 9"),
    (lambda: attention(Q[:, :3], K, V), "q has 3 heads, which is no multiple of the 2 heads of k"),
    (lambda: attention(Q.transpose(2, 3).contiguous().transpose(2, 3), K, V), "q has the innermost stride 5"),
    (lambda: attention(Q, K, V, attn_mask=torch.zeros(5, 9)), "attn_mask must be bool"),
    (lambda: attention(Q, K, V, attn_bias=torch.zeros(5, 9, dtype=torch.bool)), "attn_bias must be numbers"),
    (lambda: attention(Q, K, V, attn_bias=torch.zeros(5, 9, dtype=torch.float64)), "attn_bias is float64; with a q of"),
    (lambda: attention(Q, K.double(), V.double()), "k must have the dtype of q"),
    (lambda: attention(Q, K, V, attn_mask=torch.ones(5, 8, dtype=torch.bool)), r"be broadcast to \[2, 4, 5, 9\]"),
    (lambda: attention(Q, K, V, kv_lens=LENS.long()), r"kv_lens must be contiguous int32 of \[2\]"),
    (lambda: attention(Q, K, V, kv_lens=LENS + 1), r"kv_lens\[1\] is 10; there are 9 keys"),
    (lambda: attention(Q, K, V, sinks=torch.zeros(3)), r"sinks must be contiguous float32 of \[4\]"),
    (lambda: attention(Q, K, V, logits_soft_cap=-1.0), "logits_soft_cap is -1"),
    (lambda: attention(Q, K, V, softmax_scale=float("nan")), "softmax_scale is -?nan"),
    (lambda: attention(Q, K, V, causal_align="left"), 'causal_align is "left"; it must be bottom_right or top_left'),
    (lambda: attention(Q, K, V, causal_align=""), 'causal_align is ""'),
    (lambda: append(Q, K[:, :, :5], V[:, :, :5], K, V, None, None, LENS), r"kv_lens\[0\] is 3; with the 5 new keys"),
    (lambda: append(Q, K, V, K.to(torch.int8), V.to(torch.int8), None, None, LENS), "int8 need k_scale"),
    (lambda: append(Q, K, V, K, V, torch.zeros(2, 2, 9), None, LENS), "k_scale needs a cache of int8"),
    (lambda: append(Q, K.double(), V, K, V, None, None, LENS), "k_new must have the dtype of the cache"),
]


@pytest.mark.parametrize("call, sentence", BAD)
def test_bad_input(call, sentence):
    with torch.no_grad(), pytest.raises(RuntimeError, match=sentence):
        call()
