"""How cost grows: the memory that calls occupy by their length, and tables of time and memory."""
import pathlib
import tempfile

import conductor
import report
import shapes

AXES = {"seq": "length", "heads": "heads", "batch": "batch", "threads": "threads"}
# Blocks of memory as they are freed go back to the system: what is counted afterwards is what is in use.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}


def resident(pid, field):
    """VmRSS, or its maximum VmHWM, in bytes."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().split("\n"):
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/status has no {field}")


def ask(driver, line):
    is_good, answer = driver.ask(line)
    if not is_good:
        raise RuntimeError(f"{driver.name}: {answer}")
    return answer


def occupied(driver, method, shape, dtype, folder):
    """Bytes that a call has in use at most, tensors included, beyond what the process has without any; and attune's
    workspace."""
    pid = driver.process.pid
    ask(driver, f"prepare method={method} {shape.words()} dtype={dtype} data={folder}")
    pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")  # the maximum begins anew
    ask(driver, "run 0 1")
    most = resident(pid, "VmHWM")
    workspace = int(ask(driver, "workspace")) if driver.name == "attune" else None
    ask(driver, "drop")
    return most - resident(pid, "VmRSS"), workspace


def curve(driver, chosen, scratch):
    """Of one driver, for the shapes of the run and the methods that it was fastest with."""
    points = []
    for number, (shape, dtype, method) in enumerate(chosen):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            conductor.Task(shape, dtype, pathlib.Path(folder), is_checked=False)
            if number == 0:  # what a library loads or sets up with its first call
                occupied(driver, method, shape, dtype, folder)
            most, workspace = occupied(driver, method, shape, dtype, folder)
        tensors = shape.bytes(dtype)
        points.append({"rows": shape.rows, "method": method, "bytes": most, "tensors": tensors, "workspace": workspace})
    return points


def measure_memory(options, run, cpus):
    """Memory by length, of every driver in a process of its own."""
    by_name = {shape.name: shape for shape, _ in shapes.growth(len(cpus))}
    found, _ = conductor.commands(options.build / "bench", "", 1, cpus[-1:])
    curves = {}
    for name, command in found.items():
        chosen = [
            (by_name[result["shape"]["name"]], result["dtype"], entry["method"])
            for result in run["results"]
            for entry in result["entries"]
            if result["shape"]["group"] == "seq" and entry["peer"] == name and entry["repeats"]
        ]
        if not chosen:
            continue
        driver = conductor.Driver(name, command, cpus[-1:], conductor.environment(1, cpus[-1:]) | MALLOC)
        try:
            curves[name] = curve(driver, chosen, options.scratch)
        except RuntimeError as error:
            print(f"no memory of {name}: {error}", flush=True)
        finally:
            driver.close()
    return curves


def size(count):
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{max(0, count):.0f} B"


def names_of(results):
    return list(dict.fromkeys(entry["peer"] for found in results for entry in found["entries"] if entry["repeats"]))


def time_table(results, clock):
    names, rows = names_of(results), []
    for found in results:
        figure = {entry["peer"]: report.figures(found, entry, clock) for entry in found["entries"]}
        cells = [report.duration(figure[name]["median"]) if figure.get(name) else "" for name in names]
        share = f"{100 * figure['attune']['share']:.0f} %" if figure.get("attune") else ""
        best = report.best_ratio(found, clock)
        number = found["shape"]["name"].rpartition("_")[2]
        rows.append([number, *cells, share, f"{best[0]:.2f} ({best[1]})" if best else ""])
    return report.table(["", *names, "attune, of peak", "ratio to the best"], rows)


def memory_table(curves):
    """Beside the tensors: what a call needs more."""
    lengths = [point["rows"] for point in curves["attune"]]
    rows = []
    for rows_of_q in lengths:
        points = {name: next((p for p in curve if p["rows"] == rows_of_q), None) for name, curve in curves.items()}
        cells = [size(p["bytes"] - p["tensors"]) if p else "" for p in points.values()]
        own = points["attune"]
        rows.append([str(rows_of_q), size(own["tensors"]), size(own["workspace"]), *cells])
    return report.table(["length", "tensors", "attune's workspace", *curves], rows)


def markdown(run, clock):
    text = f"# How cost grows, {run['date']}\n\n{report.circumstances(run)}"
    for axis, name in AXES.items():
        chosen = [found for found in run["results"] if found["shape"]["group"] == axis]
        if chosen:
            text += f"\n## Time by {name}\n\n{time_table(chosen, clock)}"
    if run.get("memory"):
        text += f"\n## Memory by length, beside the tensors\n\n{memory_table(run['memory'])}"
    return text
