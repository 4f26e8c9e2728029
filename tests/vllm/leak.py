"""Whether an engine with attune grows: leak.py [--seconds 600]. Exits with 1 if it does.

Two engines, with attune and without, get the same requests step by step. Requests of any length come, end, lose their
blocks and are left, in a cache that is too small for them. What the last step has is compared with what there was after
three tenths of the time:

* of attune alone: memory that its libraries allocated (blocks.c counts it), memory that its lines of Python allocated,
  and step plans;
* of the process: open files and threads;
* beside vLLM without attune, which grows itself: resident memory and Python's objects.
"""

import argparse
import ctypes
import gc
import json
import os
import random
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import generate

ENGINE = {"dtype": "float32", "max_num_batched_tokens": 128, "num_gpu_blocks_override": 40, "block_size": 32,
          "max_model_len": 512, "enable_prefix_caching": True}  # fmt: skip
# How much each may grow. A byte that is lost in each step would be some 20 KiB in ten minutes.
OWN = {"blocks": 64, "library KiB": 512, "python KiB": 16, "plans": 4, "files": 2, "threads": 0}
BESIDE = {"MiB": 12, "objects": 2000}
STEPS = 50  # in which both engines take their turn


def sizes(blocks):
    """Of this process, by name."""
    gc.collect()
    objects = gc.get_objects()
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    held = ctypes.c_long()
    count = blocks.blocks_live(ctypes.byref(held))
    lines = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/attune/*")]).statistics("filename")
    return {
        "MiB": int(status["VmRSS"].split()[0]) / 1024,
        "objects": len(objects),
        "blocks": count,
        "library KiB": held.value / 1024,
        "python KiB": sum(line.size for line in lines) / 1024,
        "plans": sum(type(one).__name__ == "StepPlan" for one in objects),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
    }


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


def engine(kind):
    """An engine in this process: for each line of input STEPS steps, and a line of JSON after them."""
    import attune.vllm

    answers = os.fdopen(os.dup(1), "w")  # vLLM logs to 1
    os.dup2(2, 1)
    assert kind == "stock" or attune.vllm.enable()
    llm = generate.start(os.environ["SHORT_MODEL"], ENGINE)
    blocks = ctypes.CDLL(os.environ["BLOCKS"])  # as preloaded
    assert blocks.blocks_watch() or kind == "stock"
    tracemalloc.start()
    traffic = Traffic(llm)
    for _ in sys.stdin:
        for _ in range(STEPS):
            traffic.step()
        metrics = {metric.name: metric for metric in llm.get_metrics()}
        answer = {"requests": traffic.requests, "left": traffic.left, **attune.vllm.stats(),
                  "preemptions": metrics["vllm:num_preemptions"].value, **sizes(blocks)}  # fmt: skip
        print(json.dumps(answer), file=answers, flush=True)


class Engine:
    def __init__(self, kind, log):
        env = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                            "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                            "LD_PRELOAD": os.environ["BLOCKS"]}  # fmt: skip
        self.log = log
        with open(log, "w") as errors:
            self.child = subprocess.Popen([sys.executable, __file__, "--engine", kind], text=True, env=env,
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)  # fmt: skip

    def go(self):
        print(file=self.child.stdin, flush=True)

    def answer(self):
        line = self.child.stdout.readline()
        if not line:
            sys.exit(Path(self.log).read_text()[-3000:])
        return json.loads(line)


def verdict(rows):
    """What grew too much, from the third tenth of `rows` on. A row: what stock, and what attune has."""
    first, last = rows[3 * len(rows) // 10], rows[-1]
    stock, attune = ({name: last[i][name] - first[i][name] for name in OWN | BESIDE} for i in (0, 1))
    grown = []
    for name, most in OWN.items():
        print(f"{name} grew by {attune[name]:.0f} with attune, of at most {most}")
        grown += [name] if attune[name] > most else []
    for name, most in BESIDE.items():
        print(f"{name} grew by {attune[name]:.0f} with attune and {stock[name]:.0f} without, of at most {most} more")
        grown += [name] if attune[name] > stock[name] + most else []
    return grown


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--engine", choices=("stock", "attune"), help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.engine:
        return engine(o.engine)
    engines = [Engine(kind, f"{os.environ['BLOCKS']}.{kind}.log") for kind in ("stock", "attune")]
    rows, begin, shown = [], None, 0
    while begin is None or time.monotonic() < begin + o.seconds:
        for one in engines:
            one.go()
        rows.append([one.answer() for one in engines])
        begin = begin or time.monotonic()  # both have started by then
        if len(rows) == 1 or time.monotonic() >= begin + o.seconds * (shown + 1) / 10:
            shown += len(rows) > 1
            for name, row in zip(("stock", "attune"), rows[-1]):
                print(name, json.dumps({key: round(value) for key, value in row.items()}), flush=True)
    grown = verdict(rows)
    for one in engines:
        one.child.stdin.close()
        one.child.wait()
    sys.exit(f"grew: {', '.join(grown)}" if grown else 0)


if __name__ == "__main__":
    main()
