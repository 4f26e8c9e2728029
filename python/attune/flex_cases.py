"""Cases of flex_attention as text of problems: python3 -m attune.flex_cases FOLDER OUT && attune-lab conform OUT

FOLDER has folders with case.json, whose score_mod and mask_mod are the bodies of functions for PyTorch's flex_attention
(of score, b, h, q_idx, kv_idx), and .npy files: q, k, v, out, lse, and the tensors that the functions use. For each the
tracer writes a case for `attune-lab conform` below OUT: the problem's text, and its tensors.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, Iterator, Tuple

import numpy as np

from ._flex import _as_taken, described

_FUNCTIONS = {"score_mod": "score, b, h, q_idx, kv_idx", "mask_mod": "b, h, q_idx, kv_idx"}


def functions_of(case: Dict[str, Any], tensors: Dict[str, Any]) -> Dict[str, Any]:
    """The case's functions, which reach `tensors`, torch tensors by name, as they would reach globals."""
    import torch

    names = {"torch": torch, **tensors}
    return {name: None if case.get(name) is None else eval(f"lambda {operands}: {case[name]}", dict(names))
            for name, operands in _FUNCTIONS.items()}


def read(folder: str) -> Tuple[Dict[str, Any], Dict[str, Any], Dict[str, Any]]:
    """Of a case: its case.json, its arrays by name, and the keywords of flex_attention."""
    import torch

    with open(os.path.join(folder, "case.json"), encoding="utf-8") as file:
        case = json.load(file)
    names = ["q", "k", "v", "out", "lse", *case["tensors"]]
    arrays = {name: np.load(os.path.join(folder, name + ".npy")) for name in names}
    keywords = functions_of(case, {name: torch.from_numpy(arrays[name]) for name in case["tensors"]})
    keywords.update(scale=case["softmax_scale"], enable_gqa=case["num_heads"] != case["num_kv_heads"], return_lse=True)
    return case, arrays, keywords


def write(folder: str, to: str) -> str:
    """Writes one case for attune-lab conform; returns the problem's text."""
    case, arrays, keywords = read(folder)
    fields, tracer, tensors = described(arrays["q"], arrays["k"], arrays["v"], **keywords)
    fields["tensors"] = tracer.declarations()
    text = ",".join(f"{name}={int(value) if isinstance(value, bool) else value}"
                    for name, value in fields.items() if value is not None)
    inputs = {name: np.asarray(tensors[name]) for name in "qkv"}
    inputs.update({name: np.asarray(_as_taken(value, name)) for name, value in tracer.tensors.items()})
    os.makedirs(to, exist_ok=True)
    for name, array in {**inputs, "out": arrays["out"], "lse": arrays["lse"]}.items():
        np.save(os.path.join(to, name + ".npy"), np.ascontiguousarray(array))
    written = {"op": "Problem", "problem": text, "attributes": {}, "inputs": {name: name + ".npy" for name in inputs},
               "outputs": {"out": "out.npy", "lse": "lse.npy"}, "rtol": case["rtol"], "atol": case["atol"]}
    with open(os.path.join(to, "case.json"), "w", encoding="utf-8") as file:
        json.dump(written, file, indent=1)
    return text


def cases(folder: str) -> Iterator[str]:
    """The names of the cases in a folder."""
    return (name for name in sorted(os.listdir(folder)) if os.path.exists(os.path.join(folder, name, "case.json")))


def main(arguments: list) -> int:
    if len(arguments) != 2:
        print("usage: python3 -m attune.flex_cases FOLDER OUT", file=sys.stderr)
        return 2
    for name in cases(arguments[0]):
        print(name + ": " + write(os.path.join(arguments[0], name), os.path.join(arguments[1], name)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
