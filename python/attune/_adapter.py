"""Finds and loads the adapters of engines: libattune-torch.so, libattune-ort.so and the others."""

from __future__ import annotations

import ctypes
import os
import pathlib
from typing import Any, Dict


def path(name: str, file: str = "") -> str:
    """The path of libattune-NAME.so, or of `file`: ATTUNE_NAME_LIBRARY, else beside the libattune.so that is asked for,
    in the package, or in a source tree."""
    named = os.environ.get(f"ATTUNE_{name.upper()}_LIBRARY")
    if named:
        return named
    here, file = pathlib.Path(__file__).resolve(), file or f"libattune-{name}.so"
    folders = [here.parent / "lib", here.parents[2] / "build"]
    if os.environ.get("ATTUNE_LIBRARY"):
        folders.insert(0, pathlib.Path(os.environ["ATTUNE_LIBRARY"]).resolve().parent)
    for folder in folders:
        if (folder / file).exists():
            return str(folder / file)
    raise ImportError(f"{file} was not found in " + ", ".join(map(str, folders)))


def load(name: str) -> ctypes.CDLL:
    """The adapter. The libattune.so that is asked for comes first: the adapter takes what is loaded."""
    if os.environ.get("ATTUNE_LIBRARY"):
        ctypes.CDLL(os.environ["ATTUNE_LIBRARY"])
    return ctypes.CDLL(path(name))


def counters(function: Any) -> Dict[str, int]:
    """The counters of an adapter by name. function: attune_torch_stats, or that of another adapter."""
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    size = 4096
    while True:
        text = ctypes.create_string_buffer(size)
        length = function(text, size)
        if length < size:
            break
        size = length + 256
    lines = (line.rsplit(" ", 1) for line in text.value.decode().splitlines())
    return {name: int(count) for name, count in lines}
