"""libattune-tvm.so as a module of TVM-FFI, with tensors of NumPy."""

import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

import attune.tvm

MODULE = tvm_ffi.load_module(attune.tvm.library_path())
ADAPTER = pathlib.Path(__file__).resolve().parents[2] / "adapters" / "tvm"


def arrays(batch=2, heads=4, kv_heads=2, rows=5, keys=9, dim=16, dtype=np.float32):
    random = np.random.default_rng(0)
    shapes = (batch, heads, rows, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def reference(q, k, v, is_causal=False, scale=None, seen=True):
    group = q.shape[1] // k.shape[1]
    q, k, v = q.astype(float), k.repeat(group, 1).astype(float), v.repeat(group, 1).astype(float)
    scores = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    rows, keys = scores.shape[2:]
    seen = np.broadcast_to(seen, scores.shape) & (np.tri(rows, keys, keys - rows) > 0 if is_causal else True)
    powers = np.where(seen, np.exp(np.where(seen, scores, 0)), 0)
    return powers / powers.sum(-1, keepdims=True) @ v


def dl(array):
    return tvm_ffi.from_dlpack(array)


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float64, 1e-12), (np.float16, 3e-3)])
@pytest.mark.parametrize("options", [(), (True,), (False, 0.3), (True, None)])
def test_attention(dtype, tolerance, options):
    q, k, v = arrays(dtype=dtype)
    out = np.zeros_like(q)
    assert MODULE.attention(dl(q), dl(k), dl(v), dl(out), *options) is None
    np.testing.assert_allclose(out, reference(q, k, v, *options), rtol=tolerance, atol=tolerance)


def test_strides_and_other_lengths():
    q, k, v = arrays()
    turned = np.ascontiguousarray(q.swapaxes(1, 2)).swapaxes(1, 2)
    out = np.zeros((2, 5, 4, 16), np.float32)
    MODULE.attention(dl(turned), dl(k), dl(v), dl(out.swapaxes(1, 2)))
    np.testing.assert_allclose(out.swapaxes(1, 2), reference(q, k, v), rtol=1e-5, atol=1e-5)
    one = np.zeros((1, 4, 1, 16), np.float32)
    MODULE.attention(dl(q[:1, :, :1]), dl(k[:1, :, :7]), dl(v[:1, :, :7]), dl(one))
    np.testing.assert_allclose(one, reference(q[:1, :, :1], k[:1, :, :7], v[:1, :, :7]), rtol=1e-5, atol=1e-5)


PROBLEM = "num_heads=4,num_kv_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=16,has_kv_lens=1,softmax_scale=dynamic"


def test_run_takes_any_problem():
    q, k, v = arrays()
    out, lens = np.zeros_like(q), np.asarray([3, 9], np.int32)
    names = ("q", dl(q), "k", dl(k), "v", dl(v), "out", dl(out), "kv_lens", dl(lens))
    MODULE.run(PROBLEM, "batch", 2, "softmax_scale", 0.5, *names, "attn_mask", None)
    seen = (np.arange(9) < lens[:, None])[:, None, None]
    np.testing.assert_allclose(out, reference(q, k, v, scale=0.5, seen=seen), rtol=1e-5, atol=1e-5)
    merged, lse = np.zeros((1, 2, 3, 8), np.float32), np.zeros((1, 2, 3), np.float32)
    parts = np.random.default_rng(1).standard_normal((2, 6, 8)).astype(np.float32)
    sums = np.zeros((2, 6), np.float32)
    text = "op=merge,has_lse=1,num_parts=2,num_heads=2,seq_q=3,head_dim=8"
    MODULE.run(text, "parts", dl(parts), "parts_lse", dl(sums), "out", dl(merged), "lse", dl(lse))
    np.testing.assert_allclose(merged.reshape(6, 8), parts.mean(0), rtol=1e-6)


def test_threads():
    q, k, v = arrays(rows=200, keys=200)
    first, second = np.zeros_like(q), np.zeros_like(q)
    for threads, out in ((1, first), (0, second)):
        MODULE.set_threads(threads)
        MODULE.attention(dl(q), dl(k), dl(v), dl(out))
    assert (first == second).all()


