#!/usr/bin/env python3
"""Time against size in small steps, and where it jumps.

    make cliffs                             # all walks, in steps around the multiples of vectors and tiles
    make cliffs CLIFFS="--dense"            # every size
    make cliffs CLIFFS="--only 'rows*' --with dtype=bf16"
    make cliffs CLIFFS="--random 20 --seed 3"
    make shapes-table                       # the tables and the plot into docs/

Along a walk one size grows, and the others stay. For neighbours a < b time should grow by at most a quarter more than
the work: t(b) / t(a) <= 1.25 max(1, flops(b) / flops(a)). A pair beyond that is measured again, side by side. If it
stays there it is an exception. Its excess is what is left of the ratio after that limit. docs/bench.md says more.
"""
import argparse
import datetime
import fnmatch
import pathlib
import random
import sys

import survey

LIMIT = 1.25
SHOWN = 20  # exceptions of a table


def around(multiples, most):
    """1 to 10, then each of these multiples with its neighbours."""
    near = {n + by for n in multiples for by in (-1, 0, 1)}
    return sorted(n for n in set(range(1, 11)) | near if n <= most)


LENGTHS = around((12, 16, 24, 32, 48, 64, 80, 96, 112, 128), 130)
DIMS = around((12, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 144, 160), 160)
ENTRIES = around((16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512), 512)


def problem(rows, keys, dim, heads=4, **more):
    fields = {"num_heads": heads, "seq_q": rows, "seq_kv": keys, "head_dim": dim} | more
    return ",".join(f"{name}={value}" for name, value in fields.items())


def walks(is_dense):
    """By name: what grows, and the problem of each size."""
    lengths = range(1, 131) if is_dense else LENGTHS
    dims = range(1, 161) if is_dense else DIMS
    entries = range(1, 513) if is_dense else ENTRIES
    found = {}

    def add(name, grows, sizes, make):
        found[name] = (grows, [(n, make(n)) for n in sizes])

    for keys, dim in ((64, 64), (128, 64), (49, 32), (17, 128), (130, 80)):
        add(f"rows, {keys} keys of {dim}", "rows", lengths, lambda n, k=keys, d=dim: problem(n, k, d))
    for rows, dim in ((1, 64), (1, 128), (16, 64), (64, 64), (33, 32), (130, 80)):
        add(f"keys, {rows} rows of {dim}", "keys", lengths, lambda n, r=rows, d=dim: problem(r, n, d))
    for rows, keys in ((1, 128), (16, 16), (49, 49), (64, 64), (128, 128), (7, 100)):
        add(f"head_dim, {rows} × {keys}", "head_dim", dims, lambda n, r=rows, k=keys: problem(r, k, n))
    for dim in (4, 8, 32, 64, 80, 128):
        add(f"length, head_dim {dim}", "rows and keys", lengths, lambda n, d=dim: problem(n, n, d))
    for dim in (32, 64, 128):
        add(f"causal length, head_dim {dim}", "rows and keys", lengths, lambda n, d=dim: problem(n, n, d, is_causal=1))
    for dim in (64, 128):
        add(f"keys, 1 row, 4 heads to a KV head of {dim}", "keys", lengths,
            lambda n, d=dim: problem(1, n, d, heads=8, num_kv_heads=2))
    for rows, keys, dim in ((1, 64, 64), (8, 16, 32), (16, 16, 32), (49, 49, 32), (64, 64, 64)):
        add(f"batch × heads, {rows} × {keys} of {dim}", "batch × heads", entries,
            lambda n, r=rows, k=keys, d=dim: problem(r, k, d, heads=1, batch=n))
    return found


def random_walks(count, seed, is_dense):
    """Walks through places that are drawn."""
    rng = random.Random(seed)
    found = {}
    for _ in range(count):
        rows, keys, dim = rng.randint(1, 130), rng.randint(1, 130), rng.randint(1, 160)
        extra = rng.choice([{}, {}, {"is_causal": 1}])
        sign = " causal" if extra else ""
        kinds = {
            "rows": (LENGTHS, f"{keys} keys of {dim}", lambda n: problem(n, keys, dim, **extra)),
            "keys": (LENGTHS, f"{rows} rows of {dim}", lambda n: problem(rows, n, dim, **extra)),
            "head_dim": (DIMS, f"{rows} × {keys}", lambda n: problem(rows, keys, n, **extra)),
        }
        grows = rng.choice(sorted(kinds))
        sizes, place, make = kinds[grows]
        sizes = range(1, sizes[-1] + 1) if is_dense else sizes
        found[f"{grows}, {place}{sign}"] = (grows, [(n, make(n)) for n in sizes])
    return found


# ---- Judging ----


def best(point):
    return min(point["us"])


def excess(a, b):
    """Beyond what the work of the larger of two problems allows; 1: just at the limit."""
    return best(b) / best(a) / (LIMIT * max(1, b["flops"] / a["flops"]))


def neighbours(points):
    good = [point for point in points if "us" in point]
    return list(zip(good, good[1:]))


def exceptions(run):
    """Pairs beyond the limit, the worst first: the walk, both points, and the excess."""
    found = []
    for walk in run["walks"]:
        for a, b in neighbours(walk["points"]):
            if excess(a, b) > 1:
                found.append({"walk": walk["name"], "grows": walk["grows"], "from": a["size"], "to": b["size"],
                              "us": [best(a), best(b)], "excess": excess(a, b), "problem": b["problem"],
                              "schedules": [a["schedule"], b["schedule"]]})
    return sorted(found, key=lambda e: -e["excess"])


