/* Operators of the user: which kernels are one, what is cached, what the tuner finds and drops, and a sentence for each
 * thing that cannot be. */
#include "engine/context.h"
#include "engine/own_operator.h"
#include "operator/own.h"
#include "support/engine/contexts.h"
#include "support/statuses.h"

#include "support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 64 };

/* y = x * factor, computed anew `rounds` times. What `kind` changes must not be changed by a schedule, except 0. */
enum { ROUNDS, KIND };
enum { AS_USUAL, OTHER_BITS, OTHER_SHAPE, REFUSED };
static const int32_t rounds_values[] = {1, 100}, kind_values[] = {AS_USUAL, OTHER_BITS, OTHER_SHAPE, REFUSED};
static const attune_choice two_choices[] = {{"rounds", rounds_values, 2, 100, 0}, {"kind", kind_values, 4, 0, 0}};

static int build_scaling(void *user, const attune_build_request *request, attune_ir_writer *w) {
    int factor;
    const int kind = request->schedule[KIND];
    if (user) ++*(int *)user;
    if (sscanf(request->problem, "factor=%d", &factor) != 1) {
        attune_ir_print(w, "there must be a %s", "factor");
        return 1;
    }
    if (kind == REFUSED) return 1;
    attune_ir_print(w, "kernel @scaling (x: f32[%d] in, y: f32[%d] out) {\n", N, N + (kind == OTHER_SHAPE));
    attune_ir_print(w, "parallel for i in 0..%d {\nalloc a: f32[1] reg\na[0] = x[i]\n", N);
    attune_ir_print(w, "for t in 0..%d { a[0] = sqrt(a[0] * a[0]) }\n", (int)request->schedule[ROUNDS]);
    attune_ir_print(w, "y[i] = a[0] * %d.0\n} }\n", factor + (kind == OTHER_BITS));
    return 0;
}

static attune_operator_options scaling_options(int *calls) {
    attune_operator_options o = ATTUNE_OPERATOR_OPTIONS_INIT;
    o.name = "scaling";
    o.version = 1;
    o.build = build_scaling;
    o.user = calls;
    o.choices = two_choices;
    o.num_choices = 2;
    return o;
}

static attune_context *open_context(const char *dir) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = dir;
    options.max_workers = 1;
    return test_context(&options, NULL);
}

static attune_operator *add(attune_context *context, const attune_operator_options *options) {
    attune_operator *op = NULL;
    if (attune_operator_add(context, options, &op)) fail_msg("%s", attune_last_message());
    return op;
}

static attune_kernel *compile(attune_operator *op, const char *problem, const int32_t *schedule) {
    attune_kernel *kernel = NULL;
    if (attune_operator_compile(op, problem, schedule, &kernel)) fail_msg("%s", attune_last_message());
    return kernel;
}

/* Where it came from; the kernel is released. */
static attune_origin origin_of(attune_kernel *kernel) {
    const attune_kernel_info info = kernel_info_of(kernel);
    attune_kernel_release(kernel);
    return info.origin;
}

static void assert_says(attune_status got, attune_status wanted, const char *text) {
    if (got != wanted || !strstr(attune_last_message(), text))
        fail_msg("status %d, not %d; \"%s\" is not in: %s", got, wanted, text, attune_last_message());
}

static void fill(float x[N]) {
    for (int i = 0; i < N; i++) x[i] = (float)(i % 19) / 4; /* the roots of their squares are exact */
}

/* What a builder writes and returns, and what is then said. */
typedef struct bad_build {
    const char *text;
    int result;
    attune_status status;
    const char *message;
} bad_build;

static int build_badly(void *user, const attune_build_request *request, attune_ir_writer *w) {
    const bad_build *bad = user;
    (void)request;
    attune_ir_print(w, "%s", bad->text);
    return bad->result;
}

/* ---- Caching ---- */

