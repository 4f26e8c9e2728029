"""adapters/jax/xla_ffi.h beside the header that comes with jaxlib, by the C compiler."""

import pathlib
import re
import shutil
import subprocess

import pytest
from jax_support import jax

ADAPTER = pathlib.Path(__file__).resolve().parents[3] / "adapters" / "jax"
STRUCTS = {
    "xla_extension": ("XLA_FFI_Extension_Base", {"type": "type", "next": "next"}),
    "xla_version": ("XLA_FFI_Api_Version", {"major": "major_version", "minor": "minor_version"}),
    "xla_metadata": ("XLA_FFI_Metadata", {"version": "api_version", "traits": "traits"}),
    "xla_metadata_extension": ("XLA_FFI_Metadata_Extension", {"base": "extension_base", "metadata": "metadata"}),
    "xla_buffer": ("XLA_FFI_Buffer", {name: name for name in ("dtype", "data", "rank", "dims")}),
    "xla_text": ("XLA_FFI_ByteSpan", {"data": "ptr", "length": "len"}),
    "xla_values": ("XLA_FFI_Args", {"count": "size", "types": "types", "values": "args"}),
    "xla_values ": ("XLA_FFI_Rets", {"count": "size", "types": "types", "values": "rets"}),
    "xla_attributes": ("XLA_FFI_Attrs", {"count": "size", "types": "types", "names": "names", "values": "attrs"}),
    "xla_call_frame": (
        "XLA_FFI_CallFrame",
        {
            "api": "api", "context": "ctx", "stage": "stage", "operands": "args", "results": "rets",
            "attributes": "attrs",
        },
    ),
    "xla_error_create": ("XLA_FFI_Error_Create_Args", {"message": "message", "code": "errc"}),
    "xla_error_destroy": ("XLA_FFI_Error_Destroy_Args", {"error": "error"}),
    "xla_schedule": ("XLA_FFI_ThreadPool_Schedule_Args", {"context": "ctx", "task": "task", "data": "data"}),
    "xla_num_threads": ("XLA_FFI_ThreadPool_NumThreads_Args", {"context": "ctx", "num_threads": "num_threads"}),
    "xla_api": (
        "XLA_FFI_Api",
        {
            "version": "api_version", "error_create": "XLA_FFI_Error_Create", "error_destroy": "XLA_FFI_Error_Destroy",
            "schedule": "XLA_FFI_ThreadPool_Schedule", "num_threads": "XLA_FFI_ThreadPool_NumThreads",
        },
    ),
}  # fmt: skip
NUMBERS = {
    "XLA_EXTENSION_METADATA": "XLA_FFI_Extension_Metadata", "XLA_PRED": "XLA_FFI_DataType_PRED",
    "XLA_S32": "XLA_FFI_DataType_S32", "XLA_F16": "XLA_FFI_DataType_F16", "XLA_F32": "XLA_FFI_DataType_F32",
    "XLA_F64": "XLA_FFI_DataType_F64", "XLA_BF16": "XLA_FFI_DataType_BF16", "XLA_BUFFER": "XLA_FFI_ArgType_BUFFER",
    "XLA_STRING": "XLA_FFI_AttrType_STRING", "XLA_EXECUTE": "XLA_FFI_ExecutionStage_EXECUTE",
    "XLA_CANCELLED": "XLA_FFI_Error_Code_CANCELLED", "XLA_INVALID_ARGUMENT": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "XLA_RESOURCE_EXHAUSTED": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "XLA_FAILED_PRECONDITION": "XLA_FFI_Error_Code_FAILED_PRECONDITION",
    "XLA_UNIMPLEMENTED": "XLA_FFI_Error_Code_UNIMPLEMENTED", "XLA_INTERNAL": "XLA_FFI_Error_Code_INTERNAL",
    "XLA_FFI_MAJOR": "XLA_FFI_API_MAJOR",
}  # fmt: skip


def compiled(text, folder):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    (folder / "abi.c").write_text(text)
    command = [compiler, "-c", "-std=c11", f"-I{ADAPTER}", f"-I{jax.ffi.include_dir()}", "abi.c", "-o", "abi.o"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def program():
    lines = ['#include "xla/ffi/api/c_api.h"', '#include "xla_ffi.h"']
    for ours, (theirs, fields) in STRUCTS.items():
        for mine, other in fields.items():
            theirs_at, ours_at = f"offsetof({theirs}, {other})", f"offsetof({ours}, {mine})"
            lines.append(f'_Static_assert({theirs_at} == {ours_at}, "{ours}.{mine}");')
            sizes = f"sizeof((({theirs} *)0)->{other}) == sizeof((({ours} *)0)->{mine})"
            lines.append(f'_Static_assert({sizes}, "size of {ours}.{mine}");')
    lines += [f'_Static_assert((int){theirs} == (int){ours}, "{ours}");' for ours, theirs in NUMBERS.items()]
    return "\n".join(lines) + "\n"


def test_layouts_are_those_of_the_header(tmp_path):
    done = compiled(program(), tmp_path)
    assert not done.returncode, done.stderr


def test_the_comparison_can_fail(tmp_path):
    text = program().replace("offsetof(xla_buffer, data)", "offsetof(xla_buffer, rank)")
    done = compiled(text, tmp_path)
    assert done.returncode and "xla_buffer.data" in done.stderr


def test_every_number_and_struct_is_compared():
    header = (ADAPTER / "xla_ffi.h").read_text()
    structs = set(re.findall(r"^} (xla_\w+);", header, re.M)) | {"xla_api"}
    assert structs == {name.strip() for name in STRUCTS}
    numbers = set(re.findall(r"\b(XLA_\w+) = ", header))
    assert numbers - {"XLA_FFI_MINOR"} == set(NUMBERS)
