#!/usr/bin/env bash
# scripts/abi/abi.sh tells growth from changes that break programs. Libraries of the public headers stand for versions:
# their functions do nothing.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # nothing there that other tests do not run
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh
command -v abidw abidiff >"$work/stdout" || { echo "1..1"; echo "ok 1 # SKIP there is no abidiff here"; exit 0; }

# version NAME EDIT: the dump of a library of the header, after sed has edited it.
version() {
    local dir=$work/$1
    mkdir "$dir"
    cp -r include/attune.h include/attune "$dir"
    sed -E -i "$2" "$dir"/attune.h "$dir"/attune/{,expert/}*.h
    # The compiler lists the prototypes, in a file that it removes if it fails; parameters without names are C23.
    ${CC:-cc} -std=gnu11 -fsyntax-only -aux-info "$dir/prototypes" -x c "$dir/attune.h" || return
    { echo '#include "attune.h"'
        sed -nE 's|^.*attune(/[a-z/]+)?\.h:[0-9]+:NC \*/ extern (.*);.*|\2 { __builtin_trap(); }|p' "$dir/prototypes"
    } >"$dir/library.c"
    ${CC:-cc} -std=gnu2x -g -shared -fPIC -Wl,-soname,libattune.so.0 -Wl,--version-script=src/api/exports.map \
        "$dir/library.c" -o "$dir/library.so" 2>"$work/stderr" &&
        bash scripts/abi/abi.sh dump "$dir/library.so" "$work/$1.xml"
}
compare() { bash scripts/abi/abi.sh compare "$work/base.xml" "$work/$1.xml"; }
# grows NAME EDIT PATTERN, breaks NAME EDIT PATTERN: what the edit does to programs, and what is said of it.
grows() { version "$1" "$2" && expect "$1: growth" 0 "$3" compare "$1" || report 1 "$1: growth"; }
breaks() { version "$1" "$2" && expect "$1: programs break" 1 "$3" compare "$1" || report 1 "$1: programs break"; }
append() { echo "s/^\} $1;/    int64_t later;\n&/"; }

version base ''
report $? "the header gives a dump"
base=tests/data/abi-$(uname -m).xml
if [ -e "$base" ]; then
    bash scripts/abi/abi.sh compare "$base" "$work/base.xml" >"$work/stdout" 2>"$work/stderr"
    report $? "programs of the last release run with this header"
else
    skip "programs of the last release run with this header" "there is no $base"
fi
compare base >"$work/stdout" 2>"$work/stderr" && [ ! -s "$work/stdout" ]
report $? "nothing changed"
grows member-at-the-end "$(append attune_problem)" 'new: .*int64_t later.* of attune_problem'
grows enumerator 's/^    ATTUNE_DTYPE_COUNT/    ATTUNE_LATER,\n&/' "new: .*ATTUNE_LATER"
grows function 's/^ATTUNE_API const char \*attune_version/ATTUNE_API int attune_later(void);\n&/' 'new: .*attune_later'
breaks type-of-a-member 's/int64_t num_heads;/int32_t num_heads;/' "typedef name changed from int64_t to int32_t"
breaks type-and-member "$(append attune_problem); s/int64_t num_heads;/double num_heads;/" "attune_problem::num_heads"
breaks member-in-the-middle 's/^    int64_t num_heads;/    int64_t first;\n&/' "'int64_t first', at offset"
breaks member-that-is-gone 's/^    int64_t num_heads;.*//' "data member deletion"
breaks struct-without-a-size "$(append attune_tensor)" "'struct attune_tensor' changed"
breaks number-of-an-enumerator 's/ATTUNE_F16,/ATTUNE_F16 = 7,/' "ATTUNE_F16' from value '2' to '7'"
breaks function-that-is-gone 's/^ATTUNE_API const char \*attune_version.*//' "attune_version@@ATTUNE_0"
breaks parameter 's/attune_status_name\(attune_status/attune_status_name(long/' "attune_status_name"

objcopy --strip-debug "$work/base/library.so" "$work/bare.so"
expect "a library without debug information" 2 'has no debug information: compile with -g' \
    bash scripts/abi/abi.sh dump "$work/bare.so" "$work/bare.xml"
sed "1s/architecture='[^']*'/architecture='elf-other'/" "$work/base.xml" >"$work/other.xml"
expect "a dump of another architecture" 77 ', .* of elf-other' compare other
ln -s "$(command -v bash)" "$(command -v dirname)" "$work/base"
expect "without abidiff a sentence says so" 77 'there is no abidiff here' \
    env PATH="$work/base" bash scripts/abi/abi.sh compare "$work/base.xml" "$work/base.xml"
echo "1..$number"
