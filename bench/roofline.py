#!/usr/bin/env python3
"""Random problems of realistic kinds by their share of the roofline: the distribution, by kind, and the worst ten.

    make roofline                           # 300 problems in f32 on one thread
    make roofline ROOFLINE="--seed 2 --count 100 --dtype bf16 --threads 2"
    make roofline ROOFLINE="--resume --budget 120"
    make roofline ROOFLINE="--best"         # on a machine with other work
    make shapes-table                       # the tables and the plot into docs/

The roofline of a problem is the longer of two times: the operations of the pairs that are seen, at the peak; and all
tensors read or written once, at the bandwidth of as many bytes, so of the cache that holds them. Both are probed
beside each sample. docs/bench.md says what that leaves out.
"""
import argparse
import datetime
import math
import random
import statistics
import sys
import time

import survey

DIMS = (32, 40, 48, 64, 64, 64, 72, 80, 96, 128, 128, 128, 160)
SHORTEST, LONGEST = 16, 4096
LEAST_FLOPS, MOST_FLOPS = 2e6, 4e9  # of a call, where heads and entries can make it so
MOST_ELEMENTS = 1 << 24  # of all tensors together
ROUND = (8, 16, 64, 128)  # of which half of the lengths are multiples
GROUP = 6  # problems whose rounds are interleaved


# ---- Drawing ----


