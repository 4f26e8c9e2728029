"""docs/performance.md and its pictures from one run, whole: `make performance` (bench/performance.sh)."""
import json
import statistics
import textwrap

import report
import shapes

PAGE = "performance.md"
DEFINITION = """\
A case is one shape, in one dtype, on one number of threads. Its ratio is the time of the fastest peer divided by that
of attune, the median over the rounds; in each round all have a turn. Below 1, attune is slower. attune counts as faster
if the ratio is above 1 and its median time is lower, too. The headline has the geometric mean of all ratios."""
BUSY = """\
* Other programs ran on the same CPUs, so times are up to three times those of a quiet machine. Ratios and shares
  compare neighbouring samples, under the same load. Even so single ratios vary by a third from run to run.
"""
ONE_THREAD = """\
* Only one thread was measured. Other programs disturb two threads too unevenly for a comparison.
"""
NO_GAIN = """\
* In {cases} neither attune nor its fastest peer was 10 % faster with {threads} than with one. Either these cases do
  not scale, or another program used a CPU. The ratios count all the same. Calls shorter than a millisecond are not
  listed here.
"""
ABSENT = """\
* Not in this run: {peers}. A peer takes part if its library is installed ([the bench](bench.md)).
"""
STEP_PEERS = {"vllm": "vLLM"}
LONG_NS = 1e6  # a millisecond, as NO_GAIN says: shorter calls may not be worth a second thread
STEPS = """\
Ragged batches on pages of 128 keys in random order, 32 query heads on 8 KV heads of 128, causal: what a server computes
in each layer. attune uses a step plan, as an engine does for all layers of a model. vLLM's kernel has pages of its own;
zentorch has none, so its keys are contiguous. A ratio is the peer's time divided by attune's, from neighbouring samples
of one process; below 1, attune is slower. attune's time is that of the run with the first peer.

"Decode 8 x 512" are 8 sequences with one query each and 512 keys. "Chunk 256 at 2048" are 256 new tokens of a prompt of
which 2048 are in the cache. "Verify 8 x 5" are 5 drafted tokens of each of 8 sequences. "Mixed" is a chunk with
sequences that decode."""
LIMITS = """\
* One machine. Ratios differ on others; `make performance` measures yours.
* Two virtual CPUs without hardware counters. A difference of a few per cent between two runs is noise.
* Attention, blocks and products on their own. What an engine gains as a whole is less: see the pages of the engines.
* Batches of one sequence, on contiguous keys, except in steps of a server. [vLLM's page](vllm.md) has figures of a
  server as a whole.
* f32 and bf16. f16 and f64 are not tuned and not measured here.
* Each peer uses the method, the layout and the packed weights that are fastest for it ([the bench](bench.md)). A peer
  without an operator for a case is left out of it."""


def threads_of(count):
    return f"{count} thread{'' if count == 1 else 's'}"


def measured(run, clock, **wanted):
    return [found for found in run["results"]
            if all(found[key] == value for key, value in wanted.items()) and report.best_ratio(found, clock)]


def mean(results, clock):
    return report.geometric_mean([report.best_ratio(found, clock)[0] for found in results])


def median(found, peer, clock):
    return report.figures(found, next(entry for entry in found["entries"] if entry["peer"] == peer), clock)["median"]


def ahead(results, clock):
    """In how many cases attune is faster by the ratio and by the printed times: where they disagree, noise decides."""
    best = [(found, *report.best_ratio(found, clock)) for found in results]
    return sum(ratio > 1 and median(found, "attune", clock) < median(found, peer, clock) for found, ratio, peer in best)


