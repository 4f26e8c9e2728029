"""scaled_dot_product_attention of PyTorch by attune: values, gradients, layouts, batches."""

import copy
import functools
import os
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 10):
    pytest.skip("attune.torch needs PyTorch 2.10", allow_module_level=True)

import attune.torch
from sdpa_support import STOCK_TOLERANCES, assert_exact, random_call, reference, run_alone, sdpa

CALLS = int(os.environ.get("ATTUNE_SDPA_CALLS", "1000"))


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    attune.torch.disable()


def ran(function, *args, **kwargs):
    """The result, and how many calls attune has computed for it."""
    before = attune.torch.stats().get("sdpa.ran", 0)
    result = function(*args, **kwargs)
    return result, attune.torch.stats().get("sdpa.ran", 0) - before


def stock_reasons():
    return {name: n for name, n in attune.torch.stats().items() if name.startswith("sdpa.stock.")}


def test_random_calls():
    """CALLS calls against f64 by torch.testing's tolerances, and against stock by PyTorch's own."""
    failed, here = [], 0
    for seed in range(CALLS):
        q, k, v, options, rules = random_call(seed)
        stock = sdpa(q, k, v, **options)
        with attune.torch.enable():
            out, n = ran(sdpa, q, k, v, **options)
        here += n
        try:
            assert_exact(out, functools.partial(reference, **rules), q, k, v)
            torch.testing.assert_close(out, stock, **STOCK_TOLERANCES.get(q.dtype, {}))
            assert out.stride() == stock.stride()
        except AssertionError as error:
            failed.append((seed, str(error)))
    assert not failed, f"{len(failed)} of {CALLS} failed, the first: seed {failed[0][0]}: {failed[0][1]}"
    assert here > CALLS * 0.95, "too few calls were computed by attune"


