"""BlockMasks that were made for other lengths, batches or heads are refused."""

import attune
import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")


def inputs(length, batch=2):
    return [torch.rand(batch, 2, length, 16) for _ in range(3)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("length", [32, 128])
def test_other_lengths(length):
    mask = flex.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)
    assert attune.flex_attention(*inputs(64), block_mask=mask).shape == (2, 2, 64, 16)
    with pytest.raises(attune.InvalidArgumentError, match="is for 64 queries and 64 keys, and here are"):
        attune.flex_attention(*inputs(length), block_mask=mask)


def test_blocks_of_other_batches():
    listed = torch.ones(2, 1, 2, dtype=torch.int32)
    mask = flex.BlockMask.from_kv_blocks(listed, torch.tensor([0, 1]).int().expand(2, 1, 2, 2), BLOCK_SIZE=16)
    assert attune.flex_attention(*inputs(32), block_mask=mask).shape == (2, 2, 32, 16)
    with pytest.raises(attune.InvalidArgumentError, match="block_mask has blocks for batch=2, and here it is 3"):
        attune.flex_attention(*inputs(32, batch=3), block_mask=mask)
