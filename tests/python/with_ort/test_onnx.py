"""ONNX's own cases of FlexAttention by attune, and subgraphs that they do not have."""

import attune
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
helper, TensorProto = onnx.helper, onnx.TensorProto
if not any(schema.name == "FlexAttention" for schema in onnx.defs.get_all_schemas()):
    pytest.skip("this onnx has no FlexAttention", allow_module_level=True)

import attune.onnx  # noqa: E402
from onnx.backend.test.case.node import collect_testcases  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

CASES = {case.name: case for case in collect_testcases("FlexAttention")}
SHAPE = B, H, Q, KV = 2, 4, 9, 13
TOLERANCE = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-12}


@pytest.mark.parametrize("name", sorted(CASES))
def test_own_case(name):
    case = CASES[name]
    evaluator = attune.onnx.evaluator(case.model)
    for inputs, outputs in case.data_sets:
        got = evaluator.run(None, dict(zip(evaluator.input_names, inputs)))
        assert len(got) == len(outputs) == 1
        assert got[0].dtype == outputs[0].dtype and got[0].shape == outputs[0].shape
        np.testing.assert_allclose(got[0], outputs[0], atol=TOLERANCE[str(outputs[0].dtype)], rtol=0)


def test_there_are_cases():
    assert sum("expanded" not in name for name in CASES) >= 11


def make_graph(nodes, constants=(), output="out"):
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", "H", "L", "S"]) for name in ("x", output)]
    tensors = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in dict(constants).items()]
    return helper.make_graph([helper.make_node(*node[:3], **(node[3] if len(node) > 3 else {})) for node in nodes],
                             "mod", value[:1], value[1:], tensors)


COUNTED = [
    ("Shape", ["x"], ["shape"]), ("Gather", ["shape", "2"], ["L"]), ("Gather", ["shape", "3"], ["S"]),
    ("Range", ["0", "L", "1"], ["rows"]), ("Unsqueeze", ["rows", "axis"], ["i"]), ("Range", ["0", "S", "1"], ["j"]),
]
NUMBERS = {str(i): np.int64(i) for i in range(4)}
NUMBERS["axis"] = np.array([1])
SLOPES = np.linspace(0.1, 0.5, H, dtype="f4").reshape(H, 1, 1)
TABLE = np.random.default_rng(3).standard_normal(2 * KV).astype("f4")
DOCUMENTS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 4, 5, 5])

GRAPHS = {
    "alibi": ([*COUNTED, ("Sub", ["j", "i"], ["d"]), ("Cast", ["d"], ["f"], {"to": TensorProto.FLOAT}),
               ("Mul", ["f", "slopes"], ["bias"]), ("Add", ["x", "bias"], ["out"])], {**NUMBERS, "slopes": SLOPES}),
    "window": ([*COUNTED, ("Sub", ["i", "j"], ["d"]), ("Abs", ["d"], ["a"]), ("LessOrEqual", ["a", "3"], ["near"]),
                ("GreaterOrEqual", ["i", "j"], ["past"]), ("And", ["near", "past"], ["seen"]),
                ("Where", ["seen", "x", "low"], ["out"])], {**NUMBERS, "low": np.float32(-np.inf)}),
    "table": ([*COUNTED, ("Sub", ["j", "i"], ["d"]), ("Add", ["d", "3"], ["at"]), ("Gather", ["table", "at"], ["bias"]),
               ("Add", ["x", "bias"], ["out"])], {**NUMBERS, "table": TABLE}),
    "documents": ([("Slice", ["doc", "0s", "9s"], ["dq"]), ("Unsqueeze", ["dq", "axis"], ["i"]),
                   ("Equal", ["i", "doc"], ["same"]), ("Not", ["same"], ["other"]),
                   ("Cast", ["other"], ["far"], {"to": TensorProto.FLOAT}), ("Mul", ["far", "low"], ["bias"]),
                   ("Add", ["x", "bias"], ["out"])],
                  {"doc": DOCUMENTS, "0s": np.array([0]), "9s": np.array([Q]), "axis": np.array([1]),
                   "low": np.float32(-20)}),
    "trilu": ([("Shape", ["x"], ["s"], {"start": 2}), ("ConstantOfShape", ["s"], ["none"],
               {"value": helper.make_tensor("v", TensorProto.FLOAT, [1], [-9.0])}),
               ("Trilu", ["none", "1"], ["bias"]), ("Add", ["x", "bias"], ["out"])], NUMBERS),
    "cap": ([("Div", ["x", "cap"], ["a"]), ("Tanh", ["a"], ["t"]), ("Mul", ["t", "cap"], ["out"])],
            {"cap": np.float32(2)}),
    "clip": ([("Clip", ["x", "low", "high"], ["c"]), ("Pow", ["c", "2"], ["p"]), ("Sqrt", ["p"], ["out"])],
             {"low": np.float32(-0.5), "high": np.float32(0.25), "2": np.float32(2)}),
    "blocks": ([*COUNTED, ("Div", ["i", "3"], ["bi"]), ("Div", ["j", "3"], ["bj"]), ("Mod", ["j", "2"], ["odd"]),
                ("Sub", ["bi", "bj"], ["d"]), ("Div", ["d", "2"], ["half"]), ("Add", ["half", "odd"], ["sum"]),
                ("Cast", ["sum"], ["f"], {"to": TensorProto.FLOAT}), ("Add", ["x", "f"], ["out"])], NUMBERS),
}


