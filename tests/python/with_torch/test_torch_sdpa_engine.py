"""attune's kernels inside PyTorch's machinery: compilers, transforms, threads, processes."""

import os
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 10):
    pytest.skip("attune.torch needs PyTorch 2.10", allow_module_level=True)

import attune.torch
from sdpa_support import run_alone, sdpa

attention = torch.ops.attune.attention
append = torch.ops.attune.attention_append
LENS = torch.tensor([5, 6], dtype=torch.int32)


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(2, h, n, 16, dtype=dtype) for h, n in ((4, 5), (2, 9), (2, 9))]


def with_grad(tensors):
    return [t.requires_grad_() for t in tensors]


@pytest.mark.parametrize(
    "arguments, options",
    [
        (inputs(), dict(is_causal=True)),
        (inputs(), dict(logits_soft_cap=5.0, sinks=torch.zeros(4))),
        (with_grad(inputs()), dict(kv_lens=LENS, is_causal=True, causal_align="bottom_right", window_left=3)),
        (with_grad(inputs(torch.bfloat16)), dict(attn_mask=torch.ones(5, 9, dtype=torch.bool).tril(3))),
    ],
)
def test_opcheck_attention(arguments, options):
    torch.library.opcheck(attention.default, tuple(arguments), options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_opcheck_append(dtype):
    q, _, _ = inputs()
    new, cache = torch.randn(2, 2, 5, 16), torch.zeros(2, 2, 32, 16, dtype=dtype)
    scales = [torch.zeros(2, 2, 32) for _ in "kv"] if dtype == torch.int8 else [None, None]
    torch.library.opcheck(append.default, (q, new, new.clone(), cache, cache.clone(), *scales, LENS))


class Module(torch.nn.Module):
    def forward(self, q, k, v, lens):
        return attention(q, k, v, kv_lens=lens, is_causal=True)[0] * 2


def test_compile_and_export():
    q, k, v = inputs()
    expected = Module()(q, k, v, LENS)
    compiled = torch.compile(Module(), fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v, LENS), expected)
    torch.testing.assert_close(torch.export.export(Module(), (q, k, v, LENS)).module()(q, k, v, LENS), expected)
    grads = []
    for module in (Module(), compiled):
        leaf = q.clone().requires_grad_()
        module(leaf, k, v, LENS).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


def test_compiled_append_writes_in_place():
    q, _, _ = inputs()
    new = torch.randn(2, 2, 5, 16)
    caches = [torch.zeros(2, 2, 32, 16) for _ in range(4)]

    def step(q, new, k, v, lens):
        return append(q, new, new, k, v, None, None, lens) * 2

    plain = step(q, new, *caches[:2], LENS)
    torch.testing.assert_close(torch.compile(step, fullgraph=True)(q, new, *caches[2:], LENS), plain)
    torch.testing.assert_close(caches[0], caches[2])


