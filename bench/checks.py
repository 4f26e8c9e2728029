#!/usr/bin/env python3
"""Checks of the bench itself, as TAP. usage: checks.py BUILD. Cases that need NumPy are skipped where it is not."""
import argparse
import copy
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import textwrap

sys.dont_write_bytecode = True

import cliffs
import compare
import ranking
import report
import roofline
import shapes
import survey

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
    fields = {"name": shape, "group": "prefill", "rows": 128, "dim": 64, "heads": 12}
    found = {"shape": fields, "dtype": dtype, "threads": threads, "flops": 5e7, "bytes": 1e6, "busy": 0.0}
    found |= {"bandwidths": [bandwidth], "entries": list(entries)}
    machine = {"cpu": "a CPU", "cpus": 2}
    settings = {"rounds": 10, "repeats": 2, "sample_ms": 20, "full": False, "growth": False}
    return {
        "schema": 2,
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
    both = run_of(entry("attune", [1e6] * 3), entry("onednn", [4e6] * 3), entry("onednn_omp", [8e5] * 3))
    expect("known to reach" not in report.markdown(both, "wall"), "one build of two reaches it")


def case_the_table_says_which_peak():
    f32, bf16 = (report.markdown(run_of(entry("attune", [1e6]), dtype=dtype), "wall") for dtype in ("f32", "bf16"))
    expect("100 f32" in f32 and "200 bf16" in bf16, "the peak and its dtype")


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
        ("heads=1,rows=1,dim=1,kv=f4", "no kv"),
        ("heads=1,rows=1,dim=1,kv=i8", "scales"),
        ("heads=1,rows=1,dim=1,scales=head", "scales"),
    ):
        try:
            shapes.parse(text)
        except ValueError as error:
            expect(word in str(error), f"{text}: {error}")
        else:
            raise AssertionError(f"{text} was taken")


def case_drivers_that_are_for_some_shapes():
    small, large, long = (shapes.parse(f"heads=2,rows={rows},dim=32") for rows in (16, 1024, 8192))
    expect_equal([shapes.is_for("onednn_omp", shape) for shape in (small, large, long)], [True, False, False])
    expect_equal([shapes.is_for("onednn_omp", shape, 2) for shape in (small, large)], [True, True])
    expect_equal([shapes.is_for("onednn", shape) for shape in (small, large, long)], [True, True, True])
    found = {shape.name: shape for shape, _ in shapes.growth(2)}
    expect_equal([shapes.is_for("onednn", found[f"seq_{rows}"]) for rows in (4096, 8192)], [True, False])


def case_known_shares_are_of_shapes():
    names = [shape.name for shape in shapes.SHAPES]
    expect_equal(len(names), len(set(names)))
    for dtype in ("f32", "bf16"):
        expect(set(shapes.KNOWN[dtype]) <= set(names), "a share is known of a shape that there is not")


def case_a_narrow_cache_has_fewer_bytes():
    text = "heads=8,kv_heads=2,rows=1,keys=100,dim=16"
    wide, narrow = shapes.parse(text), shapes.parse(text + ",kv=i8,scales=token")
    expect_equal(wide.bytes("f32"), 4 * 2 * 8 * 16 + 4 * 2 * 2 * 100 * 16)
    expect_equal(narrow.bytes("f32"), 4 * 2 * 8 * 16 + 2 * 2 * 100 * 16 + 4 * 2 * 2 * 100)
    expect_equal((wide.dtypes(["f32", "bf16"]), narrow.dtypes(["f32", "bf16"])), (["f32", "bf16"], ["f32"]))


def case_every_shape_of_attention_has_a_goal_or_none_by_design():
    kinds = {shapes.goal(vars(shape), dtype) for shape in shapes.SHAPES for dtype in ("f32", "bf16")}
    expect(("share", 88) in kinds and ("share", 85) in kinds and ("ns", 2000) in kinds and None in kinds, kinds)


# ---- Runs in pieces, published ----


def need_numpy():
    try:
        import numpy
    except ImportError:
        raise Skip("no NumPy") from None
    return numpy