static void a_kernel_is_made_once(void **state) {
    int calls = 0;
    const attune_operator_options options = scaling_options(&calls);
    attune_context *context = open_context(*state);
    attune_operator *op = add(context, &options);
    attune_kernel *first = compile(op, "factor=3", NULL), *second = compile(op, "factor=3", NULL);
    assert_ptr_equal(first, second);
    assert_int_equal(calls, 1);
    attune_kernel_release(second);
    float x[N], y[N];
    fill(x);
    for (int engine = ATTUNE_ENGINE_JIT; engine <= ATTUNE_ENGINE_INTERPRETER; engine++) {
        memset(y, 0, sizeof y);
        assert_int_equal(attune_ir_run(context, first, (attune_engine)engine, (void *[]){x, y}, NULL), ATTUNE_OK);
        for (int i = 0; i < N; i++) assert_true(y[i] == 3 * x[i]);
    }
    attune_kernel_release(first);
    attune_context_destroy(context);

    context = open_context(*state);
    op = add(context, &options);
    assert_int_equal(origin_of(compile(op, "factor=3", NULL)), ATTUNE_FROM_DISK);
    assert_int_equal(calls, 1); /* the entry has all that is needed */
    assert_int_equal(origin_of(compile(op, "factor=4", NULL)), ATTUNE_FROM_COMPILER);
    const int32_t explicit_schedule[] = {100, AS_USUAL};
    assert_int_equal(origin_of(compile(op, "factor=3", explicit_schedule)), ATTUNE_FROM_COMPILER);
    attune_context_destroy(context);
}

static void another_version_is_another_kernel(void **state) {
    attune_operator_options options = scaling_options(NULL);
    attune_context *context = open_context(*state);
    assert_int_equal(origin_of(compile(add(context, &options), "factor=3", NULL)), ATTUNE_FROM_COMPILER);
    attune_context_destroy(context);
    context = open_context(*state);
    options.version = 2;
    assert_int_equal(origin_of(compile(add(context, &options), "factor=3", NULL)), ATTUNE_FROM_COMPILER);
    attune_context_destroy(context);
    context = open_context(*state);
    options.name = "scaling2";
    assert_int_equal(origin_of(compile(add(context, &options), "factor=3", NULL)), ATTUNE_FROM_COMPILER);
    attune_context_destroy(context);
    assert_int_equal(temp_dir_count(*state, "", ".attune"), 3);
}

static uint64_t damaged_files(attune_context *context) {
    const attune_statistics stats = statistics_of(context);
    return stats.damaged_files;
}

static void other_choices_are_another_kernel(void **state) {
    static const int32_t more_rounds[] = {1, 50, 100};
    attune_choice choices[2] = {two_choices[0], two_choices[1]};
    attune_operator_options options = scaling_options(NULL);
    options.choices = choices;
    const attune_origin expected[] = {ATTUNE_FROM_COMPILER, ATTUNE_FROM_COMPILER, ATTUNE_FROM_COMPILER,
                                      ATTUNE_FROM_DISK};
    for (int i = 0; i < 4; i++) {
        choices[0] = i == 2 ? (attune_choice){"rounds", more_rounds, 3, 100, 0} : two_choices[0];
        choices[0].name = i == 1 ? "times" : "rounds";
        attune_context *context = open_context(*state);
        assert_int_equal(origin_of(compile(add(context, &options), "factor=3", NULL)), expected[i]);
        assert_int_equal(damaged_files(context), 0);
        attune_context_destroy(context);
    }
    assert_int_equal(temp_dir_count(*state, "", ".attune"), 3);
}

