"""Problems: what is computed."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Dict, List, Union

from ._errors import InvalidProblemError, InvalidTypeError
from ._library import check, quick
from ._structs import PROBLEM_BYTES, Tensor
from ._tensor import NAMES, name_of_dtype
from ._values import kind
from ._values import text as _text

#: A size that is known only at run time: ``Problem(seq_q=DYNAMIC, …)``.
DYNAMIC = "dynamic"

#: A pair of a problem's text. Commas within quotation marks belong to it.
_PAIR = re.compile(r'(?:[^,"]|"[^"]*")+')

#: What has a meaning between or around values.
_SEPARATORS = re.compile(r'[,="]')
_QUOTED = re.compile(r'"[^"]*"')

_NAMES = ["", "f32", "f16", "bf16", "f64", "bool", "i32", "i8", "f8", "i4"]


def _plain(value: Any, name: str) -> str:
    """A field's value without quotation marks around it."""
    if str(value) in ("True", "False"):  # NumPy's, too
        return "1" if str(value) == "True" else "0"
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (list, tuple)):
        return ":".join(_plain(item, name) for item in value)
    if isinstance(value, float):
        return repr(float(value))  # NumPy's float64 is a float, and its repr says np.float64(…)
    dtype = NAMES.get(name_of_dtype(value))  # NumPy's and torch's
    if dtype is None and callable(value):
        raise InvalidTypeError(f"{name} is {kind(value)}; it must be text: flex_attention takes Python's functions")
    return dtype or str(value)


def _pair(name: str, value: Any) -> str:
    """A field as the library reads it from text. A value never becomes another field, whatever it contains."""
    if not name.isidentifier():
        raise InvalidProblemError(f"{name!r} is not a field of a problem")
    text = _plain(value, name)
    if not _SEPARATORS.search(text):
        return f"{name}={text}"
    inner = text[1:-1] if _QUOTED.fullmatch(text) else text
    if '"' in inner:
        raise InvalidProblemError(f"{name} is {text!r}, which has a quotation mark in it")
    return f'{name}="{inner}"'


class TensorInfo:
    """One tensor of a problem: `name`, `dtype` ("f32" …), `shape` (-1: known at run time), `strides` in elements,
    `is_input`, `is_output`, and `pointer_offset` in attune_arguments."""

    __slots__ = ("name", "dtype", "shape", "strides", "is_input", "is_output", "pointer_offset")

    def __init__(self, tensor: Tensor) -> None:
        self.name: str = tensor.name.decode()
        self.dtype: str = _NAMES[tensor.dtype] if tensor.dtype < len(_NAMES) else str(tensor.dtype)
        self.shape = tuple(tensor.dims[: tensor.rank])
        self.strides = tuple(tensor.strides[: tensor.rank])
        self.pointer_offset = tensor.pointer_offset
        self.is_input = bool(tensor.is_input)
        self.is_output = bool(tensor.is_output)

    def __repr__(self) -> str:
        way = "in, out" if self.is_input and self.is_output else "in" if self.is_input else "out"
        return f"<{self.name} {self.dtype} {list(self.shape)} {way}>"


def tensors_of(problem: Problem, arguments: Any = None) -> List[TensorInfo]:
    """The tensors of a problem, with the sizes of `arguments` (attune_arguments) if there are any."""
    count = ctypes.c_size_t()
    table = (Tensor * 64)()
    check(quick.attune_tensors(problem._struct, arguments, table, len(table), ctypes.byref(count)))
    return [TensorInfo(table[i]) for i in range(min(count.value, len(table)))]


class Problem:
    """An attention problem: what is computed, but not how.

    Fields come from text, from keywords, or from both. Their names are those of attune_problem's members:

        Problem("num_heads=12,seq_q=512,head_dim=64,is_causal=1")
        Problem(num_heads=12, seq_q=512, head_dim=64, is_causal=True)
        Problem(num_heads=9, num_kv_heads=3, seq_q=DYNAMIC, seq_kv=DYNAMIC, head_dim=64, attn_mask_dims="qk")

    Lists become dims or strides ("1:1:512:512"), dtypes may be those of NumPy and torch, functions are text
    (``mask_mod="q >= kv"``), and None leaves a field out.

    ``str(problem)`` is the canonical text, by which problems are compared, hashed and pickled. ``problem.fields`` is a
    dict of it. A problem that cannot be compiled raises InvalidProblemError.
    """

    __slots__ = ("_struct", "_text")
    _struct: Any
    _text: str

    def __new__(cls, text: str | Problem = "", /, **fields: Any) -> Problem:
        if not isinstance(text, (str, Problem)):
            raise InvalidTypeError(f"a problem is text or an attune.Problem, not {kind(text)}")
        self = super().__new__(cls)
        parts = [str(text)] if str(text).strip() else []
        parts += [_pair(name, value) for name, value in fields.items() if value is not None]
        struct = ctypes.create_string_buffer(PROBLEM_BYTES)
        check(quick.attune_problem_init(struct, PROBLEM_BYTES))
        check(quick.attune_problem_parse(struct, _text(",".join(parts), "a problem")))
        check(quick.attune_problem_check(struct))
        self._struct = struct
        size = quick.attune_problem_print(struct, None, 0) + 1
        canonical = ctypes.create_string_buffer(size)
        quick.attune_problem_print(struct, canonical, size)
        self._text = canonical.value.decode()
        return self

    @property
    def fields(self) -> Dict[str, Union[int, str]]:
        """The fields that differ from their defaults, by name."""
        parts = [part.partition("=") for part in _PAIR.findall(self._text)]
        return {name: int(value) if value.lstrip("-").isdigit() else value for name, _, value in parts}

    @property
    def flops(self) -> float:
        """Floating-point operations of the products, for the sizes that the problem fixes."""
        return quick.attune_problem_flops(self._struct)

    @property
    def tensors(self) -> List[TensorInfo]:
        """The tensors of a call, in the order of the kernel's parameters."""
        return tensors_of(self)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"attune.Problem({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self):
        return (Problem, (self._text,))

    def __deepcopy__(self, memo: dict) -> Problem:
        return self  # it never changes


def as_problem(problem: str | Problem) -> Problem:
    """A problem, or one read from text."""
    return problem if isinstance(problem, Problem) else Problem(problem)
