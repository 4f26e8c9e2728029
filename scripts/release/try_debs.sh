#!/usr/bin/env bash
# usage: try_debs.sh DIR: unpacks the packages in DIR into a root of their own, and uses each of them there.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/../.."
[ $# = 1 ] || { echo "usage: try_debs.sh DIR" >&2; exit 2; }
debs=("$1"/*.deb)
[ ${#debs[@]} -gt 0 ] || { echo "try_debs: there are no packages in $1" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root libraries=$work/root/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
for deb in "${debs[@]}"; do dpkg-deb -x "$deb" "$root"; done
export LD_LIBRARY_PATH=$libraries ATTUNE_CACHE_DIR=$work/cache
unset ATTUNE_CODEGEN ATTUNE_CODEGEN_WORKER ATTUNE_LIBRARY
problem=num_heads=2,seq_q=9,head_dim=8

try() { # try NAME COMMAND…
    local name=$1
    shift
    if "$@" >"$work/log" 2>&1; then echo "passed $name"; else
        sed 's/^/    /' "$work/log" >&2
        echo "try_debs: $name: failed" >&2
        exit 1
    fi
}
try "the command compiles, and the bits are right" "$root/usr/bin/attune" run --check --q examples/minilm/q.npy \
    --k examples/minilm/k.npy --v examples/minilm/v.npy
try "a kernel is kept" "$root/usr/bin/attune" compile $problem
try "the worker compiles" env ATTUNE_COMPILE=worker "$root/usr/bin/attune" compile $problem,is_causal=1
program() {
    local flags
    flags=$(PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$libraries/pkgconfig pkg-config --cflags --libs attune)
    # shellcheck disable=SC2086 # its words are separate arguments
    ${CC:-cc} -std=gnu11 examples/decode.c $flags -pthread -lm -o "$work/decode" && "$work/decode"
}
try "a program builds by pkg-config, and runs" program
try "Python has the package and its adapters" env PYTHONPATH="$root/usr/lib/python3/dist-packages" python3 -B -c '
import attune, attune.ort, attune.tvm

print(attune.info(), attune.ort.library_path(), attune.tvm.library_path())'
plug_in() {
    local libdir
    libdir=$root$(PKG_CONFIG_LIBDIR=$libraries/pkgconfig pkg-config --variable=libdir attune)
    PYTHONPATH=$root/usr/lib/python3/dist-packages python3 -B -c '
import ctypes, sys
import attune.ggml

for path in sys.argv[1], attune.ggml.library_path():
    ctypes.CDLL(path).ggml_backend_init' "$libdir/attune/libggml-attune.so"
}
try "the plug-in of ggml is where its page says" plug_in
try "the documentation has its index" test -f "$root/usr/share/doc/attune-doc/docs/index.md"
# The library alone runs what is in a cache, and everything else by its virtual machine, more slowly: it says why.
rm -r "$libraries/attune"
try "a cached kernel needs no code generator" "$root/usr/bin/attune" compile $problem
stands_in() {
    "$root/usr/bin/attune" compile $problem,has_lse=1 >"$work/said" 2>&1 &&
        grep -q 'libattune-codegen.so was not found' "$work/said" && grep -q '^from *the virtual machine' "$work/said"
}
try "without it the virtual machine computes, and a sentence says why" stands_in