/* Twelve names of 47 characters, with large numbers. */
static void long_schedules_are_cached(void **state) {
    static const int32_t large[] = {1, INT32_MIN};
    static char names[AT_OWN_CHOICES][AT_OWN_NAME_CHARS + 1];
    static bad_build good = {"kernel @k (y: f32[1] out) { parallel for i in 0..1 { y[i] = 5.0 } }", 0, ATTUNE_OK, ""};
    attune_choice choices[AT_OWN_CHOICES];
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    for (int i = 0; i < AT_OWN_CHOICES; i++) {
        memset(names[i], 'a' + i, AT_OWN_NAME_CHARS);
        choices[i] = (attune_choice){names[i], large, 2, INT32_MIN, 0};
    }
    options.name = "long";
    options.version = 1;
    options.build = build_badly;
    options.user = &good;
    options.choices = choices;
    options.num_choices = AT_OWN_CHOICES;
    for (int i = 0; i < 2; i++) {
        attune_context *context = open_context(*state);
        assert_int_equal(origin_of(compile(add(context, &options), "", NULL)),
                         i ? ATTUNE_FROM_DISK : ATTUNE_FROM_COMPILER);
        attune_context_destroy(context);
    }
}

/* An entry with the key of number `asked` that says otherwise is refused and compiled anew. */
static void entries_that_contradict_their_key(void **state) {
    const attune_operator_options options = scaling_options(NULL);
    attune_context *context = open_context(*state);
    attune_operator *op = add(context, &options);
    const int32_t asked[] = {1, AS_USUAL}, other[] = {100, AS_USUAL};
    for (int is_problem = 0; is_problem < 2; is_problem++) {
        at_error err = {0};
        mha_schedule schedule;
        at_key here, there;
        uint8_t *data;
        at_cache_file entry;
        assert_int_equal(origin_of(compile(op, "factor=4", other)),
                         is_problem ? ATTUNE_FROM_DISK : ATTUNE_FROM_COMPILER);
        assert_int_equal(at_operator_schedule(op, "factor=4", other, &schedule, &err), ATTUNE_OK);
        at_key_make(&there, at_own_operation(&op->own, "factor=4"), &schedule, &context->machine);
        assert_true(at_disk_cache_read(&context->disk, &there, &data, &entry));
        const char *const problem = is_problem ? "factor=3" : "factor=4";
        const int32_t *const numbers = is_problem ? other : asked;
        assert_int_equal(at_operator_schedule(op, problem, numbers, &schedule, &err), ATTUNE_OK);
        at_key_make(&here, at_own_operation(&op->own, problem), &schedule, &context->machine);
        entry.key = here.bytes;
        entry.key_bytes = here.size;
        at_disk_cache_replace(&context->disk, &here, &entry);
        at_free(&context->allocator, data);
        attune_kernel *kernel = compile(op, problem, numbers);
        const int32_t *got;
        assert_int_equal(attune_operator_numbers(kernel, &got, NULL), ATTUNE_OK);
        assert_int_equal(got[ROUNDS], numbers[ROUNDS]);
        assert_int_equal(origin_of(kernel), ATTUNE_FROM_COMPILER);
        attune_drop_memory_cache(context);
        assert_int_equal(origin_of(compile(op, problem, numbers)), ATTUNE_FROM_DISK);
        attune_drop_memory_cache(context);
    }
    attune_context_destroy(context);
}

