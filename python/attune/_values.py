"""Values of Python as the library takes them. Others are refused by name, in one sentence."""

from __future__ import annotations

import operator
import os
from typing import Any, Tuple

from ._errors import InvalidArgumentError, InvalidTypeError


MOST_DEADLINE_US = 60_000_000


def kind(value: Any) -> str:
    """A value's type for a sentence: "a list", "an int", "bytes", "None"."""
    name = "None" if value is None else type(value).__name__
    if name in ("None", "bytes"):
        return name
    vowel = name[0] in "aeioAEIO" or name == "ndarray"
    return f"{'an' if vowel else 'a'} {name}"


def text(value: Any, name: str) -> bytes:
    """A str as C reads it. C would end it at a NUL character, and lose the rest without a word."""
    if not isinstance(value, str):
        raise InvalidTypeError(f"{name} is {kind(value)}; it must be a str")
    return _whole(value.encode("utf-8", "replace"), name)


def path(value: Any, name: str) -> bytes:
    """A path (str, bytes or os.PathLike) as C reads it."""
    try:
        return _whole(os.fsencode(value), name)
    except TypeError:
        raise InvalidTypeError(f"{name} is {kind(value)}; it must be a str or a path") from None


def _whole(data: bytes, name: str) -> bytes:
    if b"\0" in data:
        raise InvalidArgumentError(f"{name} has a NUL character: text to the library must have none")
    return data


def integer(value: Any, name: str, low: int = 0, high: int = 2**32 - 1) -> int:
    """A whole number in a range, which ctypes would cut to its bits."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        shown = repr(value) if isinstance(value, (bool, float, str)) else kind(value)
        raise InvalidTypeError(f"{name} is {shown}; it must be an integer") from None
    if not low <= number <= high:
        raise InvalidArgumentError(f"{name} is {number}; it must be from {low} to {high}")
    return number


def set_threads(into: Any, max_threads: Any, runner: Any, cancel: Any) -> None:
    """Puts who works, and the flag that ends it, into a step or into the options of a run. These keep the flag."""
    into.max_threads = integer(max_threads, "max_threads")
    if runner is not None:
        if not isinstance(getattr(runner, "pointer", None), int):
            raise InvalidTypeError(f"runner is {kind(runner)}; it must be a runner, such as attune.torch.runner()")
        into.runner = runner.pointer
    if cancel is not None:
        from ._lent import _check_list, _lend  # which needs this module

        lent = _lend(cancel, "cancel", False)
        _check_list(lent, "cancel")
        if lent.shape != [1]:
            raise InvalidArgumentError(f"cancel has {lent.shape[0]} elements; it must have 1")
        into.cancel, into.kept = lent.data, lent.kept


def number(value: Any, name: str) -> float:
    """A number other than NaN."""
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        result = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        shown = repr(value) if isinstance(value, (bool, str)) else kind(value)
        raise InvalidTypeError(f"{name} is {shown}; it must be a number") from None
    if result != result:
        raise InvalidArgumentError(f"{name} is nan; it must be a number")
    return result


def flag(value: Any, name: str) -> bool:
    """True, False, 0 or 1; NumPy's and torch's bool are such, too."""
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if getattr(value, "shape", None) == () and str(getattr(value, "dtype", "")).endswith("bool"):
        return bool(value)
    shown = repr(value) if isinstance(value, (int, float, str)) else kind(value)
    raise InvalidTypeError(f"{name} is {shown}; it must be True or False")


def choice(value: Any, names: Tuple[str, ...], name: str) -> int:
    """Which of the names a value is."""
    if not isinstance(value, str) or value not in names:
        listed = ", ".join(repr(item) for item in names[:-1])
        raise InvalidArgumentError(f"{name} is {value!r}; it must be {listed} or {names[-1]!r}")
    return names.index(value)
