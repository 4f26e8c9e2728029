"""Sweeps, tuning and random checks over the workers of a Dask client.

    from distributed import Client, LocalCluster
    import attune.distributed

    client = Client(LocalCluster())                  # or any other cluster
    found = attune.distributed.sweep("seq_q=128:4096:*2,head_dim=64,num_heads=8", client, output="out.json")

Workers run the command `attune`. Each machine runs one measurement at a time, however many workers it has. If a worker
dies, another one repeats its task.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ._errors import Error, FileError, InvalidArgumentError
from ._library import library_path
from ._problem import Problem

__all__ = ["sweep", "tune", "check", "by_machine"]

Row = Dict[str, Any]
Problems = Union[str, Problem, Sequence[Union[str, Problem]]]
# What makes a machine another one; the same list is in tools/sweep/sweep_file.c.
_MACHINE = (
    "cpu", "cpu_family", "cpu_model", "cpu_stepping", "machine", "isa", "llvm", "version", "generator", "threads",
)  # fmt: skip
_WRITE_SECONDS = 1.0  # a file of many results is not written after each of them
_SETTINGS = ("schema", "samples", "sizes", "cold_data")


# ---- On a worker ----


def _command(named: Optional[str]) -> str:
    """The command: as named, ATTUNE_COMMAND, beside the library, or on the PATH."""
    beside = Path(library_path()).resolve().parent
    asked = named or os.environ.get("ATTUNE_COMMAND")
    if asked:
        return asked
    for place in (beside / "attune", beside.parent / "bin" / "attune"):
        if place.is_file() and os.access(place, os.X_OK):
            return str(place)
    found = shutil.which("attune")
    if not found:
        raise Error(f"the command attune was not found on {socket.gethostname()}: put it on the PATH, or name it")
    return found


@contextlib.contextmanager
def _alone() -> Iterator[int]:
    """While it lasts, no other measurement of this user runs on this machine. Whoever inherits the descriptor holds the
    lock as well: the command that a dead worker has left behind keeps it until it ends."""
    path = os.path.join(tempfile.gettempdir(), f"attune-measuring-{os.getuid()}.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _run(
    arguments: Sequence[str],
    command: Optional[str] = None,
    lock: Tuple[int, ...] = (),
    good: Tuple[int, ...] = (0,),
    program: str = "",
) -> str:
    """The standard output of the command, or of the program "-lab" beside it. A failure raises its last sentence; so
    does a status that may be good, where nothing was printed."""
    line = [_command(command) + program, *arguments]
    try:
        done = subprocess.run(
            line, text=True, pass_fds=lock, check=False, stdin=subprocess.DEVNULL, capture_output=True
        )
    except OSError as error:
        raise Error(f"{line[0]} cannot be run on {socket.gethostname()}: {error.strerror}") from None
    if done.returncode not in good or (done.returncode and not done.stdout.strip()):
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Error(f"{said[-1].removeprefix('attune: ')} (on {socket.gethostname()})")
    return done.stdout


def _rows(document: Dict[str, Any]) -> List[Row]:
    """The results of a document, each with the header that names its machine."""
    return [row if "header" in row else row | {"header": document["header"]} for row in document["results"]]


def _measure(problem: str, options: Sequence[str], command: Optional[str]) -> Dict[str, Any]:
    with _alone() as lock:
        return json.loads(_run(["sweep", "--json", *options, problem], command, (lock,)))


def _tune(problem: str, options: Sequence[str], command: Optional[str]) -> Tuple[Dict[str, Any], bytes, str]:
    """The result, the tuning database of this machine, and the worker's address."""
    from distributed import get_worker

    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "tuning")
        with _alone() as lock:
            text = _run(["tune", "--json", *options, f"--export={results}", problem], command, (lock,))
        return json.loads(text), Path(results).read_bytes(), get_worker().address


