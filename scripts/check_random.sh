#!/usr/bin/env bash
# check_random.sh COUNT SEED CHUNK: that many random problems of one seed by `attune-lab check --random`, a process for
# each CHUNK of them, as many at a time as there are processors (JOBS). Which problems they are depends on COUNT and
# SEED only. Whatever fails is printed at once, as a command that runs it again; a line after each chunk says how far it
# is; the last line is "N passed, N failed", and the exit status 1 if any failed.
#
# With LOGS, a folder, what each chunk said stays there, and a run that was interrupted goes on where it was; another
# build of attune begins anew.
set -euo pipefail
cd "$(dirname "$0")/.."
count=$1 seed=$2 chunk=$3
build=${BUILD:-build} most=${JOBS:-$(nproc)}
cleanup() {
    local running
    running=$(jobs -rp)
    # shellcheck disable=SC2086 # one word for each process
    [ -z "$running" ] || { kill $running 2>/dev/null || true; wait; }
    [ -n "${LOGS:-}" ] || rm -rf "$logs"
}
if [ -n "${LOGS:-}" ]; then
    version=$(cat "$build/attune-lab" "$build/libattune.so" "$build/libattune-codegen.so" | cksum | cut -d ' ' -f 1)
    logs=$LOGS/seed-$seed-by-$chunk-$version
    mkdir -p "$logs"
else
    logs=$(mktemp -d)
fi
trap cleanup EXIT
trap 'exit 130' INT TERM

# run_chunk FIRST COUNT: its log gets its name when it is complete, with the exit status as its last line.
run_chunk() {
    local status=0 process
    "$build/attune-lab" check --random "$2" --first "$1" --seed "$seed" >"$logs/$1-$2.tmp" 2>&1 </dev/null &
    process=$!
    trap 'kill $process; exit 1' TERM
    wait $process || status=$?
    echo "exit status $status" >>"$logs/$1-$2.tmp"
    mv "$logs/$1-$2.tmp" "$logs/$1-$2.log"
}

duration() { echo "$(($1 / 3600)) h $(($1 % 3600 / 60)) min"; }

passed=0 failed=0 done=0 resumed=0 start=$SECONDS
declare -A counted=()
# Adds up every log that is complete and was not counted yet.
collect() {
    local log summary name
    for log in "$logs"/*.log; do
        [ -e "$log" ] && [ -z "${counted[$log]:-}" ] || continue
        name=$(basename "$log" .log)
        # Of a run of another length, perhaps.
        [ $((${name%-*} + ${name#*-})) -le "$count" ] || continue
        counted[$log]=1 done=$((done + ${name#*-}))
        summary=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1) || true
        if [[ $summary =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
            passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
        fi
        # An exit status without a failed case: it crashed.
        if [[ $(tail -n 1 "$log") != "exit status 0" && ! $summary =~ \ [1-9][0-9]*\ failed$ ]]; then
            failed=$((failed + 1))
            echo "FAILED: problems ${name%-*} to $((${name%-*} + ${name#*-} - 1)): $(tail -n 1 "$log")"
            echo "    attune-lab check --random=${name#*-} --first=${name%-*} --seed=$seed"
        fi
        grep -A 1 -E '^(FAILED|attune): ' "$log" || true
    done
}
progress() {
    local spent=$((SECONDS - start)) fresh=$((done - resumed))
    [ "$fresh" -gt 0 ] || return 0
    echo "$done of $count, $failed failed, $(duration "$spent"), about $(duration \
        $((spent * (count - done) / fresh))) left"
}

echo "$count random problems of seed $seed, $most at a time, in chunks of $chunk"
collect
resumed=$done
[ "$resumed" -eq 0 ] || echo "$resumed of $count were done before, $failed failed"
for ((first = 0; first < count; first += chunk)); do
    size=$((count - first < chunk ? count - first : chunk))
    [ ! -e "$logs/$first-$size.log" ] || continue
    if [ "$(jobs -rp | wc -l)" -ge "$most" ]; then
        wait -n || true
        collect
        progress
    fi
    run_chunk "$first" "$size" &
done
while [ -n "$(jobs -rp)" ]; do
    wait -n || true
    collect
    progress
done
wait
collect
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -eq "$count" ]
