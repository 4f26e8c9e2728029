"""What cliffs.py and roofline.py have in common: survey.c as a process, and files of results."""
import json
import os
import pathlib
import subprocess

import machine

class Survey:
    """The process that measures. Kernels stay in a cache of its own, where no tuned schedule is."""

    def __init__(self, build, threads, rounds, has_probes=False):
        codegen = {"ATTUNE_CODEGEN": str(build.resolve() / "libattune-codegen.so")}
        cache = {"ATTUNE_CACHE_DIR": str(build.resolve() / "bench" / "survey-cache"), "ATTUNE_CACHE_BASE": ""}
        command = [build / "bench" / "survey", f"--threads={threads}", f"--rounds={rounds}"]
        self.process = subprocess.Popen(command + ["--probe"] * has_probes, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=os.environ | cache | codegen)
        self.machine = self.read() | {"cpu": machine.cpu_name(), "threads": threads}

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"survey ended with {self.process.wait()}")
        return json.loads(line)

    def measure(self, problems):
        """What was measured of each, by rounds in which all have their turns."""
        self.process.stdin.write("\n".join(problems) + "\n\n")
        self.process.stdin.flush()
        return [self.read() for _ in problems]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def save(path, run):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".part").write_text(json.dumps(run))
    path.with_suffix(".part").rename(path)


def load(path, kind):
    run = json.loads(path.read_text())
    if run.get("schema") != 1 or run.get("kind") != kind:
        raise ValueError(f"{path} is no result of {kind}")
    return run


def results(build, name):
    return build / "bench" / "results" / f"{name}.json"


def add_arguments(parser):
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path, help="the file of results (below BUILD/bench/results)")
    parser.add_argument("--plot", type=pathlib.Path, metavar="SVG", help="draw the results there (needs matplotlib)")


def circumstances(run):
    m = run["machine"]
    threads = "1 thread" if m["threads"] == 1 else f"{m['threads']} threads"
    return f"{m['cpu']}, {m['isa']}, {threads}, attune {m['version']}, LLVM {m['llvm']}; {run['date'][:10]}."


def duration(us):
    return f"{us:.3g} µs" if us < 1e3 else f"{us / 1e3:.3g} ms"


def table(headers, rows):
    lines = ["| " + " | ".join(headers) + " |", "|---" + "|---:" * (len(headers) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def pyplot():
    """Text stays text, which is small and can be searched; equal runs give equal files."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "attune", "font.size": 8}
    import matplotlib.pyplot

    return matplotlib.pyplot
