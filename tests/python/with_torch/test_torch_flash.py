"""FlashAttention's functions by attune, compared with plain torch in f64 as FlashAttention's documentation has it."""

import pathlib
import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 10):
    pytest.skip("attune.torch needs PyTorch 2.10", allow_module_level=True)

import attune
from attune.torch import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

CLOSE = {torch.float32: dict(rtol=1e-5, atol=1e-5), torch.bfloat16: dict(rtol=2e-2, atol=2e-2)}


def reference(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None):
    """out and lse of one sequence, [seq, heads, dim] and [heads, seq]: the documentation, line by line."""
    rows, keys, group = len(q), len(k), q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i, j = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double()[:, None, None] * (i - j).abs()
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if causal:
        seen &= j <= i
    if window_size[0] >= 0:
        seen &= j >= i - window_size[0]
    if window_size[1] >= 0:
        seen &= j <= i + window_size[1]
    scores = scores.masked_fill(~seen, -torch.inf)
    weights = torch.nan_to_num(torch.softmax(scores, -1)) if keys else scores
    return torch.einsum("hij,jhd->ihd", weights, v), torch.logsumexp(scores, -1)


def close(ours, theirs, dtype=torch.float32):
    torch.testing.assert_close(ours.double(), theirs, **CLOSE[dtype])


def draw(*shapes, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(shape).to(dtype) for shape in shapes]


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
OPTIONS = {
    "plain": {},
    "causal": dict(causal=True),
    "window": dict(window_size=(2, 1)),
    "window to the left": dict(window_size=(3, -1), causal=True),
    "scale": dict(softmax_scale=0.3),
    "softcap": dict(softcap=1.5),
    "slopes": dict(alibi_slopes=SLOPES),
    "slopes of each sequence": dict(alibi_slopes=torch.stack((SLOPES, SLOPES.flip(0))), causal=True),
    "much": dict(alibi_slopes=SLOPES, causal=True, softcap=2.0, window_size=(4, 0), softmax_scale=0.2),
}


def of_sequence(options, b):
    slopes = options.get("alibi_slopes")
    return dict(options, alibi_slopes=slopes[b]) if slopes is not None and slopes.dim() == 2 else options


@pytest.mark.parametrize("causal, seqlen_q, seqlen_k, matrix", [
    (True, 2, 5, "11110 11111"),
    (True, 5, 2, "00 00 00 10 11"),
    (False, 2, 3, "111 111"),
])
def test_the_documented_causal_matrix(causal, seqlen_q, seqlen_k, matrix):
    """q of zeros sees all visible keys alike; v is the identity, so a row shows which."""
    q, k = torch.zeros(1, seqlen_q, 1, 8), torch.randn(1, seqlen_k, 1, 8)
    v = torch.nn.functional.pad(torch.eye(seqlen_k), (0, 8 - seqlen_k))[None, :, None]
    out = flash_attn_func(q, k, v, causal=causal)[0, :, 0, :seqlen_k]
    kept = torch.tensor([[int(keep) for keep in row] for row in matrix.split()]).float()
    assert torch.equal(out > 0, kept > 0)
    close(out, (kept / kept.sum(1, keepdim=True).clamp(min=1)).double())


@pytest.mark.sample(18)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("rows, keys", [(7, 7), (3, 9), (9, 3), (1, 20)])
def test_func(dtype, options, rows, keys):
    q, k, v = draw((2, rows, 4, 16), (2, keys, 2, 16), (2, keys, 2, 16), dtype=dtype)
    out, lse, probabilities = flash_attn_func(q, k, v, return_attn_probs=True, **options)
    assert out.shape == q.shape and out.dtype == dtype and lse.shape == (2, 4, rows) and lse.dtype == torch.float32
    assert probabilities.numel() == 0
    torch.testing.assert_close(flash_attn_func(q, k, v, 0.0, **options), out, **CLOSE[dtype])
    for b in range(2):
        expected, log = reference(q[b], k[b], v[b], **of_sequence(options, b))
        close(out[b], expected, dtype)
        close(lse[b], log)


