"""What attune does not compute: the execution provider leaves such nodes to ONNX Runtime, and custom operators refuse
the session in a sentence that names the node. Calls that are not sound are errors, never crashes."""

import numpy as np
import onnxruntime
import ort_support as support
import pytest
from onnx import TensorProto
from test_ort_blocks import Block, X
from test_ort_group_query import CASES as GROUP_QUERY
from test_ort_group_query import HEADS, KV_HEADS, inputs, make, outputs
from test_ort_multi_head import CASES as MULTI_HEAD
from test_ort_multi_head import inputs as multi_head_inputs

LEFT = {
    "qk_output": {"qk_output": 2, "num_outputs": 4},
    "window_of_none": {"local_window_size": 0},
}


def multi_head(given, **attributes):
    return support.model("MultiHeadAttention", given, {"output": TensorProto.FLOAT}, domain="com.microsoft",
                         num_heads=3, **attributes)


def group_query(given, num_outputs=3, **attributes):
    names = outputs() | ({"output_qk": TensorProto.FLOAT} if num_outputs == 4 else {})
    return support.model("GroupQueryAttention", given, names, domain="com.microsoft", num_heads=HEADS,
                         kv_num_heads=KV_HEADS, do_rotary=1, **attributes)


@pytest.mark.parametrize("name", LEFT)
def test_provider_leaves_the_node(name):
    given, _ = GROUP_QUERY["prompt"]
    model = group_query(given, **LEFT[name])
    before = support.ran("GroupQueryAttention")
    got = support.session(model, "ep").run(None, support.feeds(given))
    assert support.ran("GroupQueryAttention") == before
    for have, wanted in zip(got, support.session(model).run(None, support.feeds(given))):
        np.testing.assert_array_equal(have, wanted)


@pytest.mark.parametrize("name", LEFT)
def test_ops_refuse_the_session(name):
    given, _ = GROUP_QUERY["prompt"]
    with pytest.raises(Exception, match=r"attune cannot compute node 'the_node' \(GroupQueryAttention\): \w+"):
        support.session(group_query(given, **LEFT[name]), "ops")


def test_output_of_scores_stays():
    given, _ = MULTI_HEAD["plain"]
    names = {"output": TensorProto.FLOAT, "present_key": TensorProto.FLOAT, "present_value": TensorProto.FLOAT,
             "qk": TensorProto.FLOAT}
    model = support.model("MultiHeadAttention", given, names, domain="com.microsoft", num_heads=3)
    before = support.ran("MultiHeadAttention")
    got = support.session(model, "ep").run(None, support.feeds(given))
    assert support.ran("MultiHeadAttention") == before
    assert len(got) == 4
    with pytest.raises(Exception, match="'the_node'.*the output qk"):
        support.session(model, "ops")


MULTI_HEAD_LEFT = {
    "filter": ("prefix", {"mask_filter_value": -1.0}, "mask_filter_value is -1; with a key_padding_mask"),
    "no_filter": ("holes", {"mask_filter_value": 0.0}, "mask_filter_value is 0; with a key_padding_mask"),
    "causality": ("plain", {"unidirectional": 2}, "unidirectional is 2; it must be 0 or 1"),
}


@pytest.mark.parametrize("name", MULTI_HEAD_LEFT)
def test_numbers_that_mean_something_else(name):
    case, attributes, sentence = MULTI_HEAD_LEFT[name]
    given, _ = MULTI_HEAD[case]
    model = multi_head(given, **attributes)
    before = support.ran("MultiHeadAttention")
    got = support.session(model, "ep").run(None, support.feeds(given))
    assert support.ran("MultiHeadAttention") == before
    np.testing.assert_array_equal(got[0], support.session(model).run(None, support.feeds(given))[0])
    with pytest.raises(Exception, match=sentence):
        support.session(model, "ops")


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("value", (-1000.0, -3e38))
def test_masks_that_hide_entirely(value, entry):
    given, _ = MULTI_HEAD["holes"]
    model = multi_head(given, mask_filter_value=value)
    before = support.ran("MultiHeadAttention")
    support.session(model, entry).run(None, support.feeds(given))
    assert support.ran("MultiHeadAttention") == before + 1


def test_a_long_text_is_not_a_missing_one():
    given, _ = GROUP_QUERY["prompt"]
    with pytest.raises(Exception, match="k_quant_type is a long text"):
        support.session(group_query(given, k_quant_type="PER_CHANNEL_OF_BLOCKS"), "ops")