def bench(*arguments):
    """What bench.py prints, and its exit code."""
    need_numpy()
    program = pathlib.Path(__file__).with_name("bench.py")
    done = subprocess.run([sys.executable, "-B", program, *arguments], capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr, done.returncode


def case_two_files_are_compared():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, ns in (("old", 1e6), ("new", 8e5)):
            run = run_of(entry("attune", noisy(ns)), entry("torch", noisy(2e6)))
            (folder / f"{name}.json").write_text(json.dumps(run))
        text, code = bench("--results", folder / "new.json", "--compare", folder / "old.json")
        expect(code == 0 and "attune: 1 faster, 0 slower, of 1" in text and "99 % intervals" in text, text)
        (folder / "old.json").write_text('{"schema": 0}')
        text, code = bench("--results", folder / "new.json", "--compare", folder / "old.json")
        expect(code == 1 and "no run of this bench" in text, text)


def case_a_run_becomes_a_page():
    need_numpy()
    import publish

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        run = run_of(entry("attune", [1e6] * 3), entry("torch", [2e6] * 3)) | {"commit": "abc"}
        slower = run_of(entry("attune", [4e6] * 3), entry("onednn", [1e6] * 3), threads=2)["results"]
        (folder / "bench.json").write_text(json.dumps(run | {"results": run["results"] + slower}))
        costs = {"problem": "seq_q=1", "cold_compile_ms": 8.55, "warm_disk_us": 19.2, "memory_hit_ns": 41.4}
        for number, factor in (1, 3), (2, 1):
            again = costs | {"cold_compile_ms": factor * costs["cold_compile_ms"]}
            (folder / f"costs-{number}.json").write_text(json.dumps({"results": [again]}))
        for peer, ratio in ("vllm", 1.5), ("zentorch", 0.9):
            step = {"step": "decode", "dtype": "f32", "threads": 1, "us": {"attune": 20, peer: 30}}
            found = {"versions": ["attune 1", f"{peer} 7"], "steps": [step | {"ratio": {peer: ratio}}]}
            (folder / f"steps-{peer}-1.json").write_text(json.dumps(found))
        text, code = bench("--output", folder, "--publish", folder)
        expect_equal(code, 0)
        page = (folder / publish.PAGE).read_text()
        wide = [line for line in page.splitlines() if len(line) > 120 and line[0] not in "|!"]
        expect_equal(wide, [])
        expect("faster than the fastest peer in 1 of 2 cases, and 0.71 times as fast" in page.replace("\n", " "), page)
        expect("commit abc, attune" in page and "0.25, by oneDNN: 12 heads × 64, 128 tokens" in page, page)
        expect(re.search(r"128 tokens +\| 1 +\| 1.ms +\| 50 % of f32 peak +\| 2.ms \(PyTorch\) +\| 2.00", page), page)
        expect("all peers in 0 of 1 steps" in page and "vllm 7, zentorch 7" in page, page)
        expect(re.search(r"decode +\| f32 +\| 1 +\| 20.µs +\| 1.50 +\| 0.90", page), page)
        expect(re.search(r"`seq_q=1` +\| 8.6 ms +\| 19 µs +\| 41 ns", page), page)


def case_a_case_counts_as_faster_by_ratio_and_by_times():
    need_numpy()
    import publish

    by_ratio = run_of(entry("attune", [1e6, 5e6, 5e6]), entry("torch", [2e6, 2e6, 6e6]))["results"]  # medians: 5, 2 ms
    expect_equal(report.best_ratio(by_ratio[0], "wall"), (1.2, "torch"))
    expect_equal(publish.ahead(by_ratio, "wall"), 0)
    expect_equal(publish.ahead(run_of(entry("attune", [1e6] * 3), entry("torch", [2e6] * 3))["results"], "wall"), 1)


def case_a_page_tells_of_other_programs():
    need_numpy()
    import publish

    one, two = (run_of(entry("attune", [own]), entry("torch", [2 * own]), threads=threads)
                for threads, own in ((1, 4e6), (2, 3.9e6)))
    run = one | {"results": one["results"] + two["results"]}
    said = publish.limits_of(run, "wall")
    expect("In 12 heads × 64, 128 tokens (f32) neither attune nor its fastest peer was 10 % faster" in said, said)
    expect("Other programs ran" not in said, said)
    disturbed = [found | {"busy": 0.3} for found in run["results"]]
    expect("Other programs ran" in publish.limits_of(run | {"results": disturbed}, "wall"), said)
    faster = run_of(entry("attune", [2e6]), entry("torch", [8e6]), threads=2)["results"]
    said = publish.limits_of(run | {"results": one["results"] + faster}, "wall")
    expect("both attune" not in said, said)


def case_a_run_goes_on_where_it_ended():
    need_numpy()
    import bench as program

    fields = {"growth": False, "only": ["tiny_*", "decode_kv8_k512_i8_head"], "shape": [], "dtypes": "f32,bf16"}
    options = argparse.Namespace(**fields, threads="1", full=False)
    run = run_of(entry("attune", [1e6]), shape="tiny_16", dtype="bf16")
    left = [(shape.name, dtype) for shape, dtype, _ in program.missing(options, run, [0])[1]]
    expect_equal(left, [("tiny_16", "f32"), ("tiny_64", "f32"), ("tiny_64", "bf16"),
                        ("decode_kv8_k512_i8_head", "f32")])
    program.check_versions(run, {"attune": "attune 1", "torch": "torch 2"})
    expect_equal(run["versions"]["torch"], "torch 2")
    try:
        program.check_versions(run, {"attune": "attune 2"})
    except ValueError as error:
        expect("attune 1" in str(error), error)
    else:
        raise AssertionError("a run went on with another attune")


def case_growth_is_a_list_of_its_own():
    need_numpy()
    import bench as program

    options = argparse.Namespace(growth=True, dtypes="f32,bf16", threads=None, only=[])
    found = [(shape.name, dtype, threads) for shape, dtype, threads in program.jobs(options, [0, 1])]
    for one in ("seq_64", "f32", 1), ("seq_16384", "f32", 1), ("threads_2", "f32", 2):
        expect(one in found, found)
    expect_equal([threads for _, _, threads in found], sorted(threads for _, _, threads in found))
    options.only, options.threads = ["threads_*", "tiny_*"], "2"
    expect_equal([shape.name for shape, _, _ in program.jobs(options, [0, 1])], ["threads_2"])


def case_time_and_memory_by_length_are_tables():
    need_numpy()
    import growth

    run = run_of(entry("attune", [1e6]), entry("torch", [2e6]), shape="seq_64")
    run["results"][0]["shape"] |= {"group": "seq"}
    point = {"rows": 64, "method": "", "bytes": 5_000_000, "tensors": 1_000_000, "workspace": 3000}
    run["memory"] = {"attune": [point], "torch": [point | {"workspace": None}]}
    text = growth.markdown(run, "wall")
    expect(re.search(r"\| 64 +\| 1 ms +\| 2 ms +\| 50 % +\| 2.00 \(torch\)", text), text)
    expect(re.search(r"\| 64 +\| 1 MB +\| 3 KB +\| 4 MB +\| 4 MB", text), text)


def case_long_shapes_have_fewer_rounds():
    need_numpy()
    import conductor

    def plan(call_ns, limit=8):
        one = argparse.Namespace(call_ns=call_ns, turn_s=lambda: max(0.025, call_ns / 1e9))
        return conductor.plan([one] * 6, argparse.Namespace(repeats=3, rounds=5, limit=limit))

    expect_equal(plan(1e6), (3, 5))
    expect_equal(plan(1e9), (1, 3))
    expect_equal(plan(1e9, 0), (3, 5))
    repeats, rounds = plan(1e8)
    expect(repeats * (1.2 + rounds * 0.66) <= 8 and repeats > 1, (repeats, rounds))


def case_every_key_of_the_file_is_described():
    need_numpy()
    import bench as program
    import conductor

    options = argparse.Namespace(growth=False, rounds=1, repeats=1, sample_ms=20, limit=8, full=False, clock="wall")
    made = conductor.Entry(argparse.Namespace(name="attune", methods=["attune"]), "wall")
    made.repeats = [[{"round": 0, "ns": 1.0, "cpu_ns": 1.0, "peaks": {"f32": 1.0, "bf16": 0.0}}]]
    run = program.new_run(options) | {"memory": {}}
    run["results"] = [report.result(shapes.SHAPES[0], "f32", 1, [made], [1.0])]
    file = (pathlib.Path(__file__).resolve().parents[1] / "docs" / "bench.md").read_text()
    described = set(re.findall(r"`([a-z_]+)`", file.partition("## The file")[2].partition("\n## ")[0]))
    found = run["results"][0]
    keys = [*run, *run["settings"], *found, *found["entries"][0], *made.repeats[0][0]]
    expect_equal([key for key in keys if key not in described], [])


# ---- attune bench, whose peaks are those of the bench ----


def case_the_peak_is_that_of_the_problem():
    program = BUILD / "attune"
    if not program.exists() or os.uname().machine != "x86_64":
        raise Skip("no attune for x86-64")

    def measured(problem, *more):
        words = [program, "bench", "--json", "--samples=1", f"head_dim=8,seq_q=8,{problem}", *more]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120,
                              env=os.environ | {"ATTUNE_CACHE_DIR": ""})
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    best = measured("dtype=f32")
    expect_equal(best["results"][0]["peak_dtype"], "f32")
    expect(best["results"][0]["workspace_bytes"] >= 0, "workspace_bytes")
    narrow = "bf16" if best["header"]["isa"] == "avx512_bf16" else "f32"
    wanted = {"dtype=bf16": narrow, "dtype=bf16,k_dtype=f32": narrow, "dtype=f16": "f32", "dtype=f64": "f64"}
    for problem, dtype in wanted.items():
        found = measured(problem)["results"][0]
        expect_equal((problem, found["peak_dtype"]), (problem, dtype))
        expect(found["peak_gflops"] > 0 and found["fraction_of_peak"] > 0, found)
    expect_equal(measured("dtype=bf16", "--isa=x86-64")["results"][0]["peak_dtype"], "f32")


