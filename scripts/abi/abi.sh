#!/usr/bin/env bash
# usage: abi.sh dump LIBRARY FILE | compare BASE NEW
#   dump     writes what programs compiled with attune.h depend on in LIBRARY, which needs debug information: functions,
#            and the structs and enumerations of the public headers (abi_public.ini)
#   compare  fails if a program that was linked to BASE would break with NEW, and prints what changed. What grows by the
#            rules of docs/api-growth.md does not count; abi_growth.awk knows these rules
# Exit status: 0 compatible, 1 not, 2 usage or no result, 77 there is no abidiff or no dump for this architecture.
set -euo pipefail
scripts=$(dirname "$0")
usage() { sed -n 's/^# usage: //p' "$0" >&2; exit 2; }
command -v abidw abidiff >/dev/null || { echo "abi: there is no abidiff here (Debian: abigail-tools)" >&2; exit 77; }

dump() {
    readelf -SW "$1" | grep -q '\.debug_info' ||
        { echo "abi: $1 has no debug information: compile with -g" >&2; exit 2; }
    abidw --suppressions "$scripts/abi_public.ini" --drop-private-types --exported-interfaces-only \
        --no-parameter-names --no-show-locs --no-comp-dir-path --no-corpus-path --no-elf-needed --type-id-style hash \
        --out-file "$2" "$1"
}

architecture() { sed -n "1s/.* architecture='\([^']*\)'.*/\1/p" "$1"; }

compare() {
    local report status=0
    [ "$(architecture "$1")" = "$(architecture "$2")" ] ||
        { echo "abi: $1 is of $(architecture "$1"), $2 of $(architecture "$2")" >&2; exit 77; }
    report=$(abidiff --leaf-changes-only "$1" "$2") || status=$?
    # 1 and 2 are errors of its own.
    [ $((status & 3)) -eq 0 ] || { echo "$report"; exit 2; }
    [ "$status" -ne 0 ] || return 0
    awk -f "$scripts/abi_growth.awk" "$2" - <<<"$report"
}

case $#-${1:-} in
3-dump) dump "$2" "$3" ;;
3-compare) compare "$2" "$3" ;;
*) usage ;;
esac
