"""vLLM with and without attune, in turns: tokens per second, and the seconds that attention takes.

    make bench-vllm VLLM="--dtype bfloat16 --threads 1 --only decode"

Each run is a process of its own (tests/vllm/generate.py). Its time is that of the second of two passes over the same
requests: the first one warms up. A third line, stock beside stock, says how much of a difference is noise.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

GENERATE = Path(__file__).resolve().parents[2] / "tests" / "vllm" / "generate.py"
# Lengths of prompts, and tokens that each request gets.
LOADS = {
    "prompts": ([1500] * 12, 2),
    "decode": ([2000 - 32] * 16, 32),
    "mixed": ([1200, 40, 700, 300, 1500, 20, 100, 900, 60, 1000, 250, 500], 24),
}


def run(attune, model, load, dtype, threads):
    lens, tokens = LOADS[load]
    options = {"model": model, "lens": lens, "tokens": tokens, "repeat": 2, "profile": True,
               "engine": {"dtype": dtype, "max_num_batched_tokens": 512, "max_model_len": 2048}}  # fmt: skip
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    command = [sys.executable, GENERATE, "attune" if attune else "stock", json.dumps({"run": options})]
    done = subprocess.run(command, text=True, capture_output=True, env=env)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    result = json.loads(done.stdout.splitlines()[-1])["run"]
    return result["seconds"][-1], result["attention_seconds"][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=LOADS, help="one kind of load")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), nargs="*", default=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="how often all take their turn")
    parser.add_argument("--model", default=os.environ.get("MODEL"), help="a folder; SmolLM2 by default")
    o = parser.parse_args()
    print("| load | type | threads | stock, s (attention) | attune, s (attention) | whole | attention | noise |")
    print("|---|---|---|---|---|---|---|---|")
    for load in [o.only] if o.only else LOADS:
        for dtype in o.dtype:
            for threads in o.threads:
                times = {"stock": [], "attune": [], "again": []}
                for _ in range(o.rounds):
                    for name, those in times.items():
                        those.append(run(name == "attune", o.model, load, dtype, threads))
                whole = {name: statistics.median(pair[0] for pair in those) for name, those in times.items()}
                inside = {name: statistics.median(pair[1] for pair in those) for name, those in times.items()}
                print(
                    f"| {load} | {dtype} | {threads} | {whole['stock']:.2f} ({inside['stock']:.2f}) |"
                    f" {whole['attune']:.2f} ({inside['attune']:.2f}) | {whole['stock'] / whole['attune']:.2f} |"
                    f" {inside['stock'] / inside['attune']:.2f} | {whole['stock'] / whole['again']:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
