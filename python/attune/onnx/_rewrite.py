"""Models with ONNX's FlexAttention become models that ONNX Runtime loads: attune.onnx.rewrite.

ONNX Runtime gives custom operators no subgraphs. So each node becomes one of attune's own operator, "attune"
FlexAttention: its functions are texts, and constants that they read are inputs (adapters/ort/operators/flex.h).
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from .._errors import InvalidArgumentError, InvalidTypeError, UnsupportedError
from .._flex import _as_taken
from .._tracing.graph import GraphReader
from .._tracing.trace import Tracer
from .._tracing.values import OpenSizeError, Size
from .._values import integer, kind, number

PREVIEW, OWN, OPERATOR = "ai.onnx.preview", "attune", "FlexAttention"
PRECISIONS: Dict[int, str] = {onnx.TensorProto.FLOAT: "f32", onnx.TensorProto.DOUBLE: "f64",
                              onnx.TensorProto.FLOAT16: "f32", onnx.TensorProto.BFLOAT16: "f32"}

# Sizes that stand for those that a model leaves open. The reader refuses functions that depend on them; what broadcasts
# with one of them by chance does not do so with all.
LONGEST_TEXT = 1023  # of a problem's function
_PROBES = ((5, 7, 11, 13), (3, 17, 19, 29), (2, 23, 257, 263))

Dim = Union[int, str, None]
Functions = Tuple[Dict[str, str], Tracer]


def _check_graphs(graphs: Mapping[str, Any]) -> None:
    for name, graph in graphs.items():
        if not isinstance(graph, (onnx.GraphProto, type(None))):
            raise InvalidTypeError(f"{name} is {kind(graph)}; it must be a graph (onnx.GraphProto)")


def precision_of(value: Any) -> str:
    """The dtype of the softmax, by an element type of ONNX."""
    dtype = PRECISIONS.get(int(value)) if isinstance(value, (int, np.integer)) else None
    if dtype is None:
        shown = value if isinstance(value, (int, float, str)) else kind(value)
        raise InvalidArgumentError(f"softmax_precision is {shown}; it must be that of a float type")
    return dtype


def functions_of(graphs: Mapping[str, Optional[onnx.GraphProto]], shape: Sequence[int],
                 outer: Optional[Dict[str, np.ndarray]] = None) -> Functions:
    """The functions of a node, in quotation marks, and the tracer that has what they read."""
    _check_graphs(graphs)
    if not isinstance(outer, (Mapping, type(None))):
        raise InvalidTypeError(f"outer is {kind(outer)}; it must be a dict of arrays by the names of values")
    tracer = Tracer(dict(zip(("b", "h", "q", "kv"), shape)), False)
    reader = GraphReader(tracer, shape, outer)
    return {name: reader.text(graph, name) for name, graph in graphs.items() if graph is not None}, tracer


def rewrite(model: onnx.ModelProto, sizes: Optional[Mapping[str, int]] = None) -> onnx.ModelProto:
    """The model with attune's own operator in place of each FlexAttention. A session loads it after
    attune.ort.register(options) or attune.ort.register_ops(options).

    sizes: numbers for dims that the model leaves open, by their names; needed only if functions depend on these dims. A
    call with other sizes is then refused.
    """
    if not isinstance(model, onnx.ModelProto):
        raise InvalidTypeError(f"model is {kind(model)}; it must be a model (onnx.ModelProto, as onnx.load gives it)")
    numbers = _numbers_of(sizes)
    if any(_is_flex(node) for function in model.functions for node in function.node):
        raise UnsupportedError("a function of the model has FlexAttention; inline it first, by onnx.inliner", 5)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    try:
        known = onnx.shape_inference.infer_shapes(model)
    except (ValueError, onnx.shape_inference.InferenceError):
        known = model
    _Rewriter(numbers, model.ir_version >= 4).graph(result.graph, known.graph, {}, {})
    _set_opsets(result)
    return result


def _numbers_of(sizes: Optional[Mapping[str, int]]) -> Dict[str, int]:
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise InvalidTypeError(f"sizes is {kind(sizes)}; it must be a dict of numbers by the names of dims")
    for name in sizes:
        if not isinstance(name, str):
            raise InvalidTypeError(f"sizes has the name {name!r}, which is {kind(name)}; it must be a str")
    return {name: integer(value, f"sizes['{name}']", 1, 2**31 - 1) for name, value in sizes.items()}


def _set_opsets(model: onnx.ModelProto) -> None:
    used = {node.domain for graph in _graphs(model.graph) for node in graph.node}
    dropped = {OWN} if PREVIEW in used else {OWN, PREVIEW}
    kept = [opset for opset in model.opset_import if opset.domain not in dropped]
    # ONNX Runtime's own fusions need a version of its domain where a library registers operators of that domain.
    missing = {OWN: OWN in used, "com.microsoft": all(opset.domain != "com.microsoft" for opset in kept)}
    kept += [helper.make_opsetid(domain, 1) for domain, is_missing in missing.items() if is_missing]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _is_flex(node: onnx.NodeProto) -> bool:
    return node.op_type == OPERATOR and node.domain == PREVIEW


def _graphs(graph: onnx.GraphProto) -> List[onnx.GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += _graphs(attribute.g)
    return found


def _dims(value: onnx.ValueInfoProto) -> Optional[List[Dim]]:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]


class _Rewriter:
    def __init__(self, sizes: Dict[str, int], may_override: bool) -> None:
        """may_override: whether an initializer that is an input as well is only its default."""
        self.sizes, self.may_override = sizes, may_override

    def graph(self, graph: onnx.GraphProto, known: onnx.GraphProto, shapes: Dict[str, List[Dim]],
              constants: Dict[str, Any]) -> None:
        """Rewrites a graph, and those inside it. known: the same with the shapes that are inferred. shapes, constants:
        those of the graphs around it."""
        shapes, constants = dict(shapes), dict(constants)
        for value in (*known.input, *known.value_info, *known.output):
            dims = _dims(value)
            if dims is not None:
                shapes[value.name] = dims
        given = {value.name for value in graph.input} if self.may_override else set()
        for tensor in graph.initializer:
            constants[tensor.name] = None if tensor.name in given else tensor
            shapes[tensor.name] = list(tensor.dims)
        for node, twin in zip(graph.node, known.node):
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                constants[node.output[0]] = node
            elif _is_flex(node):
                self.node(graph, node, shapes, constants)
            for attribute, other in zip(node.attribute, twin.attribute):
                if attribute.type == onnx.AttributeProto.GRAPH:
                    self.graph(attribute.g, other.g, shapes, constants)

    def node(self, graph: onnx.GraphProto, node: onnx.NodeProto, shapes: Dict[str, List[Dim]],
             constants: Dict[str, Any]) -> None:
        name = node.name or node.output[0]
        try:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            graphs = {what: attributes.pop(what, None) for what in ("score_mod", "prob_mod")}
            precision_of(attributes.get("softmax_precision", onnx.TensorProto.FLOAT))
            _check_graphs(graphs)
            if "scale" in attributes:
                attributes["scale"] = number(attributes["scale"], "scale")
            for other in set(attributes) - {"scale", "softmax_precision"}:
                raise UnsupportedError(f"it has the attribute {other}, which attune does not know", 5)
            dims = self._score_dims(node, shapes)
            texts, tracer = self._functions(graphs, dims, _outer(graphs, constants))
            for what, text in texts.items():
                if len(text) - 2 > LONGEST_TEXT:
                    raise UnsupportedError(f"{what} would have {len(text) - 2} characters as a text; {LONGEST_TEXT} "
                                           "are the most", 5)
        except (UnsupportedError, InvalidArgumentError) as error:
            raise type(error)(f"node '{name}' (FlexAttention): {error}", error.status) from None
        attributes.update({what: text[1:-1] for what, text in texts.items()})
        attributes["tensors"] = (tracer.declarations() or '""')[1:-1]
        attributes["sizes"] = [dim if isinstance(dim, int) else -1 for dim in dims]
        taken = {value for one in _graphs(graph) for inner in one.node for value in (*inner.input, *inner.output)}
        taken |= {tensor.name for tensor in graph.initializer}
        for own, array in tracer.tensors.items():
            input_name = f"{name}_{own}"
            while input_name in taken:
                input_name += "_"
            values = np.ascontiguousarray(_as_taken(array, own))
            graph.initializer.append(numpy_helper.from_array(values, input_name))
            node.input.append(input_name)
        node.domain = OWN
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())

    def _score_dims(self, node: onnx.NodeProto, shapes: Dict[str, List[Dim]]) -> List[Dim]:
        """[batch, heads, queries, keys], as far as the model and `sizes` tell."""
        found: List[List[Dim]] = []
        for which in range(2):
            dims = shapes.get(node.input[which])
            if dims is not None and len(dims) != 4:
                raise InvalidArgumentError(f"{node.input[which]} has {len(dims)} dims; FlexAttention takes 4")
            found.append([self.sizes.get(d, d) if isinstance(d, str) else d for d in dims or [None] * 4])
        (b, h, q, _), (other, _, kv, _) = found
        return [b if isinstance(b, int) else other, h, q, kv]

    def _functions(self, graphs: Dict[str, Optional[onnx.GraphProto]], dims: List[Dim],
                   outer: Dict[str, np.ndarray]) -> Functions:
        known = [dim for dim in dims if isinstance(dim, int)]
        if len(known) == len(dims):
            return functions_of(graphs, known, outer)
        opened = [dim or what for dim, what in zip(dims, ("batch", "heads", "queries", "keys"))
                  if not isinstance(dim, int)]
        hint = (f"the model leaves {', '.join(opened)} open, on which the functions may not depend: "
                "sizes={name: number} tells them")
        results = []
        for probe in _PROBES:
            named: Dict[str, int] = {}
            shape = [dim if isinstance(dim, int) else Size(named.setdefault(dim, size) if dim else size)
                     for dim, size in zip(dims, probe)]
            try:
                results.append(functions_of(graphs, shape, outer))
            except OpenSizeError:
                raise UnsupportedError(hint, 5) from None
            except (UnsupportedError, InvalidArgumentError) as error:
                raise type(error)(f"{error} ({hint})", error.status) from None
        if any(not _are_same(results[0], result) for result in results[1:]):
            raise UnsupportedError(hint, 5)
        return results[0]


def _are_same(x: Functions, y: Functions) -> bool:
    return x[0] == y[0] and x[1].declarations() == y[1].declarations() and all(
        np.array_equal(x[1].tensors[name], y[1].tensors[name]) for name in x[1].tensors)


def _outer(graphs: Dict[str, Optional[onnx.GraphProto]], constants: Dict[str, Any]) -> Dict[str, np.ndarray]:
    """The constants of the model that subgraphs name."""
    read = {name for graph in graphs.values() if graph is not None for node in graph.node for name in node.input}
    found = {}
    for name in sorted(read & set(constants)):
        value = constants[name]
        if value is None:
            raise UnsupportedError(f"'{name}' is an input of the model with a default, which a call may replace; "
                                   "take it from the inputs", 5)
        is_tensor = isinstance(value, onnx.TensorProto)
        made: Any = None if is_tensor else ReferenceEvaluator(value).run(None, {})
        found[name] = numpy_helper.to_array(value) if is_tensor else made[0]
    return found
