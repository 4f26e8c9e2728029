"""One spelling of each option: Python, PyTorch's operators, JAX and TVM-FFI have the names of problems and of
attune/attention.h and its like. What JAX's own function has is named as there."""

import ast
import inspect
import re
import subprocess
from pathlib import Path

import attune
import pytest

TOP = Path(__file__).resolve().parents[3]
# In C an object has the context; `gate` is a tensor of its steps, and a function of its description.
PYTHON = {"self", "context", "gate_function"}
OF_JAX = {"query", "key", "value", "bias", "mask", "scale", "is_causal", "query_seq_lengths", "key_value_seq_lengths",
          "local_window_size", "return_residual"}


def text_of(path):
    return (TOP / path).read_text()


def members_of(header):
    """Of the structs that a caller fills in."""
    code = re.sub(r"/\*.*?\*/", "", text_of(f"include/attune/{header}.h"), flags=re.S)
    structs = re.findall(r"typedef struct attune_(?:\w+_)?(?:desc|step|weights) \{(.*?)\n\}", code, flags=re.S)
    return set(re.findall(r"(\w+)(?=\s*[;,])", " ".join(structs)))


@pytest.fixture(scope="module")
def names():
    """Fields of problems, their tensors, and members of the engine tier's structs."""
    listed = subprocess.run(["bash", TOP / "scripts/problem_fields.sh"], capture_output=True, text=True, check=True)
    fields = {name for line in listed.stdout.splitlines() for name in line.split()[1:]}
    members = members_of("attention")
    tensors = set(re.findall(r'"([a-z_]+)"', text_of("src/problem/signature.c")))
    assert len(fields) > 70 and len(members) > 40 and len(tensors) > 20
    return fields | members | tensors


def parameters(path, function):
    """The names of a function's arguments, without importing an engine."""
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return [one.arg for one in (*node.args.args, *node.args.kwonlyargs)]
    raise AssertionError(f"{path} has no {function}")


def unknown(found, allowed):
    assert len(found) > 3
    return [name for name in found if name not in allowed]


@pytest.mark.parametrize("function", [attune.attention, attune.Attention.__init__, attune.Attention.run,
                                      attune.Attention.plan, attune.StepPlan.run])
def test_python_has_the_names_of_c(names, function):
    assert unknown(inspect.signature(function).parameters, names | PYTHON) == []


@pytest.mark.parametrize("header, function", [
    ("linear", attune.linear_attention), ("linear", attune.causal_conv), ("index", attune.index),
    ("mla", attune.MLA.__init__), ("mla", attune.MLA.run), ("blocks", attune.blocks.scores),
])
def test_operators_of_python_have_the_names_of_c(header, function):
    assert unknown(inspect.signature(function).parameters, members_of(header) | PYTHON | {"weights"}) == []


@pytest.mark.parametrize("path, header", [
    ("adapters/torch/op_define.c", "attention"), ("python/attune/torch/_step_ops.py", "attention"),
    ("python/attune/torch/_linear_op.py", "linear"), ("python/attune/torch/_index_op.py", "index"),
    ("python/attune/torch/_blocks_op.py", "blocks"),
])
def test_operators_of_torch_have_them(names, path, header):
    if header != "attention":
        names = members_of(header) | PYTHON
    schema = r"(?:Tensor(?:\([a-z]!\))?\??|bool|int|str|float\??) (\w+)(?==|,|\))"
    found = [name for part in re.findall(r'"([^"]*(?:\\"[^"]*)*)"', text_of(path)) for name in re.findall(schema, part)]
    assert unknown(found, names) == []


def test_jax_has_them_beyond_its_own(names):
    assert unknown(parameters("python/attune/jax/_attention.py", "attention"), names | OF_JAX) == []
    own = parameters("python/attune/jax/_linear.py", "linear_attention")
    assert unknown(own, members_of("linear") | PYTHON) == []


def test_tvm_has_them(names):
    line = re.search(r"/\* ---- attention\((.*?)\)", text_of("adapters/tvm/module.c"))[1]
    assert unknown(line.split(", "), names) == []


def test_another_spelling_is_found(names):
    assert unknown(["q", "k", "v", "is_causal", "softcap", "window"], names) == ["softcap", "window"]
