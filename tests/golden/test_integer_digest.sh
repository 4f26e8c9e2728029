#!/usr/bin/env bash
# The digests of problems with integer=all: the first 1,000 are as published, on every instruction set that this CPU
# has, and a digest that is not is found. Needs BUILD. With ATTUNE_TEST_SHORT=yes, as in .ci/run, the first 200.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # test_integer_bits.c runs there
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh

count=1000
[ "${ATTUNE_TEST_SHORT:-}" != yes ] || count=200
digest() { LOGS=$work JOBS=2 bash scripts/integer_digest.sh "$@"; }
expect "$count problems" 0 '^1 as published, 0 differ, 0 not published$' digest $count
expect "again, from what is there, with the names of instruction sets" 0 '^instruction sets: [a-z]' digest $count
sed 's/^0 20 ./0 20 x/' tests/data/integer_digests.txt >"$work/others.txt"
expect "another digest is found" 1 '^0 20 [0-9a-f]{16}, and published is x' digest 20 "$work/others.txt"
expect "one that is not published is told" 0 '^0 as published, 0 differ, 1 not published$' digest 3
echo "1..$number"
