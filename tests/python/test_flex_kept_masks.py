"""BlockMasks keep a table for each kernel, and blocks count beside a mask_mod."""

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")
import attune  # noqa: E402


def inputs(length=96):
    torch.manual_seed(3)
    return [torch.randn(1, 2, length, 16) for _ in range(3)]


def dense(q, k, v, seen):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def test_a_table_is_made_once():
    q, k, v = inputs()
    document = torch.arange(96) // 40
    mask = flex.create_block_mask(
        lambda b, h, q, kv: document[q] == document[kv], None, None, 96, 96, device="cpu", BLOCK_SIZE=16
    )
    wanted = dense(q, k, v, document[:, None] == document)
    for _ in range(3):
        torch.testing.assert_close(attune.flex_attention(q, k, v, block_mask=mask), wanted, rtol=1e-4, atol=1e-5)
    assert len(mask._attune_masks) == 1
    attune.flex_attention(q, k, v, lambda score, b, h, q, kv: 0.5 * score, mask)
    assert len(mask._attune_masks) == 2


@pytest.mark.parametrize("is_full", [False, True])
def test_blocks_beside_a_function(is_full):
    """16 x 16: of the first row the first block is listed, of the others the first two; `is_full`: it is full."""
    q, k, v = inputs(48)
    counts = torch.tensor([1, 2, 2]).int().reshape(1, 1, 3)
    indices = torch.tensor([0, 1, 2]).int().expand(1, 1, 3, 3).contiguous()
    full = {}
    if is_full:
        full = dict(full_kv_num_blocks=torch.ones(1, 1, 3).int(), full_kv_indices=indices)
        counts, indices = counts - 1, torch.tensor([1, 0, 2]).int().expand(1, 1, 3, 3).contiguous()
    mask = flex.BlockMask.from_kv_blocks(
        counts, indices, **full, BLOCK_SIZE=16, mask_mod=lambda b, h, q, kv: (q + kv) % 2 == 0
    )
    at = torch.arange(48)
    listed = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 0]]).bool()[at[:, None] // 16, at // 16]
    seen = listed & ((at[:, None] + at) % 2 == 0)
    if is_full:
        seen |= (at < 16).expand(48, 48)
    torch.testing.assert_close(
        attune.flex_attention(q, k, v, block_mask=mask), dense(q, k, v, seen), rtol=1e-4, atol=1e-5
    )
