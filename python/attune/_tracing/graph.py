"""Subgraphs of ONNX's FlexAttention, score_mod and prob_mod, as text of a problem.

A subgraph computes whole tensors [batch, heads, queries, keys]; a function of attune computes one element of them. So
each value of the subgraph is kept as what its element is, by the element's indices: broadcasting, reshaping and slicing
change indices, and other operators are written down (trace.py). What follows from constants and shapes alone ONNX's
own reference computes here; positions that are counted are written down all the same, because q >= kv says more than a
tensor does.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from .._errors import InvalidArgumentError, UnsupportedError
from .trace import Captured, Tracer
from .traced import _BOOL, _FLOAT, _INT, _OPERATIONS, Traced, _constant, _op, _traced
from .values import (
    _FIXED,
    _MADE,
    _OPEN,
    Size,
    Value,
    _broadcast,
    _counted,
    _Element,
    _element,
    _left_over,
    _origin,
    _refuse_open,
    _reshaped,
)

_POSITIONS = ("b", "h", "q", "kv")

# ---- Operators ----

_UNARY = {name: name.lower() for name in "Abs Neg Exp Log Tanh Sigmoid Sqrt Floor Relu Reciprocal Identity".split()}
_UNARY.update(Identity="clone", BitwiseNot="invert")
_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt",
    "GreaterOrEqual": "ge", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "BitwiseAnd": "and",
    "BitwiseOr": "or", "BitwiseXor": "xor",
}
_INT_MAX = 2**31 - 1
_KINDS = {"b": _BOOL, "i": _INT, "u": _INT, "f": _FLOAT, "V": _FLOAT}


def _not(x: Traced) -> Traced:
    return _op("logical_not", x)


def _quotient(x: Traced, y: Traced) -> Traced:
    """Integers are rounded towards zero."""
    if max(x._kind, y._kind) == _FLOAT:
        return _op("truediv", x, y)
    if not y._text.isdigit() or y._text == "0":
        raise UnsupportedError("Div of integers by what is no constant above 0 cannot become a function", 5)
    return _op("where", _op("ge", x, 0), _op("floordiv", x, y), _op("neg", _op("floordiv", _op("neg", x), y)))


def _ceil(x: Traced) -> Traced:
    return _op("neg", _op("floor", _op("neg", x)))


def _power(x: Traced, y: Traced) -> Traced:
    try:
        return _op("pow", x, float(y._text) if not y._text.isdigit() else int(y._text))
    except ValueError:
        raise UnsupportedError("Pow with an exponent that is no constant cannot become a function", 5) from None


def _softplus(x: Traced) -> Traced:
    return _op("log", _op("add", 1.0, _op("exp", x)))


_FUNCTIONS: Dict[str, Callable[..., Traced]] = {"Not": _not, "Div": _quotient, "Ceil": _ceil, "Pow": _power,
                                                "Softplus": _softplus}
_FUNCTIONS.update({name: _OPERATIONS[own] for name, own in (*_UNARY.items(), *_BINARY.items())})


def _cast(x: Traced, to: int) -> Traced:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(to))
    kind = _KINDS.get(dtype.kind)
    if kind is None:
        raise UnsupportedError(f"Cast to {dtype} cannot become a function", 5)
    return x if kind == x._kind else _op({_BOOL: "bool", _INT: "int", _FLOAT: "float"}[kind], x)


class GraphReader:
    """Reads subgraphs of one node; the tracer keeps the tensors that they read."""

    def __init__(self, tracer: Tracer, shape: Sequence[int], outer: Optional[Dict[str, np.ndarray]] = None) -> None:
        self.tracer, self.shape, self.outer = tracer, tuple(shape), dict(outer or {})
        self._small: Dict[int, Any] = {}  # constants without their dims of 1, by the identity of the constant

    def text(self, graph: onnx.GraphProto, what: str) -> str:
        """The function that the subgraph computes, in quotation marks. `what`: score_mod or prob_mod."""
        try:
            return '"' + self._read(graph, what) + '"'
        except (UnsupportedError, InvalidArgumentError) as error:
            raise type(error)(f"{what}: {error}", error.status) from None

    def _read(self, graph: onnx.GraphProto, what: str) -> str:
        if len(graph.input) != 1 or len(graph.output) != 1:
            raise InvalidArgumentError(f"the subgraph has {len(graph.input)} inputs and {len(graph.output)} outputs; "
                                       "it must have one of each")
        operand = Traced("score" if what == "score_mod" else "prob", _FLOAT)
        values = {name: self.constant(array, name) for name, array in self.outer.items()}
        for tensor in graph.initializer:
            values[tensor.name] = self.constant(numpy_helper.to_array(tensor), tensor.name)
        values[graph.input[0].name] = Value(self.shape, self._whole(operand))
        for node in graph.node:
            self._evaluate(node, values)
        result = values.get(graph.output[0].name)
        if result is None:
            raise InvalidArgumentError(f"nothing computes the subgraph's output '{graph.output[0].name}'")
        if _broadcast([result, values[graph.input[0].name]], "the subgraph's output") != self.shape:
            raise InvalidArgumentError(f"the subgraph's output has the shape {list(result.shape)}; it must have the "
                                       f"input's, {list(self.shape)}")
        return _cast(_element(result, tuple(Traced(name, _INT) for name in _POSITIONS)), onnx.TensorProto.FLOAT)._text

    def _whole(self, operand: Traced) -> _Element:
        """The score is known at its own place only."""

        def at(indices: Tuple[Traced, ...]) -> Traced:
            for index, name, size in zip(indices, _POSITIONS, self.shape):
                if index._text != name and size != 1:
                    raise UnsupportedError(f"a {operand._text} other than the one at hand cannot be read by a function",
                                           5)
            return operand

        return at

    # ---- Values ----

    def constant(self, array: np.ndarray, name: str) -> Value:
        array = np.asarray(array)
        counted = _counted(array)
        if counted is not None:
            return counted

        def at(indices: Tuple[Traced, ...]) -> Traced:
            first = array.reshape(-1)[:1]
            if array.size == 1 or (array == first).all():
                return self._number(first.item() if array.size else 0, name)
            own = tuple(index for index, size in zip(indices, array.shape) if size != 1)
            return self.tracer.element(Captured(self.tracer, name, self._squeezed(array)), own)

        return Value(array.shape, at, array)

    @staticmethod
    def _number(value: Any, name: str) -> Traced:
        made = _constant(value)
        if made is None:
            raise UnsupportedError(f"the constant {name} is no number", 5)
        return made

    def _squeezed(self, array: np.ndarray) -> np.ndarray:
        return self._small.setdefault(id(array), (array, np.ascontiguousarray(np.squeeze(array))))[1]

    # ---- Nodes ----

    def _evaluate(self, node: onnx.NodeProto, values: Dict[str, Value]) -> None:
        inputs: List[Optional[Value]] = []
        for name in node.input:
            if name and name not in values:
                raise UnsupportedError(f"'{name}' is computed outside of the subgraph; it must be a constant", 5)
            inputs.append(values[name] if name else None)
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        known = all(value is None or value.constant is not None for value in inputs)
        first = inputs[0] if inputs else None
        if node.op_type == "Shape" and first is not None:
            end = attributes.get("end", len(first.shape))
            shape = first.shape[attributes.get("start", 0):end]
            values[node.output[0]] = self._known(np.array(shape, np.int64), node.output[0],
                                                 np.array([_origin(size) for size in shape]))
        elif node.op_type == "Size" and first is not None:
            count = np.array(math.prod(first.shape), np.int64)
            values[node.output[0]] = self._known(count, node.output[0],
                                                 np.array(_MADE if first.has_open_shape() else _FIXED))
        elif known:
            self._fold(node, inputs, attributes, values)
        else:
            values[node.output[0]] = self._symbolic(node, inputs, attributes)

    def _fold(self, node: onnx.NodeProto, inputs: List[Optional[Value]], attributes: Dict[str, Any],
              values: Dict[str, Value]) -> None:
        if node.op_type in ("RandomNormal", "RandomUniform"):
            raise UnsupportedError(f"{node.op_type} cannot become a function", 5)
        feeds = {name: value.constant for name, value in zip(node.input, inputs) if value is not None}
        try:
            results = ReferenceEvaluator(node).run(None, feeds)
        except Exception as error:  # whatever ONNX's reference raises for a node that it cannot compute
            raise UnsupportedError(f"{node.op_type} of constants cannot be computed: {error}", 5) from None
        is_open = any(value is not None and not value.is_fixed() for value in inputs)
        for name, result in zip(node.output, results):
            values[name] = self._of_open(node, inputs, result) if is_open else self.constant(result, name)
        is_counted = any(value is not None and value.is_counted for value in inputs)
        is_written = node.op_type in _FUNCTIONS or node.op_type in _METHODS
        known = values[node.output[0]]
        if is_written and (node.op_type == "Trilu" or is_counted or not known.is_fixed()):
            written = self._symbolic(node, inputs, attributes)
            values[node.output[0]] = Value(written.shape, written.at, known.constant, True, known.origins)

    def _known(self, array: np.ndarray, name: str, origins: np.ndarray) -> Value:
        """Numbers that may come from open sizes: those may count, and must not stand in a function."""
        if not origins.any():
            return self.constant(array, name)

        def at(indices: Tuple[Traced, ...]) -> Traced:
            raise _refuse_open(name)

        return Value(array.shape, at, np.asarray(array), False, origins)

    def _of_open(self, node: onnx.NodeProto, inputs: List[Optional[Value]], result: Any) -> Value:
        """What a node makes of constants some of which come from open sizes. Probing them with numbers proves
        nothing, so only what is understood keeps them apart: sizes that move, positions, and a tensor of one value."""
        result, given = np.asarray(result), [value for value in inputs if value is not None]
        name = node.output[0]
        made = np.full(result.shape, _MADE)
        first, rest = given[0], given[1:]
        if node.op_type == "Range" and all(value.is_fixed() for value in (first, given[2])):
            is_plain = first.constant == 0 and given[2].constant == 1 and result.dtype.kind == "i"
            if is_plain and given[1].origins is not None and int(given[1].origins) == _OPEN:
                return Value([Size.of(result.size, _OPEN)], lambda indices: indices[0], result, True, made)
        if node.op_type == "ConstantOfShape":
            return Value(self._open_sizes(first, "ConstantOfShape"), self.constant(result.reshape(-1)[:1], name).at,
                         result, False, made)
        is_moved = node.op_type in _MOVING and all(value.is_fixed() for value in rest)
        if node.op_type == "Concat" or is_moved:
            if result.dtype.kind == "i" and not any(value.has_open_shape() for value in given):
                return self._known(result, name, self._moved(node, given))
        shape = [Size.of(size, _MADE) for size in result.shape]
        return Value(shape, self._known(result, name, np.array(_MADE)).at, result, False, made)

    @staticmethod
    def _moved(node: onnx.NodeProto, given: List[Value]) -> np.ndarray:
        """The origins of sizes that an operator picks and puts together: it does the same to them."""
        feeds: Dict[str, Any] = {name: value.constant for name, value in zip((n for n in node.input if n), given)}
        for name, value in zip((n for n in node.input if n), given):
            if value is given[0] or node.op_type == "Concat":
                fixed = np.zeros(np.asarray(value.constant).shape, np.int64)
                feeds[name] = fixed if value.origins is None else value.origins.astype(np.int64)
        made: Any = ReferenceEvaluator(node).run(None, feeds)
        return np.asarray(made[0])

    def _symbolic(self, node: onnx.NodeProto, inputs: List[Optional[Value]], attributes: Dict[str, Any]) -> Value:
        op = node.op_type
        method = getattr(self, "_" + op.lower(), None) if node.domain in ("", "ai.onnx") else None
        if op in _FUNCTIONS and node.domain in ("", "ai.onnx"):
            return self._elementwise(_FUNCTIONS[op], inputs, op)
        if op in _METHODS and method is not None:
            return method(inputs, attributes)
        known = ", ".join(sorted((*_FUNCTIONS, *_METHODS)))
        raise UnsupportedError(f"{op} cannot become a function: there are {known}", 5)

    def _elementwise(self, function: Callable[..., Traced], inputs: Sequence[Optional[Value]], op: str) -> Value:
        given = [value for value in inputs if value is not None]
        return Value(_broadcast(given, op), lambda indices: function(*(_element(value, indices) for value in given)))

    def _where(self, inputs: List[Any], _: Any) -> Value:
        return self._elementwise(_OPERATIONS["where"], inputs, "Where")

    def _fold_left(self, name: str, inputs: List[Any], op: str) -> Value:
        result = inputs[0]
        for value in inputs[1:]:
            result = self._elementwise(_OPERATIONS[name], [result, value], op)
        return result

    def _min(self, inputs: List[Any], _: Any) -> Value:
        return self._fold_left("minimum", inputs, "Min")

    def _max(self, inputs: List[Any], _: Any) -> Value:
        return self._fold_left("maximum", inputs, "Max")

    def _sum(self, inputs: List[Any], _: Any) -> Value:
        return self._fold_left("add", inputs, "Sum")

    def _clip(self, inputs: List[Any], attributes: Dict[str, Any]) -> Value:
        low, high = (*inputs[1:], None, None)[:2]
        low = self.constant(attributes["min"], "min") if "min" in attributes else low
        high = self.constant(attributes["max"], "max") if "max" in attributes else high
        result = inputs[0] if low is None else self._fold_left("maximum", [low, inputs[0]], "Clip")
        return result if high is None else self._fold_left("minimum", [high, result], "Clip")

    def _mod(self, inputs: List[Any], attributes: Dict[str, Any]) -> Value:
        if attributes.get("fmod"):
            raise UnsupportedError("Mod with fmod=1 cannot become a function", 5)
        return self._elementwise(_OPERATIONS["mod"], inputs, "Mod")

    def _cast(self, inputs: List[Any], attributes: Dict[str, Any]) -> Value:
        return self._elementwise(lambda x: _cast(x, attributes["to"]), inputs, "Cast")

    def _castlike(self, inputs: List[Any], _: Any) -> Value:
        names = {_BOOL: "bool", _INT: "int", _FLOAT: "float"}
        return self._elementwise(lambda x, like: _op(names[like._kind], x), inputs, "CastLike")

    def _expand(self, inputs: List[Any], _: Any) -> Value:
        value = inputs[0]
        sizes = self._open_sizes(inputs[1], "Expand")
        shape = _broadcast([value, Value(sizes, value.at)], "Expand")
        return Value(shape, lambda indices: _element(value, indices))

    # ---- Places ----

    @staticmethod
    def _sizes(value: Optional[Value], op: str) -> List[int]:
        if value is None or value.constant is None:
            raise UnsupportedError(f"{op} with sizes that are no constants cannot become a function", 5)
        if not value.is_fixed():
            raise _refuse_open(op)
        return [int(size) for size in value.constant.reshape(-1)]

    def _open_sizes(self, value: Optional[Value], op: str) -> List[int]:
        """The same where open sizes may be sizes of the result."""
        if value is None or value.constant is None or value.origins is None or value.has_open_shape():
            return self._sizes(value, op)
        if value.origins.max() > _OPEN:
            raise _refuse_open(op)
        return list(map(Size.of, value.constant.reshape(-1), value.origins.reshape(-1)))

    def _reshape(self, inputs: List[Any], attributes: Dict[str, Any]) -> Value:
        value, sizes = inputs[0], self._open_sizes(inputs[1], "Reshape")
        if not attributes.get("allowzero"):
            sizes = [value.shape[i] if size == 0 and i < len(value.shape) else size for i, size in enumerate(sizes)]
        known = math.prod(size for size in sizes if size != -1)
        count = math.prod(value.shape)
        if -1 in sizes and value.has_open_shape():
            sizes[sizes.index(-1)] = _left_over(value.shape, sizes)
        sizes = [count // known if size == -1 and known else size for size in sizes]
        if math.prod(sizes) != count:
            raise InvalidArgumentError(f"Reshape: {list(value.shape)} does not become {sizes}")
        return _reshaped(value, tuple(sizes))

    def _unsqueeze(self, inputs: List[Any], attributes: Dict[str, Any]) -> Value:
        axes = self._axes(inputs, attributes, "Unsqueeze")
        rank = len(inputs[0].shape) + len(axes)
        places, rest = {axis % rank for axis in axes}, iter(inputs[0].shape)
        return _reshaped(inputs[0], tuple(1 if i in places else next(rest) for i in range(rank)))

    def _squeeze(self, inputs: List[Any], attributes: Dict[str, Any]) -> Value:
        shape = inputs[0].shape
        axes = self._axes(inputs, attributes, "Squeeze")
        if not axes and inputs[0].has_open_shape():
            raise _refuse_open("Squeeze")
        axes = axes or [i for i, size in enumerate(shape) if size == 1]
        places = {axis % len(shape) for axis in axes}
        return _reshaped(inputs[0], tuple(size for i, size in enumerate(shape) if i not in places))

    def _axes(self, inputs: List[Any], attributes: Dict[str, Any], op: str) -> List[int]:
        if "axes" in attributes:
            return list(attributes["axes"])
        return self._sizes(inputs[1], op) if len(inputs) > 1 else []

    def _transpose(self, inputs: List[Any], attributes: Dict[str, Any]) -> Value:
        value = inputs[0]
        order = list(attributes.get("perm", reversed(range(len(value.shape)))))

        def at(indices: Tuple[Traced, ...]) -> Traced:
            return value.at(tuple(indices[order.index(i)] for i in range(len(order))))

        return Value([value.shape[i] for i in order], at)

    def _slice(self, inputs: List[Any], _: Any) -> Value:
        value = inputs[0]
        begins, ends = self._sizes(inputs[1], "Slice"), self._open_sizes(inputs[2], "Slice")
        has_axes, has_steps = len(inputs) > 3 and inputs[3], len(inputs) > 4 and inputs[4]
        axes = self._sizes(inputs[3], "Slice") if has_axes else list(range(len(begins)))
        steps = self._sizes(inputs[4], "Slice") if has_steps else [1] * len(begins)
        ranges = [range(size) for size in value.shape]
        origins = list(map(_origin, value.shape))
        for axis, begin, end, step in zip(axes, begins, ends, steps):
            size = value.shape[axis]
            is_whole = begin == 0 and step == 1 and (end == size if _origin(end) else end >= _INT_MAX)
            if (_origin(size) and not is_whole) or (_origin(end) and (begin, step) != (0, 1)):
                raise _refuse_open("Slice")
            origins[axis] = max(_origin(size), _origin(end))
            ranges[axis] = ranges[axis][begin:end:step]

        def at(indices: Tuple[Traced, ...]) -> Traced:
            return value.at(tuple(
                index if places == range(size) else _op("add", _op("mul", index, places.step), places.start)
                for index, places, size in zip(indices, ranges, value.shape)
            ))

        return Value([Size.of(len(places), origin) for places, origin in zip(ranges, origins)], at)

    def _gather(self, inputs: List[Any], attributes: Dict[str, Any]) -> Value:
        data, places = inputs[:2]
        axis, rank = attributes.get("axis", 0) % len(data.shape), len(places.shape)

        def at(indices: Tuple[Traced, ...]) -> Traced:
            place = places.at(indices[axis:axis + rank])
            is_known = place._text in _POSITIONS or place._text.isdigit()
            if not is_known and _origin(data.shape[axis]):
                raise _refuse_open("Gather")
            if not is_known:  # negative ones count from the end
                place = _op("where", _op("lt", place, 0), _op("add", place, data.shape[axis]), place)
            return data.at((*indices[:axis], place, *indices[axis + rank:]))

        return Value((*data.shape[:axis], *places.shape, *data.shape[axis + 1:]), at)

    def _trilu(self, inputs: List[Any], attributes: Dict[str, Any]) -> Value:
        value = inputs[0]
        shift = self._sizes(inputs[1], "Trilu")[0] if len(inputs) > 1 and inputs[1] else 0
        is_upper = attributes.get("upper", 1)

        def at(indices: Tuple[Traced, ...]) -> Traced:
            distance = _op("sub", indices[-1], indices[-2])
            x = value.at(indices)
            zero = _traced({_BOOL: False, _INT: 0, _FLOAT: 0.0}[x._kind])
            return _op("where", _op("ge" if is_upper else "le", distance, shift), x, zero)

        return Value(value.shape, at)


_METHODS = ("Where", "Min", "Max", "Sum", "Clip", "Mod", "Cast", "CastLike", "Expand", "Reshape", "Unsqueeze",
            "Squeeze", "Transpose", "Slice", "Gather", "Trilu")
_MOVING = ("Identity", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Slice", "Gather")