BAD = {
    "total_too_small": ("prompt", {"total_sequence_length": np.array([3], np.int32)}, "total_sequence_length is 3"),
    "total_too_large": ("token", {"total_sequence_length": np.array([60], np.int32)},
                        "total_sequence_length is 60; there are 12 keys in the past and 1 new ones"),
    "lengths_negative": ("token", {"seqlens_k": np.array([-5], np.int32)}, r"seqlens_k\[0\] is -5"),
    "lengths_too_large": ("token", {"seqlens_k": np.array([1000], np.int32)}, r"seqlens_k\[0\] is 1000"),
    "lengths_of_others": ("prompt", {"seqlens_k": np.array([8, 8, 8], np.int32)}, "seqlens_k must be"),
    "width": ("prompt", {"query": np.zeros((2, 9, 130), np.float32)}, "query has 130 columns"),
    "key_rows": ("prompt", {"key": np.zeros((2, 8, 64), np.float32)}, r"key is of shape \[2, 8, 64\]"),
    "past_heads": ("token", {"past_key": np.zeros((1, 3, 12, 32), np.float32)}, "past_key is of shape"),
    "past_lengths": ("token", {"past_value": np.zeros((1, 2, 11, 32), np.float32)}, "past_value is of shape"),
    "few_positions": ("prompt", dict.fromkeys(("cos_cache", "sin_cache"), np.zeros((4, 16), np.float32)),
                      "cos_cache is of shape"),
    "tables_of_other_widths": ("prompt", {"sin_cache": np.zeros((64, 8), np.float32)}, "sin_cache is of shape"),
    "positions": ("positions", {"position_ids": np.array([[64], [3]], np.int64)}, "a position is 64"),
    "negative_position": ("positions", {"position_ids": np.array([[-1], [3]], np.int64)}, "a position is -1"),
    "bias": ("attention_bias", {"attention_bias": np.zeros((2, 4, 9, 8), np.float32)}, "attention_bias is of shape"),
    "sink": ("sink", {"head_sink": np.zeros(3, np.float32)}, "head_sink is of shape"),
}


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name, entry):
    case, wrong, sentence = BAD[name]
    given, attributes = GROUP_QUERY[case]
    session = support.session(make(given, attributes), entry)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match=sentence) as caught:
        session.run(None, support.feeds(given | wrong))
    assert "node 'the_node' (GroupQueryAttention)" in str(caught.value)
    session.run(None, support.feeds(given))  # the session lives on


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_no_memory_for_an_output(entry):
    """Scores of 2^46 bytes: ONNX Runtime throws through attune."""
    given = {name: np.zeros((1, 1, 9, 1), np.float32) for name in ("Q", "K", "V")}
    names = [("Y", TensorProto.FLOAT), ("", 0), ("", 0), ("scores", TensorProto.FLOAT)]
    session = support.session(support.model("Attention", given, names, opset=23), entry)
    with pytest.raises(Exception, match="llocat|memory"):
        session.run(None, {name: np.zeros((1, 1, 2**22, 1), np.float32) for name in given})
    session.run(None, given)


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_bad_masks(entry):
    given, attributes = MULTI_HEAD["prefix"]
    model = support.model("MultiHeadAttention", given, {"output": TensorProto.FLOAT}, domain="com.microsoft",
                          num_heads=3)
    session = support.session(model, entry)
    with pytest.raises(Exception, match="key_padding_mask is of shape"):
        session.run(None, support.feeds(given | {"key_padding_mask": np.ones((2, 6), np.int32)}))


