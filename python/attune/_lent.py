"""Tensors and lists of others as calls of the library read them: where their data is, their shape and strides."""

from __future__ import annotations

import ctypes
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from ._attention import _numbers
from ._errors import InvalidArgumentError
from ._structs import DLTensor
from ._tensor import _DTYPES, PYTHON_NAMES, code_name, lend
from ._values import integer


def _nothing() -> None:
    """lend() asks this what a flat buffer stands for."""


def _list_of(value: Any, name: str) -> Any:
    """A list of a step as int32. Rows of a block table may differ in length: they are filled up with -1."""
    if name != "block_table" or not isinstance(value, (list, tuple)):
        return _numbers(value, "i", name)
    for row in value:
        if not isinstance(row, (list, tuple, range)):
            raise InvalidArgumentError(f"{name} has the row {row!r}; it must be a list of the pages of each sequence")
    rows = [[integer(page, name, -1, 2**31 - 1) for page in row] for row in value]
    longest = max(map(len, rows), default=0) or 1
    table = (ctypes.c_int32 * longest * len(rows))()
    for row, pages in zip(table, rows):
        row[:] = [*pages, *[-1] * (longest - len(pages))]
    return table


class _Lent(NamedTuple):
    data: int
    dtype: Tuple[int, int]
    shape: List[int]
    strides: List[int]
    kept: Any


def _lend(value: Any, name: str, writable: bool) -> _Lent:
    where, kept = lend(value, name, writable, _nothing)
    tensor = DLTensor.from_address(where)
    if tensor.device_type != 1:
        raise InvalidArgumentError(f"{name} is not on the CPU")
    shape = tensor.shape[: tensor.ndim]
    if tensor.strides:
        strides = tensor.strides[: tensor.ndim]
    else:
        strides = [1] * len(shape)
        for i in range(len(shape) - 2, -1, -1):
            strides[i] = strides[i + 1] * shape[i + 1]
    data = (tensor.data or 0) + tensor.byte_offset
    return _Lent(data, (tensor.dtype_code, tensor.dtype_bits), shape, strides, kept)


def _check_dtype(lent: _Lent, dtype: str, name: str) -> None:
    if lent.dtype == _DTYPES[dtype] or (dtype in ("i8", "f8") and lent.dtype == (1, 8)):  # bytes may be unsigned
        return
    raise InvalidArgumentError(f"{name} is {code_name(*lent.dtype)}; it must be {PYTHON_NAMES[dtype]}")


def _refuse_repeats(lent: _Lent, name: str, axes: Sequence[int]) -> None:
    """The library takes strides that are all 0 for those of a contiguous tensor."""
    if 0 not in lent.shape and not any(lent.strides[i] for i in axes) and any(lent.shape[i] > 1 for i in axes):
        raise InvalidArgumentError(f"{name} repeats one row by strides of 0; copy it")


def _distances(lent: _Lent, name: str, axes: Tuple[Optional[int], ...], has_rows: bool) -> List[int]:
    """The strides of these axes; of one that is None, 0. A tensor without any must be contiguous. has_rows: the
    innermost elements must lie side by side."""
    if has_rows and lent.shape[-1] > 1 and lent.strides[-1] != 1:
        raise InvalidArgumentError(
            f"{name}: the elements of a row must lie side by side, but the innermost stride is {lent.strides[-1]}"
        )
    wide = [(axis, stride) for axis, stride in enumerate(lent.strides) if lent.shape[axis] > 1]
    if all(axis is None for axis in axes):
        if any(stride != (1 if axis else lent.shape[-1] if len(lent.shape) > 1 else 1) for axis, stride in wide):
            raise InvalidArgumentError(f"{name} must be contiguous")
    elif any(stride < 0 for _, stride in wide):
        raise InvalidArgumentError(f"{name} has negative strides")
    else:
        _refuse_repeats(lent, name, [axis for axis in axes if axis is not None])
    return [0 if axis is None else lent.strides[axis] for axis in axes]


def _check_list(lent: _Lent, name: str) -> None:
    """Numbers as the library reads them: [n], and a block table [n, pages], whose rows may lie apart."""
    _check_dtype(lent, "i32", name)
    rank = 2 if name == "block_table" else 1
    if len(lent.shape) != rank:
        raise InvalidArgumentError(f"{name} has {len(lent.shape)} dimensions; it must have {rank}")
    if lent.shape[-1] > 1 and lent.strides[-1] != 1:
        raise InvalidArgumentError(f"{name}: its innermost stride is {lent.strides[-1]}; it must be 1")
    if rank == 2 and lent.shape[0] > 1 and lent.strides[0] <= 0:
        raise InvalidArgumentError(f"{name} has a row stride of {lent.strides[0]}; copy it")
