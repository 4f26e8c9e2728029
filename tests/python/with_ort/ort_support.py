"""Models of one node, and sessions that run them: stock, or by either entry of libattune-ort.so."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, load_model_from_string

import attune.ort

ENTRIES = ("ops", "ep")
TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.float64): TensorProto.DOUBLE,
    np.dtype(np.bool_): TensorProto.BOOL,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
}


def session(model, entry=None, threads=0, options=None, blocks=True):
    """An InferenceSession for a model (serialised, or a path); entry: None for stock."""
    options = options or onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if entry == "ops":
        attune.ort.register_ops(options)
    elif entry == "ep":
        attune.ort.register(options, blocks)
    if entry == "ep":
        return onnxruntime.InferenceSession(model, options)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def model(op, inputs, outputs, domain="", opset=17, is_fixed=False, **attributes):
    """A serialised model of one node. inputs: names and arrays, None for one that is left out; outputs: names
    and element types, a dict or pairs, "" for one that is left out. Dims of inputs are left open, or those of the
    arrays if is_fixed."""
    outputs = list(outputs.items() if isinstance(outputs, dict) else outputs)
    present = {name: array for name, array in inputs.items() if array is not None}
    names = list(inputs)
    while names and inputs[names[-1]] is None:
        names.pop()
    node = helper.make_node(op, [name if name in present else "" for name in names],
                            [name for name, _ in outputs], name="the_node", domain=domain, **attributes)
    values = [helper.make_tensor_value_info(name, TYPES[array.dtype], array.shape if is_fixed else [None] * array.ndim)
              for name, array in present.items()]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs if name]
    graph = helper.make_graph([node], "one_node", values, results)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def within(serialised, kind):
    """The same model with all floats inside it of another type: cast at its inputs and outputs."""
    proto = load_model_from_string(serialised)
    node, = proto.graph.node
    before, after = [], []
    for value in proto.graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            before.append(helper.make_node("Cast", [value.name], [value.name + "_cast"], to=kind))
    floats = {cast.input[0] for cast in before}
    node.input[:] = [name + "_cast" if name in floats else name for name in node.input]
    for value in proto.graph.output:
        after.append(helper.make_node("Cast", [value.name + "_cast"], [value.name], to=TensorProto.FLOAT))
    node.output[:] = [name and name + "_cast" for name in node.output]
    nodes = [*before, node, *after]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto.SerializeToString()


def feeds(inputs):
    return {name: array for name, array in inputs.items() if array is not None}


def ran(op):
    """How often attune has computed nodes of an operator."""
    return attune.ort.stats().get(op + ".ran", 0)
