"""Functions written for PyTorch's flex_attention, as text of a problem.

The function is called once, with objects that write down what is done to them. Tensors that it reaches by closure,
global name, default or `self` are replaced before the call: torch's own indexing would not take such an object.
"""

from __future__ import annotations

import functools
import math
import re
import types
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from ._errors import InvalidArgumentError, UnsupportedError
from ._tensor import dtype_name

_OR, _XOR, _AND, _COMPARE, _SUM, _PRODUCT, _UNARY, _PRIMARY = range(1, 9)
_BOOL, _INT, _FLOAT = range(3)
_MOST_TENSORS = 8
_KIND_NAMES = re.compile("(bool)|(u?int|long|short|char|byte)|(float|double|half|bfloat)")
_INT32 = (-(2**31), 2**31 - 1)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "__getitem__")


def _refuse(what: str) -> UnsupportedError:
    return UnsupportedError(f"{what} cannot be traced; docs/functions.md lists what functions may use", 5)


def _constant(value: Any) -> Optional["Traced"]:
    """A number as it stands in text; None: it is none."""
    if _is_tensor(value) and tuple(value.shape) == ():
        value = value.item()
    if isinstance(value, bool):
        return Traced("true" if value else "false", _BOOL)
    if isinstance(value, int):
        if not -(2**63) < value < 2**63:
            raise InvalidArgumentError(f"the number {value} does not fit 64 bits")
        return Traced(str(value), _INT, _PRIMARY if value >= 0 else _UNARY)
    if isinstance(value, float):
        if math.isnan(value):
            raise _refuse("a constant NaN")
        return Traced(repr(value), _FLOAT, _PRIMARY if math.copysign(1, value) > 0 else _UNARY)
    return None


def _traced(value: Any) -> "Traced":
    made = value if isinstance(value, Traced) else _constant(value)
    if made is not None:
        return made
    if isinstance(value, Captured):
        raise _refuse(f"the tensor {value._name} as a whole (index it in all of its {len(value._shape)} dims)")
    raise _refuse(f"an operand of type {type(value).__name__}")


def _infix(sign: str, level: int, x: Any, y: Any, kind: Optional[int] = None) -> "Traced":
    x, y = _traced(x), _traced(y)
    if kind is None and x._kind == y._kind == _BOOL:
        if sign == "-":
            raise _refuse("a difference of two conditions (write ^)")
        sign, level = {"+": ("|", _OR), "*": ("&", _AND)}.get(sign, (sign, level))  # as torch has them
    if kind is None:
        kind = max(x._kind, y._kind, _INT if level >= _SUM else _BOOL)
    return Traced(f"{x._in(level + (level == _COMPARE))} {sign} {y._in(level + 1)}", kind, level)


def _call(name: str, *operands: Any, kind: int = _FLOAT) -> "Traced":
    return Traced(f"{name}({', '.join(_traced(x)._text for x in operands)})", kind)


def _condition(x: Any) -> "Traced":
    x = _traced(x)
    return x if x._kind == _BOOL else _infix("!=", _COMPARE, x, 0, _BOOL)


def _alike(name: str, x: Any, y: Any) -> "Traced":
    x, y = _traced(x), _traced(y)
    if x._kind == y._kind == _BOOL:
        return _infix("|", _OR, x, y) if name == "max" else _infix("&", _AND, x, y)
    return _call(name, x, y, kind=max(x._kind, y._kind))


def _where(condition: Any, x: Any = None, y: Any = None) -> "Traced":
    if x is None or y is None:
        raise _refuse("torch.where with one operand")
    x, y = _traced(x), _traced(y)
    return _call("select", _condition(condition), x, y, kind=max(x._kind, y._kind))


def _clamp(x: Any, min: Any = None, max: Any = None) -> "Traced":
    if min is not None:
        x = _alike("max", min, x)
    return _traced(x) if max is None else _alike("min", max, x)


def _power(x: Any, n: Any) -> "Traced":
    x = _traced(x)
    if not isinstance(n, (int, float)):
        raise _refuse("a power that is no constant")
    if n == 0.5:
        return _call("sqrt", x)
    if n not in range(1, 9):
        raise _refuse(f"a power of {n}")
    return functools.reduce(lambda a, b: _infix("*", _PRODUCT, a, b), [x] * int(n))


