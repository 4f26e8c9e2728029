/* Bundles: all kernels of tests/data/bundle.txt, which `attune bundle` has compiled when the tests were built, beside
 * the library. Results have equal bits with each target that this CPU runs, and refusals have equal sentences. */
#include "support/problems.h"
#include "call/call.h"
#include "cases.h"
#include "engine/create.h"
#include "support/environments.h"
#include "support/statuses.h"
#include "support/tensor_calls.h"
#include "target/bundle_abi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* The run time's own functions: the header's take a struct that differs from kernel to kernel. */
int run_kernel(const void *arguments, const at_bundle_kernel *kernel) __asm__("cases.run.run");
int check_kernel(const void *arguments, char *message, size_t bytes,
                 const at_bundle_kernel *kernel) __asm__("cases.run.check");
int workspace_of(const void *arguments, uint32_t workers, size_t *bytes,
                 const at_bundle_kernel *kernel) __asm__("cases.run.workspace");
int begin_kernel(const void *arguments, uint32_t workers, cases_static_call *call,
                 const at_bundle_kernel *kernel) __asm__("cases.run.begin");
const char *target_of(const at_bundle_kernel *kernel) __asm__("cases.run.target");

/* The sizes that calls set. */
static const char *sizes_of(const at_bundle_kernel *kernel) {
    static const char *const sizes[][2] = {{"decode", "seq_kv=131"},
                                           {"open", "seq_q=19,seq_kv=45,softmax_scale=0.3"},
                                           {"ragged", "total_q=40,total_kv=60"},
                                           {"paged", "num_pages=20,max_pages=4"},
                                           {"appended", "rotary_positions=64"},
                                           {"cached", "rotary_positions=64"},
                                           {"rounded", "seq_q=19,seq_kv=45,softmax_scale=0.3"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(sizes[i][0], at_bundle_name(kernel)) == 0) return sizes[i][1];
    return "";
}

/* ---- Calls ---- */

static environment where; /* of the threads that call the run time */

/* A call of the run time's there, and its status. */
#define THERE(call)                                                                                                    \
    ({                                                                                                                 \
        environment_enter(where);                                                                                      \
        const int status_ = call;                                                                                      \
        environment_leave(where, #call);                                                                               \
        status_;                                                                                                       \
    })

typedef struct packed {
    unsigned char bytes[2048];
} packed;

/* The kernel's own struct of arguments. */
static packed pack(const at_bundle_kernel *kernel, const attune_arguments *arguments) {
    packed p;
    for (uint32_t i = 0; i < kernel->num_fields; i++) {
        const at_bundle_field *field = &at_bundle_fields(kernel)[i];
        assert_true(field->from + field->bytes <= sizeof p.bytes);
        memcpy(p.bytes + field->from, (const char *)arguments + field->to, field->bytes);
    }
    return p;
}

static void *give_workspace(const at_bundle_kernel *kernel, attune_arguments *arguments, uint32_t workers) {
    size_t bytes;
    const packed p = pack(kernel, arguments);
    assert_int_equal(THERE(workspace_of(p.bytes, workers, &bytes, kernel)), CASES_OK);
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, 64, bytes ? bytes : 64), 0);
    memset(memory, 0x5a, bytes);
    arguments->workspace = memory;
    arguments->workspace_bytes = bytes;
    return memory;
}

static void run_at_once(const at_bundle_kernel *kernel, attune_arguments *arguments) {
    void *const memory = give_workspace(kernel, arguments, 1);
    const packed p = pack(kernel, arguments);
    char message[512];
    assert_int_equal(THERE(check_kernel(p.bytes, message, sizeof message, kernel)), CASES_OK);
    assert_string_equal(message, "");
    assert_int_equal(THERE(run_kernel(p.bytes, kernel)), CASES_OK);
    free(memory);
}

