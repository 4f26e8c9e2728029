"""ONNX's preview operator FlexAttention in ONNX Runtime: attune.onnx.rewrite, and attune's own operator."""

import os
import subprocess
import sys

import attune
import numpy as np
import ort_support as support
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from test_onnx import CASES, COUNTED, GRAPHS, KV, NUMBERS, B, H, Q, TOLERANCE, make_graph

import attune.onnx

DIM = 16
CAUSAL = make_graph([*COUNTED, ("GreaterOrEqual", ["i", "j"], ["m"]), ("Where", ["m", "x", "low"], ["out"])],
                    {**NUMBERS, "low": np.float32(-np.inf)})
LAST = make_graph([*COUNTED, ("Sub", ["S", "L"], ["more"]), ("Add", ["i", "more"], ["at"]),
                   ("GreaterOrEqual", ["at", "j"], ["m"]), ("Where", ["m", "x", "low"], ["out"])],
                  {**NUMBERS, "low": np.float32(-np.inf)})


def flex_model(dims=(B, H, Q, KV), kind=TensorProto.FLOAT, constants=(), nodes=(), **attributes):
    """A model of one node whose Q, K and V have these dims, which may be names."""
    batch, heads, queries, keys = dims
    node = helper.make_node("FlexAttention", ["Q", "K", "V"], ["Y"], name="the_node", domain="ai.onnx.preview",
                            **attributes)
    shapes = {"Q": [batch, heads, queries, DIM], "K": [batch, 2, keys, DIM], "V": [batch, 2, keys, DIM], "Y": None}
    values = [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]
    tensors = [numpy_helper.from_array(array, name) for name, array in dict(constants).items()]
    graph = helper.make_graph([*nodes, node], "g", values[:3], values[3:], tensors)
    return helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 23),
                                                                  helper.make_opsetid("ai.onnx.preview", 1)])


def inputs(queries=Q, keys=KV, batch=B):
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal((batch, heads, rows, DIM)).astype("f4")
            for name, heads, rows in (("Q", H, queries), ("K", 2, keys), ("V", 2, keys))}


def run(model, entry, feeds):
    before = support.ran("FlexAttention")
    got, = support.session(model.SerializeToString(), entry).run(None, feeds)
    assert support.ran("FlexAttention") == before + 1
    return got


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("name", sorted(CASES))
def test_own_case(name, entry):
    case = CASES[name]
    is_expanded = "expanded" in name  # other operators, which rewrite leaves alone
    model = attune.onnx.rewrite(case.model)
    session = support.session(model.SerializeToString(), entry)
    for given, wanted in case.data_sets:
        before = support.ran("FlexAttention")
        got, = session.run(None, dict(zip((value.name for value in session.get_inputs()), given)))
        assert support.ran("FlexAttention") == before + (not is_expanded)
        assert got.dtype == wanted[0].dtype
        np.testing.assert_allclose(got, wanted[0], atol=TOLERANCE[str(got.dtype)], rtol=0)


@pytest.mark.parametrize("what", ["score_mod", "prob_mod"])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_as_the_reference(name, what):
    if name == "window" and what == "prob_mod":
        pytest.skip("a probability of -infinity")
    model = flex_model(**{what: make_graph(*GRAPHS[name])})
    wanted = ReferenceEvaluator(model).run(None, inputs())[0]
    got = run(attune.onnx.rewrite(model), "ops", inputs())
    np.testing.assert_allclose(got, wanted, atol=3e-5, rtol=1e-5)


def test_both_entries_at_once():
    options = support.onnxruntime.SessionOptions()
    attune.ort.register_ops(options)
    model = attune.onnx.rewrite(flex_model(score_mod=CAUSAL)).SerializeToString()
    got, = support.session(model, "ep", options=options).run(None, inputs())
    np.testing.assert_array_equal(got, attune.onnx.flex_attention(*inputs().values(), CAUSAL))


def test_bfloat16():
    model = attune.onnx.rewrite(flex_model(score_mod=CAUSAL, softmax_precision=TensorProto.FLOAT))
    got = run(model, "ops", inputs())
    session = support.session(support.within(model.SerializeToString(), TensorProto.BFLOAT16), "ops")
    np.testing.assert_allclose(session.run(None, inputs())[0], got, atol=3e-2)


