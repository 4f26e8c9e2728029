"""The examples: their results agree, whichever way they are computed. Times are printed, not judged."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attune
import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "python"


@pytest.mark.parametrize("name, options", [
    ("shared_prefix", ["--sequences=5", "--prefix=300", "--own=7"]),
    ("shared_prefix", ["--sequences=1", "--prefix=33", "--own=1"]),
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


def ran(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_serving():
    text = ran(sys.executable, EXAMPLES / "serving.py")
    assert re.match(r"17 steps, 64 of 64 pages are free again\nlargest difference: \S+$", text)


@pytest.mark.parametrize("path, lines", [("../serving.c", 60), ("serving.py", 30)])
def test_serving_fits_a_screen(path, lines):
    assert len((EXAMPLES / path).read_text().splitlines()) <= lines


def test_a_sparse_layer():
    text = ran(sys.executable, EXAMPLES / "sparse_layer.py", "--tokens=150", "--ids=20")
    assert re.match(r"9 steps, 20 of up to 150 keys: largest difference \S+$", text)


def test_batching_in_torch():
    pytest.importorskip("attune.torch", reason="attune.torch is missing", exc_type=ImportError)
    text = ran(sys.executable, EXAMPLES / "torch_batching.py")
    assert text == "22 steps, 6 of 6 requests have the tokens that they have alone\n"


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_serving_in_c_computes_the_same(tmp_path):
    library = Path(attune.library_path())
    if library.name != "libattune.so" or not library.is_absolute():
        pytest.skip("the library in use is no build directory's")
    program, out = tmp_path / "serving", tmp_path / "out.f32"
    ran("cc", "-fopenmp", f"-I{EXAMPLES.parents[1] / 'include'}", EXAMPLES.parent / "serving.c", library,
        f"-Wl,-rpath,{os.path.dirname(library)}", "-lm", "-o", program)
    assert "largest difference" in ran(program, out)
    assert f"largest difference, of {out} too" in ran(sys.executable, EXAMPLES / "serving.py", out)
