"""Configurations of keras.layers.MultiHeadAttention and GroupedQueryAttention, on Keras' backend for torch."""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy

from projected import Sizes, draw_source, files_of, fill, make_case, put_mask, spell

TITLE = "keras"

# Name, how many, and what is not left to chance.
FAMILIES = [
    ("key_dim, value_dim", 12, {"values": True}),
    ("output_shape", 8, {"shape": True}),
    ("query, value, key", 10, {"source": ["three", "values"]}),
    ("attention_mask", 12, {"mask": ["3-D", "1 entry", "4-D"]}),
    ("use_causal_mask", 8, {"causal": True}),
    ("masks of the inputs", 8, {"mask": ["keys", "values", "both"]}),
    ("attention_axes", 8, {"axes": ["inner", "both"]}),
    ("grouped queries", 14, {"grouped": True}),
    ("sliding_window", 8, {"window": True, "grouped": [False, True]}),
    ("refused", 1, {}),
]
RECORDED = {"key_dim, value_dim", "output_shape", "masks of the inputs", "grouped queries", "sliding_window"}


def draw_traits(d, forced):
    traits = {
        "source": d.pick(["self", "cross", "three"]),
        "values": d.chance(0.3),
        "shape": d.chance(0.2),
        "mask": d.pick([None, None, "3-D", "1 entry"]),
        "causal": d.chance(0.2),
        "axes": None,
        "grouped": False,
        "window": False,
        "use_bias": d.chance(0.7),
        "scores": d.chance(0.4),
    }
    traits.update({key: d.pick(value) if isinstance(value, list) else value for key, value in forced.items()})
    if traits["axes"]:
        traits.update(mask=None, causal=False, scores=False)
    if traits["grouped"]:  # its output has as many columns as the queries, its values are as wide as its keys
        traits.update(values=False, shape=False)
    if traits["window"] or traits["causal"]:
        traits["source"] = "self"  # or queries far from all keys would see none
    return traits


def make_layer(d, t, s):
    window = int(d.rng.integers(1, s.queries + 2)) if t["window"] else None
    arguments = {"use_bias": t["use_bias"]} | ({"sliding_window": window} if window else {})
    if t["grouped"]:
        s.out = s.columns
        layer = keras.layers.GroupQueryAttention(s.dim, s.heads, s.kv_heads, **arguments)
        return layer, f"GroupQueryAttention({s.dim}, {s.heads}, {s.kv_heads}", arguments, (s.out,)
    if t["values"]:
        s.dim_v = d.head_dim(s.heads)
        arguments["value_dim"] = s.dim_v
    shape = (s.columns,)
    if t["shape"]:
        shape = d.pick([(d.width(),), (2, d.width())])
        arguments["output_shape"] = shape if len(shape) > 1 else shape[0]
    s.out = int(numpy.prod(shape))
    if t["axes"]:
        arguments["attention_axes"] = (2,) if t["axes"] == "inner" else None
    layer = keras.layers.MultiHeadAttention(s.heads, s.dim, **arguments)
    return layer, f"MultiHeadAttention({s.heads}, {s.dim}", arguments, shape


class Masks:
    """Arguments of the call, and what they are for attune."""

    def __init__(self, d, t, s, layer):
        self.problem, self.tensors, self.arguments, kind = {}, {}, {}, t["mask"]
        if t["causal"]:
            self.problem["is_causal"] = 1
            self.arguments["use_causal_mask"] = True
        if t["window"]:
            # sliding_window counts the query's own position, and goes both ways.
            reach = (layer.sliding_window if t["grouped"] else layer._sliding_window) - 1
            self.problem |= {"window_left": reach, "window_right": reach}
        # The window may not reach the first key, but every row shall see one: its own.
        diagonal = numpy.eye(s.queries, s.keys, dtype=bool) if t["window"] and kind else False
        if kind in ("3-D", "1 entry", "4-D"):
            shape = {
                "3-D": (s.batch, s.queries, s.keys),
                "1 entry": (1, s.queries, s.keys),
                "4-D": (s.batch, s.heads, s.queries, s.keys),
            }[kind]
            mask = d.keep(shape) | diagonal
            self.arguments["attention_mask"] = mask
            put_mask(self.problem, self.tensors, mask[:, None] if mask.ndim == 3 else mask)
        elif kind:
            keep = numpy.ones((s.batch, s.keys), bool)
            for name in {"keys": ["key_mask"], "values": ["value_mask"], "both": ["key_mask", "value_mask"]}[kind]:
                self.arguments[name] = d.keep((s.batch, s.keys), 0.75)
                keep &= self.arguments[name]
            put_mask(self.problem, self.tensors, keep[:, None, None, :])


