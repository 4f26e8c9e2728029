#!/bin/sh
# scripts/bundle_run.sh OBJECT FLAGS EXPORTS SOURCES: compiles the run time of bundles by $CC and links it
# into one relocatable object, in which only EXPORTS are global and nothing but memcpy is undefined.
set -eu
object=$1 flags=$2 exports=$3 sources=$4
work=$object.$$
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
# GCC turns loops into calls of memset even where nothing but memcpy is there; other compilers do not know the option.
loops=-fno-tree-loop-distribute-patterns
! $CC -Werror $loops -E -x c /dev/null >/dev/null 2>&1 || flags="$flags $loops"
objects='' roots='' kept=''
for source in $sources; do
    part=$work/$(echo "${source%.c}" | tr / -).o
    # shellcheck disable=SC2086 # flags are words
    $CC $flags -c "$source" -o "$part"
    objects="$objects $part"
done
for name in $exports; do
    roots="$roots -Wl,-u,$name" kept="$kept --keep-global-symbol=$name"
done
objcopy=$($CC -print-prog-name=objcopy)
# shellcheck disable=SC2086
$CC -nostdlib -r -Wl,--gc-sections -Wl,-T,src/bundle_run/sections.ld -Wl,-e,${exports%% *} $roots $objects \
    -o "$work/all"
# shellcheck disable=SC2086
"$objcopy" --strip-unneeded --remove-section=.comment $kept "$work/all" "$work/object"
undefined=$($($CC -print-prog-name=nm) -u "$work/object" | grep -vwE 'memcpy|_GLOBAL_OFFSET_TABLE_' || :)
[ -z "$undefined" ] || {
    echo "the run time of bundles would need $undefined" >&2
    exit 1
}
mv "$work/object" "$object"