def test_any_strides_and_positional_arguments():
    qkv, = draw((2, 7, 3, 4, 16))  # as of a fused projection
    q, k, v = qkv.unbind(2)
    out = flash_attn_func(q, k, v, 0.0, 0.25, True, (3, 0), 0.0, None, True)
    for b in range(2):
        close(out[b], reference(q[b], k[b], v[b], 0.25, True, (3, 0))[0])
    across = q.transpose(1, 3).contiguous().transpose(1, 3)
    assert across.stride(-1) != 1 and torch.equal(flash_attn_func(across, k, v, 0.0, 0.25, True, (3, 0)), out)


STARTS = torch.tensor([0, 5, 6, 13], dtype=torch.int32)
STARTS_K = torch.tensor([0, 9, 15, 17], dtype=torch.int32)
SLOPES_OF_THREE = torch.stack((SLOPES, SLOPES.flip(0), SLOPES * 2))


def pages_of(k, starts, page, seed=1):
    """The ragged keys in shuffled pages, with NaN behind their ends; and the block table."""
    lens = (starts[1:] - starts[:-1]).tolist()
    columns = -(-max(lens) // page)
    torch.manual_seed(seed)
    table = torch.randperm(len(lens) * columns, dtype=torch.int32).view(len(lens), columns)
    pages = torch.full((len(lens) * columns, page, *k.shape[1:]), torch.nan, dtype=k.dtype)
    for b, length in enumerate(lens):
        for t in range(length):
            pages[table[b, t // page], t % page] = k[starts[b] + t]
    return pages, table


@pytest.mark.parametrize("paged", [False, True], ids=["tensors", "pages"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_varlen(options, paged):
    if options.get("alibi_slopes") is not None and options["alibi_slopes"].dim() == 2:
        options = dict(options, alibi_slopes=SLOPES_OF_THREE)
    q, k, v = draw((13, 4, 16), (17, 2, 16), (17, 2, 16))
    keys, values, table = k, v, None
    if paged:
        (keys, table), (values, _) = pages_of(k, STARTS_K, 4), pages_of(v, STARTS_K, 4)
    out, lse, _ = flash_attn_varlen_func(q, keys, values, STARTS, STARTS_K, 7, 9, return_attn_probs=True,
                                         block_table=table, **options)
    assert out.shape == q.shape and lse.shape == (4, 13)
    for b in range(3):
        rows, own = slice(STARTS[b], STARTS[b + 1]), slice(STARTS_K[b], STARTS_K[b + 1])
        expected, log = reference(q[rows], k[own], v[own], **of_sequence(options, b))
        close(out[rows], expected)
        close(lse[:, rows], log)


def rotated(x, first, cos, sin, interleaved):
    """x [seq, heads, dim] rotated for the positions first, first + 1 …, or all for `first` if it is a tensor."""
    half = cos.shape[1]
    at = first if isinstance(first, torch.Tensor) else first + torch.arange(len(x))
    angle = torch.complex(cos[at].double(), sin[at].double())[:, None]
    x = x.double().clone()
    columns = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    turned = torch.complex(x[..., columns[0]], x[..., columns[1]]) * angle
    x[..., columns[0]], x[..., columns[1]] = turned.real, turned.imag
    return x


CACHES = ["cache", "batch_idx", "pages"]


def cache_of(kind, lens, heads=2, dim=16, capacity=24):
    """Caches with NaN behind the keys, how to read sequence b of one, and the arguments that say which it is."""
    (k, v), count = draw((3, capacity, heads, dim), (3, capacity, heads, dim), seed=3), len(lens)
    caches, where = [], {}
    for one in (k, v):
        for b, length in enumerate(lens):
            one[b, length:] = torch.nan
        if kind == "cache":
            caches.append((one, lambda cache, b: cache[b]))
        elif kind == "batch_idx":
            index = torch.tensor([4, 0, 2][:count], dtype=torch.int32)
            wide = torch.full((5, capacity, heads, dim), torch.nan)
            wide[index.long()] = one[:count]
            where = dict(cache_batch_idx=index)
            caches.append((wide, lambda cache, b, index=index: cache[index[b]]))
        else:
            table = torch.tensor([[5, 0, 7], [1, 8, 2], [3, 4, 6]], dtype=torch.int32)
            pages = torch.empty(9, 8, heads, dim)
            pages[table.long().flatten()] = one.reshape(9, 8, heads, dim)
            where = dict(block_table=table)
            caches.append((pages, lambda cache, b, table=table: cache[table[b].long()].flatten(0, 1)))
    return caches, where


@pytest.mark.sample(18)
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("new, seq", [(None, 3), (1, 1), (4, 4), (5, 2)], ids=["read", "decode", "chunk", "other"])
def test_with_kvcache(kind, options, new, seq):
    if options.get("alibi_slopes") is not None and options["alibi_slopes"].dim() == 2:
        options = dict(options, alibi_slopes=SLOPES_OF_THREE)
    lens = [7, 19, 12]
    ((k_cache, k_of), (v_cache, v_of)), where = cache_of(kind, lens)
    q, = draw((3, seq, 4, 16), seed=4)
    k, v = draw((3, new, 2, 16), (3, new, 2, 16), seed=5) if new else (None, None)
    before = [k_of(k_cache, b)[:n].clone() for b, n in enumerate(lens)]
    out, lse = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=torch.tensor(lens, dtype=torch.int32),
                                       return_softmax_lse=True, **where, **options)
    assert out.shape == q.shape and lse.shape == (3, 4, seq)
    for b, n in enumerate(lens):
        keys, values, total = k_of(k_cache, b), v_of(v_cache, b), n + (new or 0)
        assert torch.equal(keys[:n], before[b]) and keys[total:].isnan().all()
        if new:
            assert torch.equal(keys[n:total], k[b]) and torch.equal(values[n:total], v[b])
        expected, log = reference(q[b], keys[:total], values[:total], **of_sequence(options, b))
        close(out[b], expected)
        close(lse[b], log)


@pytest.mark.sample(18)
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(window_size=(5, 2))], ids=["plain", "causal", "near"])
@pytest.mark.parametrize("new, seq", [(1, 1), (4, 4), (5, 2)], ids=["decode", "chunk", "other"])
def test_rotary(kind, interleaved, options, new, seq):
    lens = [7, 19, 0]
    ((k_cache, k_of), (v_cache, v_of)), where = cache_of(kind, lens)
    q, k, v = draw((3, seq, 4, 16), (3, new, 2, 16), (3, new, 2, 16), seed=4)
    angles = torch.rand(40, 4) * 6
    cos, sin = angles.cos(), angles.sin()
    out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cos, sin, torch.tensor(lens, dtype=torch.int32),
                                  rotary_interleaved=interleaved, **where, **options)
    for b, n in enumerate(lens):
        keys, values = k_of(k_cache, b)[: n + new], v_of(v_cache, b)[: n + new]
        close(keys[n:], rotated(k[b], n, cos, sin, interleaved))
        turned = rotated(q[b], n if options else torch.full((seq,), n), cos, sin, interleaved)
        close(out[b], reference(turned, keys, values, **options)[0])


def test_lengths_as_an_integer_or_none():
    (k_cache, _), (v_cache, _) = cache_of("cache", [24, 24, 24])[0]
    q, k, v = draw((2, 1, 4, 16), (2, 1, 2, 16), (2, 1, 2, 16))
    out = flash_attn_with_kvcache(q, k_cache, v_cache)  # the cache may have more sequences
    close(out[1], reference(q[1], k_cache[1], v_cache[1])[0])
    out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=10, causal=True)
    close(out[1], reference(q[1], k_cache[1, :11], v_cache[1, :11])[0])
    assert torch.equal(k_cache[:2, 10], k[:, 0])
    assert flash_attn_func(q[:0], k[:0], v[:0]).shape == (0, 1, 4, 16)


