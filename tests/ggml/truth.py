"""truth.py MODEL TOKENS MODEL_F32 LOGITS: the logits (f32) of the last 32 of these tokens (i32), computed in f64 from
the weights of MODEL, of the architecture llama. MODEL_F32 becomes the same model with weights in f32: by others ggml
rounds activations to 8 bits, which changes more than attention does. Needs gguf and numpy."""

import sys

import gguf
import numpy as np

NEXT = 32


class Model:
    """Weights and numbers of a GGUF file."""

    def __init__(self, path: str) -> None:
        self.reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}

    def number(self, name: str) -> float:
        return self.reader.fields["llama." + name].contents()

    def f32(self, name: str) -> np.ndarray:
        tensor = self.tensors[name]
        return np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.f32(name).astype(np.float64)

    def write_f32(self, path: str) -> None:
        """A copy that says all else as this model does."""
        writer = gguf.GGUFWriter(path, "llama")
        for name, field in self.reader.fields.items():
            if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
                continue
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        for name in self.tensors:
            writer.add_tensor(name, self.f32(name))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def logits(model: Model, tokens: np.ndarray) -> np.ndarray:
    """Of the last NEXT tokens."""
    heads, kv_heads = model.number("attention.head_count"), model.number("attention.head_count_kv")
    dim, eps = model.number("rope.dimension_count"), model.number("attention.layer_norm_rms_epsilon")
    angles = np.arange(len(tokens))[:, None] / model.number("rope.freq_base") ** (np.arange(dim // 2) / (dim // 2))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    hidden = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)

    def normal(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * model[name]

    def rotated(x: np.ndarray) -> np.ndarray:
        """The file has queries and keys in the order of interleaved pairs."""
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)

    def attention(x: np.ndarray, block: str) -> np.ndarray:
        q, k, v = ((x @ model[f"{block}attn_{part}.weight"].T).reshape(len(x), -1, dim) for part in "qkv")
        q, k = rotated(q), rotated(k)
        out = np.empty_like(q)
        for h in range(heads):
            g = h * kv_heads // heads
            scores = q[:, h] @ k[:, g].T / np.sqrt(dim) + hidden
            p = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, h] = p / p.sum(-1, keepdims=True) @ v[:, g]
        return out.reshape(len(x), -1) @ model[block + "attn_output.weight"].T

    x = model["token_embd.weight"][tokens]
    for layer in range(model.number("block_count")):
        block = f"blk.{layer}."
        x = x + attention(normal(x, block + "attn_norm.weight"), block)
        y = normal(x, block + "ffn_norm.weight")
        gate, up = (y @ model[f"{block}ffn_{part}.weight"].T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ model[block + "ffn_down.weight"].T
    head = "output.weight" if "output.weight" in model.tensors else "token_embd.weight"
    return normal(x[-NEXT:], "output_norm.weight") @ model[head].T


def main() -> None:
    model = Model(sys.argv[1])
    model.write_f32(sys.argv[3])
    logits(model, np.fromfile(sys.argv[2], np.int32)).astype(np.float32).tofile(sys.argv[4])


if __name__ == "__main__":
    main()
