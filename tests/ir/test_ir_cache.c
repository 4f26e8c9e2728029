/* Kernels that a user wrote in loop IR, in memory and on disk: one kernel for one canonical text, no code generator on
 * a hit, and entries that are damaged, forbidden or told about like all others. */
#include "cache/disk_cache.h"
#include "engine/create.h"
#include "support/engine/contexts.h"
#include "support/statuses.h"

#include "support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Doubles n numbers; as the printer writes it. */
static const char doubling[] = "kernel @doubling (x: f32[n] in, y: f32[n] out, n: idx) {\n"
                               "  parallel for i in 0..n {\n"
                               "    y[i] = x[i] * 0x1p+1\n"
                               "  }\n"
                               "}\n";
/* The same kernel with other blanks, a comment, and a constant that folds. */
static const char doubling_again[] = "kernel @doubling(x: f32[n] in, y: f32[n] out, n: idx)\n"
                                     "{ # twice as much\n"
                                     "parallel for i in 0..n { y[i] = x[i] * (1.0 + 1.0) } }";
static const char tripling[] = "kernel @doubling (x: f32[n] in, y: f32[n] out, n: idx) {\n"
                               "  parallel for i in 0..n {\n"
                               "    y[i] = x[i] * 0x1.8p+1\n"
                               "  }\n"
                               "}\n";

enum { MOST = 32 };
typedef struct heard {
    attune_event_kind kinds[MOST];
    char problems[MOST][64];
    int count;
} heard;

static void hear(void *user, const attune_event *event) {
    heard *h = user;
    assert_in_range(h->count, 0, MOST - 1);
    h->kinds[h->count] = event->kind;
    snprintf(h->problems[h->count++], sizeof h->problems[0], "%s", event->problem);
}

static attune_status no_code_generator(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                       void **data, size_t *bytes, at_error *err) {
    (void)user;
    (void)request;
    (void)allocator;
    (void)data;
    (void)bytes;
    return at_fail(err, ATTUNE_CODEGEN_MISSING, "there is none");
}

/* compile: NULL for the real code generator. */
static attune_context *open_context(const char *dir, at_compile_fn *compile, heard *h) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    const at_context_hooks hooks = {.compile = compile};
    options.cache_dir = dir;
    options.event = h ? hear : NULL;
    options.event_user = h;
    return test_context(&options, &hooks);
}

static attune_kernel *compile(attune_context *context, const char *text) {
    attune_kernel *kernel = NULL;
    if (attune_ir_compile(context, text, &kernel)) fail_msg("%s", attune_last_message());
    return kernel;
}

static void assert_multiplies(attune_context *context, const attune_kernel *kernel, float factor) {
    const float x[3] = {1, -0.5f, 7};
    float y[3] = {0};
    const int64_t n = 3;
    for (int engine = ATTUNE_ENGINE_JIT; engine <= ATTUNE_ENGINE_INTERPRETER; engine++) {
        memset(y, 0, sizeof y);
        if (attune_ir_run(context, kernel, (attune_engine)engine, (void *[]){(void *)x, y}, &n))
            fail_msg("%s", attune_last_message());
        for (int i = 0; i < 3; i++) assert_true(y[i] == factor * x[i]);
    }
}

static void one_text_is_one_kernel(void **state) {
    attune_context *context = open_context(*state, NULL, NULL);
    attune_kernel *first = compile(context, doubling), *second = compile(context, doubling_again);
    attune_kernel *other = compile(context, tripling);
    assert_ptr_equal(first, second);
    assert_ptr_not_equal(first, other);
    assert_int_equal(statistics_of(context).compiles, 2);
    assert_int_equal(statistics_of(context).memory_hits, 1);
    assert_int_equal(strlen(kernel_info_of(first).key), 32);
    assert_string_not_equal(kernel_info_of(first).key, kernel_info_of(other).key);
    assert_multiplies(context, first, 2);
    assert_multiplies(context, other, 3);
    attune_kernel_release(first);
    attune_kernel_release(second);
    attune_kernel_release(other);
    attune_context_destroy(context);
}

static void write_entry_of(const char *dir, const char *text) {
    attune_context *context = open_context(dir, NULL, NULL);
    attune_kernel_release(compile(context, text));
    attune_context_destroy(context);
}

