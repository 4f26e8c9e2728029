"""A run into the documentation: short tables between two lines of performance.md, and the plots beside it."""
import textwrap

import growth
import report
import shapes

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
PAGE = "performance.md"


def reached(found, entry, clock):
    """Share of the bound, marked where that is the bandwidth."""
    figure = report.figures(found, entry, clock)
    if not figure:
        return ""
    return f"{100 * figure['roof']:.0f} %" + (" ᵇ" if report.is_memory_bound(found) else "")


def goal_of(found, figure):
    """The goal of a shape, and whether it is met."""
    goal = shapes.goal(found["shape"], found["dtype"])
    if goal is None:
        return ""
    kind, value = goal
    is_met = figure["median"] <= value if kind == "ns" else 100 * figure["roof"] >= value
    return (report.duration(value) if kind == "ns" else f"{value} %") + (" ✓" if is_met else "")


def row(found, names, clock):
    entries = {entry["peer"]: entry for entry in found["entries"]}
    ours = entries.get("attune")
    figure = report.figures(found, ours, clock) if ours else None
    best = report.best_ratio(found, clock)
    cells = [f"`{found['shape']['name']}`"]
    if figure:
        cells += [reached(found, ours, clock), goal_of(found, figure), report.duration(figure["median"])]
    else:
        cells += [""] * 3
    cells += [report.duration(figure["min"]) if figure else ""]
    cells += [reached(found, entries[name], clock) if name in entries else "" for name in names]
    return [*cells, f"{best[0]:.2f} ({best[1]})" if best else ""]


def below(results, clock):
    """Peers whose settings are to be looked at."""
    found = []
    for result in results:
        for entry in result["entries"]:
            figure = report.figures(result, entry, clock)
            why = report.suspicion(result, entry, figure) if figure else ""
            if why:
                share = f"{entry['peer']} {100 * figure['roof']:.0f} %"
                found.append(f"{result['shape']['name']} ({share}, {why})")
    return f"\nPeers below nine tenths of what they are known to reach: {', '.join(found)}.\n" if found else ""


def tables(run, clock):
    text = ""
    for threads in sorted({found["threads"] for found in run["results"]}):
        for dtype in ("f32", "bf16"):
            chosen = [f for f in run["results"] if (f["threads"], f["dtype"]) == (threads, dtype)]
            chosen = [f for f in chosen if any(entry["repeats"] for entry in f["entries"])]
            if not chosen:
                continue
            names = [name for name in growth.names_of(chosen) if name != "attune"]
            headers = ["shape", "attune", "goal", "median", "minimum", *names, "ratio to the best"]
            peaks = sorted({report.peak_of(found) for found in chosen})
            plural = "" if threads == 1 else "s"
            text += f"\n### {dtype}, {threads} thread{plural}, of the {' and '.join(peaks)} peak\n\n"
            text += report.table(headers, [row(found, names, clock) for found in chosen])
            text += f"\n{report.summary(chosen, clock)}{below(chosen, clock)}"
    return text


def overall(run, clock):
    """Over both dtypes, by number of threads: the shapes that are the same in all runs, without caches of other
    dtypes."""
    text = ""
    for threads in sorted({found["threads"] for found in run["results"]}):
        chosen = [f for f in run["results"] if f["threads"] == threads and f["shape"]["group"] != "cache"]
        text += f"{threads} thread{'' if threads == 1 else 's'}, f32 and bf16: {report.summary(chosen, clock)}\n"
    return text


def page(run, grown, pictures, clock):
    text = f"{report.circumstances(run)}Measured {run['date'][:10]}; "
    text += f"{'time on the clock' if clock == 'wall' else 'processor time'}. Shares are of the peak, with ᵇ of the "
    text += "bandwidth, which is the bound there; both are probed beside every sample. The ratio is the time of "
    text += "the best peer by "
    text += "attune's in the same rounds. ✓: the goal is met.\n\n"
    text += overall(run, clock) + tables(run, clock)
    text += "".join(f"\n![{name.removesuffix('.svg')}]({name})\n" for name in pictures)
    if grown:
        body = growth.markdown(grown, clock).partition("\n")[2].replace("\n## ", "\n#### ")
        text += f"\n### How cost grows\n{body}"
    return text


def folded(text):
    """Paragraphs in lines of 120 columns; tables, headings and pictures stay as they are."""
    wrapper = textwrap.TextWrapper(120, break_long_words=False, break_on_hyphens=False)
    return "\n".join(line if line[:1] in "|#!" else wrapper.fill(line) for line in text.split("\n"))


def put(path, text):
    """Between the two lines; what was there goes."""
    old = path.read_text()
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no lines '{BEGIN}' and '{END}', between which the tables go")
    path.write_text(f"{head}{BEGIN}\n\n{folded(text)}\n{END}{tail}")


def publish(results, docs, load, clock):
    """What was written, in words."""
    run = load(results / "bench.json")
    grown = load(results / "growth.json") if (results / "growth.json").exists() else None
    pictures = []
    try:
        import plots
    except ImportError:
        pass
    else:
        for one in filter(None, (run, grown)):
            pictures += plots.draw(one, docs, clock, "bench-")
    put(docs / PAGE, page(run, grown, pictures, clock))
    return f"written to {docs}: {', '.join([PAGE, *pictures])}"
