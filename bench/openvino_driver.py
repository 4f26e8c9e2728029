"""OpenVINO behind the protocol of README.md. usage: openvino_driver.py THREADS [CPU…]"""
import math
import sys

import numpy
import openvino
from openvino import opset13

from driver import Cannot, serve

METHODS = ["sdpa", "sdpa-grouped"]
TYPES = {"f32": openvino.Type.f32, "bf16": openvino.Type.bf16, "f16": openvino.Type.f16}
MOST_MASK = 1 << 26  # elements


def tensor(array, dtype):
    """Also the memory that it lies in, which must live as long as it: NumPy has no bf16, so OpenVINO gets the upper
    halves of f32 as what they are."""
    memory = numpy.ascontiguousarray(array, numpy.float32)
    if dtype == "f16":
        memory = memory.astype(numpy.float16)
    if dtype == "bf16":
        memory = (memory.view(numpy.uint32) >> 16).astype(numpy.uint16)
        return openvino.Tensor(memory, memory.shape, TYPES[dtype]), memory
    return openvino.Tensor(memory, shared_memory=True), memory


def to_f32(memory, dtype):
    return (memory.astype(numpy.uint32) << 16).view(numpy.float32) if dtype == "bf16" else memory.astype(numpy.float32)


def repeated(node, p):
    """KV heads for each query head, in the graph, as exported models have it: the plug-in knows the pattern."""
    if p.heads == p.kv_heads:
        return node
    group = p.heads // p.kv_heads
    wide = opset13.unsqueeze(node, numpy.int64(2))
    wide = opset13.broadcast(wide, numpy.array([p.batch, p.kv_heads, group, p.keys, p.dim]))
    return opset13.reshape(wide, numpy.array([p.batch, p.heads, p.keys, p.dim]), False)


def attention(p, dtype):
    """A model of the operator alone, and its inputs."""
    q, k, v = p.read_heads()
    is_grouped = p.method == "sdpa-grouped"
    if is_grouped:  # the heads of a group as rows of one: K and V are read once
        if p.heads == p.kv_heads or p.rows != 1:
            raise Cannot("for one row of each of several heads only")
        q = q.reshape(p.batch, p.kv_heads, p.heads // p.kv_heads, p.dim)
    parameters = [opset13.parameter(a.shape, TYPES[dtype], name) for name, a in zip("qkv", (q, k, v))]
    nodes = parameters if is_grouped else [parameters[0], *(repeated(node, p) for node in parameters[1:])]
    scale = opset13.constant(numpy.array(p.scale, numpy.float32), TYPES[dtype])
    inputs = [tensor(a, dtype) for a in (q, k, v)]
    causal = bool(p.causal) and p.rows > 1
    if causal and p.rows != p.keys:  # `causal` means from the first key on; here the last row sees all
        if p.rows * p.keys > MOST_MASK:
            raise Cannot("too large a mask")
        mask = numpy.triu(numpy.full((1, 1, p.rows, p.keys), -math.inf, numpy.float32), p.keys - p.rows + 1)
        parameters.append(opset13.parameter(mask.shape, TYPES[dtype], "mask"))
        inputs.append(tensor(mask, dtype))
        out = opset13.scaled_dot_product_attention(*nodes, parameters[-1], scale)
    else:
        none = opset13.constant(numpy.array(0, numpy.float32), TYPES[dtype])
        out = opset13.scaled_dot_product_attention(*nodes, none, scale, causal)
    return openvino.Model([out], parameters), inputs


def prepare(core, p, all_threads):
    dtype = p.kv or p.dtype
    if p.kind != "attention":
        raise Cannot("attention only")
    if dtype not in TYPES:
        raise Cannot(f"no attention over {dtype}")
    model, inputs = attention(p, dtype)
    settings = {
        "INFERENCE_NUM_THREADS": p.threads or all_threads,
        "NUM_STREAMS": 1,
        # Without it f32 is computed in bf16 where the CPU has that.
        "INFERENCE_PRECISION_HINT": dtype,
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    for place, (value, _) in enumerate(inputs):
        request.set_input_tensor(place, value)
    # Tensors stay where they are: what is run again and again is the operator.
    out, memory = tensor(numpy.zeros(tuple(model.output(0).shape)), dtype)
    request.set_output_tensor(0, out)
    call = lambda kept=(inputs, out): request.infer()
    return call, lambda: to_f32(memory, dtype).reshape(p.batch, p.heads, p.rows, p.dim)


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    core = openvino.Core()
    serve(METHODS, f"OpenVINO {openvino.__version__.partition('-')[0]}", lambda p: prepare(core, p, threads))


if __name__ == "__main__":
    main()
