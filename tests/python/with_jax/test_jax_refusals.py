"""What attune.jax refuses, each with one sentence, and that XLA's calls of other kinds cannot crash the handler."""

import os
import subprocess
import sys

from jax_support import jax, jnp, tensors

import attune
import pytest
from attune.jax import _native, attention

Q, K, V = tensors()
CASES = {
    "integers": ((Q.astype(jnp.int32), K, V), {}, TypeError, "^query is int32; it must be float32, bfloat16"),
    "f8": ((Q, K.astype(jnp.float8_e4m3fn), V), {}, TypeError, "^key is float8_e4m3fn; it must be float32"),
    "types": ((Q, K, V.astype(jnp.bfloat16)), {}, TypeError, "^value is bfloat16 and query float32"),
    "dims": ((Q[0, 0], K, V), {}, ValueError, "^query has 2 dims"),
    "batch": ((Q, K[:1], V[:1]), {}, ValueError, "^key has the shape"),
    "values": ((Q, K, V[:, :5]), {}, ValueError, "^value has the shape"),
    "heads": ((Q[:, :, :5], K, V), {}, ValueError, "^query has 5 heads, which is no multiple of the 2"),
    "width": ((Q[..., :0], K[..., :0], V), {}, ValueError, "last dim .* is 0"),
    "mask type": ((Q, K, V), {"mask": jnp.ones((7, 11))}, TypeError, "^mask is float64; it must be bool"),
    "mask shape": ((Q, K, V), {"mask": jnp.ones((7, 10), bool)}, ValueError, r"^mask has the shape \(7, 10\), which"),
    "bias type": ((Q, K, V), {"bias": jnp.ones((7, 11), jnp.int32)}, TypeError, "^bias is int32"),
    "wide bias": ((Q, K, V), {"bias": jnp.ones((7, 11))}, TypeError, "^bias is float64; with a query of float32"),
    "lengths": ((Q, K, V), {"key_value_seq_lengths": jnp.ones(3, jnp.int32)}, ValueError, "^key_value_seq_lengths is"),
    "query lengths": ((Q, K, V), {"query_seq_lengths": jnp.ones(2)}, ValueError, "^query_seq_lengths is float64"),
    "window": ((Q, K, V), {"local_window_size": (-1, 3)}, ValueError, "^local_window_size is"),
    "window type": ((Q, K, V), {"local_window_size": 2.5}, ValueError, "^local_window_size is 2.5; it must be"),
    "window truth": ((Q, K, V), {"local_window_size": True}, ValueError, "^local_window_size is True; it must be"),
    "window length": ((Q, K, V), {"local_window_size": (1, 2, 3)}, ValueError, "^local_window_size is .1, 2, 3.;"),
    "sinks": ((Q, K, V), {"sinks": jnp.ones(2)}, ValueError, "^sinks is float64 of the shape"),
    "scale": ((Q, K, V), {"scale": float("inf")}, attune.Error, "softmax_scale is inf"),
    "cap": ((Q, K, V), {"logits_soft_cap": -1.0}, attune.Error, "logits_soft_cap is -1"),
    "align": ((Q, K, V), {"causal_align": "left"}, ValueError, "^causal_align is 'left'; it must be"),
    "words": ((Q, K, V), {"scale": [1]}, TypeError, "^scale is list; it must be a number"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_refusals(case):
    arrays, options, error, message = case
    with pytest.raises(error, match=message) as raised:
        attention(*arrays, **options)
    assert "\n" not in str(raised.value)
    with pytest.raises(error, match=message):
        jax.jit(lambda *x: attention(*x, **options))(*arrays)


def test_a_traced_scale():
    with pytest.raises(TypeError, match="^scale is traced; attune needs a number"):
        jax.jit(lambda scale: attention(Q, K, V, scale=scale))(0.5)


def raw(*operands, results=None, **attributes):
    results = results or [jax.ShapeDtypeStruct(Q.shape, Q.dtype)]
    return jax.block_until_ready(jax.ffi.ffi_call(_native.TARGET, results)(*operands, **attributes))


TEXT = "num_heads=6,num_kv_heads=2,seq_q=7,seq_kv=11,head_dim=16"
BAD = {
    "nothing": ((), {}, "no text named problem"),
    "no text": ((Q, K, V), {"problem": 3}, "no text named problem"),
    "no problem": ((Q, K, V), {"problem": "head_dim=x"}, "head_dim"),
    "too few": ((Q, K), {"problem": TEXT}, "there is no v"),
    "too many": ((Q, K, V, V), {"problem": TEXT}, "there are 4 operands"),
    "no lse": ((Q, K, V), {"problem": TEXT + ",has_lse=1"}, "there is no lse"),
    "types": ((Q, K, V), {"problem": TEXT + ",dtype=bf16"}, "q has XLA's type 11"),
    "dims": ((Q[0], K, V), {"problem": TEXT}, "q has 3 dims"),
    "other dims": ((Q, K[None], V), {"problem": TEXT}, "k has 1 dims of vmap, q has 0"),
    "length": ((Q, K[:, :5], V), {"problem": TEXT}, "k has the size 5 in dim 1; it must have 11"),
    "heads": ((Q, K[:, :, :1], V), {"problem": TEXT}, "6 heads on 1"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_calls_that_no_program_of_ours_makes(case):
    operands, attributes, message = case
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        raw(*operands, **attributes)


def in_another_process(code, **settings):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTUNE_CODEGEN")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment | settings, capture_output=True, text=True, check=False
    )


def test_an_older_jax_is_refused_in_a_sentence():
    code = "import jax; jax.__version_info__ = (0, 4, 38); jax.__version__ = '0.4.38'; import attune.jax"
    done = in_another_process(code)
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: attune.jax needs JAX 0.5 or newer; this is 0.4.38"


def test_what_cannot_be_compiled_is_an_error_of_xla(tmp_path):
    code = (
        "import jax, jax.numpy as jnp, attune.jax\n"
        "x = jnp.ones((1, 3, 2, 8))\n"
        "try: attune.jax.attention(x, x, x).block_until_ready()\n"
        "except jax.errors.JaxRuntimeError as error: print(str(error).splitlines()[0])\n"
    )
    done = in_another_process(code, ATTUNE_STRICT="1", ATTUNE_CACHE_DIR=str(tmp_path), JAX_PLATFORMS="cpu")
    assert "FAILED_PRECONDITION: attune: " in done.stdout, done.stdout + done.stderr
