"""Programs in the pages about frameworks run, and print what the page says."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
BLOCKS = re.compile(r"<!-- file: \S+\.py -->\n```python\n(.*?)^```\n.*?^```text\n(.*?)^```", re.S | re.M)
PAGES = {
    "pytorch.md": ["torch"],
    "transformers.md": ["torch", "transformers"],
    "onnxruntime.md": ["onnxruntime", "onnx"],
    "jax.md": ["jax"],
    "tvm.md": ["tvm_ffi"],
}


@pytest.mark.parametrize("page", PAGES)
def test_programs_of_a_page_print_what_it_says(page, tmp_path):
    for module in PAGES[page]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    blocks = BLOCKS.findall((DOCS / page).read_text())
    assert blocks, "the page has no program"
    for program, said in blocks:
        path = tmp_path / "program.py"
        path.write_text(program)
        run = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr
        assert run.stdout == said
