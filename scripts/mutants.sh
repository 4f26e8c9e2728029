#!/usr/bin/env bash
# usage: mutants.sh [NAME…]: seeds the bugs of tests/mutants/*.patch one by one and expects each to be caught.
#
# A patch opens with a sentence about the bug and a line "tests: NAME…", the tests that should see it (as tests/run.sh
# takes them; "check" is `attune check --random`). Works on a copy of the tree in $BUILD-mutants, which it builds
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
(cd "$tree" && find src tests tools -type f | LC_ALL=C sort | LC_ALL=C comm -23 - files | xargs -r rm)
cd "$tree"

# build NAME…: what the tests of these names need.
build() {
    local name targets=(all)
    for name in "$@"; do [[ $name == test_* && $name != *.sh ]] && targets+=("build/tests/$name"); done
    # A make of its own, with its own jobs, even where another make runs this script.
    env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory DEPS=no BUILD=build "${targets[@]}" >build.log 2>&1
}

# run_tests NAME…: runs them in order and stops at the first that fails, whose name it leaves in `caught`.
run_tests() {
    local name
    for name in "$@"; do
        caught=$name
        if [ "$name" = check ]; then
            # The braces keep the shell's own word about a crash off the screen.
            { ATTUNE_CACHE_DIR='' build/attune check --random "$random" --seed 20 --isa all >test.log 2>&1; } \
                2>/dev/null ||
                return 1
        else
            BUILD=build bash tests/run.sh "$name" >test.log 2>&1 || return 1
        fi
    done
    caught=''
}

tests_of() { sed -n 's/^tests: //p;/^--- /q' "$1"; }

patches=()
for patch in "$source"/tests/mutants/*.patch; do
    name=$(basename "$patch" .patch)
    if [ $# -eq 0 ] || [[ " $* " == *" $name "* ]]; then patches+=("$patch"); fi
done

echo "building without bugs, and testing that"
mapfile -t all_tests < <(for patch in "${patches[@]}"; do tests_of "$patch"; done | tr ' ' '\n' | sort -u)
if ! build "${all_tests[@]}"; then tail -n 30 build.log; echo "0 passed, 1 failed"; exit 1; fi
if ! run_tests "${all_tests[@]}"; then
    tail -n 30 test.log
    echo "failed without any bug: $caught"
    echo "0 passed, 1 failed"
    exit 1
fi

passed=0 failed=0
for patch in "${patches[@]}"; do
    name=$(basename "$patch" .patch)
    what=$(head -n 1 "$patch")
    verdict=failed
    if ! patch -s -p1 --forward --dry-run <"$patch" >/dev/null; then
        echo "failed $name: the patch does not apply"
        failed=$((failed + 1))
        continue
    fi
    patch -s -p1 <"$patch"
    read -ra tests < <(tests_of "$patch")
    if ! build "${tests[@]}"; then
        echo "failed $name: does not build ($what)"
    elif run_tests "${tests[@]}"; then
        echo "failed $name: not caught ($what)"
    else
        echo "passed $name: caught by $caught ($what)"
        verdict=passed
    fi
    patch -s -p1 -R <"$patch"
    if [ $verdict = passed ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
