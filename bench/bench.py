#!/usr/bin/env python3
"""Measures attune beside the peers that are installed: one run, everything interleaved, every result checked first.

See docs/bench.md. `make bench` and `make bench-full` call it; --compare sets two runs side by side.
"""
import argparse
import datetime
import fnmatch
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time

import compare
import conductor
import growth
import machine
import publish
import report
import shapes

SCHEMA = 2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"), help="where attune was built")
    parser.add_argument("--output", type=pathlib.Path, help="folder of the results (BUILD/bench/results)")
    parser.add_argument("--full", action="store_true", help="all shapes")
    parser.add_argument("--growth", action="store_true",
                        help="instead: how cost grows with length, heads, batch, threads")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="shapes by name, e.g. 'decode_*'")
    parser.add_argument("--shape", action="append", default=[], metavar="KEY=N,…", help="a shape of your own")
    parser.add_argument("--peers", help="drivers by name, separated by commas (all that are installed)")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", help="numbers of threads, separated by commas (1 and all CPUs)")
    parser.add_argument("--rounds", type=int, default=5, help="samples of one preparation")
    parser.add_argument("--repeats", type=int, help="how often all is prepared anew (3, growth 1)")
    parser.add_argument("--limit", type=float, default=8, help="seconds after which a shape has had enough; 0: none")
    parser.add_argument("--budget", type=float, default=0, help="seconds after which no shape is begun; 0: none")
    parser.add_argument("--calm", type=float, default=0, help="seconds to wait before a shape for CPUs without work")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder of the results")
    parser.add_argument("--sample-ms", type=float, default=20, help="least length of one sample")
    parser.add_argument("--clock", choices=conductor.CLOCKS, default="wall",
                        help="cpu: processor time, on busy machines")
    parser.add_argument("--compare", type=pathlib.Path, metavar="OLD.json", help="say what got faster or slower since")
    parser.add_argument("--results", type=pathlib.Path, metavar="NEW.json", help="measure nothing: show these")
    parser.add_argument("--publish", type=pathlib.Path, metavar="DOCS",
                        help="measure nothing: write DOCS/performance.md and its pictures")
    options = parser.parse_args()
    if options.repeats is None:
        options.repeats = 1 if options.growth else 3
    if options.rounds < 1 or options.repeats < 1 or not options.sample_ms > 0:
        parser.error("rounds, repeats and sample-ms must be positive")
    if options.limit < 0 or options.budget < 0:
        parser.error("limit and budget must not be negative")
    return options


def choose_shapes(options):
    chosen = [shapes.parse(text) for text in options.shape]
    if options.only:
        for pattern in options.only:
            found = [shape for shape in shapes.SHAPES if fnmatch.fnmatch(shape.name, pattern)]
            if not found:
                raise ValueError(f"no shape is called '{pattern}'")
            chosen += [shape for shape in found if shape not in chosen]
    elif not options.shape:
        chosen = [shape for shape in shapes.SHAPES if options.full or shape.is_short]
    return chosen


def choose_threads(options, cpus):
    counts = [int(word) for word in options.threads.split(",")] if options.threads else sorted({1, len(cpus)})
    if not all(1 <= count <= len(cpus) for count in counts):
        raise ValueError(f"threads must be from 1 to {len(cpus)}, the CPUs of this process")
    return counts


def machine_facts():
    return {"cpu": machine.cpu_name(), "kernel": platform.release(), "cpus": os.cpu_count()}


def isa_of(version):
    """From "attune 0.1.0 (avx512, LLVM 19.1.7)"."""
    return version.partition("(")[2].partition(",")[0]


class Session:
    """The processes for one number of threads."""

    def __init__(self, options, threads, cpus):
        # From the last down: the first CPU is where most interrupts go.
        self.threads, self.cpus = threads, cpus[-threads:]
        surroundings = conductor.environment(threads, self.cpus)
        found, _ = conductor.commands(options.build / "bench", "", threads, self.cpus)
        names = options.peers.split(",") if options.peers else list(found)
        missing = [name for name in names if name not in found]
        if missing:
            raise ValueError(f"not installed: {', '.join(missing)}")
        self.drivers = []
        for name in ["attune"] + [name for name in names if name != "attune"]:
            try:
                self.drivers.append(conductor.Driver(name, found[name], self.cpus, surroundings))
            except RuntimeError as error:
                if name == "attune":
                    raise
                print(f"left out: {error}", flush=True)
        isa = isa_of(self.drivers[0].version)
        _, command = conductor.commands(options.build / "bench", isa, threads, self.cpus)
        self.probe = conductor.Probe(conductor.Driver("probe", command, self.cpus, surroundings))

    def versions(self):
        return {driver.name: driver.version for driver in self.drivers}

    def close(self):
        for driver in [*self.drivers, self.probe.driver]:
            driver.close()


def jobs(options, cpus):
    """What is to be measured, in this order: shape, dtype, threads."""
    dtypes = options.dtypes.split(",")
    if options.growth:
        chosen = choose_threads(options, cpus) if options.threads else None
        found = [(shape, threads) for shape, threads in shapes.growth(len(cpus)) if not chosen or threads in chosen]
        if options.only:
            found = [job for job in found if any(fnmatch.fnmatch(job[0].name, pattern) for pattern in options.only)]
        counts = sorted({threads for _, threads in found})
        return [(shape, dtypes[0], count) for count in counts for shape, threads in found if threads == count]
    chosen, counts = choose_shapes(options), choose_threads(options, cpus)
    return [(shape, dtype, count) for count in counts for shape in chosen for dtype in shape.dtypes(dtypes)]


