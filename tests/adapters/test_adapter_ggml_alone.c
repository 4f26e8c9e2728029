/* The plug-in of ggml where nothing can be compiled: its own kernels compute what language models need, by caches of
 * the usual types, and the host the rest. */
#include "ggml_check.h"

#include "attune.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The plug-in has no kernels for CPUs without vectors of 256 bits. */
static void skip_without_kernels(void) {
    attune_context *context;
    attune_machine_info info = {.struct_size = sizeof info};
    assert_int_equal(attune_context_create(NULL, &context), ATTUNE_OK);
    assert_int_equal(attune_get_machine_info(context, &info), ATTUNE_OK);
    const bool is_bare = !strcmp(info.isa, "x86-64");
    attune_context_destroy(context);
    if (is_bare) skip();
}

static bool sees_past_of_stream(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    return key <= row + c->at + 3 * stream;
}
static bool sees_window(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    return sees_past_of_stream(c, stream, row, key) && key > row + c->at + 3 * stream - 24;
}
/* The keys of four sequences alternate, and each row is of one. */
static bool sees_own_sequence(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)stream;
    return key % 4 == row % 4 && key < c->at;
}

/* A cache of a window's keys, the oldest of which were overwritten. */
static bool sees_ring(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    const int64_t age = ((row + c->at + stream - key) % c->keys + c->keys) % c->keys;
    return age < 50;
}
/* Two texts of an encoder, and a row of none. */
static bool sees_own_text(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)stream;
    const int64_t middle = c->rows / 2;
    return row < middle ? key < middle : row < c->rows - 1 && key >= middle;
}
static bool sees_first(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)row;
    return key < c->at + 9 * stream;
}

static void usual_models_need_no_compiler(void **state) {
    (void)state;
    skip_without_kernels();
    static const int types[] = {F16, BF16, Q8_0, Q4_0}, dims[] = {64, 96, 128, 256}, groups[] = {1, 3, 8, 16};
    ggml_backend *const backend = open_backend();
    for (int t = 0; t < 4; t++)
        for (int d = 0; d < 4; d++) {
            fake_case c = {.kv_heads = 2, .heads = 2 * groups[(t + d) % 4], .dim = dims[d], .k_type = types[t]};
            c.v_type = c.k_type, c.has_sinks = d % 2, c.sees = sees_past_of_stream;
            c.keys = 96, c.rows = 1, c.at = 70;
            check_case(backend, &c, "a token");
            c.rows = 37, c.at = 40;
            check_case(backend, &c, "a prompt");
            c.soft_cap = dims[d] >= 128 ? 2.5F : 0;
            check_case(backend, &c, "a prompt, with a cap for wide heads");
            c.soft_cap = 0, c.rows = 4, c.streams = 2;
            check_case(backend, &c, "a few tokens of two streams");
            c.streams = 1, c.rows = 30, c.sees = sees_window;
            check_case(backend, &c, "a window");
            c.rows = 5, c.keys = 200, c.at = 180, c.sees = sees_own_sequence;
            check_case(backend, &c, "tokens of sequences in one cache");
            c.rows = 19;
            check_case(backend, &c, "tokens of as many sequences as a prompt has rows");
            c.rows = 43, c.sees = sees_mixed_step;
            check_case(backend, &c, "a step of a prompt and three tokens");
            c.rows = 26, c.keys = 80, c.at = 41, c.sees = sees_ring, c.soft_cap = dims[d] >= 128 ? 30 : 0;
            check_case(backend, &c, "a prompt in a ring, with a cap for wide heads");
            c.soft_cap = 0, c.rows = 1, c.at = 10, c.streams = 2;
            check_case(backend, &c, "a token of each of two streams in rings");
            c.has_sinks = false, c.rows = c.keys = 70, c.sees = sees_own_text;
            check_case(backend, &c, "two texts of an encoder");
            c.max_bias = dims[d] % 64 || dims[d] > 128 ? 0 : 8;
            c.rows = 30, c.at = c.keys - c.rows, c.sees = sees_past, c.bias = distance;
            if (c.max_bias > 0) check_case(backend, &c, "ALiBi of a prompt");
            c.max_bias = 0, c.bias = NULL;
            c.rows = 5, c.at = 33, c.sees = sees_first;
            check_case(backend, &c, "a few rows that attend to another text");
        }
    backend->free(backend);
}

