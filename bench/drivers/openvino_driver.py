"""OpenVINO behind the protocol of docs/bench.md. usage: openvino_driver.py THREADS [CPU…]"""
import math
import sys

import numpy
import openvino
from openvino import opset13
from openvino.op import _PagedAttentionExtension

from driver import Cannot, serve

METHODS = ["sdpa", "sdpa-grouped", "paged"]
TYPES = {"f32": openvino.Type.f32, "bf16": openvino.Type.bf16, "f16": openvino.Type.f16}
I32, U8 = openvino.Type.i32, openvino.Type.u8
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


# ---- PagedAttention, as servers have it: the new token goes into a cache in pages, then its row is computed ----

PAGE = 32  # keys; the plug-in has no other


def constant(value, of):
    return opset13.constant(numpy.array(value), of).output(0)


def empty(of, *shape):
    kinds = {TYPES["f32"]: numpy.float32, I32: numpy.int32, U8: numpy.uint8}
    return opset13.constant(numpy.zeros(shape or (0,), kinds[of]), of).output(0)


def paged_model(p, dtype):
    """The operator's 28 inputs: tokens, caches and tables, then scale, and what is off (windows, rotation, eviction,
    sinks, trees of drafts)."""
    f32 = TYPES["f32"]
    tokens = [opset13.parameter([-1, heads * p.dim], TYPES[dtype]) for heads in (p.heads, p.kv_heads, p.kv_heads)]
    caches = [opset13.parameter(openvino.PartialShape([-1] * 4), openvino.Type.dynamic) for _ in "kv"]
    tables = [opset13.parameter([-1], I32) for _ in range(4)]
    zero = constant(numpy.int32(0), I32)
    inputs = [node.output(0) for node in (*tokens, *caches, *tables)]
    inputs += [constant(numpy.float32(p.scale), f32), zero, empty(f32), constant(numpy.int32(p.keys), I32), empty(I32)]
    inputs += [empty(I32), empty(I32, 0, 0), empty(f32, 0, 0)]  # rotation of keys
    inputs += [empty(f32), zero, zero, empty(f32)]  # sparse attention, sinks
    inputs += [zero, empty(I32), empty(I32), empty(I32), empty(I32), empty(U8), empty(I32)]
    node = _PagedAttentionExtension(inputs)
    for name in "kv":
        node.get_rt_info()[f"num_{name}_heads"], node.get_rt_info()[f"{name}_head_size"] = p.kv_heads, p.dim
    return openvino.Model([node.output(0)], [*tokens, *caches, *tables])


def by_token(array):
    """[batch, heads, length, dim] as [batch * length, heads * dim]."""
    batch, heads, length, dim = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch * length, heads * dim)


def set_tokens(request, arrays, dtype, past, count):
    """Tokens of all entries, which have `count` each after `past`. What must live as long as the request."""
    kept = [tensor(by_token(array), dtype) for array in arrays]
    batch = len(arrays[0])
    lengths = [numpy.full(batch, past), numpy.arange(batch + 1) * count]
    kept += [(openvino.Tensor(numbers.astype(numpy.int32)), numbers) for numbers in lengths]
    for place, (value, _) in zip((0, 1, 2, 5, 6), kept):
        request.set_input_tensor(place, value)
    return kept


def paged(core, p, threads):
    """Caches are filled by the operator itself, from all tokens but the last, since the codes of u8 are its own."""
    cache = {"": p.dtype, "i8": "u8"}.get(p.kv, p.kv)
    if p.rows != 1 or p.keys < 2 or (p.kv not in TYPES and cache != "u8" and p.kv):
        raise Cannot("one row, and caches of floats or u8")
    q, k, v = p.read_heads()
    settings = settings_of(threads, p.dtype) | {"KV_CACHE_PRECISION": cache}
    compiled = core.compile_model(paged_model(p, p.dtype), "CPU", settings)
    request = compiled.create_infer_request()
    pages = -(-p.keys // PAGE)
    for place in (3, 4):
        shape = [p.batch * pages, *(dim.get_length() for dim in list(compiled.inputs[place].get_partial_shape())[1:])]
        request.set_input_tensor(place, openvino.Tensor(compiled.inputs[place].get_element_type(), shape))
    request.set_input_tensor(7, openvino.Tensor(numpy.arange(p.batch * pages, dtype=numpy.int32)))
    request.set_input_tensor(8, openvino.Tensor((numpy.arange(p.batch + 1) * pages).astype(numpy.int32)))
    past = p.keys - 1
    kept = set_tokens(request, [numpy.repeat(q, past, 2), k[:, :, :past], v[:, :, :past]], p.dtype, 0, past)
    request.infer()
    kept = set_tokens(request, [q, k[:, :, past:], v[:, :, past:]], p.dtype, past, 1)
    out, memory = tensor(numpy.zeros((p.batch, p.heads * p.dim)), p.dtype)
    request.set_output_tensor(0, out)
    call = lambda alive=(kept, out): request.infer()
    return call, lambda: to_f32(memory, p.dtype).reshape(p.batch, p.heads, 1, p.dim)


def settings_of(threads, dtype):
    """Without the hint f32 is computed in bf16 where the CPU has that."""
    return {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": dtype}


def prepare(core, p, all_threads):
    dtype = p.kv or p.dtype
    if p.kind != "attention":
        raise Cannot("attention only")
    if p.method == "paged":
        return paged(core, p, p.threads or all_threads)
    if dtype not in TYPES:
        raise Cannot(f"no attention over {dtype}")
    model, inputs = attention(p, dtype)
    settings = settings_of(p.threads or all_threads, dtype)
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
