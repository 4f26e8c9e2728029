"""Runs of vLLM in one process: generate.py attune|stock RUNS, as JSON, {name: options}; a line of JSON for each.

model: the folder. lens: of the prompts, whose tokens are drawn by `seed`. tokens: how many each request gets. repeat:
runs the prompts so often. profile: also gives the seconds within attention. engine: arguments of vllm.LLM.
"""

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
        def timed(*arguments, **options):
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - begin

        return timed


def watched():
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    clock, backend = Clock(), AttentionBackendEnum.CPU_ATTN.get_class()
    own = ["forward"] if backend.forward_includes_kv_cache_update else ["forward", "do_kv_cache_update"]
    clock.watch(backend.get_impl_cls(), own)
    clock.watch(backend.get_builder_cls(), ["build"])
    return clock


def run(o):
    from vllm import LLM, SamplingParams
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    options = {"enforce_eager": True, "skip_tokenizer_init": True, "max_model_len": 2048, "max_num_seqs": 16,
               "disable_log_stats": False, "seed": 0, "enable_prefix_caching": False}  # fmt: skip
    clock = watched() if o.get("profile") else Clock()
    llm = LLM(model=o["model"], **options | o["engine"])
    sampling = SamplingParams(temperature=0, max_tokens=o["tokens"], ignore_eos=True, detokenize=False)
    result = {"tokens": [], "seconds": [], "attention_seconds": []}
    for _ in range(o.get("repeat", 1)):
        begin, clock.seconds = time.perf_counter(), 0.0
        outputs = llm.generate(prompts_of(o["lens"], o.get("seed", 0)), sampling, use_tqdm=False)
        result["seconds"].append(time.perf_counter() - begin)
        result["attention_seconds"].append(clock.seconds)
        result["tokens"].append([list(output.outputs[0].token_ids) for output in outputs])
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