/* The last task of each phase first, by three workers in turn. */
static void run_in_parts(const at_bundle_kernel *kernel, attune_arguments *arguments) {
    enum { WORKERS = 3 };
    void *const memory = give_workspace(kernel, arguments, WORKERS);
    const packed p = pack(kernel, arguments);
    cases_static_call call;
    assert_int_equal(THERE(begin_kernel(p.bytes, WORKERS, &call, kernel)), CASES_OK);
    const uint32_t phases = cases_static_phases(&call);
    for (uint32_t phase = 0; phase < phases; phase++)
        for (int64_t task = cases_static_tasks(&call, phase); task-- > 0;)
            assert_int_equal(THERE(cases_static_execute(&call, phase, task, task + 1, (uint32_t)(task % WORKERS))),
                             CASES_OK);
    assert_int_equal(cases_static_execute(&call, 0, 0, 1, WORKERS), CASES_INVALID_ARGUMENT);
    assert_int_equal(cases_static_execute(&call, phases, 0, 1, 0), CASES_INVALID_ARGUMENT);
    assert_int_equal(cases_static_execute(&call, 0, 1, 0, 0), CASES_INVALID_ARGUMENT);
    free(memory);
}

/* ---- Equal bits ---- */

static bool runs_here(const at_bundle_code *code) { return !(code->required & ~at_cpu_features()); }

static void compare_code(const at_bundle_kernel *kernel, const at_bundle_code *code) {
    tensors t, own;
    mha_schedule schedule = {0};
    attune_arguments arguments;
    char what[120];
    attune_context *const context = tensors_context(at_bundle_code_target(code), 1);
    tensors_open_call(&t, at_bundle_problem(kernel), sizes_of(kernel), INPUT_ORDINARY, 7);
    if (*at_bundle_code_schedule(code)) schedule = schedule_read(at_bundle_code_schedule(code));
    for (int in_parts = 0; in_parts <= 1; in_parts++) {
        assert_true(tensors_share(&own, &t));
        tensors_arguments(&own, &arguments);
        assert_int_equal(cases_use(at_bundle_code_name(code)), CASES_OK);
        assert_string_equal(target_of(kernel), at_bundle_code_name(code));
        (in_parts ? run_in_parts : run_at_once)(kernel, &arguments);
        if (!in_parts) tensors_run_chosen(context, &t, *at_bundle_code_schedule(code) ? &schedule : NULL);
        snprintf(what, sizeof what, "%s, %s%s", at_bundle_name(kernel), at_bundle_code_name(code),
                 in_parts ? ", in parts" : "");
        tensors_assert_same(&own, &t, what);
        tensors_free(&own);
    }
    tensors_free(&t);
    attune_context_destroy(context);
}

static void bits_are_the_library_s(void **state) {
    (void)state;
    const at_bundle *const bundle = &cases_bundle;
    assert_int_equal(bundle->version, AT_BUNDLE_VERSION);
    for (uint32_t k = 0; k < bundle->num_kernels; k++)
        for (uint32_t c = 0; c < bundle->kernels[k].num_codes; c++)
            if (runs_here(&at_bundle_codes(&bundle->kernels[k])[c]))
                compare_code(&bundle->kernels[k], &at_bundle_codes(&bundle->kernels[k])[c]);
    assert_int_equal(cases_use(NULL), CASES_OK);
}

/* With the best code, by callers of other floating-point environments; numbers that flushing would change. */
static void bits_are_those_of_any_environment(void **state) {
    (void)state;
    for (uint32_t k = 0; k < cases_bundle.num_kernels; k++) {
        const at_bundle_kernel *const kernel = &cases_bundle.kernels[k];
        tensors t, own;
        attune_arguments arguments;
        tensors_open_call(&t, at_bundle_problem(kernel), sizes_of(kernel), INPUT_DENORMAL, 7);
        tensors_arguments(&t, &arguments);
        run_at_once(kernel, &arguments);
        for (where = ENV_DOWNWARD; where < NUM_ENVIRONMENTS; where++)
            for (int in_parts = 0; in_parts <= 1; in_parts++) {
                assert_true(tensors_share(&own, &t));
                tensors_arguments(&own, &arguments);
                (in_parts ? run_in_parts : run_at_once)(kernel, &arguments);
                tensors_assert_same(&own, &t, environment_names[where]);
                tensors_free(&own);
            }
        where = ENV_DEFAULT;
        tensors_free(&t);
    }
}

/* ---- Equal refusals ---- */

