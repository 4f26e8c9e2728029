"""Configurations of torch.nn.MultiheadAttention."""
import copy

import numpy
import torch

from case import Case

TITLE = "torch"

# Name, how many, and what is not left to chance.
FAMILIES = [
    ("self-attention", 26, {"source": "self"}),
    ("cross-attention", 20, {"source": "cross"}),
    ("keys and values apart", 16, {"source": "three"}),
    ("values apart", 8, {"source": "values"}),
    ("kdim, vdim", 24, {"source": ["cross", "three", "values"], "other_widths": True}),
    ("attn_mask, bool", 16, {"attn_mask": "bool"}),
    ("attn_mask, bool, 3-D", 12, {"attn_mask": "bool 3-D"}),
    ("attn_mask, float", 14, {"attn_mask": "float"}),
    ("attn_mask, float, 3-D", 10, {"attn_mask": "float 3-D"}),
    ("key_padding_mask to the right", 14, {"padding": "right"}),
    ("key_padding_mask anywhere", 12, {"padding": "any"}),
    ("key_padding_mask, float", 6, {"padding": "float"}),
    (
        "both masks",
        20,
        {"attn_mask": ["bool", "bool 3-D", "float", "float 3-D"], "padding": ["right", "any", "float"]},
    ),
    ("is_causal", 18, {"attn_mask": "causal", "padding": [None, None, "right", "any"]}),
    ("rows without keys", 12, {"empty": True, "attn_mask": ["bool", "bool 3-D", "float"], "padding": [None, "any"]}),
    ("add_zero_attn", 14, {"zero": True, "attn_mask": [None, None, "bool", "float 3-D"], "padding": [None, "right"]}),
    ("float64", 8, {"dtype": torch.float64}),
    ("blocks of layers", 10, {"layer": ["encoder", "decoder"]}),
    ("refused", 1, {}),
]
RECORDED = {name for name, _, _ in FAMILIES} - {"refused"}


def draw_traits(d, forced):
    traits = {
        "source": d.pick(["self", "self", "cross", "cross", "three"]),
        "other_widths": d.chance(0.25),
        "attn_mask": None,
        "padding": None,
        "empty": False,
        "zero": False,
        "layer": None,
        "dtype": torch.float32,
        "bias": d.chance(0.75),
        "batch_first": d.chance(0.5),
        "is_batched": d.chance(0.88),
        "need_weights": d.pick([None, "mean", "heads"]),
        "training": d.chance(0.4),
    }
    traits.update({key: d.pick(value) if isinstance(value, list) else value for key, value in forced.items()})
    if traits["layer"]:
        traits.update(source="self" if traits["layer"] == "encoder" else "cross", other_widths=False, bias=True)
    if traits["source"] == "self":
        traits["other_widths"] = False
    if traits["padding"] or traits["attn_mask"] in ("bool 3-D", "float 3-D"):
        traits["is_batched"] = True
    return traits


class Sizes:
    def __init__(self, d, t):
        self.heads = d.heads()
        self.head_dim = d.head_dim(self.heads)
        self.embed = self.heads * self.head_dim
        self.batch = d.batch() if t["is_batched"] else 1
        self.queries = d.length()
        self.keys = self.queries if t["source"] in ("self", "values") else d.length()
        self.kdim = self.vdim = self.embed
        if t["other_widths"]:
            self.kdim = self.embed if t["source"] == "values" else d.width()
            self.vdim = self.kdim if t["source"] == "cross" else d.width()