def _divided(x: Any, y: Any, rounding_mode: Optional[str] = None) -> "Traced":
    if rounding_mode == "trunc":
        raise _refuse("a division with rounding_mode='trunc'")
    if rounding_mode == "floor":
        return _infix("//", _PRODUCT, x, y)
    return _infix("/", _PRODUCT, x, y, _FLOAT)


def _same(x: Any, *_: Any, **__: Any) -> "Traced":
    return _traced(x)


def _negative(x: Any) -> "Traced":
    x = _traced(x)
    if x._kind == _BOOL:
        raise _refuse("the negative of a condition (write ~)")
    return Traced(f"-{x._in(_PRIMARY)}", x._kind, _UNARY)


def _opposite(x: Any) -> "Traced":
    x = _traced(x)
    return Traced(f"~{x._in(_PRIMARY)}", x._kind, _UNARY)


def _as(kind: int) -> Callable[..., "Traced"]:
    def convert(x: Any, *_: Any, **__: Any) -> "Traced":
        x = _traced(x)
        if x._kind == kind:
            return x
        return _condition(x) if kind == _BOOL else _call("float" if kind == _FLOAT else "int", x, kind=kind)

    return convert


def _kind_like(like: Any) -> Optional[int]:
    """The kind of a dtype, or of a value; None: it is a device or another option."""
    if isinstance(like, Traced):
        return like._kind
    dtype = getattr(like, "dtype", like)
    name = getattr(dtype, "__name__", str(dtype)).rpartition(".")[2].lower()
    found = _KIND_NAMES.match(name)
    return None if found is None else (_BOOL, _INT, _FLOAT)[(found.lastindex or 1) - 1]


def _to(x: Any, *likes: Any, **named: Any) -> "Traced":
    """Any of the operands may be a dtype or a value whose dtype is meant; the others tell where the result lies."""
    kinds = [_kind_like(like) for like in (*likes, named.get("dtype"), named.get("other"))]
    return next((_as(kind)(x) for kind in kinds if kind is not None), _traced(x))


def _absolute(x: Any) -> "Traced":
    return _call("abs", x, kind=max(_traced(x)._kind, _INT))


def _both(sign: str, level: int) -> Callable[[Any, Any], "Traced"]:
    return lambda x, y: _infix(sign, level, _condition(x), _condition(y))


def _shifted(sign: str) -> Callable[[Any, Any], "Traced"]:
    def shift(x: Any, n: Any) -> "Traced":
        if not isinstance(n, int) or not 0 <= n < 62:
            raise _refuse("a shift that is no constant")
        return _infix(sign, _PRODUCT, x, 1 << n)

    return shift


# By the names of operators, of torch's functions and of methods of tensors.
_OPERATIONS: Dict[str, Callable[..., "Traced"]] = {
    "where": _where, "clamp": _clamp, "clip": _clamp, "pow": _power, "square": lambda x: _power(x, 2), "abs": _absolute,
    "absolute": _absolute, "neg": _negative, "negative": _negative, "pos": _same, "invert": _opposite,
    "bitwise_not": _opposite, "logical_not": lambda x: _opposite(_condition(x)), "div": _divided, "divide": _divided,
    "true_divide": _divided, "truediv": _divided, "float": _as(_FLOAT), "double": _as(_FLOAT), "int": _as(_INT),
    "long": _as(_INT), "bool": _as(_BOOL), "to": _to, "type": _to, "type_as": _to, "clone": _same, "contiguous": _same,
    "detach": _same, "item": _same, "logical_and": _both("&", _AND), "logical_or": _both("|", _OR),
    "logical_xor": _both("^", _XOR), "rsqrt": lambda x: _divided(1, _call("sqrt", x)),
    "reciprocal": lambda x: _divided(1, x), "relu": lambda x: _alike("max", 0, x),
    "lshift": _shifted("*"), "rshift": _shifted("//"), "bitwise_left_shift": _shifted("*"),
    "bitwise_right_shift": _shifted("//"),
    "floor": lambda x: _call("floor", x, kind=max(_traced(x)._kind, _INT)),
}
for _name, _names in {"min": "min minimum fmin", "max": "max maximum fmax"}.items():
    for _other in _names.split():
        _OPERATIONS[_other] = functools.partial(_alike, _name)