# ---- Inputs ----


def case_codes_stand_for_what_is_nearest():
    numpy = need_numpy()
    import inputs

    table = inputs.f8_values()
    expect_equal((table[0], table[1], table[8], table[-1], len(table)), (0, 2.0**-9, 2.0**-6, 448, 127))
    expect(numpy.all(numpy.diff(table) > 0), "ascending")
    rng = numpy.random.default_rng(1)
    array = rng.standard_normal((2, 3, 5, 7)).astype(numpy.float32)
    for kv, scales, least in (("i8", "head", 0.01), ("i8", "token", 0.01), ("f8", "head", 0.05), ("f8", "", 0.05)):
        codes, scale, exact = inputs.quantise(array, kv, scales)
        expect_equal(scale.size, {"head": 3, "token": 2 * 3 * 5, "": 1}[scales])
        expect(codes.dtype.itemsize == 1 and codes.shape == array.shape, (kv, codes.dtype))
        rms = numpy.sqrt(numpy.mean((exact - array) ** 2))
        expect(1e-4 < rms < least, (kv, scales, rms))
    codes, _, exact = inputs.quantise(numpy.array([[[[0.0, -1.0, 448.0, 0.0625]]]], numpy.float32), "f8", "")
    expect_equal(codes.ravel().tolist(), [0, 0xB8, 0x7E, 0x18])
    expect_equal(exact.ravel().tolist(), [0, -1, 448, 0.0625])


