#!/usr/bin/env python3
"""Checks of the bench itself, as TAP. usage: checks.py BUILD. Cases that need NumPy are skipped where it is not."""
import copy
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import textwrap

sys.dont_write_bytecode = True

import compare
import report
import shapes

BUILD = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path("build")


class Skip(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def expect_equal(got, wanted):
    expect(got == wanted, f"got {got!r}, not {wanted!r}")


# ---- Runs made up ----


def entry(peer, times, peak=100.0, repeats=2, note=""):
    """`times` of one preparation; every preparation has the same."""
    made = [
        {"ns": ns, "cpu_ns": ns * 2, "peaks": {"f32": peak, "bf16": 2 * peak}, "round": i} for i, ns in enumerate(times)
    ]
    kept = {"peer": peer, "method": peer, "note": note, "tried": {}, "refusal": "", "errors": [1e-7, 1e-6]}
    return kept | {"repeats": [copy.deepcopy(made) for _ in range(repeats)]}


def run_of(*entries, shape="bert_s128", dtype="f32", threads=1, bandwidth=1000.0):
    found = {"shape": {"name": shape}, "dtype": dtype, "threads": threads, "flops": 5e7, "bytes": 1e6}
    found |= {"bandwidths": [bandwidth], "entries": list(entries)}
    machine = {"cpu": "a CPU", "cpus": 2, "load": 0.0, "load_after": 0.0}
    settings = {"rounds": 10, "repeats": 2, "sample_ms": 20, "full": False}
    return {
        "schema": 1,
        "date": "then",
        "machine": machine,
        "settings": settings,
        "versions": {"attune": "attune 1"},
        "results": [found],
    }


def noisy(median, spread=0.01, count=10, seed=1):
    rng = random.Random(seed)
    return [median * (1 + rng.uniform(-spread, spread)) for _ in range(count)]


def verdict_of(old, new):
    what = ("bert_s128", "f32", 1, "attune")
    olds, news = compare.collect(old, "wall"), compare.collect(new, "wall")
    return compare.verdict(*compare.interval(olds[what], news[what]))


# ---- Cases ----


def case_same_speed_is_the_same():
    old, new = (run_of(entry("attune", noisy(1e6, seed=seed))) for seed in (1, 2))
    expect_equal(verdict_of(old, new), "the same")


def case_a_tenth_faster_is_faster_and_back_slower():
    old, new = run_of(entry("attune", noisy(1e6))), run_of(entry("attune", noisy(0.9e6, seed=2)))
    expect_equal(verdict_of(old, new), "faster")
    expect_equal(verdict_of(new, old), "slower")


def case_a_slower_machine_is_no_slower_program():
    old, new = run_of(entry("attune", noisy(1e6))), run_of(entry("attune", noisy(1.25e6, seed=2), peak=80.0))
    expect_equal(verdict_of(old, new), "the same")


def case_bandwidth_takes_the_peaks_place():
    old = run_of(entry("attune", noisy(1e6)), bandwidth=1.0)
    new = run_of(entry("attune", noisy(1.25e6, seed=2)), bandwidth=0.8)
    expect_equal(verdict_of(old, new), "the same")


def case_noise_is_not_to_be_told():
    old, new = (run_of(entry("attune", noisy(1e6, 0.5, seed=seed))) for seed in (1, 2))
    expect_equal(verdict_of(old, new), "not to be told")


def case_preparations_that_differ_widen_the_interval():
    def with_pages(factor):
        made = entry("attune", noisy(1e6, 0.001))
        for sample in made["repeats"][1]:
            sample["ns"] *= factor
        return compare.collect(run_of(made), "wall")[("bert_s128", "f32", 1, "attune")]

    _, low, high = compare.interval(with_pages(1.0), with_pages(1.0))
    _, wide_low, wide_high = compare.interval(with_pages(1.06), with_pages(1.06))
    expect(wide_high - wide_low > 5 * (high - low), "two preparations 6 % apart are no certain figure")


def case_peers_tell_a_slow_day_from_a_slow_program():
    def day(slowness, own=1.0):
        rng = random.Random(int(1000 * slowness * own))
        weather = [slowness * (1 + rng.uniform(0, 0.05)) for _ in range(10)]
        ours, theirs = ([ns * own_factor * w for w in weather] for ns, own_factor in ((1e6, own), (2e6, 1)))
        return run_of(entry("attune", ours), entry("torch", theirs))

    what = ("bert_s128", "f32", 1, "attune by peers")
    for new, wanted in ((day(1.3), "the same"), (day(1.3, 1.1), "slower"), (day(1.3, 0.9), "faster")):
        olds, news = compare.collect_by_peers(day(1.0), new, "wall")
        expect_equal(compare.verdict(*compare.interval(olds[what], news[what])), wanted)
    other = day(1.0)
    other["versions"]["torch"] = "another"
    expect_equal(compare.collect_by_peers(day(1.0), other, "wall"), ({}, {}))


def case_comparison_names_what_only_one_run_has():
    old = run_of(entry("attune", noisy(1e6)), entry("torch", noisy(2e6)))
    new = run_of(entry("attune", noisy(1e6)))
    expect("1 entries only then" in compare.text(old, new, "wall"), "the peer that is gone is counted")
    other = run_of(entry("attune", noisy(1e6)), shape="vit_s197")
    expect("no shape in common" in compare.text(old, other, "wall"), "runs without a common shape say so")


def case_shares_and_ratios():
    run = run_of(entry("attune", [1e6] * 3), entry("torch", [3e6] * 3), entry("openblas", [2e6, 1.5e6, 9e6]))
    found = run["results"][0]
    figure = report.figures(found, found["entries"][0], "wall")
    expect_equal((figure["median"], figure["min"], figure["share"]), (1e6, 1e6, 0.5))
    expect_equal(report.figures(found, found["entries"][0], "cpu")["share"], 0.25)
    expect_equal(report.best_ratio(found, "wall"), (2.0, "openblas"))
    expect("2.00 times as fast as openblas" in report.line(found, "wall"), "the line names the best peer")


def case_processor_time_of_threads_is_shared():
    found = run_of(entry("attune", [1e6] * 3), threads=2)["results"][0]
    expect_equal(report.figures(found, found["entries"][0], "cpu")["median"], 1e6)


def case_the_bf16_peak_counts_where_there_is_one():
    found = run_of(entry("attune", [1e6] * 3), dtype="bf16")["results"][0]
    expect_equal(report.figures(found, found["entries"][0], "wall")["share"], 0.25)
    for sample in report.samples(found["entries"][0]):
        sample["peaks"]["bf16"] = 0
    expect_equal(report.figures(found, found["entries"][0], "wall")["share"], 0.5)


def case_memory_bound_by_the_roofline():
    found = run_of(entry("attune", [2e6] * 3), bandwidth=1.0)["results"][0]
    expect(report.is_memory_bound(found), "1 MB at 1 GB/s takes longer than 50 MFLOP at 100 GFLOP/s")
    expect_equal(report.figures(found, found["entries"][0], "wall")["roof"], 0.5)


def case_suspicious_peers_are_marked():
    slow, fast = (run_of(entry("attune", [1e6] * 3), entry("openblas", [ns] * 3)) for ns in (9e5, 8e5))
    expect("known to reach 68 %" in report.markdown(slow, "wall"), "55 % is far below 68 %")
    expect("known to reach" not in report.markdown(fast, "wall"), "62 % is not")


def case_wrong_results_are_told():
    run = run_of(entry("attune", [1e6] * 3), entry("torch", [], repeats=0))
    run["results"][0]["entries"][1]["tried"] = {"sdpa": "wrong: error 1.0e+00 RMS", "mha": "is not for that"}
    text = report.markdown(run, "wall")
    expect("torch sdpa, bert_s128 f32: wrong" in text, "a wrong result is told")
    expect("is not for that" not in text, "an operator that a peer lacks is no news")


def case_pairs_of_causal_shapes():
    shape = shapes.parse("heads=3,rows=5,keys=9,dim=4,causal=1")
    seen = sum(j <= i + 4 for i in range(5) for j in range(9))
    expect_equal(shape.flops(), 4 * 3 * 4 * seen)


def case_shapes_that_are_none():
    for text, word in (
        ("heads=2", "rows and dim"),
        ("heads=2,rows=x,dim=3", "number"),
        ("head=2", "no field"),
        ("kind=mlp,heads=1,rows=1,dim=1", "no kind"),
        ("kind=block,heads=2,rows=4", "embed"),
    ):
        try:
            shapes.parse(text)
        except ValueError as error:
            expect(word in str(error), f"{text}: {error}")
        else:
            raise AssertionError(f"{text} was taken")


def case_known_shares_are_of_shapes():
    names = [shape.name for shape in shapes.SHAPES]
    expect_equal(len(names), len(set(names)))
    expect(set(shapes.KNOWN) <= set(names), "a share is known of a shape that there is not")


# ---- The driver of attune ----


def talk(lines):
    """Answers to lines, without the hello."""
    program = BUILD / "bench" / "attune_driver"
    if not program.exists():
        raise Skip("attune_driver is not built")
    done = subprocess.run([program, "1"], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=120)
    expect_equal(done.returncode, 0)
    hello, *answers = done.stdout.strip().split("\n")
    expect(hello.startswith("hello attune attune "), hello)
    return answers


def write_floats(path, values):
    path.write_bytes(struct.pack(f"{len(values)}f", *values))


def case_driver_computes_what_it_is_asked():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # One head, equal scores: rows are means of the values they see.
        write_floats(folder / "q", [0.0] * 6)
        write_floats(folder / "k", [1.0] * 6)
        write_floats(folder / "v", [1.0, 10.0, 2.0, 20.0, 6.0, 60.0])
        for dtype in ("f32", "bf16"):
            words = "kind=attention method=attune heads=1 kv_heads=1 rows=3 keys=3 dim=2 causal=1"
            answers = talk([f"prepare {words} dtype={dtype} data={folder}", f"write {folder}/out", "run 2 3", "drop", "run 1 1"])
            expect_equal([answer.split(" ")[0] for answer in answers], ["ok", "ok", "ok", "ok", "no"])
            expect(all(float(word) > 0 for word in answers[2].split()[1:]), answers[2])
            got = struct.unpack("6f", (folder / "out").read_bytes())
            expect_equal(got, (1.0, 10.0, 1.5, 15.0, 3.0, 30.0))


def case_driver_refuses_and_goes_on():
    with tempfile.TemporaryDirectory() as folder:
        write_floats(pathlib.Path(folder) / "q", [0.0] * 5)
        words = "kind=attention method=attune heads=1 kv_heads=1 rows=3 keys=3 dim=2"
        answers = talk(
            [
                "run 1 1",
                f"prepare {words} data={folder}",
                f"prepare {words} data={folder}/none",
                "prepare kind=what",
                "prepare words",
                "prepare kind=attention heads=0 rows=1 keys=1 dim=1",
                "run x",
            ]
        )
    wanted = ["nothing is prepared", "has not 6 numbers", "cannot open", "kind", "words", "num_heads", ""]
    expect_equal(len(answers), len(wanted))
    for answer, word in zip(answers, wanted):
        expect(answer.startswith("no ") and word in answer, f"{answer!r} without {word!r}")


# ---- A peer that is wrong, and one that dies ----

FAKE = """
    import sys, time
    print("hello a,b fake 1", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "write":
            open(rest[0], "wb").write({output})
        if word == "run" and {end!r} == "dies":
            sys.exit("it broke")
        if word == "run" and {end!r} == "hangs":
            time.sleep(60)
        print("ok 1000 1000" if word == "run" else "ok", flush=True)
"""


def fake_entry(output, end="", patience=60):
    try:
        import numpy

        import conductor
    except ImportError:
        raise Skip("no NumPy") from None
    import os

    program = textwrap.dedent(FAKE).format(output=output, end=end)
    cpus = os.sched_getaffinity(0)
    conductor.PATIENCE = patience
    driver = conductor.Driver("fake", [sys.executable, "-c", program], cpus, dict(os.environ))
    try:
        with tempfile.TemporaryDirectory() as folder:
            task = conductor.Task(shapes.parse("heads=1,rows=2,dim=2"), "f32", pathlib.Path(folder))
            task.for_peers = numpy.array([1.0, 2.0, 3.0, 4.0])
            made = conductor.Entry(driver, "wall")
            return made.open(task, 1e6), made
    finally:
        driver.close()


def case_right_results_are_timed():
    is_open, made = fake_entry(struct.pack("4f", 1, 2, 3, 4))
    expect(is_open and made.method == "a", f"{made.tried}")
    expect_equal(made.calls, 1000)


def case_wrong_results_are_not():
    for values in ((1, 2, 3, 4.1), (1, 2, 3, float("nan")), (1, 2, 3)):
        is_open, made = fake_entry(struct.pack(f"{len(values)}f", *values))
        expect(not is_open and made.refusal().startswith("wrong"), f"{made.tried}")


def case_a_peer_that_dies_is_left_out():
    is_open, made = fake_entry(struct.pack("4f", 1, 2, 3, 4), "dies")
    expect(not is_open and made.refusal() == "ended: it broke", f"{made.tried}")


def case_a_peer_that_hangs_is_left_out():
    is_open, made = fake_entry(struct.pack("4f", 1, 2, 3, 4), "hangs", patience=3)
    expect(not is_open and made.refusal() == "ended: no answer", f"{made.tried}")


def main():
    cases = [(name, case) for name, case in globals().items() if name.startswith("case_")]
    print(f"1..{len(cases)}")
    failed = 0
    for number, (name, case) in enumerate(cases, 1):
        title = name.removeprefix("case_").replace("_", " ")
        try:
            case()
            print(f"ok {number} - {title}", flush=True)
        except Skip as why:
            print(f"ok {number} - {title} # SKIP {why}", flush=True)
        except Exception as error:  # a case that throws has failed, and the others go on
            failed += 1
            print(f"not ok {number} - {title}\n# {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
