"""Whether an engine with attune grows: leak.py [--seconds 600] [--stock]. Exits with 1 if it does.

Requests of any length come, end, lose their blocks and are left, in a cache that is too small for them. Open files,
threads, Python's objects and step plans of the last tenth of the time are compared with those of the third. Time is
what this thread computes, so that a busy machine makes no difference.

Memory is shown only: vLLM's own grows, too, by 0.4 MiB for each of the first 300 requests. Compare with --stock.
"""

import argparse
import gc
import os
import random
import sys
import time

import generate

ENGINE = {"dtype": "float32", "max_num_batched_tokens": 128, "num_gpu_blocks_override": 40, "block_size": 32,
          "max_model_len": 512, "enable_prefix_caching": True}  # fmt: skip


def sizes():
    """Resident MiB, open files, threads, objects that Python's collector knows, and step plans among them."""
    import attune

    gc.collect()
    objects = gc.get_objects()
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    plans = sum(type(one) is attune.StepPlan for one in objects)
    return [int(status["VmRSS"].split()[0]) // 1024, len(os.listdir("/proc/self/fd")), int(status["Threads"]),
            len(objects), plans]  # fmt: skip


class Traffic:
    """Random requests by a fixed seed."""

    def __init__(self, llm):
        self.engine, self.draw = llm.llm_engine, random.Random(5)
        self.running, self.requests, self.left = set(), 0, 0

    def step(self):
        from vllm import SamplingParams

        while len(self.running) < 12:
            name, length = str(self.requests), self.draw.randrange(1, 400)
            sampling = SamplingParams(temperature=0, max_tokens=self.draw.randrange(1, 60), ignore_eos=True,
                                      detokenize=False)  # fmt: skip
            prompt = generate.prompts_of([length], self.draw.randrange(40))[0]
            self.engine.add_request(name, prompt, sampling)
            self.running.add(name)
            self.requests += 1
        if self.draw.random() < 0.05:
            name = self.draw.choice(sorted(self.running))
            self.engine.abort_request([name])
            self.running.discard(name)
            self.left += 1
        for output in self.engine.step():
            if output.finished:
                self.running.discard(output.request_id)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--stock", action="store_true", help="without attune, for comparison")
    o = parser.parse_args()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    import attune.vllm

    assert o.stock or attune.vllm.enable()
    llm = generate.start(os.environ["SHORT_MODEL"], ENGINE)
    traffic, begin, seen = Traffic(llm), time.thread_time(), []
    print("seconds | requests, left | steps, compiles | MiB, files, threads, objects, plans", flush=True)
    for tenth in range(1, 11):
        while time.thread_time() < begin + o.seconds * tenth / 10:
            traffic.step()
        seen.append(sizes())
        steps, compiles = (attune.vllm.stats()[name] for name in ("steps", "compiles"))
        print(f"{o.seconds * tenth / 10:.0f} | {traffic.requests}, {traffic.left} | {steps}, {compiles} | {seen[-1]}",
              flush=True)  # fmt: skip
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    print(f"{metrics['vllm:num_preemptions'].value} preemptions")
    limits = [2, 0, 2000, 4]
    grown = [last - third for third, last in zip(seen[2], seen[-1])]
    print(f"grew by {grown[0]} MiB, and by {grown[1:]} of at most {limits}")
    grown.pop(0)
    sys.exit(any(own > most for own, most in zip(grown, limits)))


if __name__ == "__main__":
    main()
