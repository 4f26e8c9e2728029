/* Operators of the user: which kernels are one, what is cached, what the tuner finds and drops, and a sentence for each
 * thing that cannot be. */
#include "operator/own.h"
#include "runtime/context.h"

#include "support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>

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
    attune_context *context = NULL;
    options.cache_dir = dir;
    options.max_workers = 1;
    if (attune_context_create(&options, &context)) fail_msg("%s", attune_last_message());
    return context;
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
    attune_kernel_info info = {.struct_size = sizeof info};
    assert_int_equal(attune_kernel_get_info(kernel, &info), ATTUNE_OK);
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

static void bad_builders_get_a_sentence(void **state) {
    static bad_build cases[] = {
        {"too large", 1, ATTUNE_INVALID_PROBLEM, "bad.0 n=1 is refused: too large"},
        {"", 7, ATTUNE_INVALID_PROBLEM, "bad.0 n=1 is refused: its operator gave no reason"},
        {"", 0, ATTUNE_INVALID_IR, "the operator wrote nothing for bad.0 n=1"},
        {"kernel @k (", 0, ATTUNE_INVALID_IR, "the loop IR of bad.0 n=1: 1:12: expected"},
        {"kernel @k (y: f32[4] out) { parallel for i in 0..5 { y[i] = 1.0 } }", 0, ATTUNE_INVALID_IR,
         "the loop IR of bad.0 n=1: "},
    };
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    options.name = "bad";
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

static void long_texts_are_written_whole(void **state) {
    static char long_text[3000];
    memset(long_text, ' ', sizeof long_text - 1);
    memcpy(long_text, "kernel @k (y: f32[1] out) {", 27);
    strcpy(long_text + 2900, "parallel for i in 0..1 { y[i] = 5.0 } }");
    static bad_build good = {long_text, 0, ATTUNE_OK, ""};
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    options.name = "long";
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
        WITH_DIRECTORY(numbers_are_told),
        WITH_DIRECTORY(the_tuner_finds_and_keeps_the_faster),
        WITH_DIRECTORY(what_cannot_be_tuned),
        WITH_DIRECTORY(bad_builders_get_a_sentence),
        WITH_DIRECTORY(long_texts_are_written_whole),
        WITH_DIRECTORY(bad_options_get_a_sentence),
        WITH_DIRECTORY(one_of_many_threads_gets_the_name),
        WITH_DIRECTORY(bad_requests_get_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
