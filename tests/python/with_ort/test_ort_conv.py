"""CausalConvWithState, ONNX's (opset 27) and com.microsoft's: by the execution provider and by custom operators, beside
ONNX's reference evaluator, stock ONNX Runtime, and a loop in NumPy with f64."""

import ml_dtypes
import numpy as np
import onnxruntime
import ort_support as support
import pytest
from onnx import TensorProto, load_model_from_string
from onnx.reference import ReferenceEvaluator

OPERATORS = {"": "CausalConvWithState", "com.microsoft": "com.microsoft.CausalConvWithState"}
TOLERANCE = {np.float32: 1e-5, np.float16: 4e-3}


def inputs(batch=2, channels=21, tokens=7, taps=4, dilation=1, bias=True, past=True, last=None, dtype=np.float32):
    """last: the dims of a channel where channels are the last dims."""
    rng = np.random.default_rng(tokens)
    kept, dims = (taps - 1) * dilation, last or (channels,)

    def draw(*shape):
        return rng.standard_normal(shape).astype(dtype)

    def rows(count):
        return draw(batch, count, *dims) if last else draw(batch, channels, count)

    channels = int(np.prod(dims))
    return {"input": rows(tokens), "weight": draw(channels, 1, taps), "bias": draw(channels) if bias else None,
            "past_state": rows(kept) if past else None}


def make(given, domain="com.microsoft", **attributes):
    kind = support.TYPES[given["input"].dtype]
    return support.model("CausalConvWithState", given, {"output": kind, "present_state": kind}, domain=domain, opset=27,
                         **attributes)


def loop(given, activation="none", dilation=1, channels_last=0):
    x, weight, bias, past = (None if array is None else array.astype(np.float64) for array in given.values())
    shape, kept = x.shape, (weight.shape[2] - 1) * dilation
    if channels_last:
        x = x.reshape(*shape[:2], -1).swapaxes(1, 2)
        past = past if past is None else past.reshape(shape[0], kept, -1).swapaxes(1, 2)
    past = np.zeros((*x.shape[:2], kept)) if past is None else past
    line = np.concatenate([past, x], 2)
    out = sum(weight[:, :, i] * line[:, :, i * dilation: i * dilation + x.shape[2]] for i in range(weight.shape[2]))
    out = out + (0 if bias is None else bias[:, None])
    out = out / (1 + np.exp(-out)) if activation != "none" else out
    present = line[:, :, line.shape[2] - kept:]
    if channels_last:
        out = out.swapaxes(1, 2).reshape(shape)
        present = present.swapaxes(1, 2).reshape(shape[0], kept, *shape[2:])
    return out, present


def run(model, given, entry, domain="com.microsoft"):
    before = support.ran(OPERATORS[domain])
    got = support.session(model, entry).run(None, support.feeds(given))
    assert support.ran(OPERATORS[domain]) == before + (entry is not None)
    return got


def compare(have, wanted, tolerance=1e-5):
    for one, other in zip(have, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=tolerance, atol=tolerance)


CASES = {
    "prompt": (dict(tokens=70), dict(activation="silu")),
    "token": (dict(tokens=1), dict(activation="swish")),
    "without_past": (dict(past=False), dict(activation="none")),
    "without_bias": (dict(bias=False, tokens=2), dict()),
    "one_tap": (dict(taps=1), dict(activation="silu")),
    "nothing": (dict(tokens=0), dict(activation="silu")),
}
MORE = {
    "dilation": (dict(dilation=3), dict(dilation=3)),
    "channels_last": (dict(last=(21,)), dict(channels_last=1, activation="silu")),
    "channels_of_two_dims": (dict(last=(3, 8)), dict(channels_last=1)),
}


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("domain", OPERATORS)
@pytest.mark.parametrize("name", CASES)
def test_cases(name, domain, entry):
    sizes, attributes = CASES[name]
    given = inputs(**sizes)
    compare(run(make(given, domain, **attributes), given, entry, domain), loop(given, **attributes))


