#!/usr/bin/env bash
# check_wheel.sh WHEEL: fails if a wheel is not fit for others: too large, without a part, or in need of a glibc that is
# too new. Prints its size and what each part needs. CODEGEN=no: it is to have no code generator.
set -euo pipefail
export LC_ALL=C
[ $# = 1 ] && [ -f "$1" ] || { echo "usage: check_wheel.sh WHEEL" >&2; exit 2; }
wheel=$1 most=$((25 * 1000 * 1000)) failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad() { echo "check_wheel: $1" >&2; failed=1; }
python3 -m zipfile -e "$wheel" "$work"
bytes=$(stat -c %s "$wheel")
echo "$wheel: $bytes bytes"
[ "$bytes" -le $most ] || bad "the wheel has $bytes bytes, more than $most"

# newest FILE: the newest version of glibc that it asks for.
newest() { objdump -T "$1" | grep -F '*UND*' | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -1 | cut -d_ -f2; }
# part NAME GLIBC: it is there, is stripped, and needs no newer glibc.
part() {
    local file=$work/attune/lib/$1 version
    [ -f "$file" ] || { bad "there is no $1"; return; }
    version=$(newest "$file")
    echo "  $1: $(stat -c %s "$file") bytes, glibc $version"
    [ "$(printf '%s\n' "$2" "$version" | sort -V | tail -1)" = "$2" ] || bad "$1 needs glibc $version, newer than $2"
    ! readelf -SW "$file" | grep -q '\.debug_info' || bad "$1 is not stripped"
}
for text in LICENSE NOTICE; do [ -s "$work/attune/lib/$text" ] || bad "there is no $text"; done
part libattune.so.0 2.28
if [ "${CODEGEN:-yes}" = no ]; then
    [ ! -e "$work/attune/lib/libattune-codegen.so" ] || bad "there is a code generator"
    echo "  no code generator: it runs kernels that are in a cache, and compiles none"
else
    part libattune-codegen.so 2.34
    part attune-codegen-worker 2.34
    [ -f "$work/attune/lib/libattune-tier0.so" ] || bad "there is no libattune-tier0.so"
fi
for adapter in "$work"/attune/lib/libattune-*.so "$work"/attune/lib/libggml-attune.so; do
    [[ $adapter == *-codegen.so || $adapter == *-tier0.so || ! -e $adapter ]] || part "$(basename "$adapter")" 2.28
done
exit $failed
