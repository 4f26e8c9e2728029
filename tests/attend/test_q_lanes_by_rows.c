/* Values by rows (attend/prefill/value_rows.c): the bits are those of values by columns, and they are used where they
 * may be. */
#include "attend/prefill/layout.h"
#include "base/error.h"
#include "problem/mha.h"
#include "schedule/schedule.h"
#include "schedule/variant.h"
#include "support/attend/attend_samples.h"
#include "support/calls.h"
#include "support/engine/contexts.h"
#include "support/ir/jit_run.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static int32_t rows_of(const attune_problem *p) { return (int32_t)(p->seq_q * (p->num_heads / p->num_kv_heads)); }

static mha_schedule schedule_of(const attune_problem *p, bool by_rows) {
    mha_schedule s = {0};
    s.strategy = MHA_Q_LANES;
    s.lanes = p->softmax_precision == ATTUNE_F64 ? 2 : 4;
    s.score_row_vectors = by_rows ? (rows_of(p) + s.lanes - 1) / s.lanes : 1;
    s.task_row_vectors = by_rows ? s.score_row_vectors : 3;
    s.score_keys = 3;
    s.score_columns = 1;
    s.value_columns = p->head_dim_v < 6 ? 1 : p->head_dim_v < 64 ? 6 : 12;
    s.value_row_vectors = 1;
    s.value_keys = by_rows ? 2 : 1;
    s.kv_tile = 30;
    return s;
}

/* Whether values would be whole rows at once, if they went by rows. Every target says the same. */
static bool may_be_whole(const attune_problem *p, const mha_schedule *schedule) {
    mha_schedule s = *schedule;
    s.value_by = MHA_VALUE_BY_ROWS;
    return mha_variant_of(p, &s, at_target_find("avx2")).values == MHA_VALUES_WHOLE;
}

static void canonical_of(const sample_call *call, attune_problem *canonical) {
    assert_int_equal(mha_canonicalize(&call->problem, canonical, NULL), ATTUNE_OK);
}

/* Where `spoilt`, there are infinities and NaN among keys and values, none of which is hidden. */
static void compare(const sample *from, bool spoilt) {
    sample_call rows, columns, interpreted;
    sample_call *all[] = {&rows, &columns, &interpreted};
    for (int i = 0; i < 3; i++) {
        sample_call_open(all[i], from, ON_THE_HEAP);
        if (!spoilt || all[i]->problem.dtype != ATTUNE_F32) continue;
        ((float *)sample_call_data(all[i], "v"))[0] = INFINITY;
        if (all[i]->problem.k_dtype != ATTUNE_BF16) ((float *)sample_call_data(all[i], "k"))[1] = NAN;
    }
    attune_problem canonical;
    canonical_of(&rows, &canonical);
    const mha_schedule by_rows = schedule_of(&canonical, true), by_columns = schedule_of(&canonical, false);
    assert_true(may_be_whole(&canonical, &by_rows));
    assert_false(may_be_whole(&canonical, &by_columns));
    sample_call_run(sample_context, &rows, &by_rows);
    sample_call_run(sample_context, &columns, &by_columns);
    if (!sample_calls_agree(&rows, &columns)) fail_msg("%s: other bits by rows", from->problem);
    if (attune_run_interpreted(sample_context, &interpreted.problem, mha_schedule_text(&by_rows).text,
                               &interpreted.arguments))
        fail_msg("%s", attune_last_message());
    if (!sample_calls_agree(&rows, &interpreted)) fail_msg("%s: other bits by the interpreter", from->problem);
    for (int i = 0; i < 3; i++) sample_call_close(all[i]);
}

static void bits_of_columns(void **state) {
    (void)state;
    for (int i = 0; i < NUM_BY_ROWS; i++) compare(&attend_by_rows[i], false);
}

static void values_that_are_no_numbers(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) compare(&attend_by_rows[i], true);
}

static void check_strips(const char *problem, const char *isa, int32_t sums, int most, bool may_leave_one) {
    const attune_problem p = problem_canonical(problem);
    mha_schedule s = {0};
    s.value_columns = sums;
    s.value_row_vectors = 1;
    for (int64_t all = 1; all <= 64; all++)
        for (int64_t left = all; left > 0;) {
            const mha_strips next = mha_next_strips(&p, &s, at_target_find(isa), left);
            assert_in_range(next.vectors, 1, most);
            assert_in_range(next.alike, 1, left / next.vectors);
            assert_true(may_leave_one || all == 1 || next.vectors > 1);
            left -= next.vectors * next.alike;
        }
}

