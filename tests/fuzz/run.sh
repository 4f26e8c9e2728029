#!/usr/bin/env bash
# usage: run.sh SECONDS: runs each fuzzer in $BUILD/fuzz for so long, from the seeds in tests/fuzz/seeds (with the
# words in tests/fuzz/words), from products of $ATTUNE (if set), and from what earlier runs found. Inputs that crash stay in $BUILD/fuzz-found. The last line is
# "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:?usage: run.sh SECONDS}
found=$BUILD/fuzz-found
corpus=$BUILD/fuzz-corpus
mkdir -p "$found"

# Seeds that age with the code are made fresh: IR, objects and cache entries of a few problems.
make_seeds() {
    local isa number=0 problem
    mkdir -p "$corpus"/{fuzz_ir,fuzz_object,fuzz_entry}
    for problem in num_heads=1,seq_q=8,head_dim=8 num_heads=2,num_kv_heads=1,seq_q=5,seq_kv=19,head_dim=3,is_causal=1,lse=1; do
        number=$((number + 1))
        for isa in avx2 x86-64; do
            ATTUNE_ISA=$isa "$ATTUNE" compile $problem --emit=ir -o "$corpus/fuzz_ir/seed-$isa-$number"
            ATTUNE_ISA=$isa "$ATTUNE" compile $problem --emit=lowered -o "$corpus/fuzz_ir/seed-lowered-$isa-$number"
            ATTUNE_ISA=$isa "$ATTUNE" compile $problem --emit=obj -o "$corpus/fuzz_object/seed-$isa-$number"
        done
        # The byte behind it tells the fuzzer that this one is for AArch64.
        { "$ATTUNE" compile $problem --target=aarch64 --emit=obj && printf '\x80'; } >"$corpus/fuzz_object/seed-aarch64-$number"
        ATTUNE_CACHE_DIR=$corpus/cache "$ATTUNE" compile $problem
    done
    find "$corpus/cache" -type f -exec cp -t "$corpus/fuzz_entry" {} +
}
if [ -n "${ATTUNE:-}" ]; then make_seeds >/dev/null; fi

run_one() {
    local name=$1 options=()
    mkdir -p "$corpus/$name"
    local folders=("$corpus/$name")
    [ -d "tests/fuzz/seeds/$name" ] && folders+=("tests/fuzz/seeds/$name")
    [ -e "tests/fuzz/words/$name" ] && options+=("-dict=tests/fuzz/words/$name")
    "$BUILD/fuzz/$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -max_len=16384 -use_value_profile=1 \
        -print_final_stats=1 -artifact_prefix="$found/$name-" "${options[@]}" "${folders[@]}" >"$found/$name.log" 2>&1
}

passed=0 failed=0
names=() pids=()
settle() { # waits for the oldest fuzzer that runs
    if wait "${pids[0]}"; then
        runs=$(awk '/stat::number_of_executed_units/ { print $2 }' "$found/${names[0]}.log")
        echo "passed ${names[0]}: $runs inputs"
        passed=$((passed + 1))
    else
        echo "failed ${names[0]}; the end of its log:"
        tail -n 40 "$found/${names[0]}.log"
        failed=$((failed + 1))
    fi
    names=("${names[@]:1}") pids=("${pids[@]:1}")
}
for fuzzer in "$BUILD"/fuzz/fuzz_*; do
    [ "${#pids[@]}" -lt "$(nproc)" ] || settle
    run_one "$(basename "$fuzzer")" &
    names+=("$(basename "$fuzzer")") pids+=($!)
done
while [ "${#pids[@]}" -gt 0 ]; do settle; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
