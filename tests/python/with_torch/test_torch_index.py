"""attune::index beside torch.topk, under torch.compile and torch.export."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 10):
    pytest.skip("attune.torch needs PyTorch 2.10", allow_module_level=True)

import attune.torch  # noqa: F401  defines the operator

index = torch.ops.attune.index


def draw(dtype=torch.float32, keys=300):
    torch.manual_seed(3)
    q, k, w = torch.randn(2, 5, 8, 32), torch.randn(2, keys, 32), torch.randn(2, 5, 8)
    return q.to(dtype), k.to(dtype), w


def scores_of(q, k, w):
    return torch.einsum("bqh,bqhk->bqk", w, torch.einsum("bqhd,bkd->bqhk", q.float(), k.float()).relu())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values(dtype):
    """The same keys as topk, but for those whose scores are as good as equal."""
    q, k, w = draw(dtype)
    ids, lens = index(q, k, w, 40)
    scores = scores_of(q, k, w)
    assert ids.dtype == lens.dtype == torch.int32 and (lens == 40).all()
    assert (ids[..., 1:] > ids[..., :-1]).all()
    own = scores.gather(-1, ids.long()).sort(-1, descending=True).values
    torch.testing.assert_close(own, scores.topk(40).values, rtol=1e-4, atol=1e-4)


def test_bytes_of_floats():
    """E4M3 with scales of rows, as DeepSeek-V3.2's own index has them."""
    q, k, w = draw()
    scales = [x.abs().amax(-1) / 448 for x in (q, k)]
    q, k = ((x / scale[..., None]).to(torch.float8_e4m3fn) for x, scale in zip((q, k), scales))
    ids, _ = index(q, k, w, 40, q_scale=scales[0], k_scale=scales[1])
    scores = scores_of(q, k, w * scales[0]) * scales[1][:, None]
    own = scores.gather(-1, ids.long()).sort(-1, descending=True).values
    torch.testing.assert_close(own, scores.topk(40).values, rtol=1e-4, atol=1e-4)


def test_causal_and_short_lists():
    q, k, w = draw(keys=20)
    ids, lens = index(q, k, w, 18, is_causal=True)
    assert lens[0].tolist() == [16, 17, 18, 18, 18]
    scores = scores_of(q, k, w).masked_fill(torch.arange(20) > torch.arange(15, 20)[:, None], -torch.inf)
    for i in range(5):
        want = scores[1, i].topk(int(lens[1, i])).indices.sort().values
        assert ids[1, i, : lens[1, i]].tolist() == want.tolist()
        assert (ids[1, i, lens[1, i] :] == -1).all()


def test_the_schema_and_the_fake_agree():
    torch.library.opcheck(index, (*draw(), 7), test_utils=("test_schema", "test_faketensor"))


def test_compile_and_export_keep_it():
    class Layer(torch.nn.Module):
        def forward(self, q, k, w):
            ids, lens = index(q, k, w, 16, is_causal=True)
            return ids * 2, lens

    given = draw()
    want = Layer()(*given)
    compiled = torch.compile(Layer(), backend="aot_eager", fullgraph=True)
    program = torch.export.export(Layer(), given)
    for have in (compiled(*given), program.module()(*given)):
        assert all(torch.equal(a, b) for a, b in zip(have, want))
    assert any("attune.index" in str(node.target) for node in program.graph.nodes)


def test_wrong_calls():
    q, k, w = draw()
    with pytest.raises(attune.Error, match=r"w has the shape \[2, 5, 7\]"):
        index(q, k, w[..., :7], 4)
