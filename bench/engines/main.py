"""attune in PyTorch, transformers, ONNX Runtime and JAX beside the same without attune: docs/engines.md has the tables.

Every row compares in one process, in turns, and names the median of the rounds' ratios (stock / attune: above 1 attune
is faster). Groups of rows have processes of their own. Prints Markdown, and writes all samples as JSON.
"""

import argparse
import datetime
import importlib
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import machine  # noqa: E402
import report  # noqa: E402
from engine import measure, ratio  # noqa: E402

GROUPS = {
    "sdpa": "Attention alone",
    "encoders": "Encoders and layers",
    "decoders": "A decoder",
    "c_engine": "An engine in C",
    "ort": "ONNX Runtime",
    "xla": "JAX",
    "process": "The process",
}
FLOOR = 0.97  # of stock's speed, in anything measured


def rows_of(group, threads):
    """The rows of a group, once its engine works on so many threads."""
    module = importlib.import_module(group)
    if hasattr(module, "prepare"):
        module.prepare(threads)
    else:
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
    return module.rows() if hasattr(module, "rows") else module.ROWS


def work(group, threads, options):
    """In a process of its own: measures the rows, each printed as a line of JSON when it is done."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    for row in rows_of(group, threads):
        if threads in row.threads and all(word in row.name for word in options.rows):
            print(json.dumps(measure(row, threads, options.seconds)), file=answers, flush=True)


def run_group(group, threads, options, cache):
    """The rows of a group. A process that dies loses those that it has not measured."""
    command = [sys.executable, __file__, f"--group={group}", f"--threads={threads}", f"--seconds={options.seconds}"]
    command += options.rows
    settings = os.environ | {"OMP_NUM_THREADS": str(threads), "ATTUNE_CACHE_DIR": cache}
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            found = {"group": group} | json.loads(line)
            print(one_line(found), file=sys.stderr, flush=True)
            yield found
    if process.returncode:
        problem = f"the process ended with status {process.returncode}"
        yield {"group": group, "row": "all other rows", "threads": threads, "goal": None, "problem": problem}


def goal_text(found):
    goal = found["goal"]
    return f"≥ {goal:.2f}" if isinstance(goal, (int, float)) else goal or ""


def verdict(found):
    """The figure of a row, with its judgement against the goal."""
    if "problem" in found:
        return found["problem"]
    if "value" in found:
        return found["value"] + ("" if found.get("is_good", True) else " ✗")
    goal = found["goal"] if isinstance(found["goal"], (int, float)) else FLOOR
    value = round(ratio(found), 2)
    return f"{value:.2f}" + ("" if value >= goal else " ✗")


def times(found):
    if "stock" not in found:
        return "", ""
    return tuple(report.duration(statistics.median(found[name])) for name in ("stock", "attune"))


def one_line(found):
    stock, ours = times(found)
    beside = f" (stock {stock}, attune {ours})" if stock else ""
    return f"{found['row']}, {found['threads']}t: {verdict(found)}{beside}"


def markdown(run):
    """The tables of docs/engines.md."""
    text = [f"{run['machine']}, {run['cpus']} CPUs; {', '.join(run['versions'])}; {run['date'][:10]}.\n"]
    for group, title in GROUPS.items():
        names = {}
        for found in run["results"]:
            if found["group"] == group:
                names.setdefault(found["row"], {})[found["threads"]] = found
        if not names:
            continue
        threads = sorted({count for found in names.values() for count in found})
        if group == "process":
            headers = ["row", "goal", "value"]
            lines = [[name, goal_text(found), verdict(found)] for name, by in names.items() for found in by.values()]
        else:
            headers = ["row", "goal"]
            for count in threads:
                headers += [f"ratio, {count} t", f"stock, {count} t", f"attune, {count} t"]
            lines = []
            for name, by in names.items():
                line = [name, goal_text(next(iter(by.values())))]
                for count in threads:
                    line += [verdict(by[count]), *times(by[count])] if count in by else ["", "", ""]
                lines.append(line)
        text.append(f"**{title}**\n\n{report.table(headers, lines)}")
    return "\n".join(text)


def versions():
    """Without loading anything: of Python and of the installed engines."""
    from importlib.metadata import PackageNotFoundError, version

    found = [f"Python {platform.python_version()}"]
    for name in ("torch", "transformers", "onnxruntime", "jax", "numpy"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            pass
    return found


def write(folder, run):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("engines.json", json.dumps(run, indent=1)), ("engines.md", markdown(run))):
        (folder / f"{name}.tmp").write_text(text)
        (folder / f"{name}.tmp").replace(folder / name)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", default="build", help="the build directory (build)")
    parser.add_argument("--out", help="folder of the results (BUILD/engines/results)")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"groups of rows ({','.join(GROUPS)})")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (1,2)")
    parser.add_argument("--seconds", type=float, default=5, help="for each row and number of threads (5)")
    parser.add_argument("--print", metavar="JSON", help="print the tables of an earlier run, and measure nothing")
    parser.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)
    parser.add_argument("rows", nargs="*", metavar="WORD", help="only rows whose names have all of these words")
    options = parser.parse_args()
    for group in options.only.split(","):
        if group not in GROUPS:
            parser.error(f"there is no group '{group}'; there are: {', '.join(GROUPS)}")
    return options


def main():
    options = parse()
    if options.group:
        work(options.group, int(options.threads), options)
        return
    if options.print:
        print(markdown(json.loads(pathlib.Path(options.print).read_text())))
        return
    run = {
        "schema": 1,
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "machine": machine.cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "versions": versions(),
        "settings": {"seconds": options.seconds, "threads": options.threads},
        "results": [],
    }
    folder = pathlib.Path(options.out or f"{options.build}/engines/results")
    with tempfile.TemporaryDirectory() as cache:
        for group in options.only.split(","):
            for threads in options.threads.split(","):
                for found in run_group(group, int(threads), options, cache):
                    run["results"].append(found)
                    write(folder, run)
    print(markdown(run))
    print(f"All samples are in {folder}/engines.json.")


if __name__ == "__main__":
    main()
