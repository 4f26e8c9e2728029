/* Grids of problems: lists, ranges, combinations, and malformed ones. */
#include "sweep/grid.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_problems(const char *text, size_t count, const char *const *expected) {
    grid g;
    char message[GRID_MESSAGE] = "";
    if (!grid_parse(text, &g, message)) fail_msg("%s: %s", text, message);
    assert_int_equal(grid_count(&g), count);
    for (size_t i = 0; i < count; i++) {
        char *const problem = grid_problem(&g, i);
        assert_string_equal(problem, expected[i]);
        free(problem);
    }
    grid_free(&g);
}

#define ASSERT_PROBLEMS(text, ...)                                                                                     \
    assert_problems(text, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *),                                 \
                    (const char *const[]){__VA_ARGS__})

static void one_problem_is_a_grid(void **state) {
    (void)state;
    ASSERT_PROBLEMS("seq_q=4", "seq_q=4");
    ASSERT_PROBLEMS(" num_heads=2 , dtype=bf16 ", "num_heads=2,dtype=bf16");
    ASSERT_PROBLEMS("num_heads = 2 ,\t4", "num_heads=2", "num_heads=4");
}

static void shapes_and_strides_have_colons_of_their_own(void **state) {
    (void)state;
    ASSERT_PROBLEMS("attn_mask_dims=4:4,k,seq_q=4", "attn_mask_dims=4:4,seq_q=4", "attn_mask_dims=k,seq_q=4");
    ASSERT_PROBLEMS("q_strides=64:16:8:1,attn_bias_dims=1:4:4", "q_strides=64:16:8:1,attn_bias_dims=1:4:4");
    ASSERT_PROBLEMS("_strides=1:2", "_strides=1", "_strides=2");
}

static void lists_and_ranges_combine(void **state) {
    (void)state;
    ASSERT_PROBLEMS("a=1,2,b=x,y", "a=1,b=x", "a=1,b=y", "a=2,b=x", "a=2,b=y");
    ASSERT_PROBLEMS("a=128:1024:*2,b=7", "a=128,b=7", "a=256,b=7", "a=512,b=7", "a=1024,b=7");
    ASSERT_PROBLEMS("a=1:3", "a=1", "a=2", "a=3");
    ASSERT_PROBLEMS("a=5:12:+3", "a=5", "a=8", "a=11");
    ASSERT_PROBLEMS("a=5:12:3", "a=5", "a=8", "a=11");
    ASSERT_PROBLEMS("a=1,4:6,9", "a=1", "a=4", "a=5", "a=6", "a=9");
    ASSERT_PROBLEMS("a=-2:-1", "a=-2", "a=-1");
    ASSERT_PROBLEMS("a=9223372036854775806:9223372036854775807", "a=9223372036854775806", "a=9223372036854775807");
}

static void the_whole_grid_of_the_manual(void **state) {
    (void)state;
    grid g;
    char message[GRID_MESSAGE];
    assert_true(grid_parse("seq_q=128:4096:*2,head_dim=64,128,is_causal=0,1,num_heads=8", &g, message));
    assert_int_equal(grid_count(&g), 24);
    char *const last = grid_problem(&g, 23);
    assert_string_equal(last, "seq_q=4096,head_dim=128,is_causal=1,num_heads=8");
    free(last);
    grid_free(&g);
}

static void what_is_no_grid_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "not KEY=VALUE"},
        {"4", "'4' is not KEY=VALUE"},
        {"=4", "no key"},
        {"a=", "a has an empty value"},
        {"a=1,,b=2", "a has an empty value"},
        {"a=1,a=2", "a is given twice"},
        {"a=1:", "'1:' is no range"},
        {"a=1:x", "is no range"},
        {"a=1 | lanes=16", "'1 | lanes=16' names a schedule"},
        {"a=1:9:*", "is no range"},
        {"a=1:9:*2x", "is no range"},
        {"a=9:1", "ends before it begins"},
        {"a=1:9:*1",
         "never ends: a step must be at least 1, a factor at least 2, and a range with a factor must begin at"},
        {"a=0:9:*2", "never ends"},
        {"a=1:9:+0", "never ends"},
        {"a=1:9:-1", "never ends"},
        {"a=1:99999999999999999999", "is no range"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        grid g;
        char message[GRID_MESSAGE] = "";
        assert_false(grid_parse(cases[i].text, &g, message));
        if (!strstr(message, cases[i].part))
            fail_msg("'%s': '%s' is not in: %s", cases[i].text, cases[i].part, message);
        grid_free(&g);
    }
}

static void a_grid_that_explodes_is_counted(void **state) {
    (void)state;
    grid g;
    char message[GRID_MESSAGE];
    assert_true(grid_parse("a=1:65536,b=1:65536,c=1:65536,d=1:65536", &g, message));
    assert_true(grid_count(&g) == SIZE_MAX);
    grid_free(&g);
    assert_true(grid_parse("a=5,1:1000000000000,7,8:9,b=1,2", &g, message));
    assert_true(grid_count(&g) == 2000000000008);
    grid_free(&g);
    assert_true(grid_parse("a=-9223372036854775808:9223372036854775807,3", &g, message));
    assert_true(grid_count(&g) == SIZE_MAX);
    grid_free(&g);
    assert_true(grid_parse("a=1:65536,b=1:65536", &g, message));
    assert_true(grid_count(&g) == (size_t)1 << 32);
    grid_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_problem_is_a_grid),
        cmocka_unit_test(lists_and_ranges_combine),
        cmocka_unit_test(shapes_and_strides_have_colons_of_their_own),
        cmocka_unit_test(the_whole_grid_of_the_manual),
        cmocka_unit_test(what_is_no_grid_is_refused),
        cmocka_unit_test(a_grid_that_explodes_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
