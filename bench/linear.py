"""Linear attention beside ONNX Runtime's LinearAttention, one thread, by the clock of the processor.

    python3 bench/linear.py [--heads N] [--dim N]        (needs numpy, onnx, onnxruntime; PYTHONPATH=python)
"""
import argparse
import statistics

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import attune
from machine import seconds


def draw(tokens, heads, dim):
    rng = np.random.default_rng(1)
    rows = [rng.standard_normal((1, tokens, heads, dim)).astype("f4") / 10 for _ in range(3)]
    gates = -rng.random((1, tokens, heads)).astype("f4"), rng.random((1, tokens, heads)).astype("f4")
    return rows, gates, rng.standard_normal((1, heads, dim, dim)).astype("f4") / 100


def stock(rows, gates, state, heads):
    names = ["query", "key", "value", "past_state", "decay", "beta"]
    flat = [x.reshape(*x.shape[:2], -1) for x in rows]
    feeds = dict(zip(names, [*flat, state, *gates]))
    node = helper.make_node("LinearAttention", names, ["output", "present_state"], domain="com.microsoft",
                            q_num_heads=heads, kv_num_heads=heads, update_rule="gated_delta")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in feeds.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    graph = helper.make_graph([node], "linear", values, results)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=10)
                                           .SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dim", type=int, default=128)
    options = parser.parse_args()
    print(f"{attune.info()['cpu_description']}, ONNX Runtime {onnxruntime.__version__}")
    print(f"{'tokens':>8}{'stock us':>12}{'attune us':>12}{'ratio':>8}{'GFLOP/s':>10}")
    for tokens in (1, 64, 512, 2048):
        (q, k, v), (decay, beta), state = draw(tokens, options.heads, options.dim)
        theirs, own = stock((q, k, v), (decay, beta), state, options.heads), state.copy()

        def ours():
            return attune.linear_attention(q, k, v, decay=decay, beta=beta, state=own, threads=1)

        wanted = theirs()
        np.testing.assert_allclose(ours()[0].reshape(wanted[0].shape), wanted[0], rtol=1e-3, atol=1e-5)
        pairs = [(seconds(theirs), seconds(ours)) for _ in range(51 if tokens < 64 else 9)]
        stock_s, own_s = (statistics.median(column) for column in zip(*pairs))
        flops = 6 * options.heads * options.dim ** 2 * tokens
        print(f"{tokens:8}{stock_s * 1e6:12.1f}{own_s * 1e6:12.1f}{stock_s / own_s:8.2f}{flops / own_s / 1e9:10.1f}")


if __name__ == "__main__":
    main()