def make_module(d, t, s):
    """The module, and the dictionary and prefix by which its weights are saved."""
    dtype = t["dtype"]
    widths = {"kdim": s.kdim, "vdim": s.vdim} if t["other_widths"] else {}
    torch.manual_seed(int(d.rng.integers(2**31)))
    owner, prefix = None, ""
    if t["layer"] == "encoder":
        owner = torch.nn.TransformerEncoderLayer(s.embed, s.heads, 8, dropout=0, batch_first=t["batch_first"])
        module, prefix = owner.self_attn, "self_attn."
    elif t["layer"] == "decoder":
        owner = torch.nn.TransformerDecoderLayer(s.embed, s.heads, 8, dropout=0, batch_first=t["batch_first"])
        module, prefix = owner.multihead_attn, "multihead_attn."
    else:
        module = torch.nn.MultiheadAttention(
            s.embed, s.heads, bias=t["bias"], add_zero_attn=t["zero"], batch_first=t["batch_first"], **widths
        )
    with torch.no_grad():
        gain = d.sharpness()
        if module.in_proj_weight is not None:
            module.in_proj_weight[: 2 * s.embed] *= gain
        else:
            module.q_proj_weight *= gain
            module.k_proj_weight *= gain
        if t["bias"]:  # they begin as zeros, which would hide a bias that is forgotten
            module.in_proj_bias.normal_(std=0.3)
            module.out_proj.bias.normal_(std=0.3)
    (owner or module).to(dtype)
    (owner or module).train(t["training"])
    return module, (owner or module).state_dict(), prefix


def canonical(array, t):
    """From the framework's order of dimensions to [batch, tokens, columns]."""
    return array if t["batch_first"] or not t["is_batched"] else array.swapaxes(0, 1)


def draw_inputs(d, t, s):
    """query, key and value as arrays [batch, tokens, columns]; the same object where the call has the same tensor."""
    dtype = "float64" if t["dtype"] == torch.float64 else "float32"

    def tokens(count, width):
        return d.normal(*([s.batch] if t["is_batched"] else []), count, width).astype(dtype)

    query = tokens(s.queries, s.embed)
    key = query if t["source"] in ("self", "values") else tokens(s.keys, s.kdim)
    value = key if t["source"] in ("self", "cross") else tokens(s.keys, s.vdim)
    return query, key, value


class Masks:
    """Arguments of the call, and what they are for attune."""

    def __init__(self, d, t, s):
        self.d, self.t, self.s = d, t, s
        self.arguments, self.words = {}, []
        self.keep = None  # bool [batch or 1, heads or 1, queries or 1, keys]
        self.bias = None
        self.problem, self.tensors = {}, {}
        self.attention()
        self.padding()
        for name, mask in (("attn_mask", self.keep), ("attn_bias", self.bias)):
            if mask is not None:
                self.problem[name + "_dims"] = ":".join(str(size) for size in mask.shape)
                self.tensors[name] = mask

    def add_keep(self, mask):
        self.keep = mask if self.keep is None else self.keep & mask

    def add_bias(self, bias):
        self.bias = bias if self.bias is None else self.bias + bias

    def attention(self):
        d, s, kind = self.d, self.s, self.t["attn_mask"]
        if not kind:
            return
        flat = (s.queries, s.keys)
        deep = (s.batch, s.heads, *flat)
        if kind == "causal":
            keep = numpy.tril(numpy.ones(flat, bool))
            hint, is_float = d.chance(0.7), d.chance(0.5)
            as_float = numpy.where(keep, 0, -numpy.inf)
            self.arguments["attn_mask"] = as_float.astype(self.dtype()) if is_float else ~keep
            self.arguments["is_causal"] = hint
            self.problem["is_causal"] = 1
            self.words += ["attn_mask=" + ("float" if is_float else "bool") + " triangle", f"is_causal={hint}"]
            return
        shape = deep if "3-D" in kind else flat
        keep = d.keep(shape)
        if self.t["empty"]:
            keep[..., :: d.pick([1, 2, 3]), :] = False
        given = shape if shape == flat else (s.batch * s.heads, *flat)
        own = shape if shape == deep else (1, 1, *flat)
        self.words.append(f"attn_mask={kind}")
        if kind.startswith("bool"):
            self.arguments["attn_mask"] = ~keep.reshape(given)
            self.add_keep(keep.reshape(own))
            return
        bias = d.normal(*shape, scale=1.5).astype(self.dtype())
        if self.t["empty"] or d.chance(0.5):
            bias[~keep] = -numpy.inf
            self.words.append("with -inf")
        self.arguments["attn_mask"] = bias.reshape(given)
        self.add_bias(bias.reshape(own))

    def padding(self):
        d, s, kind = self.d, self.s, self.t["padding"]
        if not kind:
            return
        self.words.append(f"key_padding_mask={kind}")
        if kind == "right":
            lengths = d.lengths(s.batch, s.keys)
            self.arguments["key_padding_mask"] = numpy.arange(s.keys) >= lengths[:, None]
            self.problem["has_kv_lens"] = 1
            self.tensors["kv_lens"] = lengths
        elif kind == "any":
            keep = d.keep((s.batch, s.keys))
            if self.t["empty"] and s.batch > 1:
                keep[0] = False
            self.arguments["key_padding_mask"] = ~keep
            self.add_keep(keep.reshape(s.batch, 1, 1, s.keys))
        else:
            bias = d.normal(s.batch, s.keys).astype(self.dtype())
            bias[~d.keep((s.batch, s.keys))] = -numpy.inf
            self.arguments["key_padding_mask"] = bias
            self.add_bias(bias.reshape(s.batch, 1, 1, s.keys))

    def dtype(self):
        return "float64" if self.t["dtype"] == torch.float64 else "float32"

    def empty_rows(self):
        """Rows, of all heads, that see no key: [batch, heads, queries]."""
        seen = numpy.ones((self.s.batch, self.s.heads, self.s.queries, self.s.keys), bool)
        if self.keep is not None:
            seen &= self.keep
        if self.bias is not None:
            seen &= self.bias > -numpy.inf
        return ~seen.any(-1)


