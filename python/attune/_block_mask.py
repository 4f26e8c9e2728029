"""PyTorch's BlockMask: its blocks, and what attune keeps of it between calls."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Iterable, List, Optional, Tuple

from ._library import check, lib, when_freed

_CAP = 16  # tables that are kept with an object


def _state(values: Iterable[Any]) -> List[Tuple[Any, Optional[int]]]:
    """Objects, and how often each was changed in place, as far as PyTorch counts it."""
    return [(value, None if _is_uncounted(value) else value._version) for value in values]


def _is_uncounted(value: Any) -> bool:
    return not hasattr(value, "is_inference") or value.is_inference()


def _is_same(a: List[Tuple[Any, Optional[int]]], b: List[Tuple[Any, Optional[int]]]) -> bool:
    return len(a) == len(b) and all(x is y and n == m for (x, n), (y, m) in zip(a, b))


class _Record:
    """What was found out about a BlockMask, as long as its mask_mod and its lists are the same."""

    def __init__(self, state: List[Tuple[Any, Optional[int]]]) -> None:
        self.state = state
        self.follows: Optional[bool] = None
        self.blocks: Optional[Tuple[Any, Any]] = None
        self.masks: List[_Mask] = []


# Not attributes of the objects: a BlockMask stays one that can be copied and pickled.
_records: weakref.WeakKeyDictionary[Any, _Record] = weakref.WeakKeyDictionary()


def record_of(block_mask: Any) -> _Record:
    names = ("mask_mod", "kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    state = _state(getattr(block_mask, name) for name in names)
    record = _records.get(block_mask)
    if record is None or not _is_same(record.state, state):
        record = _records[block_mask] = _Record(state)
    return record


def _dense(counts: Any, indices: Any, columns: int) -> Any:
    """The blocks that the first `counts` of `indices` name, as bool [batch, heads, rows, columns]."""
    import torch

    is_listed = torch.arange(indices.shape[-1]) < counts.cpu()[..., None]
    blocks = torch.zeros(*counts.shape, columns + 1, dtype=torch.bool)
    blocks.scatter_(-1, torch.where(is_listed, indices.cpu().long(), columns), True)
    return blocks[..., :columns]


def listed_blocks(block_mask: Any) -> Tuple[Any, Any]:
    """The blocks in which mask_mod decides, and those that all queries see."""
    record = record_of(block_mask)
    if record.blocks is None:
        record.blocks = _listed_blocks(block_mask)
    return record.blocks


def _listed_blocks(block_mask: Any) -> Tuple[Any, Any]:
    columns = -(-block_mask.shape[-1] // block_mask.BLOCK_SIZE[1])
    listed = _dense(block_mask.kv_num_blocks, block_mask.kv_indices, columns)
    if block_mask.full_kv_num_blocks is None:
        return listed, listed & False
    return listed, _dense(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns)


def blocks_follow(block_mask: Any) -> bool:
    """Whether the blocks are those that the mask_mod gives, so that it says all. Found out once for an object."""
    from torch.nn.attention.flex_attention import create_block_mask

    record = record_of(block_mask)
    if record.follows is None:
        batch, heads = block_mask.kv_num_blocks.shape[:2]
        queries, keys = block_mask.shape[-2:]
        again = create_block_mask(
            block_mask.mask_mod, batch, heads, queries, keys, device="cpu", BLOCK_SIZE=block_mask.BLOCK_SIZE
        )
        listed, full = listed_blocks(block_mask)
        listed_again, full_again = listed_blocks(again)
        are_same = ((listed | full) == (listed_again | full_again)).all()
        record.follows = bool(are_same and not (full & ~full_again).any())
    return record.follows


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
    """A table of a kernel, and the tensors that it was made of, as they were."""

    def __init__(self, kernel: Any, arguments: Any, state: List[Tuple[Any, Optional[int]]]) -> None:
        self.kernel = kernel
        self.state = state
        self.pointer = ctypes.c_void_p()
        context = kernel.context
        check(
            lib.attune_block_mask_create(
                context._pointer, kernel._pointer, ctypes.byref(arguments), ctypes.byref(self.pointer)
            )
        )
        when_freed(self, lib.attune_block_mask_destroy, self.pointer)


def lasting_mask(kernel: Any, arguments: Any) -> _Mask:
    """The table of a mask_mod that reads no tensors, for later calls of the same sizes."""
    return _Mask(kernel, arguments, [])


def kept_mask(block_mask: Any, kernel: Any, arguments: Any, tensors: Iterable[Any]) -> _Mask:
    """The table of what is hidden, kept for each kernel that the BlockMask is used with, as long as the tensors that
    its function reads are the same."""
    record, state = record_of(block_mask), _state(tensors)
    for mask in record.masks:
        if mask.kernel is kernel and _is_same(mask.state, state):
            return mask
    mask = _Mask(kernel, arguments, state)
    record.masks = [mask, *(other for other in record.masks if other.kernel is not kernel)][:_CAP]
    return mask
