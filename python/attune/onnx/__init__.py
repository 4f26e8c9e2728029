"""ONNX's FlexAttention (ai.onnx.preview, ONNX 1.23) by attune.

    import attune.onnx, onnx
    evaluator = attune.onnx.evaluator(onnx.load("model.onnx"))
    outputs = evaluator.run(None, {"Q": q, "K": k, "V": v})

evaluator is ONNX's reference evaluator, in which attune computes FlexAttention and NumPy the other operators. A node's
subgraphs score_mod and prob_mod become functions of a kernel (docs/functions.md). flex_attention computes one node,
function_text shows the function of its subgraph. rewrite makes a model that ONNX Runtime runs (docs/onnxruntime.md).
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from .. import _library  # noqa: F401  the library is found, or missing, at once
from .._attention import _look, _shape4
from .._errors import InvalidArgumentError, InvalidTypeError
from .._flex import _fields, attend
from .._library import run_options
from .._tensor import dtype_name, empty
from .._values import integer, number
from ._rewrite import PREVIEW, functions_of, precision_of, rewrite

__all__ = ["FlexAttention", "evaluator", "flex_attention", "function_text", "rewrite"]


def _sizes_of(shape: Sequence[int]) -> Tuple[int, ...]:
    if not hasattr(shape, "__len__") or len(shape) != 4:
        raise InvalidArgumentError(f"shape is {shape!r}; it must be four numbers: batch, heads, queries, keys")
    return tuple(integer(size, f"shape[{i}]", 0, 2**31 - 1) for i, size in enumerate(shape))


def function_text(graph: onnx.GraphProto, what: str, shape: Sequence[int]) -> Dict[str, Any]:
    """The function of a subgraph: {"text": …, "tensors": {name: array}, "tensor": their declarations}. `what` is
    score_mod or prob_mod, `shape` that of the scores, [batch, heads, queries, keys]."""
    if what not in ("score_mod", "prob_mod"):
        raise InvalidArgumentError(f"what is {what!r}; it must be 'score_mod' or 'prob_mod'")
    if graph is None:
        raise InvalidTypeError("graph is None; it must be a graph (onnx.GraphProto)")
    texts, tracer = functions_of({what: graph}, _sizes_of(shape))
    return {"text": texts[what][1:-1], "tensors": dict(tracer.tensors), "tensor": (tracer.declarations() or '""')[1:-1]}


def flex_attention(
    q: Any,
    k: Any,
    v: Any,
    score_mod: Optional[onnx.GraphProto] = None,
    prob_mod: Optional[onnx.GraphProto] = None,
    *,
    scale: Optional[float] = None,
    softmax_precision: Optional[int] = None,
    outer: Optional[Dict[str, np.ndarray]] = None,
    max_threads: int = 0,
    runner: Any = None,
    cancel: Any = None,
) -> Any:
    """One FlexAttention node: prob_mod(softmax(score_mod(scale * q k^T))) v.

    q is [batch, heads, queries, dim], k and v are [batch, kv_heads, keys, dim]. score_mod and prob_mod are the node's
    subgraphs; `outer` has constants of the model that they name. softmax_precision is an element type of ONNX; f16 and
    bf16 become f32, which is more precise. max_threads, runner, cancel: as in attune.attention.
    """
    tensors = {"q": q, "k": k, "v": v}
    for name, value in tensors.items():
        _look(value, name)
        if len(value.shape) != 4:
            raise InvalidArgumentError(f"{name} has {len(value.shape)} dims; FlexAttention takes 4")
    shape = (*_shape4(q, "q")[:3], _shape4(k, "k")[2])
    fields = _fields(q, k, v, True)
    texts, tracer = functions_of({"score_mod": score_mod, "prob_mod": prob_mod}, shape, outer)
    fields.update(texts)
    if scale is not None:
        fields["softmax_scale"] = number(scale, "scale")
    if softmax_precision is not None:
        fields["softmax_precision"] = "f64" if dtype_name(q) == "f64" else precision_of(softmax_precision)
    tensors["out"] = empty((q,), dtype_name(q), (*q.shape[:-1], v.shape[-1]))
    attend(fields, tracer, tensors, run_options(max_threads, runner, cancel))
    return tensors["out"]


class FlexAttention(OpRun):
    """The operator for onnx.reference.ReferenceEvaluator(model, new_ops=[attune.onnx.FlexAttention])."""

    op_domain = PREVIEW

    def _run(self, Q: Any, K: Any, V: Any, scale: Any = None, score_mod: Any = None, prob_mod: Any = None,
             softmax_precision: Any = None, **_: Any) -> tuple:
        graphs: Any = [None if mod is None else mod.proto_ for mod in (score_mod, prob_mod)]
        q, k, v = map(np.ascontiguousarray, (Q, K, V))
        return (flex_attention(q, k, v, *graphs, scale=scale, softmax_precision=softmax_precision),)


def evaluator(model: onnx.ModelProto, **options: Any) -> ReferenceEvaluator:
    """ONNX's reference evaluator of the model, in which attune computes FlexAttention."""
    return ReferenceEvaluator(model, new_ops=[FlexAttention], **options)