def test_a_model_of_another_precision():
    feeds = inputs()
    model = attune.onnx.rewrite(flex_model(softmax_precision=TensorProto.DOUBLE, scale=0.5))
    scores = np.einsum("bhqd,bhkd->bhqk", feeds["Q"], feeds["K"].repeat(H // 2, 1)).astype("f8") / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdims=True), feeds["V"].repeat(H // 2, 1))
    np.testing.assert_allclose(run(model, "ops", feeds), wanted, atol=2e-6)


# ---- Constants outside of the subgraph ----


@pytest.mark.parametrize("place", ["initializer", "node"])
def test_constants_of_the_model(place):
    bias = np.random.default_rng(2).standard_normal((H, Q, KV)).astype("f4")
    mod = make_graph([("Add", ["x", "bias"], ["out"])])
    if place == "initializer":
        model = flex_model(constants={"bias": bias}, score_mod=mod)
    else:
        constant = helper.make_node("Constant", [], ["bias"], value=numpy_helper.from_array(bias, "bias"))
        model = flex_model(nodes=[constant], score_mod=mod)
    rewritten = attune.onnx.rewrite(model)
    node, = (node for node in rewritten.graph.node if node.op_type == "FlexAttention")
    assert node.domain == "attune" and len(node.input) == 4
    got = run(rewritten, "ep", inputs())
    wanted = attune.onnx.flex_attention(*inputs().values(), mod, outer={"bias": bias})
    np.testing.assert_array_equal(got, wanted)
    assert model.graph.node[-1].domain == "ai.onnx.preview", "the model itself stays as it is"


def test_a_graph_inside():
    inner = flex_model(score_mod=CAUSAL).graph
    branch = helper.make_graph(inner.node, "branch", [], inner.output)
    choice = helper.make_node("If", ["which"], ["Y"], then_branch=branch, else_branch=branch)
    which = helper.make_tensor_value_info("which", TensorProto.BOOL, [])
    graph = helper.make_graph([choice], "g", [*inner.input, which], inner.output)
    model = helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 23),
                                                                   helper.make_opsetid("ai.onnx.preview", 1)])
    got = run(attune.onnx.rewrite(model), "ops", {**inputs(), "which": np.array(True)})
    np.testing.assert_array_equal(got, attune.onnx.flex_attention(*inputs().values(), CAUSAL))


# ---- Dims that the model leaves open ----


def test_open_sizes():
    session = support.session(attune.onnx.rewrite(flex_model(("N", H, "L", "S"), score_mod=CAUSAL)).SerializeToString(),
                              "ops")
    for given in (inputs(), inputs(5, 5), inputs(1, 40, 3)):
        wanted = attune.onnx.flex_attention(*given.values(), CAUSAL)
        np.testing.assert_allclose(session.run(None, given)[0], wanted, atol=2e-6)


def test_sizes_that_functions_depend_on():
    model = flex_model((B, H, "L", "S"), score_mod=LAST)
    with pytest.raises(attune.Error, match=r"node 'the_node' \(FlexAttention\): the model leaves L, S open"):
        attune.onnx.rewrite(model)
    session = support.session(attune.onnx.rewrite(model, {"L": Q, "S": KV}).SerializeToString(), "ops")
    np.testing.assert_array_equal(session.run(None, inputs())[0], attune.onnx.flex_attention(*inputs().values(), LAST))
    with pytest.raises(Exception, match=r"of scores \[2, 4, 9, 13\]; these are \[2, 4, 9, 14\]"):
        session.run(None, inputs(Q, 14))


def scaled(factor, constants):
    """score * factor, where `factor` nodes make "f" of "S", the keys as a float."""
    return make_graph([("Shape", ["x"], ["shape"]), ("Gather", ["shape", "3"], ["n"]),
                       ("Cast", ["n"], ["S"], {"to": TensorProto.FLOAT}), *factor, ("Mul", ["x", "f"], ["out"])],
                      {**NUMBERS, **constants})


OF_OPEN_SIZES = {
    "log": scaled([("Log", ["S"], ["l"]), ("Div", ["l", "l512"], ["r"]), ("Max", ["r", "one"], ["f"])],
                  {"l512": np.float32(np.log(512)), "one": np.float32(1)}),
    "choice": scaled([("Greater", ["S", "most"], ["m"]), ("Where", ["m", "one", "two"], ["f"])],
                     {"most": np.float32(4096), "one": np.float32(1), "two": np.float32(2)}),
    "reduced": make_graph([*COUNTED, ("ReduceMax", ["j"], ["m"]), ("Min", ["m", "1"], ["n"]),
                           ("CastLike", ["n", "x"], ["f"]), ("Mul", ["x", "f"], ["out"])], NUMBERS),
    "last": make_graph([*COUNTED, ("Slice", ["j", "from", "end", "0s", "step"], ["t"]), ("CastLike", ["t", "x"], ["f"]),
                        ("Add", ["x", "f"], ["out"])],
                       {**NUMBERS, "from": np.array([-300]), "end": np.array([2**40]), "0s": np.array([0]),
                        "step": np.array([1000])}),
    "positions": make_graph([*COUNTED, ("Greater", ["S", "most"], ["m"]), ("Where", ["m", "S", "1"], ["n"]),
                             ("Range", ["0", "n", "1"], ["p"]), ("CastLike", ["p", "x"], ["f"]),
                             ("Add", ["x", "f"], ["out"])], {**NUMBERS, "most": np.int64(4096)}),
    "size": make_graph([("Size", ["x"], ["n"]), ("Min", ["n", "1"], ["m"]), ("CastLike", ["m", "x"], ["f"]),
                        ("Mul", ["x", "f"], ["out"])], NUMBERS),
}


