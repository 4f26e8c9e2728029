"""Fills in the two tables of docs/features.md: usage: features.py [--run] < docs/features.md. Needs a build.

Each row's problem is tried with a quantised cache, with integer products and with reproducible=1, and without a
compiler: "tier 0" if a built-in kernel computes it, "vm" if the virtual machine does.

The second table has the instruction sets. --run fills it in, in some minutes; without it its cells stay. "ran": machine
code ran on this CPU and gave the interpreter's bits. "emulated": the same under qemu-user, which needs `make aarch64`.
"compiles": it has not run.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "python"))
BUILD = TOP / os.environ.get("BUILD", "build")
os.environ.setdefault("ATTUNE_LIBRARY", str(BUILD / "libattune.so"))
os.environ["ATTUNE_CACHE_DIR"] = ""

import attune  # noqa: E402

SETS = ("x86-64", "avx2", "avx512", "avx512_bf16", "amx", "aarch64")
HEADS = ["feature", "problem", "i8 cache", "integer", "reproducible", "no compiler"], ["feature", *SETS]
USUAL = {"num_heads": 8, "seq_q": 64, "head_dim": 64}
# Sizes for a run of a problem that leaves them open, and smaller ones for what is long to interpret.
SIZES = {"seq_q": 20, "seq_kv": 70, "seq_new": 20, "total_q": 50, "total_kv": 50, "num_pages": 40, "max_pages": 8,
         "rotary_positions": 100}
SHORTER = {"num_ids=2048": "num_ids=128", "seq_kv=131072": "seq_kv=1024", "=512,seq_kv=512": "=40,seq_kv=40",
           "=64,seq_kv=64": "=40,seq_kv=40", "seq_kv=512": "seq_kv=80",
           "embed_dim=768": "embed_dim=96", "embed_dim=512": "embed_dim=64", "head_dim=96": "head_dim=12",
           "low_rank=128": "low_rank=16"}


def names_of(text):
    return set(re.findall(r"(?:^|,)\s*(\w+)=", text))


def problem_of(text, **more):
    """The row's problem with what it leaves out, as test_docs.sh has it."""
    names = names_of(text)
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
    names = names_of(text)
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


def ran(*command, **env):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, **env})
    return done.returncode, done.stdout + done.stderr


def agrees(problem, lab, **env):
    """Whether machine code has the interpreter's bits. Sizes that are open are set as the command names them."""
    sizes = {}
    while True:
        given = ",".join(f"{name}={value}" for name, value in sizes.items())
        options = ["--inputs=ordinary", "--threads=2", *([f"--sizes={given}"] if given else [])]
        status, text = ran(*lab, problem, *options, **env)
        missing = re.search(r"--sizes: (\w+) is not set", text)
        if not missing or missing[1] in sizes:
            return status == 0 and "1 passed, 0 failed" in text, text
        sizes[missing[1]] = SIZES[missing[1]]


def on_sets(text):
    """What is known of the problem's machine code for each instruction set."""
    problem = str(problem_of(text))
    for long, short in SHORTER.items():
        problem = problem.replace(long, short)
    can_run = re.search(r"^runs +(.*)$", ran(BUILD / "attune", "info")[1], re.M)[1].split()
    emulated = BUILD / "aarch64/attune-lab"
    for target in SETS:
        cell = "–"
        if ran(BUILD / "attune", "compile", problem, f"--target={target}", "--emit=obj", "-o", os.devnull)[0] == 0:
            cell = "compiles"
        if target in can_run:
            good, said = agrees(problem, [BUILD / "attune-lab", "check", f"--isa={target}"])
            cell = "ran" if good else "?"
        elif target == "aarch64" and emulated.exists():
            good, said = agrees(problem, ["qemu-aarch64", emulated, "check"], ATTUNE_COMPILE="worker",
                                QEMU_LD_PREFIX=os.environ.get("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu"),
                                ATTUNE_CODEGEN_WORKER=str(BUILD / "attune-codegen-worker"))
            cell = "emulated" if good else "?"
        if cell in "–?":
            raise SystemExit(f"features: {target}: {problem}: {said if cell == '?' else 'does not compile'}")
        yield cell


def problem_row(cells):
    problem = ",".join(re.findall("`(.*?)`", cells[1]))
    i8 = is_taken(problem, kv_dtype="i8", kv_scales="token")
    integer = is_taken(problem, kv_dtype="i8", kv_scales="token", integer="all") if "integer" not in problem else "yes"
    columns = [i8, integer, is_taken(problem, reproducible=1) if "reproducible" not in problem else "yes",
               without_compiler(problem)]
    return problem, [*cells[:2], *columns]


def write_table(rows):
    for cells in rows:
        print(f"| {' | '.join(cells)} |", flush=True)


def main():
    problems, known, head = {}, {}, None
    for line in [*sys.stdin.read().splitlines(), None]:
        cells = line.strip("| ").split(" | ") if line and line.startswith("| ") else None
        if head is None and cells in HEADS:
            head = cells
            print(f"{line}\n{'|---' * len(cells)}|")
        elif head and line and line.startswith("|---"):
            continue
        elif head and cells and "problem" in head:
            problems[cells[0]], row = problem_row(cells)
            write_table([row])
        elif head and cells:
            known[cells[0]] = cells
        else:
            if head and "problem" not in head:  # as many rows as the first table has, in its order
                write_table([name, *(on_sets(problem) if "--run" in sys.argv[1:] else known.get(name, ["–"])[1:])]
                            for name, problem in problems.items())
            head = None
            if line is not None:
                print(line)


if __name__ == "__main__":
    main()
