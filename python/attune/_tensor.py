"""Lends tensors of others to the library without copying: DLPack, NumPy's array interface, the buffer protocol.

`lend` gives the address of a DLTensor and the objects that keep it, and the memory, alive. Callers hold those until the
call is done. A DLPack capsule is never consumed: its own destructor gives the tensor back.
"""

from __future__ import annotations

import ctypes
import math
import sys
from ctypes import c_char_p, c_int, c_int64, c_ssize_t, c_void_p, py_object
from typing import Any, Dict, Optional, Sequence, Tuple

from ._errors import Error, InvalidArgumentError, InvalidTypeError, UnsupportedError
from ._structs import DLTensor
from ._values import kind as kind_of

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [py_object, c_char_p]
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = c_char_p, [py_object]

_IN_VERSIONED = 32  # of the DLTensor in a DLManagedTensorVersioned; its flags lie 8 bytes before
_READ_ONLY = 1
# int two, nd; char kind; int itemsize, flags; pointers to shape, to strides and to the data.
_DATA_IN_STRUCT = 24 + 2 * ctypes.sizeof(c_void_p)


class _Buffer(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", ctypes.POINTER(c_ssize_t)),
        ("strides", ctypes.POINTER(c_ssize_t)),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.restype, _get_buffer.argtypes = c_int, [py_object, ctypes.POINTER(_Buffer), c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.restype, _release_buffer.argtypes = None, [ctypes.POINTER(_Buffer)]
_STRIDED_WITH_FORMAT = 0x18 | 0x4


class _Held:
    """A buffer of the buffer protocol, given back when this object dies."""

    __slots__ = ("view", "_is_held")

    def __init__(self, value: Any) -> None:
        self.view, self._is_held = _Buffer(), False
        _get_buffer(value, ctypes.byref(self.view), _STRIDED_WITH_FORMAT)
        self._is_held = True

    def __del__(self) -> None:
        if self._is_held:
            _release_buffer(ctypes.byref(self.view))


# Codes and bits of DLPack.
_DTYPES: Dict[str, Tuple[int, int]] = {
    "f32": (2, 32),
    "f16": (2, 16),
    "bf16": (4, 16),
    "f64": (2, 64),
    "bool": (6, 8),
    "i32": (0, 32),
    "i8": (0, 8),
    "f8": (10, 8),
}
BYTES = {name: bits // 8 for name, (_, bits) in _DTYPES.items()}
# A bool goes as unsigned bytes too, and i64 is named so that the library can refuse it by name.
_FORMATS: Dict[str, Tuple[int, int]] = {
    "f": (2, 32),
    "d": (2, 64),
    "e": (2, 16),
    "?": (6, 8),
    "b": (0, 8),
    "B": (1, 8),
    "c": (1, 8),
    "h": (0, 16),
    "H": (1, 16),
    "i": (0, 32),
    "I": (1, 32),
    "l": (0, 8 * ctypes.sizeof(ctypes.c_long)),
    "L": (1, 8 * ctypes.sizeof(ctypes.c_long)),
    "q": (0, 64),
    "Q": (1, 64),
}
# Names of attune's dtypes by those of NumPy, ml_dtypes and torch.
NAMES: Dict[str, str] = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "bool": "bool",
    "int32": "i32",
    "int8": "i8",
    "float8_e4m3fn": "f8",
}


# The other way round, of those that Python names otherwise.
PYTHON_NAMES = {ours: theirs for theirs, ours in NAMES.items()}
_KINDS = ("int", "uint", "float", "handle", "bfloat", "complex", "bool")


def code_name(code: int, bits: int) -> str:
    """The name that NumPy and torch have for a dtype of DLPack."""
    for name, pair in _DTYPES.items():
        if pair == (code, bits):
            return PYTHON_NAMES[name]
    return f"{_KINDS[code]}{bits}" if code < len(_KINDS) else f"dtype {code} of {bits} bits"


def name_of_dtype(dtype: Any) -> str:
    """The name of a dtype of NumPy, ml_dtypes or torch, or of one of NumPy's types: "float32" …"""
    if isinstance(dtype, type):
        return dtype.__name__
    name = getattr(dtype, "name", None)
    if name is None:
        return str(dtype).rpartition(".")[2]
    return "bfloat16" if name == "void16" and dtype.fields is None else name


def dtype_name(value: Any) -> str:
    """attune's name of a tensor's dtype ("f32" …), or the tensor's own name for it if attune has none."""
    name = name_of_dtype(value.dtype)
    return NAMES.get(name, name)


def _build(data: int, code: Tuple[int, int], shape: Sequence[int], strides: Optional[Sequence[int]]) -> DLTensor:
    """A DLTensor of our own."""
    rank = len(shape)
    tensor = DLTensor(data, 1, 0, rank, code[0], code[1], 1)
    tensor.shape = (c_int64 * rank)(*shape)
    if strides is not None:
        tensor.strides = (c_int64 * rank)(*strides)
    return tensor


def _elements(name: str, strides: Sequence[int], item: int) -> Sequence[int]:
    """Strides in elements, of strides in bytes."""
    if any(stride % item for stride in strides):
        raise InvalidArgumentError(f"{name}: its strides of {list(strides)} bytes are no multiples of {item}")
    return [stride // item for stride in strides]


def _refuse_read_only(name: str) -> None:
    raise InvalidArgumentError(f"{name} is read-only, and the call would write to it")


def _of_array(value: Any, name: str, writable: bool) -> Tuple[int, Any]:
    """A NumPy array that cannot be had as DLPack: read-only, or of a dtype that NumPy itself does not know."""
    dtype = dtype_name(value)
    if dtype not in _DTYPES:
        raise InvalidArgumentError(f"{name}: attune has no dtype {value.dtype}")
    if not value.dtype.isnative:
        raise InvalidArgumentError(f"{name}: its dtype {value.dtype} has the byte order of another machine")
    interface = value.__array_interface__
    data, read_only = interface["data"]
    if writable and read_only:
        _refuse_read_only(name)
    strides = _elements(name, value.strides, value.itemsize) if value.size else None
    tensor = _build(data, _DTYPES[dtype], value.shape, strides)
    return ctypes.addressof(tensor), (tensor, value)


def _of_buffer(value: Any, name: str, writable: bool, wanted: Any) -> Tuple[int, Any]:
    """An object of the buffer protocol. A flat one may stand for a tensor with as many elements, or bytes."""
    try:
        held = _Held(value)
    except (TypeError, BufferError):
        raise InvalidTypeError(f"{name} is {kind_of(value)}; it needs __dlpack__ or the buffer protocol") from None
    view = held.view
    if writable and view.readonly:
        _refuse_read_only(name)
    text = (view.format or b"B").decode().lstrip("@=<" if sys.byteorder == "little" else "@=>")
    code, rank = _FORMATS.get(text), view.ndim
    shape = view.shape[:rank]
    if view.strides:
        strides = view.strides[:rank]
    else:  # as of ctypes' arrays, which are dense
        strides = [view.itemsize * math.prod(shape[i + 1 :]) for i in range(rank)]
    info = wanted() if rank <= 1 or text in "BcH" else None
    if info is not None and info.dtype in _DTYPES:
        want, bits = _DTYPES[info.dtype], _DTYPES[info.dtype][1]
        raw = text in ("B", "c") or (text == "H" and info.dtype == "bf16")
        flat = rank == 1 and strides[0] == view.itemsize and -1 not in info.shape
        count = 1
        for size in info.shape:
            count *= size
        if flat and (raw or code == want) and view.len * 8 == count * bits:
            code, shape, strides = want, info.shape, None
        elif flat and (raw or code == want) and len(info.shape) > 1:
            unit, size = ("bytes", count * bits // 8) if text in ("B", "c") else ("elements", count)
            raise InvalidArgumentError(f"{name} has {view.len // view.itemsize} {unit}; it needs {size}")
        elif text == "H" and raw:
            code = want
    if code is None:
        raise InvalidArgumentError(f"{name}: its elements have the format {text!r}, which attune does not know")
    if strides is not None:
        strides = _elements(name, strides, view.itemsize)
    tensor = _build(view.buf, code, shape, strides)
    return ctypes.addressof(tensor), (tensor, held)


def is_torch(value: Any) -> bool:
    """Whether a value is a torch.Tensor. Never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def _without_grad(value: Any, name: str) -> Any:
    """A torch tensor as one that needs no gradient. Refused while torch records gradients: they would be lost."""
    torch = sys.modules["torch"]
    if torch.is_grad_enabled():
        raise InvalidArgumentError(
            f"{name} requires grad, and this call computes no gradient: use attune.torch, torch.no_grad() or detach()"
        )
    return value.detach()


def refuse_masked(value: Any, name: str) -> None:
    """Refuses arrays of numpy.ma: their masks would be lost."""
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(value, masked):
        raise InvalidTypeError(f"{name} is a masked array, whose mask would be lost; give its .filled() or .data")


def spread(value: Any, shape: Sequence[int], wanted: Any) -> Any:
    """A view of a mask with all dims, which repeats those of 1 as NumPy broadcasts.

    The last dim is not repeated: kernels read it by the stride that they were compiled for. `shape` is that of the
    problem, whose open dims are -1; `wanted` gives the TensorInfo of the call.
    """
    own = tuple(getattr(value, "shape", ()))
    if not hasattr(value, "dtype") or len(own) > len(shape):
        return value
    own = (1,) * (len(shape) - len(own)) + own
    if any(dim == 1 != most for dim, most in zip(own[:-1], shape)):
        try:
            info = wanted()
        except Error:
            pass  # a size is missing: the call says which one
        else:  # a stride of 0 is one that the kernel was compiled without
            outer = zip(own[:-1], info.shape, info.strides)
            own = (*(most if dim == 1 and stride else dim for dim, most, stride in outer), own[-1])
    if own == tuple(value.shape):
        return value
    if hasattr(value, "expand"):
        return value.expand(own)
    import numpy

    return numpy.broadcast_to(value, own)


def lend(value: Any, name: str, writable: bool = False, wanted: Any = None) -> Tuple[int, Any]:
    """The address of a DLTensor for `value`, and what to keep until the call is done.

    `wanted` is a function that gives the TensorInfo of the argument, for flat buffers.
    """
    refuse_masked(value, name)
    export = getattr(value, "__dlpack__", None)
    if export is None or getattr(value, "size", None) == 0:  # NumPy's strides of nothing are 0
        if hasattr(value, "__array_interface__") and hasattr(value, "dtype"):
            return _of_array(value, name, writable)
        return _of_buffer(value, name, writable, wanted)
    if is_torch(value):
        if value.requires_grad:
            export = _without_grad(value, name).__dlpack__
        if value.is_neg():  # torch would lend the memory without a word about the sign
            raise InvalidArgumentError(f"{name} is a view with its sign changed: call resolve_neg() first")
    try:
        if not writable:
            capsule = export()
        else:
            try:
                capsule = export(max_version=(1, 0))  # which can say that it is read-only
            except TypeError:
                capsule = export()
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if hasattr(value, "__array_interface__"):
            return _of_array(value, name, writable)
        raise InvalidArgumentError(f"{name}: {error}") from None
    try:
        if _capsule_name(capsule) == b"dltensor":
            return _capsule_pointer(capsule, b"dltensor"), capsule
        address = _capsule_pointer(capsule, b"dltensor_versioned")
    except ValueError:
        raise InvalidTypeError(f"{name}: its __dlpack__ gave {kind_of(capsule)} that is no tensor of DLPack") from None
    if ctypes.c_uint32.from_address(address).value != 1:
        raise InvalidArgumentError(f"{name}: attune reads DLPack 0 and 1 only")
    if writable and ctypes.c_uint64.from_address(address + _IN_VERSIONED - 8).value & _READ_ONLY:
        _refuse_read_only(name)
    return address + _IN_VERSIONED, capsule


def layout(value: Any) -> Optional[tuple]:
    """All of an array or tensor but its address, as a key; None if `lend` must look at it.

    Only plain NumPy arrays and torch CPU tensors have one: classes derived from them may mean anything.
    """
    kind = type(value)
    if kind.__name__ == "ndarray" and kind is getattr(sys.modules.get("numpy"), "ndarray", None):
        return value.shape, value.strides, value.dtype, value.flags.writeable
    if kind.__name__ == "Tensor" and kind is getattr(sys.modules.get("torch"), "Tensor", None):
        try:
            if value.is_cpu and not value.requires_grad and not value.is_neg():
                return value.shape, value.stride(), value.dtype
        except RuntimeError:
            return None  # it has no strides
    return None


def address(value: Any) -> int:
    """Where the first element lies of something that has a `layout`."""
    pointer = getattr(value, "data_ptr", None)
    if pointer:
        return pointer()
    capsule = value.__array_struct__  # a PyArrayInterface, in half the time of __array_interface__
    return c_void_p.from_address(_capsule_pointer(capsule, None) + _DATA_IN_STRUCT).value or 0


def empty(like: Sequence[Any], dtype: str, shape: Sequence[int]) -> Any:
    """A new tensor: torch's where an input is torch's, otherwise NumPy's."""
    if any(is_torch(value) for value in like):
        torch = sys.modules["torch"]
        return torch.empty(tuple(shape), dtype=getattr(torch, _own_name(dtype)))
    try:
        import numpy
    except ImportError:
        raise UnsupportedError(
            "NumPy or torch allocates outputs, and neither is here: pass the outputs to run()", 5
        ) from None
    if dtype in ("bf16", "f8"):
        for value in like:
            if hasattr(value, "dtype") and hasattr(value, "__array_interface__") and dtype_name(value) == dtype:
                return numpy.empty(shape, value.dtype)
        return numpy.empty(shape, "V2" if dtype == "bf16" else "u1")
    return numpy.empty(shape, _own_name(dtype))


def empty_output(q: Any, v: Any) -> Any:
    """A new tensor for the output of attention: `empty`, with less code between another's call and the kernel."""
    shape = (*q.shape[:-1], v.shape[-1])
    if type(q) is getattr(sys.modules.get("torch"), "Tensor", None):
        return q.new_empty(shape)
    return empty((q,), dtype_name(q), shape)


def _own_name(dtype: str) -> str:
    for name, ours in NAMES.items():
        if ours == dtype:
            return name
    raise InvalidArgumentError(f"attune has no dtype {dtype!r}")
