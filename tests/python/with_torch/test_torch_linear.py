"""attune::linear_attention and attune::causal_conv: values, torch.compile and torch.export."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 10):
    pytest.skip("attune.torch needs PyTorch 2.10", allow_module_level=True)

import attune.torch  # noqa: F401  defines the operator

linear = torch.ops.attune.linear_attention
HEADS, V_HEADS, DIM, DIM_V = 2, 4, 16, 24


def draw(tokens=7, batch=2, dtype=torch.float32):
    """q, k, v, decay, beta and a state."""
    torch.manual_seed(0)
    q, k = (torch.randn(batch, tokens, HEADS, DIM).to(dtype) for _ in range(2))
    v = torch.randn(batch, tokens, V_HEADS, DIM_V).to(dtype)
    decay, beta = -torch.rand(batch, tokens, V_HEADS), torch.rand(batch, tokens, V_HEADS)
    return q, k / 4, v, decay, beta, torch.randn(batch, V_HEADS, DIM, DIM_V)


def reference(q, k, v, decay, beta, state):
    """out and the new state, by gated_delta in f64."""
    q, k, v, decay, beta, s = (x.double() for x in (q, k, v, decay, beta, state))
    q, k = (x.repeat_interleave(V_HEADS // HEADS, 2) for x in (q, k))
    out = torch.zeros_like(v)
    for t in range(q.shape[1]):
        s = s * decay[:, t].exp()[..., None, None]
        new = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", s, k[:, t]))
        s = s + torch.einsum("bhk,bhv->bhkv", k[:, t], new)
        out[:, t] = torch.einsum("bhkv,bhk->bhv", s, q[:, t]) / DIM**0.5
    return out, s


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values(dtype):
    given = draw(dtype=dtype)
    want, end = reference(*given)
    out = linear(*given)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(given[-1].double(), end, rtol=1e-5, atol=1e-5)


def test_ragged_with_states_by_index():
    given = draw(tokens=9, batch=1)
    pool = torch.zeros(5, V_HEADS, DIM, DIM_V)
    starts, ids = torch.tensor([0, 4, 9], dtype=torch.int32), torch.tensor([3, 1], dtype=torch.int32)
    out = linear(*(x[0] for x in given[:5]), pool, cu_seqlens=starts, state_ids=ids)
    for first, end, slot in ((0, 4, 3), (4, 9, 1)):
        want, last = reference(*(x[:, first:end] for x in given[:5]), torch.zeros(1, V_HEADS, DIM, DIM_V))
        torch.testing.assert_close(out[first:end].double(), want[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(pool[slot].double(), last[0], rtol=1e-5, atol=1e-5)
    assert not pool[[0, 2, 4]].any()


def test_norm_and_gate_of_out():
    """As transformers' Qwen3NextRMSNormGated after the rule."""
    given, weights, gate = draw(), torch.rand(DIM_V), torch.randn(2, 7, V_HEADS, DIM_V)
    want, _ = reference(*given)
    want = want * torch.rsqrt(want.pow(2).mean(-1, keepdim=True) + 1e-6) * weights * torch.nn.functional.silu(gate)
    out = linear(*given, norm_weights=weights, gate=gate)
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-4)


def test_the_schema_and_the_fake_agree():
    torch.library.opcheck(linear, draw(), test_utils=("test_schema", "test_faketensor"))
    finish = dict(norm_weights=torch.rand(DIM_V), gate=torch.randn(2, 7, V_HEADS, DIM_V), gate_function="sigmoid")
    torch.library.opcheck(linear, draw(), finish, test_utils=("test_schema", "test_faketensor"))


def test_compile_and_export_keep_it():
    class Layer(torch.nn.Module):
        def forward(self, q, k, v, decay, beta, state):
            return linear(q, k, v, decay, beta, state.clone(), qk_norm_eps=1e-6) * 2

    given = draw()
    want = Layer()(*given)
    compiled = torch.compile(Layer(), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*given), want)
    program = torch.export.export(Layer(), given)
    assert torch.equal(program.module()(*given), want)
    assert any("linear_attention" in str(node.target) for node in program.graph.nodes)


def test_wrong_calls():
    q, k, v, decay, beta, state = draw()
    with pytest.raises(attune.Error, match=r"state has the shape \[2, 4, 16, 3\]"):
        linear(q, k, v, decay, beta, state[..., :3])
    with pytest.raises(attune.Error, match="the rule delta has no decay, but decay is head"):
        linear(q, k, v, decay, beta, state, rule="delta")


def conv_reference(x, weights, bias, state):
    """[batch, length, channels] by PyTorch's convolution, with SiLU: out and the new state."""
    line = torch.cat([state, x], 1)
    out = torch.nn.functional.conv1d(line.transpose(1, 2), weights[:, None], bias, groups=x.shape[2])
    return torch.nn.functional.silu(out).transpose(1, 2), line[:, x.shape[1]:]


def test_causal_conv():
    torch.manual_seed(3)
    x, weights, bias, state = torch.randn(2, 9, 20), torch.randn(20, 4), torch.randn(20), torch.randn(2, 3, 20)
    want, end = conv_reference(x, weights, bias, state)
    out = torch.ops.attune.causal_conv(x, weights, bias, state, True)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, end, rtol=0, atol=0)


def test_causal_conv_compiled_with_states_by_index():
    torch.manual_seed(4)
    x, weights, pool = torch.randn(8, 20), torch.randn(20, 4), torch.randn(5, 3, 20)
    starts, ids = torch.tensor([0, 7, 8], dtype=torch.int32), torch.tensor([3, 1], dtype=torch.int32)
    before = pool.clone()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x, pool):
        return torch.ops.attune.causal_conv(x, weights, None, pool, True, cu_seqlens=starts, state_ids=ids) * 2

    out = step(x, pool)
    for first, end, slot in ((0, 7, 3), (7, 8, 1)):
        want, last = conv_reference(x[None, first:end], weights, None, before[slot:slot + 1])
        torch.testing.assert_close(out[first:end], 2 * want[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(pool[slot], last[0], rtol=0, atol=0)
    torch.testing.assert_close(pool[[0, 2, 4]], before[[0, 2, 4]], rtol=0, atol=0)
