"""The slots that adapters/ort/ort_abi.h declares, beside the C interface of the ONNX Runtime that is installed."""

import ctypes
import re
from pathlib import Path

import onnxruntime
import pytest

import attune.ort

HEADER = Path(__file__).resolve().parents[3] / "adapters" / "ort" / "ort_abi.h"


class Base(ctypes.Structure):
    _fields_ = [("GetApi", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)),
                ("GetVersionString", ctypes.CFUNCTYPE(ctypes.c_char_p))]


def members(table):
    """Names of members by their slot."""
    text = HEADER.read_text()
    if table == "ort_api":
        body = text[text.index("typedef struct ort_api {"):text.index("} ort_api;")]
    else:
        body = text[text.index(f"struct {table} {{\n"):]
        body = body[:body.index("\n};")]
    slots, slot = {}, 0
    for match in re.finditer(r"ORT_GAP\(\w+, (\d+)\)|^    [^\n(]*\(\*(\w+)\)\(", body, re.M):
        if match[1]:
            slot += int(match[1])
        else:
            slots[match[2]] = slot
            slot += 1
    return slots


def fake_base(version):
    """An ONNX Runtime that says it is another version, and has the real one's functions."""
    loaded = ctypes.CDLL(library())
    if not hasattr(loaded, "OrtGetApiBase"):
        pytest.skip("this ONNX Runtime does not export its C interface")
    real = ctypes.cast(loaded.OrtGetApiBase, ctypes.CFUNCTYPE(ctypes.POINTER(Base)))().contents
    get_api = Base._fields_[0][1](lambda wanted: real.GetApi(wanted))
    get_version = Base._fields_[1][1](lambda: version)
    base = Base(get_api, get_version)
    base.kept = real, get_api, get_version
    return base, real


def library():
    folder = Path(onnxruntime.__file__).parent / "capi"
    return str(next(iter([*folder.glob("libonnxruntime.so.*"), *folder.glob("onnxruntime_pybind11_state*.so")])))


def message_of(real, status):
    api = ctypes.cast(real.GetApi(1), ctypes.POINTER(ctypes.c_void_p))
    text = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(api[2])(status).decode()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(api[93])(status)
    return text


@pytest.mark.parametrize("version, entry, sentence", [
    (b"1.16.3", "RegisterCustomOps", "attune needs ONNX Runtime 1.17 or newer for this; this one is 1.16.3"),
    (b"1.23.0", "CreateEpFactories", "attune needs ONNX Runtime 1.24 or newer for this; this one is 1.23.0"),
    (b"nonsense", "RegisterCustomOps", "attune needs ONNX Runtime 1.17 or newer for this; this one is nonsense"),
])
def test_older_versions_are_refused(version, entry, sentence):
    base, real = fake_base(version)
    function = getattr(ctypes.CDLL(attune.ort.library_path()), entry)
    function.restype = ctypes.c_void_p
    count = ctypes.c_size_t(7)
    factories = (ctypes.c_void_p * 1)()
    if entry == "RegisterCustomOps":
        status = function(None, ctypes.byref(base))
    else:
        status = function(b"attune", ctypes.byref(base), None, factories, ctypes.c_size_t(1), ctypes.byref(count))
        assert count.value == 0
    assert message_of(real, status) == sentence


def test_slots_by_calling_them():
    """Functions whose effect can be seen from here lie where the header says."""
    slots = members("ort_api")
    _, real = fake_base(b"")
    api = ctypes.cast(real.GetApi(17), ctypes.POINTER(ctypes.c_void_p))
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(api[slots["CreateStatus"]])
    status = create(2, b"a sentence")
    text = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(api[slots["GetErrorMessage"]])(status)
    assert text == b"a sentence"
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(api[slots["ReleaseStatus"]])(status)
    assert slots["KernelContext_ParallelFor"] == 274 and slots["OpAttr_GetName"] == 364
    assert slots["CreateOpAttr"] == 211 and slots["Graph_GetModelPath"] == 334
    assert members("ort_ep_api")["EpGraphSupportInfo_LookUpKernel"] == 41