/* Multi-head latent attention, narrow values, wide heads, and K and V of two types. */
static void so_do_models_with_other_widths(void **state) {
    (void)state;
    skip_without_kernels();
    static const struct {
        int dim, dim_v, k_type, v_type;
        bool v_in_k;
    } models[] = {{576, 512, F16, F16, true},   {576, 512, Q8_0, Q8_0, true},  {576, 512, Q4_0, Q4_0, true},
                  {320, 256, BF16, BF16, true}, {192, 128, F16, F16, false},   {192, 128, Q8_0, Q8_0, false},
                  {512, 512, F16, F16, false},  {512, 512, Q8_0, Q8_0, false}, {128, 128, Q8_0, Q4_0, false},
                  {64, 64, Q8_0, Q4_0, false},  {64, 64, Q5_0, IQ4_NL, false}};
    ggml_backend *const backend = open_backend();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        fake_case c = {.heads = 16,
                       .dim = models[i].dim,
                       .dim_v = models[i].dim_v,
                       .k_type = models[i].k_type,
                       .v_type = models[i].v_type,
                       .v_in_k = models[i].v_in_k,
                       .keys = 96,
                       .sees = sees_past};
        c.rows = 1, c.at = 70;
        check_case(backend, &c, "a token");
        c.rows = 20, c.at = 40;
        check_case(backend, &c, "a prompt");
        c.rows = 5, c.keys = 200, c.at = 180, c.sees = sees_own_sequence;
        check_case(backend, &c, "tokens of sequences in one cache");
    }
    backend->free(backend);
}

static bool sees_around(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)stream;
    return key >= row - c->at && key <= row + c->at;
}

/* Neighbouring rows share most keys, but not all of them. */
static void windows_of_encoders_need_no_compiler(void **state) {
    (void)state;
    skip_without_kernels();
    fake_case c = {.heads = 6, .kv_heads = 2, .rows = 150, .keys = 150, .dim = 64, .sees = sees_around, .at = 20};
    ggml_backend *const backend = open_backend();
    check_case(backend, &c, "a window of an encoder");
    c.streams = 2, c.dim = 256, c.at = 9;
    check_case(backend, &c, "windows of two texts");
    backend->free(backend);
}

/* Kernels for f32 are those of tier 0, which has none for lists of keys. */
static void windows_that_are_no_lists_go_by_heads(void **state) {
    (void)state;
    skip_without_kernels();
    fake_case c = {.heads = 6, .kv_heads = 2, .rows = 150, .keys = 150, .dim = 64, .sees = sees_own_text};
    c.k_type = c.v_type = F32;
    ggml_backend *const backend = open_backend();
    check_case(backend, &c, "two texts of an encoder");
    backend->free(backend);
}

static void other_nodes_are_the_hosts(void **state) {
    (void)state;
    fake_case cases[] = {{.heads = 2, .rows = 20, .keys = 60, .dim = 64, .soft_cap = 3, .sees = sees_past, .at = 40},
                         {.heads = 2, .rows = 20, .keys = 60, .dim = 64, .k_type = Q4_1, .v_type = Q4_1},
                         {.heads = 2, .rows = 20, .keys = 60, .dim = 72, .sees = sees_past, .at = 40}};
    ggml_backend *const backend = open_backend();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float expected[2 * 20 * 72];
        ggml_tensor *const node = make_node(&cases[i]);
        reference(node, expected);
        fake.cpu_nodes = 0;
        assert_int_equal(compute(backend, node), GGML_ABI_SUCCESS);
        assert_int_equal(fake.cpu_nodes, 1);
        assert_true(worst_difference(node, expected) < 2e-5);
        free_node(node);
    }
    assert_true(has_logged("attune has no kernel for it"));
    backend->free(backend);
}

/* A test program has another directory than the library. */
static int name_tier0(void **state) {
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s/libattune-tier0.so", getenv("BUILD") ? getenv("BUILD") : "build");
    return setenv("ATTUNE_TIER0", path, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usual_models_need_no_compiler), cmocka_unit_test(so_do_models_with_other_widths),
        cmocka_unit_test(windows_of_encoders_need_no_compiler), cmocka_unit_test(windows_that_are_no_lists_go_by_heads),
        cmocka_unit_test(other_nodes_are_the_hosts)};
    setenv("ATTUNE_COMPILE", "never", 1);
    setenv("ATTUNE_DEADLINE_US", "60000000", 1); /* for a thread that looks for kernels */
    setenv("ATTUNE_CACHE_DIR", "", 1);
    return cmocka_run_group_tests(tests, name_tier0, NULL);
}
