"""Exceptions: one for each status of the library."""

from __future__ import annotations

from typing import Dict, Type


class Error(RuntimeError):
    """A failure that attune reports. Its text is the library's own sentence; `status` is the library's number."""

    status: int = 14

    def __init__(self, message: str = "", status: int | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status

    def __reduce__(self):
        return (type(self), (str(self), self.status))


class InvalidArgumentError(Error, ValueError):
    """A tensor, size or option that the call does not allow."""

    status = 1


class InvalidTypeError(InvalidArgumentError, TypeError):
    """A value of a type that the call does not allow."""


class InvalidProblemError(Error, ValueError):
    """A problem whose fields contradict each other, are out of range, or do not exist."""

    status = 2


class InvalidScheduleError(Error, ValueError):
    """A schedule that is not legal for the problem or the instruction set."""

    status = 3


class UnsupportedError(Error):
    """A valid request that this build or this CPU does not support."""

    status = 5


class OutOfMemoryError(Error, MemoryError):
    """Memory ran out."""

    status = 6


class FileError(Error, OSError):
    """A file could not be read or written, or is damaged."""

    status = 8


class CodegenError(Error):
    """The code generator is missing, cannot be loaded, or failed."""

    status = 11


class CheckFailedError(Error):
    """The interpreter found an access out of bounds, or results differ."""

    status = 13


class NotCachedError(Error):
    """ATTUNE_STRICT=1 forbids compiling, and no cache has the kernel."""

    status = 15


class CancelledError(Error):
    """The call was cancelled: its outputs are undefined."""

    status = 16


_BY_STATUS: Dict[int, Type[Error]] = {
    1: InvalidArgumentError,
    2: InvalidProblemError,
    3: InvalidScheduleError,
    5: UnsupportedError,
    6: OutOfMemoryError,
    7: InvalidArgumentError,
    8: FileError,
    9: FileError,
    10: CodegenError,
    11: CodegenError,
    13: CheckFailedError,
    15: NotCachedError,
    16: CancelledError,
}


def of_status(status: int, message: str) -> Error:
    """The exception for a status of the library."""
    return _BY_STATUS.get(status, Error)(message, status)
