"""Pictures of files that attune's commands wrote, by matplotlib (pip install './python[plot]').

    python3 -m attune.plot weights heads.npy -o heads.png          # attune run … --write weights=heads.npy
    python3 -m attune.plot sweep out.json -o sweep.svg             # attune sweep -o out.json …
    python3 -m attune.plot sweep out.json --x head_dim --y median_us -o time.svg
    python3 -m attune.plot bench bench.json -o share.svg           # attune bench --json … >bench.json
    python3 -m attune.plot cliffs cliffs.json -o cliffs.svg        # make cliffs

Each function takes the data of such a file and returns a matplotlib figure to change, save or show. None opens a
window. Bad input raises ValueError with one sentence.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

__all__ = ["weights", "sweep", "bench", "cliffs", "main"]

# Text stays text in SVG, and equal input gives an equal file.
STYLE: Dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "attune", "font.size": 8, "axes.grid": False}
MANY_KEYS = 32  # from here on few keys have most of the weight
MOST_LINES = 24
MEASURES = {
    "fraction_of_roofline": "share of the roofline",
    "fraction_of_peak": "share of the peak",
    "gflops": "GFLOP/s",
    "median_us": "µs a call",
    "min_us": "µs a call, the fastest",
    "spread": "spread of the samples, as a share of the median",
}


def _figure(width: float, height: float) -> Figure:
    matplotlib.rcParams.update(STYLE)
    return Figure(figsize=(width, height), layout="constrained")


def weights(
    values: Any,
    heads: Optional[Sequence[int]] = None,
    average: bool = False,
    batch: int = 0,
    labels: Optional[Sequence[str]] = None,
    labels_kv: Optional[Sequence[str]] = None,
    scale: Optional[str] = None,
    title: str = "",
) -> Figure:
    """A heat map for each head: rows are queries, columns keys, and hidden keys are grey.

    `values` is [[batch,] heads,] queries, keys: attention weights, in which 0 is a hidden key, or scores, which have
    negative numbers and -inf for hidden keys. `scale` is "linear" (the default up to 32 keys) or "sqrt", which shows
    small weights. `labels` name the queries, and the keys if there are as many; `labels_kv` name the keys.
    """
    array = np.asarray(values, dtype=np.float64)
    if not 2 <= array.ndim <= 4 or 0 in array.shape:
        raise ValueError(f"weights are [[batch,] heads,] queries, keys, and not of shape {list(array.shape)}")
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if not 0 <= batch < array.shape[0]:
        raise ValueError(f"batch is {batch}, but the last sequence is {array.shape[0] - 1}")
    chosen = list(range(array.shape[1])) if heads is None else list(heads)
    for head in chosen:
        if not 0 <= head < array.shape[1]:
            raise ValueError(f"there is no head {head}: they are 0 to {array.shape[1] - 1}")
    maps, names = array[batch, chosen], [f"head {head}" for head in chosen]
    rows, columns = maps.shape[1:]
    if average:
        maps, names = maps.mean(axis=0, keepdims=True), [f"mean of {len(chosen)} heads"]
    is_score = bool(np.isneginf(array).any() or (array < 0).any())
    scale = scale or ("sqrt" if columns > MANY_KEYS and not is_score else "linear")
    if scale not in ("linear", "sqrt"):
        raise ValueError(f"scale is linear or sqrt, not {scale!r}")
    if labels_kv is None and labels is not None and rows == columns:
        labels_kv = labels
    for given, count, what in ((labels, rows, "queries"), (labels_kv, columns, "keys")):
        if given is not None and len(given) != count:
            raise ValueError(f"there are {len(given)} labels for {count} {what}")
    hidden = np.isneginf(maps) if is_score else maps == 0
    shown = np.ma.array(maps if scale == "linear" else np.sqrt(np.abs(maps)), mask=hidden)
    across = int(np.ceil(np.sqrt(len(names))))
    down = -(-len(names) // across)
    figure = _figure(0.6 + 3.2 * across, 0.8 + 3.0 * down)
    panels = figure.subplots(down, across, squeeze=False)
    low = float(shown.min()) if is_score and shown.count() else 0.0
    high = float(shown.max()) if shown.count() else 1.0
    colours = matplotlib.colormaps["viridis"].with_extremes(bad="#d0d0d0")
    for axes in panels.flat[len(names) :]:
        axes.set_axis_off()
    for axes, picture, name in zip(panels.flat, shown, names):
        image = axes.imshow(picture, cmap=colours, vmin=low, vmax=high or 1.0, aspect="auto", interpolation="nearest")
        axes.set(title=name, xlabel="key", ylabel="query")
        if labels is not None:
            axes.set_yticks(range(rows), labels, fontsize=max(2, min(7, 180 / rows)))
        if labels_kv is not None:
            axes.set_xticks(range(columns), labels_kv, fontsize=max(2, min(7, 180 / columns)), rotation=90)
    what = "attention score" if is_score else "attention weight"
    figure.colorbar(image, ax=panels, label=what if scale == "linear" else f"square root of the {what}", shrink=0.8)
    if title:
        figure.suptitle(title)
    return figure


def _results(document: Dict[str, Any]) -> List[Dict[str, Any]]:
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or not results or not all("fields" in r for r in results):
        raise ValueError("this is no output of attune bench --json or attune sweep: it has no results with fields")
    return results


def _value(result: Dict[str, Any], name: str) -> Any:
    return result[name] if name in result else result["fields"].get(name)


def _varying(results: List[Dict[str, Any]]) -> List[str]:
    """Fields that vary, without those that are always as another one before them (seq_kv follows seq_q)."""
    names = list(dict.fromkeys(name for result in results for name in result["fields"]))
    columns = {name: tuple(repr(result["fields"].get(name)) for result in results) for name in names}
    varying = [name for name in names if len(set(columns[name])) > 1]
    return [name for i, name in enumerate(varying) if columns[name] not in [columns[n] for n in varying[:i]]]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _default_x(results: List[Dict[str, Any]], keys: List[str]) -> str:
    """The first key that is a number everywhere, and no flag; else the first one that varies."""
    for key in keys:
        values = [result["fields"].get(key) for result in results]
        if all(map(_is_number, values)) and set(values) - {0, 1}:
            return key
    if not keys:
        raise ValueError("there is nothing to plot against: the sweep has one problem only")
    return keys[0]


def sweep(document: Dict[str, Any], x: Optional[str] = None, y: str = "fraction_of_roofline") -> Figure:
    """A sweep: `y` against `x`, with a line for each combination of the other keys that vary.

    `x` is a field of the problems or a measure (default: the first field that varies and is a number), `y` a measure
    such as fraction_of_roofline, gflops or median_us. An axis whose numbers grow by factors is logarithmic.
    """
    results = _results(document)
    keys = _varying(results)
    x = x or _default_x(results, keys)
    for name, axis in ((x, "x"), (y, "y")):
        known = sorted({k for r in results for k in (*r["fields"], *(m for m in r if _is_number(r[m])))})
        if name not in known:
            raise ValueError(f"{axis} is {name!r}, which the results do not have; they have {', '.join(known)}")
    lines: Dict[str, List[Any]] = {}
    for result in results:
        others = [f"{key}={result['fields'].get(key)}" for key in keys if key not in (x, y)]
        if "header" in result:
            others.append(result["header"].get("machine", "?"))
        if _is_number(_value(result, y)):
            lines.setdefault(", ".join(others), []).append((_value(result, x), _value(result, y)))
    if len(lines) > MOST_LINES:
        raise ValueError(f"a plot has at most {MOST_LINES} lines, and the keys beside {x} make {len(lines)}")
    figure = _figure(6.4, 3.8)
    axes = figure.subplots()
    places = [place for points in lines.values() for place, _ in points]
    is_number = all(map(_is_number, places))
    names = list(dict.fromkeys(map(str, places)))
    for label, points in lines.items():
        points = sorted(points) if is_number else [(names.index(str(place)), value) for place, value in points]
        axes.plot(*zip(*points), marker="o", markersize=3, linewidth=1, label=label)
    if not is_number:
        axes.set_xticks(range(len(names)), names)
    elif len(set(places)) > 2 and min(places) > 0:
        steps = np.diff(sorted(set(places)))
        if (steps[1:] > 1.5 * steps[:-1]).all():
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted(set(places)), [f"{place:g}" for place in sorted(set(places))])
    axes.set(xlabel=x, ylabel=MEASURES.get(y, y))
    axes.set_ylim(0, 1.05 if y.startswith("fraction") else None)
    axes.grid(linewidth=0.3)
    if len(lines) > 1:
        axes.legend(fontsize=6, ncols=2)
    return figure


def bench(document: Dict[str, Any], y: str = "fraction_of_peak") -> Figure:
    """A bench: a bar for each problem, by default its share of the peak that was probed in the same run."""
    results = _results(document)
    if not any(_is_number(result.get(y)) for result in results):
        raise ValueError(f"no result has {y!r}")
    figure = _figure(6.4, 0.8 + 0.22 * len(results))
    axes = figure.subplots()
    values = [float(result[y]) if _is_number(result.get(y)) else 0.0 for result in results]
    axes.barh(range(len(results)), values, color="#c23b22", height=0.7)
    axes.set_yticks(range(len(results)), [result["problem"] for result in results], fontsize=6)
    axes.set_ylim(len(results) - 0.4, -0.6)
    axes.set_xlabel(MEASURES.get(y, y))
    header = document.get("header", {})
    machine = (header.get("cpu_description", ""), header.get("isa", ""), header.get("date", "")[:10])
    figure.suptitle(", ".join(filter(None, machine)), fontsize=8)
    if y.startswith("fraction"):
        axes.set_xlim(0, 1.05)
        axes.axvline(1, color="black", linewidth=0.6)
    axes.grid(axis="x", linewidth=0.3)
    return figure


def cliffs(run: Dict[str, Any], across: int = 4) -> Figure:
    """Walks along sizes (make cliffs): a panel of time against size for each, jumps marked."""
    if not isinstance(run, dict) or not run.get("walks"):
        raise ValueError("this is no output of make cliffs: it has no walks")
    down = -(-len(run["walks"]) // across)
    figure = _figure(3.1 * across, 2.1 * down)
    panels = figure.subplots(down, across, squeeze=False)
    for axes in panels.flat[len(run["walks"]) :]:
        axes.set_axis_off()
    for axes, walk in zip(panels.flat, run["walks"]):
        points = [(point["size"], min(point["us"])) for point in walk["points"] if point.get("us")]
        axes.plot(*zip(*points), color="#4c78a8", linewidth=1)
        marks = [(e["to"], e["us"][1]) for e in run.get("exceptions", []) if e["walk"] == walk["name"]]
        if marks:
            axes.plot(*zip(*marks), "o", color="#c23b22", markersize=4, fillstyle="none")
        axes.set_title(walk["name"], fontsize=7)
        axes.set_xlabel(walk["grows"], fontsize=6)
        axes.set_ylim(0)
        axes.tick_params(labelsize=6)
        axes.grid(linewidth=0.3)
    panels[0][0].set_ylabel("µs a call", fontsize=6)
    return figure


# ---- The command ----


def _heads(text: str) -> List[int]:
    """0,3-5 as [0, 3, 4, 5]."""
    found: List[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise argparse.ArgumentTypeError(f"heads are numbers and ranges such as 0,3-5, not {text!r}")
        found += range(int(first), int(last or first) + 1)
    return found


def _labels(path: str) -> List[str]:
    return Path(path).read_text().splitlines()


def _picture(path: str) -> str:
    if Path(path).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise argparse.ArgumentTypeError(f"the picture's name ends in .png, .svg or .pdf, not as {path!r} does")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attune.plot", description="Draws what attune's commands wrote.")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="weights|sweep|bench|cliffs")

    def kind(name: str, what: str, file: str) -> argparse.ArgumentParser:
        one = kinds.add_parser(name, help=what, description=what)
        one.add_argument("file", help=file)
        one.add_argument("-o", "--output", type=_picture, required=True, help="the picture: F.png, F.svg or F.pdf")
        one.add_argument("--dpi", type=float, default=150, help="of a PNG (default 150)")
        return one

    one = kind("weights", "attention weights or scores as heat maps", ".npy of attune run --write weights=F.npy")
    one.add_argument("--heads", type=_heads, help="which heads, such as 0,3-5 (default: all)")
    one.add_argument("--average", action="store_true", help="the mean of the heads")
    one.add_argument("--batch", type=int, default=0, help="which sequence (default 0)")
    one.add_argument("--labels", type=_labels, help="a file with a line for each query")
    one.add_argument("--labels-kv", type=_labels, help="the same for keys, if they are other tokens")
    one.add_argument("--scale", choices=("linear", "sqrt"), help="sqrt shows small weights (default beyond 32 keys)")
    one.add_argument("--title", default="")
    one = kind("sweep", "a measure against a field", "JSON of attune sweep")
    one.add_argument("--x", help="a field or a measure (default: the first field that varies and is a number)")
    one.add_argument("--y", default="fraction_of_roofline", help=f"a measure: {', '.join(MEASURES)}")
    one = kind("bench", "a bar for each problem", "JSON of attune bench --json")
    one.add_argument("--y", default="fraction_of_peak", help="a measure, as for sweep")
    kind("cliffs", "time against size", "JSON of make cliffs")
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    options = vars(_parser().parse_args(arguments))
    name, path, output, dpi = (options.pop(key) for key in ("kind", "file", "output", "dpi"))
    try:
        data = np.load(path) if name == "weights" else json.loads(Path(path).read_text())
        kinds: Dict[str, Callable[..., Figure]] = dict(weights=weights, sweep=sweep, bench=bench, cliffs=cliffs)
        kinds[name](data, **options).savefig(
            output, dpi=dpi, metadata={"Date": None} if output.lower().endswith(".svg") else None
        )
    except (OSError, ValueError) as error:
        print(f"attune.plot: {path}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
