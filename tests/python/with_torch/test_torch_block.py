"""Whole blocks in PyTorch: nn.MultiheadAttention and nn.TransformerEncoderLayer by attune give what stock gives."""

import copy
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
at = pytest.importorskip("attune.torch", reason="attune.torch cannot be imported")
nn = torch.nn

TOLERANCE = {  # torch.testing's own; twice what stock itself is away from f64 where that is more
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}
MASKS = ["none", "padding", "holes", "causal", "rows", "heads", "causal+padding", "rows+padding"]


@pytest.fixture(autouse=True)
def stock_afterwards():
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    at.disable()
    at.refresh()


def ran(before, name="block.ran"):
    return at.stats().get(name, 0) - before.get(name, 0)


def module(width, heads, dtype=torch.float32):
    m = nn.MultiheadAttention(width, heads, batch_first=True, dtype=dtype).eval()
    nn.init.normal_(m.in_proj_bias)
    nn.init.normal_(m.out_proj.bias)
    return m


def masks(kind, batch, heads, length):
    """key_padding_mask and attn_mask, True where a key is hidden. Every query sees its own key or the first one."""
    lengths = torch.randint(1, length + 1, (batch,))
    padding = torch.arange(length)[None] >= lengths[:, None]
    holes = torch.rand(batch, length) < 0.4
    holes[:, 0] = False
    causal = torch.ones(length, length, dtype=torch.bool).triu(1)
    rows = torch.rand(length, length) < 0.4
    rows[:, 0] = False
    many = torch.rand(batch * heads, length, length) < 0.4
    many[..., 0] = False
    return {"none": (None, None), "padding": (padding, None), "holes": (holes, None), "causal": (None, causal),
            "rows": (None, rows), "heads": (None, many), "causal+padding": (padding, causal),
            "rows+padding": (padding, rows)}[kind]


def check(got, want, exact, dtype):
    """`got` is as near to the f64 result as torch's tolerance says, or as twice the error of stock."""
    if want is None:
        assert got is None
        return
    assert got.shape == want.shape and got.dtype == want.dtype and got.stride() == want.stride()
    rtol, atol = TOLERANCE[dtype]
    allowed = max(atol, 2 * (want.double() - exact).abs().max().item())
    torch.testing.assert_close(got.double(), exact, rtol=rtol, atol=allowed)


@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_module_equals_stock(dtype, kind):
    for batch, length, width, heads in [(1, 1, 8, 2), (3, 33, 40, 4)]:
        m = module(width, heads, dtype)
        reference = copy.deepcopy(m).double()
        x = torch.randn(batch, length, width, dtype=dtype)
        padding, mask = masks(kind, batch, heads, length)
        for weights, average in [(False, True), (True, True), (True, False)]:
            arguments = dict(key_padding_mask=padding, attn_mask=mask, need_weights=weights,
                             average_attn_weights=average)
            want = m(x, x, x, **arguments)
            exact = reference(x.double(), x.double(), x.double(), **arguments)
            before = at.stats()
            with at.enable(sdpa=False):
                got = m(x, x, x, **arguments)
            assert ran(before) == 1
            for g, w, e in zip(got, want, exact):
                check(g, w, e, dtype)


@pytest.mark.sample(3)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_encoder_layer_equals_stock(dtype, activation, norm_first):
    layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, activation=activation, norm_first=norm_first,
                                       dtype=dtype).eval()
    reference = copy.deepcopy(layer).double()
    x = torch.randn(2, 17, 48, dtype=dtype)
    for kind in MASKS:
        padding, mask = masks(kind, 2, 4, 17)
        want = layer(x, src_mask=mask, src_key_padding_mask=padding)
        exact = reference(x.double(), src_mask=mask, src_key_padding_mask=padding)
        before = at.stats()
        with at.enable(sdpa=False):
            got = layer(x, src_mask=mask, src_key_padding_mask=padding)
        assert ran(before) == 1
        check(got, want, exact, dtype)


def test_encoder_converts_padding_to_nested_tensors_which_run_as_stock():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    x = torch.randn(2, 9, 32)
    padding = torch.arange(9)[None] >= torch.tensor([[9], [4]])
    want = encoder(x, src_key_padding_mask=padding)
    before = at.stats()
    with at.enable(sdpa=False):
        assert torch.equal(encoder(x, src_key_padding_mask=padding), want)
        assert ran(before) == 0
        torch.testing.assert_close(encoder(x), encoder(x.clone()))
        assert ran(before) == 4


