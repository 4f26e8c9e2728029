"""The package with torch tensors, and with what others put on them. attune.torch has tests of its own."""

import os
import threading

import attune
import pytest

torch = pytest.importorskip("torch")
sdpa = torch.nn.functional.scaled_dot_product_attention
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}


def draw(dtype=torch.float32, heads=4, rows=9, keys=13, dim=32, seed=0):
    numbers = torch.Generator().manual_seed(seed)
    return [torch.randn(2, heads, n, dim, generator=numbers, dtype=torch.float64).to(dtype) for n in (rows, keys, keys)]


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE[ours.dtype], rtol=TOLERANCE[ours.dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype, causal):
    q, k, v = draw(dtype)
    out = attune.attention(q, k, v, is_causal=causal, causal_align="top_left")
    assert out.dtype == dtype
    close(out, sdpa(q.double(), k.double(), v.double(), is_causal=causal).to(dtype))


def test_strides_of_torch():
    q, k, v = draw()
    wide = torch.empty(2, 9, 4, 64)
    wide[..., :32] = q.transpose(1, 2)
    close(attune.attention(wide[..., :32].transpose(1, 2), k.mT.contiguous().mT, v.expand(2, 4, 13, 32)), sdpa(q, k, v))
    close(attune.attention(q, k[:, :1].expand(2, 4, 13, 32), v), sdpa(q, k[:, :1].expand(2, 4, 13, 32), v))


def test_masks_of_torch():
    q, k, v = draw()
    mask = torch.rand(2, 1, 9, 13) < 0.7
    mask[..., 0] = True
    close(attune.attention(q, k, v, attn_mask=mask), sdpa(q, k, v, attn_mask=mask))
    bias = torch.randn(9, 13)
    close(attune.attention(q, k, v, attn_bias=bias), sdpa(q, k, v, attn_mask=bias))


def test_gradients_are_refused_not_lost():
    q, k, v = draw()
    q.requires_grad_()
    with pytest.raises(attune.InvalidArgumentError, match="q requires grad"):
        attune.attention(q, k, v)
    with torch.no_grad():
        close(attune.attention(q, k, v), sdpa(q, k, v))
    close(attune.attention(q.detach(), k, v), sdpa(q, k, v).detach())


def test_parameters_and_inference_tensors():
    with torch.inference_mode():
        q, k, v = draw()
        close(attune.attention(torch.nn.Parameter(q, requires_grad=False), k, v), sdpa(q, k, v))


@pytest.mark.parametrize("make, sentence", [
    (lambda q: q.to("meta"), "q"),
    (lambda q: q.to_sparse(), "q"),
    (lambda q: q.to(torch.complex64), "q|complex64"),
    (lambda q: q.to(torch.int64), "int64|i64"),
])
def test_refusals(make, sentence):
    q, k, v = draw()
    with pytest.raises(attune.Error, match=sentence):
        attune.attention(make(q), k, v)


def test_views_with_their_sign_changed_are_refused():
    q, k, v = draw()
    view = torch.complex(torch.zeros_like(q), -q).conj().imag
    assert view.is_neg()
    with pytest.raises(attune.InvalidArgumentError, match="q is a view with its sign changed"):
        attune.attention(view, k, v)
    close(attune.attention(view.resolve_neg(), k, v), sdpa(q, k, v))


def test_kernels_allocate_torch_tensors():
    q, k, v = draw(torch.bfloat16)
    kernel = attune.compile("dtype=bf16,batch=2,num_heads=4,seq_q=9,seq_kv=13,head_dim=32")
    out = kernel(q=q, k=k, v=v)
    assert isinstance(out, torch.Tensor) and out.dtype == torch.bfloat16
    close(out, sdpa(q, k, v))


def test_arrays_and_tensors_mix():
    q, k, v = draw()
    out = attune.attention(q.numpy(), k, v.numpy())
    close(torch.from_numpy(out), sdpa(q, k, v))


class Lender:
    """A tensor of a library that is neither NumPy nor torch, with DLPack of an old or a new version."""

    def __init__(self, tensor, version):
        self.tensor, self.version, self.lent = tensor, version, 0

    def __dlpack__(self, **options):
        self.lent += 1
        if self.version is None:
            if options:
                raise TypeError("unexpected keyword")
            return self.tensor.__dlpack__()
        return self.tensor.__dlpack__(max_version=self.version)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_dlpack_versions(version):
    q, k, v = draw()
    kernel = attune.compile("batch=2,num_heads=4,seq_q=9,seq_kv=13,head_dim=32")
    out = torch.empty(2, 4, 9, 32)
    lenders = [Lender(x, version) for x in (q, k, v, out)]
    kernel.run(q=lenders[0], k=lenders[1], v=lenders[2], out=lenders[3])
    assert all(lender.lent for lender in lenders)
    close(out, sdpa(q, k, v))


def test_capsules_free_what_they_hold():
    import gc
    import weakref

    q, k, v = draw()
    attune.attention(Lender(q, None).tensor, k, v)
    watched = weakref.ref(q)
    kernel = attune.compile("batch=2,num_heads=4,seq_q=9,seq_kv=13,head_dim=32")
    kernel.run(q=Lender(q, (1, 0)), k=k, v=v, out=torch.empty(2, 4, 9, 32))
    before = q.untyped_storage().data_ptr()
    assert before
    del q
    gc.collect()
    assert watched() is None


def test_threads_and_forks():
    q, k, v = draw()
    expected = sdpa(q, k, v)
    failures = []

    def work():
        try:
            for _ in range(100):
                close(attune.attention(q, k, v), expected)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if torch.allclose(attune.attention(q, k, v), expected, atol=1e-5) else 2
        finally:
            os._exit(status)
    for worker in workers:
        worker.join()
    assert os.waitpid(child, 0)[1] == 0 and not failures
