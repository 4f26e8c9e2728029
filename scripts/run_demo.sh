#!/usr/bin/env bash
# `make run`: a real attention layer through a kernel that is compiled for it, checked, from the cache, and fast.
set -euo pipefail
cd "$(dirname "$0")/.."
attune=${BUILD:-build}/attune
data=examples/minilm
bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' plain=$'\e[0m'; fi
title() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }

cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
layer=(run "dtype=f32" --q $data/q.npy --k $data/k.npy --v $data/v.npy)

title "One attention layer of all-MiniLM-L6-v2 reading Darwin: 12 heads of 32, 217 tokens ($data)"
title "Compiled now, checked against PyTorch's result and against the interpreter"
ATTUNE_CACHE_DIR=$cache "$attune" "${layer[@]}" --check --expect $data/expected.npy
title "A second process: the same kernel from the warm cache"
ATTUNE_CACHE_DIR=$cache "$attune" "${layer[@]}" --expect $data/expected.npy
title "Speed, as a share of the peak that this CPU's multiply-adds reached in the same seconds"
ATTUNE_CACHE_DIR=$cache BUILD=${BUILD:-build} bash scripts/bench_table.sh
