#!/usr/bin/env bash
# `attune run --check` fails where a result is wrong: a library in between spoils a number of each result. Needs ATTUNE,
# the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
minilm=examples/minilm
layer=(--q $minilm/q.npy --k $minilm/k.npy --v $minilm/v.npy)
off='wrong, compared with the f64 reference: out is off at element 7: .* \(limit '

cat >"$work/spoil.c" <<'C'
#define _GNU_SOURCE
#include <attune/attention.h>
#include <attune/expert/call.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
/* SPOIL: "code" or "both"; BY: what is added to a number of out. */
static attune_status spoil(const char *what, attune_status status, const attune_arguments *arguments) {
    const char *const wish = getenv("SPOIL");
    const int spoils = wish && (!strcmp(wish, what) || !strcmp(wish, "both"));
    if (!status && spoils) ((float *)arguments->out.data)[7] += strtof(getenv("BY"), NULL);
    return status;
}
attune_status attune_run(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments) {
    attune_status (*next)(attune_context *, const attune_kernel *, const attune_arguments *);
    *(void **)&next = dlsym(RTLD_NEXT, "attune_run");
    return spoil("code", next(context, kernel, arguments), arguments);
}
attune_status attune_run_interpreted(attune_context *context, const attune_problem *problem, const char *schedule,
                                     const attune_arguments *arguments) {
    attune_status (*next)(attune_context *, const attune_problem *, const char *, const attune_arguments *);
    *(void **)&next = dlsym(RTLD_NEXT, "attune_run_interpreted");
    return spoil("interpreter", next(context, problem, schedule, arguments), arguments);
}
C
# spoiled WHERE BY ARG...: runs with a spoiled result.
spoiled() { env LD_PRELOAD="$work/spoil.so" SPOIL="$1" BY="$2" "$attune" run "${@:3}" --check; }
if [ -n "${SANITIZE:-}" ] || ! ${CC:-cc} -Iinclude -shared -fPIC -o "$work/spoil.so" "$work/spoil.c" -ldl; then
    report 0 "a spoiled result # SKIP a sanitizer, or no C compiler"
else
    expect "a result that is wrong" 1 "$off" spoiled both 1e-3 "${layer[@]}"
    expect "is printed all the same" 1 'max error 1\.00e-03' spoiled both 1e-3 "${layer[@]}"
    expect "and as JSON" 1 '"is_right": false' spoiled both 1e-3 "${layer[@]}" --json
    expect "a NaN" 1 "$off" spoiled both nan "${layer[@]}"
    expect "less than the limit" 0 'the same bits' spoiled both 1e-7 "${layer[@]}"
    expect "machine code alone" 1 'machine code and interpreter differ: out' spoiled code 1e-7 "${layer[@]}"
    expect "where a function may enlarge errors" 0 'not checked: a function' spoiled both 1e-3 'score_mod=2*score' \
        "${layer[@]}"
fi
expect "a right result" 0 '"is_right": true' "$attune" run is_causal=1 "${layer[@]}" --check --json
expect "with a function" 0 '"is_right": null' "$attune" run 'score_mod=2*score' "${layer[@]}" --check --json
cp $minilm/q.npy "$work/odd.npy"
printf '\x00\x00\xc0\x7f' | dd of="$work/odd.npy" bs=1 seek=1000 conv=notrunc status=none
expect "a NaN among the queries" 0 'the same bits' "$attune" run "${layer[@]:2}" --check --q "$work/odd.npy"
echo "1..$number"