def call_module(module, t, inputs, masks, need_weights):
    """out as [batch, tokens, columns], and weights or None."""
    dtype = next(module.parameters()).dtype

    def given(array):
        return torch.from_numpy(numpy.ascontiguousarray(canonical(array, t))).to(dtype)

    made = {id(array): given(array) for array in inputs}
    arguments = {}
    for name, value in masks.arguments.items():
        tensor = torch.from_numpy(value) if isinstance(value, numpy.ndarray) else value
        is_float = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
        arguments[name] = tensor.to(dtype) if is_float else tensor
    with torch.no_grad():
        out, weights = module(
            *(made[id(array)] for array in inputs),
            need_weights=need_weights is not None,
            average_attn_weights=need_weights == "mean",
            **arguments,
        )
    return canonical(out.numpy(), t), None if weights is None else weights.numpy()


def without_lost(out, module, t, inputs, masks):
    """`out`, but where a head sees no key what torch's other path computes: such a head contributes nothing."""
    some = masks.empty_rows().any(1)
    lost = numpy.isnan(out).any(-1)
    if not t["need_weights"] and not lost.any():
        return out
    # Who asks for weights gets NaN, and so, often, does who gets the fast path of eval().
    assert (lost == some.reshape(lost.shape)).all(), "torch gives NaN exactly where a row sees no key"
    return call_module(copy.deepcopy(module).train(), t, inputs, masks, None)[0]


def expect(module, t, s, inputs, masks):
    out, weights = call_module(module, t, inputs, masks, t["need_weights"])
    if t["empty"]:
        out = without_lost(out, module, t, inputs, masks)
    if t["empty"] and t["need_weights"]:
        _, each = call_module(module, t, inputs, masks, "heads")
        each = numpy.where(masks.empty_rows().reshape(each.shape[:-1])[..., None], 0, each)
        weights = each if t["need_weights"] == "heads" else each.mean(-3)
    expected = {"out": out}
    if weights is not None:
        # The key of zeros is attune's sink: no column of the weights.
        expected["weights"] = numpy.ascontiguousarray(weights[..., : s.keys])
    return expected


def save_as(d, state, prefix, t):
    """The dictionary as a user may have it: alone, within a layer, within a model."""
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    if prefix:
        return arrays, prefix
    how = d.pick(["alone", "alone", "within", "only one"])
    if how == "alone":
        return arrays, None
    prefix = d.pick(["self_attn.", "encoder.layers.3.self_attn.", "attn."])
    within = {prefix + name: array for name, array in arrays.items()}
    within["norm.weight"] = numpy.ones(3, "float32")
    return within, prefix if how == "within" else None