def test_gradients_of_random_calls():
    """Autograd's own formula, PyTorch's flash backward, on attune's output and lse."""
    failed = []
    for seed in range(CALLS, CALLS + CALLS // 10):
        q, k, v, options, _ = random_call(seed)
        weights = torch.randn(q.shape, dtype=q.dtype)
        results = []
        for is_ours in (False, True):
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            if is_ours:
                attune.torch.enable()
            out, n = ran(sdpa, *leaves, **options)
            (out * weights).sum().backward()
            attune.torch.disable()
            results.append([t.grad for t in leaves])
        try:
            assert n == 1
            for ours, stock in zip(results[1], results[0]):
                torch.testing.assert_close(ours, stock, **STOCK_TOLERANCES.get(q.dtype, {}))
        except AssertionError as error:
            failed.append((seed, str(error)))
    assert not failed, f"{len(failed)} failed, the first: seed {failed[0][0]}: {failed[0][1]}"


def test_rows_without_keys():
    """Output 0, stock's lse of 0, and gradients without NaN."""
    q, k = torch.randn(1, 2, 4, 16, requires_grad=True), torch.randn(1, 2, 8, 16)
    mask = torch.zeros(4, 8)
    mask[1] = -torch.inf
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with attune.torch.enable():
        out, lse = flash(q, k, k, attn_mask=mask)
        sdpa(q, k, k, attn_mask=mask).sum().backward()
    stock = flash(q, k, k, attn_mask=mask)
    assert (out[:, :, 1] == 0).all() and (lse[:, :, 1] == 0).all()
    torch.testing.assert_close(lse, stock[1])
    assert lse.stride() == stock[1].stride()
    assert q.grad.isfinite().all() and (q.grad[:, :, 1] == 0).all()


def test_nan_is_kept_and_hidden_nan_is_not():
    q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 5, 8)
    v = torch.randn(1, 1, 5, 8)
    k[0, 0, 4] = v[0, 0, 4] = torch.nan
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[:2, 4] = False
    with attune.torch.enable():
        out = sdpa(q, k, v, attn_mask=mask)
    assert out[0, 0, 2].isnan().all() and out[0, 0, :2].isfinite().all()


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads, rows, keys, causal", [(4, 37, 37, True), (3, 1, 300, False), (2, 100, 130, False)])
def test_batch_invariance(dtype, heads, rows, keys, causal):
    """An entry alone, in a batch, in other batches and at other places: one distinct result."""
    torch.manual_seed(0)
    q = torch.randn(8, heads, rows, 64, dtype=dtype)
    k, v = torch.randn(2, 8, heads, keys, 64, dtype=dtype)
    with attune.torch.enable(), torch.no_grad():
        for _ in range(4):  # after that these lengths have the kernel that they keep
            sdpa(q, k, v, is_causal=causal)
        distinct = set()
        for batch in ([3], [3, 5], [0, 3, 7], list(range(8)), [6, 1, 2, 3, 4], [3, 3]):
            out = sdpa(q[batch], k[batch], v[batch], is_causal=causal)
            distinct.add(bits(out[batch.index(3)]))
    assert len(distinct) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reproducible_rows(dtype):
    """With reproducible=True a row alone has the bits that it has among others, as when decoding after a prompt."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 50, 64, dtype=dtype)
    with attune.torch.enable(reproducible=True), torch.no_grad():
        whole = [sdpa(q, k, v, is_causal=True) for _ in range(5)]
        single = [sdpa(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]) for i in range(50)]
    assert {bits(t) for t in whole} == {bits(torch.cat(single, 2))}


def test_every_unsupported_call_runs_as_stock_without_a_warning():
    q = torch.randn(1, 2, 4, 8)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    odd = torch.randn(1, 2, 8, 4).transpose(2, 3)
    cases = {
        "mask": lambda: sdpa(q, q, q, attn_mask=torch.randn(4, 8)[:, ::2]),
        "strides": lambda: flash(odd, q, q),
    }
    with warnings.catch_warnings(), attune.torch.enable():
        warnings.simplefilter("error")
        before = stock_reasons()
        for reason, call in cases.items():
            call()
            after = stock_reasons()
            assert {n for n in after if after[n] != before.get(n)} == {f"sdpa.stock.{reason}"}
            before = after
        # What never reaches the kernel: PyTorch computes these by plain operators.
        for call in (
            lambda: sdpa(q, q, q, dropout_p=0.5),
            lambda: sdpa(q[0], q[0], q[0]),
            lambda: sdpa(q, q, torch.randn(1, 2, 4, 5)),
            lambda: sdpa(q, q[:, :, :0], q[:, :, :0]),
        ):
            _, n = ran(call)
            assert n == 0
    assert stock_reasons() == before


def test_errors_of_stock_are_raised():
    q = torch.randn(1, 2, 4, 8)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with attune.torch.enable(), pytest.raises(RuntimeError, match="."):
        flash(q, q, q, 0.5)


# ---- Enabling ----


def is_enabled():
    q = torch.randn(1, 1, 2, 8)
    return ran(sdpa, q, q, q)[1] == 1


def test_enable_disable_and_nesting():
    assert not is_enabled()
    with attune.torch.enable():
        assert is_enabled()
        with attune.torch.enable():
            assert is_enabled()
        assert is_enabled()
    assert not is_enabled()
    attune.torch.enable()
    attune.torch.enable()
    with attune.torch.enable():
        pass
    assert is_enabled(), "the inner block leaves what was there before"
    attune.torch.disable()
    attune.torch.disable()
    assert not is_enabled()
    with pytest.raises(ZeroDivisionError), attune.torch.enable():
        1 / 0
    assert not is_enabled()
    attune.torch.enable(sdpa=False)
    assert not is_enabled()


def test_deepcopy_and_inference_mode():
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 5, 16)
    expected = module(x, x, x, need_weights=False)[0]
    with attune.torch.enable(block=False):
        out, n = ran(copy.deepcopy(module), x, x, x, need_weights=False)
        with torch.inference_mode():
            q = torch.randn(1, 2, 4, 8)
            inside, m = ran(sdpa, q, q, q)
    assert (n, m) == (1, 1) and inside.is_inference()
    torch.testing.assert_close(out[0], expected)


def test_torch_compile_and_export():
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return sdpa(q, k, v, is_causal=True) * 2

    q = torch.randn(2, 2, 9, 16)
    expected = Module()(q, q, q)
    with attune.torch.enable():
        compiled = torch.compile(Module(), fullgraph=True)
        compiled(q, q, q)
        out, n = ran(compiled, q, q, q)
        exported = torch.export.export(Module(), (q, q, q)).module()
        again, m = ran(exported, q, q, q)
    assert (n, m) == (1, 1)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(again, expected)


# ---- In a process of its own ----


def test_broken_runs_as_stock_with_one_warning(tmp_path):
    code = """
q = torch.randn(1, 2, 4, 24)
expected = sdpa(q, q, q)
with warnings.catch_warnings(record=True) as seen, attune.torch.enable():
    warnings.simplefilter("always")
    for _ in range(5):
        assert torch.equal(sdpa(q, q, q), expected)
