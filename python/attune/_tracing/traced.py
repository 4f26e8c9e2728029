"""Values of a function that is being traced, and what may be done to them."""

from __future__ import annotations

import functools
import math
import re
import sys
import threading
from typing import Any, Callable, Dict, Optional

from .._errors import InvalidArgumentError, UnsupportedError

_OR, _XOR, _AND, _COMPARE, _SUM, _PRODUCT, _UNARY, _PRIMARY = range(1, 9)
_BOOL, _INT, _FLOAT = range(3)
_KINDS = ("a condition", "an integer", "a number")
_KIND_NAMES = re.compile("(bool)|(u?int|long|short|char|byte)|(float|double|half|bfloat)")


class _AtWork(threading.local):
    """The tracer whose function this thread runs."""

    tracer: Any = None


at_work = _AtWork()


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
        return Traced(int.__repr__(value), _INT, _PRIMARY if value >= 0 else _UNARY)
    if isinstance(value, float):
        if math.isnan(value):
            raise _refuse("a constant NaN")
        return Traced(float.__repr__(value), _FLOAT, _PRIMARY if math.copysign(1, value) > 0 else _UNARY)
    return None


def _traced(value: Any) -> "Traced":
    if isinstance(value, Traced):
        return value
    whole = getattr(type(value), "_as_a_whole", None)  # of a captured tensor
    if whole is not None:
        raise _refuse(whole(value))
    made = _constant(value)
    if made is not None:
        return made
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


def _where(condition: Any, input: Any = None, other: Any = None) -> "Traced":
    if input is None or other is None:
        raise _refuse("torch.where with one operand")
    x, y = _traced(input), _traced(other)
    return _call("select", _condition(condition), x, y, kind=max(x._kind, y._kind))


def _masked_fill(x: Any, mask: Any, value: Any) -> "Traced":
    """Of the type of x, as torch has it."""
    x, value = _traced(x), _traced(value)
    return _where(mask, _as(x._kind)(value) if value._kind > x._kind else value, x)


def _clamp(x: Any, min: Any = None, max: Any = None) -> "Traced":
    if min is not None:
        x = _alike("max", min, x)
    return _traced(x) if max is None else _alike("min", max, x)


def _number_of(value: Any) -> Any:
    """The number in a tensor without dims, or the value itself."""
    return value.item() if _is_tensor(value) and tuple(value.shape) == () else value


def _power(x: Any, exponent: Any) -> "Traced":
    n = _number_of(exponent)
    if isinstance(n, (int, float)):
        return _power_of_constant(_as(_INT)(x) if _traced(x)._kind == _BOOL else _traced(x), n)
    base, n = _number_of(x), _traced(n)
    if not isinstance(base, (int, float)) or base <= 0:
        raise _refuse("a power that is no constant, of a base that is none,")
    if isinstance(base, int) and n._kind != _FLOAT:
        raise _refuse(f"a power of integers (write {base}.0 ** x)")
    return _call("exp2", n if base == 2 else _infix("*", _PRODUCT, math.log2(base), n))


def _power_of_constant(x: "Traced", n: float) -> "Traced":
    if n == 0.5:
        return _call("sqrt", x)
    if n < 0 and (x._kind == _FLOAT or isinstance(n, float)):
        return _divided(1, _power_of_constant(x, -n))
    if n in range(1, 9):
        return functools.reduce(lambda a, b: _infix("*", _PRODUCT, a, b), [x] * int(n))
    if n > 0 and n != int(n):
        return _call("exp2", _infix("*", _PRODUCT, float(n), _call("log2", x)))
    raise _refuse(f"a power of {n}")


def _divided(x: Any, y: Any, rounding_mode: Optional[str] = None) -> "Traced":
    if rounding_mode not in (None, "floor", "trunc"):
        raise _refuse(f"a division with rounding_mode={rounding_mode!r}")
    if rounding_mode == "floor":
        return _infix("//", _PRODUCT, x, y)
    if rounding_mode == "trunc" and _traced(x)._kind == _traced(y)._kind == _INT:
        return _truncated_quotient(x, _number_of(y))
    quotient = _infix("/", _PRODUCT, x, y, _FLOAT)
    return _truncated(quotient) if rounding_mode == "trunc" else quotient


def _truncated_quotient(x: Any, y: Any) -> "Traced":
    """Of integers, towards 0."""
    if not isinstance(y, int) or y == 0:
        raise _refuse("a division of integers with rounding_mode='trunc' by no constant")
    below = _negative(_infix("//", _PRODUCT, _negative(x), abs(y)))
    quotient = _where(_infix("<", _COMPARE, x, 0, _BOOL), below, _infix("//", _PRODUCT, x, abs(y)))
    return quotient if y > 0 else _negative(quotient)


