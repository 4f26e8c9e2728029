/* The levels of lookup and their order (docs/what-to-ship.md): each is taken away in turn, so that the next one
 * answers. Kernels of the cache, its base and its pack are those of a compiler that is none. */
#include "cases.h"
#include "engine/create.h"
#include "engine/kernel.h"
#include "support/calls.h"
#include "support/engine/contexts.h"
#include "support/engine/fake_codegen.h"
#include "support/engine/sign.h"
#include "support/engine/tier0.h"
#include "support/plans.h"
#include "support/problems.h"
#include "support/temp_dir.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

/* One that tests/data/bundle.txt and tier 0 have, too. */
#define DECODE "num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=dynamic,head_dim=64,is_causal=1,causal_align=bottom_right"

/* Kernels are for the class generic, as the bundle's are; a cache file is for another class of the architecture. */
#if defined(__aarch64__)
#define OTHER_CLASS "neoverse-n1"
#else
#define OTHER_CLASS "zen5"
#endif

typedef enum level { BUNDLE, CACHE, BASE, PACK, OTHER, NOTHING, NUM_LEVELS } level;

enum { PATH = TEMP_DIR_CHARS + 32 };
static char dir[TEMP_DIR_CHARS], cache[PATH], base[PATH], pack[PATH], keys[PATH], other[PATH];

/* ---- What answers ---- */

static pthread_t caller;
static char answers[256]; /* on the caller's thread: "compiler, tier 0" */
static attune_status failure;

static const char *level_of(const attune_event *event) {
    switch (event->kind) {
    case ATTUNE_EVENT_BUNDLE_HIT: return "bundle";
    case ATTUNE_EVENT_DISK_HIT:
        if (strstr(event->message, "is used, because there is none")) return "other class";
        return !*event->message ? "cache" : strstr(event->message, "base") ? "base" : "pack";
    case ATTUNE_EVENT_TIER0_HIT: return "tier 0";
    case ATTUNE_EVENT_COMPILE_BEGIN: return "compiler";
    default: return NULL;
    }
}

static void note_level(void *user, const attune_event *event) {
    (void)user;
    const char *const answer = level_of(event);
    if (!answer || !pthread_equal(pthread_self(), caller)) return;
    const size_t length = strlen(answers);
    snprintf(answers + length, sizeof answers - length, "%s%s", length ? ", " : "", answer);
}

static attune_status fail_to_compile(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                     void **data, size_t *bytes, at_error *err) {
    (void)user, (void)request, (void)allocator, (void)data, (void)bytes;
    return at_fail(err, failure, "nothing is compiled here");
}

/* All levels from `first` on. What the compiler would give is written nowhere: it fails. */
static attune_context *open_from(level first) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    const at_context_hooks hooks = {.compile = fail_to_compile};
    attune_context *context;
    options.machine = "generic";
    options.cache_dir = first <= CACHE ? cache : first <= OTHER ? other : "";
    options.cache_base = first <= BASE ? base : "";
    options.cache_pack = first <= PACK ? pack : "";
    options.cache_keys = keys;
    options.max_workers = 1;
    options.event = note_level;
    context = test_context(&options, &hooks);
    if (first <= BUNDLE) assert_ok(attune_context_add_bundle(context, &cases_bundle));
    caller = pthread_self();
    answers[0] = '\0';
    return context;
}

static attune_problem decode(void) {
    const attune_problem problem = problem_parsed(DECODE);
    return problem;
}

/* ---- What is there ---- */

static void put_kernel(const char *directory, const char *machine) {
    static fake_codegen codegen;
    const at_context_hooks hooks = {.compile = fake_compile, .compile_user = &codegen};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    const attune_problem problem = decode();
    attune_context *context;
    options.machine = machine;
    options.cache_dir = directory;
    options.cache_base = options.cache_pack = "";
    context = test_context(&options, &hooks);
    attune_kernel *kernel = kernel_of(context, &problem);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

/* Of the cache file in the base. */
static void make_pack(void) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_cache_copied copied = {.struct_size = sizeof copied};
    char path[PATH + 32], text[SIGN_TEXT], *there;
    attune_context *context;
    sign_key key;
    void *signed_part;
    size_t bytes;
    options.cache_dir = base;
    options.cache_base = options.cache_pack = "";
    options.cache_keys = keys;
    assert_ok(attune_context_create(&options, &context));
    assert_ok(attune_cache_pack(context, pack, NULL, 0, &copied));
    assert_int_equal(copied.added, 1);
    sign_key_make(&key, 1);
    sign_print_key(&key, text);
    snprintf(path, sizeof path, "%s/fleet.pub", keys);
    file_write(path, text, strlen(text));
    assert_ok(attune_cache_pack_parts(context, pack, &signed_part, &bytes, &there));
    sign_print(&key, signed_part, bytes, "timestamp:0", text);
    snprintf(path, sizeof path, "%s/signature", dir);
    file_write(path, text, strlen(text));
    assert_ok(attune_cache_seal(context, pack, path));
    attune_free(context, signed_part);
    attune_free(context, there);
    attune_context_destroy(context);
}