def test_rows_without_keys_are_nan_as_in_stock():
    m, x = module(16, 2), torch.randn(2, 5, 16)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1] = True
    want = m(x, x, x, key_padding_mask=padding)
    before = at.stats()
    with at.enable(sdpa=False):
        got = m(x, x, x, key_padding_mask=padding)
    assert ran(before, "block.stock.hidden_row") == 1 and torch.isnan(got[0][1]).all()
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w, rtol=0, atol=0, equal_nan=True)


def native(m, query, key=None, value=None, mask=None, mask_type=None, weights=False):
    key, value = query if key is None else key, query if value is None else value
    return torch._native_multi_head_attention(query, key, value, m.embed_dim, m.num_heads, m.in_proj_weight,
                                              m.in_proj_bias, m.out_proj.weight, m.out_proj.bias, mask, weights, True,
                                              mask_type)


def test_unsupported_calls_are_stock_bit_for_bit():
    m, x, y = module(16, 2), torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    calls = {
        "cross": lambda: native(m, x, y, y, weights=True),
        "layout": lambda: native(m, torch.randn(2, 16, 5, generator=torch.Generator().manual_seed(1)).transpose(1, 2)),
        "mask": lambda: native(m, x, mask=torch.tensor([[0, 0, 0, 0, 1], [0, 0, 1, 1, 1]]), mask_type=1),
    }
    for reason, call in calls.items():
        want, before = call(), at.stats()
        with at.enable(sdpa=False):
            got = call()
        assert ran(before, "block.stock." + reason) == 1
        for g, w in zip(got, want):
            assert (g is None and w is None) or torch.equal(g, w)


def test_f64_is_stock_where_it_does_not_pay():
    m, x, before = module(256, 4, torch.float64), torch.randn(1, 64, 256, dtype=torch.float64), at.stats()
    want = native(m, x)[0]
    with at.enable(sdpa=False):
        assert torch.equal(native(m, x)[0], want)
    assert ran(before, "block.stock.no_gain") == 1


def test_errors_are_those_of_stock():
    m, x = module(16, 2), torch.randn(2, 5, 24)
    with pytest.raises(RuntimeError) as stock:
        native(m, x)
    with at.enable(sdpa=False), pytest.raises(RuntimeError) as here:
        native(m, x)
    assert str(here.value).splitlines()[0] == str(stock.value).splitlines()[0]


def test_grad_mode_takes_the_slow_path():
    m, x, before = module(16, 2).eval(), torch.randn(2, 5, 16), at.stats()
    with torch.enable_grad(), at.enable(sdpa=False):
        m(x, x, x)[0].sum().backward()
    assert ran(before) == 0 and m.in_proj_weight.grad is not None


def test_strided_inputs():
    m = module(16, 2)
    for x in [torch.randn(5, 3, 16).transpose(0, 1), torch.randn(3, 5, 32)[..., :16], torch.randn(3, 9, 16)[:, 1::2],
              torch.randn(1, 5, 16).expand(3, 5, 16)]:
        want, before = m(x, x, x), at.stats()
        with at.enable(sdpa=False):
            got = m(x, x, x)
        assert ran(before) == 1
        torch.testing.assert_close(got, want)


def test_bits_do_not_depend_on_threads_and_two_python_threads_agree():
    m, x, threads = module(64, 4), torch.randn(4, 40, 64), torch.get_num_threads()
    results = []

    def work():
        with torch.no_grad():
            for _ in range(20):
                results.append(m(x, x, x, need_weights=False)[0])

    with at.enable(sdpa=False):
        for _ in range(4):  # until the kernel for this length is there
            m(x, x, x, need_weights=False)
        try:
            for n in (1, 2, 1):
                torch.set_num_threads(n)
                results.append(m(x, x, x, need_weights=False)[0])
        finally:
            torch.set_num_threads(threads)
        pair = [threading.Thread(target=work) for _ in range(2)]
        [t.start() for t in pair]
        [t.join() for t in pair]
    assert len(results) == 43 and all(torch.equal(r, results[0]) for r in results)


def test_disable_gives_stock_back():
    m, x = module(16, 2), torch.randn(2, 5, 16)
    want = m(x, x, x)[0]
    at.enable(sdpa=False)
    m(x, x, x)
    at.disable()
    before = at.stats()
    assert torch.equal(m(x, x, x)[0], want) and ran(before) == 0


def test_block_must_be_known():
    with pytest.raises(ValueError, match="block is 'all', expected True, False or 'verify'"):
        at.enable(block="all")
