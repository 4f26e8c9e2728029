"""attune::attention_ragged, attention_paged and attention_paged_append: values, torch.compile and torch.export."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 10):
    pytest.skip("attune.torch needs PyTorch 2.10", allow_module_level=True)

import attune.torch  # noqa: F401  defines the operators
from sdpa_support import reference

ragged = torch.ops.attune.attention_ragged
paged = torch.ops.attune.attention_paged
append = torch.ops.attune.attention_paged_append
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 4
QUERIES, KEYS = (3, 1, 5), (7, 2, 5)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def starts(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


STARTS, KV_STARTS, LENS = starts(QUERIES), starts(KEYS), ints(*KEYS)
TABLE = torch.tensor([[4, 1], [0, -1], [2, 5]], dtype=torch.int32)


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def keys_of(cache, b):
    """The keys of sequence b, in their order."""
    return torch.cat([cache[page] for page in TABLE[b].tolist() if page >= 0])[: KEYS[b]]


def expected(q, sequences, is_causal=True, left=-1, scale=None):
    """out [tokens, heads, dim] in f64; sequences: k and v [keys, kv heads, dim] of each one."""
    results = []
    for b, (k, v) in enumerate(sequences):
        own = q[STARTS[b] : STARTS[b + 1]].transpose(0, 1)[None]
        p, j = torch.arange(QUERIES[b])[:, None] + KEYS[b] - QUERIES[b], torch.arange(KEYS[b])
        hidden = ((j > p) & is_causal) | ((j < p - left) & (left >= 0))
        wide = [one.transpose(0, 1)[None] for one in (k, v)]
        results.append(reference(own, *wide, hidden=hidden, scale=scale)[0].transpose(0, 1))
    return torch.cat(results)


def close(out, exact, dtype=torch.float32):
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance)


def of_ragged(k, v):
    return [[one[KV_STARTS[b] : KV_STARTS[b + 1]] for one in (k, v)] for b in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ragged(dtype):
    q, k, v = (draw(n, h, DIM, dtype=dtype) for n, h in ((9, HEADS), (14, KV_HEADS), (14, KV_HEADS)))
    out, lse = ragged(q, k, v, STARTS, KV_STARTS, window_left=1, softmax_scale=0.3)
    close(out, expected(q, of_ragged(k, v), False, left=1, scale=0.3), dtype)
    out, lse = ragged(q, k, v, STARTS, KV_STARTS, is_causal=True)
    close(out, expected(q, of_ragged(k, v)), dtype)
    assert lse.shape == (HEADS, 9) and lse.dtype == torch.float32
    sinks = draw(HEADS)
    out, lse = ragged(q, k, v, STARTS, KV_STARTS, sinks)
    _, without = ragged(q, k, v, STARTS, KV_STARTS)
    torch.testing.assert_close(lse, torch.logaddexp(without, sinks[:, None]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_paged(dtype):
    q, k, v = draw(9, HEADS, DIM, dtype=dtype), *(draw(6, PAGE, KV_HEADS, DIM, dtype=dtype) for _ in "kv")
    out, _ = paged(q, k, v, STARTS, LENS, TABLE)
    close(out, expected(q, [(keys_of(k, b), keys_of(v, b)) for b in range(3)]), dtype)


def new_step(dtype=torch.float32):
    q, k, v = draw(9, HEADS, DIM), draw(9, KV_HEADS, DIM), draw(9, KV_HEADS, DIM)
    caches = [draw(6, PAGE, KV_HEADS, DIM) for _ in "kv"]
    if dtype == torch.int8:
        scales = [torch.full((6, KV_HEADS, PAGE), 0.05) for _ in "kv"]
        return q, k, v, [(10 * cache).to(dtype) for cache in caches], scales
    return q, k, v, caches, [None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_append(dtype):
    q, k, v, caches, scales = new_step(dtype)
    before = [cache.clone() for cache in caches]
    out, _ = append(q, k, v, *caches, STARTS, LENS, TABLE, *scales)
    wide = caches if dtype != torch.int8 else [c * s.transpose(1, 2)[..., None] for c, s in zip(caches, scales)]
    out_exact = expected(q, [[keys_of(cache, b) for cache in wide] for b in range(3)])
    torch.testing.assert_close(out.double(), out_exact, rtol=1e-4, atol=1e-5)
    step = 0.02 if dtype == torch.int8 else 0
    for b in range(3):
        for new, cache in zip((k, v), wide):
            own = keys_of(cache, b)[KEYS[b] - QUERIES[b] :]
            assert (own - new[STARTS[b] : STARTS[b + 1]]).abs().max() <= step
    assert torch.equal(caches[0][3], before[0][3])  # nobody's page


def test_opcheck():
    q, k, v, caches, _ = new_step()
    torch.library.opcheck(ragged.default, (q, k, v, STARTS, None), dict(is_causal=True))
    torch.library.opcheck(paged.default, (q, *caches, STARTS, LENS, TABLE), dict(logits_soft_cap=5.0))
    torch.library.opcheck(append.default, (q, k, v, *caches, STARTS, LENS, TABLE), dict(alibi_slopes=draw(HEADS).abs()))


class Layer(torch.nn.Module):
    """A step as a model has it: the token's own keys go into the cache."""

    def __init__(self, caches):
        super().__init__()
        for name, cache in zip("kv", caches):
            self.register_buffer(f"{name}_cache", cache)

    def forward(self, q, k, v, cu_seqlens_q, kv_lens, block_table):
        lists = cu_seqlens_q, kv_lens, block_table
        out, _ = append(q * 2, k, v, self.k_cache, self.v_cache, *lists)
        again, _ = paged(q, self.k_cache, self.v_cache, *lists)
        own, _ = ragged(q, k, v, cu_seqlens_q, is_causal=True)
        return out + again + own