/* They make up all columns. Where rows see different keys, multiply-adds are fused and registers are 16, 12 sums leave
 * room for three vectors. */
static void strips_of_columns(void **state) {
    (void)state;
    static const char *const causal = "num_heads=1,seq_q=9,seq_kv=9,head_dim=16,is_causal=1";
    check_strips(causal, "avx2", 12, 3, false);
    check_strips(causal, "avx2", 8, 4, true);
    check_strips(causal, "x86-64", 12, 4, true);
    check_strips(causal, "avx512", 16, 4, true);
    check_strips("num_heads=1,seq_q=9,seq_kv=9,head_dim=16", "avx2", 12, 4, true);
}

/* ---- Strips of three vectors by four rows, with 16 registers ---- */

/* Machine code and the virtual machine, where this CPU has AVX2; else NULL. */
typedef struct narrow_engines {
    attune_context *contexts[2];
} narrow_engines;

static narrow_engines open_engines(const at_target *target) {
    static const attune_compile_mode modes[] = {ATTUNE_COMPILE_IN_PROCESS, ATTUNE_COMPILE_NEVER};
    narrow_engines engines = {{NULL}};
    for (int i = 0; i < 2 && target_can_run(target); i++) {
        attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
        options.isa = target->name;
        options.cache_dir = "";
        options.compile_mode = modes[i];
        engines.contexts[i] = test_context(&options, NULL);
    }
    return engines;
}

/* Twelve sums, and stripes of two vectors of rows. */
static mha_schedule narrow_schedule(const attune_problem *p, const at_target *target, int kv_tile,
                                    mha_value_by value_by) {
    mha_schedule s = {0};
    at_error err = {0};
    s.strategy = MHA_Q_LANES;
    s.lanes = p->softmax_precision == ATTUNE_F64 ? 4 : 8;
    s.score_row_vectors = s.task_row_vectors = 2;
    s.score_keys = 3;
    s.score_columns = s.value_row_vectors = s.value_keys = 1;
    s.value_columns = 12;
    s.kv_tile = kv_tile;
    s.value_by = value_by;
    if (mha_schedule_check(p, &s, target, &err)) fail_msg("%s", err.message);
    mha_schedule_settle(p, target, NULL, &s);
    assert_int_equal(s.value_by, value_by);
    return s;
}

/* Rows are kept, or written from one tile of all keys, and with fewer sums strips would be wider. */
static void assert_narrow(const attune_problem *p, const mha_schedule *s, const at_target *target) {
    const int64_t vectors = p->head_dim_v / (target->vector_bytes / (p->softmax_precision == ATTUNE_F64 ? 8 : 4));
    mha_schedule fewer = *s;
    fewer.value_columns = 8;
    const mha_variant variant = mha_variant_of(p, s, target);
    assert_true(variant.may_keep_rows);
    assert_int_equal(variant.values, s->kv_tile >= p->seq_kv ? MHA_VALUES_ONE_TILE : MHA_VALUES_KEPT);
    assert_in_range(mha_next_strips(p, s, target, vectors).vectors, 2, 3);
    assert_int_equal(mha_next_strips(p, &fewer, target, vectors).vectors, 4);
}

static void check_narrow(const char *problem, int kv_tile, int value_keys, const narrow_engines *engines) {
    const at_target *target = at_target_find("avx2");
    const attune_problem p = problem_canonical(problem);
    const mha_schedule by_columns = narrow_schedule(&p, target, kv_tile, MHA_VALUE_BY_COLUMNS);
    mha_schedule by_rows = narrow_schedule(&p, target, kv_tile, MHA_VALUE_BY_ROWS);
    tensors rows, columns;
    char what[256];
    by_rows.value_keys = value_keys;
    assert_narrow(&p, &by_rows, target);
    tensors_open_call(&rows, problem, "", INPUT_ORDINARY, 1);
    assert_true(tensors_share(&columns, &rows));
    tensors_interpret_for(&columns, target, &by_columns);
    tensors_interpret_for(&rows, target, &by_rows);
    snprintf(what, sizeof what, "%s kv_tile=%d,value_keys=%d", problem, kv_tile, value_keys);
    tensors_assert_right(&columns, INPUT_ORDINARY, what);
    tensors_assert_same(&rows, &columns, what);
    for (int i = 0; i < 2 && engines->contexts[i]; i++) {
        tensors_clear_outputs(&rows);
        tensors_run_chosen(engines->contexts[i], &rows, &by_rows);
        tensors_assert_same(&rows, &columns, what);
    }
    tensors_free(&columns);
    tensors_free(&rows);
}

