#!/usr/bin/env python3
"""Measures attune beside the peers that are installed: one run, everything interleaved, every result checked first.

See README.md. `make bench` and `make bench-full` call it; --compare sets two runs side by side.
"""
import argparse
import datetime
import fnmatch
import json
import os
import pathlib
import platform
import sys
import tempfile

import compare
import conductor
import report
import shapes

SCHEMA = 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"), help="where attune was built")
    parser.add_argument("--output", type=pathlib.Path, help="folder of the results (BUILD/bench/results)")
    parser.add_argument("--full", action="store_true", help="all shapes, and more rounds")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="shapes by name, e.g. 'decode_*'")
    parser.add_argument("--shape", action="append", default=[], metavar="KEY=N,…", help="a shape of your own")
    parser.add_argument("--peers", help="drivers by name, separated by commas (all that are installed)")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", help="numbers of threads, separated by commas (1 and all CPUs)")
    parser.add_argument("--rounds", type=int, help="samples of one preparation (5, full 8)")
    parser.add_argument("--repeats", type=int, help="how often all is prepared anew (3, full 4)")
    parser.add_argument("--sample-ms", type=float, default=20, help="least length of one sample")
    parser.add_argument("--clock", choices=conductor.CLOCKS, default="wall", help="cpu: processor time, on busy machines")
    parser.add_argument("--compare", type=pathlib.Path, metavar="OLD.json", help="say what got faster or slower since")
    parser.add_argument("--results", type=pathlib.Path, metavar="NEW.json", help="measure nothing: show these")
    options = parser.parse_args()
    options.rounds = options.rounds or (8 if options.full else 5)
    options.repeats = options.repeats or (4 if options.full else 3)
    if options.rounds < 1 or options.repeats < 1 or not options.sample_ms > 0:
        parser.error("rounds, repeats and sample-ms must be positive")
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
    facts = {"cpu": platform.processor() or platform.machine(), "kernel": platform.release()}
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            facts["cpu"] = line.partition(":")[2].strip()
            break
    return facts | {"cpus": os.cpu_count(), "load": os.getloadavg()[0]}


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


def measure_all(options, say):
    cpus = sorted(os.sched_getaffinity(0))
    chosen, counts, results, versions = choose_shapes(options), choose_threads(options, cpus), [], {}
    facts = machine_facts()
    if facts["load"] > 0.5:
        say(f"The load is {facts['load']:.1f} before anything is measured: shares and ratios of medians will be off.")
    for threads in counts:
        session = Session(options, threads, cpus)
        versions |= session.versions()
        os.sched_setaffinity(0, session.cpus)
        try:
            for shape in chosen:
                for dtype in options.dtypes.split(","):
                    living = [driver for driver in session.drivers if driver.is_alive()]
                    entries, bandwidths = conductor.measure(shape, dtype, living, session.probe, options)
                    results.append(report.result(shape, dtype, threads, entries, bandwidths))
                    say(report.line(results[-1], options.clock))
        finally:
            session.close()
            os.sched_setaffinity(0, cpus)
    facts["load_after"] = os.getloadavg()[0]
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    settings = {name: getattr(options, name) for name in ("rounds", "repeats", "sample_ms", "full")}
    return {
        "schema": SCHEMA,
        "date": date,
        "machine": facts,
        "versions": versions,
        "settings": settings,
        "results": results,
    }


def load(path):
    try:
        run = json.loads(path.read_text())
    except ValueError:
        run = None
    if not isinstance(run, dict) or run.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no run of this bench, or of another version of it")
    return run


def save(run, folder, clock):
    """Everything that a run leaves behind; plots only where matplotlib is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(run, indent=1) + "\n")
    (folder / "bench.md").write_text(report.markdown(run, clock))
    written = ["bench.json", "bench.md"]
    try:
        import plots
    except ImportError:
        print("no plots: matplotlib is not installed")
    else:
        written += plots.draw(run, folder, clock)
    print(f"written to {folder}: {', '.join(written)}")


def main():
    options = parse_arguments()
    try:
        old = load(options.compare) if options.compare else None
        if options.results:
            run = load(options.results)
        else:
            with tempfile.TemporaryDirectory() as options.scratch:
                run = measure_all(options, lambda text: print(text, flush=True))
        print("\n" + report.markdown(run, options.clock))
        if options.output or not options.results:
            save(run, options.output or options.build / "bench" / "results", options.clock)
        if old:
            print(compare.text(old, run, options.clock))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