/* As attune_run refuses the same arguments. */
static void assert_same_refusal(const at_bundle_kernel *kernel, attune_context *context, const attune_kernel *jit,
                                const attune_arguments *arguments, const char *what) {
    char message[512];
    const packed p = pack(kernel, arguments);
    const int status = check_kernel(p.bytes, message, sizeof message, kernel);
    const attune_status wanted = attune_run(context, jit, arguments);
    if (wanted == ATTUNE_OK && status == CASES_OK) return;
    if (status != (int)wanted || strcmp(message, attune_last_message()) != 0)
        fail_msg("%s, %s: \"%s\" (%d), and the library says \"%s\" (%d)", at_bundle_name(kernel), what, message, status,
                 attune_last_message(), (int)wanted);
}

/* Damage that is legal would read memory that is not there: more entries than the tables have, other pointers. */
static bool is_safe(const at_bundle_field *field, int64_t number, const attune_arguments *good) {
    const bool is_batch = field->to == offsetof(attune_arguments, batch);
    const bool is_number = field->bytes > 8 || (field->to >= offsetof(attune_arguments, batch) &&
                                                field->to <= offsetof(attune_arguments, rotary_batch_stride));
    const bool is_scale = field->to == offsetof(attune_arguments, softmax_scale);
    if (is_batch) return number <= good->batch || number > INT32_MAX;
    return is_number || is_scale || (number >= 0 && number <= 3);
}

static void damage_and_compare(const at_bundle_kernel *kernel, attune_context *context, const attune_kernel *jit,
                               const attune_arguments *good) {
    static const int64_t numbers[] = {-2, -1, 0, 1, 3, INT64_C(1) << 41, INT64_MAX};
    for (uint32_t i = 0; i < kernel->num_fields; i++) {
        const at_bundle_field *field = &at_bundle_fields(kernel)[i];
        const bool is_workspace = field->to == offsetof(attune_arguments, workspace) ||
                                  field->to == offsetof(attune_arguments, workspace_bytes);
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers && !is_workspace; n++)
            for (uint16_t at = 0; at < field->bytes && is_safe(field, numbers[n], good); at += 8) {
                attune_arguments bad = *good;
                char what[80];
                memcpy((char *)&bad + field->to + at, &numbers[n], 8);
                snprintf(what, sizeof what, "8 bytes at %d become %lld", field->to + at, (long long)numbers[n]);
                assert_same_refusal(kernel, context, jit, &bad, what);
            }
    }
}

/* Outputs are nowhere, so that no call with other sizes or strides computes anything: it is refused, or empty. */
static void refusals_are_the_library_s(void **state) {
    (void)state;
    const at_bundle *const bundle = &cases_bundle;
    attune_context *const context = tensors_context(NULL, 1);
    for (uint32_t k = 0; k < bundle->num_kernels; k++) {
        const at_bundle_kernel *kernel = &bundle->kernels[k];
        tensors t;
        attune_arguments arguments;
        tensors_open_call(&t, at_bundle_problem(kernel), sizes_of(kernel), INPUT_ORDINARY, 7);
        attune_kernel *jit = kernel_of(context, &t.problem);
        tensors_arguments(&t, &arguments);
        void *const memory = give_workspace(kernel, &arguments, 1);
        arguments.out.data = arguments.weights.data = NULL;
        damage_and_compare(kernel, context, jit, &arguments);
        free(memory);
        attune_kernel_release(jit);
        tensors_free(&t);
    }
    attune_context_destroy(context);
}

/* ---- Names ---- */

/* Tensors of functions may have names that C has, or the struct; sums of ones tell that each came to its place. */
static void tensors_of_functions_have_members(void **state) {
    (void)state;
    enum { HEADS = 2, Q = 9, KV = 13, DIM = 16 };
    static float q[HEADS * Q * DIM], k[HEADS * KV * DIM], v[HEADS * KV * DIM], out[HEADS * Q * DIM], other[KV];
    static float only_first[KV] = {1000};
    cases_named_args args = CASES_NAMED_ARGS;
    for (int i = 0; i < HEADS * KV; i++) v[i * DIM] = (float)(i % KV);
    for (int i = 0; i < KV; i++) other[i] = 1;
    assert_int_equal(args.batch_tensor_strides[0], 0);
    args.q = q, args.k = k, args.v = v, args.out = out;
    args.double_tensor = args.x_tensor_tensor = other;
    args.batch_tensor = only_first; /* the first key gets all the weight */
    args.NULL_tensor = args.v_strides_tensor = q;
    assert_int_equal(cases_named_workspace(&args, 1, &args.workspace_bytes), CASES_OK);
    assert_int_equal(posix_memalign(&args.workspace, 64, args.workspace_bytes + 64), 0);
    assert_int_equal(cases_named(&args), CASES_OK);
    assert_true(out[0] == 0);
    args.batch_tensor = q; /* all zeros: the mean of 0 to 12 */
    assert_int_equal(cases_named(&args), CASES_OK);
    assert_true(out[0] > 5.99F && out[0] < 6.01F);
    free(args.workspace);
}

