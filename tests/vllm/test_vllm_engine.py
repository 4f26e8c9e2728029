"""attune in vLLM itself: greedy tokens of SmolLM2 compared with those of vLLM's own kernels, and a server.

Environment: WHOLE_MODEL, SHORT_MODEL, LATENT_MODEL …: folders that model.py makes. All runs of one kind share a
process, because vLLM takes long to start. Nothing has a time limit, because the machine may be slow or suspended.
"""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import generate
import pytest
import torch

HERE = Path(__file__).resolve().parent
LENS = [1, 2, 7, 31, 32, 33, 100, 127, 128, 129, 200, 400, 600, 900, 1200, 1500]
SHORT_LENS = LENS[:12]


def options(lens=SHORT_LENS, tokens=12, model="SHORT_MODEL", repeat=1, variables=None, **engine):
    return {"model": os.environ[model], "lens": lens, "tokens": tokens, "repeat": repeat, "variables": variables or {},
            "engine": {"dtype": "float32", "max_num_batched_tokens": 256} | engine}  # fmt: skip


# Requests of 150 to 190 tokens, and 26 blocks of 32 tokens: some lose their blocks and come back.
TINY = dict(lens=[150, 160, 170, 180, 190], tokens=40, block_size=32)
E5M2 = dict(lens=[5, 40, 70], tokens=4, kv_cache_dtype="fp8_e5m2")
LATENT = dict(model="LATENT_MODEL", max_num_batched_tokens=2048)
# A process for each half of the heads, on a CPU of its own where there are two.
TWO = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": f"0|{min(1, os.cpu_count() - 1)}"}
# Models with random weights, in f32: how many of their layers are in a group of their own.
KINDS = {"soft_cap": 1, "alibi": 2, "sinks": 1, "shared": 2}
OF_KINDS = {kind: options(model=f"{kind.upper()}_MODEL") | {"logprobs": 0} for kind in KINDS}
KINDS["whisper"] = 2  # the decoder's own keys, and the encoder's
OF_KINDS["whisper"] = options([1, 3, 40, 200, 7], model="WHISPER_MODEL", max_num_batched_tokens=512, max_model_len=400,
                              max_num_seqs=3, skip_tokenizer_init=False) | {"logprobs": 0, "sound": True}  # fmt: skip
OF_KINDS["encoder"] = options(model="ENCODER_MODEL", tokens=0, max_num_batched_tokens=2048)
# As vLLM computes by default: torch.compile, which compiles C++ with Python's headers.
HAS_COMPILER = bool(shutil.which("g++")) and (Path(sysconfig.get_path("include")) / "Python.h").exists()
COMPILED = {"compiled": options(enforce_eager=False)} if HAS_COMPILER else {}
HALVES = {dtype: options(dtype=dtype) for dtype in ("bfloat16", "float16")}
# Drafts are what followed the same tokens before: a small model repeats itself.
DRAFTS = dict(lens=[1, 80, 200], tokens=60, max_num_seqs=3)
SHARED = dict(lens=[300, 310, 400, 333, 290], tokens=12)  # the first 288 tokens are the same
NGRAMS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
CHUNKS = (64, 256, 2048)  # 2048: prompts at once
STOCK = {
    "short": options(),
    "latent": options(**LATENT),
    "latent, 3 at once": options(max_num_seqs=3, **LATENT),
    "even": options(model="EVEN_MODEL"),
    **{f"whole {chunk}": options(LENS, model="WHOLE_MODEL", max_num_batched_tokens=chunk) for chunk in CHUNKS},
    "room": options(**TINY),
    "e5m2": options(**E5M2),
    "drafts": options(**DRAFTS),
    "shared prefix": options(**SHARED) | {"shared": 288},
    **OF_KINDS,
    **HALVES,
    **COMPILED,
}
ATTUNE = {
    "chunks of 64": options(max_num_batched_tokens=64),
    "no chunks": options(max_num_batched_tokens=2048, block_size=32),
    "blocks of 16": options(block_size=16),
    "prefixes": options(repeat=2, enable_prefix_caching=True, block_size=32, max_num_batched_tokens=128),
    **{
        f"shared prefix {chunk}": options(repeat=2, enable_prefix_caching=True, block_size=32,
                                          max_num_batched_tokens=chunk, **SHARED) | {"shared": 288}
        for chunk in (256, 2048)
    },
    "any head size": options(model="ODD_MODEL"),
    "tiny": options(num_gpu_blocks_override=26, max_model_len=512, **TINY),
    "int8": options(kv_cache_dtype="int8_per_token_head"),
    "fp8": options(kv_cache_dtype="fp8"),
    "bf16": options(kv_cache_dtype="bfloat16"),
    "e5m2": options(**E5M2),
    "reproducible": options(variables={"ATTUNE_VLLM_REPRODUCIBLE": "1"}),
    "latent": options(**LATENT),
    "latent, 3 at once": options(max_num_seqs=3, **LATENT),
    **OF_KINDS,
    **HALVES,
    **COMPILED,
    "shared, last tokens": options(model="SHARED_MODEL", kv_sharing_fast_prefill=True),
    "even": options(model="EVEN_MODEL", tensor_parallel_size=2, variables=TWO),
    **{
        f"whole {chunk}": options(LENS, model="WHOLE_MODEL", repeat=2, enable_prefix_caching=True,
                                  max_num_batched_tokens=chunk)
        for chunk in CHUNKS
    },
    "drafts": options(speculative_config=NGRAMS, **DRAFTS),  # the last: vLLM starts no engine after it in this process
}  # fmt: skip