def test_compile_and_export():
    q, k, v, caches, _ = new_step()
    layers = [Layer([cache.clone() for cache in caches]) for _ in range(3)]
    step = q, k, v, STARTS, LENS, TABLE
    out = layers[0](*step)
    assert torch.equal(torch.compile(layers[1], fullgraph=True)(*step), out)
    tokens = torch.export.Dim("tokens", min=2, max=64)
    exported = torch.export.export(layers[2], step, dynamic_shapes=({0: tokens},) * 3 + (None,) * 3)
    module = exported.module()
    assert torch.equal(module(*step), out)
    for name in ("k_cache", "v_cache"):
        assert torch.equal(getattr(layers[1], name), getattr(layers[0], name))
        assert torch.equal(getattr(module, name), getattr(layers[0], name))
    shorter = *(one[:4] for one in step[:3]), ints(0, 3, 4, 4), LENS, TABLE
    assert torch.equal(module(*shorter), layers[0](*shorter))


def test_without_a_backward():
    q, k, v, caches, _ = new_step()
    out, _ = ragged(q.requires_grad_(), k, v, STARTS)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        out.sum().backward()


BAD = [
    (lambda q, k, v, c: ragged(q, k, v, STARTS, starts((7, 2, 50))), "cu_seqlens_kv ends at 59, but k has 9 tokens"),
    (lambda q, k, v, c: ragged(q, k, v, STARTS, logits_soft_cap=-1.0), "logits_soft_cap is -1"),
    (lambda q, k, v, c: paged(q, *c, STARTS, LENS.long(), TABLE[:, :1]), "page"),
    (lambda q, k, v, c: paged(q, c[0], c[1].double(), STARTS, LENS, TABLE), "v_cache is float64; it must be float32"),
    (lambda q, k, v, c: append(q, k, v[:8], *c, STARTS, LENS, TABLE), r"v has the shape \[8, 2, 16\]"),
]


@pytest.mark.parametrize("call, sentence", BAD)
def test_bad_input(call, sentence):
    q, k, v, caches, _ = new_step()
    with pytest.raises(attune.Error, match=sentence):
        call(q, k, v, caches)