def case_some_rows_of_long_shapes_are_checked():
    numpy = need_numpy()
    import inputs

    shape = shapes.parse("heads=2,rows=40,dim=4,causal=1")
    data = inputs.Inputs(shape, "f32")
    whole, _ = data.expected()
    inputs.CHECKED_PAIRS, kept = 100, inputs.CHECKED_PAIRS
    inputs.CHECKED_ROWS, kept_rows = 7, inputs.CHECKED_ROWS
    try:
        rows = data.checked_rows()
        some, _ = data.expected()
    finally:
        inputs.CHECKED_PAIRS, inputs.CHECKED_ROWS = kept, kept_rows
    expect_equal((rows[0], rows[-1], len(rows)), (0, 39, 7))
    # A BLAS may sum products of another shape in another order, so the last bits differ. A wrong row is seen
    # all the same.
    expect(inputs.errors(some, whole[:, :, rows])[1] < 1e-13, "the same rows")
    rows[3] += 1
    expect(inputs.errors(some, whole[:, :, rows])[1] > 1e-2, "a row that is another differs")


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
            answers = talk([f"prepare {words} dtype={dtype} data={folder}", f"write {folder}/out", "run 2 3", "drop",
                            "run 1 1"])
            expect_equal([answer.split(" ")[0] for answer in answers], ["ok", "ok", "ok", "ok", "no"])
            expect(all(float(word) > 0 for word in answers[2].split()[1:]), answers[2])
            got = struct.unpack("6f", (folder / "out").read_bytes())
            expect_equal(got, (1.0, 10.0, 1.5, 15.0, 3.0, 30.0))