def refused(d):
    """What attune has no counterpart of, it refuses by its name."""
    x = d.normal(1, 3, 8)
    layer = keras.layers.MultiHeadAttention(2, 4, use_gate=True)
    layer.build(x.shape, x.shape)
    weights = {variable.path: keras.ops.convert_to_numpy(variable) for variable in layer.weights}
    words = "keras.layers.MultiHeadAttention(2, 4, use_gate=True)"
    case = make_case(d, "keras: refused", words, {}, {"x": x}, weights, {})
    case.refusal = "gate"
    return case


def add_axis(d, t, s, inputs):
    """Inputs [batch, 2, tokens, columns], and what attune gets: both in the batch, or all their tokens in a row."""
    made = {id(array): d.normal(s.batch, 2, *array.shape[1:]) for array in inputs}
    given = [made[id(array)] for array in inputs]
    is_inner = t["axes"] == "inner"
    flat = {id(array): array.reshape(*((-1, array.shape[2]) if is_inner else (s.batch, -1)), array.shape[3])
            for array in given}
    s.batch, s.queries = flat[id(given[0])].shape[:2]
    s.keys = flat[id(given[1])].shape[1]
    return given, [flat[id(array)] for array in given]


def describe(t, made, arguments, given, call):
    names = {"self": "x, x", "cross": "x, y", "three": "x, z, key=y", "values": "x, z, key=x"}[t["source"]]
    called = [f"{name}={value.shape if hasattr(value, 'shape') else value}" for name, value in call.items()]
    layer = ", ".join([made, *(f"{name}={value}" for name, value in arguments.items())])
    return f"keras.layers.{layer})({', '.join([names, *called])}); query {given[0].shape}, key {given[1].shape}"


def draw(d, family, forced):
    if family == "refused":
        return refused(d)
    t = draw_traits(d, forced)
    s = Sizes(d, t["grouped"])
    given = inputs = draw_source(d, s, t["source"])
    layer, made, arguments, shape = make_layer(d, t, s)
    masks = Masks(d, t, s, layer)
    if t["axes"]:
        given, inputs = add_axis(d, t, s, inputs)
    query, key, value = given
    layer.build(query.shape, value.shape, key.shape)
    weights = fill(d, {variable.path: tuple(variable.shape) for variable in layer.weights})
    layer.set_weights([weights[variable.path] for variable in layer.weights])
    call = masks.arguments | ({"return_attention_scores": True} if t["scores"] else {})
    result = layer(query, value, key=key, **call)
    out, scores = result if t["scores"] else (result, None)
    expected = {"out": keras.ops.convert_to_numpy(out).reshape(s.batch, s.queries, s.out)}
    problem = spell(d, s, t["source"], t["grouped"], masks.tensors) | masks.problem
    if len(shape) > 1:
        problem["out_dim"] = s.out
    if t["scores"]:
        problem["weights_mode"] = "softmax"
        expected["weights"] = keras.ops.convert_to_numpy(scores)
    words = describe(t, made, arguments, given, call)
    return make_case(d, f"keras: {family}", words, problem, files_of(*inputs, masks.tensors), weights, expected)