def run(kind, runs):
    command = [sys.executable, HERE / "generate.py", kind, json.dumps(runs)]
    done = subprocess.run(command, text=True, capture_output=True)
    results = {"log": done.stdout + done.stderr}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            results |= json.loads(line)
    assert done.returncode == 0, f"after {list(results)}: {done.stderr[-3000:]}"
    return results


@pytest.fixture(scope="module")
def stock():
    return run("stock", STOCK)


@pytest.fixture(scope="module")
def attune():
    results = run("attune", ATTUNE)
    assert re.search(r"attune computes attention of 6 of 6 layers", results["log"])
    assert "stays off" not in results["log"]
    return results


@pytest.mark.parametrize("chunk", CHUNKS)
def test_whole_model(attune, stock, chunk):
    """Prompts of 1 to 1500 tokens, together with decoding. The second time, blocks of prompts are there already."""
    first, second = attune[f"whole {chunk}"]["tokens"]
    assert first == second == stock[f"whole {chunk}"]["tokens"][0]
    assert attune[f"whole {chunk}"]["prefix_cache_hits"] > 4000


@pytest.mark.parametrize("name", ["latent", "latent, 3 at once"])
def test_latent_attention(attune, stock, name):
    """Prompts alone, and together with decoding. Latents are in a cache of vLLM's own layout."""
    assert attune[name]["tokens"] == stock[name]["tokens"]
    assert attune[name]["stats"]["calls"] > 2 * attune[name]["stats"]["steps"] - 2


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_attention(attune, stock, kind):
    """Soft cap, windows, ALiBi, sinks, layers that share keys, and cross-attention, by the models that have them."""
    pairs = zip(sum(attune[kind]["tokens"][0], []), sum(stock[kind]["tokens"][0], []))
    mine, theirs = zip(*pairs)
    assert [token for token, _ in mine] == [token for token, _ in theirs]
    assert [value for _, value in mine] == pytest.approx([value for _, value in theirs], abs=1e-4)
    stats = attune[kind]["stats"]
    assert stats["calls"] == KINDS[kind] * stats["steps"]
    assert not any(count for name, count in stats.items() if "stock" in name)


def test_keys_of_an_earlier_layer(attune, stock):
    """--kv-sharing-fast-prefill: of prompts, layers that share keys compute the last token only."""
    theirs = [[token for token, _ in tokens] for tokens in stock["shared"]["tokens"][0]]
    assert attune["shared, last tokens"]["tokens"] == [theirs]
    assert attune["shared, last tokens"]["stats"]["calls"] == attune["shared, last tokens"]["stats"]["steps"]


def test_encoder(attune, stock):
    """No causality, and windows on both sides."""
    for mine, theirs in zip(attune["encoder"]["vectors"], stock["encoder"]["vectors"]):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert attune["encoder"]["stats"]["calls"] >= 2


def test_two_processes(attune, stock):
    """Tensor parallel: each has half of the heads."""
    assert attune["even"]["tokens"] == stock["even"]["tokens"]
    assert re.search(r"Worker_TP[01].*attune computes attention of 2 of 2 layers", attune["log"])


@pytest.mark.parametrize("name", ["chunks of 64", "no chunks", "blocks of 16", "reproducible"])
def test_tokens(attune, stock, name):
    assert attune[name]["tokens"] == stock["short"]["tokens"]
    assert attune[name]["stats"]["calls"] == 6 * attune[name]["stats"]["steps"]


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no g++, or no Python.h")
def test_compiled(attune, stock):
    """vLLM's default. A model that it compiled for the one backend, and kept on disk, is none for the other."""
    assert attune["compiled"]["tokens"] == stock["compiled"]["tokens"]
    assert attune["compiled"]["stats"]["calls"] == 6 * attune["compiled"]["stats"]["steps"]
    mine, theirs = (set(re.findall(r"torch_aot_compile/(\w+)", results["log"])) for results in (attune, stock))
    assert mine and theirs and not mine & theirs


def test_prefix_caching(attune, stock):
    """The second time the blocks of each prompt are there already."""
    first, second = attune["prefixes"]["tokens"]
    assert first == second == stock["short"]["tokens"][0]
    assert attune["prefixes"]["prefix_cache_hits"] > 500