@pytest.mark.parametrize("name", OF_OPEN_SIZES)
def test_functions_of_open_sizes(name):
    """The same text for every size that is tried does not make a function one for all sizes."""
    with pytest.raises(attune.Error, match=r"^node 'the_node' \(FlexAttention\): the model leaves N, L, S open"):
        attune.onnx.rewrite(flex_model(("N", H, "L", "S"), score_mod=OF_OPEN_SIZES[name]))
    model = flex_model(score_mod=OF_OPEN_SIZES[name])
    wanted = ReferenceEvaluator(model).run(None, inputs())[0]
    np.testing.assert_allclose(run(attune.onnx.rewrite(model), "ops", inputs()), wanted, atol=3e-5, rtol=1e-5)


def test_defaults_of_inputs_are_no_constants():
    """A call may give another tensor in the place of such an initializer."""
    reads = make_graph([("Add", ["x", "bias"], ["out"])])
    model = flex_model(score_mod=reads, constants={"bias": np.float32(2)})
    model.graph.input.append(helper.make_tensor_value_info("bias", TensorProto.FLOAT, []))
    with pytest.raises(attune.Error, match="'bias' is an input of the model with a default"):
        attune.onnx.rewrite(model)
    model.ir_version = 3  # where all initializers are inputs
    attune.onnx.rewrite(model)


@pytest.mark.parametrize("sizes", [[1, 2, 3], [9] * 5])
def test_sizes_of_the_operator_are_four(sizes):
    model = attune.onnx.rewrite(flex_model())
    node = model.graph.node[0]
    kept = [attribute for attribute in node.attribute if attribute.name != "sizes"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("sizes", sizes)])
    with pytest.raises(Exception, match="sizes must be four whole numbers"):
        support.session(model.SerializeToString(), "ops")


def test_functions_that_are_too_long():
    names = ["x"] + [f"x{i}" for i in range(150)]
    many = [("Add", [name, "x"], [after]) for name, after in zip(names, names[1:])]
    with pytest.raises(attune.Error, match="score_mod would have [0-9]+ characters as a text; 1023 are the most"):
        attune.onnx.rewrite(flex_model(score_mod=make_graph([*many, ("Abs", [names[-1]], ["out"])])))


def test_models_without_a_context_run_as_before():
    """Where attune can compute nothing, the provider leaves all nodes to ONNX Runtime."""
    code = ("import numpy as np, onnxruntime, attune.ort; from onnx import TensorProto, helper\n"
            "x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in 'xy')\n"
            "graph = helper.make_graph([helper.make_node('Relu', ['x'], ['y'])], 'g', [x], [y])\n"
            "model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid('', 20)])\n"
            "options = onnxruntime.SessionOptions()\n"
            "attune.ort.register(options)\n"
            "session = onnxruntime.InferenceSession(model.SerializeToString(), options)\n"
            "assert session.run(None, {'x': np.array([-1, 1], 'f4')})[0].tolist() == [0, 1]\n")
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "ATTUNE_MACHINE": "bogus"}, check=True)


@pytest.mark.parametrize("nodes", [
    [("Expand", ["none", "shape"], ["bias"])],
    [("ConstantOfShape", ["shape"], ["bias"])],
    [("Unsqueeze", ["S", "0s"], ["s"]), ("Concat", ["1s", "s"], ["to"], {"axis": 0}), ("Reshape", ["j", "to"], ["p"]),
     ("CastLike", ["p", "x"], ["bias"])],
    [("Reshape", ["rows", "column"], ["p"]), ("CastLike", ["p", "x"], ["bias"])],
    [("Gather", ["shape", "1"], ["heads"]), ("CastLike", ["heads", "x"], ["bias"])],
], ids=["expand", "constant", "reshape", "left over", "heads"])
def test_open_sizes_that_only_count(nodes):
    constants = {**NUMBERS, "none": np.float32(0.5), "0s": np.array([0]), "1s": np.array([1]),
                 "column": np.array([1, -1, 1])}
    model = flex_model(("N", H, "L", "S"), score_mod=make_graph([*COUNTED, *nodes, ("Add", ["x", "bias"], ["out"])],
                                                                constants))
    wanted = ReferenceEvaluator(model).run(None, inputs())[0]
    np.testing.assert_allclose(run(attune.onnx.rewrite(model), "ops", inputs()), wanted, atol=3e-5, rtol=1e-5)