def overtaken(run):
    """Points that take a quarter longer than a larger problem of their walk: the other side of a cliff."""
    found = []
    for walk in run["walks"]:
        good = [point for point in walk["points"] if "us" in point]
        for i, a in enumerate(good):
            fastest = min(good[i + 1:], key=best, default=None)
            if fastest and best(a) > LIMIT * best(fastest):
                found.append({"walk": walk["name"], "size": a["size"], "than": fastest["size"],
                              "us": [best(a), best(fastest)], "ratio": best(a) / best(fastest)})
    return sorted(found, key=lambda e: -e["ratio"])


# ---- Measuring ----


def confirm(process, points):
    """Pairs beyond the limit again, only these, so that they stand side by side; the best of all samples counts."""
    for a, b in neighbours(points):
        if excess(a, b) > 1:
            for point, again in zip((a, b), process.measure([a["problem"], b["problem"]])):
                point["us"] += again.get("us", [])


def walk_along(process, name, grows, sizes, more):
    points = process.measure([text + (f",{more}" if more else "") for _, text in sizes])
    for point, (size, _) in zip(points, sizes):
        point["size"] = size
    confirm(process, points)
    confirm(process, points)
    return {"name": name, "grows": grows, "points": points}


def chosen_walks(options):
    drawn = random_walks(options.random, options.seed, options.dense)
    found = drawn if options.random else walks(options.dense)
    return {name: walk for name, walk in found.items() if fnmatch.fnmatch(name, options.only)}


def measure(options):
    with survey.Survey(options.build, options.threads, options.rounds) as process:
        run = {"schema": 1, "kind": "cliffs", "date": datetime.datetime.now().isoformat(timespec="seconds"),
               "machine": process.machine, "rounds": options.rounds, "with": options.with_, "limit": LIMIT, "walks": []}
        for name, (grows, sizes) in chosen_walks(options).items():
            walk = walk_along(process, name, grows, sizes, options.with_)
            run["walks"].append(walk)
            pairs = neighbours(walk["points"])
            beyond = sum(excess(a, b) > 1 for a, b in pairs)
            print(f"{name}: {beyond} of {len(pairs)} pairs beyond the limit", file=sys.stderr, flush=True)
    run["exceptions"], run["overtaken"] = exceptions(run), overtaken(run)
    return run


# ---- Showing ----


def summary(run):
    pairs = sum(len(neighbours(walk["points"])) for walk in run["walks"])
    failed = sum("us" not in point for walk in run["walks"] for point in walk["points"])
    text = f"{len(run['walks'])} walks, {pairs} pairs of neighbours: {len(run['exceptions'])} exceptions"
    text += f" ({100 * len(run['exceptions']) / max(1, pairs):.1f} %). "
    text += f"{len(run['overtaken'])} points take a quarter longer than a larger problem of their walk."
    return text + (f" {failed} problems could not be measured." if failed else "")


def exception_rows(run, most):
    rows = []
    for e in run["exceptions"][:most]:
        times = f"{survey.duration(e['us'][0])} → {survey.duration(e['us'][1])}"
        rows.append([e["walk"], f"{e['from']} → {e['to']}", times, f"{e['us'][1] / e['us'][0]:.2f}",
                     f"{e['excess']:.2f}"])
    return rows


def overtaken_rows(run, most):
    rows = []
    for e in run["overtaken"][:most]:
        times = f"{survey.duration(e['us'][0])}, {survey.duration(e['us'][1])}"
        rows.append([e["walk"], f"{e['size']}, {e['than']}", times, f"{e['ratio']:.2f}"])
    return rows


def text_of(run, most):
    text = f"{survey.circumstances(run)} Best of {run['rounds']} interleaved rounds"
    text += f", each problem with {run['with']}.\n\n" if run["with"] else ".\n\n"
    text += summary(run) + "\n"
    if run["exceptions"]:
        headers = ["walk", "sizes", "time", "ratio", "excess"]
        text += "\n" + survey.table(headers, exception_rows(run, most))
    if run["overtaken"]:
        headers = ["walk", "size, a larger one", "time", "ratio"]
        text += "\nSlower than a larger problem:\n\n" + survey.table(headers, overtaken_rows(run, most))
    return text


def draw(run, path):
    """By attune.plot, which draws the file of results as well."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
    from attune import plot

    plot.cliffs(run).savefig(path, metadata={"Date": None})


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    survey.add_arguments(parser)
    parser.add_argument("--only", default="*", help="names of walks, as a pattern")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dense", action="store_true", help="every size, not only those around multiples")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="N walks through places that are drawn")
    parser.add_argument("--seed", type=int, default=1, help="of those")
    parser.add_argument("--with", dest="with_", default="", metavar="KEY=VALUE,…", help="fields for all problems")
    parser.add_argument("--most", type=int, default=SHOWN, help="rows of a table")
    return parser.parse_args()


def main():
    options = parse_arguments()
    path = options.output or survey.results(options.build, "cliffs")
    run = measure(options)
    survey.save(path, run)
    print(text_of(run, options.most))
    if options.plot:
        draw(run, options.plot)


if __name__ == "__main__":
    main()
