"""The examples with functions: their results agree, whichever way they are computed. Times are printed, not judged."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "python"


@pytest.mark.parametrize("name, options", [
    ("shared_prefix", ["--entries=5", "--prefix=300", "--own=7"]),
    ("shared_prefix", ["--entries=1", "--prefix=33", "--own=1"]),
    ("tree_mask", ["--keys=200", "--branches=5", "--depth=3"]),
    ("tree_mask", ["--keys=1", "--branches=1", "--depth=1"]),
])
def test_example(name, options):
    ran = subprocess.run([sys.executable, EXAMPLES / f"{name}.py", "--seconds=0.01", *options], capture_output=True,
                         text=True)
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.splitlines()
    assert float(re.fullmatch(r"largest difference: (\S+)", first)[1]) < 1e-5
    assert re.search(r"times as fast$", second)