def test_one_size_with_two_names():
    mod = make_graph([("Add", ["x", "bias"], ["out"])])
    model = flex_model((B, H, "L", "L"), constants={"bias": np.ones((Q, Q), "f4")}, score_mod=mod)
    with pytest.raises(attune.Error, match=r"do not broadcast \(the model leaves L, L open"):
        attune.onnx.rewrite(model)
    assert attune.onnx.rewrite(model, {"L": Q}).graph.node[0].attribute


# ---- What is refused ----


@pytest.mark.parametrize("attributes, message", [
    ({"score_mod": make_graph([("Softmax", ["x"], ["out"])])},
     r"'the_node' \(FlexAttention\): score_mod: Softmax cannot"),
    ({"prob_mod": make_graph([("Add", ["x", "elsewhere"], ["out"])])}, "prob_mod: 'elsewhere' is computed outside"),
    ({"softmax_precision": 7}, "softmax_precision is 7; it must be that of a float type"),
    ({"causal": 1}, "it has the attribute causal, which attune does not know"),
    ({"score_mod": 1.5}, "score_mod is a float; it must be a graph"),
    ({"prob_mod": "text"}, "prob_mod is bytes; it must be a graph"),
    ({"scale": "text"}, "scale is bytes; it must be a number"),
    ({"softmax_precision": 1.0}, "softmax_precision is 1.0; it must be that of a float type"),
    ({"softmax_precision": [1]}, "softmax_precision is a list; it must be that of a float type"),
])
def test_refusals(attributes, message):
    with pytest.raises(attune.Error, match=message):
        attune.onnx.rewrite(flex_model(**attributes))


@pytest.mark.parametrize("model, sizes, message", [
    (b"model", None, "model is bytes; it must be a model"),
    (None, 3, "sizes is an int; it must be a dict"),
    (None, {3: 4}, "sizes has the name 3, which is an int"),
    (None, {"L": 2.0}, r"sizes\['L'\] is 2.0; it must be an integer"),
    (None, {"L": -1}, r"sizes\['L'\] is -1; it must be from 1 to 2147483647"),
])
def test_refused_arguments(model, sizes, message):
    with pytest.raises(attune.InvalidArgumentError, match=message):
        attune.onnx.rewrite(model or flex_model(), sizes)


def test_refused_descriptions():
    for what, shape, message in (("mask_mod", (1, 2, 3, 4), "what is 'mask_mod'"), ("score_mod", (1, 2, 3), "four num"),
                                 ("score_mod", (1, 2, 3, -4), r"shape\[3\] is -4"), ("score_mod", 4, "shape is 4")):
        with pytest.raises(attune.InvalidArgumentError, match=message):
            attune.onnx.function_text(CAUSAL, what, shape)
    with pytest.raises(attune.InvalidTypeError, match="score_mod is a str; it must be a graph"):
        attune.onnx.flex_attention(*(inputs()[name] for name in "QKV"), "q >= kv")
    for options, message in (({"softmax_precision": [1]}, "softmax_precision is a list"),
                             ({"outer": 3}, "outer is an int; it must be a dict")):
        with pytest.raises(attune.InvalidArgumentError, match=message):
            attune.onnx.flex_attention(*(inputs()[name] for name in "QKV"), CAUSAL, **options)
    with pytest.raises(attune.InvalidTypeError, match="graph is None"):
        attune.onnx.function_text(None, "score_mod", (1, 2, 3, 4))


def test_a_scale_is_a_number():
    """Also where the model says it as an integer, which ONNX Runtime's operator does not take."""
    scales = [a for a in attune.onnx.rewrite(flex_model(scale=2)).graph.node[0].attribute if a.name == "scale"]
    assert [(a.type, a.f) for a in scales] == [(helper.make_attribute("scale", 2.0).type, 2.0)]


def test_sizes_of_numpy():
    sizes = {"L": np.int64(Q), "S": np.int32(KV)}
    assert attune.onnx.rewrite(flex_model(("N", H, "L", "S"), score_mod=LAST), sizes).graph.node[0].attribute


