#!/usr/bin/env bash
# Measures what docs/performance.md shows, and writes that page and its pictures: attune and the peers that are
# installed, then what compiling and loading a kernel cost. BUILD: where attune was built. Arguments: options of
# bench.py.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
results=$BUILD/bench/performance
bench=("$BUILD/bench/venv/bin/python" bench/bench.py --build "$BUILD" --output "$results")

"${bench[@]}" --repeats 2 --limit 3 --budget 780 --calm 3 "$@"
for number in 1 2 3; do # the lowest count: a compile is short, and a busy machine makes it longer
    "$BUILD/attune" bench --json --samples=5 -o "$results/costs-$number.json" \
        num_heads=12,seq_q=512,head_dim=64 \
        num_heads=12,seq_q=512,head_dim=64,dtype=bf16 \
        num_heads=32,seq_q=512,head_dim=128,is_causal=1 \
        num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128 \
        embed_dim=768,num_heads=12,seq_q=512 >/dev/null
done
"${bench[@]}" --publish docs