def headline(run, clock):
    chosen = measured(run, clock)
    text = f"**attune is faster than the fastest peer in {ahead(chosen, clock)} of {len(chosen)} cases, and "
    text += f"{mean(chosen, clock):.2f} times as fast in the geometric mean.**\n\n{DEFINITION}\n\n"
    rows = []
    parts = {(found["dtype"], found["threads"]) for found in chosen}
    for dtype, threads in sorted(parts, key=lambda part: (part[0] != "f32", part[1])):
        part = measured(run, clock, dtype=dtype, threads=threads)
        lowest = min(part, key=lambda found: report.best_ratio(found, clock))
        ratio, peer = report.best_ratio(lowest, clock)
        name = shapes.title(lowest["shape"])
        rows.append([dtype, str(threads), f"{ahead(part, clock)} of {len(part)}", f"{mean(part, clock):.2f}",
                     f"{ratio:.2f}, by {report.NAMES.get(peer, peer)}: {name}"])
    return text + report.table(["dtype", "threads", "faster in", "mean ratio", "lowest ratio"], rows)


def circumstances(run):
    machine, settings = run["machine"], run["settings"]
    versions = run["versions"] | {"attune": f"commit {run['commit']}, {run['versions']['attune']}"}
    rows = [
        ["machine", f"{machine['cpu']}, {machine['cpus']} CPUs"],
        ["attune", versions.pop("attune")],
        ["peers", "; ".join(versions.values()) or "none"],
        ["date", run["date"][:10]],
        ["other programs", f"used {report.others(run)}, of the CPUs before a case"],
        ["samples", f"{settings['rounds']} rounds, up to {settings['repeats']} times with new tensors; a sample lasts "
                    f"{settings['sample_ms']:g} ms or longer"],
    ]
    return report.table(["", ""], rows)


def unbroken(text):
    """With a space at which no line ends."""
    return text.replace(" ", "\u00a0")


def row(found, clock):
    entries = {entry["peer"]: entry for entry in found["entries"]}
    ours = report.figures(found, entries["attune"], clock)
    ratio, peer = report.best_ratio(found, clock)
    theirs = report.figures(found, entries[peer], clock)
    bound = "bandwidth" if report.is_memory_bound(found) else f"{report.peak_of(found)} peak"
    return [shapes.title(found["shape"]), str(found["threads"]), unbroken(report.duration(ours["median"])),
            f"{100 * ours['roof']:.0f} % of {bound}",
            f"{unbroken(report.duration(theirs['median']))} ({report.NAMES.get(peer, peer)})", f"{ratio:.2f}"]


def by_dtype(run, dtype, clock):
    chosen = measured(run, clock, dtype=dtype)
    headers = ["shape", "threads", "attune", "share", "fastest peer", "ratio"]
    return report.table(headers, [row(found, clock) for found in chosen])


def around(costs):
    """What a kernel costs before its first call: the lowest of several measurements."""
    rows = []
    for found in zip(*(one["results"] for one in costs)):
        compiling, loading, finding = (min(one[name] for one in found)
                                       for name in ("cold_compile_ms", "warm_disk_us", "memory_hit_ns"))
        rows.append([f"`{found[0]['problem']}`", f"{compiling:.1f} ms", f"{loading:.0f} µs", f"{finding:.0f} ns"])
    text = f"The lowest of {len(costs)} medians of `attune bench --json`. LLVM was loaded before: the first compile "
    text += "of a process also loads it."
    return text + "\n\n" + report.table(["problem", "compile", "load from the disk cache", "find in memory"], rows)


def steps(found):
    """Steps of a server, from the runs of bench/engines/step_peers.py: one for each peer and number of threads."""
    rows = {}
    for one in found:
        for step in one["steps"]:
            row = rows.setdefault((step["threads"], step["dtype"], step["step"]), step)
            row["us"], row["ratio"] = step["us"] | row["us"], step["ratio"] | row["ratio"]
    peers = sorted({peer for row in rows.values() for peer in row["ratio"]})
    lines = [[name, dtype, str(threads), unbroken(report.duration(1000 * row["us"]["attune"]))]
             + [f"{row['ratio'][peer]:.2f}" if peer in row["ratio"] else "–" for peer in peers]
             for (threads, dtype, name), row in rows.items()]
    ahead_in = sum(min(row["ratio"].values(), default=1) > 1 for row in rows.values())
    versions = ", ".join(sorted({version for one in found for version in one["versions"] if "attune" not in version}))
    names = [STEP_PEERS.get(peer, peer) for peer in peers]
    text = f"**attune is faster than all peers in {ahead_in} of {len(rows)} steps.** `make bench-step-peers` measures "
    text += f"these\nalone. {versions}.\n\n{STEPS}\n\n"
    return text + report.table(["step", "dtype", "threads", "attune", *names], lines)


