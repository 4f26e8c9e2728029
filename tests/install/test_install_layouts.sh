#!/usr/bin/env bash
# An installation with its libraries in another directory than lib, moved away afterwards, found by CMake and used from
# C++ and C99. The usual one: test_install.sh.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # a sanitized library needs a sanitized program
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work" "${build_copy:-}"' EXIT
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh
# shellcheck source=tests/support/build_copy.sh
source tests/support/build_copy.sh
export ATTUNE_CACHE_DIR=
unset LD_LIBRARY_PATH

# holds NAME COMMAND…: it succeeds, whatever it says.
holds() {
    local name=$1
    shift
    "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
    report $? "$name"
}
without() { ! "$@"; }

cc=${CC:-cc}
version=$(sed -n 's/.*VERSION_STRING "\(.*\)"/\1/p' include/attune.h)
small=num_heads=1,seq_q=8,head_dim=8

# Compiles a kernel, so it needs the code generator; says what it was made by.
cat >"$work/program.c" <<'PROGRAM'
#include <attune.h>
#include <stdio.h>
int main(void) {
    attune_context *context = NULL;
    attune_kernel *kernel = NULL;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.seq_q = problem.head_dim = 8;
    if (attune_context_create(NULL, &context) || attune_compile(context, &problem, NULL, &kernel))
        return fprintf(stderr, "%s\n", attune_last_message()), 1;
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    return puts("compiled") < 0;
}
PROGRAM
# In C++17, with every macro and function that begins a struct.
cat >"$work/program.cpp" <<'PROGRAM'
#include <attune.h>
#include <cmath>
#include <cstdio>
int main() {
    attune_context *context = nullptr;
    attune_kernel *kernel = nullptr;
    attune_problem problem = ATTUNE_PROBLEM_INIT, same;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    const attune_runner runner = ATTUNE_RUNNER_INIT;
    const attune_run_options run = ATTUNE_RUN_OPTIONS_INIT;
    char schedule[ATTUNE_SCHEDULE_BYTES];
    const attune_tune_options tune = ATTUNE_TUNE_OPTIONS_INIT;
    attune_arguments arguments;
    options.max_workers = 1;
    problem.seq_q = problem.head_dim = 8;
    if (problem.struct_size != sizeof problem || problem.batch != 1 || problem.window_left != -1) return 2;
    if (!std::isnan(problem.softmax_scale)) return 3;
    if (runner.struct_size != sizeof runner || run.struct_size != sizeof run) return 3;
    if (tune.budget_seconds <= 0) return 4;
    if (attune_problem_init(&same, sizeof same) || same.num_heads != 1) return 5;
    if (attune_arguments_init(&arguments, &problem)) return 6;
    if (attune_context_create(&options, &context) ||
        attune_schedule_choose(context, &problem, nullptr, schedule, sizeof schedule) ||
        attune_compile(context, &problem, schedule, &kernel))
        return std::fprintf(stderr, "%s\n", attune_last_message()), 1;
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    return std::puts("compiled") < 0;
}
PROGRAM

# As it is often done with headers of C.
{ printf 'extern "C" {\n#include <attune.h>\n}\n'; tail -n +2 "$work/program.cpp"; } >"$work/within_c.cpp"

# ---- One layout after the other ----

flags() { PKG_CONFIG_PATH="$prefix/$lib/pkgconfig" pkg-config "$@" attune; }
# shellcheck disable=SC2046 # words of pkg-config are separate arguments
link_shared() { $cc "$work/program.c" $(flags --cflags --libs) "-Wl,-rpath,$prefix/$lib" -o "$1" && "$1"; }
# shellcheck disable=SC2046
link_static() { $cc "$work/program.c" $(flags --cflags) "$prefix/$lib/libattune.a" -pthread -ldl -lm -o "$1" && "$1"; }
install_into() { make --no-print-directory "$1" PREFIX="$prefix" LIBDIR="$prefix/$lib" BUILD="$BUILD" DEPS=no; }
# Where the command found the code generator; its worker finds it by itself.
info() { "$prefix/bin/attune" info --json; }
by_worker() { env ATTUNE_COMPILE=worker "$prefix/bin/attune" compile $small; }

# some WORD…: all of them; with ATTUNE_TEST_SHORT=yes, as in .ci/run, the first.
some() { if [ "${ATTUNE_TEST_SHORT:-}" = yes ]; then echo "$1"; else echo "$@"; fi; }

for lib in $(some lib64 lib/x86_64-linux-gnu lib); do
    prefix=$work/$lib-prefix
    holds "make install-strip with LIBDIR=PREFIX/$lib" install_into install-strip
    expect "attune.pc names it" 0 "^$prefix/$lib\$" flags --variable=libdir
    expect "a program links the library there" 0 '^compiled$' link_shared "$work/shared"
    expect "a program in bin with the archive finds the code generator" 0 '^compiled$' link_static "$prefix/bin/static"
    expect "and one that lies elsewhere" 0 '^compiled$' link_static "$work/static"
    nothing_in_lib() { [ "$lib" != lib64 ] || [ ! -e "$prefix/lib" ]; }
    holds "nothing lies in another directory" nothing_in_lib
    mv "$prefix" "$prefix-moved"
    prefix+=-moved
    expect "the command finds the code generator, moved" 0 "$prefix/$lib/attune/libattune-codegen.so" info
    expect "the worker, too" 0 'from +the compiler' by_worker
    holds "symbols for debuggers are gone" without grep -q debug_info "$prefix/$lib/libattune.so.0"
