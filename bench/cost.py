#!/usr/bin/env python3
"""How near the cost of schedules (src/schedule/cost.def) comes to their times, and the constants that come nearest.

    make cost-sample COST="--only 'decode*'"    # timings of schedules, with AVX-512 and AVX2; all of them: 20 minutes
    make cost-judge                             # each choice beside the best schedule known; constants from one
                                                # instruction set judged on the other
    make cost-fit                               # new constants for cost.def, and what they are worth
    make cost-gate                              # whether choices are as good as when bench/samples was recorded,
                                                # and take 200 us at most

Timings are added to BUILD/bench/results/cost.tsv, a line each: target, class of machine, problem, schedule,
microseconds. Delete it when kernels have changed. `cost.py record --samples=FILE` makes a file of bench/samples of
them: the same lines, with what choices may exceed the best schedule by at their head. What is there was timed with
--groups=gate --schedules=10.
"""
import argparse
import datetime
import fnmatch
import lzma
import os
import pathlib
import subprocess
import sys

import roofline
import shapes


def text_of(shape):
    """A shape of the bench as a problem's text."""
    fields = {"batch": shape.batch, "embed_dim": shape.embed, "num_heads": shape.heads, "num_kv_heads": shape.kv_heads,
              "seq_q": shape.rows, "seq_kv": shape.keys, "head_dim": shape.dim, "is_causal": shape.causal}
    usual = {"batch": 1, "embed_dim": 0, "num_kv_heads": shape.heads, "seq_kv": shape.rows, "is_causal": 0}
    if shape.embed:
        usual["head_dim"] = shape.embed // shape.heads
    words = [f"{name}={value}" for name, value in fields.items() if value != usual.get(name)]
    if shape.kv:
        words += [f"k_dtype={shape.kv}", f"v_dtype={shape.kv}"]
    if shape.scales:
        words += [f"k_scales={shape.scales}", f"v_scales={shape.scales}"]
    return ",".join(words)


def bench_shapes(_):
    """Those of attention and of blocks, and what bf16 is worth where it is usual."""
    found = {shape.name: text_of(shape) for shape in shapes.SHAPES
             if shape.kind != "products" and shape.rows * shape.keys <= 1 << 21}
    halves = ("bert_s128", "bert_s512", "vit_s197", "h16d64_s1024_causal", "h32d128_s512_causal", "block_e768_s512",
              "decode_kv8_k512", "decode_kv8_k4096")
    return found | {f"{name}_bf16": f"dtype=bf16,{found[name]}" for name in halves}


