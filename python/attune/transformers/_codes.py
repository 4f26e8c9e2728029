"""Rows of a cache that are stored in another type than the model's: codes of int8 with a scale for each row, or bf16.

``CachedTensor`` stands for such rows as a tensor of the model's type. attune reads the stored rows as they are; every
other operation of PyTorch gets them widened first, so models and other attention implementations see ordinary values.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch.utils._pytree import tree_map

from . import _ops
from ._stats import count_attune, count_stock

_LARGEST = 127.0


def encode(rows: torch.Tensor, codes: torch.Tensor, scales: Optional[torch.Tensor]) -> None:
    """Writes rows [B, H, n, D] as codes, with scales [B, H, n] of the rows' largest elements if codes are int8.

    A NaN or an infinity gives its row the scale NaN, so that the whole row reads as NaN, as in attune's kernels.
    """
    if scales is None:
        codes.copy_(rows)
        return
    wide = rows.to(torch.float32)
    largest = wide.abs().amax(-1) / _LARGEST
    scale = torch.where(largest.isfinite(), largest, torch.nan)
    usable = (scale > 0).unsqueeze(-1)
    units = torch.where(usable, wide / scale.unsqueeze(-1), 0.0)
    codes.copy_(units.round_().clamp_(-128, _LARGEST))
    scales.copy_(scale)


class StoredRows:
    """Keys and values of one layer as stored, up to the newest row, and the new rows that are not written yet."""

    def __init__(
        self, stored: List[torch.Tensor], new: Optional[Tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype
    ) -> None:
        self.codes = stored[:2]
        self.scales: Sequence[Optional[torch.Tensor]] = stored[2:] or [None, None]
        self.new, self.dtype = new, dtype

    def settle(self) -> None:
        """Writes the new rows, unless attention did."""
        if self.new is None:
            return
        for rows, codes, scales in zip(self.new, self.codes, self.scales):
            count = rows.shape[2]
            if count:
                encode(rows, codes[:, :, -count:], None if scales is None else scales[:, :, -count:])
        self.new = None

    def decode(self, which: int) -> torch.Tensor:
        """The keys (0) or values (1) in the model's type."""
        self.settle()
        codes, scales = self.codes[which], self.scales[which]
        if scales is None:
            return codes.to(self.dtype)
        return (codes.to(torch.float32) * scales.unsqueeze(-1)).to(self.dtype)

    def attend(self, query: torch.Tensor, first: int, arguments: dict) -> torch.Tensor:
        k, v = (codes[:, :, first:] for codes in self.codes)
        k_scale, v_scale = (None if scales is None else scales[:, :, first:] for scales in self.scales)
        new, kind = self.new, "append"
        if new is None or new[0].shape[2] > k.shape[2]:
            self.settle()
            new, kind = (k[:, :, :0].to(self.dtype), v[:, :, :0].to(self.dtype)), "codes"
        if k_scale is None:
            new = new[0].to(k.dtype), new[1].to(v.dtype)
        lengths = torch.full((k.shape[0],), k.shape[2], dtype=torch.int32)
        out = _ops.attention_append(query, *new, k, v, k_scale, v_scale, lengths, **arguments)
        self.new = None
        count_attune(kind)
        return out


class CachedTensor(torch.Tensor):
    """Stored rows, seen as a tensor [B, H, T, D] of the model's type."""

    rows: StoredRows
    which: int

    @staticmethod
    def __new__(cls, rows: StoredRows, which: int) -> CachedTensor:
        tensor = torch.Tensor._make_wrapper_subclass(cls, rows.codes[which].shape, dtype=rows.dtype)
        tensor.rows, tensor.which = rows, which
        return tensor

    def __repr__(self) -> str:
        stored = self.rows.codes[self.which].dtype
        return f"CachedTensor(shape={tuple(self.shape)}, dtype={self.dtype}, stored={stored})"

    def __reduce_ex__(self, protocol):
        return CachedTensor, (self.rows, self.which)

    def __deepcopy__(self, memo):
        raise TypeError("rows of a cache are copied with their cache: use copy.deepcopy(cache)")

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def widen(argument):
            return argument.rows.decode(argument.which) if isinstance(argument, CachedTensor) else argument

        return function(*tree_map(widen, args), **tree_map(widen, kwargs or {}))

    def attend(self, query: torch.Tensor, value: torch.Tensor, first: int, arguments: dict) -> Optional[torch.Tensor]:
        """Attention of these keys with the values of the same rows; None where the two do not belong together."""
        if not isinstance(value, CachedTensor) or value.rows is not self.rows or (self.which, value.which) != (0, 1):
            count_stock("keys and values of different caches, widened")
            return None
        return self.rows.attend(query, first, arguments)