done
holds "the licence and the docs are installed" \
    ls "$prefix/share/doc/attune/LICENSE" "$prefix/share/doc/attune/docs/what-to-ship.md"

# ---- C++ and C99 ----

# shellcheck disable=SC2046
strict() {
    local compiler=$1 source=$2
    shift 2
    $compiler "$@" -Wall -Wextra -Wpedantic -Werror "$source" "-I$prefix/include" "-L$prefix/$lib" -lattune \
        "-Wl,-rpath,$prefix/$lib" -o "$work/strict" && "$work/strict"
}
# One object has exceptions; the program is that of the other.
both_kinds() {
    "$1" -c -DATTUNE_EXCEPTIONS -Dmain=other "-I$prefix/include" tests/support/hpp.cpp -o "$work/other.o" &&
        strict "$1" tests/support/hpp.cpp "$work/other.o"
}
expect "C99 without a warning" 0 '^compiled$' strict "$cc" "$work/program.c" -std=c99
for compiler in g++ clang++ clang++-19; do
    if command -v "$compiler" >/dev/null; then
        for standard in $(some c++11 c++17); do
            expect "$compiler -std=$standard without a warning" 0 '^compiled$' \
                strict "$compiler" "$work/program.cpp" -std=$standard
            expect "and where the header is included within extern \"C\"" 0 '^compiled$' \
                strict "$compiler" "$work/within_c.cpp" -std=$standard
        done
        for standard in $(some c++11 c++17 c++20); do
            expect "$compiler -std=$standard, attune.hpp" 0 '^passed$' \
                strict "$compiler" tests/support/hpp.cpp -std=$standard -fno-exceptions -fno-rtti
            expect "and with exceptions" 0 '^passed$' \
                strict "$compiler" tests/support/hpp.cpp -std=$standard -DATTUNE_EXCEPTIONS
        done
        expect "both kinds in one program" 0 '^passed$' both_kinds "$compiler"
    else
        number=$((number + 1))
        echo "ok $number - C++ # SKIP there is no $compiler here"
    fi
done

# ---- CMake ----

mkdir "$work/cmake"
cp "$work/program.c" "$work/cmake/program.c"
cat >"$work/cmake/CMakeLists.txt" <<'LISTS'
cmake_minimum_required(VERSION 3.13)
project(program C)
find_package(attune ${WANTED} REQUIRED)
foreach(form attune attune_static)
  add_executable(${form} program.c)
  target_link_libraries(${form} attune::${form})
endforeach()
message(STATUS "attune ${attune_VERSION}")
LISTS
# Debian's CMake does not look into lib64 by itself: a user says where the package is.
where=-DCMAKE_PREFIX_PATH=$prefix
[ "$lib" != lib64 ] || where=-Dattune_DIR=$prefix/$lib/cmake/attune
configure() {
    rm -rf "$work/cmake/build"
    cmake -S "$work/cmake" -B "$work/cmake/build" -DCMAKE_C_COMPILER="$cc" "$where" "-DWANTED=$1"
}
# The archive does not know where its installation was moved to.
cmake_programs() {
    local built=$work/cmake/build
    configure "$version" >/dev/null && env -u MAKEFLAGS -u MAKELEVEL cmake --build "$built" && "$built/attune" &&
        ATTUNE_CODEGEN=$prefix/$lib/attune/libattune-codegen.so "$built/attune_static"
}
if command -v cmake >/dev/null; then
    expect "find_package(attune) finds the moved installation; its targets link" 0 '^compiled$' cmake_programs
    expect "by its first number" 0 "attune $version" configure "${version%%.*}"
    expect "not an older minor version" 1 'version' configure "${version%%.*}.1"
    expect "nor a newer one" 1 'version' configure "${version%.*}.99"
else
    number=$((number + 1))
    echo "ok $number - find_package(attune) # SKIP there is no cmake here"
fi

# ---- DESTDIR, and everything gone ----

prefix=/opt/attune lib=lib64
staged() { install_into install DESTDIR="$work/stage" && find "$work/stage" -type f; }
install_into() { make --no-print-directory "$@" PREFIX="$prefix" LIBDIR="$prefix/$lib" BUILD="$BUILD" DEPS=no; }
expect "DESTDIR comes before all of it" 0 '/stage/opt/attune/lib64/attune/libattune-codegen.so' staged
holds "and is named nowhere" without grep -rlF "$work/stage" "$work/stage"
for dir in share/doc/attune lib64/attune; do echo theirs >"$work/stage/opt/attune/$dir/theirs"; done
holds "make uninstall" install_into uninstall DESTDIR="$work/stage"
left() { (cd "$work/stage/opt/attune" && find . -type f -o -type l -o -name 'attune*' -o -name docs | sort |
    tr '\n' ' '); }
expect "leaves nothing but what others put there" 0 \
    '^\./lib64/attune \./lib64/attune/theirs \./share/doc/attune \./share/doc/attune/theirs $' left
echo "1..$number"