print(len(seen), seen[0].message)
print(attune.torch.stats())
"""
    result = run_alone(code, ATTUNE_STRICT="1", ATTUNE_CACHE_DIR=str(tmp_path), ATTUNE_CACHE_BASE="")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("1 attune: "), result.stdout + result.stderr
    assert "ATTUNE_STRICT" in result.stdout and "'sdpa.stock.broken': 5" in result.stdout


def test_never_compiling_is_not_broken(tmp_path):
    code = """
q = torch.randn(1, 2, 4, 24)
block = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
x = torch.randn(1, 4, 16)
with torch.no_grad():
    expected, blocks = sdpa(q, q, q), block(x, x, x)[0]
    with warnings.catch_warnings(record=True) as seen, attune.torch.enable():
        warnings.simplefilter("always")
        for _ in range(5):
            assert torch.equal(sdpa(q, q, q), expected)
            torch.testing.assert_close(block(x, x, x)[0], blocks)
print(len(seen), seen[0].message)
print(attune.torch.stats())
"""
    result = run_alone(code, ATTUNE_COMPILE="never", ATTUNE_CACHE_DIR="", ATTUNE_CACHE_BASE="")
    assert result.returncode == 0, result.stderr
    happens = "attune: scaled_dot_product_attention runs as stock PyTorch from now on where this happens: "
    assert result.stdout.startswith(f"1 {happens}ATTUNE_COMPILE=never, and no cache has the kernel")
    assert "'sdpa.stock.not_compiled': 5" in result.stdout and "'block.stock.not_compiled': 5" in result.stdout
    assert "broken" not in result.stdout


def test_enabling_prints_nothing():
    result = run_alone("attune.torch.enable()\nattune.torch.disable()\nattune.torch.enable()")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_contexts_may_end_in_any_order():
    first, second = attune.torch.enable(), attune.torch.enable(sdpa=False)
    first.__exit__()
    assert not is_enabled()
    third = attune.torch.enable()
    second.__exit__()
    assert is_enabled()
    third.__exit__()
    third.__exit__()
    assert not is_enabled()


def test_verify_is_restored_with_its_context():
    """A change that only "verify" is sure to find: one value of many, through .data."""

    def finds():
        module, x = torch.nn.MultiheadAttention(64, 4, batch_first=True).eval(), torch.randn(2, 8, 64)
        for i in range(8):
            module(x, x, x)
            module.in_proj_weight.data[3 + 16 * i, 7] += 9
            ours = module(x, x, x)[0]
            # A bias on the device of autograd is no fast path: the reference of plain operators.
            with torch.enable_grad():
                stock = module(x.clone().requires_grad_(), x, x)[0]
            if (ours - stock).abs().max() > 1e-4:
                return False
        return True

    with torch.no_grad():
        with attune.torch.enable(block="verify"):
            with attune.torch.enable():
                assert finds()
            assert finds()
        with attune.torch.enable():
            assert not finds()
        attune.torch.enable(block="verify")
        attune.torch.disable()
        with attune.torch.enable(sdpa=False):
            assert not finds()


def test_many_scales_need_few_kernels():
    q = torch.randn(1, 2, 4, 40)
    before = attune.torch.stats().get("compiles", 0)
    with attune.torch.enable():
        for i in range(50):
            out, n = ran(sdpa, q, q, q, scale=0.01 * i)
            assert n == 1
            torch.testing.assert_close(out, torch.softmax(q @ q.mT * (0.01 * i), -1) @ q)
    assert attune.torch.stats().get("compiles", 0) - before <= 3


@pytest.mark.sample(1)
@pytest.mark.parametrize("transform", ["torch.vmap", "torch.func.grad"])
def test_enable_within_a_transform(transform):
    code = f"""
def function(x):
    attune.torch.enable()
    return (x * x).sum()
print({transform}(function)(torch.ones(2)).sum().item())
q = torch.randn(1, 1, 4, 8)
torch.nn.functional.scaled_dot_product_attention(q, q, q)
print(attune.torch.stats()["sdpa.ran"])
"""
    result = run_alone(code)
    total = {"torch.vmap": "2.0", "torch.func.grad": "4.0"}[transform]
    assert (result.stdout, result.stderr) == (f"{total}\n1\n", "")


def test_enabling_while_other_threads_call():
    code = """
import threading
attune.torch.enable()
module, x = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval(), torch.randn(2, 9, 32)
q = torch.randn(2, 4, 16, 16)
stop = False
def work():
    with torch.no_grad():
        while not stop:
            sdpa(q, q, q)
            module(x, x, x)
threads = [threading.Thread(target=work) for _ in range(2)]
for t in threads: t.start()
for _ in range(3000):
    attune.torch.disable()
    attune.torch.enable()
stop = True
for t in threads: t.join()
print("done")
"""
    result = run_alone(code)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
