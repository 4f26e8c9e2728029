#!/usr/bin/env bash
# Functions that are too long or nested too deep: what check_functions.awk finds.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() { awk -f scripts/check_functions.awk "$work/a.c" >"$work/stdout"; }
# with_loops N: a function with N loops in each other, the last of them scoped loop IR.
with_loops() {
    local level
    printf 'static int f(int a,\n             int b) {\n'
    for ((level = 1; level < $1; level++)); do printf '%*sfor (;;) {\n' $((4 * level)) ''; done
    printf '%*sIR_FOR(b, i, 0, 1, 1) g(a);\n' $((4 * level)) ''
    for ((level = $1 - 1; level > 0; level--)); do printf '%*s}\n' $((4 * level)) ''; done
    printf '}\n'
}
# with_lines N: a function of N lines.
with_lines() { printf 'void f(void) {\n'; yes '    g();' | head -n $(($1 - 2)); printf '}\n'; }

find src -name '*.c' -exec awk -f scripts/check_functions.awk {} + >"$work/tree"
report $? "functions of src fit"
with_loops 4 >"$work/a.c"
check
report $? "four levels are allowed"
with_loops 5 >"$work/a.c"
! check && grep -q 'a.c:1: nested 5 deep' "$work/stdout"
report $? "a fifth level is found"
with_lines 100 >"$work/a.c"
check
report $? "100 lines are allowed"
with_lines 101 >"$work/a.c"
! check && grep -q 'a.c:1: 101 lines' "$work/stdout"
report $? "a line more is found"
: >"$work/a.c"
! check
report $? "no function at all is a mistake"
echo "1..$number"