def random_problems(seed, count=60):
    """As `make roofline` draws them, a third in bf16."""
    some = roofline.problems(2 * count, seed, "f32")[:count * 2 // 3], roofline.problems(count, seed + 1, "bf16")
    texts = [text for part in some for _, text in part if " " not in text]
    return {f"random_{i}": text for i, text in enumerate(texts[:count])}


def decode_problems(_):
    """Few rows: groups, lengths, head_dim and dtypes in turn, each with several of the others."""
    found = {}
    caches = ("", "dtype=bf16,", "k_dtype=f16,v_dtype=f16,", "k_dtype=i8,v_dtype=i8,k_scales=head,v_scales=head,")
    keys = (64, 128, 300, 512, 1024, 2048, 4096, 8192)
    for i, (rows, group) in enumerate((r, g) for r in (1, 2, 3, 4, 5, 6, 8, 12, 16) for g in (1, 2, 4, 8)):
        for k in range(2):
            length, dim = keys[(3 * i + 5 * k) % 8], (64, 128, 32, 80, 128, 256, 96)[(i + k) % 7]
            heads = group * max(1, min(8, 2 ** 22 // (length * dim)))
            cache = caches[(i + i // 4 + 2 * k) % 4]
            kv_heads = f"num_kv_heads={heads // group}," if group > 1 else ""
            sizes = f"seq_q={rows},seq_kv={length},head_dim={dim}"
            found[f"few_{2 * i + k}"] = f"{cache}num_heads={heads},{kv_heads}{sizes}"
    return found


def biased_problems(_):
    """Biases and masks of each score, of short and long sequences: Swin, T5, DETR and others."""
    swin = "batch=64,num_heads=6,seq_q=49,seq_kv=49,head_dim=32,attn_bias_dims=hqk"
    detr = "batch=2,num_heads=8,seq_q=100,seq_kv=850,head_dim=32"
    t5 = "num_heads=12,seq_q=512,head_dim=64"
    found = {"short": "batch=16,num_heads=32,seq_q=32,seq_kv=32,head_dim=80,attn_bias_dims=qk", "swin": swin,
             "swin_masked": f"{swin},attn_mask_dims=bqk", "swin_bf16": f"dtype=bf16,{swin}",
             "detr": f"{detr},attn_mask_dims=bqk", "detr_padded": f"{detr},attn_mask_dims=bk",
             "t5": f"{t5},attn_bias_dims=hqk", "t5_bf16": f"dtype=bf16,{t5},attn_bias_dims=hqk",
             "bert_padded": f"batch=2,{t5},attn_mask_dims=bk",
             "mask": f"{t5},attn_mask_dims=qk"}
    sizes = ((16, 16), (24, 24), (32, 32), (33, 33), (48, 64), (64, 64), (65, 65), (100, 77), (128, 128), (197, 197),
             (256, 256), (300, 300), (1024, 1024))
    kinds = ("attn_bias_dims=hqk", "attn_mask_dims=qk", "attn_bias_dims=qk", "attn_bias_dims=bhqk",
             "attn_mask_dims=bqk", "attn_bias_dims=hqk,is_causal=1")
    for i, (rows, keys) in enumerate(sizes):
        for k in range(2):
            dim, kind = (64, 80, 32, 128, 40, 96)[(i + 2 * k) % 6], kinds[(i + 3 * k) % 6]
            dtype = "dtype=bf16," if (i + k) % 3 == 2 else ""
            batch = max(1, min(16, 2 ** 17 // (rows * keys)))
            call = f"batch={batch},num_heads=8,seq_q={rows},seq_kv={keys},head_dim={dim}"
            found[f"biased_{2 * i + k}"] = f"{dtype}{call},{kind}"
    return found


def block_problems(_):
    found = {}
    for embed, heads in ((384, 6), (768, 12), (1024, 16)):
        for rows in (1, 4, 10, 17, 33, 100, 128, 250, 512):
            for dtype in ("", "dtype=bf16,"):
                found[f"block_{embed}_{rows}{dtype[6:-1]}"] = f"{dtype}embed_dim={embed},num_heads={heads},seq_q={rows}"
    return found


def gate_problems(seed):
    """Some of each kind: what bench/samples has."""
    steps = ((bench_shapes, 2), (random_problems, 6), (decode_problems, 4), (biased_problems, 5), (block_problems, 9))
    return {name: text for group, step in steps for name, text in list(group(seed).items())[::step]}


GROUPS = {"bench": bench_shapes, "random": random_problems, "few": decode_problems, "biased": biased_problems,
          "block": block_problems, "gate": gate_problems}


def chosen(options):
    names = options.groups.split(",")
    found = {name: text for group in names for name, text in GROUPS[group](options.seed).items()}
    return {name: text for name, text in found.items() if fnmatch.fnmatch(name, options.only)}


# ---- Timing ----


def targets(options):
    """The best that this CPU has, and AVX2 as another machine."""
    return [""] + ["avx2"] * options.both


def environment(options, isa=""):
    codegen = {"ATTUNE_CODEGEN": str(options.build.resolve() / "libattune-codegen.so")}
    return os.environ | codegen | ({"ATTUNE_ISA": isa} if isa else {})


def timed_already(options, isa):
    """Problems that the file has times of: with AVX2, or with another instruction set."""
    if not (options.resume and options.times.exists()):
        return set()
    lines = (line.split("\t", 3) for line in options.times.read_text().splitlines())
    return {line[2] for line in lines if (line[0] == "avx2") == (isa == "avx2")}


def sample(options):
    lines = options.given.read_text().splitlines() if options.given else list(chosen(options).values())
    options.times.parent.mkdir(parents=True, exist_ok=True)
    for isa in targets(options):
        known = timed_already(options, isa)
        left = "".join(f"{line}\n" for line in lines if line.partition("\t")[0] not in known)
        command = [options.build / "bench" / "cost_sample", f"--schedules={options.schedules}"]
        command += [f"--alone={options.alone}", f"--piece={options.piece}"] if options.alone else []
        with options.times.open("a") as times:
            done = subprocess.run(command, input=left, stdout=times, text=True, env=environment(options, isa))
        if done.returncode:
            sys.exit(f"cost.py: cost_sample ended with {done.returncode}")


# ---- Fitting and judging ----


def cost_fit(options, times, *arguments):
    command = [options.build / "bench" / "cost_fit", *arguments] + ["--verbose"] * options.verbose
    done = subprocess.run(command, input=times, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"cost.py: cost_fit ended with {done.returncode}")
    return done.stdout.splitlines()


def read_times(options):
    if not options.times.exists():
        sys.exit(f"cost.py: {options.times} is not there; make cost-sample writes it")
    return options.times.read_text()


def run_fit(options, *arguments):
    return cost_fit(options, read_times(options), *arguments)


def judge(options):
    print("With the constants of cost.def:")
    print("\n".join(run_fit(options)))
    with options.times.open() as times:
        known = sorted({line.partition("\t")[0] for line in times})
    for target in known if len(known) > 1 else []:
        print(f"\nWith constants fitted to {target} alone:")
        print("\n".join(line for line in run_fit(options, f"--fit={target}") if not line.startswith("constant")))


def fit(options):
    lines = run_fit(options, "--fit=all", f"--only={options.constants}")
    text = options.definitions.read_text()
    for line in lines:
        word, _, rest = line.partition(" ")
        if word != "constant":
            print(line)
            continue
        name, value = rest.split()
        before, after = text.split(f"COST({name}, ")
        old, comma, rest = after.partition(",")
        print(f"{name:16} {old:>6} -> {value}")
        text = f"{before}COST({name}, {value}{comma}{rest}"
    if options.write:
        options.definitions.write_text(text)


# ---- The gate ----

POINTS = 0.5  # by which the mean excess of choices may grow
LONGEST = 200  # microseconds of a choice


def weighed(options, times):
    """Of each target the number of choices, their mean and largest excess in percent, and where that is; choices that
    were not timed; and what the slowest choice took, in microseconds."""
    found, unknown = {}, []
    for line in cost_fit(options, times, "--weigh"):
        columns = line.split("\t")
        if columns[0] == "choices":
            found[columns[1]] = int(columns[2]), float(columns[3]), float(columns[4]), columns[5]
        elif columns[0] == "not timed":
            unknown.append(columns[1:])
        elif line.startswith("a choice takes"):
            longest = float(line.split()[-3])
    return found, unknown, longest


def cpu_name():
    lines = pathlib.Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return f"{fields['model name']}, family {fields['cpu family']}, model {fields['model']}"


def record(options):
    times = read_times(options)
    found, unknown, _ = weighed(options, times)
    head = [f"# {cpu_name()}, {datetime.date.today()}, one thread: target, class, problem, schedule, microseconds"]
    head += [f"# limits\t{target}\t{mean + POINTS:.2f}\t{worst:.2f}" for target, (_, mean, worst, _) in found.items()]
    options.samples.write_bytes(lzma.compress("\n".join([*head, times]).encode(), preset=9))
    print(f"{options.samples}: {len(times.splitlines())} timings, {options.samples.stat().st_size} bytes; "
          f"{len(unknown)} choices have no time")


def gate(options):
    """Fails where choices are worse than the limits of a recorded file, or take too long."""
    paths = sorted(options.samples.parent.glob("*.tsv.xz"))
    failed = not paths
    for path in paths:
        lines = lzma.decompress(path.read_bytes()).decode().splitlines(keepends=True)
        limits = {row[1]: (float(row[2]), float(row[3])) for row in (line.split("\t") for line in lines)
                  if row[0] == "# limits"}
        found, unknown, longest = weighed(options, "".join(line for line in lines if line[0] != "#"))
        print(f"{path.name}: {lines[0][2:].partition(':')[0]}")
        for target, (count, mean, worst, where) in found.items():
            most_mean, most_worst = limits[target]
            is_worse = mean > most_mean or worst > most_worst + 0.005
            failed |= is_worse
            print(f"{'worse' if is_worse else 'good'}: {target}: {count} choices, beyond the best by {mean:.2f} % in "
                  f"the mean (at most {most_mean:.2f}) and {worst:.1f} % at worst (at most {most_worst:.1f}), {where}")
        for target, problem in unknown:
            print(f"not known: {target}: the choice was not timed: {problem}")
        failed |= bool(unknown) or longest > LONGEST
        print(f"{'good' if longest <= LONGEST else 'worse'}: a choice takes {longest:.0f} us at most (limit {LONGEST})")
    sys.exit(failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("sample", "judge", "fit", "record", "gate"))
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--times", type=pathlib.Path, help="the file of timings (BUILD/bench/results/cost.tsv)")
    parser.add_argument("--samples", type=pathlib.Path, default=pathlib.Path(__file__).parent / "samples/new.tsv.xz",
                        help="record: the file that is written; gate: all files beside it are judged")
    parser.add_argument("--groups", default="bench,random,few", help=f"of problems: some of {','.join(GROUPS)}")
    parser.add_argument("--only", default="*", help="names of problems, as a pattern")
    parser.add_argument("--seed", type=int, default=16, help="of random problems; the constants were fitted to 16")
    parser.add_argument("--given", type=pathlib.Path, help="lines of problems and schedules instead, with tabs between")
    parser.add_argument("--schedules", type=int, default=24, help="of a problem and a strategy, beside neighbours")
    parser.add_argument("--resume", action="store_true", help="leave out problems that the file has times of")
    parser.add_argument("--alone", help="a command while which nothing else runs: it writes a line then, and ends when "
                                        "its input ends")
    parser.add_argument("--piece", type=int, default=30, help="seconds of a run of that command")
    parser.add_argument("--one-target", dest="both", action="store_false", help="not with AVX2 as well")
    parser.add_argument("--constants", default="", help="fit those whose names begin so, as d_")
    parser.add_argument("--write", action="store_true", help="fit: put the constants into cost.def")
    parser.add_argument("--verbose", action="store_true", help="each problem")
    options = parser.parse_args()
    options.times = options.times or options.build / "bench" / "results" / "cost.tsv"
    options.definitions = pathlib.Path(__file__).parent.parent / "src" / "schedule" / "cost.def"
    {"sample": sample, "judge": judge, "fit": fit, "record": record, "gate": gate}[options.command](options)


if __name__ == "__main__":
    main()
