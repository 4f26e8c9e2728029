"""onnxruntime-genai with quantised caches: a model that its own builder makes, with attune and without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import ort_support as support
import pytest

import attune.ort

og = pytest.importorskip("onnxruntime_genai", reason="the package onnxruntime-genai is missing")
pytest.importorskip("onnx_ir", reason="the package onnx-ir, which genai's builder needs, is missing")
pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

LAYERS, HEADS, KV_HEADS, DIM, TOKENS = 2, 6, 2, 64, 500
SCHEMES = ("int8_per_channel", "int4_per_tensor")
PROMPT = [int(token) for token in np.random.default_rng(3).integers(3, TOKENS, 90)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A Qwen 3 of random weights, whose queries and keys have norms."""
    folder = tmp_path_factory.mktemp("qwen")
    transformers.set_seed(5)
    config = transformers.Qwen3Config(
        vocab_size=TOKENS, hidden_size=128, intermediate_size=192, num_hidden_layers=LAYERS, head_dim=DIM,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=256, initializer_range=0.3,
        bos_token_id=1, eos_token_id=2, pad_token_id=0)
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(TOKENS)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


def build(weights, scheme, folder):
    """By the package's own builder. Its scales are calibrated; these are those of unit numbers."""
    scale = 3 / (127 if "int8" in scheme else 7)
    entry = [scale] * (KV_HEADS * DIM) if "channel" in scheme else scale
    file = folder / "scales.json"
    file.write_text(json.dumps({"scales": {"k_scales": [entry] * LAYERS, "v_scales": [entry] * LAYERS}}))
    paths = os.pathsep.join(path for path in sys.path if path)
    builder = Path(og.__file__).parent / "models" / "builder.py"
    command = [sys.executable, str(builder), "-i", str(weights), "-o", str(folder / "model"), "-p", "fp32", "-e", "cpu",
               "-c", str(folder / "cache"), "--extra_options", f"kv_cache_quant_scheme={scheme}",
               f"kv_cache_scale_file={file}"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return str(folder / "model")


def generate(path, with_attune):
    """The logits after the prompt, and after each of eight tokens that are the same for both."""
    config = og.Config(path)
    if with_attune:
        config.clear_providers()
        config.append_provider(attune.ort.PROVIDER)
    model = og.Model(config)
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=128, do_sample=False)
    generator = og.Generator(model, parameters)
    logits = []
    for tokens in [PROMPT, *([token] for token in PROMPT[:8])]:
        generator.append_tokens(np.array([tokens], np.int32))
        logits.append(np.array(generator.get_logits())[:, -1])
    return np.concatenate(logits)


@pytest.fixture(scope="module")
def provider():
    og.register_execution_provider_library("attune", attune.ort.library_path())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantised_caches(weights, provider, scheme, tmp_path):
    path = build(weights, scheme, tmp_path)
    before = support.ran("GroupQueryAttention")
    ours = generate(path, True)
    assert support.ran("GroupQueryAttention") == before + 9 * LAYERS
    stock = generate(path, False)
    assert np.abs(ours - stock).max() <= 2e-3 * np.abs(stock).max()
