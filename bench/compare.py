"""Two runs side by side: what got faster or slower, with confidence intervals.

What is compared is the cost of a call, its time multiplied by the peak probed around it: so a machine that runs slower
today slows both. (Where the memory is the bound, the bandwidth takes the peak's place.) The peak does not see all that
neighbours do, caches and memory least of all; where both runs have peers in common (by version and method), attune has
a second line, in which its cost is its time by the geometric mean of theirs in the same round. What slows all alike
drops out of that; it is the line to go by.

Two runs have no samples in pairs. The ratio of their median costs gets an interval by a bootstrap of two levels:
preparations are drawn with replacement, and of each its rounds, because samples of one preparation have their pages in
common and are more alike than those of two. Of few preparations such draws vary too little, by m / (m - 1) in their
variance; the logarithms of the draws are spread accordingly. From 4,000 draws the interval takes the middle 99 %: a run
has some fifty entries, of which 95 % would call two or three changed that are not. Of two runs of the same program, on
a machine with other work, medians differed by up to 6 %, and none of 20 lines was called faster or slower.
"""
import math
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


def peers_of(run, found):
    """What the peers are that were measured: version and method by name."""
    kept = (entry for entry in found["entries"] if entry["repeats"] and entry["peer"] != "attune")
    return {entry["peer"]: (run["versions"].get(entry["peer"]), entry["method"]) for entry in kept}


def costs_by_peers(found, peers, clock):
    """attune's times by the geometric means of the peers' in the same rounds."""
    times = {
        entry["peer"]: [{s["round"]: s[report.CLOCKS[clock]] for s in repeat} for repeat in entry["repeats"]]
        for entry in found["entries"]
    }
    groups = []
    for number, ours in enumerate(times["attune"]):
        theirs = [times[peer][number] for peer in peers if number < len(times[peer])]
        rounds = [i for i in ours if theirs and all(i in other for other in theirs)]
        groups.append([ours[i] / report.geometric_mean([other[i] for other in theirs]) for i in rounds])
    return [group for group in groups if group]


def collect(run, clock):
    return {
        key(found, entry): costs(found, entry, clock)
        for found in run["results"]
        for entry in found["entries"]
        if report.figures(found, entry, clock)
    }


def collect_by_peers(old, new, clock):
    """The same of attune by the peers that both runs have: of the old run, of the new one."""
    olds, news = {}, {}
    before = {key(found, {"peer": "attune"}): found for found in old["results"]}
    for found in new["results"]:
        what = key(found, {"peer": "attune"})
        if what not in before:
            continue
        then, now = peers_of(old, before[what]), peers_of(new, found)
        common = sorted(peer for peer in now if then.get(peer) == now[peer])
        made = [costs_by_peers(f, common, clock) if common else [] for f in (before[what], found)]
        if all(made):
            line = (*what[:3], "attune by peers")
            olds[line], news[line] = made
    return olds, news


def draw(groups, rng):
    """The median of one resample."""
    picked = rng.choices(groups, k=len(groups))
    return statistics.median([value for group in picked for value in rng.choices(group, k=len(group))])


def interval(old, new, seed=1):
    """Old cost by new cost (above 1: faster now), and the ends of its interval."""
    rng = random.Random(seed)
    flat = [statistics.median([value for group in groups for value in group]) for groups in (old, new)]
    ratio, least = flat[0] / flat[1], max(2, min(len(old), len(new)))
    widening = math.sqrt(least / (least - 1))
    drawn = sorted(draw(old, rng) / draw(new, rng) for _ in range(DRAWS))
    tail = int(DRAWS * (1 - CONFIDENCE) / 2)
    return ratio, *(ratio * (end / ratio) ** widening for end in (drawn[tail], drawn[-1 - tail]))


def verdict(ratio, low, high):
    if low > 1 and ratio > 1 + LEAST:
        return "faster"
    if high < 1 and ratio < 1 - LEAST:
        return "slower"
    return "the same" if high - low < 0.1 else "not to be told"


def text(old, new, clock):
    olds, news = collect(old, clock), collect(new, clock)
    for run, more in zip((olds, news), collect_by_peers(old, new, clock)):
        run |= more
    rows = []
    places = {found: i for i, found in enumerate(dict.fromkeys(what[:3] for what in news))}
    for what in sorted((what for what in news if what in olds), key=lambda what: (places[what[:3]], what[3])):
        ratio, low, high = interval(olds[what], news[what])
        name, dtype, threads, peer = what
        figures = [f"{ratio:.3f}", f"{low:.3f}–{high:.3f}", verdict(ratio, low, high)]
        rows.append([name, f"{dtype} {threads}t", peer, *figures])
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
