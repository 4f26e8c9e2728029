"""Plots of a run: share of the peak by shape, and how cost grows."""
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as pyplot

import growth
import report
import shapes

# Text stays text, which is small and can be searched; equal runs give equal files.
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "attune", "font.size": 8}

COLOURS = {
    "attune": "#c23b22",
    "torch": "#e39a3b",
    "onnxruntime": "#4c78a8",
    "openvino": "#b07aa1",
    "zentorch": "#9c755f",
    "onednn": "#6aa56b",
    "onednn_omp": "#2f6b46",
    "openblas": "#8d7fb5",
    "ggml": "#9a9a9a",
}
MARKERS = {"attune": "D", "torch": "o", "zentorch": "X", "onnxruntime": "s", "openvino": "P", "onednn": "^",
           "onednn_omp": "<", "openblas": "v", "ggml": "x"}
ROW = 0.19  # inches of a shape


def plural(threads):
    return f"{threads} thread{'' if threads == 1 else 's'}"


def label(found):
    return shapes.title(found["shape"]) + (" ᵇ" if report.is_memory_bound(found) else "")


def shares(axes, chosen, clock):
    """A line for each shape, a mark for each peer; where memory is the bound, of the roofline."""
    for name, colour in COLOURS.items():
        points = []
        for place, found in enumerate(chosen):
            entry = next((entry for entry in found["entries"] if entry["peer"] == name), None)
            figure = report.figures(found, entry, clock) if entry else None
            if figure:
                points.append((100 * figure["roof"], place))
        if points:
            style = {"zorder": 3, "s": 26} if name == "attune" else {"zorder": 2, "s": 18}
            axes.scatter(*zip(*points), marker=MARKERS[name], color=colour, label=report.NAMES.get(name, name),
                         **style)
    axes.set_xlim(0, 105)
    axes.axvline(100, color="black", linewidth=0.6)
    axes.set_xlabel("share of the peak (ᵇ: of the bandwidth), %")
    axes.grid(linewidth=0.4)


def by_shape(run, dtype, clock):
    """A panel for each number of threads. None without results of that dtype."""
    measured = [f for f in run["results"] if f["dtype"] == dtype]
    measured = [f for f in measured if any(report.figures(f, entry, clock) for entry in f["entries"])]
    counts = sorted({found["threads"] for found in measured})
    if not counts:
        return None
    panels = [[found for found in measured if found["threads"] == count] for count in counts]
    height = 1.8 + ROW * max(len(chosen) for chosen in panels)
    figure, all_axes = pyplot.subplots(1, len(counts), figsize=(2.2 + 3.8 * len(counts), height), squeeze=False)
    for axes, chosen, count in zip(all_axes[0], panels, counts):
        shares(axes, chosen, clock)
        axes.set_title(f"{dtype}, {plural(count)}")
        names = [label(found) for found in chosen] if count == counts[0] else []
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set_ylim(len(chosen) - 0.4, -0.6)
    handles, names = all_axes[0][0].get_legend_handles_labels()
    if names:
        figure.legend(handles, names, ncols=4 * len(counts), loc="outside upper center", frameon=False)
    return figure


def lines(axes, points):
    for name, colour in COLOURS.items():
        if points.get(name):
            axes.plot(*zip(*points[name]), marker=MARKERS[name], color=colour, label=name, linewidth=1, markersize=4)


def growth_panel(axes, run, axis, clock):
    points = {}
    for found in run["results"]:
        if found["shape"]["group"] == axis:
            for entry in found["entries"]:
                figure = report.figures(found, entry, clock)
                if figure:
                    number = int(found["shape"]["name"].rpartition("_")[2])
                    points.setdefault(entry["peer"], []).append((number, figure["median"] / 1e6))
    lines(axes, points)
    axes.set(xscale="log", yscale="log", xlabel=growth.AXES[axis], ylabel="ms a call")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def memory_panel(axes, curves):
    """What a call has in use beside its tensors, which are drawn too."""
    beside = {name: [(p["rows"], max(p["bytes"] - p["tensors"], 4096) / 1e6) for p in c] for name, c in curves.items()}
    lines(axes, beside)
    own = curves["attune"]
    axes.plot([p["rows"] for p in own], [p["tensors"] / 1e6 for p in own], "k:", linewidth=1, label="q, k, v and out")
    axes.plot(
        [p["rows"] for p in own],
        [max(p["workspace"], 1) / 1e6 for p in own],
        "--",
        color=COLOURS["attune"],
        linewidth=1,
        label="attune's workspace",
    )
    axes.set(yscale="log", xlabel="length", ylabel="MB in use beside the tensors")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def growth_figure(run, clock):
    figure, grid = pyplot.subplots(2, 3, figsize=(11, 6.4))
    for axes, axis in zip(grid.flat, growth.AXES):
        growth_panel(axes, run, axis, clock)
        axes.grid(linewidth=0.4)
    titles = ("2 heads of 64, one thread", "512 rows", "4 heads, 128 rows", "16 heads, 1024 rows")
    for axes, title in zip(grid.flat, titles):
        axes.set_title(title)
    if run.get("memory"):
        memory_panel(grid[1][1], run["memory"])
        grid[1][1].grid(linewidth=0.4)
        grid[1][1].set_title("memory: 2 heads of 64, one thread")
    found = {}
    for axes in grid.flat:
        handles, names = axes.get_legend_handles_labels()
        found = dict(zip(names, handles)) | found
    grid[1][2].axis("off")
    grid[1][2].legend(found.values(), found.keys(), loc="center")
    return figure


def figures(run, clock):
    """By the names of their files."""
    if run["settings"].get("growth"):
        return {"growth.svg": growth_figure(run, clock)}
    found = {}
    for dtype in ("f32", "bf16"):
        figure = by_shape(run, dtype, clock)
        if figure:
            found[f"{dtype}.svg"] = figure
    return found


def draw(run, folder, clock, prefix="share-"):
    """Writes them; the names of their files."""
    written = []
    for name, figure in figures(run, clock).items():
        figure.set_layout_engine("constrained")
        figure.savefig(folder / (prefix + name), metadata={"Date": None})
        pyplot.close(figure)
        written.append(prefix + name)
    return written
