"""vLLM with and without attune, in turns: seconds of each load, and those that attention takes.

    make bench-vllm VLLM="--dtype bfloat16 --threads 1 --only decode --rounds 5"

A process for each dtype and number of threads has two engines at once, vLLM's own and one with attune, and runs every
load on both before the rounds begin. In each round stock, attune and stock again take their turn, each time another
one first, so that a machine that becomes slower is no one's loss. Figures are medians of rounds; noise is stock
compared with itself. "read once" says how many times as fast sharing makes attune, and its attention.

prompts: 4 of 1500 tokens. decode: 16 requests at 2000 tokens, whose prompts are in the prefix cache. mixed: 12 requests
of 20 to 1500 tokens, of which 6 fit in a step, so prompts come while others decode. shared: 64 requests that begin with
the same 1920 tokens and decode up to 2040; attune takes one more turn, in which it reads them for each request.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "vllm"))
import generate  # noqa: E402

# Lengths of prompts, tokens that each request gets, whether prompts are in the prefix cache, and the tokens that they
# share.
LOADS = {
    "prompts": ([1500] * 4, 2, False, 0),
    "mixed": ([1200, 40, 700, 300, 1500, 20, 100, 900, 60, 1000, 250, 500], 24, False, 0),
    "decode": ([2000 - 24] * 16, 24, True, 0),
    "shared": ([1984] * 64, 56, True, 1920),
}


def once(llm, load):
    """Seconds of a load, and of its attention."""
    lens, tokens, is_cached, shared = LOADS[load]
    if not is_cached:
        llm.reset_prefix_cache()
    return generate.once(llm, lens, tokens, shared=shared)[:2]


def row(model, dtype, loads, rounds):
    """All loads in this process, as a line of JSON for each: {load: {turn: [[whole, attention] …]}}."""
    import attune.vllm
    from attune.vllm import _prefix

    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}
    engine = {"dtype": dtype, "max_num_batched_tokens": 512, "max_num_seqs": 64, "enable_prefix_caching": True}
    llms = {"stock": generate.start(model, engine, profile=True)}
    assert attune.vllm.enable()
    llms["attune"] = generate.start(model, engine, profile=True)
    for load in loads:
        for llm in llms.values():  # warms up, and fills the prefix cache
            llm.reset_prefix_cache()
            once(llm, load)
        times = {name: [] for name in ("stock", "attune", "again", *(["each"] if LOADS[load][3] else []))}
        least = _prefix.LEAST_SAVED
        for number in range(rounds):
            for turn in range(len(times)):
                name = list(times)[(number + turn) % len(times)]
                _prefix.LEAST_SAVED = 10**9 if name == "each" else least
                times[name].append(once(llms["attune" if name in ("attune", "each") else "stock"], load))
        _prefix.LEAST_SAVED = least
        print(json.dumps({load: times}), flush=True)


def table_rows(o):
    """Starts a process for each dtype and number of threads."""
    loads = [o.only] if o.only else list(LOADS)
    for dtype in o.dtype:
        for threads in o.threads:
            env = os.environ | {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
            command = [sys.executable, __file__, "--model", o.model, "--row", json.dumps([dtype, loads, o.rounds])]
            with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as child:
                for line in child.stdout:
                    for load, times in json.loads(line).items() if line.startswith("{") else ():
                        yield load, dtype, threads, times
                errors = child.stderr.read()
            if child.returncode:
                sys.exit(errors[-3000:])


def once_of(whole, inside):
    """How many times as fast reading a shared prefix once makes attune, and its attention."""
    if "each" not in whole:
        return "-"
    return f"{whole['each'] / whole['attune']:.2f} ({inside['each'] / inside['attune']:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=LOADS, help="one kind of load")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), nargs="*", default=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="how often all take their turn")
    parser.add_argument("--model", default=os.environ.get("WHOLE_MODEL"), help="a folder; SmolLM2 by default")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.row:
        return row(o.model, *json.loads(o.row))
    print("| load | type | threads | stock, s (attention) | attune, s (attention) | whole | attention | noise |"
          " read once |")
    print("|---|---|---|---|---|---|---|---|---|")
    for load, dtype, threads, times in table_rows(o):
        whole, inside = ({name: statistics.median(pair[part] for pair in those) for name, those in times.items()}
                         for part in (0, 1))  # fmt: skip
        print(
            f"| {load} | {dtype} | {threads} | {whole['stock']:.2f} ({inside['stock']:.2f}) |"
            f" {whole['attune']:.2f} ({inside['attune']:.2f}) | {whole['stock'] / whole['attune']:.2f} |"
            f" {inside['stock'] / inside['attune']:.2f} | {whole['stock'] / whole['again']:.2f}"
            f" ({inside['stock'] / inside['again']:.2f}) | {once_of(whole, inside)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