@pytest.mark.parametrize("chunk", [256, 2048])
def test_shared_prefix(attune, stock, chunk):
    """All requests have the same first blocks, whose keys are read once in each step. With chunks of 2048 the first
    request writes them in the step in which the others have them already."""
    first, second = attune[f"shared prefix {chunk}"]["tokens"]
    assert first == second == stock["shared prefix"]["tokens"][0]
    assert attune[f"shared prefix {chunk}"]["stats"]["steps.shared"] >= 12


def test_any_head_size(attune):
    """Heads of 40, which vLLM's own kernels have not: the tokens of transformers."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(os.environ["ODD_MODEL"])
    for prompt, mine in zip(generate.prompts_of(SHORT_LENS, 0), attune["any head size"]["tokens"][0]):
        tokens = torch.tensor([prompt["prompt_token_ids"]])
        theirs = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=12, do_sample=False,
                                eos_token_id=None)  # fmt: skip
        assert theirs[0, tokens.shape[1] :].tolist() == mine


def test_preemption(attune, stock):
    assert attune["tiny"]["num_preemptions"] > 0
    assert attune["tiny"]["tokens"] == stock["room"]["tokens"]


@pytest.mark.parametrize("name, most", [("int8", 2), ("fp8", 6), ("bf16", 2)])
def test_caches_of_other_types(attune, stock, name, most):
    """Rounding changes few of the first tokens."""
    pairs = zip(attune[name]["tokens"][0], stock["short"]["tokens"][0])
    assert sum(mine[0] != theirs[0] for mine, theirs in pairs) <= most


@pytest.mark.parametrize("dtype", HALVES)
def test_types(attune, stock, dtype):
    """Rounding changes few of the first tokens."""
    pairs = zip(attune[dtype]["tokens"][0], stock[dtype]["tokens"][0])
    assert sum(mine[0] != theirs[0] for mine, theirs in pairs) <= 2


def test_drafts(attune, stock):
    """Drafts are verified in one step, so there are fewer steps than tokens."""
    assert attune["drafts"]["tokens"] == stock["drafts"]["tokens"]
    assert attune["drafts"]["spec_decode_num_accepted_tokens"] > 20


def test_what_is_left_to_stock(attune, stock):
    """fp8_e5m2: the same kernels write and read the cache, so tokens are the same."""
    assert attune["e5m2"]["stats"]["calls"] == 0
    assert attune["e5m2"]["tokens"] == stock["e5m2"]["tokens"]
    assert "attune leaves a cache of fp8_e5m2 to vLLM's own backend" in attune["log"]


def test_nothing_is_stored_one_by_one(attune):
    assert not any(result["stats"].get("steps.stored") for name, result in attune.items() if name != "log")


# ---- A server ----


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    # `vllm serve` looks for a package of this name, and does not begin where it is vllm-cpu.
    package = tmp_path_factory.mktemp("site") / "vllm-0.32.0+cpu.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    command = [Path(sys.executable).parent / "vllm", "serve", os.environ["SHORT_MODEL"], "--port", str(port), "--host",
               "127.0.0.1", "--dtype", "float32", "--max-model-len", "1024", "--max-num-batched-tokens", "128",
               "--max-num-seqs", "16", "--served-model-name", "model",
               *([] if HAS_COMPILER else ["--enforce-eager"])]  # fmt: skip
    env = os.environ | {"ATTUNE_VLLM": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                        "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{package.parent}"}  # fmt: skip
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        while "Application startup complete" not in log.read_text():
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1", log
    finally:
        process.terminate()
        process.wait()


PROMPTS = [f"{number} things that a good engine needs: " + "a valve, a rod, " * number for number in range(16)]


def test_server(server):
    """16 streams at once, one of which its client leaves, beside the same requests one by one."""
    import openai

    url, log = server
    client = openai.AsyncOpenAI(base_url=url, api_key="none", timeout=None)

    async def stream(prompt, leave_after=10**6):
        parts = []
        asked = dict(model="model", prompt=prompt, temperature=0, max_tokens=24, stream=True)
        events = await client.completions.create(**asked)
        async for event in events:
            parts.append(event.choices[0].text)
            if len(parts) >= leave_after:
                await events.close()
                break
        return "".join(parts)

    async def all_of_them():
        together = await asyncio.gather(*[stream(prompt, 3 if i == 5 else 10**6) for i, prompt in enumerate(PROMPTS)])
        alone = [await stream(prompt) for prompt in PROMPTS]
        return together, alone

    together, alone = asyncio.run(all_of_them())
    assert alone[5].startswith(together[5]) and together[5]
    differ = [i for i in range(16) if i != 5 and together[i] != alone[i]]
    assert not differ, [(together[i], alone[i]) for i in differ]
    assert "attune computes attention of 6 of 6 layers" in log.read_text() and "stays off" not in log.read_text()
