"""attune.linear_attention inside JAX: a call back to the host, which jit, vmap and scan keep."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np

import attune

from .._linear import linear_attention as _linear_attention


def linear_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    decay: Any = None,
    beta: Any = None,
    state: Any = None,
    rule: str = "gated_delta",
    scale: Optional[float] = None,
    qk_norm_eps: float = 0.0,
    norm_weights: Any = None,
    out_norm_eps: float = 1e-6,
    gate: Any = None,
    gate_function: str = "silu",
    reproducible: bool = False,
) -> Tuple[jax.Array, jax.Array]:
    """Linear attention: (out, state), with the arguments of attune.linear_attention except those of ragged batches.

    q is [batch, length, heads, dim], k [batch, length, k_heads, dim], v [batch, length, v_heads, dim_v]. state is f32,
    [batch, v_heads, dim, dim_v], zeros if it is not given; the returned state is a new array. Numbers and words are not
    traced. It has no gradient.
    """
    arrays = {"q": q, "k": k, "v": v, "decay": decay, "beta": beta, "norm_weights": norm_weights, "gate": gate}
    given: Dict[str, jax.Array] = {name: jnp.asarray(one) for name, one in arrays.items() if one is not None}
    for name in "qkv":
        if name not in given or given[name].ndim != 4:
            raise attune.InvalidArgumentError(f"{name} must have 4 dims: batch, length, heads and dim")
    (batch, length, heads, dim), (v_heads, dim_v) = given["q"].shape, given["v"].shape[2:]
    shape = (batch, v_heads, dim, dim_v)
    given["state"] = jnp.zeros(shape, jnp.float32) if state is None else jnp.asarray(state)
    if given["state"].shape != shape or given["state"].dtype != jnp.float32:
        raise attune.InvalidArgumentError(f"state must be float32 {list(shape)}; it is {given['state'].dtype} "
                                          f"{list(given['state'].shape)}")  # fmt: skip
    numbers: Dict[str, Any] = dict(rule=rule, scale=scale, qk_norm_eps=qk_norm_eps, out_norm_eps=out_norm_eps)

    def compute(*values: Any) -> Tuple[Any, Any]:
        call: Dict[str, Any] = dict(zip(given, (np.ascontiguousarray(value) for value in values)))
        call["state"] = call["state"].copy()
        return _linear_attention(**call, **numbers, gate_function=gate_function, reproducible=reproducible)

    results = (
        jax.ShapeDtypeStruct((batch, length, max(heads, v_heads), dim_v), given["q"].dtype),
        jax.ShapeDtypeStruct(shape, jnp.float32),
    )
    return jax.pure_callback(compute, results, *given.values(), vmap_method="sequential")
