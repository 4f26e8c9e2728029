#!/usr/bin/env python3
"""Loads PyTorch and attune into one process, in both orders and into the global scope, and reads from the dynamic
linker which symbols of whom were bound to what: nothing of attune's may be bound to PyTorch's libraries, and the other
way round.

usage: bindings.py BUILD. The last line is "N passed, N failed".
"""
import collections
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BINDING = re.compile(r"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: (?:normal|protected) symbol [`'](\S+?)'")
SYSTEM = re.compile(r"(libc|libm|ld-linux[a-z0-9-]*)\.so\.\d+")
OURS = ("libattune.so.0", "libattune-codegen.so")
KERNEL = b"kernel @double (x: f32[4] in, o: f32[4] out) { parallel for i in 0..4 { o[i] = x[i] + x[i] } }"


def load_torch():
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    import torch

    ones = torch.ones(2, 4, 16, 8)
    torch.nn.functional.scaled_dot_product_attention(ones, ones, ones)


def load_attune(library):
    attune = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    attune.attune_last_message.restype = ctypes.c_char_p
    context, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    # A kernel of the IR is never cached, so this loads the code generator.
    if attune.attune_context_create(None, ctypes.byref(context)) or attune.attune_ir_compile(
        context, KERNEL, ctypes.byref(kernel)
    ):
        sys.exit(f"attune: {attune.attune_last_message().decode()}")
    x, o = (ctypes.c_float * 4)(1, 2, 3, 4), (ctypes.c_float * 4)()
    buffers = (ctypes.c_void_p * 2)(ctypes.addressof(x), ctypes.addressof(o))
    if attune.attune_ir_run(context, kernel, 0, buffers, None) or list(o) != [2, 4, 6, 8]:
        sys.exit(f"attune computes {list(o)}: {attune.attune_last_message().decode()}")


def in_this_process(order, library):
    for name in order.split(","):
        if name == "torch":
            load_torch()
        else:
            load_attune(library)


def read_bindings(order, library):
    """How often one file's symbol was bound to another file, in a process that loads both in this order."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        env = os.environ | {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(log), "LD_BIND_NOW": "1"}
        env |= {"ATTUNE_CACHE_DIR": "", "ATTUNE_COMPILE": "in-process"}
        subprocess.run([sys.executable, "-B", __file__, "--child", order, library], env=env, check=True)
        found = collections.Counter()
        for file in pathlib.Path(folder).iterdir():
            with open(file, errors="replace") as lines:
                for line in lines:
                    if match := BINDING.search(line):
                        source, target, symbol = match.groups()
                        found[pathlib.Path(source).name, pathlib.Path(target).name, symbol] += 1
    return found


def offences(found):
    for source, target, symbol in sorted(found):
        takes = source in OURS and target != source and not SYSTEM.fullmatch(target)
        if takes or target in OURS and source != target:
            yield f"{source} takes {symbol} from {target}"


def main():
    if sys.argv[1] == "--child":
        return in_this_process(sys.argv[2], sys.argv[3])
    library = str(pathlib.Path(sys.argv[1]).resolve() / "libattune.so.0")
    orders, failed = ("torch,attune", "attune,torch"), 0
    for order in orders:
        found = read_bindings(order, library)
        sources = {source for source, _, _ in found}
        wrong = list(offences(found))
        if not sources >= {*OURS, "libtorch_cpu.so"}:
            wrong.append("the dynamic linker told of bindings of " + ", ".join(sorted(sources)))
        print(f"{'failed' if wrong else 'passed'} bindings: {order}, {len(found)} of them")
        for one in wrong[:20]:
            print(f"  {one}")
        failed += bool(wrong)
    print(f"{len(orders) - failed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
