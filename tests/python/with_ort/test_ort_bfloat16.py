"""Types that ONNX Runtime's own kernels lack: models whose floats are bfloat16, beside the same in f32."""

import numpy as np
import ort_support as support
import pytest
from onnx import TensorProto
from test_ort_group_query import CASES as GROUP_QUERY
from test_ort_group_query import make as make_group_query
from test_ort_multi_head import CASES as MULTI_HEAD
from test_ort_multi_head import OUTPUTS


def attention():
    given = {name: np.random.default_rng(len(name)).standard_normal((2, 4, 9, 16), dtype=np.float32) for name in "QKV"}
    return support.model("Attention", given, {"Y": TensorProto.FLOAT}, opset=23, is_causal=1), given


def multi_head(name):
    given, attributes = MULTI_HEAD[name]
    model = support.model("MultiHeadAttention", given, OUTPUTS, domain="com.microsoft", num_heads=3, **attributes)
    return model, given


def group_query(name):
    given, attributes = GROUP_QUERY[name]
    return make_group_query(given, attributes), given


MODELS = {
    "Attention": attention(),
    "MultiHeadAttention": multi_head("past"),
    "MultiHeadAttention, mask": multi_head("holes"),
    "GroupQueryAttention": group_query("prompt"),
    "GroupQueryAttention, tokens": group_query("tokens_of_other_lengths"),
    "GroupQueryAttention, sink": group_query("sink"),
}


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("name", MODELS)
def test_bfloat16(name, entry):
    model, given = MODELS[name]
    op = name.partition(",")[0]
    before = support.ran(op)
    got = support.session(support.within(model, TensorProto.BFLOAT16), entry).run(None, support.feeds(given))
    assert support.ran(op) == before + 1
    for have, wanted in zip(got, support.session(model).run(None, support.feeds(given))):
        assert np.abs(have - wanted).max() <= 3e-2 * np.abs(wanted).max()


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_double(entry):
    model, given = MODELS["Attention"]
    got = support.session(support.within(model, TensorProto.DOUBLE), entry).run(None, support.feeds(given))
    wanted = support.session(model).run(None, support.feeds(given))
    np.testing.assert_allclose(got[0], wanted[0], rtol=2e-5, atol=2e-6)


def test_a_bias_of_halves_is_refused():
    given, _ = MULTI_HEAD["bias"]
    model = support.model("MultiHeadAttention", given, OUTPUTS, domain="com.microsoft", num_heads=3)
    # Its shapes are known, so the provider leaves the node to ONNX Runtime, which has no kernel for it.
    with pytest.raises(Exception, match="Could not find an implementation for MultiHeadAttention.*'the_node'"):
        support.session(support.within(model, TensorProto.BFLOAT16), "ep")