for _name in "exp exp2 log log2 tanh sigmoid sqrt".split():
    _OPERATIONS[_name] = functools.partial(_call, _name)
for _names, _sign, _level in (
    ("add", "+", _SUM), ("sub subtract", "-", _SUM), ("mul multiply", "*", _PRODUCT),
    ("floordiv floor_divide", "//", _PRODUCT), ("mod remainder", "%", _PRODUCT), ("and bitwise_and", "&", _AND),
    ("or bitwise_or", "|", _OR), ("xor bitwise_xor", "^", _XOR),
):
    for _other in _names.split():
        _OPERATIONS[_other] = functools.partial(_infix, _sign, _level)
for _names, _sign in (
    ("eq", "=="), ("ne not_equal", "!="), ("lt less", "<"), ("le less_equal", "<="), ("gt greater", ">"),
    ("ge greater_equal", ">="),
):
    for _other in _names.split():
        _OPERATIONS[_other] = functools.partial(_infix, _sign, _COMPARE, kind=_BOOL)
_REFLECTED = {"r" + name: name for name in (
    "add sub mul truediv floordiv mod and or xor pow lshift rshift div".split()
)}


def _operation(name: str) -> Callable[..., "Traced"]:
    plain = name.strip("_")
    if name.startswith("__r") and plain in _REFLECTED or plain == "rsub":
        forward = _OPERATIONS[_REFLECTED[plain]]
        return lambda x, y: forward(y, x)
    if plain == "getitem":
        raise _refuse("an index into a tensor that was made inside of the function")
    if plain not in _OPERATIONS:
        raise _refuse(f"'{plain}'")
    return _OPERATIONS[plain]


class Traced:
    """A value of a function that is being traced: its text, its type, and how tightly the text holds together."""

    __slots__ = ("_text", "_kind", "_level")
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 1000  # NumPy leaves operators to this class
    __array_ufunc__ = None

    def __init__(self, text: str, kind: int, level: int = _PRIMARY) -> None:
        self._text, self._kind, self._level = text, kind, level

    def _in(self, level: int) -> str:
        return self._text if self._level >= level else f"({self._text})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return _operation(getattr(func, "__name__", str(func)))(*args, **(kwargs or {}))

    def __bool__(self) -> bool:
        raise _refuse("a condition in `if`, `and`, `or` or `not` (write torch.where, &, | and ~)")

    def __index__(self) -> int:
        raise _refuse("an index into a tensor that was made inside of the function, or a Python loop over positions")

    def __getattr__(self, name: str) -> Any:
        if name in ("new_ones", "new_zeros"):  # and_masks and or_masks begin with these
            return lambda size=(), dtype=None, **_: _constant(name == "new_ones")
        if name in ("shape", "ndim"):
            return () if name == "shape" else 0
        if name.startswith("__") or name not in _OPERATIONS:
            raise AttributeError(f"'{name}' of a value that is traced")
        return functools.partial(_OPERATIONS[name], self)


def _method(name: str) -> Callable[..., Traced]:
    def method(self: Traced, *operands: Any) -> Traced:
        return _operation(name)(self, *operands)

    return method


for _name in "add sub mul truediv floordiv mod and or xor pow lshift rshift".split():
    setattr(Traced, f"__{_name}__", _method(f"__{_name}__"))
    setattr(Traced, f"__r{_name}__", _method(f"__r{_name}__"))
for _name in "neg pos abs invert eq ne lt le gt ge".split():
    setattr(Traced, f"__{_name}__", _method(f"__{_name}__"))