FOUR_DIMS = np.zeros((2, 3, 9, 16), np.float32)
MIXTURES = {
    "value": (multi_head_inputs(keys=9, value=FOUR_DIMS), "key has 3 dims and value 4; both must have 3 or 4"),
    "key": (multi_head_inputs(keys=9, key=FOUR_DIMS), "key has 4 dims and value 3; both must have 3 or 4"),
}


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("has_bias", (False, True))
@pytest.mark.parametrize("name", MIXTURES)
def test_keys_and_values_of_other_dims(name, has_bias, entry):
    """The bias of the values would be added to rows that the tensor does not have."""
    given, sentence = MIXTURES[name]
    given = given | {"bias": np.ones(3 * 48, np.float32) if has_bias else None}
    with pytest.raises(Exception, match=sentence):
        support.session(multi_head(given), entry).run(None, support.feeds(given))


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_causality_with_more_keys_than_queries(entry):
    """Stock shows the last query all keys, and the others no more than if keys were as few as queries."""
    given = multi_head_inputs(queries=5, keys=9)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented, match="5 queries and 9 new keys"):
        support.session(multi_head(given, unidirectional=1), entry).run(None, support.feeds(given))


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_masks_of_lengths_and_starts(entry):
    given = MULTI_HEAD["prefix"][0] | {"key_padding_mask": STARTS}
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented, match=r"\[3 \* batch \+ 2\]"):
        support.session(multi_head(given), entry).run(None, support.feeds(given))


STARTS = np.array([7, 4, 0, 7, 14, 0, 7, 14], np.int32)
PACKED = {"query": np.random.default_rng(3).standard_normal((2, 7, 3, 3, 16), dtype=np.float32)}
KNOWN = {
    "causality": (multi_head_inputs(queries=5, keys=9), {"unidirectional": 1}, "5 queries and 9 new keys"),
    "starts": (multi_head_inputs(key_padding_mask=STARTS), {}, r"key_padding_mask is of shape \[8\] for a batch of 2"),
    "packed": (PACKED, {}, "packed into one input"),
}


def outcome(session, given):
    """What a run gives, or the error that it is: some of these ONNX Runtime's own kernel refuses as well."""
    try:
        return session.run(None, support.feeds(given))[0]
    except onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException as error:
        return str(error)
    except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument as error:
        return str(error)


@pytest.mark.parametrize("name", KNOWN)
def test_shapes_that_the_model_tells(name):
    """What a call would refuse is left to stock before, or the session is refused."""
    given, attributes, sentence = KNOWN[name]
    model = multi_head(given, is_fixed=True, **attributes)
    with pytest.raises(Exception, match=sentence):
        support.session(model, "ops")
    before = support.ran("MultiHeadAttention")
    np.testing.assert_array_equal(outcome(support.session(model, "ep"), given), outcome(support.session(model), given))
    assert support.ran("MultiHeadAttention") == before


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_empty_batch(entry):
    """No queries: an empty result, as of stock ONNX Runtime."""
    given, attributes = MULTI_HEAD["plain"]
    model = support.model("MultiHeadAttention", given, {"output": TensorProto.FLOAT}, domain="com.microsoft",
                          num_heads=3)
    empty = {name: array[:0] for name, array in support.feeds(given).items()}
    assert support.session(model, entry).run(None, empty)[0].shape == (0, 7, 48)


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_cut_model(entry):
    given, attributes = GROUP_QUERY["prompt"]
    with pytest.raises(Exception):
        support.session(make(given, attributes)[:-40], entry)


def damaged(model, count):
    """Copies of a model with one byte changed each, at places drawn at random."""
    random = np.random.default_rng(1)
    for _ in range(count):
        at = int(random.integers(len(model)))
        yield model[:at] + bytes([model[at] ^ int(random.integers(1, 256))]) + model[at + 1:]


def outcome_of(model, entry, given):
    """Values, or an exception: both are fine."""
    try:
        return support.session(model, entry).run(None, given)[0]
    except Exception as error:
        return error


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_damaged_nodes(entry):
    """Names, types, attributes and dims: ONNX Runtime's errors or attune's sentences, never a crash."""
    given, attributes = GROUP_QUERY["prompt"]
    model = make(given, attributes)
    outcomes = [outcome_of(bad, entry, support.feeds(given)) for bad in damaged(model, 120)]
    assert any(isinstance(each, Exception) for each in outcomes)


def test_damaged_blocks():
    """What the provider finds in a damaged graph is what stock computes there, or nothing."""
    block = Block()
    model = block.model(block.usual())
    graph = model[:model.index(b"constant_0")]  # nodes come before weights
    different = 0
    for bad in damaged(graph, 300):
        ours, stock = (outcome_of(bad + model[len(graph):], entry, X) for entry in ("ep", None))
        if isinstance(stock, np.ndarray):
            assert isinstance(ours, np.ndarray), ours
            np.testing.assert_allclose(ours, stock, rtol=1e-4, atol=1e-4)
        different += isinstance(stock, Exception)
    assert different


