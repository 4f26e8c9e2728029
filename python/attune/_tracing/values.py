"""Values of an ONNX subgraph: what an element is, by its indices, and shapes whose sizes a model may leave open."""

from __future__ import annotations

import math
from typing import Callable, Optional, Sequence, Tuple

import numpy as np

from .._errors import InvalidArgumentError, UnsupportedError
from .traced import Traced, _op, _traced

_Element = Callable[[Tuple[Traced, ...]], Traced]


class OpenSizeError(UnsupportedError):
    """A function depends on a size that is open."""


# Where a number comes from: no open size has to do with it; it is an open size itself; it is made from one.
_FIXED, _OPEN, _MADE = range(3)


class Size(int):
    """A size of a shape that stands for one that a model leaves open, or that is made from one."""

    origin = _OPEN

    @staticmethod
    def of(number: int, origin: int) -> int:
        if origin == _FIXED:
            return int(number)
        size = Size(number)
        size.origin = origin
        return size


def _origin(size: int) -> int:
    return size.origin if isinstance(size, Size) else _FIXED


def _refuse_open(what: str) -> OpenSizeError:
    return OpenSizeError(f"{what} depends on a size that is open", 5)


class Value:
    """A tensor of a subgraph: its shape, its element at given indices, its numbers where they are known, whether
    those follow from counted positions, and where each of them comes from (None: from no open size)."""

    def __init__(self, shape: Sequence[int], at: _Element, constant: Optional[np.ndarray] = None,
                 is_counted: bool = False, origins: Optional[np.ndarray] = None) -> None:
        self.shape, self.at, self.constant, self.is_counted = tuple(shape), at, constant, is_counted
        self.origins = origins

    def has_open_shape(self) -> bool:
        return any(map(_origin, self.shape))

    def is_fixed(self) -> bool:
        return self.origins is None and not self.has_open_shape()


# ---- Shapes ----


def _broadcast(values: Sequence[Value], message: str) -> Tuple[int, ...]:
    try:
        shape = np.broadcast_shapes(*(value.shape for value in values))
    except ValueError:
        raise InvalidArgumentError(f"{message}: {' and '.join(str(list(v.shape)) for v in values)} do not broadcast")
    origins = [0] * len(shape)
    for value in values:
        for i, size in enumerate(value.shape, len(shape) - len(value.shape)):
            origins[i] = max(origins[i], _origin(size))
    return tuple(map(Size.of, shape, origins))


def _element(value: Value, indices: Tuple[Traced, ...]) -> Traced:
    """That of a value which is broadcast to the rank of the indices."""
    own = indices[len(indices) - len(value.shape):]
    return value.at(tuple(_traced(0) if size == 1 else index for index, size in zip(own, value.shape)))


def _reshaped(value: Value, shape: Tuple[int, ...]) -> Value:
    """Dims of 1 come and go; where others change, elements are counted."""
    others = [size for size in value.shape if size != 1]
    if others == [size for size in shape if size != 1]:

        def at(indices: Tuple[Traced, ...]) -> Traced:
            rest = iter(index for index, size in zip(indices, shape) if size != 1)
            return value.at(tuple(_traced(0) if size == 1 else next(rest) for size in value.shape))

        return Value(shape, at)

    def counted(indices: Tuple[Traced, ...]) -> Traced:
        if any(map(_origin, (*shape, *value.shape))):
            raise _refuse_open("Reshape")
        number = _traced(0)
        for index, size in zip(indices, shape):
            number = _op("add", _op("mul", number, size), index)
        own = []
        for size in reversed(value.shape):
            own.append(_op("mod", number, size))
            number = _op("floordiv", number, size)
        return value.at(tuple(reversed(own)))

    return Value(shape, counted)


def _left_over(shape: Sequence[int], sizes: Sequence[int]) -> int:
    """The size that -1 stands for beside open ones: what is over must be one open size, or none."""
    opened = [size for size in shape if _origin(size)]
    for size in sizes:
        if _origin(size) and size in opened:
            opened.remove(size)
        elif _origin(size):
            raise _refuse_open("Reshape")
    fixed = math.prod(size for size in shape if not _origin(size))
    known = math.prod(size for size in sizes if not _origin(size) and size != -1)
    if len(opened) > 1 or not known or (opened and fixed != known):
        raise _refuse_open("Reshape")
    return opened[0] if opened else fixed // known


def _counted(array: np.ndarray) -> Optional[Value]:
    """Integers that follow each other in equal steps need no tensor."""
    flat = array.reshape(-1)
    if array.dtype.kind not in "iu" or array.size < 2 or max(array.shape) != array.size:
        return None
    first, step = flat[0].item(), flat[1].item() - flat[0].item()
    if step == 0 or (np.diff(flat) != step).any():
        return None
    axis = array.shape.index(array.size)

    def at(indices: Tuple[Traced, ...]) -> Traced:
        scaled = indices[axis] if step == 1 else _op("mul", indices[axis], step)
        return scaled if first == 0 else _op("add", scaled, first)

    return Value(array.shape, at, array, True)