def case_driver_takes_narrow_keys_and_values():
    numpy = need_numpy()
    import inputs

    for more in ("kv=f16", "kv=bf16", "kv=i8,scales=token", "kv=i8,scales=head", "kv=f8,scales=head"):
        shape = shapes.parse(f"heads=4,kv_heads=2,rows=1,keys=33,dim=16,{more}")
        data = inputs.Inputs(shape, "f32")
        with tempfile.TemporaryDirectory() as folder:
            data.write(pathlib.Path(folder))
            prepare = f"prepare {shape.words()} dtype=f32 data={folder}"
            answers = talk([prepare, f"write {folder}/out", "workspace", "drop"])
            expect_equal([answer.split(" ")[0] for answer in answers], ["ok"] * 4)
            expect(int(answers[2].split()[1]) >= 0, answers[2])
            got = numpy.fromfile(f"{folder}/out", numpy.float32)
        expect(inputs.errors(got, data.expected()[0])[1] < 1e-5, (more, inputs.errors(got, data.expected()[0])))


def case_memory_of_a_call_grows_with_its_length():
    need_numpy()
    import conductor
    import growth

    program = BUILD / "bench" / "attune_driver"
    if not program.exists():
        raise Skip("attune_driver is not built")
    if not os.access("/proc/self/clear_refs", os.W_OK):
        raise Skip("the kernel tells no maxima of memory")
    if os.environ.get("SANITIZE"):
        raise Skip("a sanitizer keeps memory of its own")
    shapes_chosen = [shapes.growing("seq", rows, heads=2, rows=rows) for rows in (512, 4096)]
    cpus = os.sched_getaffinity(0)
    driver = conductor.Driver("attune", [program, "1"], cpus, conductor.environment(1, cpus) | growth.MALLOC)
    try:
        with tempfile.TemporaryDirectory() as folder:
            few, many = growth.curve(driver, [(shape, "f32", "attune") for shape in shapes_chosen], folder)
    finally:
        driver.close()
    expect(many["bytes"] >= many["tensors"] == 8 * few["tensors"], (few, many))
    expect(many["workspace"] <= 8 * few["workspace"], (few, many))
    expect(many["bytes"] < 3 * many["tensors"], "far from a byte for each score")


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
                "run 1 1",
                "run x",
            ]
        )
    wanted = ["nothing is prepared", "has not 6 numbers", "cannot open", "kind", "words", "num_heads",
              "nothing is prepared", ""]
    expect_equal(len(answers), len(wanted))
    for answer, word in zip(answers, wanted):
        expect(answer.startswith("no ") and word in answer, f"{answer!r} without {word!r}")


# ---- A peer that is wrong, and one that dies ----

FAKE = """
    import sys, time
    print("hello a,b fake 1", flush=True)
    alone = False
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "write":
            open(rest[0], "wb").write({output})
        alone = "threads=1" in rest if word == "prepare" else alone
        if word == "run" and {end!r} == "dies":
            sys.exit("it broke")
        if word == "run" and {end!r} == "hangs":
            time.sleep(60)
        ns = 500 if alone else 1000
        print(f"ok {{ns}} {{ns}}" if word in ("run", "write") else "ok", flush=True)
"""


