"""The package in environments of its own: by `pip install ./python`, with and without LLVM, and from the wheel."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("BUILD", "build"))
pytestmark = pytest.mark.slow

PROGRAM = """
import attune, os, pydoc, sys
from array import array
assert "site-packages" in attune.library_path(), attune.library_path()
ones, out = array("f", [1] * 80), array("f", [0] * 80)
attune.compile("num_heads=2,seq_q=5,head_dim=8").run(q=ones, k=ones, v=ones, out=out)
assert out == ones
statistics = attune.default_context().statistics()
print("ran" if statistics["compiles"] or statistics["disk_hits"] else "ran without a kernel")
assert os.path.exists(os.path.join(os.path.dirname(attune.__file__), "py.typed"))
assert "attention(" in pydoc.render_doc(attune)
"""


def run(*command, **variables):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("ATTUNE_") and name not in ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")}
    result = subprocess.run([str(part) for part in command], cwd=ROOT, env={**environment, **variables},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.fixture
def python(tmp_path):
    """The interpreter of a fresh environment."""
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    return tmp_path / "venv" / "bin" / "python"


def make_wheel(to, *options):
    """A copy of what `make wheel` makes, and its output."""
    variables = [f"PYTHON={sys.executable}", f"BUILD={BUILD}", "DEPS=no", *options]
    text = run("make", "--no-print-directory", "wheel", *variables)
    (found,) = (ROOT / BUILD / "dist").glob("attune-*.whl")
    return Path(shutil.copy(found, to)), text


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return make_wheel(tmp_path_factory.mktemp("wheel"))[0]


def test_the_wheel(wheel, python, tmp_path):
    assert wheel.stat().st_size <= 25_000_000
    assert "-py3-none-manylinux_2_34_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert {"attune/py.typed", "attune/lib/libattune.so.0", "attune/lib/LICENSE", "attune/lib/NOTICE"} <= set(names)
        assert not [name for name in names if "__pycache__" in name or name.endswith(".c")]
        worker = archive.getinfo("attune/lib/attune-codegen-worker")
        assert worker.external_attr >> 16 & 0o111, "the worker cannot be executed"
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    assert run(python, "-c", PROGRAM, ATTUNE_CACHE_DIR="") == "ran\n"
    assert run(python, "-c", PROGRAM, ATTUNE_CACHE_DIR="", ATTUNE_COMPILE="worker") == "ran\n"


def test_the_wheel_without_a_code_generator(python, tmp_path):
    """It says so when it is made. The virtual machine computes until there is a kernel of another build."""
    wheel, text = make_wheel(tmp_path, "CODEGEN=no")
    assert "-py3-none-manylinux_2_28_" in wheel.name and "compiles none" in text
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    cache = str(tmp_path / "cache")
    assert run(python, "-c", PROGRAM, ATTUNE_CACHE_DIR=cache) == "ran without a kernel\n"
    run(BUILD / "attune", "compile", "num_heads=2,seq_q=5,head_dim=8", ATTUNE_CACHE_DIR=cache)
    assert run(python, "-c", PROGRAM, ATTUNE_CACHE_DIR="", ATTUNE_CACHE_BASE=cache) == "ran\n"


def test_installing_from_the_sources(python):
    run(python, "-m", "pip", "install", "./python", BUILD=str(BUILD))
    assert run(python, "-c", PROGRAM, ATTUNE_CACHE_DIR="") == "ran\n"


def test_without_llvm_it_runs_from_caches(wheel, python, tmp_path):
    """And says so when it is built. The virtual machine computes what is in no cache."""
    text = run(python, "-m", "pip", "install", "-v", "./python", BUILD=str(BUILD), LLVM_CONFIG="/nonexistent")
    assert "without its code generator" in text
    cache = str(tmp_path / "cache")
    assert run(python, "-c", PROGRAM, ATTUNE_CACHE_DIR=cache) == "ran without a kernel\n"
    whole = tmp_path / "whole"
    run(sys.executable, "-m", "venv", whole)
    run(whole / "bin" / "python", "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    assert run(whole / "bin" / "python", "-c", PROGRAM, ATTUNE_CACHE_DIR=cache) == "ran\n"


def test_without_the_sources_building_is_refused(tmp_path):
    run("cp", "-r", ROOT / "python", tmp_path / "python")
    result = subprocess.run([sys.executable, "setup.py", "--version"], cwd=tmp_path / "python", capture_output=True,
                            text=True)
    assert result.returncode == 1 and "attune's C sources are not in" in result.stderr