def refuse(sentence, function, *arguments, kind=attune.InvalidArgumentError, **named):
    with pytest.raises(kind, match=sentence):
        function(*arguments, **named)


def test_refusals():
    (k_cache, _), (v_cache, _) = cache_of("cache", [7, 7, 7])[0]
    q, k, v = draw((3, 2, 4, 16), (3, 2, 2, 16), (3, 2, 2, 16))
    lens = torch.tensor([7, 7, 23], dtype=torch.int32)
    kept = k_cache.clone()
    refuse("dropout_p is 0.1; it must be 0", flash_attn_func, q, k, v, 0.1, kind=attune.UnsupportedError)
    refuse("q requires grad", flash_attn_func, q.clone().requires_grad_(), k, v)
    refuse(r"k has the shape \[2, 2, 2, 16\]", flash_attn_func, q, k[:2], v[:2])
    refuse("v is bfloat16; it must be float32", flash_attn_func, q, k, v.bfloat16())
    refuse("cu_seqlens_q ends at 13", flash_attn_varlen_func, q[0], k[0], v[0], STARTS, STARTS_K, 7, 9)
    refuse("alibi_slopes has 2 rows", flash_attn_func, q, k, v, alibi_slopes=SLOPES_OF_THREE[:2])
    step = (q, k_cache, v_cache)
    refuse("cache_leftpad", flash_attn_with_kvcache, *step, cache_leftpad=lens, kind=attune.UnsupportedError)
    refuse("both", flash_attn_with_kvcache, *step, cache_batch_idx=lens, block_table=lens[:, None])
    refuse("together", flash_attn_with_kvcache, *step, k)
    refuse("without cache_seqlens", flash_attn_with_kvcache, *step, k, v)
    refuse("without k and v", flash_attn_with_kvcache, *step, rotary_cos=k_cache, rotary_sin=k_cache)
    refuse(r"kv_lens\[2\]", flash_attn_with_kvcache, *step, k, v, cache_seqlens=lens)
    refuse("exceed the cache", flash_attn_with_kvcache, q[:, :1], k_cache, v_cache, k, v, cache_seqlens=lens)
    assert torch.equal(k_cache.nan_to_num(9), kept.nan_to_num(9))  # nothing was written


