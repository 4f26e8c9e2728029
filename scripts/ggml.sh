#!/usr/bin/env bash
# ggml.sh test|bench [ARGUMENTS]: libggml-attune.so in ggml and llama.cpp, built in $BUILD/ggml from the source package
# of llama-cpp-python, which pip fetches (77 MB; some 6 minutes of CPU in all). SOURCES=DIR: llama.cpp's sources that
# are there already. Where neither can be had, or cmake is missing, it says so and does nothing.
#   test   layouts against ggml's headers; test-backend-ops, all cases of FLASH_ATTN_EXT; a model, if pip has it
#   bench  llama-bench with and without attune in turns
# ARGUMENTS of test: for test-backend-ops, as -p REGEX; of bench: for llama-bench.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath -m "${BUILD:-build}")
work=$build/ggml version=0.3.36 job=${1:?test or bench}
shift
plugin=$build/libggml-attune.so
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} ATTUNE_CACHE_DIR=$work/cache

skip() {
    echo "SKIP: $1"
    exit 0
}

# fetch PACKAGE: pip's file of it, in $work.
fetch() {
    ls "$work"/"${1//-/?}"[-_]* >/dev/null 2>&1 && return
    echo "fetching $1 by pip"
    python3 -m pip download -q --no-deps "${@:2}" -d "$work" "$1${3:+==$version}" >"$work/pip.log" 2>&1
}

command -v cmake >/dev/null || skip "there is no cmake"
mkdir -p "$work"
sources=${SOURCES:-$work/llama_cpp_python-$version/vendor/llama.cpp}
if [ ! -e "$sources/ggml/CMakeLists.txt" ]; then
    fetch llama-cpp-python --no-binary :all: || skip "pip has no sources of llama-cpp-python $version"
    tar xzf "$work/llama_cpp_python-$version.tar.gz" -C "$work"
fi

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

case $job in
test)
    build_ggml ggml ggml-cpu
    ${CC:-cc} -DGGML_HEADERS "${headers[@]}" tests/ggml/layout.c "${GGML_LIBS[@]}" -o "$work/layout_of_ggml"
    ${CC:-cc} -Iadapters tests/ggml/layout.c -o "$work/layout"
    diff <("$work/layout_of_ggml") <("$work/layout") && echo "layouts are those of ggml's headers"
    [ "$work/test-backend-ops" -nt "$sources/tests/test-backend-ops.cpp" ] ||
        ${CXX:-c++} -O1 -std=c++17 "${headers[@]}" "$sources/tests/test-backend-ops.cpp" "${GGML_LIBS[@]}" \
            -o "$work/test-backend-ops"
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
    ;;
bench) ;;
*) echo "usage: ggml.sh test|bench [ARGUMENTS]" >&2; exit 2 ;;
esac