def fake_entry(output, end="", patience=60, is_small=False):
    numpy = need_numpy()
    import conductor

    program = textwrap.dedent(FAKE).format(output=output, end=end)
    cpus = os.sched_getaffinity(0)
    conductor.PATIENCE = patience
    driver = conductor.Driver("fake", [sys.executable, "-c", program], cpus, dict(os.environ))
    try:
        with tempfile.TemporaryDirectory() as folder:
            task = conductor.Task(shapes.parse("heads=1,rows=2,dim=2"), "f32", pathlib.Path(folder))
            task.for_peers = numpy.array([1.0, 2.0, 3.0, 4.0])
            made = conductor.Entry(driver, "wall", is_small)
            return made.open(task, 1e6), made
    finally:
        driver.close()


def case_right_results_are_timed():
    is_open, made = fake_entry(struct.pack("4f", 1, 2, 3, 4))
    expect(is_open and made.method == "a", f"{made.tried}")
    expect_equal(made.calls, 1000)


def case_small_calls_are_tried_on_one_thread():
    is_open, made = fake_entry(struct.pack("4f", 1, 2, 3, 4), is_small=True)
    expect(is_open and made.method.endswith("@1"), f"{made.tried}")
    expect_equal(set(made.tried), {"a", "b", "a@1", "b@1"})


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


# ---- The ranking of schedules ----


def rank(*options):
    environment = os.environ | {"ATTUNE_CODEGEN": str(BUILD.resolve() / "libattune-codegen.so")}
    command = [BUILD / "bench" / "ranking", "--budget=0.05", "--seconds=0.05", *options,
               "num_heads=1,seq_q=24,head_dim=16"]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120).stdout)


def case_schedules_are_ranked_beside_what_tuning_finds():
    found = rank("--runs=2", "--most=6", "--others=3")
    expect_equal((found["timed"], len(found["tuned"]), len(found["best"])), (9, 2, 8))
    expect_equal(sum(entry["is_other"] for entry in found["all"]), 3)
    ratios = [entry["ratio"] for entry in found["all"]]
    expect_equal(ratios, sorted(ratios))
    expect_equal(found["untuned"]["ratio"], 1.0)
    expect(found["legal"] > 500, f"only {found['legal']} schedules")


def case_a_long_search_stands_for_all_schedules():
    found = rank("--runs=1", "--most=0", "--others=0", "--longer=0.1")
    expect_equal((found["timed"], len(found["best"])), (0, 1))


def case_rankings_become_a_page():
    found = rank("--runs=1", "--most=4", "--others=2")
    found["best"] = found["best"][:1]
    found["untuned"]["ratio"], found["tuned"][0]["ratio"], found["best"][0]["ratio"] = 1.0, 0.9, 0.8
    results = [{"name": "one", "group": "all", "found": found}]
    text = ranking.page({"schema": 1, "cpu": "a CPU", "threads": 1, "budget": 5.0, "runs": 1, "results": results})
    expect("| `one` |" in text and "| +25.0 % | +12.5 % | -10.0 % |" in text, text)
    expect("0 of 1 searches came within 3 %" in text, text)


# ---- Cliffs, and random problems beside the roofline ----


def walk_of(times, flops=None):
    points = [{"size": n, "us": [us, 2 * us], "flops": (flops or [1] * len(times))[n - 1], "problem": f"seq_q={n}",
               "schedule": f"kv_tile={n}"} for n, us in enumerate(times, 1)]
    return {"walks": [{"name": "rows", "grows": "rows", "points": points}]}


def case_a_jump_beyond_a_quarter_is_an_exception():
    found = cliffs.exceptions(walk_of([1.0, 1.2, 1.6, 1.6, 2.4]))
    expect_equal([(e["from"], e["to"]) for e in found], [(4, 5), (2, 3)])
    expect(abs(found[0]["excess"] - 1.2) < 1e-9, f"{found}")


def case_time_may_grow_with_the_work():
    expect_equal(cliffs.exceptions(walk_of([1.0, 2.4, 2.4], [1, 2, 3])), [])
    expect_equal(len(cliffs.exceptions(walk_of([1.0, 2.6, 2.6], [1, 2, 3]))), 1)


def case_a_point_that_is_slower_than_a_larger_one_is_named():
    found = cliffs.overtaken(walk_of([1.0, 2.0, 1.5, 1.1]))
    expect_equal([(e["size"], e["than"]) for e in found], [(2, 4), (3, 4)])