static void a_hit_needs_no_code_generator(void **state) {
    write_entry_of(*state, doubling);
    heard h = {0};
    attune_context *context = open_context(*state, no_code_generator, &h);
    attune_kernel *kernel = compile(context, doubling_again);
    assert_int_equal(kernel_info_of(kernel).origin, ATTUNE_FROM_DISK);
    assert_int_equal(statistics_of(context).disk_hits, 1);
    assert_multiplies(context, kernel, 2);
    const attune_ir_parameter *parameters;
    size_t num_parameters;
    assert_int_equal(attune_ir_parameters(kernel, &parameters, &num_parameters), ATTUNE_OK);
    assert_int_equal(num_parameters, 3);
    assert_string_equal(parameters[1].name, "y");
    assert_true(parameters[1].is_output);
    attune_kernel_release(kernel);
    assert_int_equal(h.count, 1);
    assert_int_equal(h.kinds[0], ATTUNE_EVENT_DISK_HIT);
    assert_string_equal(h.problems[0], "@doubling");
    assert_int_equal(attune_ir_compile(context, tripling, &kernel), ATTUNE_OK); /* by the virtual machine */
    assert_int_equal(kernel_info_of(kernel).engine, ATTUNE_ENGINE_VM);
    assert_multiplies(context, kernel, 3);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static void a_miss_tells_its_events(void **state) {
    heard h = {0};
    attune_context *context = open_context(*state, NULL, &h);
    attune_kernel_release(compile(context, doubling));
    attune_context_destroy(context);
    assert_int_equal(h.count, 3);
    assert_int_equal(h.kinds[0], ATTUNE_EVENT_MISS);
    assert_int_equal(h.kinds[1], ATTUNE_EVENT_COMPILE_BEGIN);
    assert_int_equal(h.kinds[2], ATTUNE_EVENT_COMPILE_END);
    for (int i = 0; i < h.count; i++) assert_string_equal(h.problems[i], "@doubling");
}

typedef struct listed {
    int count;
    char file[96], problem[64], ir[1024];
} listed;

static int list(void *user, const attune_cache_file *entry) {
    listed *l = user;
    l->count++;
    snprintf(l->file, sizeof l->file, "%s", entry->file);
    snprintf(l->problem, sizeof l->problem, "%s", entry->problem);
    snprintf(l->ir, sizeof l->ir, "%s", entry->ir);
    return 0;
}

static void an_entry_holds_its_text(void **state) {
    write_entry_of(*state, doubling_again);
    attune_context *context = open_context(*state, NULL, NULL);
    listed l = {0};
    assert_int_equal(attune_cache_visit(context, list, &l), ATTUNE_OK);
    assert_int_equal(l.count, 1);
    assert_string_equal(l.problem, "@doubling");
    assert_string_equal(l.ir, doubling);
    attune_context_destroy(context);
}

static void a_damaged_entry_is_compiled_anew(void **state) {
    char path[512];
    write_entry_of(*state, doubling);
    attune_context *context = open_context(*state, NULL, NULL);
    listed l = {0};
    assert_int_equal(attune_cache_visit(context, list, &l), ATTUNE_OK);
    snprintf(path, sizeof path, "%s/%s", (const char *)*state, l.file);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, -40, SEEK_END);
    fputc('!', file);
    fclose(file);
    attune_kernel *kernel = compile(context, doubling);
    assert_int_equal(kernel_info_of(kernel).origin, ATTUNE_FROM_COMPILER);
    assert_int_equal(statistics_of(context).damaged_files, 1);
    assert_multiplies(context, kernel, 2);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

/* A file with a right checksum and this kernel's key, but with the text or code of another. */
static void forge(attune_context *context, const char *text, const char *ir, const at_cache_file *from) {
    const at_written written = {text, strlen(text)};
    at_key key;
    at_key_make(&key, at_written_of(&written), NULL, &context->machine);
    at_cache_file entry = *from;
    entry.key = key.bytes;
    entry.key_bytes = key.size;
    entry.ir = ir;
    at_disk_cache_replace(&context->disk, &key, &entry);
}

static void an_entry_with_another_text_is_refused(void **state) {
    write_entry_of(*state, tripling);
    attune_context *context = open_context(*state, NULL, NULL);
    const at_written written = {tripling, strlen(tripling)};
    const char *const texts[] = {tripling, NULL, "", "kernel @doubling ("};
    at_key key;
    uint8_t *data;
    at_cache_file entry;
    at_key_make(&key, at_written_of(&written), NULL, &context->machine);
    assert_true(at_disk_cache_read(&context->disk, &key, &data, &entry));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        forge(context, doubling, texts[i], &entry);
        attune_drop_memory_cache(context);
        attune_kernel *kernel = compile(context, doubling);
        assert_int_equal(statistics_of(context).damaged_files, i + 1);
        assert_multiplies(context, kernel, 2);
        attune_kernel_release(kernel);
    }
    at_free(&context->allocator, data);
    attune_context_destroy(context);
}

static void strict_names_the_kernel(void **state) {
    char manifest[512], line[256] = "";
    snprintf(manifest, sizeof manifest, "%s/misses", (const char *)*state);
    setenv("ATTUNE_STRICT", "1", 1);
    setenv("ATTUNE_RECORD", manifest, 1);
    attune_context *context = open_context(*state, NULL, NULL);
    unsetenv("ATTUNE_STRICT");
    unsetenv("ATTUNE_RECORD");
    attune_kernel *kernel;
    assert_int_equal(attune_ir_compile(context, doubling, &kernel), ATTUNE_NOT_CACHED);
    assert_null(kernel);
    assert_non_null(strstr(attune_last_message(), "is not cached: @doubling"));
    attune_context_destroy(context);
    /* `attune warm` reads such a file, and cannot make the kernel: the line is a comment. */
    FILE *file = fopen(manifest, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    assert_string_equal(line, "# @doubling\n");
}

static void bad_text_gets_a_sentence(void **state) {
    attune_context *context = open_context(*state, NULL, NULL);
    attune_kernel *kernel;
    assert_int_equal(attune_ir_compile(context, "kernel @broken (", &kernel), ATTUNE_INVALID_IR);
    const char *const outside = "kernel @outside(y: f32[n] out, n: idx) { parallel for i in 0..n { y[i + 1] = 0.0 } }";
    assert_int_equal(attune_ir_compile(context, outside, &kernel), ATTUNE_INVALID_IR);
    assert_non_null(strstr(attune_last_message(), "y[i + 1]"));
    assert_int_equal(statistics_of(context).memory_kernels, 0);
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_text_is_one_kernel, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(a_hit_needs_no_code_generator, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(a_miss_tells_its_events, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(an_entry_holds_its_text, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(a_damaged_entry_is_compiled_anew, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(an_entry_with_another_text_is_refused, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(strict_names_the_kernel, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(bad_text_gets_a_sentence, temp_dir_setup, temp_dir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
