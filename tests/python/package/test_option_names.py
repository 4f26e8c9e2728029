"""One spelling of each option: Python, PyTorch's operators, JAX and TVM-FFI have the names of problems and of
attune/attention.h. What JAX's own function has is named as there."""

import ast
import inspect
import re
import subprocess
from pathlib import Path

import attune
import pytest

TOP = Path(__file__).resolve().parents[3]
# Of Python alone: sizes of a problem are told by arrays, and a call has no context or threads of its own in C.
PYTHON = {"self", "layout", "kv", "threads", "context", "runner", "bindings"}
OF_JAX = {"query", "key", "value", "bias", "mask", "scale", "is_causal", "query_seq_lengths", "key_value_seq_lengths",
          "local_window_size", "return_residual"}


def text_of(path):
    return (TOP / path).read_text()


@pytest.fixture(scope="module")
def names():
    """Fields of problems, their tensors, and members of the engine tier's structs."""
    listed = subprocess.run(["bash", TOP / "scripts/problem_fields.sh"], capture_output=True, text=True, check=True)
    fields = {name for line in listed.stdout.splitlines() for name in line.split()[1:]}
    header = re.sub(r"/\*.*?\*/", "", text_of("include/attune/attention.h"), flags=re.S)
    structs = re.findall(r"typedef struct attune_(?:attention_desc|step) \{(.*?)\n\}", header, flags=re.S)
    members = set(re.findall(r"(\w+)(?=\s*[;,])", " ".join(structs)))
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
                                      attune.Attention.plan])
def test_python_has_the_names_of_c(names, function):
    assert unknown(inspect.signature(function).parameters, names | PYTHON) == []


@pytest.mark.parametrize("path", ["adapters/torch/op_define.c", "python/attune/torch/_step_ops.py"])
def test_operators_of_torch_have_them(names, path):
    schema = r"(?:Tensor(?:\([a-z]!\))?\??|bool|int|str|float\??) (\w+)(?==|,|\))"
    found = [name for part in re.findall(r'"([^"]*(?:\\"[^"]*)*)"', text_of(path)) for name in re.findall(schema, part)]
    assert unknown(found, names) == []


def test_jax_has_them_beyond_its_own(names):
    assert unknown(parameters("python/attune/jax/_attention.py", "attention"), names | OF_JAX) == []


def test_tvm_has_them(names):
    line = re.search(r"/\* ---- attention\((.*?)\)", text_of("adapters/tvm/module.c"))[1]
    assert unknown(line.split(", "), names) == []


def test_another_spelling_is_found(names):
    assert unknown(["q", "k", "v", "is_causal", "softcap", "window"], names) == ["softcap", "window"]