class Captured:
    """A tensor that a function reaches, and the indices that it has got so far."""

    def __init__(self, tracer: "Tracer", name: str, value: Any, indices: Tuple[Any, ...] = ()) -> None:
        self._tracer, self._name, self._value, self._indices = tracer, name, value, indices
        self._shape = tuple(value.shape)

    def __getitem__(self, index: Any) -> Any:
        indices = self._indices + (index if isinstance(index, tuple) else (index,))
        if len(indices) > len(self._shape):
            raise InvalidArgumentError(f"{self._name} has {len(self._shape)} dims, and gets {len(indices)} indices")
        if len(indices) < len(self._shape):
            return Captured(self._tracer, self._name, self._value, indices)
        return self._tracer.element(self, indices)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "device", "ndim", "size", "dim", "numel"):
            return getattr(self._value[(0,) * len(self._indices)] if self._indices else self._value, name)
        raise _refuse(f"'{name}' of the tensor {self._name}")

    def __len__(self) -> int:
        return self._shape[len(self._indices)]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        name = next((x._name for x in args if isinstance(x, Captured)), "")
        raise _refuse(f"'{getattr(func, '__name__', func)}' of the whole tensor {name}")

    def _whole(self, *_: Any) -> Any:
        raise _refuse(f"arithmetic on the whole tensor {self._name} (index it first)")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _whole
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __invert__ = _whole  # type: ignore[assignment]
    __hash__ = object.__hash__


class _Self:
    """An object whose attributes that are tensors are captured."""

    def __init__(self, tracer: "Tracer", value: Any) -> None:
        object.__setattr__(self, "_parts", (tracer, value))

    def __getattr__(self, name: str) -> Any:
        tracer, value = object.__getattribute__(self, "_parts")
        return tracer.replaced(getattr(value, name), name)


