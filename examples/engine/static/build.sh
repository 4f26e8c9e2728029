#!/bin/sh
# usage: build.sh MODEL DIRECTORY
# Makes of a model's folder a static program and an image of its weights: DIRECTORY/engine and DIRECTORY/model.image.
# Neither attune nor a compiler is needed to run them. ATTUNE and ENGINE are the command and the engine of
# examples/engine; CC (musl-gcc, too) compiles; TARGETS are the instruction sets of the bundle.
set -eu
model=$1 out=$2
root=$(cd "$(dirname "$0")/../../.." && pwd)
: "${ATTUNE:=$root/build/attune}" "${ENGINE:=$root/build/examples/engine}" "${CC:=cc}"
case $(uname -m) in
x86_64) : "${TARGETS:=avx512_bf16,avx512,avx2,x86-64}" ;;
*) : "${TARGETS:=aarch64}" ;;
esac
mkdir -p "$out"
rm -f "$out/manifest"

# The engine compiles what it needs for two short requests: a kernel for prompts, and one for single tokens.
printf '2 1 2 3\n2 4 5\n' | ATTUNE_CACHE_DIR='' ATTUNE_CACHE_BASE='' ATTUNE_CACHE_PACK='' \
    ATTUNE_RECORD="$out/manifest" "$ENGINE" "$model" --save "$out/model.image" >"$out/log" 2>&1 || {
    cat "$out/log" >&2
    exit 1
}
awk '/^#/ { next } { print (/is_ragged=1/ ? "prefill" : "decode") ": " $0 }' "$out/manifest" >"$out/kernels.txt"
"$ATTUNE" bundle -o "$out/libkernels.a" --header "$out/kernels.h" --name engine --targets "$TARGETS" "$out/kernels.txt"

norms=
if grep -q qk_norm "$out/kernels.txt"; then norms=-DENGINE_HAS_NORMS; fi
cd "$root/examples/engine"
$CC -std=gnu11 -O2 -Wall -Wextra -static -pthread $norms -I"$out" -I. -Istatic -I"$root/tools" -I"$root/include" \
    main.c forward.c team.c image.c static/kernels.c static/linear.c static/model.c "$out/libkernels.a" -lm \
    -o "$out/engine"