def test_inside_a_function():
    model = flex_model()
    function = helper.make_function("own", "Own", ["Q", "K", "V"], ["Y"], model.graph.node, model.opset_import)
    model.functions.append(function)
    with pytest.raises(attune.Error, match="a function of the model has FlexAttention; inline it first"):
        attune.onnx.rewrite(model)


def own(extra=(), feeds=None, **attributes):
    """A session of a node that no rewriting has made, and what it takes."""
    feeds = {**inputs(), **dict(extra)} if feeds is None else feeds
    model = support.model("FlexAttention", feeds, {"Y": TensorProto.FLOAT}, domain="attune", **attributes)
    loaded = support.load_model_from_string(model)
    loaded.opset_import.append(helper.make_opsetid("attune", 1))
    return support.session(loaded.SerializeToString(), "ops"), feeds


@pytest.mark.parametrize("extra, attributes, message", [
    ({}, {"score_mod": "score + "}, r"node 'the_node' \(FlexAttention\): .*score_mod, column 8"),
    ({}, {"score_mod": "score + slope[h]"}, "score_mod, column 9: .*slope"),
    ({}, {"mask_mod": "q + 1"}, "mask_mod"),
    ({}, {"score_mod": "score * " + "1 + " * 300 + "1"}, "score_mod has more than 1023 characters"),
    ({}, {"score_mod": 'score"'}, "score_mod has a quotation mark"),
    ({}, {"score_mod": "score + slope[h]", "tensors": "slope:f32[h]"}, "declares 1, and there are 0 inputs after"),
    ({"slope": np.ones(H, "f4")}, {"score_mod": "score * 2"}, "declares 0, and there are 1 inputs after"),
    ({"slope": np.ones(H, "f4")}, {"score_mod": "score", "tensors": "slope:f32[h]"}, "slope"),
    ({"slope": np.ones(H, "f4")}, {"score_mod": "score + slope[q]", "tensors": "slope:f32[h]"}, "write clamp"),
])
def test_a_session_is_refused(extra, attributes, message):
    with pytest.raises(Exception, match=message):
        own(extra, **attributes)


@pytest.mark.parametrize("slope, message", [
    (np.ones(H + 1, "f4"), r"slope is of shape \[5\]; it must be of shape \[4\]"),
    (np.ones((1, H), "f4"), r"slope is of shape \[1, 4\]; it must be of shape \[4\]"),
    (np.ones(H, "i4"), "slope is i32; tensors declares f32"),
    (np.ones(H, "i8"), "slope is int64, which functions cannot read; tensors declares f32"),
])
def test_a_call_is_refused(slope, message):
    session, feeds = own({"slope": slope}, score_mod="score + slope[h]", tensors="slope:f32[h]")
    with pytest.raises(Exception, match=r"node 'the_node' \(FlexAttention\): " + message):
        session.run(None, feeds)


@pytest.mark.parametrize("name, shape, message", [
    ("Q", (B, H, DIM), "Q has 3 dims; it must have 4"),
    ("K", (B, 2, KV, DIM + 1), r"do not fit: \[2, 4, 9, 16\], \[2, 2, 13, 17\]"),
    ("K", (B, 3, KV, DIM), "do not fit"),
    ("V", (B, 2, KV + 1, DIM), "do not fit"),
])
def test_shapes_that_do_not_fit(name, shape, message):
    session, feeds = own(feeds={**inputs(), name: np.zeros(shape, "f4")}, score_mod="2 * score")
    with pytest.raises(Exception, match=message):
        session.run(None, feeds)


def test_a_mask_mod_of_ones_own():
    """The operator has mask_mod as well, which ONNX's lacks; a tensor of bool and one of bytes are taken."""
    rng = np.random.default_rng(4)
    seen, add = rng.integers(0, 2, (B, KV)).astype(bool), rng.integers(-3, 4, (Q,)).astype(np.int8)
    seen[:, 0] = True
    session, feeds = own({"seen": seen, "add": add}, mask_mod="seen[b, kv]", score_mod="score + add[q] * kv / 8",
                         tensors="seen:bool[b, kv], add:i8[q]")
    got, = session.run(None, feeds)
    scores = np.einsum("bhqd,bhkd->bhqk", feeds["Q"], feeds["K"].repeat(H // 2, 1)) / 4
    scores = scores + add[:, None] * np.arange(KV) / 8
    scores = np.where(seen[:, None, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdims=True), feeds["V"].repeat(H // 2, 1))
    np.testing.assert_allclose(got, wanted, atol=3e-6)