/* With columns that leave two vectors, a vector and part of one, and rows that leave 1, 2, 3 and none of four. Of a
 * window of two keys all rows of a register tile see none. */
static void narrow_strips_have_bits_of_columns(void **state) {
    (void)state;
    static const char *const sights[] = {"is_causal=1", "window_left=9,window_right=6", "is_causal=1,dtype=f64",
                                         "window_left=9,window_right=6,global_tokens=2",
                                         "window_left=1,window_right=0"};
    static const int columns[] = {32, 56, 80, 107}, num_rows[] = {13, 14, 15, 20}, tiles[] = {12, 39};
    narrow_engines engines = open_engines(at_target_find("avx2"));
    for (int i = 0; i < 5 * 4 * 4 * 2; i++) {
        char text[160];
        if (tests_are_short() && (i / 2 + i / 8 + i / 32) % 4) continue; /* one number of rows, by turns */
        snprintf(text, sizeof text, "num_heads=2,seq_q=%d,seq_kv=37,head_dim=8,head_dim_v=%d,has_lse=1,%s",
                 num_rows[i / 2 % 4], columns[i / 8 % 4], sights[i / 32]);
        check_narrow(text, tiles[i % 2], 1 + (i + i / 8) % 4, &engines);
    }
    for (int i = 0; i < 2; i++) attune_context_destroy(engines.contexts[i]);
}

/* ---- Probabilities as an output ---- */

/* Probabilities that attention writes itself differ from those of a phase of their own, in rounding alone. */
static void compare_weights(const sample *from) {
    sample_call at_once, later, interpreted;
    sample_call *all[] = {&at_once, &later, &interpreted};
    attune_problem canonical;
    for (int i = 0; i < 3; i++) sample_call_open(all[i], from, ON_THE_HEAP);
    canonical_of(&at_once, &canonical);
    mha_schedule by_rows = schedule_of(&canonical, true);
    const mha_schedule by_columns = schedule_of(&canonical, false);
    const at_target *target = at_target_find("x86-64");
    by_rows.value_by = MHA_VALUE_BY_ROWS;
    assert_true(mha_variant_of(&canonical, &by_rows, target).writes_probabilities);
    assert_false(mha_variant_of(&canonical, &by_columns, target).writes_probabilities);
    sample_call_run(sample_context, &at_once, &by_rows);
    sample_call_run(sample_context, &later, &by_columns);
    if (attune_run_interpreted(sample_context, &interpreted.problem, mha_schedule_text(&by_rows).text,
                               &interpreted.arguments))
        fail_msg("%s", attune_last_message());
    if (!sample_calls_agree(&at_once, &interpreted)) fail_msg("%s: other bits by the interpreter", from->problem);
    const int64_t count = canonical.batch * canonical.num_heads * canonical.seq_q * canonical.seq_kv;
    const float *x = sample_call_data(&at_once, "weights"), *y = sample_call_data(&later, "weights");
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(x[i] - y[i]) <= 2e-6F * y[i]))
            fail_msg("%s: weight %lld is %a, and %a by a phase of its own", from->problem, (long long)i, x[i], y[i]);
    for (int i = 0; i < 3; i++) sample_call_close(all[i]);
}

static void weights_that_are_held(void **state) {
    (void)state;
    static const sample with_weights[] = {
        {.problem = "batch=2,num_heads=2,seq_q=6,seq_kv=12,head_dim=8,weights_mode=softmax"},
        {.problem = "num_heads=6,num_kv_heads=2,seq_q=7,seq_kv=21,head_dim=20,weights_mode=softmax,has_lse=1"},
        {.problem = "num_heads=2,seq_q=5,seq_kv=3,head_dim=8,weights_mode=softmax"},
        {.problem =
             "num_heads=4,num_kv_heads=2,seq_q=11,seq_kv=13,head_dim=40,has_alibi_slopes=1,weights_mode=softmax"},
    };
    for (size_t i = 0; i < sizeof with_weights / sizeof *with_weights; i++) compare_weights(&with_weights[i]);
}

static bool may_be_by_rows(const char *text) {
    const attune_problem canonical = problem_canonical(text);
    mha_schedule s = schedule_of(&canonical, false);
    s.score_row_vectors = s.task_row_vectors = 3;
    return may_be_whole(&canonical, &s);
}

