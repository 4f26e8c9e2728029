"""Fills in the columns of the table in docs/features.md: usage: features.py < docs/features.md. Needs a build.

Each row's problem is tried with a quantised cache, with integer products and with reproducible=1, and without a
compiler: "tier 0" if a built-in kernel computes it, "vm" if the virtual machine does.
"""

import os
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "python"))
os.environ.setdefault("ATTUNE_LIBRARY", str(TOP / os.environ.get("BUILD", "build") / "libattune.so"))
os.environ["ATTUNE_CACHE_DIR"] = ""

import attune  # noqa: E402

HEAD = "| feature | problem | i8 cache | integer | reproducible | no compiler |\n|---|---|---|---|---|---|\n"
USUAL = {"num_heads": 8, "seq_q": 64, "head_dim": 64}


def problem_of(text, **more):
    """The row's problem with what it leaves out, as test_docs.sh has it."""
    names = set(re.findall(r"(?:^|,)\s*(\w+)=", text))
    if "kv_dtype" in more and names & {"kv_dtype", "k_dtype", "v_dtype"}:
        more = {name: value for name, value in more.items() if not name.startswith("kv_")}
    usual = {name: value for name, value in USUAL.items() if name not in names and name not in more}
    if "embed_dim" in names:
        usual.pop("head_dim", None)
    return attune.Problem(text, **usual, **more)


def is_taken(text, **more):
    try:
        problem_of(text, **more)
        return "yes"
    except attune.Error:
        return "–"


def without_compiler(text):
    """What computes the problem where nothing is compiled, with open lengths if it has no others."""
    names = set(re.findall(r"(?:^|,)\s*(\w+)=", text))
    opened = {name: attune.DYNAMIC for name in ("seq_q", "seq_kv") if name not in names}
    for more in (opened, {}):
        found = []
        context = attune.Context(cache_dir="", compile_mode="never", event=found.append)
        try:
            attune.compile(problem_of(text, **more), context=context)
        except attune.Error:
            continue
        return "vm" if "virtual machine" in " ".join(event.message for event in found) else "tier 0"
    raise SystemExit(f"features: nothing computes {text}")


def row(line):
    cells = line.strip("| \n").split(" | ")
    problem = ",".join(re.findall("`(.*?)`", cells[1]))
    i8 = is_taken(problem, kv_dtype="i8", kv_scales="token")
    integer = is_taken(problem, kv_dtype="i8", kv_scales="token", integer="all") if "integer" not in problem else "yes"
    columns = [i8, integer, is_taken(problem, reproducible=1) if "reproducible" not in problem else "yes",
               without_compiler(problem)]
    return "| " + " | ".join([*cells[:2], *columns]) + " |\n"


def main():
    lines, is_table = sys.stdin.readlines(), False
    for line in lines:
        if line.startswith("| feature |"):
            is_table = True
            sys.stdout.write(HEAD)
        elif is_table and line.startswith("|---"):
            continue
        elif is_table and line.startswith("| "):
            sys.stdout.write(row(line))
        else:
            is_table = False
            sys.stdout.write(line)


if __name__ == "__main__":
    main()