def _take_in(results: bytes, command: Optional[str]) -> None:
    """Adds results of tuning to the database of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tuning")
        Path(path).write_bytes(results)
        _run(["tune", f"--import={path}"], command)


def _check(options: Sequence[str], command: Optional[str]) -> Dict[str, Any]:
    return json.loads(_run(["check", "--json", *options], command, good=(0, 1), program="-lab"))


# ---- Handing out ----


def _finished(
    client: Any, function: Callable[..., Any], calls: Mapping[Any, Tuple[Any, ...]], workers: Any
) -> Iterator[Tuple[Any, Any]]:
    """Calls the function on workers, and yields (key, result or exception) as they end. Dask gives the calls of a
    worker that died to others. What has not ended is cancelled if the caller stops."""
    from distributed import as_completed

    futures = {client.submit(function, *call, pure=False, workers=workers): key for key, call in calls.items()}
    try:
        for future in as_completed(list(futures)):
            error = future.exception()
            yield futures[future], future.result() if error is None else error
    finally:
        client.cancel([future for future in futures if not future.done()])


def _texts(problems: Problems, name: str) -> List[str]:
    listed = [problems] if isinstance(problems, (str, Problem)) else list(problems)
    if not listed:
        raise InvalidArgumentError(f"{name} is empty")
    return [str(problem) for problem in listed]


def _sizes_text(sizes: Optional[Mapping[str, float]]) -> str:
    return ",".join(f"{name}={value}" for name, value in (sizes or {}).items())


def _sizes(sizes: Optional[Mapping[str, float]]) -> List[str]:
    return [f"--sizes={_sizes_text(sizes)}"] if sizes else []


def _sizes_of(text: str) -> Dict[str, float]:
    """The sizes of a text: those of a document are in an order of their own."""
    return {name: float(value) for name, value in (item.split("=") for item in text.split(",") if item)}


def _warn(problem: str, error: BaseException) -> None:
    warnings.warn(f"{problem} has no result: {error}", RuntimeWarning, stacklevel=3)


def _machine(header: Mapping[str, Any]) -> Tuple[Any, ...]:
    return tuple(header.get(name) for name in _MACHINE)


def _place(row: Row) -> Tuple[Any, ...]:
    """A problem has a result for each machine that has measured it."""
    return (row["problem"], *_machine(row["header"]))


def by_machine(document: Mapping[str, Any]) -> Dict[str, List[Row]]:
    """The results of a document by the machine that they were measured on: by its family, model and tuning class."""
    found: Dict[str, List[Row]] = {}
    for row in document["results"]:
        header = row["header"]
        found.setdefault(f"{header['cpu_description']}, {header['machine']}, {header['isa']}", []).append(row)
    return found


# ---- Sweeps ----


class _Sweep:
    """The documents of single problems as one, as `attune sweep merge` makes it."""

    def __init__(self, output: Optional[os.PathLike[str]], settings: Dict[str, Any]) -> None:
        self.output = None if output is None else Path(output)
        self.settings = settings  # those of the results, as far as they are known
        self.is_new = False  # something was measured
        self.written = float("-inf")  # when, by the clock
        self.rows: Dict[Tuple[Any, ...], Row] = {}  # by problem and machine
        self.cache = {"hits": 0, "misses": 0, "compile_ms": 0.0}
        if self.output is not None and self.output.exists():
            self._read()

    def _read(self) -> None:
        """Takes in the results of the file, if their settings are those of this sweep."""
        assert self.output is not None
        try:
            document = json.loads(self.output.read_text())
            was = {name: document[name] for name in _SETTINGS} | {"threads": document["header"]["threads"]}
            _sizes_of(was["sizes"])
            rows = {_place(row): row for row in _rows(document)}
            cache = {name: document["cache"][name] + 0 for name in self.cache}
            max([row["header"]["date"] for row in rows.values()], default="")
        except KeyError as error:
            raise FileError(f"{self.output} is no sweep that could be continued: it has no {error.args[0]}") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise FileError(f"{self.output} is no sweep that could be continued: {error}") from None
        self._compare(was)
        self.settings |= was
        self.rows, self.cache = rows, cache

    def _compare(self, was: Mapping[str, Any]) -> None:
        """Refuses other settings. The schema of this sweep is known with its first result only."""
        for name, value in self.settings.items():
            same = _sizes_of(was[name]) == _sizes_of(value) if name == "sizes" else was.get(name, value) == value
            if not same:
                raise InvalidArgumentError(
                    f"{self.output} cannot be continued: it was measured with {name}={was[name]}, and this sweep has "
                    f"{name}={value}"
                )

    def add(self, document: Dict[str, Any]) -> Optional[Error]:
        """What keeps the results out; None: they are in."""
        schema = self.settings.setdefault("schema", document["schema"])
        if document["schema"] != schema:
            return InvalidArgumentError(f"its schema is {document['schema']}, and that of the others {schema}")
        self.rows |= {_place(row): row for row in _rows(document)}
        self.cache = {name: value + document["cache"][name] for name, value in self.cache.items()}
        self.settings |= {name: document[name] for name in _SETTINGS}
        self.is_new = True
        if time.monotonic() - self.written >= _WRITE_SECONDS:
            self.write()
        return None

    @contextlib.contextmanager
    def kept(self, order: Sequence[str]) -> Iterator[None]:
        """However it ends, the file has all results, in this order."""
        try:
            yield
        finally:
            if self.is_new:
                self.write(order)

    def problems(self) -> Set[str]:
        """Those that any machine has measured."""
        return {row["problem"] for row in self.rows.values()}

    def document(self, order: Sequence[str] = ()) -> Dict[str, Any]:
        places = {problem: place for place, problem in enumerate(order)}
        rows = sorted(self.rows.values(), key=lambda row: places.get(row["problem"], len(places)))
        machines: Dict[Tuple[Any, ...], List[Row]] = {}
        for row in rows:
            machines.setdefault(_machine(row["header"]), []).append(row)
        headers = [row["header"] for row in rows]
        common = {
            name: value for name, value in (headers[0] if headers else {}).items()
            if all(header.get(name) == value for header in headers)
        }  # fmt: skip
        if headers:
            common["date"] = max(header["date"] for header in headers)
        settings = {name: self.settings.get(name) for name in _SETTINGS}
        return {
            "schema": settings.pop("schema"), "header": common, **settings, "cache": self.cache,
            "results": [row for group in machines.values() for row in group],
        }  # fmt: skip

    def write(self, order: Sequence[str] = ()) -> None:
        """The file is whole at any time."""
        if self.output is None:
            return
        beside = self.output.with_name(f"{self.output.name}.{os.getpid()}.tmp")
        try:
            beside.write_text(json.dumps(self.document(order), indent=1) + "\n")
            beside.replace(self.output)
            self.written = time.monotonic()
        except OSError as error:
            raise FileError(f"{self.output}: cannot write: {error.strerror}") from None


def sweep(
    grid: Problems,
    client: Any,
    *,
    output: Optional[os.PathLike[str]] = None,
    threads: int = 1,
    samples: int = 10,
    sizes: Optional[Mapping[str, float]] = None,
    cold_data: bool = False,
    max_spread: Optional[float] = 0.1,
    limit: int = 100000,
    progress: Optional[Callable[[int, int], None]] = None,
    command: Optional[str] = None,
    workers: Any = None,
) -> Dict[str, Any]:
    """Measures each problem of a grid once, on any worker. Returns the JSON document of `attune sweep merge`: each
    result has the header of its machine, and the results are ordered by machine.

    grid: text as for `attune sweep`, or several. output: a file that is written every second and at the end; one that
    has results is continued with the problems that no machine has measured. threads, samples, sizes, cold_data,
    max_spread (a share; None: measure once), limit: as for `attune sweep`. progress: a function of the number of
    problems with a result, and of all. command: `attune` on the workers, where it is neither beside the library nor
    on the PATH. workers: only these, as for client.submit.

    A problem that cannot be measured is named in a warning and left out."""
    options = [f"--threads={threads}", f"--samples={samples}", *_sizes(sizes)]
    options += ["--cold-data"] if cold_data else []
    options.append(f"--max-spread={'none' if max_spread is None else 100 * max_spread}")
    asked = ["sweep", "--dry-run", f"--limit={limit}", *_sizes(sizes), *_texts(grid, "grid")]
    given = _run(asked, None).splitlines()
    problems = {str(Problem(text)): text for text in given}
    settings = {"threads": threads, "samples": samples, "sizes": _sizes_text(sizes), "cold_data": bool(cold_data)}
    found = _Sweep(output, settings)
    measured = found.problems()
    calls = {name: (text, options, command) for name, text in problems.items() if name not in measured}
    done = len(problems) - len(calls)
    with found.kept(list(problems)):
        for name, result in _finished(client, _measure, calls, workers):
            error = result if isinstance(result, BaseException) else found.add(result)
            if error:
                _warn(name, error)
                continue
            done += 1
            if progress:
                progress(done, len(problems))
    return found.document(list(problems))


# ---- Tuning ----


def _share(client: Any, command: Optional[str], addresses: Optional[List[str]]) -> None:
    """Hands the database of the client to workers. Those that do not take it in are named in a warning."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tuning")
            _run(["tune", f"--export={path}"])
            database = Path(path).read_bytes()
        answers = client.run(_take_in, database, command, workers=addresses, on_error="return")
    except Exception as error:  # Dask's own are of many kinds, and hours of tuning are not lost for any of them
        warnings.warn(f"the results of tuning were not handed to workers: {error}", RuntimeWarning, stacklevel=3)
        return
    for address, answer in answers.items():
        if isinstance(answer, BaseException):
            warnings.warn(f"{address} has not taken in the results of tuning: {answer}", RuntimeWarning, stacklevel=3)


