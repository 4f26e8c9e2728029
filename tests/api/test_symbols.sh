#!/usr/bin/env bash
# What the products export, import and need, read from their tables: a process that embeds the library has symbols of
# others, and none of them may be taken for ours, or ours for theirs.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # a sanitizer imports and exports what it likes
cd "$(dirname "$0")/../.." || exit 1
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh
library=$BUILD/libattune.so.0 plugin=$BUILD/libattune-codegen.so archive=$BUILD/libattune.a
worker=$BUILD/attune-codegen-worker

# nothing NAME COMMAND…: it succeeds and says nothing.
nothing() {
    local name=$1
    shift
    "$@" >"$work/stdout" 2>"$work/stderr" && [ ! -s "$work/stdout" ]
    report $? "$name"
}

# ---- The shared library ----

# In the dynamic table a name has its version: attune_run@@ATTUNE_0, malloc@GLIBC_2.2.5.
defined() { nm -D --defined-only "$1" | awk '{ print $NF }' | sort; }
imported() { nm -D --undefined-only "$1" | awk '{ print $NF }' | sort; }
cat include/attune.h include/attune/{,expert/}*.h | grep -oE '^ATTUNE_(API|CHECKED) [^(]*\(' |
    grep -oE 'attune_[a-z0-9_]+\($' |
    tr -d '(' | sort >"$work/api"
{ cat "$work/api"; echo ATTUNE_0; } | sed '/^attune/s/$/@@ATTUNE_0/' | sort >"$work/wanted"

expect "the header declares functions" 0 '^attune_compile$' cat "$work/api"
defined "$library" >"$work/defined"
nothing "the library exports what the header declares, as ATTUNE_0" diff "$work/wanted" "$work/defined"
foreign() { imported "$1" | grep -vE '@GLIBC_[0-9.]+$' || true; }
nothing "and imports from the C library only" foreign "$library"
needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }
strangers() { needed "$1" | grep -vE '^(libc\.so\.6|libm\.so\.6|ld-linux[a-z0-9-]*\.so\.[0-9])$' || true; }
nothing "which with libm and the loader is all that it needs" strangers "$library"
expect "its references are bound when it is loaded, and it stays" 0 'Flags:.*NOW.*NODELETE' readelf -d "$library"
expect "its own functions are not replaced by others' of the same name" 0 'SYMBOLIC' readelf -d "$library"
expect "its tables are read-only" 0 'GNU_RELRO' readelf -lW "$library"
unwanted() { readelf -dlW "$1" | grep -E 'TEXTREL|RPATH|RUNPATH|GNU_STACK.* RWE|LOAD.* RWE' || true; }
nothing "it writes to no code, runs no data and looks nowhere" unwanted "$library"

# ---- Their size ----

# A deployment without a compiler: library and tier 0, as `make install-strip` installs them.
stripped() { strip -o "$work/stripped" "$1" && stat -c %s "$work/stripped"; }
both=$(($(stripped "$library") + $(stripped "$BUILD/libattune-tier0.so")))
[ "$both" -lt 8388608 ]
report $? "the library and tier 0 take $both bytes, less than 8 MiB"
# Offsets lead from a bundle's kernels to their codes; only the bundles themselves have pointers, three each.
relocations() { readelf -rW "$BUILD/libattune-tier0.so" | grep -c 'R_[A-Z0-9_]*RELATIVE'; }
expect "tier 0 has hardly anything for the dynamic linker to do" 0 '^[0-9]$' relocations
# Kernels by instruction set: attune_tier0.f32_64_many_all.avx512.phase0.code
nm -S -t d "$BUILD/libattune-tier0.so" | awk '$4 ~ /^attune_tier0/ { n = split($4, part, "."); bytes[part[3]] += $2 }
    END { for (isa in bytes) printf "%s %d\n", isa, bytes[isa] }' >"$work/isas"