def _truncated(x: Any) -> "Traced":
    x = _traced(x)
    if x._kind != _FLOAT:
        return x
    return _where(_infix("<", _COMPARE, x, 0, _BOOL), _ceiling(x), _call("floor", x))


def _ceiling(x: Any) -> "Traced":
    x = _traced(x)
    return x if x._kind != _FLOAT else _negative(_call("floor", _negative(x)))


def _truncated_rest(x: Any, y: Any) -> "Traced":
    return _infix("-", _SUM, x, _infix("*", _PRODUCT, y, _divided(x, y, "trunc")))


def _sign_of(x: Any) -> "Traced":
    x = _traced(x)
    below = _where(_infix("<", _COMPARE, x, 0, _BOOL), -1, 0)
    return _as(x._kind)(_where(_infix(">", _COMPARE, x, 0, _BOOL), 1, below))


def _sum(sign: str) -> Callable[..., "Traced"]:
    def of(x: Any, other: Any, alpha: Any = 1) -> "Traced":
        return _infix(sign, _SUM, x, other if alpha == 1 else _infix("*", _PRODUCT, alpha, other))

    return of


def _same(x: Any, *_: Any, **__: Any) -> "Traced":
    return _traced(x)


def _copy(x: Any, **_: Any) -> "Traced":
    x = _traced(x)
    return Traced(x._text, x._kind, x._level)


def _negative(x: Any) -> "Traced":
    x = _traced(x)
    if x._kind == _BOOL:
        raise _refuse("the negative of a condition (write ~)")
    return Traced(f"-{x._in(_PRIMARY)}", x._kind, _UNARY)


def _opposite(x: Any) -> "Traced":
    x = _traced(x)
    return Traced(f"~{x._in(_PRIMARY)}", x._kind, _UNARY)


def _floored(x: Any) -> "Traced":
    x = _traced(x)
    return _call("floor", x, kind=max(x._kind, _INT))


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
        n = _number_of(n)
        if not isinstance(n, int) or not 0 <= n < 62:
            raise _refuse("a shift that is no constant")
        return _infix(sign, _PRODUCT, x, 1 << n)

    return shift


def _filled(value: Any, like: Any, dtype: Any = None) -> "Traced":
    made, kind = _traced(value), _kind_like(dtype)
    return _as(_traced(like)._kind if kind is None else kind)(made)


def _not_finite(sign: str) -> Callable[[Any], "Traced"]:
    return lambda x: _infix(sign, _COMPARE, _absolute(x), math.inf, _BOOL)


# By the names of operators, of torch's functions and of methods of tensors.
_OPERATIONS: Dict[str, Callable[..., "Traced"]] = {
    "where": _where, "clamp": _clamp, "clip": _clamp, "pow": _power, "float_power": _power,
    "square": lambda x: _power(x, 2), "abs": _absolute, "absolute": _absolute, "neg": _negative, "negative": _negative,
    "pos": _same, "positive": _same, "invert": _opposite, "bitwise_not": _opposite,
    "logical_not": lambda x: _opposite(_condition(x)), "div": _divided, "divide": _divided, "true_divide": _divided,
    "truediv": _divided, "fmod": _truncated_rest, "float": _as(_FLOAT), "double": _as(_FLOAT), "int": _as(_INT),
    "long": _as(_INT), "bool": _as(_BOOL), "to": _to, "type": _to, "type_as": _to, "clone": _copy, "contiguous": _same,
    "detach": _same, "item": _same, "logical_and": _both("&", _AND), "logical_or": _both("|", _OR),
    "logical_xor": _both("^", _XOR), "rsqrt": lambda x: _divided(1, _call("sqrt", x)),
    "reciprocal": lambda x: _divided(1, x), "sign": _sign_of, "sgn": _sign_of, "trunc": _truncated, "fix": _truncated,
    "ceil": _ceiling, "floor": _floored,
    "lshift": _shifted("*"), "rshift": _shifted("//"), "bitwise_left_shift": _shifted("*"),
    "bitwise_right_shift": _shifted("//"), "add": _sum("+"), "sub": _sum("-"), "subtract": _sum("-"),
    "rsub": lambda x, y, alpha=1: _sum("-")(y, x, alpha),
    "masked_fill": _masked_fill,
    "lerp": lambda x, end, weight: _infix("+", _SUM, x, _infix("*", _PRODUCT, weight, _infix("-", _SUM, end, x))),
    "addcmul": lambda x, y, z, value=1: _sum("+")(x, _infix("*", _PRODUCT, y, z), value),
    "log1p": lambda x: _call("log", _infix("+", _SUM, 1, x)),
    "expm1": lambda x: _infix("-", _SUM, _call("exp", x), 1),
    "isnan": lambda x: _infix("!=", _COMPARE, x, x, _BOOL), "isinf": _not_finite("=="), "isfinite": _not_finite("<"),
    "full_like": lambda x, value, dtype=None, **_: _filled(value, x, dtype),
    "zeros_like": lambda x, dtype=None, **_: _filled(0, x, dtype),
    "ones_like": lambda x, dtype=None, **_: _filled(1, x, dtype),
}
for _name, _names in {"min": "min minimum fmin", "max": "max maximum fmax"}.items():
    for _other in _names.split():
        _OPERATIONS[_other] = functools.partial(_alike, _name)