/* ---- With the caller's context ---- */

static attune_status refuse_to_compile(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                       void **data, size_t *bytes, at_error *err) {
    (void)request, (void)allocator, (void)data, (void)bytes;
    ++*(int *)user;
    return at_fail(err, ATTUNE_CODEGEN_FAILED, "this compiler compiles nothing");
}

/* A bundle is made by the compiler and with the directories of the caller's context, whatever the environment says. */
static void context_is_the_caller_s(void **state) {
    (void)state;
    char elsewhere[] = "/tmp/attune-bundle-XXXXXX";
    int calls = 0;
    const at_context_hooks hooks = {.compile = refuse_to_compile, .compile_user = &calls};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    attune_bundle_options wish = ATTUNE_BUNDLE_OPTIONS_INIT;
    attune_bundle_files files;
    options.cache_dir = "";
    assert_ok(at_context_create(&options, &hooks, &context));
    const attune_problem problem = problem_parsed("num_heads=2,seq_q=3,head_dim=8");
    const attune_bundle_kernel kernel = {"attn", &problem, NULL};
    wish.name = "x";
    wish.targets = at_bundle_code_name(at_bundle_codes(&cases_bundle.kernels[0]));
    assert_non_null(mkdtemp(elsewhere));
    assert_int_equal(rmdir(elsewhere), 0); /* a context would make it */
    setenv("ATTUNE_CACHE_DIR", elsewhere, 1);
    setenv("ATTUNE_COMPILE", "nobody", 1);
    assert_fails(attune_bundle_make(context, &wish, &kernel, 1, &files), ATTUNE_CODEGEN_FAILED, "compiles nothing");
    unsetenv("ATTUNE_COMPILE");
    setenv("ATTUNE_CACHE_DIR", "", 1);
    assert_int_equal(calls, 1);
    wish.targets = "avx2,aarch64";
    assert_fails(attune_bundle_make(context, &wish, &kernel, 1, &files), ATTUNE_INVALID_ARGUMENT,
                 "avx2 and aarch64 are targets of two architectures");
    assert_int_not_equal(access(elsewhere, F_OK), 0);
    attune_context_destroy(context);
}

/* Refused before anything is compiled. */
static void descriptions_are_checked(void **state) {
    (void)state;
    int calls = 0;
    const at_context_hooks hooks = {.compile = refuse_to_compile, .compile_user = &calls};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    attune_bundle_files files;
    attune_bundle_description described = {"", "op=linear,num_heads=2,head_dim=16"};
    struct {
        attune_bundle_options options;
        uint64_t of_a_later_version;
    } newer = {ATTUNE_BUNDLE_OPTIONS_INIT, 0};
    attune_bundle_options *const wish = &newer.options;
    options.cache_dir = "";
    assert_ok(at_context_create(&options, &hooks, &context));
    wish->name = "x", wish->kernels_only = 1;
    wish->targets = at_bundle_code_name(at_bundle_codes(&cases_bundle.kernels[0]));
    assert_fails(attune_bundle_make(context, wish, NULL, 0, &files), ATTUNE_INVALID_ARGUMENT,
                 "a bundle has from 1 to 4096 kernels, not 0");
    wish->descriptions = &described, wish->num_descriptions = 1;
    for (int i = 0; i < 2; i++, described.name = NULL)
        assert_fails(attune_bundle_make(context, wish, NULL, 0, &files), ATTUNE_INVALID_ARGUMENT,
                     "the description 'op=linear,num_heads=2,head_dim=16' has no name");
    described.name = "few", wish->kernels_only = 0;
    assert_fails(attune_bundle_make(context, wish, NULL, 0, &files), ATTUNE_INVALID_ARGUMENT,
                 "there are descriptions, but kernels_only is 0");
    assert_int_equal(calls, 0);
    wish->kernels_only = 1;
    wish->struct_size = sizeof newer;
    assert_fails(attune_bundle_make(context, wish, NULL, 0, &files), ATTUNE_CODEGEN_FAILED, "compiles nothing");
    attune_context_destroy(context);
}

