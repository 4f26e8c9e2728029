"""Functions as Python text, in files: by attune.flex_attention, and as problems that the tracer wrote, which attune-lab
conform runs by machine code and by the interpreter. FLEX_CASES is a folder of such cases; those here are made in the
test, and those of the folder are run as well where it is."""

import json
import os
import subprocess

import attune
import attune.flex_cases as flex_cases
import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = os.path.join(os.path.dirname(__file__), "..", "..", "..")
FOLDER = os.environ.get("FLEX_CASES", os.path.join(ROOT, "..", "shared", "flex-attention"))
ATTUNE = os.path.join(ROOT, os.environ.get("BUILD", "build"), "attune-lab")
NAMES = list(flex_cases.cases(FOLDER)) if os.path.isdir(FOLDER) else []

OWN = {
    "bias_by_distance": ("score + table[q_idx - kv_idx + 20]", "q_idx >= kv_idx", {"table": (45,)}),
    "by_head": ("score * gain[h] + torch.where(kv_idx % 2 == 0, 0.5, 0.0)", None, {"gain": (2,)}),
    "lengths": (None, "(kv_idx < lens[b]) & (q_idx // 4 != 3)", {"lens": [9, 25]}),
}


def own_case(folder, name):
    """Expected results in f64, from the definition."""
    score_mod, mask_mod, tensors = OWN[name]
    rng = np.random.default_rng(5)
    arrays = {key: rng.standard_normal((2, 2, rows, 16)).astype("f4") for key, rows in zip("qkv", (21, 25, 25))}
    arrays.update({key: np.array(shape) if isinstance(shape, list) else rng.standard_normal(shape).astype("f4")
                   for key, shape in tensors.items()})
    case = {"score_mod": score_mod, "mask_mod": mask_mod, "tensors": {key: [] for key in tensors}, "num_heads": 2,
            "num_kv_heads": 2, "softmax_scale": None, "rtol": 1e-4, "atol": 2e-6}
    functions = flex_cases.functions_of(case, {key: torch.from_numpy(arrays[key]) for key in tensors})
    q, k, v = (torch.from_numpy(arrays[key]).double() for key in "qkv")
    scores = q @ k.mT / 4
    at = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    if score_mod:
        scores = functions["score_mod"](scores, *at)
    if mask_mod:
        scores = torch.where(functions["mask_mod"](*at), scores, -torch.inf)
    arrays["out"] = (torch.softmax(scores, -1).nan_to_num(0) @ v).numpy().astype("f4")
    arrays["lse"] = torch.logsumexp(scores, -1).numpy().astype("f4")
    os.makedirs(folder)
    for key, array in arrays.items():
        np.save(os.path.join(folder, key + ".npy"), array)
    with open(os.path.join(folder, "case.json"), "w") as file:
        json.dump(case, file)


def check_directly(folder):
    case, arrays, keywords = flex_cases.read(folder)
    got = attune.flex_attention(*(torch.from_numpy(arrays[key]) for key in "qkv"), **keywords)
    for value, name in zip(got, ("out", "lse")):
        np.testing.assert_allclose(value.numpy(), arrays[name], case["rtol"], case["atol"])


def conform(folder):
    return subprocess.run([ATTUNE, "conform", str(folder)], capture_output=True, text=True)


@pytest.mark.parametrize("name", sorted(OWN))
def test_own(name, tmp_path):
    own_case(tmp_path / "from" / name, name)
    check_directly(tmp_path / "from" / name)
    assert flex_cases.main([str(tmp_path / "from"), str(tmp_path / "to")]) == 0
    ran = conform(tmp_path / "to")
    assert ran.stdout == "1 passed, 0 failed\n" and ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.skipif(not NAMES, reason=f"there is no folder {FOLDER} (FLEX_CASES)")
def test_folder(tmp_path):
    for name in NAMES:
        check_directly(os.path.join(FOLDER, name))
    assert flex_cases.main([FOLDER, str(tmp_path)]) == 0
    ran = conform(tmp_path)
    assert ran.stdout == f"{len(NAMES)} passed, 0 failed\n" and ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("change, message", [
    ({"problem": "num_heads=2"}, "seq_q"),
    ({"problem": None}, 'case.json has no "problem" that is a text'),
    ({"inputs": {"q": "q.npy", "k": "k.npy"}}, "the problem has a tensor 'v'; the case does not"),
    ({"inputs": {"q": "q.npy", "k": "k.npy", "v": "v.npy", "w": "v.npy"}}, "the problem has no input 'w'"),
    ({"inputs": {"q": "k.npy", "k": "k.npy", "v": "v.npy"}}, "q is of shape"),
    ({"inputs": {"q": "lens.npy", "k": "k.npy", "v": "v.npy"}}, "q is of dtype '<i8'"),
])
def test_broken_cases(change, message, tmp_path):
    own_case(tmp_path / "from", "lengths")
    np.save(tmp_path / "from" / "lse.npy", np.zeros((2, 2, 21), "f4"))
    case = {"op": "Problem", "problem": "batch=2,num_heads=2,seq_q=21,seq_kv=25,head_dim=16", "attributes": {},
            "inputs": {name: name + ".npy" for name in "qkv"}, "outputs": {"out": "out.npy"}, "rtol": 1, "atol": 1,
            **change}
    with open(tmp_path / "from" / "case.json", "w") as file:
        json.dump({name: value for name, value in case.items() if value is not None}, file)
    ran = conform(tmp_path / "from")
    assert ran.returncode == 1 and message in ran.stdout, ran.stdout