def tune(
    problems: Problems,
    client: Any,
    *,
    seconds: float = 5,
    threads: int = 1,
    sizes: Optional[Mapping[str, float]] = None,
    share: bool = True,
    progress: Optional[Callable[[int, int], None]] = None,
    command: Optional[str] = None,
    workers: Any = None,
) -> Dict[str, Any]:
    """Tunes each problem once, on any worker. The results of all machines are merged into the tuning database of the
    client's cache, and with `share` from there into those of the workers: of all, or if `workers` names some, of those
    that have tuned. A warning names a database that cannot be merged into.

    seconds: for each problem. Returns {"results": […]}, each like the output of `attune tune --json`, with the header
    of its machine. A tuned schedule is used only on the kind of machine on which it was tuned."""
    options = [f"--budget={seconds}", f"--threads={threads}", *_sizes(sizes)]
    calls = {str(Problem(text)): (text, options, command) for text in _texts(problems, "problems")}
    rows: List[Row] = []
    tuned: Set[str] = set()  # addresses of workers
    for name, result in _finished(client, _tune, calls, workers):
        if isinstance(result, BaseException):
            _warn(name, result)
            continue
        document, database, address = result
        rows += _rows(document)
        tuned.add(address)
        try:
            _take_in(database, None)
        except (Error, OSError) as error:
            warnings.warn(f"the database of the client has no result of {name}: {error}", RuntimeWarning, stacklevel=2)
        if progress:
            progress(len(rows), len(calls))
    if share and rows:
        _share(client, command, None if workers is None else sorted(tuned))
    return {"results": rows}