@pytest.mark.parametrize("name", MORE)
def test_more_of_com_microsoft(name):
    sizes, attributes = MORE[name]
    given = inputs(**sizes)
    compare(run(make(given, **attributes), given, "ep"), loop(given, **attributes))


@pytest.mark.parametrize("name", [name for name in CASES | MORE if name != "nothing"])
def test_like_stock(name):
    """Stock has kernels of f32 for com.microsoft's."""
    sizes, attributes = (CASES | MORE)[name]
    given = inputs(**sizes)
    model = make(given, **attributes)
    compare(run(model, given, "ep"), support.session(model).run(None, support.feeds(given)))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", [name for name in CASES if name != "nothing"])
def test_like_onnx_reference(name, dtype):
    sizes, attributes = CASES[name]
    given = inputs(**sizes, dtype=dtype)
    model = make(given, "", **attributes)
    wanted = ReferenceEvaluator(load_model_from_string(model)).run(None, support.feeds(given))
    compare(run(model, given, "ep", ""), wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_bfloat16(entry):
    given = inputs()
    rounded = {name: array.astype(ml_dtypes.bfloat16).astype(np.float32) for name, array in given.items()}
    model = support.within(make(given, activation="silu"), TensorProto.BFLOAT16)
    compare(run(model, rounded, entry), loop(rounded, "silu"), 2e-2)


def test_cuts_have_the_same_bits():
    given = inputs(tokens=70)
    session = support.session(make(given, activation="silu"), "ep")
    out, state = session.run(None, support.feeds(given))
    parts, now = [], given["past_state"]
    for cut in slice(0, 1), slice(1, 40), slice(40, 70):
        found, now = session.run(None, given | {"input": given["input"][:, :, cut], "past_state": now})
        parts.append(found)
    np.testing.assert_array_equal(np.concatenate(parts, 2), out)
    np.testing.assert_array_equal(now, state)


def test_in_place():
    given = inputs(tokens=2)
    session = support.session(make(given), "ep")
    wanted = session.run(None, support.feeds(given))
    state = onnxruntime.OrtValue.ortvalue_from_numpy(given["past_state"].copy())
    binding = session.io_binding()
    for name in ("input", "weight", "bias"):
        binding.bind_cpu_input(name, given[name])
    binding.bind_ortvalue_input("past_state", state)
    binding.bind_output("output")
    binding.bind_ortvalue_output("present_state", state)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), wanted[0])
    np.testing.assert_array_equal(state.numpy(), wanted[1])


def test_refusals():
    for attributes, sentence in ((dict(activation="gelu"), "activation is gelu, which attune does not know"),
                                 (dict(ndim=2), "ndim is 2; attune computes it with 1 only"),
                                 (dict(dilation=100), "dilation is 100; attune computes 1 to 64")):
        with pytest.raises(Exception, match=f"'the_node' .CausalConvWithState.: {sentence}"):
            support.session(make(inputs(), **attributes), "ops")


BAD = {
    "past_state": ((2, 21, 2), r"past_state is of shape \[2, 21, 2\]; it must be of shape \[2, 21, 3\]"),
    "weight": ((20, 1, 4), r"weight is of shape \[20, 1, 4\]; it must be of shape \[21, 1, any\]"),
    "bias": ((20,), r"bias is of shape \[20\]; it must be of shape \[21\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shapes(name):
    shape, sentence = BAD[name]
    given = inputs()
    with pytest.raises(Exception, match=f"attune, node 'the_node' .CausalConvWithState.: {sentence}"):
        support.session(make(given), "ep").run(None, given | {name: np.zeros(shape, np.float32)})


@pytest.mark.parametrize("taps", (0, 65))
@pytest.mark.parametrize("entry", ("ep", "ops"))
def test_numbers_of_taps(entry, taps):
    given = inputs(past=False)
    with pytest.raises(Exception, match=f"weight has {taps} taps; attune computes 1 to 64"):
        support.session(make(given), entry).run(
            None, support.feeds(given) | {"weight": np.zeros((21, 1, taps), np.float32)})
