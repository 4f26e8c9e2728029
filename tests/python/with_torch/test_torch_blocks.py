"""attune::block_shares, the estimate of attune.blocks, under torch.compile and torch.export."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 10):
    pytest.skip("attune.torch needs PyTorch 2.10", allow_module_level=True)

import attune.blocks
import attune.torch  # noqa: F401  defines the operator

block_shares = torch.ops.attune.block_shares


def draw(dtype=torch.float32):
    torch.manual_seed(3)
    return torch.randn(2, 4, 96, 32).to(dtype), torch.randn(2, 2, 100, 32).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values(dtype):
    q, k = draw(dtype)
    shares = block_shares(q, k, 32, 8)
    assert shares.dtype == torch.float32 and shares.shape == (2, 4, 3, 4)
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 4, 3))
    own = attune.blocks.scores(q, k, block_size=32, stride=8, max_threads=1)
    assert np.array_equal(shares.numpy(), own.numpy())


def test_the_schema_and_the_fake_agree():
    tests = "test_schema", "test_faketensor"
    torch.library.opcheck(block_shares, (*draw(), 32, 8), test_utils=tests)
    q, k = draw()
    torch.library.opcheck(block_shares, (q, k[:, :, :96], 32, 4, True, 0.2), test_utils=tests)


def test_it_stays_in_exported_graphs():
    class Estimate(torch.nn.Module):
        def forward(self, q, k):
            return block_shares(q, k, 32, 8).argmax(-1)

    exported = torch.export.export(Estimate(), draw())
    assert any("block_shares" in str(node.target) for node in exported.graph.nodes)
    assert torch.equal(exported.module()(*draw()), Estimate()(*draw()))


def test_bad_input_is_named():
    q, k = draw()
    with pytest.raises(attune.InvalidArgumentError, match="stride is 5"):
        block_shares(q, k, 32, 5)