def describe(t, s, masks):
    made = [str(s.embed), str(s.heads)]
    if t["other_widths"]:
        made += [f"kdim={s.kdim}", f"vdim={s.vdim}"]
    made += [] if t["bias"] else ["bias=False"]
    made += ["add_zero_attn=True"] if t["zero"] else []
    made += ["batch_first=True"] if t["batch_first"] else []
    made += ["dtype=float64"] if t["dtype"] == torch.float64 else []
    given = {"self": "x, x, x", "cross": "x, y, y", "three": "x, y, z", "values": "x, x, z"}[t["source"]]
    words = [given, *masks.words]
    words.append({None: "need_weights=False", "mean": "", "heads": "average_attn_weights=False"}[t["need_weights"]])
    owner = f"{t['layer']} layer's " if t["layer"] else ""
    mode = "" if t["training"] else ".eval()"
    batch = f"batch={s.batch}" if t["is_batched"] else "unbatched"
    return (
        f"torch.nn.{owner}MultiheadAttention({', '.join(made)}){mode}({', '.join(word for word in words if word)}); "
        f"{batch}, queries={s.queries}, keys={s.keys}"
    )


def problem_of(d, t, s, masks):
    is_self = t["source"] in ("self", "values")
    sizes = {"batch": s.batch, "embed_dim": s.embed, "num_heads": s.heads, "head_dim": s.head_dim}
    sizes["seq_q"] = s.queries
    sizes |= {} if is_self else {"is_cross": 1, "seq_kv": s.keys}
    sizes |= {"kv_embed_dim": s.kdim} if t["other_widths"] and not is_self else {}
    problem = d.spell(sizes, ["seq_q"] if is_self else ["seq_q", "seq_kv"])
    problem |= masks.problem
    is_dynamic = "dynamic" in problem.values()
    for name in ("attn_mask", "attn_bias"):
        if name + "_dims" in problem and (is_dynamic or d.chance(0.5)):
            batch, heads, queries, _ = masks.tensors[name].shape
            problem[name + "_dims"] = "b" * (batch > 1) + "h" * (heads > 1) + "q" * (queries == s.queries) + "k"
    if not is_dynamic and t["is_batched"] and not t["batch_first"] and d.chance(0.6):
        # As torch has them in memory: [tokens, batch, columns].
        widths = {"x": s.embed, "out": s.embed}
        widths |= {} if is_self else {"x_kv": s.kdim}
        widths |= {"x_v": s.vdim} if t["source"] in ("three", "values") else {}
        problem |= {f"{name}_strides": f"{width}:{s.batch * width}:1" for name, width in widths.items()}
    if t["dtype"] == torch.float64:
        problem["dtype"] = "f64"
    if t["zero"]:
        problem["has_sinks"] = 1
    if t["need_weights"]:
        problem["weights_mode"] = "softmax"
    if t["need_weights"] == "mean":
        problem["weights_average"] = 1
    return problem


def draw(d, family, forced):
    if family == "refused":
        return refused()
    t = draw_traits(d, forced)
    s = Sizes(d, t)
    module, state, prefix = make_module(d, t, s)
    inputs = draw_inputs(d, t, s)
    masks = Masks(d, t, s)
    expected = expect(module, t, s, inputs, masks)
    exact = expect(copy.deepcopy(module).double(), t, s, inputs, masks) if t["dtype"] == torch.float32 else {}
    query, key, value = inputs
    arrays = {"x": query}
    arrays |= {} if key is query else {"x_kv": key}
    arrays |= {} if value is key else {"x_v": value}
    arrays |= masks.tensors
    if t["zero"]:
        arrays["sinks"] = numpy.zeros(s.heads, "float32")
    weights, prefix = save_as(d, state, prefix, t)
    empty = masks.empty_rows().all(1)
    return Case(
        family=f"torch: {family}",
        call=describe(t, s, masks),
        problem=problem_of(d, t, s, masks),
        inputs=arrays,
        weights=weights,
        expected=expected,
        form=d.form(),
        prefix=prefix,
        exact=exact,
        empty=(empty if t["is_batched"] else empty[0]) if t["empty"] else None,
    )


def refused():
    """What attune has no counterpart of, it refuses by its name."""
    module = torch.nn.MultiheadAttention(4, 2, add_bias_kv=True)
    return Case(
        family="torch: refused",
        call="torch.nn.MultiheadAttention(4, 2, add_bias_kv=True)",
        problem={"num_heads": 2},
        inputs={"x": numpy.zeros((1, 3, 4), "float32")},
        weights={name: tensor.numpy() for name, tensor in module.state_dict().items()},
        expected={},
        refusal="bias_k",
    )
