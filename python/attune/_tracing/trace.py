"""Functions written for PyTorch's flex_attention, as text of a problem.

The function is called once, with objects that write down what is done to them. Tensors that it reaches by closure,
global name, default or `self` are replaced before the call, so that they have names. Others are met when they are
indexed: PyTorch asks the index.
"""

from __future__ import annotations

import dis
import functools
import operator
import types
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .._errors import InvalidArgumentError, UnsupportedError
from .._tensor import dtype_name
from . import activations  # noqa: F401: adds functions to those that can be traced
from .traced import (
    _BOOL, _FLOAT, _INT, Traced, _condition, _is_tensor, _number_of, _refuse, _traced, at_work,
)

_MOST_TENSORS = 8


def _holds(values: Any, kind: type) -> bool:
    """Whether one of them is of this kind, or in a list or tuple among them."""
    return any(isinstance(x, kind) or (isinstance(x, (list, tuple)) and _holds(x, kind)) for x in values)


def _plain(value: Any) -> Any:
    """Captured tensors as they are, in lists and tuples as well."""
    if isinstance(value, Captured):
        return value._elements()
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


class Captured:
    """A tensor that a function reaches, and the indices that it has got so far."""

    def __init__(self, tracer: "Tracer", name: str, value: Any, indices: Tuple[Any, ...] = ()) -> None:
        self._tracer, self._name, self._value, self._indices = tracer, name, value, indices
        self._shape = tuple(value.shape)

    def __getitem__(self, index: Any) -> Any:
        given = tuple(map(_number_of, index if isinstance(index, tuple) else (index,)))
        if not _holds((*given, *self._indices), Traced) and not all(isinstance(i, int) for i in given):
            return self._made(self._elements()[_plain(index)])
        indices = self._indices + given
        if len(indices) > len(self._shape):
            raise InvalidArgumentError(f"{self._name} has {len(self._shape)} dims, and gets {len(indices)} indices")
        if len(indices) < len(self._shape):
            return Captured(self._tracer, self._name, self._value, indices)
        return self._tracer.element(self, indices)

    def _elements(self) -> Any:
        """The tensor itself, whose numbers the function computes with before it asks for one of them."""
        if _holds(self._indices, Traced):
            raise _refuse(f"arithmetic on a row of the tensor {self._name} (index it in all of its dims)")
        return self._value[self._indices] if self._indices else self._value

    def _made(self, value: Any) -> Any:
        """What was computed from the tensor."""
        if callable(value) and not _is_tensor(value):
            return lambda *operands, **named: self._computed(value, operands, named)
        if type(value) in (list, tuple):
            return type(value)(map(self._made, value))
        return Captured(self._tracer, self._name, value) if _is_tensor(value) and tuple(value.shape) else value

    def _computed(self, function: Callable, operands: Any, named: Dict[str, Any]) -> Any:
        if _holds((*operands, *named.values()), Traced):
            what = getattr(function, "__name__", str(function))
            raise _refuse(f"'{what}' of the whole tensor {self._name} and a value that depends on positions (index it)")
        return self._made(function(*map(_plain, operands), **{key: _plain(item) for key, item in named.items()}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("shape", "dtype", "device", "ndim", "size", "dim", "numel"):
            return getattr(self._value[(0,) * len(self._indices)] if self._indices else self._value, name)
        return self._made(getattr(self._elements(), name))

    def __len__(self) -> int:
        return self._shape[len(self._indices)]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        return _first_of((*args, *named.values()))._computed(func, args, named)

    def _as_a_whole(self) -> str:
        return f"the tensor {self._name} as a whole (index it in all of its {len(self._shape)} dims)"

    __hash__ = object.__hash__


def _first_of(values: Any) -> Any:
    """The first captured tensor, also in lists and tuples."""
    for value in values:
        found = value if isinstance(value, Captured) else _first_of(value) if isinstance(value, (list, tuple)) else None
        if found is not None:
            return found
    return None


def _operator(of: Callable, is_reflected: bool) -> Callable:
    def method(self: Captured, *others: Any) -> Any:
        return self._computed(of, (*others, self) if is_reflected else (self, *others), {})

    return method


for _name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split():
    for _is_reflected in (False, True):
        _of = getattr(operator, _name + "_" * (_name in ("and", "or")))
        setattr(Captured, f"__{'r' * _is_reflected}{_name}__", _operator(_of, _is_reflected))
for _name in "eq ne lt le gt ge neg pos invert abs".split():
    setattr(Captured, f"__{_name}__", _operator(getattr(operator, _name), False))


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
        self._functions: Dict[types.FunctionType, types.FunctionType] = {}

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
            return functools.partial(self.replaced(value.__func__, name), _Self(self, value.__self__))
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
        if f in self._functions:
            return self._functions[f]
        found = dict(f.__globals__)
        cells = tuple(types.CellType() for _ in f.__closure__ or ())
        made = types.FunctionType(f.__code__, found, f.__name__, f.__defaults__, cells or None)
        self._functions[f] = made  # before what it reaches, which may be the function itself
        for name in _globals_of(f.__code__):
            value = found.get(name)
            if _is_tensor(value) or isinstance(value, (types.FunctionType, functools.partial, list, tuple, dict)):
                found[name] = self.replaced(value, name)
        for made_cell, cell, name in zip(cells, f.__closure__ or (), f.__code__.co_freevars):
            made_cell.cell_contents = self.replaced(_content(cell, name), name)
        made.__defaults__ = tuple(self._all(f.__defaults__ or (), "default")) or None
        made.__kwdefaults__ = {key: self.replaced(item, key) for key, item in (f.__kwdefaults__ or {}).items()} or None
        return made

    def _call(self, f: Callable, what: str) -> Any:
        places = [Traced(name, _INT) for name in ("b", "h", "q", "kv")]
        given = {"score_mod": [Traced("score", _FLOAT)], "prob_mod": [Traced("prob", _FLOAT)]}.get(what, [])
        before, at_work.tracer = at_work.tracer, self
        try:
            return self.replaced(f, what)(*given, *places)
        finally:
            at_work.tracer = before

    def indexed(self, value: Any, index: Any) -> Any:
        """A tensor that has not been replaced: the function makes it, or reaches it through an object."""
        return Captured(self, "tensor", value)[index]

    def trace(self, f: Any, what: str) -> Optional[str]:
        """The function as text; None: there is none."""
        if f is None:
            return None
        if not callable(f):
            raise InvalidArgumentError(f"{what} is {type(f).__name__}; it must be a function")
        if not isinstance(f, (types.FunctionType, types.MethodType, functools.partial)):
            f = f.__call__
        try:
            result = self._call(f, what)
            if result is None:
                raise InvalidArgumentError("the function returns None")
            result = _traced(result)
        except (UnsupportedError, InvalidArgumentError) as error:
            raise type(error)(f"{what}: {error}", error.status) from None
        except RecursionError:
            raise UnsupportedError(f"{what} cannot be traced: it calls itself without an end", 5) from None
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError) as error:
            reason = str(error).partition("\n")[0].partition(", but expected")[0]  # torch lists all that it takes
            raise UnsupportedError(f"{what} cannot be traced: {reason}", 5) from None
        if what == "mask_mod":
            result = _condition(result)
        return '"' + result._text + '"'


def _content(cell: Any, name: str) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise _refuse(f"{name}, which has no value yet,") from None


def code_of(f: Any) -> Optional[types.CodeType]:
    """The code of a function that has nothing beside it, so that its text changes only if a name in it does."""
    if type(f) is types.FunctionType and f.__closure__ is f.__defaults__ is f.__kwdefaults__ is None:
        return f.__code__
    return None


def has_names(code: types.CodeType) -> bool:
    """Whether the code, or a function inside of it, looks up anything, be it an attribute."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return bool(code.co_names) or any(has_names(constant) for constant in inner)


@functools.lru_cache(1024)
def _globals_of(code: types.CodeType) -> frozenset:
    """The global names that the code and the functions inside of it may look up."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _globals_of(constant)
    return frozenset(names)
