#!/usr/bin/env bash
# Installs what is missing of the peers into a virtual environment under $BUILD/bench, and builds their drivers.
# What cannot be had is left out, with a word; only NumPy is needed. DEPS=no installs nothing.
#
#   PEERS       which ("torch zentorch onnxruntime openvino openblas onednn_omp ggml"); each alone is fine, and so
#               is none. There is onednn for 2 GB: it comes with the runtimes of SYCL and OpenCL, which it needs to find
#               the CPU, and whose calls begin slowly; onednn_omp is the last one on OpenMP's threads, which is older:
#               it is for small shapes
#   TORCH       what pip installs for PyTorch (torch==2.13.0). Without an index of builds for the CPU alone
#               (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL) that may be the build with CUDA: some gigabytes, no faster here
#   OPENBLAS    prefix of an installed OpenBLAS; else that of the environment, else pkg-config's
#   ONEDNN      prefix of an installed oneDNN, version 3 or later; Debian's is too old
#   GGML        prefix of an installed ggml; else it is built for this CPU from llama.cpp's sources
#               (scripts/engines/ggml.sh), in some minutes
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
PEERS=${PEERS-torch zentorch onnxruntime openvino openblas onednn_omp ggml}
out=$BUILD/bench
venv=$out/venv
python=$venv/bin/python
mkdir -p "$out"

say() { echo "bench: $*" >&2; }

# want MODULE REQUIREMENT…: whether Python has the module, after an attempt to install it.
want() {
    local module=$1
    shift
    "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$module') is None)" && return 0
    [ "${DEPS:-}" != no ] || { say "no $module (DEPS=no)"; return 1; }
    say "installing $*"
    "$python" -m pip install --quiet --disable-pip-version-check "$@" >&2 || { say "no $module"; return 1; }
}

# Drivers in C are for this machine, and free to reorder sums: so their compiler does its best for the peer.
cc=${CC:-cc} cxx=${CXX:-c++} drivers=bench/drivers
flags="-O3 -march=native -mprefer-vector-width=512 -ffast-math -fopenmp -Wall -Wextra"

# build NAME SOURCE COMPILER FLAG…: unless it is newer than what it is made of.
build() {
    local name=$1 source=$2 compiler=$3 program=$out/$1_driver
    shift 3
    [ ! "$program" -nt "$source" ] || [ ! "$program" -nt $drivers/driver.c ] ||
        [ ! "$program" -nt $drivers/driver.h ] || return 0
    $cc -std=gnu11 -O2 -Itools -c $drivers/driver.c -o "$out/driver_$name.o" &&
        $compiler $flags "$source" "$out/driver_$name.o" "$@" -o "$program.tmp" && mv "$program.tmp" "$program" ||
        say "no $name: its driver cannot be built"
}

build_openblas() {
    local folder cflags libs
    if [ -n "${OPENBLAS:-}" ]; then
        cflags="-I$OPENBLAS/include" libs="-L$OPENBLAS/lib -Wl,-rpath,$OPENBLAS/lib -lopenblas"
    elif want scipy_openblas32 scipy-openblas32; then
        folder=$(realpath "$("$python" -c "import scipy_openblas32 as o; print(o.get_lib_dir())")/..")
        cflags="-I$folder/include -DBLAS_PREFIX=scipy_" libs="$folder/lib/libscipy_openblas.so -Wl,-rpath,$folder/lib"
    elif pkg-config --exists openblas; then
        cflags=$(pkg-config --cflags openblas) libs=$(pkg-config --libs openblas)
    else
        say "no openblas"
        return
    fi
    build openblas $drivers/openblas_driver.c "$cc" -std=gnu11 $cflags $libs -lm
}

# build_onednn PREFIX NAME. A run path of the old sort holds for the library's own libraries, too.
build_onednn() {
    local prefix=$1 name=$2 opencl=()
    [ ! -e "$prefix/lib/libintelocl.so" ] || opencl+=("-DOPENCL_DRIVER=\"$prefix/lib/libintelocl.so\"")
    build "$name" $drivers/onednn_driver.cpp "$cxx" -std=c++17 "-I$prefix/include" ${opencl[@]+"${opencl[@]}"} \
        "-L$prefix/lib" -ldnnl -Wl,--disable-new-dtags "-Wl,-rpath,$prefix/lib"
}

install_onednn() {
    local prefix
    prefix=$(realpath "$venv")
    if [ ! -e "$prefix/lib/libdnnl.so" ]; then
        [ "${DEPS:-}" != no ] || { say "no onednn (DEPS=no)"; return; }
        say "installing onednn"
        "$python" -m pip install --quiet --disable-pip-version-check onednn==2026.1.0 onednn-devel==2026.1.0 >&2 ||
            { say "no onednn"; return; }
    fi
    build_onednn "$prefix" onednn
}

# In a folder of its own, as it has the same files.
install_onednn_omp() {
    local prefix
    prefix=$(realpath "$out")/onednn_omp
    if [ ! -e "$prefix/lib/libdnnl.so" ]; then
        [ "${DEPS:-}" != no ] || { say "no onednn_omp (DEPS=no)"; return; }
        say "installing onednn_omp"
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps --prefix "$prefix" \
            onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0 >&2 || { say "no onednn_omp"; return; }
    fi
    build_onednn "$prefix" onednn_omp
}

install_ggml() {
    local include=${GGML:-}/include lib=${GGML:-}/lib sources
    if [ -z "${GGML:-}" ]; then
        [ "${DEPS:-}" != no ] || [ -e "$out/ggml/bin/libggml.so" ] || { say "no ggml (DEPS=no)"; return; }
        sources=$(BUILD=$BUILD bash scripts/engines/ggml.sh sources) || { say "no ggml"; return; }
        include=$sources/ggml/include lib=$(realpath "$out")/ggml/bin
    fi
    if [ ! -e "$lib/libggml.so" ]; then
        say "building ggml"
        cmake -S "$sources" -B "$out/ggml" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=ON \
            -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >"$out/ggml.log" 2>&1 &&
            cmake --build "$out/ggml" -j "$(nproc)" --target ggml ggml-cpu >>"$out/ggml.log" 2>&1 ||
            { say "no ggml ($out/ggml.log)"; return; }
    fi
    build ggml $drivers/ggml_driver.c "$cc" -std=gnu11 "-I$include" "-L$lib" -lggml -lggml-cpu -lggml-base \
        "-Wl,-rpath,$lib" -lm
}

if [ ! -x "$python" ]; then
    "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null || DEPS=${DEPS:-} bash scripts/deps.sh bench
    "${PYTHON:-python3}" -m venv "$venv" || { say "needs Python 3.10 or later with venv"; exit 1; }
fi
want numpy numpy || { say "NumPy is needed"; exit 1; }
want matplotlib matplotlib || true
for peer in $PEERS; do
    case $peer in
    torch) want torch "${TORCH:-torch==2.13.0}" || true ;;
    zentorch) want zentorch "${TORCH:-torch==2.13.0}" zentorch==2.13.0.2 || true ;;
    onnxruntime) want onnx onnx==1.23.2 && want onnxruntime onnxruntime==1.31.1 || true ;;
    openvino) want openvino openvino==2026.4.1 || true ;;
    openblas) build_openblas ;;
    onednn) install_onednn ;;
    onednn_omp) install_onednn_omp ;;
    ggml) install_ggml ;;
    *) say "there is no peer '$peer'"; exit 1 ;;
    esac
done
if [ -n "${ONEDNN:-}" ]; then build_onednn "$(realpath "$ONEDNN")" onednn; fi
