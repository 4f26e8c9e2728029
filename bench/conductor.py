"""Driver processes, and the rounds in which they have their turns."""
import ctypes
import importlib.util
import itertools
import math
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile

import numpy

import inputs

HERE = pathlib.Path(__file__).resolve().parent
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
PATIENCE = 600  # seconds for one answer
TRIES = 3  # samples of a method on trial
LONG = 1e8  # ns of a call that needs no warming, and no trials beyond one
HOPELESS = 2  # times as slow as another method, on the first call
PROBE_S = 0.01  # about what the probes between two turns take
LEAST_ROUNDS = 3  # of one preparation, where there is only time for few
ALONE = "@1"  # ends the name of a method that is to use one thread
# Variables that keep a peer from instructions of this CPU, which the surroundings may have set.
LIMITING = ("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA",
            "DNNL_MAX_CPU_ISA", "OPENBLAS_L2_SIZE", "OV_CPU_CAPABILITY")
CLOCKS = ["wall", "cpu"]
PROBES = {"f32": "peak f32", "bf16": "peak bf16"}


def settle_in(cpus):
    """In a new process: on these CPUs, and gone with its parent, as one that is stopped does not see its input end."""
    os.sched_setaffinity(0, cpus)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Driver:
    """A process that computes what its lines ask. It is stopped whenever it is not its turn, so that threads that wait
    by spinning take no CPU from the others."""

    def __init__(self, name, command, cpus, environment):
        self.name = name
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
            preexec_fn=lambda: settle_in(cpus),
        )
        hello, _, rest = self.read().partition(" ")
        if hello != "hello":
            raise RuntimeError(f"{name} does not start: {self.complaint()}")
        methods, _, self.version = rest.partition(" ")
        self.methods = methods.split(",")
        self.pause()

    def complaint(self):
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no answer")

    def read(self):
        """A line, or nothing after the end or too long a wait. Answers are single lines, so none waits in a buffer."""
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        if not ready:
            self.process.kill()
        return self.process.stdout.readline().strip() if ready else ""

    def pause(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)

    def is_alive(self):
        return self.process.poll() is None

    def ask(self, line):
        """The answer, and whether it is a good one."""
        try:
            self.process.send_signal(signal.SIGCONT)
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            word, _, rest = self.read().partition(" ")
        except BrokenPipeError:
            word, rest = "", ""
        if word not in ("ok", "no"):
            self.process.wait()
            return False, f"ended: {self.complaint()}"
        self.pause()
        return word == "ok", rest

    def close(self):
        if self.is_alive():
            self.process.send_signal(signal.SIGCONT)
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


