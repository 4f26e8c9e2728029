"""Several engines with attune, and an LLVM that is not attune's, in one process, loaded in any order."""

import glob
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# All of them compile: the cache is empty.
PARTS = {
    "torch": """
        import torch
        import attune.torch
        with torch.no_grad(), attune.torch.enable():
            q = torch.randn(1, 2, 40, 16)
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
            x = torch.randn(2, 9, 48)
            torch.nn.MultiheadAttention(48, 4, batch_first=True).eval()(x, x, x, need_weights=False)
        counts = attune.torch.stats()
        assert counts["sdpa.ran"] and counts["block.ran"] and counts["compiles"], counts
    """,
    "ort": """
        import attune.ort
        from test_ort_blocks import X, Block, compare
        block = Block()
        compare(block.model(block.usual()), X)
        assert attune.ort.stats()["compiles"]
    """,
    "jax": """
        import jax
        import attune.jax
        q = jax.random.normal(jax.random.key(1), (1, 20, 2, 16))
        found = jax.jit(attune.jax.attention)(q, q, q)
        assert abs(found - jax.nn.dot_product_attention(q, q, q)).max() < 1e-5
    """,
    "llvm": """
        import ctypes
        llvm = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
        llvm.LLVMContextCreate.restype = ctypes.c_void_p
        llvm.LLVMModuleCreateWithNameInContext.restype = ctypes.c_void_p
        llvm.LLVMPrintModuleToString.restype = ctypes.c_char_p
        context = ctypes.c_void_p(llvm.LLVMContextCreate())
        module = ctypes.c_void_p(llvm.LLVMModuleCreateWithNameInContext(b"theirs", context))
        assert b"theirs" in llvm.LLVMPrintModuleToString(module)
        llvm.LLVMDisposeModule(module)
    """,
}
PACKAGES = {"torch": ["torch"], "ort": ["onnxruntime", "onnx"], "jax": ["jax"]}
ORDERS = ["torch ort jax", "llvm ort torch", "jax ort torch", "ort llvm torch ort"]
SLOW = ORDERS[2:]


def libraries():
    """Shared LLVMs of this machine, of any version, each once."""
    found = glob.glob("/usr/lib/*/libLLVM*.so*") + glob.glob("/usr/lib*/libLLVM*.so*")
    return sorted({os.path.realpath(path) for path in found})


def run_parts(parts, library, cache):
    program = "import sys\n" + "".join(textwrap.dedent(PARTS[part]) for part in parts) + "print('at the end')\n"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program, library], cwd=HERE / "with_ort", text=True,
                          capture_output=True, timeout=300, env=os.environ | {"ATTUNE_CACHE_DIR": str(cache)})
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["at the end"]), done.stderr[-3000:]


@pytest.mark.parametrize("order", [pytest.param(order, marks=[pytest.mark.slow] if order in SLOW else [])
                                   for order in ORDERS])
def test_in_any_order(order, tmp_path):
    parts = order.split()
    missing = [name for part in parts for name in PACKAGES.get(part, []) if not find_spec(name)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if "llvm" not in parts:
        run_parts(parts, "", tmp_path)
        return
    if not libraries():
        pytest.skip("this machine has no shared LLVM")
    run_parts(parts, libraries()[ORDERS.index(order) % len(libraries())], tmp_path)
