#!/usr/bin/env bash
# Measures what docs/performance.md shows, and writes that page and its pictures: attune and the peers that are
# installed, what compiling and loading a kernel cost, then steps of a server beside zentorch's and vLLM's kernels.
#
#   BUILD    where attune was built
#   PIECE=S  only what can be begun within S seconds; called again, it goes on, and the last piece writes the page.
#            So a run can be divided among quiet minutes. A new run: remove $BUILD/bench/performance
#   VENV     an environment that has vLLM ($BUILD/vllm/env). Without it vLLM is no peer
#
# Arguments: options of bench.py.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
results=$BUILD/bench/performance
python=$BUILD/bench/venv/bin/python
bench=("$python" bench/bench.py --build "$BUILD" --output "$results")
begun=$SECONDS limit=${PIECE:-86400}
resume=(--resume)
if [ -z "${PIECE:-}" ]; then
    rm -rf "$results"
    resume=()
fi
mkdir -p "$results"

# begin FILE SECONDS: whether a part that takes so long is still to be measured, and may begin. Ends the piece if not.
begin() {
    [ ! -e "$results/$1" ] || return 1
    [ $((SECONDS - begun + $2)) -le "$limit" ] || { echo "performance: the time is up before $1" >&2; exit 0; }
}

if begin attention 30; then
    "${bench[@]}" --repeats 2 --limit 3 --calm 3 --budget $((limit - 25)) "${resume[@]}" "$@" | tee "$results/log"
    ! grep -q '^The time is up' "$results/log" || exit 0
    touch "$results/attention"
fi
for number in 1 2 3; do # the lowest count: a compile is short, and a busy machine makes it longer
    ! begin "costs-$number.json" 15 || "$BUILD/attune" bench --json --samples=5 -o "$results/costs-$number.json" \
        num_heads=12,seq_q=512,head_dim=64 \
        num_heads=12,seq_q=512,head_dim=64,dtype=bf16 \
        num_heads=32,seq_q=512,head_dim=128,is_causal=1 \
        num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128 \
        embed_dim=768,num_heads=12,seq_q=512 >/dev/null
done

# steps NAME COMMAND…: by one thread and by all.
steps() {
    for threads in $(printf '1\n%s\n' "$(nproc)" | sort -un); do
        ! begin "steps-$1-$threads.json" 60 ||
            "${@:2}" --threads "$threads" --json "$PWD/$results/steps-$1-$threads.json"
    done
}
if "$python" -c 'import zentorch' 2>/dev/null; then
    steps zentorch env ATTUNE_LIBRARY="$(realpath "$BUILD")/libattune.so" PYTHONPATH=python "$python" \
        bench/engines/step_peers.py
fi
vllm=${VENV:-$BUILD/vllm/env}
if "$vllm/bin/python" -c 'import vllm' 2>/dev/null; then
    steps vllm env BUILD="$BUILD" VENV="$vllm" bash scripts/engines/vllm.sh steps
fi
"${bench[@]}" --publish docs
