/* The cost of products of integer codes, and the choices that follow from it. */
#include "schedule/choose.h"
#include "schedule/cost_parts.h"
#include "support/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

/* With few registers products of codes are for many rows at once, though their sums are stored: V is interleaved
 * once. Eight keys of one row need no registers for K. With many registers choices are those that were timed on a Zen
 * 4: eight keys of one plane from the caches, four from memory and with two planes. */
static void codes_are_multiplied_by_many_rows(void **state) {
    static const struct {
        const char *fields, *target, *machine;
        int score_rows, score_keys, value_rows; /* value_rows 0: any */
    } cases[] = {
        {"num_heads=32,seq_kv=512,integer=all", "avx2", "zen3", 4, 4, 4},
        {"num_heads=32,seq_kv=512,integer=all,q_planes=1", "avx2", "zen3", 4, 4, 4},
        {"num_heads=32,seq_kv=4096,integer=all,q_planes=1", "avx2", "zen3", 4, 4, 4},
        {"num_heads=24,seq_kv=512,integer=all", "avx2", "zen3", 1, 8, 3},
        {"num_heads=64,seq_kv=512,integer=all,q_planes=1", "avx2", "zen3", 4, 4, 4},
        {"num_heads=16,seq_kv=512,integer=all,q_planes=1", "avx2", "zen3", 2, 8, 2},
        {"num_heads=8,seq_kv=4096,integer=all,q_planes=1", "avx2", "zen3", 1, 8, 1},
        {"num_heads=32,seq_kv=512,integer=scores", "avx2", "zen3", 4, 4, 0},
        {"num_heads=32,seq_kv=512,integer=all", "x86-64", "zen3", 4, 4, 4},
        {"num_heads=32,seq_kv=512,integer=all,q_planes=1", "avx512_bf16", "zen4", 4, 8, 4},
        {"num_heads=32,seq_kv=4096,integer=all,q_planes=1", "avx512_bf16", "zen4", 4, 4, 4},
        {"num_heads=32,seq_kv=4096,integer=all,q_planes=1,k_scales=group,k_group=32", "avx512_bf16", "zen4", 4, 8, 4},
        {"num_heads=32,seq_kv=512,integer=all", "avx512_bf16", "zen4", 4, 4, 2},
        {"num_heads=32,seq_kv=512,integer=all", "avx512_bf16", "zen5", 4, 4, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        snprintf(text, sizeof text, "num_kv_heads=8,seq_q=1,head_dim=128,kv_dtype=i8,%s", cases[i].fields);
        const attune_problem p = problem_canonical(text);
        mha_schedule s;
        mha_choose(mha_read(&p), at_target_find(cases[i].target), at_description_of(cases[i].machine, false), &s);
        const bool has_values = !cases[i].value_rows || s.value_rows == cases[i].value_rows;
        if (s.score_rows != cases[i].score_rows || s.score_keys != cases[i].score_keys || !has_values)
            fail_msg("%s, %s: scores %d x %d, values %d", cases[i].fields, cases[i].target, s.score_rows, s.score_keys,
                     s.value_rows);
    }
}

/* Where the number of rows is open it is rounded up to what both kinds of tiles divide, which must not be twelve. */
static void open_rows_of_codes_are_not_rounded_up_far(void **state) {
    static const char *const targets[] = {"avx2", "x86-64", "avx512_bf16"};
    static const char *const fields[] = {"integer=all",
                                         "integer=all,q_planes=1",
                                         "integer=scores",
                                         "integer=all,k_layout=panels",
                                         "integer=all,q_planes=1,k_layout=panels",
                                         "integer=all,v_layout=panels",
                                         "integer=scores,q_planes=1,v_layout=panels",
                                         "integer=all,k_layout=panels,v_layout=panels"};
    (void)state;
    for (int heads = 8; heads <= 64; heads += 8)
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
            for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
                char text[200];
                snprintf(text, sizeof text, "num_heads=%d,num_kv_heads=8,seq_q=dynamic,max_seq_q=1,seq_kv=512,%s%s",
                         heads, "head_dim=64,kv_dtype=i8,", fields[f]);
                const mha_schedule s = schedule_chosen(text, targets[i]);
                if (s.score_rows % s.value_rows && s.value_rows % s.score_rows)
                    fail_msg("%s, %s: rows %d and %d", text, targets[i], s.score_rows, s.value_rows);
            }
}

