"""What the tests of attune.jax share. Imported before JAX: several devices are an option of its start."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
# Compiling what attune is compared with takes most of the time of these tests: in the short form it is not optimised.
if os.environ.get("ATTUNE_TEST_SHORT") == "yes":
    os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0"

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
if jax.__version_info__ < (0, 5):
    pytest.skip("attune.jax needs JAX 0.5", allow_module_level=True)
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}


def tensors(dtype="float32", batch=2, rows=7, keys=11, heads=6, kv_heads=2, dim=16, dim_v=None, seed=0):
    """query, key and value, as jax.nn.dot_product_attention takes them."""
    random = np.random.default_rng(seed)
    shapes = (batch, rows, heads, dim), (batch, keys, kv_heads, dim), (batch, keys, kv_heads, dim_v or dim)
    return [jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes]


def close(found, expected, dtype="float32", factor=1):
    tolerance = TOLERANCES[dtype] * factor
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(expected, np.float64), rtol=tolerance, atol=tolerance
    )
