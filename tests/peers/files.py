"""Arrays and weights in files, as users have them."""
import json
import pathlib
import struct

import numpy

TYPES = {"float32": "F32", "float64": "F64"}


def write_array(path, array):
    numpy.save(path, numpy.ascontiguousarray(array).reshape(array.shape))


def write_safetensors(path, tensors):
    """The length of a JSON directory, the directory, and the raw tensors in the order of the dictionary."""
    directory, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        directory[name] = {
            "dtype": TYPES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(directory, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_directory(path, tensors):
    """NAME.npy for each; a file's name cannot hold a slash."""
    pathlib.Path(path).mkdir()
    for name, array in tensors.items():
        write_array(pathlib.Path(path) / f"{name.replace('/', '.')}.npy", array)