static int setup(void **state) {
    tier0_setup(state);
    temp_dir_make(dir);
    snprintf(cache, sizeof cache, "%s/cache", dir);
    snprintf(base, sizeof base, "%s/base", dir);
    snprintf(pack, sizeof pack, "%s/kernels.pack", dir);
    snprintf(keys, sizeof keys, "%s/keys", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    mkdir(keys, 0755);
    put_kernel(cache, "generic");
    put_kernel(cache, OTHER_CLASS);
    put_kernel(base, "generic");
    put_kernel(other, OTHER_CLASS);
    make_pack();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    temp_dir_remove_all(dir);
    return 0;
}

/* ---- The orders ---- */

static void expect(level first, const char *expected) {
    if (strcmp(answers, expected) != 0) fail_msg("from level %d on: %s, not %s", (int)first, answers, expected);
}

/* The first call of a plan that never waits, and a second one, which asks nobody anew. */
static void call_twice(attune_context *context) {
    const attune_plan_options never = {.struct_size = sizeof never, .max_specialised = 0, .repeats = 3};
    const attune_problem problem = decode();
    const sample from = {.problem = DECODE, .sizes = "seq_kv=131"};
    attune_plan *plan;
    sample_call call;
    assert_ok(attune_plan_create(context, &problem, &never, &plan));
    sample_call_open(&call, &from, ON_THE_HEAP);
    for (int i = 0; i < 2; i++) assert_ok(attune_plan_run(plan, &call.arguments, NULL));
    sample_call_close(&call);
    attune_plan_destroy(plan);
}

static void calls_that_never_wait(void **state) {
    (void)state;
    static const char *const expected[NUM_LEVELS] = {"bundle", "cache", "base", "pack", "other class", "tier 0"};
    failure = ATTUNE_CODEGEN_FAILED;
    for (level first = BUNDLE; first < NUM_LEVELS; first++) {
        attune_context *context = open_from(first);
        call_twice(context);
        expect(first, expected[first]);
        attune_context_destroy(context);
    }
}

static void memory_comes_first(void **state) {
    (void)state;
    const attune_problem problem = decode();
    attune_context *context = open_from(BUNDLE);
    attune_kernel *kernel, *again;
    kernel = kernel_of(context, &problem);
    answers[0] = '\0';
    call_twice(context);
    again = kernel_of(context, &problem);
    assert_ptr_equal(kernel, again);
    expect(BUNDLE, "");
    attune_kernel_release(kernel);
    attune_kernel_release(again);
    attune_context_destroy(context);
}

/* Where the compiler may be waited for, no kernel of another class takes the place of its kernel. */
static void calls_that_may_wait(void **state) {
    (void)state;
    static const char *const expected[NUM_LEVELS] = {"bundle", "cache", "base", "pack", "compiler", "compiler"};
    const attune_problem problem = decode();
    failure = ATTUNE_CODEGEN_FAILED;
    for (level first = BUNDLE; first < NUM_LEVELS; first++) {
        attune_context *context = open_from(first);
        attune_kernel *kernel = NULL;
        assert_int_equal(attune_compile(context, &problem, NULL, &kernel),
                         first < OTHER ? ATTUNE_OK : ATTUNE_CODEGEN_FAILED);
        expect(first, expected[first]);
        attune_kernel_release(kernel);
        attune_context_destroy(context);
    }
}

static void where_nothing_compiles(void **state) {
    (void)state;
    static const char *const expected[NUM_LEVELS] = {
        "bundle", "cache", "base", "pack", "compiler, other class", "compiler, tier 0"};
    const attune_problem problem = decode();
    failure = ATTUNE_CODEGEN_MISSING;
    for (level first = BUNDLE; first < NUM_LEVELS; first++) {
        attune_context *context = open_from(first);
        attune_kernel *kernel = kernel_of(context, &problem);
        expect(first, expected[first]);
        attune_kernel_release(kernel);
        attune_context_destroy(context);
    }
}

/* A general kernel of a bundle that rounds to bf16, for problems that may: before those of tier 0 that do not. */
static void kernels_that_round_come_first(void **state) {
    (void)state;
    const attune_problem problem = problem_parsed("num_heads=3,seq_q=30,seq_kv=50,head_dim=64,matmul_precision=bf16");
    attune_context *const context = tier0_context(NULL);
    assert_ok(attune_context_add_bundle(context, &cases_bundle));
    attune_kernel *const kernel = kernel_of(context, &problem);
    if (!strstr(last_hit, "rounded computes it")) fail_msg("%s", last_hit);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_never_wait),         cmocka_unit_test(memory_comes_first),
        cmocka_unit_test(calls_that_may_wait),           cmocka_unit_test(where_nothing_compiles),
        cmocka_unit_test(kernels_that_round_come_first),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