def without_gain(run, clock):
    """Cases where several threads gained less than a tenth over one, for attune and for its fastest peer alike."""
    alone = {(found["shape"]["name"], found["dtype"]): found for found in measured(run, clock, threads=1)}
    for found in measured(run, clock):
        one = alone.get((found["shape"]["name"], found["dtype"]))
        if one is None or found["threads"] == 1:
            continue
        names = {"attune", report.best_ratio(found, clock)[1]}
        times = [[report.figures(which, entry, clock)["median"] for entry in which["entries"] if entry["peer"] in names]
                 for which in (found, one)]
        if len(times[0]) == len(times[1]) and min(times[0]) > LONG_NS and all(
                0.9 * before < after for after, before in zip(*times)):
            yield found


def wrapped(item):
    return textwrap.fill(" ".join(item.split()), 120, subsequent_indent="  ", break_on_hyphens=False) + "\n"


def limits_of(run, clock):
    most = max(found["threads"] for found in run["results"])
    text = BUSY if statistics.mean(report.busy(run)) > 0.1 else ""
    lost = [f"{shapes.title(found['shape'])} ({found['dtype']})" for found in without_gain(run, clock)]
    if lost:
        text += wrapped(NO_GAIN.format(cases="; ".join(lost), threads=threads_of(most)))
    absent = [name for peer, name in report.NAMES.items() if peer not in run["versions"]]
    if absent:
        text += wrapped(ABSENT.format(peers=", ".join(absent)))
    return text + (ONE_THREAD if most == 1 else "") + LIMITS


def page(run, costs, found_steps, pictures, clock):
    text = "# Performance\n\n`make performance` measured all of this in one run and wrote this page. "
    text += "[The bench](bench.md) says how it measures.\n\n"
    text += "Times are medians of time on the clock. A ratio is the median over pairs of neighbouring samples, so it "
    text += "is not exactly the quotient of the two times in its row. A share is of the CPU's peak, probed before and "
    text += "after each sample, or of its bandwidth where that is the bound.\n\n"
    text += circumstances(run) + "\n## The headline\n\n" + headline(run, clock)
    for dtype in ("f32", "bf16"):
        if measured(run, clock, dtype=dtype):
            name = f"performance-{dtype}.svg"
            picture = f"![Share of the peak in {dtype}, attune and its peers]({name})\n\n" if name in pictures else ""
            text += f"\n## {dtype}\n\n{picture}{by_dtype(run, dtype, clock)}"
    if found_steps:
        text += f"\n## Steps of a server\n\n{steps(found_steps)}"
    if costs:
        text += f"\n## Before the first call\n\n{around(costs)}"
    return text + f"\n## Limits\n\n{limits_of(run, clock)}\n"


def folded(text):
    """Paragraphs in lines of 120 columns; tables, headings, lists and pictures stay as they are."""
    wrapper = textwrap.TextWrapper(120, break_long_words=False, break_on_hyphens=False)
    return "\n".join(line if line[:1] in "|#!* " else wrapper.fill(line) for line in text.split("\n"))


def publish(results, docs, load, clock):
    """What was written, in words."""
    run = load(results / "bench.json")
    costs, found_steps = ([json.loads(path.read_text()) for path in sorted(results.glob(f"{name}-*.json"))]
                          for name in ("costs", "steps"))
    pictures = []
    try:
        import plots
    except ImportError:
        pass
    else:
        pictures = plots.draw(run, docs, clock, "performance-")
    text = page(run, costs, found_steps, pictures, clock)
    (docs / PAGE).write_text(folded(text))
    return f"written to {docs}: {', '.join([PAGE, *pictures])}"
