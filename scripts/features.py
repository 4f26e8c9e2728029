"""Fills in the tables of docs/features.md: usage: features.py [--run] < docs/features.md. Needs a build.

Each row has a feature and a problem, of which the other columns are found. With a quantised cache, with integer
products and with reproducible=1 the library takes the problem or says why not: such a sentence becomes a note. Without
a compiler a built-in kernel computes it ("tier 0", or "tier 0 in steps" if only within the step of a language model),
or the virtual machine does ("vm").

With --run, which takes some minutes, it also tries the machine code of each row. On the instruction sets of RUN it runs
on this CPU, on those of EMULATED under qemu-user (which needs `make aarch64`), and must give the interpreter's bits.
For all others it must compile. Anything else is an error.
"""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "python"))
BUILD = TOP / os.environ.get("BUILD", "build")
os.environ.setdefault("ATTUNE_LIBRARY", str(BUILD / "libattune.so"))
os.environ["ATTUNE_CACHE_DIR"] = ""

import attune  # noqa: E402

SETS = ("x86-64", "avx2", "avx512", "avx512_bf16", "amx", "aarch64")
RUN, EMULATED = SETS[:4], SETS[5:]
HEAD = ["feature", "problem", "no compiler", "i8 cache", "integer", "reproducible"]
NOTES = "## Why not"
STEP = {"is_ragged": 1, "page_size": 16, "has_kv_lens": 1, "seq_new": attune.DYNAMIC, "is_causal": 1, "batch": 4,
        "num_kv_heads": 2}
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
    usual = {name: value for name, value in USUAL.items() if name not in names and name not in more}
    if "embed_dim" in names:
        usual.pop("head_dim", None)
    return attune.Problem(text, **usual, **more)


def taken(text, notes, **more):
    """Whether the library takes the row's problem with `more`: a word, or the number of the note that says why not."""
    if names_of(text) & {"kv_dtype", "k_dtype", "v_dtype"}:
        more = {name: value for name, value in more.items() if not name.startswith("kv_")}
    try:
        if not more:
            return "its own"
        return "yes" if str(problem_of(text, **more)) != str(problem_of(text)) else "no effect"
    except attune.Error as error:
        return f"no ({notes.setdefault(str(error), len(notes) + 1)})"


def computes(text, more):
    """What computes the problem where nothing is compiled; None if it is no problem."""
    found = []
    context = attune.Context(cache_dir="", compile_mode="never", event=found.append)
    try:
        attune.compile(problem_of(text, **more), context=context)
    except attune.Error:
        return None
    return "vm" if "virtual machine" in " ".join(event.message for event in found) else "tier 0"


def without_compiler(text):
    """The same in words: with open lengths if the row has no others, and within a step."""
    names = names_of(text)
    opened = {name: attune.DYNAMIC for name in ("seq_q", "seq_kv") if name not in names}
    alone = computes(text, opened) or computes(text, {})
    if alone is None:
        raise SystemExit(f"features: nothing computes {text}")
    step = {name: value for name, value in {**STEP, "seq_q": attune.DYNAMIC}.items() if name not in names}
    return "tier 0 in steps" if alone == "vm" and computes(text, step) == "tier 0" else alone


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


def try_machine_code(text):
    """Tries the problem's machine code for each instruction set, and exits if it is wrong."""
    problem = str(problem_of(text))
    for long, short in SHORTER.items():
        problem = problem.replace(long, short)
    for target in SETS:
        status, said = ran(BUILD / "attune", "compile", problem, f"--target={target}", "--emit=obj", "-o", os.devnull)
        good = status == 0
        if good and target in RUN:
            good, said = agrees(problem, [BUILD / "attune-lab", "check", f"--isa={target}"])
        elif good and target in EMULATED:
            good, said = agrees(problem, ["qemu-aarch64", BUILD / "aarch64/attune-lab", "check"],
                                ATTUNE_COMPILE="worker",
                                QEMU_LD_PREFIX=os.environ.get("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu"),
                                ATTUNE_CODEGEN_WORKER=str(BUILD / "attune-codegen-worker"))
        if not good:
            raise SystemExit(f"features: {target}: {problem}: {said}")


def row(cells, notes):
    problem = ",".join(re.findall("`(.*?)`", cells[1]))
    if "--run" in sys.argv[1:]:
        try_machine_code(problem)
    i8 = {"kv_dtype": "i8", "kv_scales": "token"}
    return [*cells[:2], without_compiler(problem), taken(problem, notes, **i8),
            taken(problem, notes, **i8, integer="all") if "integer" not in problem else "yes",
            taken(problem, notes, reproducible=1) if "reproducible" not in problem else "yes"]


def main():
    notes, place = {}, None
    for line in sys.stdin.read().splitlines():
        cells = line.strip("| ").split(" | ") if line.startswith("| ") else None
        if cells and cells[:2] == HEAD[:2]:
            place = "table"
            print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
        elif line == NOTES:
            place = "notes"
            print(f"{line}\n")
            for sentence, number in notes.items():
                print(textwrap.fill(f"{number}. {sentence}.", 120, subsequent_indent="   ", break_on_hyphens=False))
            print()
        elif place == "table" and cells:
            print(f"| {' | '.join(row(cells, notes))} |", flush=True)
        elif place == "table" and line.startswith("|---") or place == "notes" and not line.startswith("#"):
            continue
        else:
            place = None
            print(line)


if __name__ == "__main__":
    main()