expect "tier 0 has kernels" 0 '^(avx2|aarch64) [0-9]{5}' cat "$work/isas"
nothing "and no instruction set has more than 2 MiB of them" awk '$2 > 2097152' "$work/isas"

# ---- What the Makefile asks of a compiler ----

# would NAME TARGET VARIABLE=…: the commands that would make it, in an empty directory.
would() { env -u CFLAGS -u LLVM_LINK make -nB --no-print-directory V=1 DEPS=no BUILD="$work/build" "$@"; }
compiling() { would "$work/build/obj/src/base/error.o" "$@" | grep -c -- '-D_FORTIFY_SOURCE=2'; }
linking() { would "$work/build/libattune-codegen.so" "$@" | grep -c 'libstdc++.a'; }
cat >"$work/no-cxx" <<'COMPILER'
#!/bin/sh
[ "$*" != -print-file-name=libstdc++.a ] || exec echo libstdc++.a
exec cc "$@"
COMPILER
cat >"$work/fortified" <<'COMPILER'
#!/bin/sh
exec cc -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 "$@"
COMPILER
chmod +x "$work/no-cxx" "$work/fortified"
if ! cc -O2 -dM -E -x c /dev/null | grep -q _FORTIFY_SOURCE; then
    expect "calls on buffers are to be checked" 0 '^1$' compiling CC=cc
fi
expect "but not where the compiler does that by itself" 1 '^0$' compiling CC="$work/fortified"
expect "nor where CFLAGS say how" 1 '^0$' compiling CC=cc CFLAGS='-O2 -Wp,-U_FORTIFY_SOURCE -Wp,-D_FORTIFY_SOURCE=3'
expect "or CPPFLAGS" 1 '^0$' compiling CC=cc CPPFLAGS=-D_FORTIFY_SOURCE=3
expect "which reach the compiler" 0 ' -DMINE=1 .*src/base/error.c' \
    would "$work/build/obj/src/base/error.o" CPPFLAGS=-DMINE=1
expect "without an archive of the C++ library LLVM's shared one is linked" 1 '^0$' linking CC="$work/no-cxx"

# ---- Hardening, as far as the compiler knows it for this machine ----

expect "the stack is watched" 0 '__stack_chk_fail@GLIBC' imported "$library"
case " ${CFLAGS--O2} " in
*" -O"[1-3s]" "*) expect "buffers of known sizes are checked" 0 '_chk@GLIBC' imported "$library" ;;
esac
if readelf -h "$library" | grep -q X86-64; then
    expect "the library has landing pads and keeps a shadow stack" 0 'IBT, SHSTK' readelf -n "$library"
    for product in "$plugin" "$worker" "$ATTUNE"; do
        expect "$(basename "$product") keeps a shadow stack" 0 'SHSTK' readelf -n "$product"
    done
fi
for product in "$plugin" "$worker" "$ATTUNE"; do
    expect "the references of $(basename "$product") are bound at once" 0 'BIND_NOW|Flags:.*NOW' readelf -d "$product"
done

# ---- The code generator ----

expect "the code generator exports one symbol" 0 '^1$' sh -c "nm -D --defined-only '$plugin' | wc -l"
expect "which is attune_codegen_exports" 0 ' attune_codegen_exports$' nm -D --defined-only "$plugin"
if needed "$plugin" | grep -q LLVM; then
    skipped() { echo "ok $((number += 1)) - $1 # SKIP the code generator has the system's LLVM"; }
    skipped "its LLVM is its own"
else
    # What the compiler's start files ask for, if it is there, is no part of LLVM.
    foreign_to_plugin() { foreign "$plugin" | grep -vxE '_ITM_(de)?registerTMCloneTable|__gmon_start__' || true; }
    nothing "it imports from the C library only" foreign_to_plugin
    nothing "and needs nothing else" strangers "$plugin"
fi

# ---- The oldest glibc ----

