"""Runs of vLLM in one process: generate.py attune|stock RUNS, as JSON, {name: options}; a line of JSON for each.

model: the folder. lens: of the prompts, whose tokens are random. tokens: how many each request gets; 0: the model is
an encoder, which gives a vector. repeat: runs the prompts so often. logprobs: 0 returns those of the tokens, too.
sound: prompts come with noise of up to three seconds. shared: so many first tokens are those of all prompts, and
attune reads their keys once for any numbers of requests and queries. engine: arguments of vllm.LLM. variables: of the
environment.
"""

import functools
import gc
import json
import os
import sys
import time

import numpy


def prompts_of(lens, seed, sound=False, shared=0):
    draw = numpy.random.default_rng(seed)
    tokens = [[int(token) for token in draw.integers(100, 40000, count)] for count in lens]
    prompts = [{"prompt_token_ids": tokens[0][:shared] + own[shared:]} for own in tokens]
    for prompt in prompts if sound else ():
        noise = draw.standard_normal(draw.integers(8000, 48000), dtype=numpy.float32)
        prompt["multi_modal_data"] = {"audio": (noise, 16000)}
    return prompts


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


def once(llm, lens, tokens, logprobs=None, sound=False, shared=0):
    """Greedy tokens of prompts of these lengths: seconds, seconds of attention, and the tokens, or with logprobs=0 each
    token and its logprob."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=logprobs)
    prompts, llm.clock.seconds = prompts_of(lens, 0, sound, shared), 0.0
    begin = time.perf_counter()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - begin
    results = [output.outputs[0] for output in outputs]
    if logprobs is None:
        return seconds, llm.clock.seconds, [list(result.token_ids) for result in results]
    pairs = [zip(result.token_ids, result.logprobs) for result in results]
    return seconds, llm.clock.seconds, [[(token, known[token].logprob) for token, known in pair] for pair in pairs]


def run(o):
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    engine = o["engine"] if o["tokens"] else o["engine"] | {"runner": "pooling", "skip_tokenizer_init": False,
                                                            "tokenizer": os.environ["SHORT_MODEL"]}  # fmt: skip
    llm = start(o["model"], engine)
    result = {"tokens": []}
    for _ in range(o.get("repeat", 1) if o["tokens"] else 0):
        details = o.get("logprobs"), o.get("sound", False), o.get("shared", 0)
        result["tokens"].append(once(llm, o["lens"], o["tokens"], *details)[2])
    if not o["tokens"]:
        result["vectors"] = [one.outputs.embedding for one in llm.embed(prompts_of(o["lens"], 0), use_tqdm=False)]
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    for name in ("num_preemptions", "prefix_cache_hits", "spec_decode_num_accepted_tokens"):
        result[name] = metrics[f"vllm:{name}"].value if f"vllm:{name}" in metrics else 0
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
    return result


def main(kind, runs):
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    import attune.vllm
    from attune.vllm import _prefix

    if kind == "attune":
        attune.vllm.enable()
    least, most = _prefix.LEAST_SAVED, _prefix.MOST_QUERIES
    for name, options in runs.items():
        before = attune.vllm.stats() if kind == "attune" else {}
        _prefix.LEAST_SAVED, _prefix.MOST_QUERIES = (1, 10**6) if options.get("shared") else (least, most)
        os.environ |= options.get("variables", {})
        result = run(options)
        for variable in options.get("variables", {}):
            del os.environ[variable]
        after = attune.vllm.stats() if kind == "attune" else {}
        result["stats"] = {key: value - before.get(key, 0) for key, value in after.items()}
        print(json.dumps({name: result}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
