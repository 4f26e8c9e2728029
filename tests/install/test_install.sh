#!/usr/bin/env bash
# Installs into an empty prefix, builds the examples against it through pkg-config, and runs them and the installed
# command with nothing else to find the library or its code generator by.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # a sanitized library needs a sanitized program
prefix=$(mktemp -d) work=$(mktemp -d)
trap 'rm -rf "$prefix" "$work" "${build_copy:-}"' EXIT
touch "$work/stdout" "$work/stderr"
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh
# shellcheck source=tests/support/build_copy.sh
source tests/support/build_copy.sh
# shellcheck source=tests/support/pages.sh
source tests/support/pages.sh

echo "1..34"
blank() {
    make --no-print-directory "$1" DESTDIR="$prefix/a b" PREFIX="$prefix" BUILD="$BUILD" 2>&1 |
        grep -q "DESTDIR is '$prefix/a b': a directory to install into must have no blank" && [ -z "$(ls "$prefix")" ]
}
for target in install install-strip uninstall; do
    blank $target
    report $? "make $target refuses a DESTDIR with a blank before it does anything"
done
(umask 077 && make --no-print-directory install PREFIX="$prefix" BUILD="$BUILD")
report $? "make install"
private=$(find "$prefix" -mindepth 1 ! -perm -o=r)
[ -z "$private" ] || echo "# not readable: $private"
[ -z "$private" ]
report $? "all may read what is installed, whatever the umask"
mapfile -t pages < <(find "$prefix/share/doc" -name '*.md')
[ ${#pages[@]} -gt 15 ] && broken_links "${pages[@]}"
report $? "links of installed pages lead somewhere"
[ -z "$(find "$prefix/share/doc/attune/examples" -size +100k)" ]
report $? "their examples come without large data"
! grep -rlF /usr/local/lib/attune "$prefix" && grep -qF "$prefix/lib/attune" "$prefix/lib/libattune.so.0"
report $? "what is looked for last lies below the PREFIX of make install, not of make"
# What is in the build directory, with the time of its last change.
built() {
    (cd "$BUILD" && find . -path ./installed -prune -o -path ./gen/flags/INSTALLED -prune -o -type f \
        -printf '%p %s %T@\n' | sort)
}
built >"$prefix/before"
make --no-print-directory install PREFIX="$prefix/other" BUILD="$BUILD" >"$prefix/log" &&
    [ -x "$prefix/other/bin/attune" ]
report $? "another PREFIX"
built | cmp - "$prefix/before"
report $? "installing changes nothing in the build directory"
! grep -rlF "$prefix" "$BUILD"/attune "$BUILD"/lib* "$BUILD"/obj
report $? "and what is there does not know where it was installed"
rm -r "$prefix/other"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
[ "$(pkg-config --modversion attune)" = "$(sed -n 's/.*VERSION_STRING "\(.*\)"/\1/p' include/attune.h)" ]
report $? "pkg-config knows the version"

for example in serving embed decode encoder decoder cross layers matmul layer_norm; do
    openmp=
    [ $example != serving ] || openmp=-fopenmp
    # shellcheck disable=SC2046 # its words are separate arguments
    ${CC:-cc} -std=gnu11 -Wall -Wextra -Werror $openmp examples/$example.c $(pkg-config --cflags --libs attune) \
        -pthread -lm -o "$prefix/$example"
    report $? "$example.c builds against the installed library"
    LD_LIBRARY_PATH=$prefix/lib "$prefix/$example"
    report $? "$example runs"
done
# shellcheck disable=SC2046
${CXX:-c++} -std=c++11 -Wall -Wextra -Werror examples/attention.cpp $(pkg-config --cflags --libs attune) \
    -o "$prefix/attention"
report $? "attention.cpp builds against the installed library"
LD_LIBRARY_PATH=$prefix/lib "$prefix/attention"
report $? "attention runs"
"$prefix/bin/attune" compile num_heads=1,seq_q=8,head_dim=8
report $? "the installed command compiles a kernel"
ATTUNE_COMPILE=worker "$prefix/bin/attune" compile num_heads=1,seq_q=9,head_dim=8
report $? "the installed worker compiles a kernel"

cmp completions/attune.bash "$prefix/share/bash-completion/completions/attune" &&
    cmp completions/_attune "$prefix/share/zsh/site-functions/_attune"
report $? "completions for bash and zsh are installed"
"$prefix/bin/attune" run num_heads=12,seq_q=217,head_dim=32 --q examples/minilm/q.npy --k examples/minilm/k.npy \
    --v examples/minilm/v.npy
report $? "the installed command computes"
ATTUNE_CACHE_DIR='' ATTUNE_CODEGEN=/none "$prefix/bin/attune" run num_heads=12,seq_q=217,head_dim=32 \
    --q examples/minilm/q.npy --k examples/minilm/k.npy --v examples/minilm/v.npy
report $? "the installed tier 0 computes attention without a compiler"

# Without a run path the command needs the system's, or LD_LIBRARY_PATH.
make --no-print-directory install PREFIX="$prefix" BUILD="$BUILD" RPATH=no >"$prefix/log" &&
    ! readelf -d "$prefix/bin/attune" | grep -qE 'RPATH|RUNPATH' &&
    LD_LIBRARY_PATH=$prefix/lib "$prefix/bin/attune" compile num_heads=1,seq_q=8,head_dim=8
report $? "RPATH=no leaves the run path out of the command"
mkdir "$prefix/tools"
for tool in bash sh env make sed cut mkdir; do ln -s "$(command -v $tool)" "$prefix/tools/$tool"; done
printf '#!/bin/sh\nexit 0\n' >"$prefix/tools/dpkg-query"
chmod +x "$prefix/tools/dpkg-query"
PATH=$prefix/tools make --no-print-directory docs DEPS=no BUILD="$prefix/bare" 2>&1 |
    grep -q '^doxygen was not found: install doxygen'
report $? "make docs without Doxygen says what to install"
make --no-print-directory uninstall PREFIX="$prefix" BUILD="$BUILD" >"$prefix/log"
remains=$(cd "$prefix" && find . -name '*attune*' ! -path './bare/*' -o -name LICENSE -o -path '*/share/doc/*')
[ -z "$remains" ] || echo "# left behind: $remains"
[ -z "$remains" ]
report $? "make uninstall removes all of it"