Q, K, V = map(dl, arrays())
REFUSALS = {
    "nothing": (MODULE.attention, (), TypeError, "attune.attention: q must be a tensor"),
    "a number": (MODULE.attention, (Q, K, 3, Q), TypeError, "attune.attention: v must be a tensor"),
    "dims": (MODULE.attention, (Q, K, dl(np.zeros((3, 4), np.float32)), Q), ValueError, "v has 2 dims"),
    "integers": (MODULE.attention, (dl(np.zeros((1, 1, 1, 1), np.int32)), K, V, Q), TypeError, "q must be f32"),
    "types": (MODULE.attention, (Q, dl(arrays(dtype=np.float64)[1]), V, Q), ValueError, "k has DLPack type code 2, 64"),
    "heads": (MODULE.attention, (dl(np.zeros((2, 3, 5, 16), np.float32)), K, V, Q), ValueError, "q has 3 heads"),
    "lengths": (MODULE.attention, (Q, K, dl(arrays(keys=8)[2]), Q), ValueError, "seq_kv|dimension 2"),
    "causal": (MODULE.attention, (Q, K, V, Q, "x"), TypeError, "is_causal must be an integer"),
    "scale": (MODULE.attention, (Q, K, V, Q, False, "x"), TypeError, "scale must be a number"),
    "wide scale": (MODULE.attention, (Q, K, V, Q, False, 1e300), ValueError, "softmax_scale is 1e"),
    "no problem": (MODULE.run, (), TypeError, "attune.run: the problem must be text"),
    "problem": (MODULE.run, ("heads=3",), ValueError, "attune.run: 'heads' is not a field"),
    "no tensors": (MODULE.run, (PROBLEM,), ValueError, "attune.run: .*(not set|NULL)"),
    "name": (MODULE.run, (PROBLEM, "p", Q), ValueError, "no tensor named p"),
    "long name": (MODULE.run, (PROBLEM, "p" * 99, Q), ValueError, "a name has 99 bytes"),
    "size": (MODULE.run, (PROBLEM, "rows", 3), ValueError, "rows"),
    "late size": (
        MODULE.run, (PROBLEM, "batch", 2, "q", Q, "k", K, "seq_kv", 10**6), ValueError,
        "attune.run: the size seq_kv comes after a tensor; sizes come first",
    ),
    "more": (
        MODULE.attention, (Q, K, V, Q, False, 0.3, 5), TypeError,
        "attune.attention: there are 7 arguments; it takes at most 6",
    ),
    "value": (MODULE.run, (PROBLEM, "q", "x"), TypeError, "q must be a tensor"),
    "threads": (MODULE.set_threads, (-1,), ValueError, "-1 threads; it must be 0 to 65536"),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_refusals(case):
    function, arguments, error, message = case
    with pytest.raises(error, match=message):
        function(*arguments)


def test_tensors_of_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q, k, v = (torch.from_numpy(array) for array in arrays())
    out = torch.empty_like(q)
    MODULE.attention(q, k, v, out)
    np.testing.assert_allclose(out.numpy(), reference(*arrays()), rtol=1e-5, atol=1e-5)
    q, k, v, out = (x.bfloat16() for x in (q, k, v, out))
    MODULE.attention(q, k, v, out, True)
    np.testing.assert_allclose(out.float().numpy(), reference(*arrays(), True), rtol=3e-2, atol=3e-2)


def test_the_library_needs_nothing_of_tvm():
    code = f"import ctypes; print(bool(ctypes.CDLL({attune.tvm.library_path()!r}).__tvm_ffi_run))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


OTHER_VERSION = """
#include <stdio.h>
typedef struct { unsigned major, minor, patch; } version;
void TVMFFIGetVersion(version *v) { *v = (version){0, 2, 0}; }
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text) { printf("%s: %s", kind, text); fflush(stdout); }
"""


def test_another_version_of_the_interface_is_refused(tmp_path):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    (tmp_path / "other.c").write_text(OTHER_VERSION)
    library = tmp_path / "libtvm_ffi.so"
    command = [compiler, "-shared", "-fPIC", "other.c", "-Wl,-soname,libtvm_ffi.so", "-o", library]
    subprocess.run(command, cwd=tmp_path, check=True)
    code = (
        f"import ctypes; ctypes.CDLL({str(library)!r}); attune = ctypes.CDLL({attune.tvm.library_path()!r})\n"
        "result = (ctypes.c_char * 16)()\n"
        "assert attune.__tvm_ffi_set_threads(None, None, 0, result) == -1"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "RuntimeError: attune.set_threads: TVM-FFI is of version 0.2; it must be 0.1", done.stderr


def test_layouts_are_those_of_the_header(tmp_path):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    pairs = {
        "tvm_any": ("TVMFFIAny", {"type": "type_index", "small_length": "small_str_len", "value": "v_int64"}),
        "tvm_object": ("TVMFFIObject", {"references": "combined_ref_count", "type": "type_index"}),
        "tvm_bytes": ("TVMFFIByteArray", {"data": "data", "size": "size"}),
        "tvm_version": ("TVMFFIVersion", {"major": "major", "minor": "minor", "patch": "patch"}),
        "attune_dltensor": ("DLTensor", {"ndim": "ndim", "shape": "shape", "strides": "strides", "data": "data"}),
    }
    numbers = {
        "TVM_NONE": "None", "TVM_INT": "Int", "TVM_BOOL": "Bool", "TVM_FLOAT": "Float", "TVM_DLTENSOR": "DLTensorPtr",
        "TVM_RAW_TEXT": "RawStr", "TVM_SMALL_TEXT": "SmallStr", "TVM_TEXT": "Str", "TVM_TENSOR": "Tensor",
    }  # fmt: skip
    lines = ['#include "tvm/ffi/c_api.h"', '#include "tvm_ffi.h"', '#include "attune.h"']
    for ours, (theirs, fields) in pairs.items():
        lines.append(f'_Static_assert(sizeof({ours}) == sizeof({theirs}), "{ours}");')
        for mine, other in fields.items():
            lines.append(f'_Static_assert(offsetof({ours}, {mine}) == offsetof({theirs}, {other}), "{ours}.{mine}");')
    lines += [f'_Static_assert((int){ours} == (int)kTVMFFI{theirs}, "{ours}");' for ours, theirs in numbers.items()]
    lines.append("TVMFFISafeCallType call; tvm_function *ours;")
    assert set(re.findall(r"\b(TVM_[A-Z_]+) = ", (ADAPTER / "tvm_ffi.h").read_text())) == set(numbers)
    (tmp_path / "abi.c").write_text("\n".join(lines) + "\n")
    folders = [tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path(), ADAPTER,
               ADAPTER.parents[1] / "include"]  # fmt: skip
    command = [compiler, "-c", "-std=c11", *(f"-I{folder}" for folder in folders), "abi.c", "-o", "abi.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
