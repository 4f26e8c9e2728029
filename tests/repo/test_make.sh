#!/usr/bin/env bash
# What make does where tools come later: nothing empty stays behind, and what a missing tool left out is made once it is
# there. That two makes in one folder see whole products of each other, and what TESTS_ONLY builds.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # the rules are the same
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh

holds() {
    local name=$1
    shift
    "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
    report $? "$name"
}
object=$work/obj/src/bundle/run_objects.o
# A make of its own, with its own jobs.
build() { env -u MAKEFLAGS -u MAKELEVEL -u TESTS_ONLY make --no-print-directory DEPS=no BUILD="$work" "$@"; }
names() { LC_ALL=C readelf -sW "$object" | awk -v name="at_run_$1" '$8 == name || $8 == name "_end" { print $2 }'; }
is_empty() { [ "$(names "$1" | sort -u | wc -l)" -eq 1 ]; }

holds "without a cross compiler the library builds" build AARCH64_CC=no-such-compiler "$object"
holds "with nothing for AArch64" is_empty aarch64
holds "and no file that would be taken for it" test ! -e "$work/bundle_run/aarch64.o"
holds "and all for x86-64" test -s "$work/bundle_run/x86_64.o"
if command -v aarch64-linux-gnu-gcc >"$work/stdout"; then
    holds "with the compiler it is made" build "$object"
    holds "and is no file without content" test -s "$work/bundle_run/aarch64.o"
    without_end() { ! is_empty aarch64; }
    holds "and is in the library" without_end
    touch "$work/now"
    holds "and not made again" build "$object"
    holds "while nothing changes" test "$work/now" -nt "$object"
else
    for name in "with the compiler it is made" "and is no file without content" "and is in the library" \
        "and not made again" "while nothing changes"; do
        skip "$name" "there is no cross compiler for AArch64"
    done
fi

# plan ARGUMENT…: the commands that make would run, each in a line.
plan() { build -nB V=1 "$@" | sed -e :a -e '/\\$/{N;s/\\\n//;ba' -e '}'; }
# `attune bundle` itself writes whole files.
plan all tests lab $work/libattune.a $work/golden_ir $work/bench/{latency,linear,survey} >"$work/plan" 2>"$work/stderr"
written() { grep -v ' bundle -o ' "$work/plan" | grep -oE -- " (-o|rcs) $work/[^ ]+"; }
holds "products are linked and archived" test "$(written | wc -l)" -gt 300
holds "objects apart, each under a name of its own" test -z "$(written | grep -vE '(/obj/.*\.o|\$\$|\$\$/.*)$')"

tests_of() { plan tests "$@" | grep -oE -- "-o $work/tests/test_[a-z0-9_]+" | sed 's|.*/||' | sort | tr '\n' ' '; }
holds "make tests builds the tests that are named" test "$(tests_of TESTS_ONLY="test_npy test_cli.sh test_json")" = \
    "test_json test_npy "
holds "and otherwise all" test "$(tests_of | wc -w)" -gt 100
echo "1..$number"
