#!/usr/bin/env bash
# scripts/engines/engines.sh without an engine, a network or pytest: what is missing is said, and never fails the short
# form.
# tests/python/run.py with a stand-in for pytest: every case is counted, and so is a process that dies.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # nothing there that other tests do not run
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || exit 77
python=$(python3 -c "import sys; print(sys.executable)") # rather than a script that looks for it every time
unset VENV ENGINES ENGINES_SECONDS PYTHON DEPS
export BUILD=$work/build
engines() { bash scripts/engines/engines.sh "$@"; }

there="there are: numpy torch transformers onnxruntime jax tvm dask"
expect "an engine that there is not" 2 "there is no engine 'keras'; $there" \
    env ENGINES="numpy keras" bash scripts/engines/engines.sh setup
expect "a command that there is not" 2 "there is no command 'tests'" engines tests
expect "a Python that is none" 1 'needs Python 3.11 or later: PYTHON=false is not' \
    env PYTHON=false bash scripts/engines/engines.sh test
expect "an environment of the caller's that is not there" 1 "VENV=$work/none: .* is missing" \
    env VENV="$work/none" bash scripts/engines/engines.sh test
expect "the short form without Python" 0 '^0 passed, 0 failed, 1 skipped$' \
    env PYTHON=false bash scripts/engines/engines.sh short

# stand_in FOLDER: an environment with the modules of $work/site.
stand_in() {
    mkdir -p "$1/bin"
    printf '#!/bin/sh\nPYTHONPATH=%s:$PYTHONPATH exec %s "$@"\n' "$work/site" "$python" >"$1/bin/python"
    chmod +x "$1/bin/python"
}
# package NAME VERSION: it looks installed.
package() {
    mkdir -p "$work/site/$1-$2.dist-info"
    printf 'Name: %s\nVersion: %s\n' "$1" "$2" >"$work/site/$1-$2.dist-info/METADATA"
}
package numpy 1
package pytest 1

# pip that has no PyTorch without another index, and of which nothing else can be had.
stand_in "$BUILD/engines"
cat >"$work/site/pip.py" <<'END'
import os, sys
has_all = "--extra-index-url" in sys.argv and "torch" in sys.argv[-1]
print("" if has_all else "ERROR: No matching distribution found", file=sys.stderr)
sys.exit(0 if has_all else 1)
END
expect "nothing is installed with DEPS=no" 1 'no numpy: numpy==[0-9.]+ pytest==[0-9.]+ matplotlib.* would have to be' \
    env DEPS=no bash scripts/engines/engines.sh test
expect "the short form without packages" 0 '^0 passed, 0 failed, 1 skipped$' engines short
expect "pip's reason" 1 'pip could not install numpy.*: ERROR: No matching distribution' engines test
expect "no time to install" 1 'pip could not install numpy.* in time' env ENGINES_SECONDS=0 \
    bash scripts/engines/engines.sh test
rm -r "$work"/site/numpy-1.dist-info "$work"/site/pytest-1.dist-info
for pinned in $(sed -n 's/^ *\[numpy\]="\(.*\)"/\1/p' scripts/engines/engines.sh); do
    package "${pinned%==*}" "${pinned#*==}"
done
expect "PyTorch comes from its own index if pip has none for the CPU" 0 'asking https://download.pytorch.org/whl/cpu' \
    env ENGINES=torch bash scripts/engines/engines.sh setup
expect "an engine that cannot be had is left out" 0 'no transformers: pip could not install transformers' \
    engines setup

# An environment whose pytest does as the name of the file says.
stand_in "$work/env"
cat >"$work/site/pytest.py" <<'END'
import os, signal, sys, time
name = os.path.basename(sys.argv[-1])
report = next(word.partition("=")[2] for word in sys.argv if word.startswith("--junitxml="))
if "dies" in name:
    os.kill(os.getpid(), signal.SIGSEGV)
if "hangs" in name:
    time.sleep(60)
if "nothing" in name or "slow" in name and "not slow" in sys.argv:
    sys.exit(5)
fails = int("fails" in name)
with open(report, "w") as file:
    file.write(f'<testsuites><testsuite tests="4" errors="{fails}" failures="{fails}" skipped="1"/></testsuites>')
print("bytecode is", "lost" if sys.dont_write_bytecode else "kept")
print("ATTUNE_ISA", os.environ.get("ATTUNE_ISA"), os.listdir(os.environ["TMPDIR"]))
sys.exit(fails)
END
run() { ENGINES=numpy VENV=$work/env ATTUNE_ISA=x86-64 engines test "$@"; }
expect "cases are counted over files" 0 '^6 passed, 0 failed, 2 skipped$' run test_a.py test_b.py
expect "a test sees none of the caller's settings" 0 '^ATTUNE_ISA None' run test_a.py
expect "bytecode is kept, whatever the caller's settings" 0 '^bytecode is kept' \
    env PYTHONDONTWRITEBYTECODE=1 ENGINES=numpy VENV="$work/env" bash scripts/engines/engines.sh test test_a.py
expect "failures and errors" 1 '^4 passed, 2 failed, 2 skipped$' run test_a.py test_fails.py
expect "a process that dies is a failure" 1 '^3 passed, 1 failed, 1 skipped$' run test_dies.py test_a.py
expect "and says of what" 1 'test_dies.py died of signal 11 \(SIGSEGV\)' run test_dies.py
expect "a file without tests is a failure" 1 '^0 passed, 1 failed, 0 skipped$' run test_nothing.py
expect "the short form may leave out a whole file" 0 '^3 passed, 0 failed, 1 skipped$' \
    "$work/env/bin/python" tests/python/run.py --short --jobs=2 test_slow.py test_a.py
expect "a file that hangs is a failure" 1 'test_hangs.py did not end within 0.5 seconds' \
    "$work/env/bin/python" tests/python/run.py --timeout=0.5 test_hangs.py
echo "1..$number"