class Entry:
    """One driver on one shape, by that of its methods which was fastest on trial."""

    def __init__(self, driver, clock, is_small=False):
        """is_small: a peer may do with one thread what is too little for several. attune has to know by itself."""
        self.driver, self.clock = driver, CLOCKS.index(clock)
        self.methods = list(driver.methods)
        if is_small and driver.name != "attune":
            self.methods += [method + ALONE for method in driver.methods]
        self.method = self.note = ""
        self.tried = {}  # by method: ns, or why not
        self.errors = None  # of the last check
        self.warm = self.calls = 1
        self.first = (0.0, 0.0)  # ns of the call that was checked
        self.call_ns = 0.0  # about what one takes
        self.repeats = []  # of each, a list of samples

    def refusal(self):
        """Why there are no samples: what is wrong first, then what the driver said of the first method."""
        words = [why for why in self.tried.values() if isinstance(why, str)]
        return next((why for why in words if why.startswith("wrong")), words[0] if words else "")

    def drop(self, why):
        """Leaves the method out, for good."""
        self.tried[self.method] = why
        self.methods.remove(self.method)
        return False

    def prepare(self, method, task):
        """Has the driver compute, and the result checked."""
        self.method = method
        name, threads = (method.removesuffix(ALONE), " threads=1") if method.endswith(ALONE) else (method, "")
        words = f"prepare method={name} {task.shape.words()} dtype={task.dtype} data={task.folder}{threads}"
        is_good, self.note = self.driver.ask(words)
        if not is_good:
            return self.drop(self.note)
        is_good, answer = self.driver.ask(f"write {task.folder / 'out'}")
        if not is_good:
            return self.drop(answer)
        self.first = tuple(float(word) for word in answer.split())
        got = task.checked(numpy.fromfile(task.folder / "out", numpy.float32))
        expected = task.for_attune if self.driver.name == "attune" else task.for_peers
        if got is None or got.size != expected.size:
            return self.drop("wrong: another number of results than expected")
        self.errors = inputs.errors(got, expected)
        limits = inputs.limits(task.shape, task.dtype)
        if not (self.errors[0] <= limits[0] and self.errors[1] <= limits[1]):  # so is NaN
            rms, most = self.errors
            return self.drop(f"wrong: error {rms:.1e} RMS, {most:.1e} at most, of the result's RMS")
        return True

    def run(self, warm, calls):
        """Nanoseconds of a call, on the clock and of the processor. None if it fails."""
        is_good, answer = self.driver.ask(f"run {warm} {calls}")
        if is_good:
            return tuple(float(word) for word in answer.split())
        self.drop(answer)
        return None

    def calibrate(self, sample_ns):
        """So many calls that a sample lasts as long as it should, after a quarter of that. About what a call takes;
        the call that was checked tells that of a long one."""
        times = self.first if self.first[0] >= LONG else self.run(1, 1)
        if times and times[0] < sample_ns / 20:
            times = self.run(0, max(1, int(sample_ns / 20 / times[0])))
        if not times:
            return None
        self.calls = max(1, math.ceil(sample_ns / times[0]))
        self.warm = max(int(times[0] < LONG), self.calls // 4)
        self.call_ns = times[0]
        return times[self.clock]

    def attempt(self, method, task, sample_ns):
        """Finds out how fast a method is; one call tells if it is long, or far behind another method."""
        about = self.calibrate(sample_ns) if self.prepare(method, task) else None
        if about is None:
            return
        best = min((ns for ns in self.tried.values() if not isinstance(ns, str)), default=math.inf)
        is_enough = about > min(HOPELESS * best, LONG)
        tries = [(about, about)] if is_enough else [self.run(self.warm, self.calls) for _ in range(TRIES)]
        if all(tries):
            self.tried[method] = min(times[self.clock] for times in tries)

    def open(self, task, sample_ns):
        """Prepares the fastest method, found by trial where there are several. Whether there is one."""
        if len(self.methods) > 1:
            for method in list(self.methods):
                self.attempt(method, task, sample_ns)
            self.methods.sort(key=lambda method: self.tried[method])
            del self.methods[1:]
        return bool(self.methods) and self.prepare(self.methods[0], task) and self.calibrate(sample_ns) is not None


    def turn_s(self):
        """About what one takes."""
        return (self.warm + self.calls) * self.call_ns / 1e9


class Probe:
    """The peaks and the bandwidth of the machine, from one process more."""

    def __init__(self, driver):
        self.driver = driver

    def measure(self, question):
        """The best of three, each of a millisecond: what the machine can do, not what others leave of it."""
        answers = [self.driver.ask(question) for _ in range(3)]
        if not all(is_good for is_good, _ in answers):
            raise RuntimeError(f"the probe says: {answers[0][1]}")
        return max(float(answer) for _, answer in answers)

    def peaks(self):
        return {dtype: self.measure(question) for dtype, question in PROBES.items()}


class Task:
    """A shape in a dtype: its inputs as files, and what is expected."""

    def __init__(self, shape, dtype, folder, is_checked=True):
        self.shape, self.dtype, self.folder = shape, dtype, folder
        data = inputs.Inputs(shape, dtype)
        data.write(folder)
        self.rows = data.checked_rows()
        if is_checked:
            self.for_peers, self.for_attune = data.expected()

    def checked(self, got):
        """Of a result, the rows that are compared; None if it has not as many numbers as it should."""
        s = self.shape
        if s.kind != "attention" or len(self.rows) == s.rows:
            return got
        if got.size != s.batch * s.heads * s.rows * s.dim:
            return None
        return got.reshape(s.batch, s.heads, s.rows, s.dim)[:, :, self.rows]


def play(entries, task, probe, rounds):
    """Rounds in which every entry has its turn, another one first in each, with the peaks probed between any two.
    Returns the bandwidths, one of each round."""
    bandwidths = []
    bytes_touched = task.shape.bytes(task.dtype)
    before = probe.peaks()
    for number in range(rounds):
        bandwidths.append(probe.measure(f"bandwidth {bytes_touched}"))
        first = number % len(entries)
        for entry in entries[first:] + entries[:first]:
            times = entry.run(entry.warm, entry.calls) if entry.methods else None
            after = probe.peaks()
            if times:
                peaks = {name: 0.5 * (before[name] + after[name]) for name in after}
                entry.repeats[-1].append({"ns": times[0], "cpu_ns": times[1], "peaks": peaks, "round": number})
            before = after
    return bandwidths


def plan(entries, options):
    """How many preparations of how many rounds: as asked for, unless that takes longer than the limit. Each
    preparation costs about two rounds of single calls more, a call to check and one to warm up."""
    repeats, rounds = options.repeats, options.rounds
    if not options.limit or not entries:
        return repeats, rounds
    turn_s = sum(entry.turn_s() + PROBE_S for entry in entries)
    open_s = sum(2 * entry.call_ns / 1e9 for entry in entries)
    while rounds > LEAST_ROUNDS and repeats * (open_s + rounds * turn_s) > options.limit:
        rounds -= 1
    while repeats > 1 and repeats * (open_s + rounds * turn_s) > options.limit:
        repeats -= 1
    return repeats, rounds


def measure(shape, dtype, drivers, threads, probe, options):
    """All samples of one shape. Repeatedly everything is prepared anew, so that it lies on other pages."""
    is_small = threads > 1 and shape.is_small()
    entries, bandwidths = [Entry(driver, options.clock, is_small) for driver in drivers], []
    repeats, rounds = options.repeats, options.rounds
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        task = Task(shape, dtype, pathlib.Path(folder))
        for number in itertools.count():
            ready = [entry for entry in entries if entry.open(task, options.sample_ms * 1e6)]
            if number == 0:
                repeats, rounds = plan(ready, options)
            for entry in ready:
                entry.repeats.append([])
            if ready:
                bandwidths += play(ready, task, probe, rounds)
            if number + 1 >= repeats:
                break
        for driver in drivers:
            if driver.is_alive():
                driver.ask("drop")
    return entries, bandwidths


def environment(threads, cpus):
    """Threads bound to CPUs and waiting by spinning: what each peer is fastest with."""
    settings = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_PROC_BIND": "close",
        "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in cpus),
        "OMP_WAIT_POLICY": "active",
        "OMP_DYNAMIC": "false",
        "MKL_DYNAMIC": "FALSE",
        "KMP_BLOCKTIME": "infinite",
        "ATTUNE_CACHE_DIR": "",
    }
    # OpenBLAS takes CPUs newer than itself for a Haswell.
    if "avx512f" in pathlib.Path("/proc/cpuinfo").read_text():
        settings["OPENBLAS_CORETYPE"] = "SkylakeX"
    return {name: value for name, value in os.environ.items() if name not in LIMITING} | settings


def commands(build, isa, threads, cpus):
    """The drivers that there may be: name and command line. One whose program is not there is not installed."""
    places = [str(cpu) for cpu in cpus]
    found = {"attune": [str(build / "attune_driver"), str(threads)]}
    for name in ("torch", "zentorch", "onnxruntime", "openvino"):  # of the module, and of the driver
        if importlib.util.find_spec(name):
            found[name] = [sys.executable, str(HERE / "drivers" / f"{name}_driver.py"), str(threads), *places]
    for name in ("openblas", "onednn", "onednn_omp", "ggml"):
        program = build / f"{name}_driver"
        if program.exists():
            found[name] = [str(program), str(threads)]
    probe = [str(build / "probe_driver"), str(threads), isa]
    return found, probe
