"""Linear attention beside a peer, one thread, by the clock of the processor.

    python3 bench/linear.py [--peer onnxruntime|transformers] [--heads N] [--dim N]      (PYTHONPATH=python)

The peers are ONNX Runtime's LinearAttention, and transformers' functions of Qwen3-Next in PyTorch, with norms of q and
k. It needs numpy, and onnx and onnxruntime, or torch and transformers.
"""
import argparse
import statistics

import numpy as np

import attune
from machine import seconds


def draw(tokens, heads, dim):
    rng = np.random.default_rng(1)
    rows = [rng.standard_normal((1, tokens, heads, dim)).astype("f4") / 10 for _ in range(3)]
    gates = -rng.random((1, tokens, heads)).astype("f4"), rng.random((1, tokens, heads)).astype("f4")
    return rows, gates, rng.standard_normal((1, heads, dim, dim)).astype("f4") / 100


def in_onnxruntime(rows, gates, state, heads):
    import onnxruntime
    from onnx import TensorProto, helper

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
    return lambda: session.run(None, feeds)[0], f"ONNX Runtime {onnxruntime.__version__}"


def in_transformers(rows, gates, state, heads):
    import torch
    import transformers
    from transformers.models.qwen3_next import modeling_qwen3_next as model

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    q, k, v, decay, beta, state = map(torch.from_numpy, (*rows, *gates, state))
    rule = model.torch_recurrent_gated_delta_rule if q.shape[1] == 1 else model.torch_chunk_gated_delta_rule

    def compute():
        return rule(q, k, v, decay, beta, initial_state=state, output_final_state=True,
                    use_qk_l2norm_in_kernel=True)[0].numpy()

    return compute, f"transformers {transformers.__version__}, PyTorch {torch.__version__}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=["onnxruntime", "transformers"], default="onnxruntime")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dim", type=int, default=128)
    options = parser.parse_args()
    stock = {"onnxruntime": in_onnxruntime, "transformers": in_transformers}[options.peer]
    norms = {"qk_norm_eps": 1e-6} if options.peer == "transformers" else {}
    for tokens in (1, 64, 512, 2048):
        (q, k, v), (decay, beta), state = draw(tokens, options.heads, options.dim)
        (theirs, name), own = stock((q, k, v), (decay, beta), state, options.heads), state.copy()
        if tokens == 1:
            print(f"{attune.info()['cpu_description']}, {name}")
            print(f"{'tokens':>8}{'stock us':>12}{'attune us':>12}{'ratio':>8}{'GFLOP/s':>10}")

        def ours():
            return attune.linear_attention(q, k, v, decay=decay, beta=beta, state=own, max_threads=1, **norms)

        wanted = theirs()
        np.testing.assert_allclose(ours()[0].reshape(wanted.shape), wanted, rtol=1e-3, atol=1e-5)
        pairs = [(seconds(theirs), seconds(ours)) for _ in range(51 if tokens < 64 else 9)]
        stock_s, own_s = (statistics.median(column) for column in zip(*pairs))
        flops = 6 * options.heads * options.dim ** 2 * tokens
        print(f"{tokens:8}{stock_s * 1e6:12.1f}{own_s * 1e6:12.1f}{stock_s / own_s:8.2f}{flops / own_s / 1e9:10.1f}")


if __name__ == "__main__":
    main()
