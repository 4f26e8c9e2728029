#!/usr/bin/env python3
"""How good tuning is, and how good attune's choice is without it: runs ranking.c over problems, and makes tables of it.

    make ranking                            # five problems whose schedules are all timed, the others by a long search
    make ranking RANKING="--only 'vit*'"

Needs nothing but Python; with matplotlib, as bench/setup.sh installs it, there is a plot too. Tables and plot are
ranking.md and ranking.svg in build/bench/results. Results are kept after every problem: --resume goes on where a run
has ended.
"""
import argparse
import fnmatch
import json
import math
import pathlib
import subprocess
import sys

import machine

# Those of which every schedule is timed.
ALL = {
    "bert_s512": "num_heads=12,seq_q=512,head_dim=64",
    "vit_s197": "num_heads=12,seq_q=197,head_dim=64",
    "h16d64_s1024_causal": "num_heads=16,seq_q=1024,head_dim=64,is_causal=1",
    "decode_kv8_k4096": "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128",
    "bert_s512_bf16": "dtype=bf16,num_heads=12,seq_q=512,head_dim=64",
}
# The shapes by which attune's rules were found.
KNOWN = {
    "bert_s128": "num_heads=12,seq_q=128,head_dim=64",
    "bert_b8s128": "batch=8,num_heads=12,seq_q=128,head_dim=64",
    "h32d128_s512": "num_heads=32,seq_q=512,head_dim=128",
    "h32d128_s512_causal": "num_heads=32,seq_q=512,head_dim=128,is_causal=1",
    "h32d128_s2048": "num_heads=32,seq_q=2048,head_dim=128",
    "h32d128_s2048_causal": "num_heads=32,seq_q=2048,head_dim=128,is_causal=1",
    "h16d64_s1024": "num_heads=16,seq_q=1024,head_dim=64",
    "h16d64_s4096": "num_heads=16,seq_q=4096,head_dim=64",
    "h16d64_s4096_causal": "num_heads=16,seq_q=4096,head_dim=64,is_causal=1",
    "decode_h32_k512": "num_heads=32,seq_q=1,seq_kv=512,head_dim=128",
    "decode_h32_k4096": "num_heads=32,seq_q=1,seq_kv=4096,head_dim=128",
    "decode_kv8_k512": "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=512,head_dim=128",
    "tiny_16": "num_heads=8,seq_q=16,head_dim=32",
    "tiny_64": "num_heads=8,seq_q=64,head_dim=32",
    "block_e768_s128": "embed_dim=768,num_heads=12,seq_q=128",
    "block_e768_s512": "embed_dim=768,num_heads=12,seq_q=512",
    "block_e1024_s512": "embed_dim=1024,num_heads=16,seq_q=512",
    "bert_s128_bf16": "dtype=bf16,num_heads=12,seq_q=128,head_dim=64",
    "vit_s197_bf16": "dtype=bf16,num_heads=12,seq_q=197,head_dim=64",
    "h32d128_s512_bf16": "dtype=bf16,num_heads=32,seq_q=512,head_dim=128",
    "h32d128_s512_causal_bf16": "dtype=bf16,num_heads=32,seq_q=512,head_dim=128,is_causal=1",
    "decode_kv8_k4096_bf16": "dtype=bf16,num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128",
    "block_e768_s512_bf16": "dtype=bf16,embed_dim=768,num_heads=12,seq_q=512",
}
# Those by which nothing was found.
OTHERS = {
    "whisper_s1500": "num_heads=8,seq_q=1500,head_dim=64",
    "sd_cross_1024x77_d40": "num_heads=8,seq_q=1024,seq_kv=77,head_dim=40",
    "swin_b64_s49_d32": "batch=64,num_heads=3,seq_q=49,head_dim=32",
    "odd_500x487_d80": "num_heads=20,seq_q=500,seq_kv=487,head_dim=80",
    "deit_s577_d72": "num_heads=16,seq_q=577,head_dim=72",
    "gemma_s300_d256": "num_heads=8,num_kv_heads=4,seq_q=300,head_dim=256,is_causal=1",
    "llama_s900_kv4_causal": "num_heads=16,num_kv_heads=4,seq_q=900,head_dim=128,is_causal=1",
    "draft_q5_k1500_d96": "num_heads=24,num_kv_heads=6,seq_q=5,seq_kv=1500,head_dim=96",
    "decode_k777_d80": "num_heads=20,seq_q=1,seq_kv=777,head_dim=80",
    "window_s1024_w256": "num_heads=12,seq_q=1024,head_dim=64,is_causal=1,window_left=256",
    "odd_300x333_d96_bf16": "dtype=bf16,num_heads=10,seq_q=300,seq_kv=333,head_dim=96",
    "block_e384_s250": "embed_dim=384,num_heads=6,seq_q=250",
}
GROUPS = {"all": ALL, "known": KNOWN, "others": OTHERS}


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def best_of(found):
    """The best of all by whole calls, what tuning found among them."""
    return min(entry["ratio"] for entry in found["best"] + found["tuned"] + [found["untuned"]])


def excess(entry, found):
    """How much longer it takes than the best."""
    return entry["ratio"] / best_of(found)


def duration(us):
    return f"{us:.2f} µs" if us < 10 else f"{us:.0f} µs" if us < 1e4 else f"{us / 1e3:.1f} ms"


def percent(ratio):
    return f"{100 * (ratio - 1):+.1f} %"


