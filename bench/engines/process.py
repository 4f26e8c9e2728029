"""What attune does to a process besides being fast: threads, libraries, compiles, the first token, memory.

Each row starts processes of its own, with a cache that is empty (cold) or filled by the one before (warm). Such a
process is this file: process.py FACT THREADS, which prints one JSON value.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PROCESSES = 5  # for what differs from one to the next
NOT_THERE = 3  # exit status
MOST_GROWTH_KIB = 1024


def small_llama(layers=2, kv_heads=3):
    """A decoder of SmolLM2's shapes with random weights: its kernels are those of the real one, as they are with fewer
    heads."""
    import torch

    from encoders import transformers

    torch.manual_seed(1)
    config = transformers().LlamaConfig(
        hidden_size=192 * kv_heads, intermediate_size=512 * kv_heads, num_hidden_layers=layers,
        num_attention_heads=3 * kv_heads, num_key_value_heads=kv_heads, vocab_size=1000,
    )
    return transformers().LlamaForCausalLM(config).eval()


def generator(layers=2, kv_heads=3):
    """generate(length of the prompt, tokens), by attune, or by stock attention and caches if so said."""
    import torch

    from engine import attune_transformers

    module, model = attune_transformers(), small_llama(layers, kv_heads)

    def generate(length, tokens, by_stock=False):
        model.set_attn_implementation("sdpa" if by_stock else "attune")
        cache = None if by_stock else module.AttuneCache(config=model.config)
        words = torch.arange(length).reshape(1, -1) % 1000
        model.generate(
            words, attention_mask=torch.ones_like(words), past_key_values=cache, max_new_tokens=tokens,
            min_new_tokens=tokens, do_sample=False, pad_token_id=0,
        )

    return generate


def layers_and_attention():
    """Blocks and attention alone, overridden."""
    import torch

    from engine import attune_torch

    attune_torch().enable()
    layer = torch.nn.TransformerEncoderLayer(384, 12, 1536, batch_first=True).eval()
    for length in (16, 200, 512):
        layer(torch.randn(2, length, 384))
        q = torch.randn(2, 8, length, 64)
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def threads_of_attune():
    """Threads that bear attune's name, while everything is bridged."""
    layers_and_attention()
    generator()(100, 8)
    tasks = pathlib.Path("/proc/self/task")
    return sum((task / "comm").read_text().startswith("attune") for task in tasks.iterdir())


def mapped():
    """Libraries of the code generator in this process."""
    layers_and_attention()
    generator()(100, 8)
    paths = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines()}
    return sorted(os.path.basename(path) for path in paths if "LLVM" in path or "attune-codegen" in path)


def compiles():
    from engine import attune_torch

    return attune_torch().stats().get("compiles")


def compiles_of_a_long_answer():
    generator()(33, 256)
    return compiles()


def compiles_of_requests():
    """48 requests of 42 lengths."""
    generate = generator()
    for number in range(48):
        generate(20 + 37 * (number % 42), 4)
    return compiles()


def first_token():
    """Milliseconds that the first token takes beyond later ones, after stock has warmed PyTorch up. The model has few
    heads, because a difference of one millisecond drowns in the noise of larger products."""

    def milliseconds(**options):
        start = time.perf_counter_ns()
        generate(64, 1, **options)
        return (time.perf_counter_ns() - start) / 1e6

    generate = generator(layers=4, kv_heads=1)
    for _ in range(3):
        milliseconds(by_stock=True)
    first = milliseconds()
    return first - statistics.median(milliseconds() for _ in range(9))


def start():
    """Milliseconds of importing attune, once PyTorch and transformers are there."""
    import torch  # noqa: F401

    from encoders import transformers
    from engine import attune_torch, attune_transformers

    small_llama(layers=1)
    transformers()
    begin = time.perf_counter_ns()
    attune_transformers()
    attune_torch().enable()
    return (time.perf_counter_ns() - begin) / 1e6


def growth():
    """KiB that the process grows by in calls of forty lengths, each of which it has seen before."""
    import torch

    from engine import attune_torch

    generate = generator()
    attune_torch().enable()
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()

    def calls(count):
        for number in range(count):
            length = 1 + number % 40
            q = torch.randn(1, 4, length, 16)
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
            layer(torch.randn(1, length, 64))
            if number % 100 == 0:
                generate(length, 3)
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

    before = calls(2000)
    return calls(6000) - before


FACTS = {
    function.__name__: function
    for function in (
        threads_of_attune, mapped, compiles_of_a_long_answer, compiles_of_requests, first_token, start, growth,
    )
}


def ask(fact, threads, cache):
    """The value of a fact, from a process of its own."""
    from engine import Missing

    settings = os.environ | {"ATTUNE_CACHE_DIR": str(cache), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, fact, str(threads)]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode == NOT_THERE:
        raise Missing(done.stdout.strip())
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise RuntimeError(f"the process failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def row(name, goal, fact, judge, warm=False, unit="", processes=1):
    """A row with the fact's value, the median over processes. `judge` says whether it is good."""
    from engine import Row

    def run(threads, seconds):
        values = []
        with tempfile.TemporaryDirectory() as folder:
            for number in range(processes + warm):
                cache = pathlib.Path(folder) / ("warm" if warm else str(number))
                values.append(ask(fact, threads, cache))
        values = values[warm:]
        value = statistics.median(values) if processes > 1 else values[0]
        text = ", ".join(value) or "none" if isinstance(value, list) else f"{value:.4g}{unit}"
        return {"values": values, "value": text, "is_good": judge(value)}

    return Row(name, goal, run, threads=(2,))


def rows():
    return [
        row("threads of attune's own while bridged", "0", "threads_of_attune", lambda count: count == 0),
        row("code generator and libLLVM mapped on a warm start", "none", "mapped", lambda names: not names, warm=True),
        row("compiles in a generate() of 256 tokens", "≤ 3", "compiles_of_a_long_answer", lambda count: count <= 3),
        row("compiles in 48 requests of 42 lengths", "≤ 10", "compiles_of_requests", lambda count: count <= 10),
        row("first token added, cold", "≤ 60 ms", "first_token", lambda ms: ms <= 60, unit=" ms", processes=PROCESSES),
        row("first token added, warm", "≤ 1 ms", "first_token", lambda ms: ms <= 1, True, " ms", PROCESSES),
        row("importing attune and enabling it", "", "start", lambda ms: True, True, " ms", PROCESSES),
        row(
            "growth in 6,000 calls of 40 lengths", f"≤ {MOST_GROWTH_KIB} KiB", "growth",
            lambda kib: kib <= MOST_GROWTH_KIB, unit=" KiB", processes=PROCESSES,
        ),
    ]


def main():
    import torch

    from engine import Missing

    torch.set_grad_enabled(False)
    torch.set_num_threads(int(sys.argv[2]))
    try:
        value = FACTS[sys.argv[1]]()
    except Missing as error:
        print(error)
        sys.exit(NOT_THERE)
    print(json.dumps(value))


if __name__ == "__main__":
    main()