static void numbers_are_told(void **state) {
    const attune_operator_options options = scaling_options(NULL);
    attune_context *context = open_context(*state);
    attune_operator *op = add(context, &options);
    const int32_t given[] = {1, AS_USUAL}, *numbers;
    size_t count;
    attune_kernel *kernel = compile(op, "factor=3", given);
    assert_int_equal(attune_operator_numbers(kernel, &numbers, &count), ATTUNE_OK);
    assert_int_equal(count, 2);
    assert_memory_equal(numbers, given, sizeof given);
    attune_kernel_release(kernel);
    assert_int_equal(
        attune_ir_compile(context, "kernel @k (y: f32[1] out) { parallel for i in 0..1 { y[i] = 1.0 } }", &kernel),
        ATTUNE_OK);
    assert_says(attune_operator_numbers(kernel, &numbers, &count), ATTUNE_INVALID_ARGUMENT, "attune_operator_compile");
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

/* ---- Tuning ---- */

static void the_tuner_finds_and_keeps_the_faster(void **state) {
    const attune_operator_options options = scaling_options(NULL);
    attune_context *context = open_context(*state);
    attune_operator *op = add(context, &options);
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    int32_t numbers[2] = {0};
    float x[N], y[N];
    fill(x);
    how.budget_seconds = 20; /* it ends when all eight were tried */
    if (attune_operator_tune(op, "factor=3", (void *[]){x, y}, NULL, &how, numbers, &result))
        fail_msg("%s", attune_last_message());
    assert_int_equal(result.space, 8);
    assert_int_equal(result.is_faster, 1);
    assert_int_equal(numbers[ROUNDS], 1);
    assert_int_equal(numbers[KIND], AS_USUAL);
    /* Of either number of rounds one has other bits, one takes other tensors, and one is refused. */
    assert_int_equal(result.wrong, 4);
    assert_int_equal(result.failed, 2);
    assert_non_null(strstr(result.wrong_schedule, ",kind="));
    const int32_t *kept;
    attune_kernel *kernel = compile(op, "factor=3", NULL);
    assert_int_equal(attune_operator_numbers(kernel, &kept, NULL), ATTUNE_OK);
    assert_int_equal(kept[ROUNDS], 1);
    attune_kernel_release(kernel);
    attune_context_destroy(context);

    /* In another process: from the entry, or, if that is lost, from the results of tuning. */
    for (int is_lost = 0; is_lost < 2; is_lost++) {
        context = open_context(*state);
        op = add(context, &options);
        if (is_lost) assert_int_equal(attune_cache_clear(context, NULL), ATTUNE_OK);
        kernel = compile(op, "factor=3", NULL);
        assert_int_equal(attune_operator_numbers(kernel, &kept, NULL), ATTUNE_OK);
        assert_int_equal(kept[ROUNDS], 1);
        assert_int_equal(origin_of(kernel), is_lost ? ATTUNE_FROM_COMPILER : ATTUNE_FROM_DISK);
        kernel = compile(op, "factor=4", NULL); /* another problem learns nothing from it */
        assert_int_equal(attune_operator_numbers(kernel, &kept, NULL), ATTUNE_OK);
        assert_int_equal(kept[ROUNDS], 100);
        attune_kernel_release(kernel);
        attune_context_destroy(context);
    }
}

/* y = x of n by m, in which candidates of a choice take other parameters. */
enum { SAME, ONE_SCALAR_MORE, ONE_BUFFER_MORE, SWAPPED, OTHER_NAME, SIGNATURES };
static const int32_t signature_values[] = {SAME, ONE_SCALAR_MORE, ONE_BUFFER_MORE, SWAPPED, OTHER_NAME};
static const attune_choice signature_choice = {"signature", signature_values, SIGNATURES, SAME, 0};

static int build_signatures(void *user, const attune_build_request *request, attune_ir_writer *w) {
    static const char *const params[SIGNATURES] = {"x: f32[n, m] in, y: f32[n, m] out, n: idx, m: idx",
                                                   "x: f32[n, m] in, y: f32[n, m] out, n: idx, m: idx, f: f32",
                                                   "x: f32[n, m] in, y: f32[n, m] out, z: f32[n, m] in, n: idx, m: idx",
                                                   "x: f32[n, m] in, y: f32[n, m] out, m: idx, n: idx",
                                                   "z: f32[n, m] in, y: f32[n, m] out, n: idx, m: idx"};
    const int kind = request->schedule[0];
    (void)user;
    attune_ir_print(w, "kernel @k (%s) {\nassume n > 0\nassume m > 0\nparallel for i in 0..n {\n", params[kind]);
    attune_ir_print(w, "for j in 0..m { y[i, j] = %s[i, j] }\n} }\n", kind == OTHER_NAME ? "z" : "x");
    return 0;
}

/* The first bytes of a page after which nothing may be read. */
static void *at_the_end_of_memory(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *const pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
    return pages + page - bytes;
}

static void other_parameters_are_wrong(void **state) {
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    options.name = "signatures";
    options.version = 1;
    options.build = build_signatures;
    options.choices = &signature_choice;
    options.num_choices = 1;
    how.budget_seconds = 20; /* it ends when all five were tried */
    attune_context *context = open_context(*state);
    float x[N], y[N];
    void **const buffers = at_the_end_of_memory(2 * sizeof *buffers);
    int64_t *const scalars = at_the_end_of_memory(2 * sizeof *scalars);
    fill(x);
    buffers[0] = x;
    buffers[1] = y;
    scalars[0] = scalars[1] = 8;
    int32_t number;
    if (attune_operator_tune(add(context, &options), "", buffers, scalars, &how, &number, &result))
        fail_msg("%s", attune_last_message());
    assert_int_equal(result.wrong, SIGNATURES - 1);
    assert_int_equal(result.failed, 0);
    assert_int_equal(number, SAME);
    attune_context_destroy(context);
}

/* y = y * factor with an exact detour. A factor that differs is invisible once y is infinite. */
static int build_growing(void *user, const attune_build_request *request, attune_ir_writer *w) {
    const int is_wrong = request->schedule[0];
    (void)user;
    attune_ir_print(w, "kernel @k (y: f32[4] inout) {\nparallel for i in 0..4 {\nalloc a: f32[1] reg\na[0] = y[i]\n");
    attune_ir_print(w, "for t in 0..%d { a[0] = sqrt(a[0] * a[0]) }\n", is_wrong ? 1 : 30);
    attune_ir_print(w, "y[i] = a[0] * %d.0\n} }\n", is_wrong ? 3 : 2);
    return 0;
}

static void checks_begin_with_what_the_caller_gave(void **state) {
    static const int32_t values[] = {0, 1};
    static const attune_choice choice = {"wrong", values, 2, 0, 0};
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    options.name = "growing";
    options.version = 1;
    options.build = build_growing;
    options.choices = &choice;
    options.num_choices = 1;
    how.budget_seconds = 20; /* it ends when both were tried */
    attune_context *context = open_context(*state);
    float y[4] = {1, 2, 3, 4};
    int32_t number;
    if (attune_operator_tune(add(context, &options), "", (void *[]){y}, NULL, &how, &number, &result))
        fail_msg("%s", attune_last_message());
    assert_int_equal(result.wrong, 1);
    assert_int_equal(number, 0);
    attune_context_destroy(context);
}

/* Refuses one round as soon as *user is 1. */
static int build_choosy(void *user, const attune_build_request *request, attune_ir_writer *w) {
    if (*(const int *)user && request->schedule[ROUNDS] == 1) return 1;
    return build_scaling(NULL, request, w);
}

static void a_winner_that_is_refused_is_passed_over(void **state) {
    int is_choosy = 0;
    attune_operator_options options = scaling_options(&is_choosy);
    options.build = build_choosy;
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    float x[N], y[N];
    int32_t numbers[2];
    fill(x);
    how.budget_seconds = 20; /* it ends when all eight were tried */
    attune_context *context = open_context(*state);
    attune_operator *op = add(context, &options);
    for (; is_choosy < 2; is_choosy++) {
        if (attune_operator_tune(op, "factor=3", (void *[]){x, y}, NULL, &how, numbers, &result))
            fail_msg("%s", attune_last_message());
        assert_int_equal(numbers[ROUNDS], is_choosy ? 100 : 1);
        if (is_choosy) continue;
        is_choosy = 1; /* the tuned numbers are there, the kernel is not */
        assert_int_equal(attune_cache_clear(context, NULL), ATTUNE_OK);
        attune_drop_memory_cache(context);
        const int32_t *got;
        attune_kernel *kernel = compile(op, "factor=3", NULL);
        assert_int_equal(attune_operator_numbers(kernel, &got, NULL), ATTUNE_OK);
        assert_int_equal(got[ROUNDS], 100);
        attune_kernel_release(kernel);
        is_choosy = 0;
    }
    attune_context_destroy(context);
}

static void what_cannot_be_tuned(void **state) {
    const attune_operator_options options = scaling_options(NULL);
    attune_context *context = open_context(*state);
    attune_operator *op = add(context, &options);
    attune_tune_result result = {.struct_size = sizeof result};
    float x[N], y[N];
    fill(x);
    void *const buffers[] = {x, y}, *const no_output[] = {x, NULL};
    assert_says(attune_operator_tune(op, "factor=3", no_output, NULL, NULL, NULL, &result), ATTUNE_INVALID_ARGUMENT,
                "the pointer to y is NULL");
    assert_says(attune_operator_tune(op, "fact", buffers, NULL, NULL, NULL, &result), ATTUNE_INVALID_PROBLEM,
                "there must be a factor");
    assert_says(attune_operator_tune(op, "factor=3", buffers, NULL, NULL, NULL, NULL), ATTUNE_INVALID_ARGUMENT, "NULL");
    attune_context_destroy(context);
}

/* ---- Refusals ---- */

static void bad_builders_get_a_sentence(void **state) {
    static bad_build cases[] = {
        {"too large", 1, ATTUNE_INVALID_PROBLEM, "bad.1 n=1 is refused: too large"},
        {"", 7, ATTUNE_INVALID_PROBLEM, "bad.1 n=1 is refused: its operator gave no reason"},
        {"", 0, ATTUNE_INVALID_IR, "the operator wrote nothing for bad.1 n=1"},
        {"kernel @k (", 0, ATTUNE_INVALID_IR, "the loop IR of bad.1 n=1: 1:12: expected"},
        {"kernel @k (y: f32[4] out) { parallel for i in 0..5 { y[i] = 1.0 } }", 0, ATTUNE_INVALID_IR,
         "the loop IR of bad.1 n=1: "},
    };
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    options.name = "bad";
    options.version = 1;
    options.build = build_badly;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_context *context = open_context(*state);
        attune_kernel *kernel;
        options.user = &cases[i];
        attune_operator *op = add(context, &options);
        assert_says(attune_operator_compile(op, "n=1", NULL, &kernel), cases[i].status, cases[i].message);
        assert_null(kernel);
        attune_context_destroy(context);
    }
}

