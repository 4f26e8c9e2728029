"""The source distribution holds all that make reads for a wheel."""

import filecmp
import sys
import tarfile

import pytest

from test_package_install import BUILD, PROGRAM, ROOT, run

setuptools = pytest.importorskip("setuptools", minversion="77")  # that of python/pyproject.toml


def make_sdist(python_directory, to):
    run("env", "-C", python_directory, sys.executable, "setup.py", "-q", "sdist", "-d", to, BUILD=str(BUILD))
    (archive,) = to.glob("attune-*.tar.gz")
    return archive


def unpack(archive, to):
    with tarfile.open(archive) as tar:
        assert not [name for name in tar.getnames() if name.startswith("/") or ".." in name]
        tar.extractall(to)
    return to / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """An unpacked source distribution."""
    at = tmp_path_factory.mktemp("sdist")
    return unpack(make_sdist(ROOT / "python", at), at)


def differing(a, b):
    """What is in one of two directories, or differs."""
    compared = filecmp.dircmp(a, b)
    here = [*compared.left_only, *compared.right_only, *compared.diff_files, *compared.funny_files]
    below = [differing(a / name, b / name) for name in compared.common_dirs]
    return sum(below, [f"{a}/{name}" for name in here])


@pytest.mark.parametrize("directory", ["include", "src", "adapters"])
def test_it_has_all_c_sources(package, directory):
    assert not differing(ROOT / directory, package / "sources" / directory)


def test_it_has_the_package(package):
    assert not differing(ROOT / "python" / "attune", package / "attune")
    assert (package / "PKG-INFO").exists() and (package / "pyproject.toml").exists()


def test_make_finds_all_that_a_wheel_needs(package):
    """The rules for generated headers run programs of the tree; the other rules are only asked for."""
    generated = [f"{BUILD}/gen/generator_id.h"]
    adapters = [f"wheel/libattune-{engine}.so" for engine in ("torch", "ort", "jax", "tvm")]
    products = ["wheel/libattune.so.0", *adapters, "libattune-codegen.so", "attune-codegen-worker"]
    tier0 = "libattune-tier0.so"
    make = ["make", "-C", package / "sources", "DEPS=no", f"BUILD={BUILD}"]
    run(*make, *generated, LLVM_VERSION="19.1.7")
    commands = run(*make, "-n", *(f"{BUILD}/{name}" for name in (*products, tier0)))
    assert all(f"-o {BUILD}/{name}" in commands for name in products)
    assert f"scripts/tier0.sh {BUILD}/{tier0}" in commands


def test_a_distribution_of_a_distribution_is_the_same(package, tmp_path):
    again = unpack(make_sdist(package, tmp_path), tmp_path)
    assert not differing(package / "sources" / "src", again / "sources" / "src")


@pytest.mark.slow
def test_a_wheel_is_built_from_it_alone(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(python, "-m", "pip", "install", make_sdist(ROOT / "python", tmp_path))
    assert run(python, "-c", PROGRAM, ATTUNE_CACHE_DIR="") == "ran\n"


NOTICE = """
import pathlib, runpy, setuptools, sys
setuptools.setup = lambda **options: None
runpy.run_path("python/setup.py")["Build"].notice(pathlib.Path(sys.argv[1]))
"""


def test_a_wheel_needs_its_notice(tmp_path):
    run(sys.executable, "-c", NOTICE, tmp_path, BUILD=str(BUILD))
    assert "Copyright" in (tmp_path / "NOTICE").read_text()
    (tmp_path / "NOTICE").unlink()
    with pytest.raises(AssertionError, match="needs the copyright notice of xxhash.h"):
        run(sys.executable, "-c", NOTICE, tmp_path, BUILD=str(BUILD), CC="false")
    assert not list(tmp_path.iterdir())