def commit():
    """Of the sources, with a + where they have been changed since; "" outside of a clone."""
    here = pathlib.Path(__file__).resolve().parent
    command = ["git", "-C", here, "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def busy_share(seconds):
    """How much of the CPUs other processes used, for so long."""
    def ticks():
        with open("/proc/stat") as file:
            numbers = [int(word) for word in file.readline().split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    before, idle_before = ticks()
    time.sleep(seconds)
    after, idle_after = ticks()
    return 1 - (idle_after - idle_before) / max(1, after - before)


def wait_for_calm(seconds):
    """Waits until nothing else computes, or for so long. Returns the share of the CPUs that others use then."""
    end = time.monotonic() + seconds
    share = busy_share(0.25)
    while share > 0.1 and time.monotonic() < end:
        share = busy_share(0.25)
    return share


def new_run(options):
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    names = ("rounds", "repeats", "sample_ms", "limit", "full", "growth", "clock")
    settings = {name: getattr(options, name) for name in names}
    return {
        "schema": SCHEMA,
        "date": date,
        "commit": commit(),
        "machine": machine_facts(),
        "versions": {},
        "settings": settings,
        "results": [],
    }


def missing(options, run, cpus):
    """The jobs that the run has not yet, by number of threads."""
    done = {(found["shape"]["name"], found["dtype"], found["threads"]) for found in run["results"]}
    left = [job for job in jobs(options, cpus) if (job[0].name, *job[1:]) not in done]
    return {threads: [job for job in left if job[2] == threads] for threads in sorted({job[2] for job in left})}


def measure_jobs(options, session, chosen, run, out_of_time):
    """Measures and keeps them one by one. False if the time was up before the last."""
    for shape, dtype, threads in chosen:
        if out_of_time():
            return False
        share = wait_for_calm(options.calm)
        living = [driver for driver in session.drivers
                  if driver.is_alive() and shapes.is_for(driver.name, shape, session.threads)]
        entries, bandwidths = conductor.measure(shape, dtype, living, threads, session.probe, options)
        run["results"].append(report.result(shape, dtype, threads, entries, bandwidths) | {"busy": share})
        say(report.line(run["results"][-1], options.clock))
        write_run(run, options)
    return True


def measure_all(options, run):
    """All that the run has not yet, or what there is time for. Whether it is complete."""
    cpus = sorted(os.sched_getaffinity(0))
    start = time.monotonic()
    out_of_time = lambda: options.budget and time.monotonic() - start > options.budget
    if (share := busy_share(0.25)) > 0.1:
        say(f"Other programs use {100 * share:.0f} % of the CPUs: shares and ratios will be off.")
    for threads, chosen in missing(options, run, cpus).items():
        if out_of_time():
            return False
        session = Session(options, threads, cpus)
        try:
            check_versions(run, session.versions())
            os.sched_setaffinity(0, session.cpus)
            if not measure_jobs(options, session, chosen, run, out_of_time):
                return False
        finally:
            session.close()
            os.sched_setaffinity(0, cpus)
    if options.growth and "memory" not in run:
        if out_of_time():
            return False
        run["memory"] = growth.measure_memory(options, run, cpus)
        write_run(run, options)
    return True


def check_versions(run, versions):
    """A run that goes on must do so with the same programs."""
    for name, version in versions.items():
        if run["versions"].setdefault(name, version) != version:
            raise ValueError(f"the run to go on with has {run['versions'][name]}, and this is {version}")


def say(text):
    print(text, flush=True)


def load(path):
    try:
        run = json.loads(path.read_text())
    except ValueError:
        run = None
    if not isinstance(run, dict) or run.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no run of this bench, or of another version of it")
    return run


def folder_of(options):
    return options.output or options.build / "bench" / "results"


def name_of(run):
    return "growth" if run["settings"].get("growth") else "bench"


def write_run(run, options):
    """After each shape, so that nothing is lost when somebody ends it."""
    folder = folder_of(options)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name_of(run)}.json"
    path.with_suffix(".new").write_text(json.dumps(run, separators=(",", ":")) + "\n")
    path.with_suffix(".new").replace(path)


def markdown(run, clock):
    return growth.markdown(run, clock) if name_of(run) == "growth" else report.markdown(run, clock)


def save(run, options):
    """Everything that a run leaves behind; plots only where matplotlib is."""
    folder, name = folder_of(options), name_of(run)
    write_run(run, options)
    (folder / f"{name}.md").write_text(markdown(run, options.clock))
    written = [f"{name}.json", f"{name}.md"]
    try:
        import plots
    except ImportError:
        say("no plots: matplotlib is not installed")
    else:
        written += plots.draw(run, folder, options.clock)
    say(f"written to {folder}: {', '.join(written)}")


def make_run(options):
    """The run that is asked for, and whether it is complete."""
    if options.results:
        return load(options.results), True
    path = folder_of(options) / ("growth.json" if options.growth else "bench.json")
    run = load(path) if options.resume and path.exists() else new_run(options)
    with tempfile.TemporaryDirectory() as options.scratch:
        return run, measure_all(options, run)


def main():
    options = parse_arguments()
    # Who ends a run leaves neither processes nor files of inputs behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        if options.publish:
            say(publish.publish(folder_of(options), options.publish, load, options.clock))
            return 0
        if options.growth and not jobs(options, sorted(os.sched_getaffinity(0))):
            say("None of these is a shape of growth.")
            return 0
        old = load(options.compare) if options.compare else None
        run, is_complete = make_run(options)
        if not is_complete:
            cpus = sorted(os.sched_getaffinity(0))
            left = sum(len(chosen) for chosen in missing(options, run, cpus).values())
            say(f"The time is up: {left} shapes are left; --resume goes on with them.")
            return 0
        say("\n" + markdown(run, options.clock))
        if options.output or not options.results:
            save(run, options)
        if old:
            say(compare.text(old, run, options.clock))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
