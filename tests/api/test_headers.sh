#!/usr/bin/env bash
# The public headers: each can be included alone, by C99 and by C++11, and attune.h has all of them and says what each
# is for.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # nothing there that other tests do not run
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh

ls include/attune/*.h include/attune/expert/*.h | sed 's|^include/||' | sort >"$work/files"
[ "$(wc -l <"$work/files")" -gt 10 ]
report $? "there are headers"
sed -n 's/^#include "\(.*\)"$/\1/p' include/attune.h | sort | cmp - "$work/files" >"$work/stdout" 2>"$work/stderr"
report $? "attune.h includes each of them"
sed -nE 's|^ \*     (attune/[a-z_/]+\.h) .*|\1|p' include/attune.h | sort |
    cmp - "$work/files" >"$work/stdout" 2>"$work/stderr"
report $? "and says what it has"

# alone HEADER WORDS…: the compiler with these words takes a program that includes this header alone.
alone() { echo "#include <$1>" | "${@:2}" -Iinclude -Wall -Wextra -Wpedantic -Werror -fsyntax-only -; }
while IFS= read -r header; do
    alone "$header" "${CC:-cc}" -std=c99 -x c >"$work/stdout" 2>"$work/stderr"
    report $? "$header alone, C99"
    alone "$header" "${CXX:-c++}" -std=c++11 -x c++ >"$work/stdout" 2>"$work/stderr"
    report $? "$header alone, C++11"
done < <(cat "$work/files"; echo attune.h)
mkdir "$work/include"
echo 'attune_status attune_later(void);' >"$work/include/later.h"
expect "a header that lacks one is found" 1 'attune_status' alone later.h "${CC:-cc}" -I"$work/include" -std=c99 -x c
echo "1..$number"
