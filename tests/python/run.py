"""Runs files of tests by pytest, each in a process of its own with an empty cache, and adds up what they report.

The last line is "N passed, N failed, N skipped". A file fails as well if its process dies, takes too long, or has no
test. usage: run.py [--short] [--jobs N] [--timeout SECONDS] FILE...
"""

import argparse
import concurrent.futures
import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path

NO_TESTS = 5  # pytest's exit status if all are deselected
# They begin first: at the end no processor waits for one of them.
LONGEST = "engines_process torch_sdpa_engine torch_sdpa jax_transforms distributed ort_sessions jax transformers_models"
SHORT_CALLS = "30"  # random calls of scaled_dot_product_attention, each with a kernel of its own


@dataclass
class Result:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other):
        return Result(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def count(report):
    """The cases of a report in JUnit's format."""
    total = Result()
    for suite in xml.parse(report).getroot().iter("testsuite"):
        tests, skipped = int(suite.get("tests")), int(suite.get("skipped"))
        failed = int(suite.get("failures")) + int(suite.get("errors"))
        total += Result(tests - failed - skipped, failed, skipped)
    return total


def death(status):
    """How a process ended that pytest did not end, or ""."""
    if status < 0:
        return f"died of signal {-status} ({signal.Signals(-status).name})"
    return "" if status in (0, 1, NO_TESTS) else f"ended with exit status {status}"


def environment(scratch, shared, options):
    """Nothing of the caller's settings may change what the tests see. All files share what torch.compile has found out
    about the C++ compiler, and its headers. Threads of OpenMP that wait leave the processor to other files.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ATTUNE_")}
    kept |= {"ATTUNE_SDPA_CALLS": SHORT_CALLS, "ATTUNE_TEST_SHORT": "yes"} if options.short else {}
    for name in ("ATTUNE_LIBRARY", "ATTUNE_SDPA_CALLS"):
        if name in os.environ:
            kept[name] = os.environ[name]
    kept |= {"TORCHINDUCTOR_CACHE_DIR": f"{shared}/inductor", "OMP_WAIT_POLICY": "passive"}
    return kept | {"ATTUNE_CACHE_DIR": f"{scratch}/cache", "TMPDIR": scratch}


def run_file(file, shared, options):
    """Result and output of one file."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "-rs"]
        command += [f"--junitxml={report}", *(["-m", "not slow"] if options.short else []), file]
        with open(Path(scratch) / "output", "w+b") as output:
            try:
                status = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    env=environment(scratch, shared, options), timeout=options.timeout, check=False,
                ).returncode
                problem = death(status)
            except subprocess.TimeoutExpired:
                problem = f"did not end within {options.timeout} seconds"
            output.seek(0)
            text = output.read().decode(errors="replace")
        result = count(report) if report.exists() else Result()
        if problem or (result == Result() and not (options.short and status == NO_TESTS)):
            text += f"{file} {problem or 'has no tests'}\n"
            result += Result(failed=0 if result.failed else 1)
        return result, text


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="without the tests that are marked as slow")
    parser.add_argument("--jobs", type=int, default=1, help="files that run at a time (1)")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds that a file may take (1200)")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    first = [f"test_{name}" for name in LONGEST.split()]
    options.files.sort(key=lambda file: first.index(Path(file).stem) if Path(file).stem in first else len(first))
    total = Result()
    with (
        tempfile.TemporaryDirectory() as shared,
        concurrent.futures.ThreadPoolExecutor(max(options.jobs, 1)) as pool,
    ):
        results = pool.map(lambda file: run_file(file, shared, options), options.files)
        for file, (result, text) in zip(options.files, results):
            print(f"---- {file}", text.rstrip(), f"{file}: {result}", sep="\n", flush=True)
            total += result
    print(total)
    return 0 if not total.failed and (total.passed or options.short) else 1


if __name__ == "__main__":
    sys.exit(main())
