"""Configurations of Flax' blocks: linen.MultiHeadDotProductAttention and nnx.MultiHeadAttention."""
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax.linen
import flax.nnx
import flax.traverse_util
import jax
import numpy

from projected import Sizes, draw_source, files_of, fill, make_case, put_mask, spell

TITLE = "flax"

# Name, how many, and what is not left to chance.
FAMILIES = [
    ("linen", 12, {"module": "linen"}),
    ("nnx", 8, {"module": "nnx"}),
    ("nnx, grouped queries", 8, {"module": "nnx", "grouped": True}),
    ("refused", 1, {}),
]
RECORDED = {"nnx, grouped queries"}


def draw_mask(d, s, source):
    """Whatever broadcasts to [batch, heads, queries, keys]; True is seen. None: there is none."""
    kind = d.pick([None, None, "entry", "head", "keys", "causal" if source == "self" else None])
    if kind == "causal":
        ones = numpy.ones((s.batch, s.queries), "float32")
        return kind, numpy.asarray(flax.linen.make_causal_mask(ones)) > 0
    if kind == "keys":
        ones = numpy.ones((s.batch, s.queries), bool)
        return kind, numpy.asarray(flax.linen.make_attention_mask(ones, d.keep((s.batch, s.keys), 0.75))) > 0
    shape = {"entry": (s.batch, 1, s.queries, s.keys), "head": (1, s.heads, s.queries, s.keys)}
    return kind, d.keep(shape[kind]) if kind else None


def make_module(t, s, inputs):
    """A function of (inputs, mask) and of the weights by name, and their shapes."""
    features = {"qkv_features": s.heads * s.dim, "out_features": s.out, "use_bias": t["use_bias"]}
    query, key, value = inputs
    if t["module"] == "linen":
        module = flax.linen.MultiHeadDotProductAttention(num_heads=s.heads, **features)
        tree = jax.eval_shape(module.init, jax.random.key(0), query, key, value)["params"]

        def call(weights, mask):
            nested = flax.traverse_util.unflatten_dict(weights, sep="/")
            return module.apply({"params": nested}, query, key, value, mask=mask)

        shapes = flax.traverse_util.flatten_dict(tree, sep="/")
        return call, {name: leaf.shape for name, leaf in shapes.items()}, features
    if t["grouped"]:
        features["num_kv_heads"] = s.kv_heads
    if s.k_columns != s.columns:
        features["in_kv_features"] = s.k_columns
    module = flax.nnx.MultiHeadAttention(s.heads, s.columns, decode=False, rngs=flax.nnx.Rngs(0), **features)
    state = flax.traverse_util.flatten_dict(flax.nnx.to_pure_dict(flax.nnx.state(module, flax.nnx.Param)), sep="/")

    def call(weights, mask):
        flax.nnx.update(module, flax.traverse_util.unflatten_dict(weights, sep="/"))
        return module(query, key, value, mask=mask)

    return call, {name: leaf.shape for name, leaf in state.items()}, features


def refused(d):
    """What attune has no counterpart of, it refuses by its name."""
    x = d.normal(1, 3, 8)
    module = flax.linen.MultiHeadDotProductAttention(num_heads=2, normalize_qk=True)
    weights = flax.traverse_util.flatten_dict(module.init(jax.random.key(0), x)["params"], sep="/")
    arrays = {name: numpy.asarray(array) for name, array in weights.items()}
    words = "flax.linen.MultiHeadDotProductAttention(2, normalize_qk=True)"
    case = make_case(d, "flax: refused", words, {}, {"x": x}, arrays, {})
    case.refusal = "_ln"
    return case


def draw(d, family, forced):
    if family == "refused":
        return refused(d)
    t = {"grouped": False, "use_bias": d.chance(0.7), "source": d.pick(["self", "cross", "three"])} | forced
    if t["module"] == "nnx" and t["source"] == "three":
        t["source"] = "cross"  # its keys and values are of one width
    s = Sizes(d, t["grouped"])
    inputs = draw_source(d, s, t["source"])
    s.out = d.pick([s.columns, d.width()])
    call, shapes, features = make_module(t, s, inputs)
    weights = fill(d, shapes)
    kind, mask = draw_mask(d, s, t["source"])
    out = call(weights, mask)
    own, tensors = {}, {}
    if kind == "causal" and d.chance(0.7):
        own["is_causal"] = 1
    elif kind:
        put_mask(own, tensors, mask)
    problem = spell(d, s, t["source"], t["grouped"], tensors) | own
    prefix = d.pick([None, "params/", "encoder/layer_0/attention/"])
    weights = {(prefix or "") + name: array for name, array in weights.items()}
    said = ", ".join(f"{name}={value}" for name, value in features.items())
    name = "linen.MultiHeadDotProductAttention" if t["module"] == "linen" else "nnx.MultiHeadAttention"
    given = {"self": "x, x, x", "cross": "x, y, y", "three": "x, y, z"}[t["source"]]
    words = f"flax.{name}({s.heads}, {said})({given}, mask={kind}); x {inputs[0].shape}, y {inputs[1].shape}"
    return make_case(d, f"flax: {family}", words, problem, files_of(*inputs, tensors), weights, {"out": out},
                     d.pick([None, prefix]) if prefix else None)
