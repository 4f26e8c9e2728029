/* Register tiles and streams that are chosen for d-lanes. */
#include "schedule/choose.h"
#include "support/problems.h"
#include "target/tuning_class.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

/* Of three rows K comes from memory in four streams, too: in one a step of decoding takes up to 1.4 times as long. */
static void keys_of_three_rows_come_in_streams(void **state) {
    static const struct {
        const char *problem;
        int rows, streams;
    } cases[] = {{"num_heads=24,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128", 2, 4},
                 {"num_heads=15,num_kv_heads=5,seq_q=1,seq_kv=4096,head_dim=64,has_kv_lens=1", 2, 4},
                 {"num_heads=8,seq_q=3,seq_kv=3000,head_dim=128", 2, 4},
                 {"num_heads=24,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,kv_dtype=i8", 3, 1},
                 {"num_heads=24,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,reproducible=1", 3, 1},
                 {"num_heads=24,num_kv_heads=8,seq_q=dynamic,max_seq_q=1,seq_kv=4096,head_dim=128", 3, 1},
                 {"num_heads=24,num_kv_heads=8,is_ragged=1,max_seq_q=1,max_seq_kv=4096,head_dim=128", 3, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mha_schedule s = schedule_chosen(cases[i].problem, "avx2");
        assert_int_equal(s.score_rows, cases[i].rows);
        assert_int_equal(s.score_streams, cases[i].streams);
    }
}

/* Converted values of five rows and more come from memory to sums in registers, with few registers
 * (notes/2026-11-28-decoding.md). f16 was no faster, and four rows of bf16 were slower. */
static void converted_values_are_held(void **state) {
    static const struct {
        const char *problem;
        int rows, vectors;
    } cases[] = {{"num_heads=48,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,dtype=bf16", 6, 2},
                 {"num_heads=64,num_kv_heads=8,seq_q=1,seq_kv=2048,head_dim=128,kv_dtype=i8", 4, 2},
                 {"num_heads=96,num_kv_heads=8,seq_q=1,seq_kv=2048,head_dim=128,kv_dtype=bf16", 6, 2},
                 {"num_heads=40,num_kv_heads=8,seq_q=1,seq_kv=2048,head_dim=128,kv_dtype=i8", 5, 2},
                 {"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,dtype=bf16", 2, 1},
                 {"num_heads=64,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,dtype=f16", 2, 1},
                 {"num_heads=64,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128", 2, 1},
                 {"num_heads=48,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,dtype=bf16,reproducible=1", 2, 1},
                 /* scales of single elements, which keep sums out of registers */
                 {"num_heads=40,num_kv_heads=8,seq_q=1,seq_kv=16384,head_dim=128,kv_dtype=i8,kv_scales=channel", 2, 1},
                 {"num_heads=48,num_kv_heads=8,seq_q=1,seq_kv=16384,head_dim=128,kv_dtype=i8,kv_scales=group", 2, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mha_schedule s = schedule_chosen(cases[i].problem, "avx2");
        if (s.value_rows != cases[i].rows || s.value_column_vectors != cases[i].vectors)
            fail_msg("%s: value_rows=%d, value_column_vectors=%d", cases[i].problem, s.value_rows,
                     s.value_column_vectors);
    }
}

/* Narrow heads of f32 in the caches, with few registers: sums of values are held, in the order of keys that they had.
 * Where a call is too large for the caches they are not: 1.1 to 1.3 of the time. */
static void narrow_heads_are_held(void **state) {
    static const struct {
        const char *problem, *isa;
        int score_column_vectors, value_rows, value_column_vectors, value_keys, value_streams;
    } cases[] = {{"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=512,head_dim=48", "avx2", 6, 2, 6, 1, 4},
                 {"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=512,head_dim=48,batch=64", "avx2", 1, 2, 1, 4, 4},
                 {"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=248,head_dim=64", "avx2", 8, 4, 3, 1, 4},
                 {"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=248,head_dim=64,batch=16", "avx2", 1, 2, 1, 4, 4},
                 {"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=248,head_dim=80", "avx2", 10, 2, 5, 1, 4},
                 {"num_heads=16,num_kv_heads=8,seq_q=1,seq_kv=248,head_dim=80", "avx2", 10, 2, 1, 4, 4},
                 {"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=248,head_dim=96", "avx2", 1, 2, 1, 4, 4},
                 {"num_heads=24,num_kv_heads=8,seq_q=1,seq_kv=248,head_dim=48", "avx2", 6, 3, 1, 3, 3},
                 {"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=248,head_dim=64", "avx512", 1, 4, 1, 4, 4}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mha_schedule s = schedule_chosen(cases[i].problem, cases[i].isa);
        const bool has_order = s.value_keys == cases[i].value_keys && s.value_streams == cases[i].value_streams;
        const bool has_rows = s.value_rows == cases[i].value_rows;
        const bool has_columns = s.value_column_vectors == cases[i].value_column_vectors &&
                                 s.score_column_vectors == cases[i].score_column_vectors;
        if (!has_order || !has_rows || !has_columns)
            fail_msg("%s: score_column_vectors=%d, values %d x %d, value_keys=%d, value_streams=%d", cases[i].problem,
                     s.score_column_vectors, s.value_rows, s.value_column_vectors, s.value_keys, s.value_streams);
    }
}

/* Values of panels come from memory in four streams that are asked for ahead, as those of rows do: in one stream a step
 * of decoding takes twice as long. */
static void panels_come_in_streams(void **state) {
    static const struct {
        const char *sizes;
        int score_keys;
        bool asks;
    } cases[] = {{"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128", 4, true},
                 {"num_heads=8,seq_q=1,seq_kv=4096,head_dim=128", 16, true},
                 {"num_heads=8,seq_q=1,seq_kv=dynamic,head_dim=128", 16, true},
                 {"num_heads=8,seq_q=1,seq_kv=512,head_dim=128", 8, false}};
    (void)state;
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        char text[160];
        snprintf(text, sizeof text, "%s,kv_layout=panels,dtype=%s", cases[i / 2].sizes, i % 2 ? "bf16" : "f32");
        const attune_problem p = problem_canonical(text);
        mha_schedule s;
        mha_choose(mha_read(&p), at_target_find("avx512_bf16"), at_description_of("zen4", false), &s);
        assert_int_equal(s.value_streams, 4);
        assert_int_equal(s.score_keys, cases[i / 2].score_keys);
        assert_int_equal(s.kv_prefetch > 0, cases[i / 2].asks);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_three_rows_come_in_streams),
        cmocka_unit_test(converted_values_are_held),
        cmocka_unit_test(narrow_heads_are_held),
        cmocka_unit_test(panels_come_in_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