/* Scratch that is read before it is written: the interpreter refuses that. */
static void wrong_usual_numbers_are_the_operators(void **state) {
    static bad_build bad = {"kernel @k (x: f32[64] in, y: f32[64] out) { parallel for i in 0..64 {\n"
                            "alloc a: f32[2] scratch\nif x[i] > 1.0 { a[1] = x[i] }\ny[i] = a[1]\n} }",
                            0, ATTUNE_OK, ""};
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    float x[N] = {0}, y[N];
    options.name = "unwritten";
    options.version = 1;
    options.build = build_badly;
    options.user = &bad;
    attune_context *context = open_context(*state);
    attune_operator *op = add(context, &options);
    assert_says(attune_operator_tune(op, "", (void *[]){x, y}, NULL, NULL, NULL, &result), ATTUNE_CHECK_FAILED,
                "with the usual numbers of unwritten machine code and interpreter differ");
    attune_context_destroy(context);
}

static void long_texts_are_written_whole(void **state) {
    static char long_text[3000];
    memset(long_text, ' ', sizeof long_text - 1);
    memcpy(long_text, "kernel @k (y: f32[1] out) {", 27);
    strcpy(long_text + 2900, "parallel for i in 0..1 { y[i] = 5.0 } }");
    static bad_build good = {long_text, 0, ATTUNE_OK, ""};
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    options.name = "long";
    options.version = 1;
    options.build = build_badly;
    options.user = &good;
    attune_context *context = open_context(*state);
    attune_kernel *kernel = compile(add(context, &options), "", NULL);
    float y = 0;
    assert_int_equal(attune_ir_run(context, kernel, ATTUNE_ENGINE_JIT, (void *[]){&y}, NULL), ATTUNE_OK);
    assert_true(y == 5);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static void refuse(attune_context *context, attune_operator_options options, const char *message) {
    attune_operator *op = (attune_operator *)context;
    assert_says(attune_operator_add(context, &options, &op), ATTUNE_INVALID_ARGUMENT, message);
    assert_null(op);
}

static void bad_options_get_a_sentence(void **state) {
    attune_context *context = open_context(*state);
    attune_operator_options o = scaling_options(NULL);
    attune_choice bad[13];
    for (int i = 0; i < 13; i++) bad[i] = two_choices[0];
    add(context, &o);
    refuse(context, o, "the name scaling is in use");
    o.name = "attention";
    refuse(context, o, "the name attention is in use");
    o.name = "ir";
    refuse(context, o, "the name ir is in use");
    static const char *const own[] = {"linear_attention", "linear", "causal_conv", "conv", "index", "blocks", "mla"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        o.name = own[i];
        refuse(context, o, "is reserved for attune's own operator");
    }
    attune_index_desc desc = ATTUNE_INDEX_DESC_INIT; /* whose name was not taken */
    attune_index *index;
    desc.num_heads = 1, desc.head_dim = 8, desc.num_ids = 1;
    assert_ok(attune_index_create(context, &desc, &index));
    attune_index_destroy(index);
    o.name = "2x";
    refuse(context, o, "is named '2x'");
    o.name = NULL;
    refuse(context, o, "is named ''");
    o.name = "other";
    o.build = NULL;
    refuse(context, o, "operator other has no build function");
    o.build = build_scaling;
    o.choices = bad;
    refuse(context, o, "two choices named rounds");
    bad[1].name = "a b";
    refuse(context, o, "is named 'a b'");
    o.num_choices = 1;
    bad[0].num_values = 0;
    refuse(context, o, "rounds of operator other has no values");
    bad[0] = two_choices[0];
    bad[0].usual = 7;
    refuse(context, o, "the usual value of rounds of operator other is 7, which is none of 1, 100");
    o.num_choices = 13;
    refuse(context, o, "operator other has 13 choices; there may be at most 12");
    o.choices = NULL;
    refuse(context, o, "no array of them");
    o = scaling_options(NULL);
    o.name = "other";
    o.version = 0;
    refuse(context, o, "the version of operator other is 0");
    o.version = 1;
    o.reserved = 77;
    refuse(context, o, "reserved of operator other is 77");
    o.reserved = 0;
    o.choices = bad;
    o.num_choices = 1;
    bad[0] = two_choices[0];
    bad[0].reserved = 5;
    refuse(context, o, "reserved of rounds of operator other is 5");
    static const int32_t twice[] = {1, 100, 1};
    bad[0] = (attune_choice){"rounds", twice, 3, 1, 0};
    refuse(context, o, "rounds of operator other has the value 1 twice");
    int32_t many[AT_OWN_VALUES];
    for (int i = 0; i < AT_OWN_VALUES; i++) many[i] = i;
    bad[0] = (attune_choice){"rounds", many, AT_OWN_VALUES, -1, 0};
    refuse(context, o, ", …");
    o = scaling_options(NULL);
    o.struct_size = 3;
    refuse(context, o, "attune_operator_options.struct_size is 3");
    attune_context_destroy(context);
}

static void *add_same(void *context) {
    const attune_operator_options options = scaling_options(NULL);
    attune_operator *op;
    return attune_operator_add(context, &options, &op) ? NULL : op;
}

static void one_of_many_threads_gets_the_name(void **state) {
    enum { THREADS = 8, ROUNDS_OF_THREADS = 50 };
    for (int round = 0; round < ROUNDS_OF_THREADS; round++) {
        attune_context *context = open_context(*state);
        pthread_t threads[THREADS];
        int added = 0;
        for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, add_same, context), 0);
        for (int i = 0; i < THREADS; i++) {
            void *op;
            pthread_join(threads[i], &op);
            added += op != NULL;
        }
        assert_int_equal(added, 1);
        attune_context_destroy(context);
    }
}

