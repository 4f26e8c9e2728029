#!/usr/bin/env bash
# usage: mutants.sh [NAME…]: seeds the bugs of tests/mutants/*.bug one by one and expects each to be caught.
#
# scripts/seed_bug.py says what is in such a file: "tests: NAME…" are the tests that should see the bug (as tests/run.sh
# takes them; "check" is `attune-lab check --random`). Works on a copy of the tree in $BUILD-mutants, which it builds
# incrementally. Nothing is proved by a bug that does not build, or by tests that fail without it: both are failures.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$(realpath -m "${BUILD:-build}-mutants")
source=$PWD
random=${MUTANTS_RANDOM:-150}

# Copies what differs, with a new time stamp: an interrupted run may have left a bug in the copy and in its objects.
mkdir -p "$tree"
git ls-files --cached --others --exclude-standard | LC_ALL=C sort >"$tree/files"
while read -r file; do
    cmp -s "$file" "$tree/$file" || install -D "$file" "$tree/$file"
done <"$tree/files"
(cd "$tree" && find src tests tools lab reference -type f | LC_ALL=C sort | LC_ALL=C comm -23 - files | xargs -r rm)
cd "$tree"

# build NAME…: what the tests of these names need, and no more: a program of tests needs no tier 0 and no adapter.
build() {
    local name check=() tests=()
    for name in "$@"; do
        if [ "$name" = check ]; then check=(lib codegen lab); else tests+=("$name"); fi
    done
    # A make of its own, with its own jobs, even where another make runs this script.
    local own=(env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory DEPS=no BUILD=build TEST_LDFLAGS=-Wl,-S)
    : >build.log
    [ ${#check[@]} -eq 0 ] || "${own[@]}" "${check[@]}" >>build.log 2>&1 || return 1
    [ ${#tests[@]} -eq 0 ] || "${own[@]}" test BUILD_ONLY=yes TESTS_ONLY="${tests[*]}" >>build.log 2>&1
}

# run_tests NAME…: runs them in order and stops at the first that fails, whose name it leaves in `caught`.
run_tests() {
    local name
    for name in "$@"; do
        caught=$name
        if [ "$name" = check ]; then
            # The braces keep the shell's own word about a crash off the screen.
            { ATTUNE_CACHE_DIR='' build/attune-lab check --random "$random" --seed 20 --isa all >test.log 2>&1; } \
                2>/dev/null ||
                return 1
        else
            BUILD=build bash tests/run.sh "$name" >test.log 2>&1 || return 1
        fi
    done
    caught=''
}

tests_of() { sed -n 's/^tests: //p;/^find:$/q' "$1"; }

bugs=()
for bug in "$source"/tests/mutants/*.bug; do
    name=$(basename "$bug" .bug)
    if [ $# -eq 0 ] || [[ " $* " == *" $name "* ]]; then bugs+=("$bug"); fi
done

echo "building without bugs, and testing that"
mapfile -t all_tests < <(for bug in "${bugs[@]}"; do tests_of "$bug"; done | tr ' ' '\n' | sort -u)
if ! build "${all_tests[@]}"; then tail -n 30 build.log; echo "0 passed, 1 failed"; exit 1; fi
if ! run_tests "${all_tests[@]}"; then
    tail -n 30 test.log
    echo "failed without any bug: $caught"
    echo "0 passed, 1 failed"
    exit 1
fi

passed=0 failed=0
for bug in "${bugs[@]}"; do
    name=$(basename "$bug" .bug)
    what=$(head -n 1 "$bug")
    verdict=failed
    if ! changed=$(python3 "$source/scripts/seed_bug.py" seed "$bug" .); then
        echo "failed $name: it does not fit the sources"
        failed=$((failed + 1))
        continue
    fi
    read -ra tests < <(tests_of "$bug")
    if ! build "${tests[@]}"; then
        echo "failed $name: does not build ($what)"
    elif run_tests "${tests[@]}"; then
        echo "failed $name: not caught ($what)"
    else
        echo "passed $name: caught by $caught ($what)"
        verdict=passed
    fi
    while read -r file; do cp "$source/$file" "$file"; done <<<"$changed"
    if [ $verdict = passed ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
