"""BlockMasks keep a table for each kernel, and blocks count beside a mask_mod."""

import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")
import attune  # noqa: E402
from attune._block_mask import record_of  # noqa: E402


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
    assert len(record_of(mask).masks) == 1
    attune.flex_attention(q, k, v, lambda score, b, h, q, kv: 0.5 * score, mask)
    assert len(record_of(mask).masks) == 2


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


def documents(document, size=96):
    return flex.create_block_mask(
        lambda b, h, q, kv: document[q] == document[kv], None, None, size, size, device="cpu", BLOCK_SIZE=size
    )


def check(q, k, v, mask, document):
    wanted = dense(q, k, v, document[:, None] == document)
    torch.testing.assert_close(attune.flex_attention(q, k, v, block_mask=mask), wanted, rtol=1e-4, atol=1e-5)


def test_heads_that_share_blocks():
    """The blocks are those of the first head, and hide what the function shows to the second."""
    q, k, v = inputs(48)
    mask = flex.create_block_mask(
        lambda b, h, q, kv: kv // 16 <= h, None, None, 48, 48, device="cpu", BLOCK_SIZE=16
    )
    seen = (torch.arange(48) < 16).expand(48, 48)
    torch.testing.assert_close(
        attune.flex_attention(q, k, v, block_mask=mask), dense(q, k, v, seen), rtol=1e-4, atol=1e-5
    )


def test_a_table_follows_what_its_function_reads():
    q, k, v = inputs()
    document = torch.arange(96) // 40
    mask = documents(document)
    check(q, k, v, mask, document)
    document.copy_(torch.arange(96) // 30)
    check(q, k, v, mask, document)
    other = torch.arange(96) // 25
    mask.mask_mod = documents(other).mask_mod
    check(q, k, v, mask, other)
    assert len(record_of(mask).masks) == 1


def test_a_table_does_not_depend_on_what_scores_read():
    q, k, v = inputs()
    mask = documents(torch.arange(96) // 40)
    for _ in range(2):
        bias = torch.randn(96)
        attune.flex_attention(q, k, v, lambda score, b, h, q, kv: score + bias[kv], mask)
        kept = record_of(mask).masks
    attune.flex_attention(q, k, v, lambda score, b, h, q, kv: score + bias[kv], mask)
    assert record_of(mask).masks is kept and len(kept) == 1


def test_blocks_may_change():
    q, k, v = inputs(48)
    counts = torch.ones(1, 1, 3).int()
    mask = flex.BlockMask.from_kv_blocks(counts, torch.tensor([0, 1, 2]).int().expand(1, 1, 3, 3).contiguous(),
                                         BLOCK_SIZE=16)
    for blocks in (1, 2, 3, 1):
        counts.fill_(blocks)
        seen = (torch.arange(48) < 16 * blocks).expand(48, 48)
        torch.testing.assert_close(
            attune.flex_attention(q, k, v, block_mask=mask), dense(q, k, v, seen), rtol=1e-4, atol=1e-5
        )


def test_masks_are_copied_and_end():
    q, k, v = inputs()
    document = torch.arange(96) // 40
    mask = documents(document)
    check(q, k, v, mask, document)
    check(q, k, v, copy.deepcopy(mask), document)
    ended = weakref.ref(record_of(mask).masks[0])
    del mask
    gc.collect()
    assert ended() is None


def test_inference_tensors():
    with torch.inference_mode():
        q, k, v = inputs()
        document = torch.arange(96) // 40
        mask = documents(document)
        for _ in range(2):
            check(q, k, v, mask, document)
        assert len(record_of(mask).masks) == 1


def test_functions_that_reach_nothing_are_told_apart():
    """Their tables are kept, and they are known by their code: one that looks up a name is traced each time."""
    q, k, v = inputs()
    at = torch.arange(96)
    space = {}

    def made(body):
        return eval(f"lambda b, h, q, kv: {body}", space)

    bodies = ["q // 8 == kv // 8", "q // 16 == kv // 16", "q / 2 == kv / 2 + 0", "q // WIDTH == kv // WIDTH"]
    for width in (5, 7, 5):
        space["WIDTH"] = width
        for body in bodies * 2:
            mask = made(body)
            wanted = dense(q, k, v, mask(0, 0, at[:, None], at))
            torch.testing.assert_close(attune.flex_attention(q, k, v, mask_mod=mask), wanted, rtol=1e-4, atol=1e-5)
        q = q + 1
