"""Configurations of jax.nn.dot_product_attention between projections by einsum, as JAX code has them."""
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy
import numpy

from projected import Sizes, draw_source, files_of, fill, make_case, put_mask, spell

TITLE = "jax"

# Name, how many, and what is not left to chance.
FAMILIES = [
    ("is_causal", 6, {"kind": "causal"}),
    ("mask", 6, {"kind": "mask"}),
    ("bias", 6, {"kind": "bias"}),
    ("mask and bias", 4, {"kind": "mask and bias"}),
    ("key_value_seq_lengths", 6, {"kind": "lengths"}),
    ("local_window_size", 6, {"kind": "window"}),
    ("scale", 4, {"kind": "scale"}),
]
RECORDED = {"mask and bias", "local_window_size"}


def draw_arguments(d, s, kind):
    """Arguments of the call, and what they are for attune: of the problem, and tensors."""
    arguments, problem, tensors = {}, {}, {}
    if kind == "causal":
        arguments["is_causal"] = True
        problem["is_causal"] = 1
    if "mask" in kind:
        shape = d.pick([(s.batch, 1), (1, s.heads), (s.batch, s.heads), (1, 1)])
        arguments["mask"] = d.keep((*shape, s.queries, s.keys))
        put_mask(problem, tensors, arguments["mask"])
    if "bias" in kind:
        shape = d.pick([(s.batch, s.heads), (1, s.heads)])
        tensors["attn_bias"] = arguments["bias"] = d.normal(*shape, s.queries, s.keys)
        problem["attn_bias_dims"] = ":".join(str(size) for size in tensors["attn_bias"].shape)
    if kind == "lengths":
        tensors["kv_lens"] = arguments["key_value_seq_lengths"] = d.lengths(s.batch, s.keys)
        problem["has_kv_lens"] = 1
    if kind == "window":
        left, right = (int(n) for n in d.rng.integers(0, s.queries + 1, 2))
        arguments["local_window_size"] = (left, right)
        problem |= {"window_left": left, "window_right": right}
    if kind == "scale":
        arguments["scale"] = problem["softmax_scale"] = d.pick([1.0, 0.25, 0.1])
    return arguments, problem, tensors


def project(x, weights, name):
    product = jax.numpy.einsum("bte,ehd->bthd", x, weights[f"{name}/kernel"], precision="highest")
    return product + weights.get(f"{name}/bias", 0)


def draw(d, family, forced):
    kind = forced["kind"]
    grouped = d.chance(0.5)
    source = "self" if kind in ("causal", "window") else d.pick(["self", "cross", "three"])
    s = Sizes(d, grouped)
    inputs = draw_source(d, s, source)
    s.out = d.width()
    has_bias = {"query": d.chance(0.6), "key": False, "value": d.chance(0.6), "out": d.chance(0.6)}
    shapes = {
        "query/kernel": (s.columns, s.heads, s.dim),
        "key/kernel": (s.k_columns, s.kv_heads, s.dim),
        "value/kernel": (s.v_columns, s.kv_heads, s.dim),
        "out/kernel": (s.heads, s.dim, s.out),
    }
    biases = {"query/bias": (s.heads, s.dim), "value/bias": (s.kv_heads, s.dim), "out/bias": (s.out,)}
    weights = fill(d, shapes | {name: shape for name, shape in biases.items() if has_bias[name.split("/")[0]]})
    arguments, own, tensors = draw_arguments(d, s, kind)
    q, k, v = (project(x, weights, name) for x, name in zip(inputs, ("query", "key", "value")))
    heads = jax.nn.dot_product_attention(q, k, v, **arguments)
    out = jax.numpy.einsum("bthd,hdo->bto", heads, weights["out/kernel"], precision="highest")
    problem = spell(d, s, source, grouped, tensors)
    said = ", ".join(f"{name}={value.shape if hasattr(value, 'shape') else value}" for name, value in arguments.items())
    words = (
        f"jax.nn.dot_product_attention({q.shape}, {k.shape}, {said}) between projections; {source}, "
        f"biases {[name for name, there in has_bias.items() if there]}"
    )
    return make_case(d, f"jax: {family}", words, problem | own, files_of(*inputs, tensors), weights,
                     {"out": numpy.asarray(out + weights.get("out/bias", 0))})