/* ---- Registered with the library ---- */

static uint64_t bundle_hits(const attune_context *context) {
    const attune_statistics statistics = statistics_of(context);
    return statistics.bundle_hits;
}

/* Nothing can be compiled here, and there is no cache. */
static attune_context *strict_context(const char *isa) {
    setenv("ATTUNE_STRICT", "1", 1);
    attune_context *context = tensors_context(isa, 1);
    unsetenv("ATTUNE_STRICT");
    assert_ok(attune_context_add_bundle(context, &cases_bundle));
    return context;
}

static void registered_kernels_are_found(void **state) {
    (void)state;
    const at_bundle *const bundle = &cases_bundle;
    attune_context *const context = strict_context(NULL), *const other = tensors_context(NULL, 1);
    for (uint32_t k = 0; k < bundle->num_kernels; k++) {
        tensors t, own;
        attune_kernel *kernel = NULL, *again = NULL;
        tensors_open_call(&t, at_bundle_problem(&bundle->kernels[k]), sizes_of(&bundle->kernels[k]), INPUT_ORDINARY, 7);
        assert_true(tensors_share(&own, &t));
        kernel = kernel_of(context, &t.problem);
        assert_int_equal(kernel_info_of(kernel).origin, ATTUNE_FROM_BUNDLE);
        assert_true(kernel_info_of(kernel).code_bytes > 0);
        assert_ok(tensors_run(&own, context, kernel, NULL, ATTUNE_ENGINE_JIT));
        const mha_schedule schedule = schedule_read(kernel_info_of(kernel).schedule);
        tensors_run_chosen(other, &t, &schedule);
        tensors_assert_same(&own, &t, at_bundle_name(&bundle->kernels[k]));
        again = kernel_of(context, &t.problem);
        assert_ptr_equal(kernel, again);
        attune_kernel_release(again);
        attune_kernel_release(kernel);
        tensors_free(&own);
        tensors_free(&t);
    }
    assert_int_equal(bundle_hits(context), bundle->num_kernels);
    attune_context_destroy(other);
    attune_context_destroy(context);
}

/* A table of what a mask_mod hides is made in each call, or kept by the caller: equal bits. */
static void a_block_mask_is_kept(void **state) {
    (void)state;
    uint32_t k = 0;
    while (strcmp(at_bundle_name(&cases_bundle.kernels[k]), "documents") != 0)
        assert_true(++k < cases_bundle.num_kernels);
    attune_context *const context = strict_context(NULL);
    attune_block_mask *mask = NULL;
    attune_arguments arguments;
    tensors t, own;
    tensors_open_call(&t, at_bundle_problem(&cases_bundle.kernels[k]), "", INPUT_ORDINARY, 7);
    assert_true(tensors_share(&own, &t));
    attune_kernel *kernel = kernel_of(context, &t.problem);
    assert_int_equal(kernel_info_of(kernel).origin, ATTUNE_FROM_BUNDLE);
    assert_ok(tensors_run(&t, context, kernel, NULL, ATTUNE_ENGINE_JIT));
    tensors_arguments(&own, &arguments);
    assert_ok(attune_block_mask_create(context, kernel, &arguments, &mask));
    arguments.block_mask = mask;
    assert_ok(attune_run(context, kernel, &arguments));
    tensors_assert_same(&own, &t, "a kept block mask");
    attune_block_mask_destroy(mask);
    attune_kernel_release(kernel);
    tensors_free(&own);
    tensors_free(&t);
    attune_context_destroy(context);
}