def case_a_point_that_failed_is_left_out():
    run = walk_of([1.0, 1.0, 3.0])
    run["walks"][0]["points"][1] = {"size": 2, "problem": "seq_q=2", "error": "none"}
    expect_equal([(e["from"], e["to"]) for e in cliffs.exceptions(run)], [(1, 3)])
    expect("1 problems could not be measured" in cliffs.summary(run | {"exceptions": [], "overtaken": []}), "the count")


def case_walks_cross_the_multiples():
    for name, (_, sizes) in cliffs.walks(False).items():
        numbers = [n for n, _ in sizes]
        expect_equal(numbers, sorted(set(numbers)))
        expect({15, 16, 17, 63, 64, 65} <= set(numbers), name)
    expect_equal(max(n for n, _ in cliffs.walks(True)["head_dim, 64 × 64"][1]), 160)


def case_equal_seeds_draw_equal_problems():
    first, longer = roofline.problems(20, 7, "f32"), roofline.problems(50, 7, "f32")
    expect_equal(first, longer[:20])
    expect(first != roofline.problems(20, 8, "f32"), "another seed draws the same")
    expect_equal({kind for kind, _ in longer}, set(roofline.KINDS))


def case_percentiles_are_between_neighbours():
    expect_equal([roofline.percentile([4, 1, 2, 3, 5], p) for p in (0, 25, 50, 100)], [1, 2, 3, 5])
    expect_equal(roofline.percentile([1, 2], 50), 1.5)


def case_shares_are_of_the_longer_bound():
    one = {"flops": 1e6, "bytes": 1e6, "us": [20.0, 40.0, 80.0], "peaks": [100.0, 100.0, 100.0],
           "bandwidths": [50.0, 100.0, 200.0]}
    usual, best = roofline.judge(one), roofline.judge(one, 100.0)
    expect_equal((usual["of_roofline"], usual["time"], usual["is_memory_bound"]), (0.25, 40.0, False))
    expect_equal((best["of_roofline"], best["time"]), (0.5, 20.0))


def measured(*options):
    """What a script of the bench leaves in its file, and what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "found.json"
        command = [sys.executable, pathlib.Path(__file__).with_name(options[0]), "--build", BUILD, "--output", path]
        done = subprocess.run([*command, *options[1:]], capture_output=True, text=True, timeout=300)
        expect_equal((done.returncode, done.stderr if done.returncode else ""), (0, ""))
        return json.loads(path.read_text()), done.stdout


def case_a_walk_is_measured():
    run, text = measured("cliffs.py", "--rounds=1", "--random=1", "--with=dtype=bf16")
    (walk,) = run["walks"]
    expect(all(point["us"] and point["flops"] > 0 and "dtype=bf16" in point["canonical"] for point in walk["points"]),
           f"{walk['points'][:2]}")
    expect("1 walks, " in text and run["machine"]["cpu"] in text, text)


def case_each_kind_of_problem_is_measured_beside_the_roofline():
    run, text = measured("roofline.py", "--rounds=1", f"--count={len(roofline.KINDS)}", "--seed=3")
    expect_equal([one["kind"] for one in roofline.judged(run, False)["problems"]], list(roofline.KINDS))
    best = roofline.judged(run, True)["problems"]
    expect(all(one["of_roofline"] > 0 for one in best), "a share that is not positive")
    expect("The worst 10:" in text and "| decode, paged | 1 |" in text, text)


def case_a_problem_that_cannot_be_measured_is_named():
    with survey.Survey(BUILD, 1, 1) as process:
        good, bad = process.measure(["seq_q=4,head_dim=4", "seq_q=4,head_dim=4,nonsense=1"])
    expect("us" in good and bad.get("error"), f"{good}, {bad}")


def case_choices_are_as_good_as_those_recorded():
    """The time of a choice is not looked at, as other programs may run."""
    command = [sys.executable, pathlib.Path(__file__).parent / "cost.py", "gate", "--build", BUILD]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    told = [line for line in lines if "us at most" not in line and not line.startswith("zen5.tsv.xz: ")]
    expect([line.partition(" choices")[0] for line in told] == ["good: avx512_bf16: 61", "good: avx2: 61"], f"{lines}")


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