# ---- Random checks ----


class Checked(NamedTuple):
    """The outcome of random checks."""

    passed: int
    failed: int
    failures: List[Row]  #: of each the reason, the command that repeats it, and the header of its machine


def check(
    client: Any,
    count: int = 1000,
    *,
    seed: int = 1,
    first: int = 0,
    chunk: int = 50,
    isa: Optional[str] = None,
    progress: Optional[Callable[[int, int], None]] = None,
    command: Optional[str] = None,
    workers: Any = None,
) -> Checked:
    """Compares kernels of `count` random problems with the interpreter and a reference, as `attune-lab check --random`
    does, in chunks on all workers at once. Each needs `attune-lab` beside the command `attune`. A chunk that has no
    result is a failure."""
    if count < 1 or chunk < 1 or first < 0:
        found = f"count is {count}, chunk {chunk} and first {first}"
        raise InvalidArgumentError(f"{found}; they must be 1, 1 and 0 at least")
    common = [f"--seed={seed}", *([f"--isa={isa}"] if isa else [])]
    calls = {
        begin: ([*common, f"--first={begin}", f"--random={min(chunk, first + count - begin)}"], command)
        for begin in range(first, first + count, chunk)
    }
    passed = failed = done = 0
    failures: List[Row] = []
    for begin, result in _finished(client, _check, calls, workers):
        size = min(chunk, first + count - begin)
        if isinstance(result, BaseException):
            failed += size
            failures.append({"reason": f"problems {begin} to {begin + size - 1} have no result: {result}"})
        else:
            passed, failed = passed + result["passed"], failed + result["failed"]
            failures += [failure | {"header": result["header"]} for failure in result["failures"]]
        done += size
        if progress:
            progress(done, count)
    return Checked(passed, failed, failures)