static void bad_requests_get_a_sentence(void **state) {
    const attune_operator_options options = scaling_options(NULL);
    attune_context *context = open_context(*state);
    attune_operator *op = add(context, &options);
    attune_kernel *kernel;
    const int32_t seven[] = {7, 0};
    char longest[AT_OWN_PROBLEM_CHARS + 2];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_says(attune_operator_compile(op, "factor=3", seven, &kernel), ATTUNE_INVALID_SCHEDULE,
                "rounds of scaling is 7; it must be one of 1, 100");
    assert_says(attune_operator_compile(op, longest, NULL, &kernel), ATTUNE_INVALID_PROBLEM, "has 512 bytes");
    longest[AT_OWN_PROBLEM_CHARS] = '\0';
    assert_says(attune_operator_compile(op, longest, NULL, &kernel), ATTUNE_INVALID_PROBLEM, "must be a factor");
    assert_says(attune_operator_compile(op, "factor=3\n", NULL, &kernel), ATTUNE_INVALID_PROBLEM,
                "a control character (10) at byte 8");
    assert_says(attune_operator_compile(op, "factor=3\xc2\x85", NULL, &kernel), ATTUNE_INVALID_PROBLEM,
                "a control character (133) at byte 8");
    static const char *const no_utf8[] = {
        "\xff", "\x80", "\xc3", "\xc0\xaf", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80"};
    for (size_t i = 0; i < sizeof no_utf8 / sizeof *no_utf8; i++)
        assert_says(attune_operator_compile(op, no_utf8[i], NULL, &kernel), ATTUNE_INVALID_PROBLEM,
                    "is not UTF-8: byte 0 is 0x");
    attune_kernel_release(compile(op, "factor=3 caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", NULL));
    assert_says(attune_operator_compile(op, NULL, NULL, &kernel), ATTUNE_INVALID_ARGUMENT, "NULL");
    assert_says(attune_operator_compile(NULL, "", NULL, &kernel), ATTUNE_INVALID_ARGUMENT, "NULL");
    assert_says(attune_operator_add(NULL, &options, &op), ATTUNE_INVALID_ARGUMENT, "NULL");
    attune_context_destroy(context);
}

#define WITH_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, temp_dir_setup, temp_dir_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_DIRECTORY(a_kernel_is_made_once),
        WITH_DIRECTORY(another_version_is_another_kernel),
        WITH_DIRECTORY(other_choices_are_another_kernel),
        WITH_DIRECTORY(long_schedules_are_cached),
        WITH_DIRECTORY(entries_that_contradict_their_key),
        WITH_DIRECTORY(numbers_are_told),
        WITH_DIRECTORY(the_tuner_finds_and_keeps_the_faster),
        WITH_DIRECTORY(other_parameters_are_wrong),
        WITH_DIRECTORY(checks_begin_with_what_the_caller_gave),
        WITH_DIRECTORY(a_winner_that_is_refused_is_passed_over),
        WITH_DIRECTORY(what_cannot_be_tuned),
        WITH_DIRECTORY(bad_builders_get_a_sentence),
        WITH_DIRECTORY(wrong_usual_numbers_are_the_operators),
        WITH_DIRECTORY(long_texts_are_written_whole),
        WITH_DIRECTORY(bad_options_get_a_sentence),
        WITH_DIRECTORY(one_of_many_threads_gets_the_name),
        WITH_DIRECTORY(bad_requests_get_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