static void only_what_is_seen_and_one_tile(void **state) {
    (void)state;
    assert_true(may_be_by_rows("num_heads=2,seq_q=12,seq_kv=30,head_dim=8"));
    assert_true(may_be_by_rows("num_heads=2,seq_q=5,seq_kv=30,head_dim=8"));
    assert_true(may_be_by_rows("num_heads=2,seq_q=24,seq_kv=30,head_dim=8")); /* two whole stripes */
    static const char *const others[] = {
        "num_heads=2,seq_q=13,seq_kv=30,head_dim=8", /* one and a part */
        "num_heads=2,seq_q=12,seq_kv=31,head_dim=8",
        "num_heads=2,seq_q=12,seq_kv=30,head_dim=8,is_causal=1",
        "num_heads=2,seq_q=12,seq_kv=30,head_dim=8,window_left=3",
        "num_heads=2,seq_q=12,seq_kv=30,head_dim=8,window_right=3",
        "num_heads=2,seq_q=12,seq_kv=30,head_dim=8,has_kv_lens=1",
        "num_heads=2,seq_q=12,seq_kv=30,head_dim=8,attn_mask_dims=qk",
        "num_heads=2,seq_q=12,seq_kv=30,head_dim=8,attn_bias_dims=qk",
        "num_heads=2,seq_q=12,seq_kv=30,head_dim=8,has_sinks=1",
        "num_heads=2,seq_q=12,seq_kv=dynamic,max_seq_kv=30,head_dim=8",
        "num_heads=2,seq_q=dynamic,max_seq_q=12,seq_kv=30,head_dim=8",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (may_be_by_rows(others[i])) fail_msg("%s", others[i]);
}

/* The choice for few rows: no clamped lanes that narrower vectors would save, and no lane of a lone row. */
static void chosen_for_few_rows(void **state) {
    (void)state;
    static const struct {
        const char *problem;
        mha_strategy strategy;
        int lanes, by_rows;
    } expected[] = {
        {"num_heads=8,seq_q=16,head_dim=32", MHA_Q_LANES, 16, 1},
        {"num_heads=8,seq_q=64,head_dim=32", MHA_Q_LANES, 16, 1},
        {"num_heads=8,seq_q=7,head_dim=64", MHA_Q_LANES, 8, 1},
        {"num_heads=8,seq_q=20,head_dim=64", MHA_Q_LANES, 8, 1},
        {"num_heads=8,seq_q=50,head_dim=64", MHA_Q_LANES, 16, 1}, /* two rest rows */
        {"num_heads=8,seq_q=4,seq_kv=4,head_dim=64", MHA_Q_LANES, 4, 1},
        {"num_heads=8,num_kv_heads=2,seq_q=5,head_dim=64", MHA_Q_LANES, 8, 1},
        {"num_heads=8,seq_q=16,head_dim=32,is_causal=1", MHA_Q_LANES, 8, 0},
        {"num_heads=8,seq_q=4,seq_kv=64,head_dim=64", MHA_D_LANES, 16, 0},
        {"num_heads=8,seq_q=1,seq_kv=5,head_dim=64", MHA_D_LANES, 16, 0},
        {"num_heads=8,seq_q=12,seq_kv=512,head_dim=64,has_kv_lens=1", MHA_D_LANES, 16, 0},
    };
    const at_target *target = at_target_find("avx512");
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        mha_schedule s;
        const attune_problem canonical = problem_canonical(expected[i].problem);
        mha_choose(mha_read(&canonical), target, usual_machine(target), &s);
        assert_int_equal(mha_schedule_check(&canonical, &s, target, NULL), ATTUNE_OK);
        const bool by_rows = mha_variant_of(&canonical, &s, target).values == MHA_VALUES_WHOLE;
        if (s.strategy != expected[i].strategy || s.lanes != expected[i].lanes || by_rows != !!expected[i].by_rows)
            fail_msg("%s: strategy %d, %d lanes, by rows %d", expected[i].problem, (int)s.strategy, (int)s.lanes,
                     by_rows);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_columns),
        cmocka_unit_test(values_that_are_no_numbers),
        cmocka_unit_test(weights_that_are_held),
        cmocka_unit_test(only_what_is_seen_and_one_tile),
        cmocka_unit_test(chosen_for_few_rows),
        cmocka_unit_test(strips_of_columns),
        cmocka_unit_test(narrow_strips_have_bits_of_columns),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
