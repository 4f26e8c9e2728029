"""A model of one node, GroupQueryAttention with rotary embedding, by stock ONNX Runtime and by attune.

    pip install onnx onnxruntime ./python
    python examples/python/onnxruntime_attention.py
"""

import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import attune.ort

HEADS, KV_HEADS, DIM, LENGTH = 32, 8, 64, 1024
SIZES = {"query": HEADS * DIM, "key": KV_HEADS * DIM, "value": KV_HEADS * DIM}


def model():
    inputs = [*SIZES, "", "", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"]
    node = helper.make_node("GroupQueryAttention", inputs, ["output", "present_key", "present_value"],
                            domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", size])
              for name, size in SIZES.items()]
    values += [helper.make_tensor_value_info(name, TensorProto.INT32, [None]) for name in inputs[5:7]]
    values += [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["positions", DIM // 2]) for name in inputs[7:]]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "attention", values, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def feeds():
    random = np.random.default_rng(1)
    angles = np.arange(LENGTH)[:, None] / 10000 ** (np.arange(DIM // 2) / (DIM // 2))
    return {name: random.standard_normal((1, LENGTH, size), dtype=np.float32) for name, size in SIZES.items()} | {
        "seqlens_k": np.array([LENGTH - 1], np.int32),
        "total_sequence_length": np.array([LENGTH], np.int32),
        "cos_cache": np.cos(angles).astype(np.float32),
        "sin_cache": np.sin(angles).astype(np.float32),
    }


def fastest(session, inputs, calls=9):
    session.run(None, inputs)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        session.run(None, inputs)
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    inputs = feeds()
    stock = onnxruntime.InferenceSession(model(), providers=["CPUExecutionProvider"])
    options = onnxruntime.SessionOptions()
    attune.ort.register(options)
    ours = onnxruntime.InferenceSession(model(), options)
    difference = np.abs(ours.run(None, inputs)[0] - stock.run(None, inputs)[0]).max()
    print(f"largest difference: {difference:.1e}")
    print(f"stock {fastest(stock, inputs) * 1e3:.1f} ms, attune {fastest(ours, inputs) * 1e3:.1f} ms a call")
    print(attune.ort.stats())


if __name__ == "__main__":
    main()
