"""Two runs side by side: what got faster or slower, with confidence intervals.

What is compared is the cost of a call, its time multiplied by the peak probed around it: so a machine that runs slower
today slows both. (Where the memory is the bound, the bandwidth takes the peak's place.) Two runs have no samples in
pairs; the ratio of their median costs gets an interval by a bootstrap of two levels: preparations are drawn with
replacement, and of each its rounds, because samples of one preparation have their pages in common, and are more alike
than those of two. From 4,000 draws the interval takes the middle 99 %: a run has some fifty entries, of which 95 % would
call two or three changed that are not.
"""
import random
import statistics

import report

DRAWS = 4000
CONFIDENCE = 0.99
LEAST = 0.01  # less than that is called the same, whatever the interval says


def key(found, entry):
    return found["shape"]["name"], found["dtype"], found["threads"], entry["peer"]


def costs(found, entry, clock):
    """By preparation and round."""
    is_memory_bound = report.is_memory_bound(found)
    bandwidth = statistics.median(found["bandwidths"])
    speed = (lambda s: bandwidth) if is_memory_bound else (lambda s: s["peaks"][report.peak_of(found)])
    return [[s[report.CLOCKS[clock]] * speed(s) for s in repeat] for repeat in entry["repeats"] if repeat]


def collect(run, clock):
    return {
        key(found, entry): costs(found, entry, clock)
        for found in run["results"]
        for entry in found["entries"]
        if report.figures(found, entry, clock)
    }


def draw(groups, rng):
    """The median of one resample."""
    picked = rng.choices(groups, k=len(groups))
    return statistics.median([value for group in picked for value in rng.choices(group, k=len(group))])


def interval(old, new, seed=1):
    """Old cost by new cost (above 1: faster now), and the ends of its interval."""
    rng = random.Random(seed)
    flat = [statistics.median([value for group in groups for value in group]) for groups in (old, new)]
    drawn = sorted(draw(old, rng) / draw(new, rng) for _ in range(DRAWS))
    tail = int(DRAWS * (1 - CONFIDENCE) / 2)
    return flat[0] / flat[1], drawn[tail], drawn[-1 - tail]


def verdict(ratio, low, high):
    if low > 1 and ratio > 1 + LEAST:
        return "faster"
    if high < 1 and ratio < 1 - LEAST:
        return "slower"
    return "the same" if high - low < 0.1 else "not to be told"


def text(old, new, clock):
    olds, news = collect(old, clock), collect(new, clock)
    rows = []
    for what in [what for what in news if what in olds]:
        ratio, low, high = interval(olds[what], news[what])
        name, dtype, threads, peer = what
        rows.append([name, f"{dtype} {threads}t", peer, f"{ratio:.3f}", f"{low:.3f}–{high:.3f}", verdict(ratio, low, high)])
    lines = [f"# Since {old['date']}: speed by then's, {100 * CONFIDENCE:g} % intervals\n"]
    if not rows:
        return lines[0] + "\nThe two runs have no shape in common.\n"
    lines.append(report.table(["shape", "", "by", "speed", "interval", ""], rows))
    for peer in dict.fromkeys(row[2] for row in rows):
        counts = [sum(row[2] == peer and row[5] == word for row in rows) for word in ("faster", "slower")]
        lines.append(f"{peer}: {counts[0]} faster, {counts[1]} slower, of {sum(row[2] == peer for row in rows)}")
    for run, other, word in ((olds, news, "then"), (news, olds, "now")):
        alone = sum(what not in other for what in run)
        if alone:
            lines.append(f"{alone} entries only {word}")
    return "\n".join(lines) + "\n"