/* Other problems, other schedules, and other instruction sets are none of the bundle's. */
static void others_are_not(void **state) {
    (void)state;
    attune_context *const context = strict_context(NULL);
    mha_schedule schedule = {0};
    attune_problem problem = problem_parsed(at_bundle_problem(&cases_bundle.kernels[0]));
    attune_kernel *kernel = kernel_of(context, &problem);
    schedule = schedule_read(kernel_info_of(kernel).schedule);
    attune_kernel_release(kernel);
    assert_ok(attune_compile(context, &problem, mha_schedule_text(&schedule).text,
                             &kernel)); /* the very schedule of the bundle */
    assert_int_equal(kernel_info_of(kernel).origin, ATTUNE_FROM_BUNDLE);
    attune_kernel_release(kernel);
    schedule.kv_tile += schedule.score_keys;
    assert_fails(attune_compile(context, &problem, mha_schedule_text(&schedule).text, &kernel), ATTUNE_NOT_CACHED,
                 "is not cached");
    problem.seq_q++;
    assert_fails(attune_compile(context, &problem, NULL, &kernel), ATTUNE_NOT_CACHED, "is not cached");
    attune_context_destroy(context);
}

static void other_versions_are_refused(void **state) {
    (void)state;
    attune_context *const context = tensors_context(NULL, 1);
    at_bundle other = cases_bundle;
    other.generator_id = "0123456789abcdef";
    assert_fails(attune_context_add_bundle(context, &other), ATTUNE_UNSUPPORTED, "another version of attune");
    other = cases_bundle;
    other.version++;
    assert_fails(attune_context_add_bundle(context, &other), ATTUNE_UNSUPPORTED, "is of version 4");
    assert_fails(attune_context_add_bundle(context, NULL), ATTUNE_INVALID_ARGUMENT, "was given NULL");
    attune_context_destroy(context);
}

/* ---- By its header ---- */

static void header_is_used(void **state) {
    (void)state;
    enum { COUNT = 2 * 3 * 37 * 24, KEYS = 2 * 3 * 53 * 24 };
    float *q = calloc(COUNT, sizeof *q), *k = calloc(KEYS, sizeof *k), *v = calloc(KEYS, sizeof *v);
    float *out = calloc(COUNT, sizeof *out), *lse = calloc(2 * 3 * 37, sizeof *lse);
    for (int i = 0; i < KEYS; i++) v[i] = 1;
    cases_static_args args = CASES_STATIC_ARGS;
    char message[100], short_message[8];
    size_t bytes;
    args.q = q, args.k = k, args.v = v, args.out = out, args.lse = lse;
    assert_int_equal(cases_static_workspace(&args, 0, &bytes), CASES_INVALID_ARGUMENT);
    assert_int_equal(cases_static_workspace(&args, 1, &bytes), CASES_OK);
    assert_true(bytes > 0);
    assert_int_equal(cases_static(&args), CASES_WORKSPACE_TOO_SMALL);
    assert_int_equal(cases_static_check(&args, message, sizeof message), CASES_WORKSPACE_TOO_SMALL);
    assert_non_null(strstr(message, "workspace is NULL; this call needs"));
    assert_int_equal(cases_static_check(&args, short_message, sizeof short_message), CASES_WORKSPACE_TOO_SMALL);
    assert_string_equal(short_message, "workspa");
    assert_int_equal(cases_static_check(&args, NULL, 0), CASES_WORKSPACE_TOO_SMALL);
    assert_int_equal(cases_static(NULL), CASES_INVALID_ARGUMENT);
    assert_int_equal(posix_memalign(&args.workspace, 64, bytes), 0);
    args.workspace_bytes = bytes;
    assert_int_equal(cases_static(&args), CASES_OK);
    for (int i = 0; i < COUNT; i++) assert_float_equal(out[i], 1, 1e-6);
    assert_int_equal(cases_use("avx9"), CASES_UNSUPPORTED);
    assert_non_null(cases_static_target());
    free(args.workspace);
    free(q), free(k), free(v), free(out), free(lse);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_the_library_s),
        cmocka_unit_test(bits_are_those_of_any_environment),
        cmocka_unit_test(refusals_are_the_library_s),
        cmocka_unit_test(registered_kernels_are_found),
        cmocka_unit_test(others_are_not),
        cmocka_unit_test(other_versions_are_refused),
        cmocka_unit_test(tensors_of_functions_have_members),
        cmocka_unit_test(a_block_mask_is_kept),
        cmocka_unit_test(context_is_the_caller_s),
        cmocka_unit_test(descriptions_are_checked),
        cmocka_unit_test(header_is_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
