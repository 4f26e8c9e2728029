"""attune.causal_conv beside NumPy in f64: layouts, types, ragged batches and states by index."""

import numpy as np
import pytest

import attune

RNG = np.random.default_rng(11)


def reference(x, weights, bias=None, state=None, silu=False, dilation=1):
    """[batch, length, channels], in f64: out and the new state."""
    taps = weights.shape[1]
    kept = (taps - 1) * dilation
    before = np.zeros((x.shape[0], kept, x.shape[2])) if state is None else state.astype("f8")
    line = np.concatenate([before, x.astype("f8")], 1)
    out = np.zeros(x.shape)
    for i in range(taps):
        out += line[:, i * dilation:i * dilation + x.shape[1]] * weights[:, i].astype("f8")
    if bias is not None:
        out += bias.astype("f8")
    return out / (1 + np.exp(-out)) if silu else out, line[:, line.shape[1] - kept:]


def draw(batch=2, length=21, channels=35, taps=4, dtype="f4"):
    x, weights = RNG.standard_normal((batch, length, channels)), RNG.standard_normal((channels, taps))
    return x.astype(dtype), weights.astype(dtype)


@pytest.mark.parametrize("silu, dilation, taps", [(False, 1, 4), (True, 2, 3), (True, 1, 1)])
@pytest.mark.parametrize("dtype, tolerance", [("f4", 1e-5), ("f2", 1e-2)])
@pytest.mark.parametrize("by_channels", [False, True])
def test_values(silu, dilation, taps, dtype, tolerance, by_channels):
    x, weights = draw(taps=taps, dtype=dtype)
    bias = RNG.standard_normal(35).astype(dtype)
    state = RNG.standard_normal((2, (taps - 1) * dilation, 35)).astype(dtype)
    wanted, after = reference(x, weights, bias, state, silu, dilation)
    if by_channels:
        x = x.transpose(0, 2, 1).copy().transpose(0, 2, 1)
    out, given = attune.causal_conv(x, weights, bias=bias, state=state, has_silu=silu, dilation=dilation)
    assert given is state and out.dtype == dtype
    np.testing.assert_allclose(out, wanted, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(state, after)


def test_two_steps_without_a_state():
    x, weights = draw()
    whole, end = attune.causal_conv(x, weights)
    first, state = attune.causal_conv(x[:, :20].copy(), weights)
    last, state = attune.causal_conv(x[:, 20:].copy(), weights, state=state)
    assert np.array_equal(np.concatenate([first, last], 1), whole) and np.array_equal(state, end)


@pytest.mark.parametrize("by_channels", [False, True])
def test_ragged_and_states_by_index(by_channels):
    """The same bits as one by one, and other states are left alone."""
    x, weights = draw(batch=1, length=31)
    states = RNG.standard_normal((5, 3, 35)).astype("f4")
    before, starts, ids = states.copy(), [0, 7, 7, 8, 31], [4, 2, 0, 1]
    rows = x[0].T.copy().T if by_channels else x[0]
    out, _ = attune.causal_conv(rows, weights, has_silu=True, state=states, cu_seqlens=starts, state_ids=ids)
    for b, slot in enumerate(ids):
        part = slice(starts[b], starts[b + 1])
        one, after = attune.causal_conv(x[:, part], weights, has_silu=True, state=before[slot:slot + 1].copy())
        assert np.array_equal(out[part], one[0]) and np.array_equal(states[slot], after[0])
    assert np.array_equal(states[3], before[3])


@pytest.mark.parametrize("change, sentence", [
    (dict(x=np.zeros((2, 35), "f4")), r"x has the shape \[2, 35\]; it must be \[any, any, any\]"),
    (dict(weights=np.zeros((34, 4), "f4")), r"weights has the shape \[34, 4\]; it must be \[35, any\]"),
    (dict(weights=np.zeros((35, 4), "f2")), "weights is float16; it must be f32"),
    (dict(weights=np.zeros((4, 35), "f4").T), "weights is not contiguous"),
    (dict(bias=np.zeros(34, "f4")), r"bias has the shape \[34\]; it must be \[35\]"),
    (dict(state=np.zeros((2, 4, 35), "f4")), r"state has the shape \[2, 4, 35\]; it must be \[2, 3, 35\]"),
    (dict(state=np.zeros((2, 3, 35), "f4"), state_ids=[1, 1]), r"state_ids\[1\] is 1, which another sequence has, too"),
    (dict(state=np.zeros((2, 3, 35), "f4"), state_ids=[0, 2]), r"state_ids\[1\] is 2; there are states from 0 to 1"),
    (dict(dilation=65), "dilation is 65"),
    (dict(out=np.zeros((2, 21, 36), "f4")), r"out has the shape \[2, 21, 36\]; it must be \[2, 21, 35\]"),
    (dict(x=np.zeros((21, 35), "f4"), cu_seqlens=[0, 22]), "cu_seqlens ends beyond the 21 tokens of x"),
    (dict(x=np.zeros((21, 35), "f4"), cu_seqlens=[0, 9, 8]), "it must rise from 0"),
])
def test_refusals(change, sentence):
    x, weights = draw()
    with pytest.raises((attune.InvalidArgumentError, ValueError), match=sentence):
        attune.causal_conv(**(dict(x=x, weights=weights) | change))
