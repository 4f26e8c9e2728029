"""PyTorch's BlockMask: its blocks, and what attune keeps of it between calls."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Optional, Tuple

from ._library import check, has_block_masks, lib

_CAP = 16  # masks that an object keeps


def _dense(counts: Any, indices: Any, columns: int) -> Any:
    """The blocks that the first `counts` of `indices` name, as bool [batch, heads, rows, columns]."""
    import torch

    is_listed = torch.arange(indices.shape[-1]) < counts.cpu()[..., None]
    blocks = torch.zeros(*counts.shape, columns + 1, dtype=torch.bool)
    blocks.scatter_(-1, torch.where(is_listed, indices.cpu().long(), columns), True)
    return blocks[..., :columns]


def listed_blocks(block_mask: Any) -> Tuple[Any, Any]:
    """The blocks in which mask_mod decides, and those that all queries see."""
    columns = -(-block_mask.shape[-1] // block_mask.BLOCK_SIZE[1])
    listed = _dense(block_mask.kv_num_blocks, block_mask.kv_indices, columns)
    if block_mask.full_kv_num_blocks is None:
        return listed, listed & False
    return listed, _dense(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns)


def blocks_follow(block_mask: Any) -> bool:
    """Whether the blocks are those that the mask_mod gives, so that it says all. Found out once for an object."""
    from torch.nn.attention.flex_attention import create_block_mask

    known = getattr(block_mask, "_attune_follows", None)
    if known is None:
        batch, heads = block_mask.kv_num_blocks.shape[:2]
        queries, keys = block_mask.shape[-2:]
        again = create_block_mask(
            block_mask.mask_mod, batch, heads, queries, keys, device="cpu", BLOCK_SIZE=block_mask.BLOCK_SIZE
        )
        listed, full = listed_blocks(block_mask)
        listed_again, full_again = listed_blocks(again)
        known = bool(((listed | full) == (listed_again | full_again)).all() and not (full & ~full_again).any())
        block_mask._attune_follows = known
    return known


def function_of_blocks(block_mask: Any, listed: Optional[Any], full: Any) -> Optional[Callable]:
    """Blocks as a mask_mod: full ones, and what the own mask_mod shows of those in `listed` (None: of none)."""
    if full.all():
        return None
    queries, keys = block_mask.BLOCK_SIZE
    own = block_mask.mask_mod
    has_batch, has_heads = (size > 1 for size in full.shape[:2])

    def of(blocks: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return blocks[b if has_batch else 0, h if has_heads else 0, q_idx // queries, kv_idx // keys]

    def is_seen(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        is_full = of(full, b, h, q_idx, kv_idx)
        if listed is None:
            return is_full
        return is_full | (of(listed, b, h, q_idx, kv_idx) & own(b, h, q_idx, kv_idx))

    return is_seen


class _Mask:
    def __init__(self, kernel: Any, arguments: Any) -> None:
        self.kernel = kernel
        self.pointer = ctypes.c_void_p()
        context = kernel.context
        check(
            lib.attune_block_mask_create(
                context._pointer, kernel._pointer, ctypes.byref(arguments), ctypes.byref(self.pointer)
            )
        )
        weakref.finalize(self, lib.attune_block_mask_destroy, self.pointer).atexit = False


def kept_mask(block_mask: Any, kernel: Any, arguments: Any) -> Optional[_Mask]:
    """The table of what is hidden, which the BlockMask keeps for each kernel that it is used with."""
    if not has_block_masks:
        return None
    masks = block_mask.__dict__.setdefault("_attune_masks", [])
    for mask in masks:
        if mask.kernel is kernel:
            return mask
    mask = _Mask(kernel, arguments)
    del masks[_CAP - 1 :]
    masks.insert(0, mask)
    return mask
