"""Types: a checker passes over the package, the examples and a call of every public name, and notices wrong calls."""

import ast
import importlib.util
import pathlib
import subprocess
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[3]
PACKAGE, CALLS = TOP / "python/attune", pathlib.Path(__file__).with_name("typed_calls.py")
if importlib.util.find_spec("mypy") is None:
    pytest.skip("mypy is not installed", allow_module_level=True)


def mypy(*arguments, config="mypy.ini"):
    command = [sys.executable, "-m", "mypy", "--config-file", str(TOP / "python" / config), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return f"--cache-dir={tmp_path_factory.mktemp('mypy')}"


def test_the_package_passes(cache):
    assert mypy(cache, "--package=attune") == (0, mypy_success(len(list(PACKAGE.rglob("*.py")))))


@pytest.mark.slow  # half a minute: PyTorch is large
def test_the_package_passes_with_the_types_of_engines(cache):
    for engine in "torch", "transformers", "onnx", "jax", "matplotlib":
        if importlib.util.find_spec(engine) is None:
            pytest.skip(f"{engine} is not installed")
    passed = (0, mypy_success(len(list(PACKAGE.rglob("*.py")))))
    assert mypy(f"{cache}-engines", "--package=attune", config="mypy_engines.ini") == passed


def mypy_success(count):
    return f"Success: no issues found in {count} source files\n"


def test_calls_and_examples_pass(cache):
    files = [CALLS, *sorted((TOP / "examples/python").glob("*.py"))]
    assert mypy(cache, *files) == (0, mypy_success(len(files)))


def public_names():
    """(module, name) of all that a module lists in __all__. No engine is imported."""
    for path in [*PACKAGE.glob("*.py"), *PACKAGE.glob("*/__init__.py")]:
        module = path.parent.name if path.name == "__init__.py" else path.stem
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                for name in ast.literal_eval(node.value):
                    yield f"{module}.{name}"


def test_every_public_name_is_called():
    text = CALLS.read_text()
    names = list(public_names())
    assert len(names) > 60 and [name for name in names if name not in text] == []


WRONG = {
    'attune.attention(1, 2, 3, mask=4)': 'Unexpected keyword argument "mask"',
    'attune.Attention(num_heads="8", head_dim=64)': 'Argument "num_heads" to "Attention" has incompatible type "str"',
    'attune.Plan("num_heads=8").missing': '"Plan" has no attribute "missing"',
    'x: int = attune.explain("num_heads=8")': 'expression has type "str", variable has type "int"',
}


def test_wrong_calls_are_noticed(cache, tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("\n".join(["import attune", *WRONG]))
    status, text = mypy(cache, file)
    assert status == 1
    for line, expected in enumerate(WRONG.values(), 2):
        assert any(f"wrong.py:{line}: error: {expected}" in said.replace("Incompatible types in assignment (", "")
                   for said in text.splitlines()), text
