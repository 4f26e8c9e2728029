#!/usr/bin/env bash
# Runs test programs (build/tests/test_*, cmocka) and test scripts (tests/*/test_*.sh), all of them or those named. Says
# first how many there are, prints a line for each as it ends, with its failures below, and then what was skipped and
# what failed; the last line is "N passed, N failed" (", N skipped" if any). Exit 1 if one failed. VERBOSE=1: a line for
# each case.
#
# A test reports in TAP: "ok 1 - name", "not ok 2 - name", "ok 3 # SKIP name" (cmocka writes
# "not ok" there, and means skipped all the same), after a plan "1..N". A script may leave
# that out: then its exit status is its one case (77: skipped). It is a failure, too, if a test exits non-zero, dies,
# runs longer than TEST_TIMEOUT seconds or reports fewer cases than its plan.
#
# Tests find the products in $BUILD and the command at $ATTUNE; each has an empty cache and TMPDIR of its own. They see
# no ATTUNE_ variable of the caller but those for tests: ATTUNE_TEST_*, ATTUNE_STRESS, ATTUNE_STEPS and ATTUNE_JIT_ASAN
# (make asan-jit). Locale and umask are the same for everybody.
# TEST_JOBS run at a time. $BUILD/test-logs has the whole output of the tests, in its file `times` what each took, and
# in `cases` every case with its verdict, sorted: two runs of the same tests have the same list. ATTUNE_TEST_SEED sets
# another seed of random tests. TEST_ISA=avx2 generates code for that instruction set where a test names none.
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD=$(realpath "${BUILD:-build}")
export BUILD ATTUNE=$BUILD/attune CMOCKA_MESSAGE_OUTPUT=TAP LLVM_CONFIG=${LLVM_CONFIG:-llvm-config-19}
# shellcheck source=tests/sanitizers.sh
. tests/sanitizers.sh
export LC_ALL=C
unset LANGUAGE CDPATH
umask 022
for name in "${!ATTUNE_@}"; do
    case $name in ATTUNE_TEST_* | ATTUNE_STRESS | ATTUNE_STEPS | ATTUNE_JIT_ASAN) ;; *) unset "$name" ;; esac
done
[ -z "${TEST_ISA:-}" ] || export ATTUNE_ISA=$TEST_ISA
timeout=${TEST_TIMEOUT:-1200}
jobs=${TEST_JOBS:-$(nproc)}
export ATTUNE_TEST_SEED=${ATTUNE_TEST_SEED:-1}
logs=$BUILD/test-logs
rm -rf "$logs"
mkdir -p "$logs"

list_tests() {
    local file
    # test_jit_asan needs code that is instrumented: make asan-jit.
    for file in tests/{,*/}test_*.c; do [ -e "$file" ] && basename "$file" .c; done | grep -vx test_jit_asan
    for file in tests/{,*/}test_*.sh; do [ -e "$file" ] && basename "$file"; done
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
    local command=("$BUILD/tests/$name") script
    for script in tests/{,*/}"$name"; do
        [[ $name != *.sh || ! -e $script ]] || command=(bash "$script")
    done
    local TIMEFORMAT='%R %U %S'
    { time ATTUNE_CACHE_DIR=$scratch/cache TMPDIR=$scratch/tmp timeout --kill-after=10 "$timeout" "${command[@]}" \
        >"$logs/$name.log" 2>&1 </dev/null || status=$?; } 2>"$scratch/time"
    tail -n 1 "$scratch/time" | awk -v name="$name" \
        '{ printf "%.1f s of processors, %.1f s in all: %s\n", $2 + $3, $1, name }' >>"$logs/times"
    echo "$status" >"$logs/$name.tmp" && mv "$logs/$name.tmp" "$logs/$name.status"
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

# show NAME: the line of a test that ended, and what failed in it.
show() {
    local name=$1 verdicts took
    verdicts=$(judge "$name" "$(cat "$logs/$name.status")")
    printf '%s\n' "$verdicts" >"$logs/$name.verdicts"
    took=$(awk -v name="$name" '$NF == name { print $5 }' "$logs/times")
    done_so_far=$((done_so_far + 1))
    awk -v name="$name" -v took="$took" -v at="$done_so_far" -v all="${#tests[@]}" '
        { count[$1]++ }
        END {
            printf "[%*d/%d] %-28s %6.1f s  %4d passed", length(all), at, all, name, took, count["passed"]
            if (count["skipped"]) printf ", %d skipped", count["skipped"]
            if (count["failed"]) printf ", %d FAILED", count["failed"]
            print ""
        }' "$logs/$name.verdicts"
    [ -z "${VERBOSE:-}" ] || cat "$logs/$name.verdicts"
    grep -q '^failed' "$logs/$name.verdicts" || return 0
    grep '^failed' "$logs/$name.verdicts"
    echo "---- from $logs/$name.log (ATTUNE_TEST_SEED=$ATTUNE_TEST_SEED)"
    grep -B 5 -A 10 '^not ok' "$logs/$name.log" | head -n 150 || tail -n 60 "$logs/$name.log"
    echo "----"
}

mapfile -t tests < <(if [ $# -gt 0 ]; then printf '%s\n' "$@"; else list_tests; fi | longest_first)
[ $# -gt 0 ] || echo "${#tests[@]} tests, $jobs at a time. All of them take some ten minutes on two fast idle cores," \
    "and up to half an hour on slow or busy ones."
done_so_far=0
declare -A is_shown
# Waits for a test to end, and shows all that did.
next() {
    local name
    wait -n || true
    for name in "${tests[@]}"; do
        [ -n "${is_shown[$name]:-}" ] || [ ! -e "$logs/$name.status" ] || { is_shown[$name]=yes && show "$name"; }
    done
}
for name in "${tests[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do next; done
    run_one "$name" 2>/dev/null & # the shell's own word about a killed test
done
while [ "$done_so_far" -lt "${#tests[@]}" ]; do next; done

for name in "${tests[@]}"; do cat "$logs/$name.verdicts"; done | LC_ALL=C sort >"$logs/cases"
grep '^skipped' "$logs/cases" || true
grep '^failed' "$logs/cases" || true
passed=$(grep -c '^passed' "$logs/cases" || true)
failed=$(grep -c '^failed' "$logs/cases" || true)
skipped=$(grep -c '^skipped' "$logs/cases" || true)
# Of processors: how long a test takes beside others says little.
sort -rn -o "$logs/times" "$logs/times"
echo "$(awk '{ sum += $1 } END { printf "%.0f", sum }' "$logs/times") s of processors; most:" \
    "$(awk 'NR <= 8 { printf "%s%s %.0f s", (NR > 1 ? ", " : ""), $NF, $1 }' "$logs/times")"
[ "$failed" -eq 0 ] || echo "random tests had ATTUNE_TEST_SEED=$ATTUNE_TEST_SEED"
summary="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || summary+=", $skipped skipped"
echo "$summary"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