def length(rng, least=SHORTEST, most=LONGEST):
    """Evenly on a logarithmic scale; half of them are round."""
    drawn = round(math.exp(rng.uniform(math.log(least), math.log(most))))
    step = rng.choice(ROUND)
    return max(step, drawn // step * step) if rng.random() < 0.5 and drawn >= step else drawn


def heads_of(rng):
    return rng.choice((4, 6, 8, 12, 16, 20, 24, 32))


def groups(rng, heads):
    return {"num_kv_heads": rng.choice([n for n in (1, 2, 4, 8) if n < heads and heads % n == 0])}


def encoder(rng):
    n = length(rng)
    return {"batch": rng.choice((1, 1, 2, 4, 8, 16, 32)), "seq_q": n, "seq_kv": n}


def causal(rng):
    n = length(rng)
    return {"batch": rng.choice((1, 1, 2, 4)), "seq_q": n, "seq_kv": n, "is_causal": 1}


def padded(rng):
    n = length(rng, 32)
    return {"batch": rng.choice((2, 4, 8, 16)), "seq_q": n, "seq_kv": n, "has_kv_lens": 1}


def biased(rng):
    n = length(rng, most=1024)
    dims = rng.choice(("hqk", "hqk", "qk", "bhqk"))
    return {"batch": rng.choice((1, 2, 4, 16)), "seq_q": n, "seq_kv": n, "attn_bias_dims": dims}


def masked(rng):
    n = length(rng, most=2048)
    return {"batch": rng.choice((1, 2, 4)), "seq_q": n, "seq_kv": n, "attn_mask_dims": rng.choice(("qk", "bk", "bqk"))}


def cross(rng):
    return {"batch": rng.choice((1, 2, 4)), "seq_q": length(rng), "seq_kv": length(rng, most=1500)}


def windowed(rng):
    n = length(rng, 128)
    sides = rng.choice((("is_causal", "window_left"), ("window_left", "window_right")))
    return causal(rng) | {"seq_q": n, "seq_kv": n, "is_causal": 0} | \
        {side: 1 if side == "is_causal" else rng.choice((32, 64, 128, 256, 500)) for side in sides}


def alibi(rng):
    return causal(rng) | {"has_alibi_slopes": 1}


def capped(rng):
    return causal(rng) | {"logits_soft_cap": 30}


def grouped(rng):
    return causal(rng) | {"groups": True}


def chunked(rng):
    """A chunk of a prompt, or a few drafted tokens, after keys that are there."""
    rows = length(rng, 2, 512)
    return {"batch": 1, "seq_q": rows, "seq_kv": rows + length(rng, 64), "is_causal": 1,
            "causal_align": "bottom_right", "groups": rng.random() < 0.7}


def decode(rng):
    return {"batch": rng.choice((1, 1, 2, 4, 8)), "seq_q": 1, "seq_kv": length(rng, 64), "groups": rng.random() < 0.7}


def decode_padded(rng):
    return decode(rng) | {"batch": rng.choice((2, 4, 8)), "has_kv_lens": 1}


def decode_paged(rng):
    page = rng.choice((16, 32))
    keys = -(-length(rng, 64) // page) * page
    return decode(rng) | {"seq_kv": keys, "has_kv_lens": 1, "page_size": page, "batch": rng.choice((1, 4, 8))}


KINDS = {"encoder": encoder, "encoder, kv_lens": padded, "encoder, bias": biased, "encoder, mask": masked,
         "cross": cross, "window": windowed, "causal": causal, "causal, ALiBi": alibi, "causal, soft cap": capped,
         "causal, GQA": grouped, "causal, chunk": chunked, "decode": decode, "decode, kv_lens": decode_padded,
         "decode, paged": decode_paged}


def pairs(fields):
    """About, of one head."""
    rows, keys = fields["seq_q"], fields["seq_kv"]
    if "window_left" in fields:
        keys = min(keys, fields["window_left"] + fields.get("window_right", 0) + 1)
    elif fields.get("is_causal") and rows == keys:
        keys /= 2
    return rows * keys


def fit(fields):
    """Fewer entries and heads, or more, until a call is neither too long nor next to nothing."""
    def elements():
        rows = 2 * fields["seq_q"] * fields["num_heads"]
        return fields["batch"] * fields["head_dim"] * (rows + 2 * fields["seq_kv"] * fields["num_heads"])

    def flops():
        return 4 * fields["batch"] * fields["num_heads"] * fields["head_dim"] * pairs(fields)

    while (flops() > MOST_FLOPS or elements() > MOST_ELEMENTS) and fields["batch"] * fields["num_heads"] > 1:
        name = "batch" if fields["batch"] > 1 else "num_heads"
        fields[name] = -(-fields[name] // 2)
    while flops() < LEAST_FLOPS:
        fields["num_heads"] *= 2


def draw(rng, kind, dtype):
    fields = {"dtype": dtype, "num_heads": heads_of(rng), "head_dim": rng.choice(DIMS)} | KINDS[kind](rng)
    is_grouped = fields.pop("groups", False)
    fit(fields)
    if is_grouped and fields["num_heads"] > 1:
        fields |= groups(rng, fields["num_heads"])
    text = ",".join(f"{name}={value}" for name, value in fields.items() if value != 0)
    pages = fields["seq_kv"] // fields.get("page_size", fields["seq_kv"])
    return f"{text} num_pages={fields['batch'] * pages},max_pages={pages}" if "page_size" in fields else text


def problems(count, seed, dtype):
    """Each kind as often as any other. The first ones are the same for every count."""
    rng = random.Random(seed)
    names = list(KINDS)
    return [(names[i % len(names)], draw(rng, names[i % len(names)], dtype)) for i in range(count)]


# ---- Measuring ----


def measure(options, path):
    wanted = problems(options.count, options.seed, options.dtype)
    settings = {"schema": 1, "kind": "roofline", "seed": options.seed, "dtype": options.dtype,
                "rounds": options.rounds, "threads": options.threads}
    start, found = time.monotonic(), []
    with survey.Survey(options.build, options.threads, options.rounds, has_probes=True) as process:
        settings["machine"] = process.machine
        if options.resume and path.exists():
            run = survey.load(path, "roofline")
            if {name: run.get(name) for name in settings} != settings:
                sys.exit(f"roofline.py: {path} holds a run with other settings; without --resume it is replaced")
            found = run["problems"]
        run = settings | {"date": datetime.datetime.now().isoformat(timespec="seconds"), "problems": found}
        while len(found) < len(wanted) and not (options.budget and time.monotonic() - start > options.budget):
            some = wanted[len(found):len(found) + GROUP]
            found += [made | {"kind": kind} for (kind, _), made in
                      zip(some, process.measure([text for _, text in some]))]
            survey.save(path, run)
            print(f"{len(found)} of {len(wanted)}", file=sys.stderr, flush=True)
    return run


# ---- Showing ----


def bounds_us(one, peak, bandwidth):
    """Of a call by arithmetic and by bytes: GFLOP/s are operations in a nanosecond."""
    return one["flops"] / peak / 1e3, one["bytes"] / bandwidth / 1e3


def judge(one, best_peak=None):
    """Adds the share of the roofline, the time, and which bound it is: medians of the shares of single samples; or the
    best sample beside the best peak of the run and the best bandwidth, for machines with other work."""
    triples = list(zip(one["us"], one["peaks"], one["bandwidths"]))
    if best_peak:
        triples = [(min(one["us"]), best_peak, max(one["bandwidths"]))]
    shares = [max(bounds_us(one, peak, bandwidth)) / us for us, peak, bandwidth in triples]
    compute, memory = bounds_us(one, *(statistics.median(values) for values in list(zip(*triples))[1:]))
    return one | {"of_roofline": statistics.median(shares), "is_memory_bound": memory > compute,
                  "time": statistics.median(us for us, _, _ in triples)}


def judged(run, is_best):
    """A run with only the problems that were measured."""
    good = [one for one in run["problems"] if "us" in one]
    best_peak = max((peak for one in good for peak in one["peaks"]), default=None) if is_best else None
    good = [judge(one, best_peak) for one in good]
    return run | {"problems": good, "failed": len(run["problems"]) - len(good), "is_best": is_best}


def percentile(values, percent):
    """By linear interpolation between the two nearest."""
    values = sorted(values)
    place = percent / 100 * (len(values) - 1)
    low = math.floor(place)
    return values[low] + (place - low) * (values[min(low + 1, len(values) - 1)] - values[low])


PERCENTS = (0, 5, 25, 50, 75, 95)


def share(value):
    return f"{100 * value:.0f} %"


def rows_by_kind(run):
    names = ["all", *(name for name in KINDS if any(one["kind"] == name for one in run["problems"]))]
    rows = []
    for name in names:
        shares = [one["of_roofline"] for one in run["problems"] if name in ("all", one["kind"])]
        rows.append([name, str(len(shares)), *(share(percentile(shares, percent)) for percent in PERCENTS)])
    return rows


def worst_rows(run, most):
    rows = []
    for one in sorted(run["problems"], key=lambda one: one["of_roofline"])[:most]:
        bound = "bandwidth" if one["is_memory_bound"] else "peak"
        text = one["problem"].replace("dtype=f32,", "")
        rows.append([f"`{text}`", one["kind"], share(one["of_roofline"]), bound, survey.duration(one["time"])])
    return rows


def text_of(run, most):
    good = run["problems"]
    text = f"{survey.circumstances(run)} {run['dtype']}, seed {run['seed']}, {len(good)} problems, "
    if run["is_best"]:
        text += f"the best of {run['rounds']} samples beside the best peak of the run and the best bandwidth."
    else:
        text += f"medians of {run['rounds']} samples."
    text += f" {run['failed']} problems could not be measured.\n\n" if run["failed"] else "\n\n"
    if not good:
        return text
    headers = ["kind", "problems", "least", *(f"{percent} %" for percent in PERCENTS[1:3]), "median",
               *(f"{percent} %" for percent in PERCENTS[4:])]
    text += survey.table(headers, rows_by_kind(run))
    text += f"\nThe worst {min(most, len(good))}:\n\n"
    return text + survey.table(["problem", "kind", "of the roofline", "bound", "time"], worst_rows(run, most))


def draw_plot(run, path):
    """How many problems reach which share, in all; and each problem by its kind."""
    pyplot = survey.pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained",
                                            gridspec_kw={"width_ratios": (1, 1.5)})
    good = run["problems"]
    shares = sorted(100 * one["of_roofline"] for one in good)
    left.plot(shares, [100 * (i + 1) / len(shares) for i in range(len(shares))], color="#c23b22", linewidth=1.4)
    left.set(xlabel="share of the roofline, %", ylabel="problems that reach no more, %", xlim=(0, 105), ylim=(0, 100))
    names = [name for name in KINDS if any(one["kind"] == name for one in good)]
    for is_memory, colour, label in ((False, "#4c78a8", "bound by the peak"), (True, "#e39a3b", "by the bandwidth")):
        points = [(100 * one["of_roofline"], names.index(one["kind"])) for one in good
                  if one["is_memory_bound"] == is_memory]
        if points:
            right.scatter(*zip(*points), s=9, color=colour, label=label, alpha=0.8)
    right.set_yticks(range(len(names)), names, fontsize=7)
    right.set(xlabel="share of the roofline, %", xlim=(0, 105), ylim=(len(names) - 0.4, -0.6))
    right.legend(loc="lower left", fontsize=7)
    for axes in (left, right):
        axes.grid(linewidth=0.4)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    survey.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--dtype", choices=("f32", "bf16", "f16", "f64"), default="f32")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each problem")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the file of results")
    parser.add_argument("--budget", type=float, default=0, help="seconds after which no group is begun; 0: none")
    parser.add_argument("--best", action="store_true",
                        help="show the best samples beside the best probes, not medians: for busy machines")
    parser.add_argument("--most", type=int, default=10, help="rows of the table of the worst")
    return parser.parse_args()


def main():
    options = parse_arguments()
    path = options.output or survey.results(options.build, "roofline")
    run = judged(measure(options, path), options.best)
    print(text_of(run, options.most))
    if options.plot:
        draw_plot(run, options.plot)


if __name__ == "__main__":
    main()