for _name in "exp exp2 log log2 tanh sigmoid sqrt".split():
    _OPERATIONS[_name] = functools.partial(_call, _name)
for _names, _sign, _level in (
    ("mul multiply", "*", _PRODUCT),
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


def _op(name: str, *operands: Any) -> "Traced":
    return _OPERATIONS[name](*operands)


def _operation(name: str) -> Callable[..., "Traced"]:
    plain = name.strip("_")
    if plain.startswith("special_"):
        plain = plain[len("special_"):]
    if name.startswith("__r") and plain in _REFLECTED:
        forward = _OPERATIONS[_REFLECTED[plain]]
        return lambda x, y: forward(y, x)
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
        name = getattr(func, "__name__", str(func))
        if name == "__getitem__":
            return at_work.tracer.indexed(*args)
        operation = (_METHODS.get(name) if hasattr(func, "__objclass__") else None) or _operation(name)
        named = kwargs or {}
        if not named.get("inplace") and (name.startswith("__") or not name.endswith("_")):
            return operation(*args, **named)
        if not args or not isinstance(args[0], Traced):
            raise _refuse(f"'{name}' in place of a tensor that the function reaches")
        return args[0]._become(operation, *args[1:], **named)

    def __bool__(self) -> bool:
        raise _refuse("a condition in `if`, `and`, `or`, `not`, `min` or `max` (write torch.where, &, |, ~, "
                      "torch.minimum and torch.maximum)")

    def __index__(self) -> int:
        raise _refuse("an index into a list, or into an array that the function reaches through an object, or a "
                      "Python loop over positions")

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES:
            return _ATTRIBUTES[name](self)
        operation = _METHODS.get(name) or _OPERATIONS.get(name)
        if operation is not None:
            return functools.partial(operation, self)
        if name[-1:] == "_" and name[:-1] in _OPERATIONS:
            return functools.partial(self._become, _METHODS.get(name[:-1], _OPERATIONS[name[:-1]]))
        raise AttributeError(f"'{name}' of a value that is traced")

    def _become(self, operation: Callable[..., "Traced"], *operands: Any, **named: Any) -> "Traced":
        """An operation in place: others that hold this value see the result, too, which is of the same type."""
        made = operation(self, *operands, **named)
        if made._kind > self._kind:
            raise _refuse(f"an operation in place that makes {_KINDS[made._kind]} of {_KINDS[self._kind]}")
        made = _as(self._kind)(made)
        self._text, self._kind, self._level = made._text, made._kind, made._level
        return self


def _of_torch(name: str) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise AttributeError("a type or a place of PyTorch, which is not imported,")
    return torch.device("cpu") if name == "device" else getattr(torch, name)


_ATTRIBUTES: Dict[str, Callable[[Traced], Any]] = {
    "shape": lambda x: (), "ndim": lambda x: 0, "device": lambda x: _of_torch("device"),
    "dtype": lambda x: _of_torch({_BOOL: "bool", _INT: "int64", _FLOAT: "float32"}[x._kind]),
}
# Methods that are other operations than the functions of their names, or that are no functions.
_METHODS: Dict[str, Callable[..., Traced]] = {
    "where": lambda x, condition, other: _where(condition, x, other), "half": _as(_FLOAT), "bfloat16": _as(_FLOAT),
    "short": _as(_INT),
    "new_ones": lambda x, size=(), dtype=None, **_: _filled(1, x, dtype),
    "new_zeros": lambda x, size=(), dtype=None, **_: _filled(0, x, dtype),
    "new_full": lambda x, size, value, dtype=None, **_: _filled(value, x, dtype),
    "new_tensor": lambda x, data, **named: _of_torch("tensor")(data, **named),
}


def _method(name: str) -> Callable[..., Traced]:
    def method(self: Traced, *operands: Any) -> Traced:
        return _operation(name)(self, *operands)

    return method


def _in_place(name: str) -> Callable[..., Traced]:
    return lambda self, other: self._become(_OPERATIONS[name], other)


for _name in "add sub mul truediv floordiv mod and or xor pow lshift rshift".split():
    setattr(Traced, f"__{_name}__", _method(f"__{_name}__"))
    setattr(Traced, f"__i{_name}__", _in_place(_name))
    setattr(Traced, f"__r{_name}__", _method(f"__r{_name}__"))
for _name in "neg pos abs invert eq ne lt le gt ge".split():
    setattr(Traced, f"__{_name}__", _method(f"__{_name}__"))


