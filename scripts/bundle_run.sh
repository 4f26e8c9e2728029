#!/bin/sh
# scripts/bundle_run.sh OBJECT DIRECTORY FLAGS EXPORTS SOURCES: compiles the run time of bundles by $CC and links it
# into one relocatable object, in which only EXPORTS are global and nothing but memcpy is undefined.
set -eu
object=$1 directory=$2 flags=$3 exports=$4 sources=$5
# GCC turns loops into calls of memset even where nothing but memcpy is there; other compilers do not know the option.
loops=-fno-tree-loop-distribute-patterns
! $CC -Werror $loops -E -x c /dev/null >/dev/null 2>&1 || flags="$flags $loops"
objects='' roots='' kept=''
for source in $sources; do
    part=$directory/$(echo "${source%.c}" | tr / -).o
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
    -o "$object.tmp"
# shellcheck disable=SC2086
"$objcopy" --strip-unneeded --remove-section=.comment $kept "$object.tmp" "$object"
rm "$object.tmp"
undefined=$($($CC -print-prog-name=nm) -u "$object" | grep -vwE 'memcpy|_GLOBAL_OFFSET_TABLE_' || :)
[ -z "$undefined" ] || {
    echo "the run time of bundles would need $undefined" >&2
    rm "$object"
    exit 1
}
