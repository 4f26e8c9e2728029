"""From samples to figures, and figures as text."""
import dataclasses
import math
import statistics

import shapes

CLOCKS = {"wall": "ns", "cpu": "cpu_ns"}
SUSPECT = 0.9  # of its known share

# What a measured peer is called by its makers.
NAMES = {"torch": "PyTorch", "zentorch": "zentorch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO",
         "openblas": "OpenBLAS", "onednn": "oneDNN", "onednn_omp": "oneDNN on OpenMP", "ggml": "ggml"}


def result(shape, dtype, threads, entries, bandwidths):
    """What is kept of one shape."""
    return {
        "shape": dataclasses.asdict(shape),
        "dtype": dtype,
        "threads": threads,
        "flops": shape.flops(),
        "bytes": shape.bytes(dtype),
        "bandwidths": bandwidths,
        "entries": [
            {
                "peer": entry.driver.name,
                "method": entry.method if entry.repeats else "",
                "note": entry.note if entry.repeats else "",
                "tried": entry.tried,
                "refusal": "" if entry.repeats else entry.refusal(),
                "errors": entry.errors,
                "repeats": entry.repeats,
            }
            for entry in entries
        ],
    }


def samples(entry):
    return [sample for repeat in entry["repeats"] for sample in repeat]


def roofline_ns(found, peak):
    """The least time that the peak (GFLOP/s) and the bandwidth (GB/s) allow."""
    bandwidth = statistics.median(found["bandwidths"])
    return max(found["flops"] / peak, found["bytes"] / bandwidth)


def is_memory_bound(found):
    entry = next(entry for entry in found["entries"] if entry["repeats"])
    peak = statistics.median(s["peaks"][peak_of(found)] for s in samples(entry))
    return roofline_ns(found, peak) > found["flops"] / peak


def peak_of(found):
    """The peak that counts: bf16 dot products where the CPU has them."""
    if found["dtype"] == "bf16":
        for entry in found["entries"]:
            if entry["repeats"]:
                return "bf16" if samples(entry)[0]["peaks"]["bf16"] > 0 else "f32"
    return "f32"


def figures(found, entry, clock):
    """Median, minimum and shares of one entry; None where it has no samples."""
    if not entry["repeats"] or not samples(entry):
        return None
    # Processor time of several threads adds up, and the peak is of all of them.
    divisor = found["threads"] if clock == "cpu" else 1
    times = [s[CLOCKS[clock]] / divisor for s in samples(entry)]
    peaks = [s["peaks"][peak_of(found)] for s in samples(entry)]
    return {
        "median": statistics.median(times),
        "min": min(times),
        "peak": statistics.median(peaks),
        "share": statistics.median(found["flops"] / peak / time for time, peak in zip(times, peaks)),
        "roof": statistics.median(roofline_ns(found, peak) / time for time, peak in zip(times, peaks)),
    }


def ratios(found, clock):
    """Of each peer with samples: the median over the rounds of its time by attune's."""
    by_round = {}
    for entry in found["entries"]:
        for number, repeat in enumerate(entry["repeats"]):
            for s in repeat:
                by_round.setdefault(entry["peer"], {})[number, s["round"]] = s[CLOCKS[clock]]
    ours = by_round.pop("attune", {})
    return {
        peer: statistics.median(theirs[key] / ours[key] for key in theirs if key in ours)
        for peer, theirs in by_round.items()
        if any(key in ours for key in theirs)
    }


def best_ratio(found, clock):
    """Ratio to the fastest peer, and its name; None without one."""
    found_ratios = ratios(found, clock)
    return min(((ratio, peer) for peer, ratio in found_ratios.items()), default=None)


def suspicion(found, entry, figure):
    """What a peer is known to reach, where it is far from that: then its settings are to be looked at. Of two builds
    of a library it is enough that one of them reaches it."""
    known = shapes.KNOWN[found["dtype"]].get(found["shape"]["name"], {}).get(entry["peer"])
    siblings = [figures(found, other, "wall") for other in found["entries"] if other["peer"].startswith(entry["peer"])]
    best = max([figure["roof"], *(other["roof"] for other in siblings if other)])
    if known is None or found["threads"] != 1 or 100 * best >= SUSPECT * known:
        return ""
    return f"known to reach {known} % elsewhere"


def duration(ns):
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