def node_model(**graphs):
    node = helper.make_node("FlexAttention", ["Q", "K", "V"], ["Y"], domain="ai.onnx.preview", **graphs)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "QKVY"]
    return helper.make_model(helper.make_graph([node], "g", values[:3], values[3:]),
                             opset_imports=[helper.make_opsetid("", 26), helper.make_opsetid("ai.onnx.preview", 1)])


@pytest.mark.parametrize("what", ["score_mod", "prob_mod"])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_as_the_reference(name, what):
    if name == "window" and what == "prob_mod":
        pytest.skip("a probability of -infinity")
    rng = np.random.default_rng(1)
    inputs = {key: rng.standard_normal((B, heads, rows, 16)).astype("f4")
              for key, heads, rows in (("Q", H, Q), ("K", 2, KV), ("V", 2, KV))}
    model = node_model(**{what: make_graph(*GRAPHS[name])})
    wanted = ReferenceEvaluator(model).run(None, inputs)[0]
    np.testing.assert_allclose(attune.onnx.evaluator(model).run(None, inputs)[0], wanted, atol=3e-5, rtol=1e-5)


def test_positions_stay_positions():
    """A mask of positions is no tensor: what it hides is found out, and skipped."""
    causal = make_graph([*COUNTED, ("GreaterOrEqual", ["i", "j"], ["m"]), ("Where", ["m", "x", "low"], ["out"])],
                        {**NUMBERS, "low": np.float32(-np.inf)})
    assert attune.onnx.function_text(causal, "score_mod", SHAPE) == {
        "text": "select(q >= kv, score, -inf)", "tensors": {}, "tensor": ""}


@pytest.mark.parametrize("graph, message", [
    (make_graph([("Softmax", ["x"], ["out"])]), "score_mod: Softmax cannot become a function: there are Abs, Add"),
    (make_graph([("Add", ["x", "elsewhere"], ["out"])]), "score_mod: 'elsewhere' is computed outside of the subgraph"),
    (make_graph([("Transpose", ["x"], ["t"], {"perm": [0, 1, 3, 2]}), ("Reshape", ["t", "s"], ["out"])],
                {"s": np.array(SHAPE)}), "a score other than the one at hand"),
    (make_graph([("Add", ["x", "y"], ["out"])], {"y": np.ones(5, "f4")}), r"do not broadcast"),
    (make_graph([("Identity", ["x"], ["y"])]), "nothing computes the subgraph's output 'out'"),
    (make_graph([("Pow", ["x", "x"], ["out"])]), "Pow with an exponent that is no constant"),
])
def test_refusals(graph, message):
    with pytest.raises(attune.Error, match=message):
        attune.onnx.function_text(graph, "score_mod", SHAPE)


def test_wrong_shapes():
    q = np.zeros((2, 4, 8), "f4")
    with pytest.raises(attune.Error, match="q has 3 dims; FlexAttention takes 4"):
        attune.onnx.flex_attention(q, q, q)
    q = np.zeros((1, 2, 4, 8), "f4")
    with pytest.raises(attune.Error, match="softmax_precision is 7; it must be that of a float type"):
        attune.onnx.flex_attention(q, q, q, softmax_precision=7)
