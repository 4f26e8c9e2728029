#!/usr/bin/env python3
"""Records what PyTorch computes when all-MiniLM-L6-v2 reads a paragraph.

Needed once, to make the .npy files beside this script; running the example needs none of it. Get the model with

    bash scripts/fetch_minilm.sh

and, with torch and numpy installed, run

    python3 examples/minilm/capture.py examples/minilm/weights

The model is a plain BERT encoder (12 heads of 32), so its forward pass stands here in full: it needs neither
transformers nor tokenizers nor safetensors.
"""
import argparse
import json
import pathlib
import re
import struct

import numpy
import torch
from torch.nn.functional import gelu, layer_norm, linear, normalize, scaled_dot_product_attention

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
        self.layers = config["num_hidden_layers"]
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

    def block(self, layer, x):
        """The attention block: projections, heads, attention, output projection."""
        attended = scaled_dot_product_attention(*self.attention_inputs(layer, x)).transpose(1, 2).flatten(2)
        return self.affine(f"encoder.layer.{layer}.attention.output.dense", attended)

    def layer(self, layer, x, block):
        name = f"encoder.layer.{layer}"
        x = self.norm(f"{name}.attention.output.LayerNorm", x + block)
        hidden = gelu(self.affine(f"{name}.intermediate.dense", x))
        return self.norm(f"{name}.output.LayerNorm", x + self.affine(f"{name}.output.dense", hidden))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="folder with config.json, vocab.txt and model.safetensors")
    parser.add_argument("--layer", type=int, default=3, help="the layer whose q, k and v are kept, from 0 (3)")
    parser.add_argument("--every", type=int, default=4, help="which rows of each block's output are kept (each 4th)")
    parser.add_argument("--text", type=pathlib.Path, default=HERE / "paragraph.txt")
    parser.add_argument("--output", type=pathlib.Path, default=HERE, help="folder for the files")
    options = parser.parse_args()

    vocabulary = {word: number for number, word in enumerate((options.model / "vocab.txt").read_text().splitlines())}
    tokens = tokenize(options.text.read_text(), vocabulary)
    ids = torch.tensor([vocabulary[token] for token in tokens])
    encoder = Encoder(options.model)
    arrays, blocks = {"tokens": ids.to(torch.int32)}, []
    with torch.no_grad():
        x = encoder.embed(ids)
        for layer in range(encoder.layers):
            if layer == options.layer:
                arrays.update(zip("qkv", encoder.attention_inputs(layer, x)))
            block = encoder.block(layer, x)
            blocks.append(block[0, :: options.every])
            x = encoder.layer(layer, x, block)
        arrays["expected"] = scaled_dot_product_attention(arrays["q"], arrays["k"], arrays["v"])
        arrays["blocks"] = torch.stack(blocks)
        arrays["embedding"] = normalize(x[0].mean(0), dim=0)
    for name, tensor in arrays.items():
        numpy.save(options.output / f"{name}.npy", tensor.contiguous().numpy())
    (options.output / "tokens.txt").write_text("".join(token + "\n" for token in tokens))
    print(f"{len(tokens)} tokens, torch {torch.__version__}:", {name: list(a.shape) for name, a in arrays.items()})


if __name__ == "__main__":
    main()