class Tracer:
    """The functions of one call, and the tensors that they read."""

    def __init__(self, sizes: Dict[str, int], strict: bool) -> None:
        self.sizes, self.strict = sizes, strict
        self.tensors: Dict[str, Any] = {}  # by name in the text
        self._dims: Dict[str, List[str]] = {}
        self._names: Dict[int, str] = {}

    # ---- Tensors ----

    def _declare(self, captured: Captured, indices: Tuple[Traced, ...]) -> str:
        """The tensor's name in the text. A dim that a position counts gets that position's size."""
        known = self._names.get(id(captured._value))
        if known is not None:
            return known
        if len(self.tensors) == _MOST_TENSORS:
            raise UnsupportedError(f"the functions read more than {_MOST_TENSORS} tensors", 5)
        name = "".join(c if c.isascii() and c.isalnum() else "_" for c in captured._name)[:24] or "tensor"
        name = f"{name}_{len(self.tensors)}" if name[0].isalpha() else f"t{name}_{len(self.tensors)}"
        dims = [
            index._text if self.sizes.get(index._text) == size else str(size)
            for index, size in zip(indices, captured._shape)
        ]
        if 0 in captured._shape or len(dims) > 4:
            raise UnsupportedError(f"{captured._name} has the shape {list(captured._shape)}; one to four dims of 1 or "
                                   "more can be read", 5)
        self.tensors[name] = captured._value
        self._dims[name] = dims
        self._names[id(captured._value)] = name
        return name

    def element(self, captured: Captured, given: Tuple[Any, ...]) -> Traced:
        indices = []
        for index, size in zip(given, captured._shape):
            if _is_tensor(index) and tuple(index.shape) == ():
                index = index.item()
            if isinstance(index, (slice, list, bool, type(None), type(...), Captured)):
                raise _refuse(f"an index of {captured._name} that is no single integer")
            if isinstance(index, int) and not -size <= index < size:
                raise InvalidArgumentError(f"the index {index} of {captured._name} is outside of a dim of {size}")
            indices.append(_traced(index + size if isinstance(index, int) and index < 0 else index))
        name = self._declare(captured, tuple(indices))
        places = []
        for index, dim, size in zip(indices, self._dims[name], captured._shape):
            if index._kind == _FLOAT:
                raise InvalidArgumentError(f"an index of {captured._name} is not an integer")
            is_known = index._text == dim or (index._text.isdigit() and dim.isdigit() and int(index._text) < size)
            places.append(index._text if is_known or self.strict else f"clamp({index._text})")
        dtype = dtype_name(captured._value)
        kind = _BOOL if dtype == "bool" else _FLOAT if dtype in ("f32", "f64", "f16", "bf16") else _INT
        return Traced(f"{name}[{', '.join(places)}]", kind)

    def declarations(self) -> Optional[str]:
        if not self.tensors:
            return None
        types_of = ((name, dtype_name(value)) for name, value in self.tensors.items())
        texts = [f"{name}:{dtype}[{', '.join(self._dims[name])}]" for name, dtype in (
            (name, dtype if dtype in ("f32", "f16", "bf16", "f64", "i32", "i8", "bool") else "i32")
            for name, dtype in types_of
        )]
        return '"' + ", ".join(texts) + '"'

    # ---- Functions ----

    def replaced(self, value: Any, name: str) -> Any:
        """What a function reaches, with tensors and functions inside replaced."""
        if isinstance(value, (Traced, Captured)):
            return value
        if _is_tensor(value) and not isinstance(value, type):
            return Captured(self, name, value) if tuple(value.shape) else value
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, types.MethodType):
            return functools.partial(self.function(value.__func__), _Self(self, value.__self__))
        if isinstance(value, functools.partial):
            keywords = {key: self.replaced(item, key) for key, item in value.keywords.items()}
            return functools.partial(self.replaced(value.func, name), *self._all(value.args, name), **keywords)
        if type(value) in (list, tuple):
            return type(value)(self._all(value, name))
        if type(value) is dict:
            return {key: self.replaced(item, f"{name}_{key}") for key, item in value.items()}
        return value

    def _all(self, values: Any, name: str) -> list:
        return [self.replaced(item, f"{name}_{i}") for i, item in enumerate(values)]

    def function(self, f: types.FunctionType) -> types.FunctionType:
        """The same code, which finds replaced values by its names. Functions of torch itself stay as they are."""
        if (f.__module__ or "").split(".")[0] == "torch" and not f.__closure__:
            return f
        found = dict(f.__globals__)
        for name in _names_of(f.__code__):
            value = found.get(name)
            if value is f:
                raise _refuse(f"{name}, which calls itself,")
            if _is_tensor(value) or isinstance(value, (types.FunctionType, functools.partial, list, tuple, dict)):
                found[name] = self.replaced(value, name)
        cells = tuple(
            types.CellType(self.replaced(_content(cell, name), name))
            for cell, name in zip(f.__closure__ or (), f.__code__.co_freevars)
        )
        made = types.FunctionType(f.__code__, found, f.__name__, f.__defaults__, cells or None)
        made.__defaults__ = tuple(self._all(f.__defaults__ or (), "default")) or None
        made.__kwdefaults__ = {key: self.replaced(item, key) for key, item in (f.__kwdefaults__ or {}).items()} or None
        return made

    def trace(self, f: Any, what: str) -> Optional[str]:
        """The function as text; None: there is none."""
        if f is None:
            return None
        if not callable(f):
            raise InvalidArgumentError(f"{what} is {type(f).__name__}; it must be a function")
        places = [Traced(name, _INT) for name in ("b", "h", "q", "kv")]
        operands = {"score_mod": [Traced("score", _FLOAT)], "prob_mod": [Traced("prob", _FLOAT)]}.get(what, []) + places
        if not isinstance(f, (types.FunctionType, types.MethodType, functools.partial)):
            f = f.__call__
        try:
            result = self.replaced(f, what)(*operands)
            if result is None:
                raise InvalidArgumentError("the function returns None")
            result = _traced(result)
        except (UnsupportedError, InvalidArgumentError) as error:
            raise type(error)(f"{what}: {error}", error.status) from None
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UnsupportedError(f"{what} cannot be traced: {error}", 5) from None
        if what == "mask_mod":
            result = _condition(result)
        return '"' + result._text + '"'


def _content(cell: Any, name: str) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise _refuse(f"{name}, which has no value yet,") from None


def _names_of(code: types.CodeType) -> set:
    """The names that the code and the functions inside of it may look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_of(constant)
    return names
