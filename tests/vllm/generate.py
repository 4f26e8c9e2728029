"""Runs of vLLM in one process: generate.py attune|stock RUNS, as JSON, {name: options}; a line of JSON for each.

model: the folder. lens: of the prompts, whose tokens are drawn by `seed`. tokens: how many each request gets. repeat:
runs the prompts so often. engine: arguments of vllm.LLM. variables: of the environment.
"""

import functools
import gc
import json
import os
import sys
import time

import numpy


def prompts_of(lens, seed):
    draw = numpy.random.default_rng(seed)
    return [{"prompt_token_ids": [int(token) for token in draw.integers(100, 40000, count)]} for count in lens]


class Clock:
    """Adds up the time within functions of vLLM's backend for CPUs, attune's or its own."""

    def __init__(self):
        self.seconds = 0.0

    def watch(self, kind, names):
        for name in names:
            setattr(kind, name, self._timed(getattr(kind, name)))

    def _timed(self, function):
        @functools.wraps(function)  # attune looks at the parameters of vLLM's functions
        def timed(*arguments, **options):
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - begin

        return timed


def watch_attention(llm):
    """llm.clock adds up the seconds in its attention."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    backend = AttentionBackendEnum.CPU_ATTN.get_class()
    if "clock" not in vars(backend):
        backend.clock = Clock()
        own = ["forward"] if backend.forward_includes_kv_cache_update else ["forward", "do_kv_cache_update"]
        backend.clock.watch(backend.get_impl_cls(), own)
        backend.clock.watch(backend.get_builder_cls(), ["build"])
    llm.clock = backend.clock


def start(model, engine, profile=False):
    from vllm import LLM

    options = {"enforce_eager": True, "skip_tokenizer_init": True, "max_model_len": 2048, "max_num_seqs": 16,
               "disable_log_stats": False, "seed": 0, "enable_prefix_caching": False}  # fmt: skip
    llm = LLM(model=model, **options | engine)
    llm.clock = Clock()
    if profile:
        watch_attention(llm)
    return llm


def once(llm, lens, tokens, seed=0):
    """Greedy tokens of prompts of these lengths: seconds, seconds of attention, and the tokens."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    prompts, llm.clock.seconds = prompts_of(lens, seed), 0.0
    begin = time.perf_counter()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - begin
    return seconds, llm.clock.seconds, [list(output.outputs[0].token_ids) for output in outputs]


def run(o):
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    llm = start(o["model"], o["engine"])
    result = {"tokens": []}
    for _ in range(o.get("repeat", 1)):
        result["tokens"].append(once(llm, o["lens"], o["tokens"], o.get("seed", 0))[2])
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    for name in ("num_preemptions", "prefix_cache_hits"):
        result[name] = metrics[f"vllm:{name}"].value
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
    return result


def main(kind, runs):
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    import attune.vllm

    if kind == "attune":
        attune.vllm.enable()
    for name, options in runs.items():
        before = attune.vllm.stats() if kind == "attune" else {}
        os.environ |= options.get("variables", {})
        result = run(options)
        for variable in options.get("variables", {}):
            del os.environ[variable]
        after = attune.vllm.stats() if kind == "attune" else {}
        result["stats"] = {key: value - before.get(key, 0) for key, value in after.items()}
        print(json.dumps({name: result}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
