#!/usr/bin/env bash
# usage: run.sh SECONDS|RUNSx: runs each fuzzer in $BUILD/fuzz for so many seconds, or with so many inputs (as 5000x),
# which are the same each time (ATTUNE_TEST_SEED sets others). FUZZ_JOBS (all processors) run at a time. They start from
# the seeds in tests/fuzz/seeds (with the words in tests/fuzz/words), from products of $ATTUNE (if set), and from the
# inputs that earlier runs found. Inputs that crash stay in $BUILD/fuzz-found. FUZZ_ONLY="fuzz_a fuzz_b" picks some.
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/../.."
amount=${1:?usage: run.sh SECONDS|RUNSx}
case $amount in
*x) bound=(-runs="${amount%x}" -seed="${ATTUNE_TEST_SEED:-1}") amount=${amount%x} ;;
*) bound=(-max_total_time="$amount") ;;
esac
[ "$amount" -ge 1 ] || { echo "run.sh: '$1': at least one second, or one input (1x)" >&2; exit 1; }
found=$BUILD/fuzz-found
corpus=$BUILD/fuzz-corpus
mkdir -p "$found"
# Some fuzzers write a file for each input: in memory, where that can be written to.
scratch=$(TMPDIR='' mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Seeds that age with the code are made anew: products of two problems, and what else the command reads again. Its
# cache and its files are in $made.
make_seeds() {
    local made=$scratch/made schedule case
    export ATTUNE_CACHE_DIR=$made/cache ATTUNE_MACHINE=generic ATTUNE_RECORD=$made/recorded
    mkdir -p "$made"
    mkdir -p "$corpus"/fuzz_{ir,object,cache_file,image,pack,signed_pack,sweep,conform,manifest,bundle,tuning,worker}
    make_kernels
    find "$ATTUNE_CACHE_DIR" -name '*.attune' -exec cp -t "$corpus/fuzz_cache_file" {} +
    cp "$made/recorded" "$corpus/fuzz_manifest/seed"
    "$ATTUNE" cache pack -o "$corpus/fuzz_signed_pack/seed"
    make_packed
    for case in tests/data/conform/*/case.json; do
        cp "$case" "$corpus/fuzz_conform/seed-$(basename "$(dirname "$case")")"
    done
    rm -f "$corpus/fuzz_sweep/seed" # a sweep of another build is not continued
    "$ATTUNE" sweep --samples=1 -o "$corpus/fuzz_sweep/seed" num_heads=1,seq_q=4,8,head_dim=8 2>/dev/null
    rm -f "$made/cache/tuning.db"
    # The search may end without a winner, so the rows of one are made.
    "$ATTUNE" tune --budget=0.3 num_heads=2,seq_q=12,head_dim=8 2>/dev/null
    cp "$made/cache/tuning.db" "$corpus/fuzz_tuning/seed"
    schedule=$("$ATTUNE" compile num_heads=2,seq_q=12,head_dim=8 | sed -n 's/^schedule *//p')
    printf '%s\n' "$schedule" >"$corpus/fuzz_tuning/seed-same"
    printf '%s;num_heads=2,seq_q=14,head_dim=8;1;1;14;14;1;0.5;1\n' "$schedule" >"$corpus/fuzz_tuning/seed-near"
    # The greeting that the worker sends before it reads anything, after a byte that says so; then a reply.
    { printf '\0' && worker && printf 'AtWK\0\0\0\0\4\0\0\0\0\0\0\0code'; } >"$corpus/fuzz_worker/seed-greeting"
    printf '\1AtWK\3\0\0\0\5\0\0\0\0\0\0\0wrongAtWK\0\0\0\0\2\0\0\0\0\0\0\0ok' >"$corpus/fuzz_worker/seed-replies"
}

worker() { "$(dirname "$ATTUNE")/attune-codegen-worker" </dev/null || true; }

make_kernels() {
    local isa number=0 problem target
    for problem in num_heads=1,seq_q=8,head_dim=8 \
        num_heads=2,num_kv_heads=1,seq_q=5,seq_kv=19,head_dim=3,is_causal=1,has_lse=1; do
        number=$((number + 1))
        for isa in avx2 x86-64; do
            target=$isa-$number
            "$ATTUNE" compile $problem --target=$isa --emit=ir -o "$corpus/fuzz_ir/seed-$target"
            "$ATTUNE" compile $problem --target=$isa --emit=lowered -o "$corpus/fuzz_ir/seed-lowered-$target"
            "$ATTUNE" compile $problem --target=$isa --emit=obj -o "$corpus/fuzz_object/seed-$target"
            "$ATTUNE" compile $problem --target=$isa --emit=image -o "$corpus/fuzz_image/seed-$target"
        done
        # The byte after it tells the fuzzer that this one is for AArch64.
        { "$ATTUNE" compile $problem --target=aarch64 --emit=obj && printf '\x80'; } \
            >"$corpus/fuzz_object/seed-aarch64-$number"
        "$ATTUNE" compile $problem
    done
}

# pack NUMBER DTYPE BYTES PROBLEM NAME…: packed weights, after which a byte is the number of the problem in fuzz_pack.c;
# each name is that of a matrix of 8 by 8 elements of so many bytes in all.
pack() (
    work=$made
    . tests/support/cli.sh
    number=$1 dtype=$2 bytes=$3 problem=$4 at=0 list=
    shift 4
    for name in "$@"; do
        list+="\"${name}_weight\":{\"dtype\":\"$dtype\",\"shape\":[8,8],\"data_offsets\":[$at,$((at + bytes))]},"
        at=$((at + bytes))
    done
    make_safetensors "$made/weights.safetensors" "{${list%,}}" $at
    make_npy "$made/x.npy" "$([ "$dtype" = F32 ] && echo '<f4' || echo '<V2')" False '(3, 8)' $((bytes * 3 / 8))
    "$ATTUNE" mha "$problem" --weights="$made/weights.safetensors" --x="$made/x.npy" --save-packed="$made/packed" \
        -o "$made/out.npy"
    { cat "$made/packed" && printf "\\$number"; } >"$corpus/fuzz_pack/seed-$number"
)

make_packed() {
    pack 0 F32 256 num_heads=2,head_dim=4 q k v out
    pack 1 BF16 128 num_heads=2,num_kv_heads=2,head_dim=4,dtype=bf16 q k v out
    pack 2 F32 256 num_heads=2,head_dim=4,no_out_projection=1 q k v
}
if [ -n "${ATTUNE:-}" ]; then make_seeds >/dev/null; fi

# The words of a fuzzer, and for problems all fields.
words_of() {
    cat "tests/fuzz/words/$1"
    [ "$1" != fuzz_problem ] || bash scripts/problem_fields.sh | awk '{ print "\"" $2 "=\"" }'
    [ "$1" != fuzz_problem ] || bash scripts/schedule_fields.sh | awk '{ print "\"" $1 "=\"" }'
}

run_one() {
    local name=$1 options=() most=16384
    mkdir -p "$corpus/$name" "$scratch/$name"
    [ "$name" != fuzz_tuning ] || most=65536 # a database has six pages at least
    local folders=("$corpus/$name")
    [ -d "tests/fuzz/seeds/$name" ] && folders+=("tests/fuzz/seeds/$name")
    [ -e "tests/fuzz/words/$name" ] && words_of "$name" >"$scratch/$name.words" &&
        options+=("-dict=$scratch/$name.words")
    TMPDIR=$scratch/$name "$BUILD/fuzz/$name" "${bound[@]}" -timeout=20 -rss_limit_mb=3000 \
        -max_len=$most -use_value_profile=1 -print_final_stats=1 -artifact_prefix="$found/$name-" "${options[@]}" \
        "${folders[@]}" >"$found/$name.log" 2>&1
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
read -ra fuzzers <<<"${FUZZ_ONLY:-$(cd "$BUILD/fuzz" && echo fuzz_*)}"
for name in "${fuzzers[@]}"; do
    [ "${#pids[@]}" -lt "${FUZZ_JOBS:-$(nproc)}" ] || settle
    run_one "$name" &
    names+=("$name") pids+=($!)
done
while [ "${#pids[@]}" -gt 0 ]; do settle; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