# asks_for FILE VERSION: what it takes from a newer glibc.
asks_for() {
    objdump -T "$1" | sed -nE 's/.*\*UND\*.*[( ]GLIBC_([0-9.]+)\)? +(\S+)$/\1 \2/p' | while read -r version name; do
        [ "$(printf '%s\n' "$2" "$version" | sort -V | tail -1)" = "$2" ] || echo "$name of glibc $version"
    done
}
wheel=$BUILD/wheel/libattune.so.0
if [ -z "$(asks_for "$library" 2.4)" ]; then
    skip "the wheel's library loads with glibc 2.28" "objdump shows no versions here"
else
    nothing "the wheel's library loads with glibc 2.28" asks_for "$wheel" 2.28
    needs_old() { needed "$wheel" | grep -cxE 'lib(pthread\.so\.0|dl\.so\.2)'; }
    expect "where threads and the loader are libraries of their own" 0 '^2$' needs_old
    defined "$wheel" >"$work/defined"
    nothing "it exports what the library does" diff "$work/wanted" "$work/defined"
    if needed "$plugin" | grep -q LLVM; then
        skipped "the code generator loads with glibc 2.34"
    else
        nothing "the code generator loads with glibc 2.34" asks_for "$plugin" 2.34
    fi
fi

# ---- The archive ----

nm -g --defined-only "$archive" 2>"$work/stderr" | awk 'NF == 3 { print $3 }' | sort >"$work/defined"
nothing "the archive defines what the header declares" diff "$work/api" "$work/defined"
cat >"$work/program.c" <<'PROGRAM'
#include <attune.h>
#include <stdio.h>
/* Names that the library uses inside, and such as others have. */
int at_fail = 1, ir_lower = 2, mha_choose = 3, tune_run = 4, XXH3_64bits = 5, pthreadpool_create = 6, key = 7;
int main(void) {
    attune_context *context = NULL;
    if (attune_context_create(NULL, &context)) return 1;
    attune_context_destroy(context);
    return printf("%s %d\n", attune_version(), at_fail + ir_lower + mha_choose + XXH3_64bits + pthreadpool_create) < 0;
}
PROGRAM
link() { ${CC:-cc} -Iinclude "$work/program.c" "$@" -pthread -ldl -lm -o "$work/program" && "$work/program"; }
expect "a program with names of its own links the archive" 0 '^[0-9.]+ 17$' link "$archive"
expect "and the shared library" 0 '^[0-9.]+ 17$' link "$library" "-Wl,-rpath,$BUILD"

# With link-time optimisation, as packages are often built: an archive of a few files, one of which a program calls.
lto='-O2 -flto=auto -ffat-lto-objects'
few='src/base/nearest.c src/base/struct.c src/base/error.c src/base/plain_text.c'
lto_archive() {
    env -u CFLAGS make --no-print-directory DEPS=no BUILD="$work/lto" CFLAGS="$lto" LIB_SRC="$few" \
        "$work/lto/libattune.a"
}
echo 'int at_same_word = 1; int main(void) { return !at_same_word; }' >"$work/same.c"
echo 'int main(void) { return 0; }' >"$work/empty.c"
# shellcheck disable=SC2086 # words of options
if ${CC:-cc} -Werror $lto "$work/empty.c" -o "$work/empty" 2>/dev/null; then
    expect "an archive is made with link-time optimisation in CFLAGS" 0 '' lto_archive
    hidden() { nm -g --defined-only "$work/lto/libattune.a" 2>/dev/null | grep ' at_' || true; }
    nothing "its names are local all the same" hidden
    # shellcheck disable=SC2086
    nothing "and a program with one of them links it" ${CC:-cc} $lto -Wl,--whole-archive "$work/lto/libattune.a" \
        -Wl,--no-whole-archive "$work/same.c" -o "$work/same"
else
    skip "the archive with link-time optimisation" "this compiler has none"
fi
echo "1..$number"