/* A dot of bytes by the halves of words takes four instructions and two slots of multiplications. */
static void byte_dots_cost_what_they_take(void **state) {
    const attune_problem p = problem_canonical("num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=512,head_dim=128,"
                                               "kv_dtype=i8,integer=all,q_planes=1");
    const at_description *zen4 = at_description_of("zen4", false);
    const mha_machine with = {at_target_find("avx512_bf16"), zen4}, without = {at_target_find("avx2"), zen4};
    at_description slow = *zen4;
    mha_schedule s;
    (void)state;
    slow.i8 /= 2;
    mha_choose(mha_read(&p), without.target, zen4, &s);
    const mha_costs by_halves = mha_costs_of(&p, &without, &s);
    mha_choose(mha_read(&p), with.target, zen4, &s);
    const mha_costs by_dots = mha_costs_of(&p, &with, &s);
    const mha_costs by_slow_dots = mha_costs_of(&p, &(mha_machine){with.target, &slow}, &s);
    assert_true(by_halves.scores > 1.5 * by_dots.scores && by_halves.values > 1.5 * by_dots.values);
    assert_true(by_slow_dots.scores > by_dots.scores && by_slow_dots.values > by_dots.values);
}

/* Codes of panels come from memory a panel at a time: from four at once a step of decoding takes a tenth longer. */
static void panels_of_codes_come_in_turn(void **state) {
    static const struct {
        const char *sizes, *target;
        int score_keys, prefetch;
    } cases[] = {{"num_heads=32,num_kv_heads=8,seq_kv=4096,q_planes=1", "avx512_bf16", 2, 8192},
                 {"num_heads=32,num_kv_heads=8,seq_kv=4096", "avx512_bf16", 1, 8192},
                 {"num_heads=8,seq_kv=4096,q_planes=1", "avx512_bf16", 8, 8192},
                 {"num_heads=32,num_kv_heads=8,seq_kv=4096", "avx2", 2, 8192},
                 {"num_heads=32,num_kv_heads=8,seq_kv=512,q_planes=1", "avx512_bf16", 4, -1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[160];
        snprintf(text, sizeof text, "%s,seq_q=1,head_dim=128,kv_dtype=i8,integer=all,kv_layout=panels", cases[i].sizes);
        const mha_schedule s = schedule_chosen(text, cases[i].target);
        assert_int_equal(s.score_keys, cases[i].score_keys);
        assert_int_equal(s.kv_prefetch, cases[i].prefetch);
    }
}

/* With integer=all, where the heads of a batch are tasks enough, none is cut. */
static void heads_of_codes_are_whole(void **state) {
    static const struct {
        const char *sizes;
        int kv_chunk;
    } cases[] = {{"batch=4,num_heads=32,num_kv_heads=8,seq_kv=4000", 4096},
                 {"batch=4,num_heads=32,num_kv_heads=8,seq_kv=4000,has_kv_lens=1", 512},
                 {"batch=4,num_heads=32,num_kv_heads=8,seq_kv=dynamic", 512},
                 {"batch=1,num_heads=32,num_kv_heads=8,seq_kv=4000", 512}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[160];
        snprintf(text, sizeof text, "%s,seq_q=1,head_dim=128,kv_dtype=i8,integer=all", cases[i].sizes);
        assert_int_equal(schedule_chosen(text, "avx512_bf16").kv_chunk, cases[i].kv_chunk);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_multiplied_by_many_rows),
        cmocka_unit_test(open_rows_of_codes_are_not_rounded_up_far),
        cmocka_unit_test(byte_dots_cost_what_they_take),
        cmocka_unit_test(panels_of_codes_come_in_turn),
        cmocka_unit_test(heads_of_codes_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
