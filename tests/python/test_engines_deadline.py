"""ATTUNE_DEADLINE_US: calls of each engine return although no compile ends."""

import importlib.util
import os
import subprocess
import sys

import pytest

TORCH = """
import torch, attune.torch
attune.torch.enable()
x = torch.ones(1, 2, 5, 64)
y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
assert attune.torch.stats()["sdpa.ran"] == 1, attune.torch.stats()
"""

JAX = """
import numpy, jax, jax.numpy as jnp, attune.jax
x = jnp.ones((1, 5, 2, 64))
y = numpy.asarray(attune.jax.attention(x, x, x))
"""

ORT = """
import sys, numpy
sys.path.insert(0, {folder!r})
import ort_support as support
from onnx import TensorProto
x = numpy.ones((1, 5, 128), numpy.float32)
model = support.model("MultiHeadAttention", dict(query=x, key=x, value=x), dict(out=TensorProto.FLOAT),
                      domain="com.microsoft", num_heads=2)
session = support.session(model, "ep")  # its end would wait for the compile
y, = session.run(None, dict(query=x, key=x, value=x))
"""

END = """
assert abs(float(y.max()) - 1) < 1e-5 and abs(float(y.min()) - 1) < 1e-5
open({go!r}, "w").close()  # from here on the worker works, so that the process can end
"""

# It works only when the file is there, and does not wait for ever after a failure.
WORKER = """#!/bin/sh
for i in $(seq 3000); do
    [ -e {go} ] && exec {worker} "$@"
    sleep 0.1
done
"""


@pytest.mark.parametrize(("module", "program"), [("torch", TORCH), ("jax", JAX), ("onnxruntime", ORT)])
def test_no_call_waits(module, program, tmp_path):
    if not importlib.util.find_spec(module):
        pytest.skip(f"{module} is not installed")
    build = os.path.dirname(os.environ["ATTUNE_LIBRARY"])
    go, worker = tmp_path / "go", tmp_path / "worker"
    worker.write_text(WORKER.format(go=go, worker=os.path.join(build, "attune-codegen-worker")))
    worker.chmod(0o755)
    settings = {
        "ATTUNE_DEADLINE_US": "0", "ATTUNE_CACHE_DIR": "", "ATTUNE_COMPILE": "worker",
        "ATTUNE_CODEGEN_WORKER": str(worker), "ATTUNE_COMPILE_TIMEOUT_MS": "600000", "JAX_PLATFORMS": "cpu",
    }
    folder = os.path.join(os.path.dirname(__file__), "with_ort")
    code = program.replace("{folder!r}", repr(folder)) + END.format(go=str(go))
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | settings, capture_output=True, text=True, timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
