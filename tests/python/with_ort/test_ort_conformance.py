"""ONNX's cases of Attention, through ONNX Runtime, by both entries."""

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime
import ort_support as support
import pytest

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = Path(os.environ.get("CONFORMANCE_DIR", ROOT.parent / "shared" / "conformance"))
ROOTS = (ROOT / "tests" / "data" / "conform", PUBLIC)
FOLDERS = sorted(case.parent for root in ROOTS for case in root.rglob("case.json"))
CASES = [folder for folder in FOLDERS if json.loads((folder / "case.json").read_text())["op"] == "Attention"]
INPUTS = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
OUTPUTS = ["Y", "present_key", "present_value", "qk_matmul_output"]


def load(folder, files):
    return {name: np.load(folder / file) for name, file in files.items()}


def can(arrays):
    """No bfloat16, which NumPy lacks, and masks of bool or numbers with a fraction."""
    mask = arrays.get("attn_mask")
    return all(array.dtype.kind != "V" for array in arrays.values()) and (mask is None or mask.dtype.kind in "bf")


@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder, entry):
    case = json.loads((folder / "case.json").read_text())
    given = load(folder, case["inputs"])
    if not can(given):
        pytest.skip("of a type that this test cannot feed")
    expected = load(folder, case["outputs"])
    inputs = {name: given.get(name) for name in INPUTS}
    outputs = [(name if name in expected else "", support.TYPES[given["V" if "value" in name else "Q"].dtype])
               for name in OUTPUTS[: 1 + max(OUTPUTS.index(name) for name in expected)]]
    opset = 24 if "nonpad_kv_seqlen" in given or "_24_" in folder.name else 23
    if any("window" in name for name in case["attributes"]):
        opset = 25
        if entry == "ep" and tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 25):
            pytest.skip("this ONNX Runtime knows no opset 25")
    model = support.model("Attention", inputs, outputs, opset=opset, **case["attributes"])
    before = support.ran("Attention")
    results = support.session(model, entry).run(list(expected), support.feeds(inputs))
    assert support.ran("Attention") == before + 1
    for (name, wanted), result in zip(expected.items(), results):
        np.testing.assert_allclose(result, wanted, rtol=case["rtol"], atol=case["atol"], err_msg=name)


def test_there_are_cases():
    assert len(CASES) >= 5
