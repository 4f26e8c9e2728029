"""Plots of a run: share of the peak by shape, and attune's speed by the best peer's."""
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as pyplot

import report

COLOURS = {
    "attune": "#c23b22",
    "torch": "#e39a3b",
    "onnxruntime": "#4c78a8",
    "onednn": "#6aa56b",
    "openblas": "#8d7fb5",
    "ggml": "#9a9a9a",
}


def title(threads, dtype):
    return f"{dtype}, {threads} thread{'' if threads == 1 else 's'}"


def shares(axes, chosen, clock):
    """Bars side by side; where memory is the bound, of the roofline."""
    peers = [name for name in COLOURS if any(e["peer"] == name and e["repeats"] for f in chosen for e in f["entries"])]
    width = 0.8 / len(peers)
    for number, peer in enumerate(peers):
        heights = []
        for found in chosen:
            entry = next((entry for entry in found["entries"] if entry["peer"] == peer), None)
            figure = report.figures(found, entry, clock) if entry else None
            heights.append(100 * figure["roof"] if figure else 0)
        places = [i + (number - (len(peers) - 1) / 2) * width for i in range(len(chosen))]
        axes.bar(places, heights, width, label=peer, color=COLOURS[peer])
    labels = [f["shape"]["name"] + ("\n(bandwidth)" if report.is_memory_bound(f) else "") for f in chosen]
    axes.set_xticks(range(len(chosen)), labels, rotation=60, ha="right", fontsize=8)
    axes.set_ylabel("share of the probed peak, or bandwidth, %")
    axes.axhline(100, color="black", linewidth=0.6)
    axes.grid(axis="y", linewidth=0.4)
    axes.legend(fontsize=8, ncols=len(peers))


def leads(axes, chosen, clock):
    best = [report.best_ratio(found, clock) for found in chosen]
    colours = [COLOURS.get(b[1], "#9a9a9a") if b else "#ffffff" for b in best]
    bars = axes.bar(range(len(chosen)), [b[0] if b else 0 for b in best], color=colours)
    axes.bar_label(bars, [f"{b[0]:.2f}\n{b[1]}" if b else "" for b in best], fontsize=7)
    axes.set_xticks(range(len(chosen)), [f["shape"]["name"] for f in chosen], rotation=60, ha="right", fontsize=8)
    axes.set_ylabel("time of the best peer / time of attune")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.margins(y=0.15)


def draw(run, folder, clock):
    """Writes them; their names."""
    written = []
    for threads in sorted({found["threads"] for found in run["results"]}):
        for dtype in ("f32", "bf16"):
            chosen = [f for f in run["results"] if (f["threads"], f["dtype"]) == (threads, dtype)]
            chosen = [f for f in chosen if any(report.figures(f, entry, clock) for entry in f["entries"])]
            if not chosen:
                continue
            for name, plot in (("share", shares), ("ratio", leads)):
                figure, axes = pyplot.subplots(figsize=(max(6, 0.75 * len(chosen) + 2), 5), layout="constrained")
                plot(axes, chosen, clock)
                axes.set_title(f"{title(threads, dtype)}: {run['machine']['cpu']}", fontsize=10)
                written.append(f"{name}-{dtype}-{threads}.svg")
                figure.savefig(folder / written[-1])
                pyplot.close(figure)
    return written