def line(found, clock):
    """One shape in one line, for those who wait."""
    parts = []
    for entry in found["entries"]:
        figure = figures(found, entry, clock)
        if figure:
            parts.append(f"{entry['peer']} {duration(figure['median'])}")
        elif entry["refusal"].startswith(("wrong", "ended")):
            parts.append(f"{entry['peer']} {entry['refusal']}")
    best = best_ratio(found, clock)
    verdict = f"; {best[0]:.2f} times as fast as {best[1]}" if best else ""
    return f"{found['shape']['name']} {found['dtype']} {found['threads']}t: {', '.join(parts)}{verdict}"


def table(headers, rows):
    """Markdown, padded so that it reads well as it is."""
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths)] for row in [headers, *rows]]
    lines = ["| " + " | ".join(row) + " |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def rows_of(found, clock, notes):
    rows = []
    found_ratios = ratios(found, clock)
    for entry in found["entries"]:
        figure = figures(found, entry, clock)
        if not figure:
            continue
        mark = ""
        for note in (entry["note"], suspicion(found, entry, figure)):
            if note:
                mark += f" [{notes.setdefault(note, len(notes) + 1)}]"
        method = "" if entry["method"] == entry["peer"] else f" {entry['method']}"
        ratio = found_ratios.get(entry["peer"])
        rows.append(
            [
                "" if rows else found["shape"]["name"],
                entry["peer"] + method + mark,
                duration(figure["median"]),
                duration(figure["min"]),
                f"{figure['peak']:.0f} {peak_of(found)}",
                f"{100 * figure['share']:.1f} %",
                f"{100 * figure['roof']:.1f} %",
                f"{ratio:.2f}" if ratio else "",
                f"{entry['errors'][0]:.1e}",
            ]
        )
    return rows


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def summary(results, clock):
    """On how many shapes attune is faster, and by how much."""
    best = [(*found_best, found["shape"]["name"]) for found in results if (found_best := best_ratio(found, clock))]
    if not best:
        return "There was no peer to compare with.\n"
    behind = [f"{name} ({ratio:.2f}, {peer})" for ratio, peer, name in best if ratio < 1]
    text = f"Faster than the fastest peer on {len(best) - len(behind)} of {len(best)} shapes; "
    text += f"{geometric_mean([ratio for ratio, _, _ in best]):.2f} times as fast in the geometric mean."
    return text + (f" Slower on: {', '.join(behind)}.\n" if behind else "\n")


def refusals(run):
    """What a peer computed wrongly, or died of; that it has no such operator is no news."""
    seen = []
    for found in run["results"]:
        for entry in found["entries"]:
            for method, why in entry["tried"].items():
                text = f"* {entry['peer']} {method}, {found['shape']['name']} {found['dtype']}: {why}"
                if isinstance(why, str) and why.startswith(("wrong", "ended")) and text not in seen:
                    seen.append(text)
    return "\n".join(seen)


def busy(run):
    """The shares of the CPUs that other programs used before each case."""
    return [found["busy"] for found in run["results"]] or [0.0]


def others(run):
    shares = busy(run)
    return f"{100 * statistics.mean(shares):.0f} % on average, and {100 * max(shares):.0f} % at most"


def circumstances(run):
    machine, settings = run["machine"], run["settings"]
    text = f"{machine['cpu']}, {machine['cpus']} CPUs, of which other programs used {others(run)}, before a case; "
    text += f"{settings['repeats']} times {settings['rounds']} rounds (fewer where calls are long), "
    text += f"samples of at least {settings['sample_ms']:g} ms.\n"
    return text + f"{'; '.join(run['versions'].values())}.\n"


def markdown(run, clock):
    text = f"# attune compared with its peers, {run['date']}\n\n{circumstances(run)}"
    text += "Time on the clock.\n" if clock == "wall" else "Processor time.\n"
    headers = ["shape", "by", "median", "min", "peak", "of peak", "of roofline", "times as fast", "error"]
    notes = {}
    for threads in sorted({found["threads"] for found in run["results"]}):
        for dtype in ("f32", "bf16"):
            chosen = [f for f in run["results"] if (f["threads"], f["dtype"]) == (threads, dtype)]
            rows = [row for found in chosen for row in rows_of(found, clock, notes)]
            if rows:
                plural = "" if threads == 1 else "s"
                text += f"\n## {dtype}, {threads} thread{plural}\n\n{table(headers, rows)}\n{summary(chosen, clock)}"
    text += "".join(f"\n[{number}] {note}" for note, number in notes.items()) + ("\n" if notes else "")
    lost = refusals(run)
    return text + (f"\nLeft out:\n\n{lost}\n" if lost else "")
