#!/usr/bin/env bash
# Runs test programs (build/tests/test_*, cmocka) and test scripts (tests/test_*.sh), all of them or those named, and
# prints a line for each case; the last line is "N passed, N failed" (", N skipped" if any). Exit 1 if one failed.
#
# A test reports in TAP: "ok 1 - name", "not ok 2 - name", "ok 3 # SKIP name" (cmocka writes
# "not ok" there, and means skipped all the same), after a plan "1..N". A script may leave
# that out: then its exit status is its one case (77: skipped). It is a failure, too, if a test exits non-zero, dies,
# runs longer than TEST_TIMEOUT seconds or reports fewer cases than its plan.
#
# Tests find the products in $BUILD and the command at $ATTUNE; each has an empty cache and TMPDIR of its own.
# TEST_JOBS run at a time. $BUILD/test-logs has the whole output of the tests, and in its file `times` what each took.
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD=$(realpath "${BUILD:-build}")
export BUILD ATTUNE=$BUILD/attune CMOCKA_MESSAGE_OUTPUT=TAP LLVM_CONFIG=${LLVM_CONFIG:-llvm-config-19}
# shellcheck source=tests/sanitizers.sh
. tests/sanitizers.sh
unset ATTUNE_ISA ATTUNE_MACHINE ATTUNE_COMPILE ATTUNE_COMPILE_TIMEOUT_MS ATTUNE_CODEGEN ATTUNE_CODEGEN_WORKER \
    ATTUNE_PERF
timeout=${TEST_TIMEOUT:-1200}
jobs=${TEST_JOBS:-$(nproc)}
logs=$BUILD/test-logs
rm -rf "$logs"
mkdir -p "$logs"

list_tests() {
    local file
    # test_jit_asan needs code that is instrumented: make asan-jit.
    for file in tests/test_*.c; do [ -e "$file" ] && basename "$file" .c; done | grep -vx test_jit_asan
    for file in tests/test_*.sh; do [ -e "$file" ] && basename "$file"; done
    return 0
}

# Names from stdin, with the tests that take longest first: at the end no processor waits for one of them.
longest_first() {
    awk -v longest="$(echo test_{aarch64.sh,d_lanes,docs.sh,install_layouts.sh,block,tune,codegen,cli.sh,fork})" '
        BEGIN { count = split(longest, name, " "); for (i = 1; i <= count; i++) place[name[i]] = i }
        { print ($0 in place ? place[$0] : count + 1), $0 }' | sort -s -n -k 1,1 | cut -d ' ' -f 2
}

run_one() {
    local name=$1 scratch status=0
    scratch=$(mktemp -d)
    mkdir "$scratch/cache" "$scratch/tmp"
    local command=("$BUILD/tests/$name")
    [[ $name == *.sh ]] && command=(bash "tests/$name")
    local TIMEFORMAT='%R %U %S'
    { time ATTUNE_CACHE_DIR=$scratch/cache TMPDIR=$scratch/tmp timeout --kill-after=10 "$timeout" "${command[@]}" \
        >"$logs/$name.log" 2>&1 </dev/null || status=$?; } 2>"$scratch/time"
    echo "$status" >"$logs/$name.status"
    tail -n 1 "$scratch/time" | awk -v name="$name" \
        '{ printf "%.1f s of processors, %.1f s in all: %s\n", $2 + $3, $1, name }' >>"$logs/times"
    rm -rf "$scratch"
}

# From a test's output and exit status to lines "passed|failed|skipped name: case".
judge() {
    awk -v test="$1" -v status="$2" -v script="$([[ $1 == *.sh ]] && echo 1 || echo 0)" '
        function say(verdict, what) { print verdict, test (what == "" ? "" : ": " what); count[verdict]++ }
        function title(line) { sub(/^(not )?ok [0-9]+ *(- )?/, "", line); return line }
        /^1\.\.[0-9]+/        { sub(/^1\.\./, ""); planned += $1; next }
        /^(not )?ok [0-9]+ .*# SKIP/ {
            line = title($0)
            sub(/^# SKIP */, "", line)
            sub(/ +# SKIP */, ": ", line)
            say("skipped", line)
            cases++
            next
        }
        /^ok [0-9]+/          { say("passed", title($0)); cases++; next }
        /^not ok [0-9]+/      { say("failed", title($0)); cases++; next }
        END {
            if (script && !cases && !planned && status == 77) say("skipped", "")
            else if (script && !cases && !planned) say(status == 0 ? "passed" : "failed", "")
            else if (status == 124 || status == 137) say("failed", "killed: it took too long, or used too much memory")
            else if (status > 128) say("failed", "died of signal " (status - 128))
            else if (status && !count["failed"]) say("failed", "exit status " status)
            else if (cases < planned || !planned) say("failed", "reported " cases + 0 " of " planned + 0 " cases")
        }' "$logs/$1.log"
}

mapfile -t tests < <(if [ $# -gt 0 ]; then printf '%s\n' "$@"; else list_tests; fi | longest_first)
for name in "${tests[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    run_one "$name" 2>/dev/null & # the shell's own word about a killed test
done
wait

passed=0 failed=0 skipped=0
for name in "${tests[@]}"; do
    verdicts=$(judge "$name" "$(cat "$logs/$name.status")")
    echo "$verdicts"
    if grep -q '^failed' <<<"$verdicts"; then
        echo "---- from $logs/$name.log"
        grep -B 5 -A 10 '^not ok' "$logs/$name.log" | head -n 150 || tail -n 60 "$logs/$name.log"
        echo "----"
    fi
    passed=$((passed + $(grep -c '^passed' <<<"$verdicts" || true)))
    failed=$((failed + $(grep -c '^failed' <<<"$verdicts" || true)))
    skipped=$((skipped + $(grep -c '^skipped' <<<"$verdicts" || true)))
done
# Of processors: how long a test takes beside others says little.
sort -rn -o "$logs/times" "$logs/times"
echo "$(awk '{ sum += $1 } END { printf "%.0f", sum }' "$logs/times") s of processors; most:" \
    "$(awk 'NR <= 8 { printf "%s%s %.0f s", (NR > 1 ? ", " : ""), $NF, $1 }' "$logs/times")"
summary="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || summary+=", $skipped skipped"
echo "$summary"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