def test_steps_and_pages_of_torch_tensors():
    """attune.Attention and attune.PagedCache take torch's tensors, bf16 too, and give such."""
    attention = attune.Attention(num_heads=4, num_kv_heads=2, head_dim=16, dtype=torch.bfloat16, is_causal=True,
                                 kv="paged", page_size=4, appends=True, has_lse=True)
    cache = attune.PagedCache(attention, 8, like=torch.empty(0, dtype=torch.bfloat16))
    assert cache.k_cache.dtype == torch.bfloat16 and cache.k_cache.shape == (8, 4, 2, 16)
    qkv = draw((9, 8, 16), dtype=torch.bfloat16)[0]
    q, k, v = qkv.split((4, 2, 2), 1)  # views, not contiguous
    for begin, end in ((0, 6), (6, 9)):
        cache.append("a", end - begin)
        batch = cache.batch(["a"])
        assert batch["block_table"].dtype == torch.int32
        out, lse = attention.run(q[begin:end], k[begin:end], v[begin:end], **batch,
                                 cu_seqlens_q=torch.tensor([0, end - begin]))
        expected, log = reference(q[begin:end], k[:end], v[:end], causal=True)
        assert out.dtype == torch.bfloat16
        close(out, expected, torch.bfloat16)
        close(lse, log)
    cache.fork("a", "b")
    cache.append("b")
    assert torch.equal(cache.batch(["b"])["block_table"][:, :2], cache.batch(["a"])["block_table"][:, :2])
    with pytest.raises(attune.InvalidArgumentError, match="requires grad"):
        attention.run(q.clone().requires_grad_(), k, v, **cache.batch(["a"]), cu_seqlens_q=[0, 9])


@pytest.mark.filterwarnings("error:Dynamo")
def test_compiled_models_break_their_graph_there():
    def model(x, k, v):
        return flash_attn_func(x * 2, k, v, causal=True, alibi_slopes=SLOPES) + 1

    compiled = torch.compile(model, backend="eager")
    for rows in (3, 5):
        q, k, v = draw((2, rows, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16))
        assert torch.equal(compiled(q, k, v), model(q, k, v))


def test_the_snippets_of_the_manual():
    page, names = pathlib.Path(__file__).parents[3] / "docs" / "pytorch.md", {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)
    block, = [block for block in blocks if "flash_attn" in block]
    exec(block, names)
    assert names["out"].shape == (2, 100, 8, 64) and names["ragged"].shape == (100, 8, 64)
    assert names["token"].shape == (2, 1, 8, 64)
    close(names["out"][1], reference(names["q"][1], names["k"][1], names["v"][1], causal=True)[0], torch.bfloat16)
