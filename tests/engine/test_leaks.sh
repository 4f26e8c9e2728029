#!/usr/bin/env bash
# Leak detection under AddressSanitizer: what is leaked is reported, and LeakSanitizer itself does not crash. See
# tests/run.sh for the option that this is about.
set -u
[[ ${SANITIZE:-} == *address* ]] || { echo "1..0"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/stderr"
# shellcheck source=tests/support/cli.sh
. tests/support/cli.sh

echo "1..4"

# ---- What is leaked is reported, by the library's own frames ----

cat >"$work/leak.c" <<'END'
#include <attune.h>
#include <string.h>
/* Compiles a kernel, and destroys the context, or forgets it. */
int main(int argc, char **argv) {
    attune_context *context = NULL;
    attune_kernel *kernel = NULL;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.num_heads = 1, problem.seq_q = 4, problem.head_dim = 8;
    if (attune_context_create(NULL, &context) || attune_compile(context, &problem, NULL, &kernel)) return 2;
    if (argc > 1 && !strcmp(argv[1], "forget")) return 0;
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    return 0;
}
END
# shellcheck disable=SC2086 # its words are separate arguments
${CC:-cc} -std=gnu11 -Iinclude $SANITIZE "$work/leak.c" -L"$BUILD" -Wl,-rpath,"$BUILD" -lattune -o "$work/leak" \
    >"$work/stdout" 2>&1 && "$work/leak" destroy >"$work/stdout" 2>&1
report $? "a context that is destroyed leaves nothing behind, nor does the code generator"
! "$work/leak" forget >"$work/stdout" 2>&1 && grep -q 'ERROR: LeakSanitizer: detected memory leaks' "$work/stdout"
report $? "a context that is forgotten is an error"
grep -q ' in attune_context_create' "$work/stdout"
report $? "whose place is named"

# ---- A thread-local block at the beginning of a page, where glibc before 2.25 had a header ----

cat >"$work/block.c" <<'END'
#include <stdlib.h>
static __thread void *kept; /* what only a thread-local block points to has not leaked */
void *block(void) {
    if (!kept) kept = malloc(100);
    return &kept;
}
END
cat >"$work/page.c" <<'END'
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static void *volatile before[256];
/* Says where in its page a library's thread-local block is, after so many other blocks of its size. */
int main(int argc, char **argv) {
    void *(*block)(void) = NULL;
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library || !(*(void **)&block = dlsym(library, "block"))) return 2;
    for (int i = 0; i < atoi(argv[2]); i++) before[i] = malloc(sizeof(long));
    printf("%d\n", (int)((uintptr_t)block() % 4096));
    return 0;
}
END
# shellcheck disable=SC2086
${CC:-cc} -shared -fPIC "$work/block.c" -o "$work/block.so" >"$work/stdout" 2>&1 &&
    ${CC:-cc} $SANITIZE "$work/page.c" -ldl -o "$work/page" >"$work/stdout" 2>&1
place=none
for ((blocks = 0; blocks < 256; blocks++)); do
    status=0
    "$work/page" "$work/block.so" "$blocks" >"$work/stdout" 2>&1 || status=$?
    place=$(head -n 1 "$work/stdout")
    [ "$status" -eq 0 ] && [ "$place" != 16 ] || break
done
if [ "$status" -eq 0 ] && [ "$place" != 16 ]; then
    number=$((number + 1))
    echo "ok $number # SKIP this allocator puts no thread-local block there"
else
    report "$status" "a thread-local block after 16 bytes of a page, $blocks others before it, and what it points to"
fi