def test_autocast():
    q, k, v = inputs()
    new, cache = torch.randn(2, 2, 5, 16), torch.zeros(2, 2, 32, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out, lse = attention(q, k, v, sinks=torch.zeros(4))
        appended = append(q, new, new, cache, cache.clone(), None, None, LENS)
    assert (out.dtype, lse.dtype, appended.dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)
    expected, _ = attention(*(t.bfloat16() for t in (q, k, v)), sinks=torch.zeros(4))
    assert torch.equal(out, expected)


def test_vmap():
    _, k, v = inputs()
    q, many = torch.randn(3, 2, 4, 5, 16), torch.randn(2, 2, 3, 9, 16)
    out, _ = torch.vmap(lambda q, k: attention(q, k, v, kv_lens=LENS), (0, 2))(q, many)
    for i in range(3):
        torch.testing.assert_close(out[i], attention(q[i], many[:, :, i], v, kv_lens=LENS)[0])
    masks = torch.rand(3, 5, 9) > 0.2
    out, _ = torch.vmap(lambda mask: attention(q[0], k, v, attn_mask=mask))(masks)
    for i in range(3):
        torch.testing.assert_close(out[i], attention(q[0], k, v, attn_mask=masks[i])[0])
    with pytest.raises(RuntimeError, match="vmap cannot map it"):
        torch.vmap(lambda q: append(q, k, v, k.clone(), v.clone(), None, None, LENS))(q)


def test_inference_mode():
    q, k, v = inputs()
    with torch.inference_mode():
        assert attention(q, k, v)[0].is_inference()
        append(q, k[:, :, :5], v[:, :, :5], k.clone(), v.clone(), None, None, LENS)


# ---- Threads ----


def test_threads_change_no_bits():
    q = torch.randn(2, 4, 200, 64)
    before = torch.get_num_threads()
    results = []
    try:
        with attune.torch.enable():
            for threads in (1, 2, 1, 3):
                torch.set_num_threads(threads)
                for _ in range(4):
                    results.append(sdpa(q, q, q, is_causal=True))
    finally:
        torch.set_num_threads(before)
    warm = results[4:]  # from the first call with the kernel for these lengths on
    assert all(torch.equal(r, warm[0]) for r in warm)


def test_python_threads_at_once():
    q = torch.randn(2, 4, 64, 32)
    failures = []
    with attune.torch.enable():
        for _ in range(4):
            expected = sdpa(q, q, q)

        def work():
            for _ in range(200):
                if not torch.equal(sdpa(q, q, q), expected):
                    failures.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_no_thread_of_attunes_and_no_llvm_when_warm(tmp_path):
    code = """
torch.set_num_threads(2)
q = torch.randn(2, 8, 300, 64)
torch.randn(300, 300) @ torch.randn(300, 300)
sdpa(q, q, q)  # PyTorch starts its threads
before = len(os.listdir("/proc/self/task"))
with attune.torch.enable():
    for _ in range(6):
        sdpa(q, q, q)
maps = open("/proc/self/maps").read()
print(len(os.listdir("/proc/self/task")) - before, "libattune-codegen" in maps or "libLLVM" in maps)
print(attune.torch.stats())
"""
    cold = run_alone(code, ATTUNE_CACHE_DIR=str(tmp_path))
    warm = run_alone(code, ATTUNE_CACHE_DIR=str(tmp_path))
    assert "compiles" in cold.stdout, cold.stdout + cold.stderr
    assert warm.stdout.startswith("0 False\n") and "compiles" not in warm.stdout, warm.stdout + warm.stderr


def test_one_compile_before_the_first_token(tmp_path):
    """The layers of a model call with the same lengths: that alone is no reason for a kernel of these lengths."""
    code = """
attune.torch.enable()
def kernels(calls):
    for _ in range(calls):
        q = torch.randn(1, 2, 50, 16)
        sdpa(q, q, q, is_causal=True)
    counts = attune.torch.stats()
    return counts.get("compiles", 0) + counts.get("disk_hits", 0)
print(kernels(40), kernels(40))
layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).eval()
before = kernels(0)
with torch.inference_mode():
    for _ in range(40):
        layer(torch.randn(1, 50, 32))
print(kernels(0) - before)
"""
    found = run_alone(code, ATTUNE_CACHE_DIR=str(tmp_path))
    assert found.stdout.split() == ["1", "2", "1"], found.stdout + found.stderr


def test_forked_workers():
    code = """
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        q = torch.full((1, 2, 20, 16), float(i))
        return sdpa(q, q, q)[0], torch.tensor(attune.torch.stats()["sdpa.ran"])
attune.torch.enable()
q = torch.randn(1, 2, 20, 16)
sdpa(q, q, q)
for step in range(2):
    loader = DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    for i, (x, n) in enumerate(loader):
        assert torch.allclose(x[0], torch.full((2, 20, 16), 2.0 * i)) and n.min() >= 2
sdpa(q, q, q)
print("done")
"""
    result = run_alone(code)
    assert result.stdout == "done\n", result.stdout + result.stderr


def test_memory_does_not_grow():
    code = """
import resource
attune.torch.enable()
q, mask = torch.randn(1, 4, 64, 64), torch.rand(64, 64) > 0.5
def call():
    sdpa(q, q, q, attn_mask=mask, scale=0.3)
    torch.ops.attune.attention(q, q, q, softmax_scale=0.3)
    try:
        torch.ops.attune.attention(q, q, q[:, :, :3], softmax_scale=0.3)
    except RuntimeError:
        pass
for _ in range(200): call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(3000): call()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    result = run_alone(code)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 4096, "KiB more after 3,000 calls"


def test_an_older_pytorch_is_refused_in_a_sentence(tmp_path):
    """A libtorch_cpu.so that says 2.9, in the place of PyTorch."""
    source = tmp_path / "old.c"
    source.write_text("unsigned long aoti_torch_abi_version(void) { return 2ul << 56 | 9ul << 48; }\n")
    library = tmp_path / "libtorch_cpu.so"
    compiled = subprocess.run(
        [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-Wl,-soname,libtorch_cpu.so", str(source), "-o", str(library)]
    )
    if compiled.returncode:
        pytest.skip("there is no C compiler")
    from attune import _adapter

    code = f"""
import ctypes
old = ctypes.CDLL({str(library)!r})
adapter = ctypes.CDLL({_adapter.path("torch")!r})
adapter.attune_torch_open.restype = ctypes.c_char_p
print(adapter.attune_torch_open().decode())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "attune needs PyTorch 2.10 or newer; this one is 2.9\n", result.stderr


@pytest.mark.parametrize("of", [torch._neg_view, lambda t: torch.complex(t, t).conj().imag], ids=["whole", "imag"])
@pytest.mark.parametrize("where", ["sdpa", "attention", "append", "block"])
def test_negated_views(where, of):
    """Views of memory that is negated when it is read. PyTorch must materialise them before a kernel sees pointers."""
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    negated = [of(torch.randn(2, 4, 5, 16)) for _ in range(3)]
    assert all(t.is_neg() for t in negated)

    def run(q, k, v):
        if where == "attention":
            return attention(q, k, v)[0]
        if where == "append":
            caches = [torch.zeros(2, 4, 8, 16) for _ in range(2)]
            return append(q, k, v, *caches, None, None, LENS)
        with attune.torch.enable(), torch.inference_mode():
            return sdpa(q, k, v) if where == "sdpa" else layer(q[:, 0])

    def ran():
        return sum(count for name, count in attune.torch.stats().items() if name.endswith(".ran"))

    before = ran()
    torch.testing.assert_close(run(*negated), run(*(t.resolve_neg().contiguous() for t in negated)))
    assert where in ("attention", "append") or ran() == before + 2