def table(headers, rows):
    lines = ["| " + " | ".join(headers) + " |", "|---" + "|---:" * (len(headers) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def row(name, found):
    tuned = [excess(entry, found) for entry in found["tuned"]]
    against = max(entry["ratio"] for entry in found["tuned"])
    runs = " ".join(percent(ratio) for ratio in tuned)
    measured = "–".join(str(n) for n in sorted({min(found["measured"]), max(found["measured"])}))
    return [f"`{name}`", duration(found["untuned_us"]), percent(excess(found["untuned"], found)), runs,
            percent(against), measured]


HEADERS = ["shape", "untuned", "untuned to best", "tuned to best", "slowest tuned to untuned", "schedules in a search"]


def summary(chosen):
    untuned = [excess(found["untuned"], found) for found in chosen]
    tuned = [excess(entry, found) for found in chosen for entry in found["tuned"]]
    near = sum(ratio <= 1.03 for ratio in tuned)
    return (f"Geometric means: untuned {percent(mean(untuned))}, tuned {percent(mean(tuned))}; {near} of {len(tuned)} "
            f"searches came within 3 % of the best; the worst untuned choice {percent(max(untuned))}.\n")


def fastest_row(name, found):
    """How many there were, and which was best."""
    best = min(found["best"] + found["tuned"] + [found["untuned"]], key=lambda entry: entry["ratio"])
    others = sum(entry["is_other"] for entry in found["all"][:64])
    return [f"`{name}`", str(found["legal"]), str(found["timed"]), f"{found['seconds']:.0f} s",
            str(found["untuned_rank"]), str(others), "`" + best["schedule"].replace("strategy=", "") + "`"]


def page(run):
    text = f"One thread{'' if run['threads'] == 1 else ' of ' + str(run['threads'])}, {run['cpu']}; searches of "
    text += f"{run['budget']:g} s.\n\n"
    titles = {
        "all": "Five shapes, every schedule that the model proposes timed",
        "known": "Shapes that the rules were found by, beside a search of many seconds",
        "others": "Shapes that the rules had not seen",
    }
    for group, title in titles.items():
        chosen = [(r["name"], r["found"]) for r in run["results"] if r["group"] == group]
        if not chosen:
            continue
        text += f"**{title}**\n\n" + table(HEADERS, [row(*one) for one in chosen]) + "\n"
        text += summary([found for _, found in chosen]) + "\n"
        if group == "all":
            headers = ["shape", "legal", "timed", "in", "rank of the untuned", "of the best 64 left out by the model",
                       "best"]
            text += table(headers, [fastest_row(*one) for one in chosen]) + "\n"
    return text


def draw(run, path):
    """The times of all schedules in order, as curves; marks where the untuned and the tuned choices are."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "attune", "font.size": 8}
    import matplotlib.pyplot as pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.4))
    for result in (r for r in run["results"] if r["group"] == "all"):
        found = result["found"]
        ratios = [entry["ratio"] for entry in found["all"] if not entry["is_other"]]
        (line,) = axes.plot(range(1, len(ratios) + 1), ratios, label=result["name"], linewidth=1.2)
        axes.plot(found["untuned_rank"], 1, "o", color=line.get_color(), markersize=5)
    axes.set_xscale("log")
    axes.set_ylim(0.8, 2.5)
    axes.set_xlabel("schedules by rank; ● the choice without tuning")
    axes.set_ylabel("time by that of the untuned choice, from samples")
    axes.grid(linewidth=0.4)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def rank(options, group, problem):
    command = [str(options.build / "bench" / "ranking"), f"--threads={options.threads}", f"--budget={options.budget}"]
    command += [f"--runs={options.runs}", f"--seconds={options.seconds}"]
    if group != "all":
        command += ["--most=0", "--others=0", f"--longer={options.longer}"]
    done = subprocess.run([*command, problem], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"ranking.py: {problem}: ranking ended with {done.returncode}")
    return json.loads(done.stdout)


def measure(options, path):
    settings = {"schema": 1, "cpu": machine.cpu_name(), "threads": options.threads,
                "budget": options.budget, "runs": options.runs}
    run = {**settings, "results": []}
    if options.resume and path.exists():
        run = json.loads(path.read_text())
        if {name: run.get(name) for name in settings} != settings:
            sys.exit(f"ranking.py: {path} holds a run with other settings; without --resume it is replaced")
    known = {result["name"] for result in run["results"]}
    for group, problems in GROUPS.items():
        for name, problem in problems.items():
            if name in known or not fnmatch.fnmatch(name, options.only):
                continue
            found = rank(options, group, problem)
            run["results"].append({"name": name, "group": group, "found": found})
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".part").write_text(json.dumps(run))
            path.with_suffix(".part").rename(path)
            cells = row(name, found)
            print(f"{name:28} {cells[1]:>9}  untuned {cells[2]:>7}, tuned {cells[3]} of the best, {cells[5]} schedules",
                  flush=True)
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--only", default="*", help="names of shapes, as a pattern")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=5, help="seconds of a search")
    parser.add_argument("--runs", type=int, choices=range(1, 17), default=3, metavar="1-16", help="searches")
    parser.add_argument("--longer", type=float, default=20, help="seconds of the search that stands for all schedules")
    parser.add_argument("--seconds", type=float, default=8, help="of the comparison of whole calls at the end")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    path = options.build / "bench" / "results" / "ranking.json"
    run = measure(options, path)
    path.with_suffix(".md").write_text(page(run))
    try:
        draw(run, path.with_suffix(".svg"))
    except ImportError:
        print("ranking.py: no plot: matplotlib is not installed", file=sys.stderr)


if __name__ == "__main__":
    main()
