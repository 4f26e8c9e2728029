/* The q-lanes builder through the interpreter, for every target (also those this CPU cannot run): against the
 * reference, with its accesses checked, with bits that depend neither on how the problem is cut nor on keys that no row
 * sees.
 */
#include "attend/prefill/layout.h"
#include "call/call.h"
#include "ir/interp.h"
#include "ir/passes.h"
#include "operator/build.h"
#include "ref_attention.h"
#include "schedule/choose.h"
#include "schedule/variant.h"
#include "support/attend/attend_samples.h"
#include "support/calls.h"
#include "support/ir/jit_run.h"
#include "support/ir/random_ir.h"
#include "support/problems.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static random_ir random_source;

static int random_below(int n) { return (int)(random_ir_bits(&random_source) % (uint64_t)n); }

static const sample *random_sample(int i) {
    random_source.state = (uint64_t)i;
    return &attend_prefill[i % NUM_PREFILL];
}

/* ---- Running ---- */

static void canonical_of(const sample_call *call, attune_problem *canonical) {
    at_error err = {0};
    if (mha_canonicalize(&call->problem, canonical, &err)) fail_msg("%s", err.message);
}

/* The kernel of a call, interpreted as lowered for the target. */
static void interpret(const sample_call *call, const mha_schedule *schedule, const at_target *target) {
    at_arena arena;
    at_error err = {0};
    attune_problem canonical;
    static at_signature signature;
    at_call made;
    canonical_of(call, &canonical);
    at_signature_init(&signature, &canonical);
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = mha_build(&arena, &canonical, schedule, target, &err);
    if (kernel) kernel = ir_lower(kernel, target, NULL, NULL, &err);
    const ir_interp_options options = {.shuffle_seed = 7};
    if (!kernel || at_call_make(&signature, NULL, &call->arguments, &made, &err) ||
        ir_interpret(kernel, made.buffers, made.settled->scalars, &options, &err)) {
        char problem[512], text[256];
        mha_problem_print(&canonical, problem, sizeof problem);
        mha_schedule_print(schedule, text, sizeof text);
        fail_msg("%s %s on %s: %s", problem, text, target->name, err.message);
    }
    at_arena_free(&arena);
}

/* All elements of an output against the dense numbers of the reference. */
static void compare(const sample_call *call, const char *name, const long double *want, long double tolerance) {
    const attune_tensor *t = sample_call_tensor(call, name);
    const void *data = sample_call_data(call, name);
    int64_t index[4] = {0}, n = 0;
    for (int d = 0; d < t->rank; d++)
        if (t->dims[d] == 0) return;
    for (int d = 0; d >= 0; n++) {
        int64_t at = 0;
        for (d = 0; d < t->rank; d++) at += index[d] * t->strides[d];
        const long double got = ref_load(t->dtype, data, at);
        const bool same = (isnan(want[n]) && isnan(got)) || got == want[n];
        if (!same && !(fabsl(got - want[n]) <= tolerance))
            fail_msg("%s[%lld] is %.9Lg, not %.9Lg", name, (long long)n, got, want[n]);
        for (d = t->rank - 1; d >= 0 && ++index[d] == t->dims[d]; d--) index[d] = 0;
    }
}

static void check(const sample_call *call, const mha_schedule *schedule, const at_target *target) {
    const attune_problem *p = &call->problem;
    const ref_call asked = {
        .problem = p, .arguments = &call->arguments, .tensors = call->tensors, .count = call->count};
    ref_result want = {0};
    const bool wide = p->softmax_precision == ATTUNE_F64 || p->dtype == ATTUNE_F64;
    const long double tolerance = wide ? 1e-13L : 4e-6L;
    const long double rounding = p->dtype == ATTUNE_F16 ? 1e-3L : p->dtype == ATTUNE_BF16 ? 8e-3L : 4e-6L;
    assert_true(ref_attention(&asked, &want));
    interpret(call, schedule, target);
    compare(call, "out", want.out, p->dtype == ATTUNE_F64 ? tolerance : rounding);
    if (want.lse) compare(call, "lse", want.lse, tolerance);
    ref_result_free(&want);
}

static mha_schedule chosen_schedule(const sample_call *call, const at_target *target) {
    attune_problem canonical;
    mha_schedule s = {0};
    canonical_of(call, &canonical);
    mha_choose_by(MHA_Q_LANES, mha_read(&canonical), target, usual_machine(target), &s);
    assert_int_equal(mha_schedule_check(&canonical, &s, target, NULL), ATTUNE_OK);
    return s;
}

static mha_schedule random_schedule(const sample_call *call, const at_target *target) {
    attune_problem canonical;
    canonical_of(call, &canonical);
    for (;;) {
        mha_schedule s = {0};
        s.lanes = 1 << random_below(5);
        s.score_keys = 1 + random_below(8);
        s.score_row_vectors = 1 + random_below(4);
        s.value_columns = 1 + random_below(8);
        s.value_row_vectors = 1 + random_below(4);
        s.score_columns = 1 + random_below(4);
        s.value_keys = 1 + random_below(3);
        s.task_row_vectors = s.score_row_vectors * (1 + random_below(4));
        s.kv_tile = s.score_keys * (1 + random_below(12));
        if (!mha_schedule_check(&canonical, &s, target, NULL)) return s;
    }
}

/* ---- Tests ---- */

static void test_chosen_schedules(void **state) {
    (void)state;
    for (int i = 0; i < NUM_PREFILL; i++) {
        sample_call call;
        sample_call_open(&call, &attend_prefill[i], ON_THE_HEAP);
        for (const at_target *target = at_targets(); target->name; target++) {
            if (!target_is_tested(target)) continue;
            const mha_schedule schedule = chosen_schedule(&call, target);
            check(&call, &schedule, target);
        }
        sample_call_close(&call);
    }
}

static void test_random_schedules(void **state) {
    (void)state;
    for (int i = 0; i < 4 * NUM_PREFILL; i++) {
        sample_call call;
        sample_call_open(&call, random_sample(i), ON_THE_HEAP);
        for (const at_target *target = at_targets(); target->name; target++) {
            if (!target_is_tested(target)) continue;
            const mha_schedule schedule = random_schedule(&call, target);
            check(&call, &schedule, target);
        }
        sample_call_close(&call);
    }
}

/* Sinks that are no numbers, of rows that see no key, wherever a task ends; test_sinks.c has the others. */
static void test_sinks_that_are_no_numbers(void **state) {
    (void)state;
    static const sample problem = {
        "num_heads=4,seq_q=36,seq_kv=6,head_dim=4,has_sinks=1,is_causal=1,causal_offset=-20,has_lse=1"};
    static const float sinks[4] = {INFINITY, NAN, -INFINITY, 0.5F};
    for (const at_target *target = at_targets(); target->name; target++) {
        sample_call call;
        sample_call_open(&call, &problem, ON_THE_HEAP);
        memcpy(sample_call_data(&call, "sinks"), sinks, sizeof sinks);
        mha_schedule schedule = chosen_schedule(&call, target);
        check(&call, &schedule, target);
        schedule.score_row_vectors = schedule.value_row_vectors = schedule.task_row_vectors = 1;
        check(&call, &schedule, target);
        sample_call_close(&call);
    }
}

/* A row's bits depend only on the row and its keys: cutting rows into other tasks must not change them. */
static void check_tasks(const at_target *target) {
    for (int i = 0; i < NUM_PREFILL; i++) {
        sample_call a, b;
        sample_call_open(&a, &attend_prefill[i], ON_THE_HEAP);
        sample_call_open(&b, &attend_prefill[i], ON_THE_HEAP);
        mha_schedule one = chosen_schedule(&a, target);
        one.score_row_vectors = one.value_row_vectors = one.task_row_vectors = 1;
        mha_schedule other = one;
        other.task_row_vectors = 3;
        other.score_columns = 1;
        interpret(&a, &one, target);
        interpret(&b, &other, target);
        assert_true(sample_calls_agree(&a, &b));
        sample_call_close(&a);
        sample_call_close(&b);
    }
}

static void test_bits_do_not_depend_on_tasks(void **state) {
    (void)state;
    check_tasks(at_target_find("avx2"));
    check_tasks(at_target_find("avx512_bf16"));
}

/* O as it lies, kept from tile to tile, has the bits of O^T: which of them it is depends on the lanes. */
static void test_bits_do_not_depend_on_who_keeps_them(void **state) {
    (void)state;
    static const sample problems[] = {
        {"num_heads=2,seq_q=37,seq_kv=41,head_dim=6,head_dim_v=11,has_lse=1"},
        {"dtype=bf16,num_heads=4,num_kv_heads=2,seq_q=37,seq_kv=41,head_dim=6,head_dim_v=12,has_sinks=1"},
        {"num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=6,head_dim_v=9", "seq_q=45,seq_kv=29"},
        {"num_heads=2,seq_q=37,seq_kv=300,head_dim=140,head_dim_v=11,reproducible=1,has_sinks=1,has_lse=1"},
        {"batch=3,num_heads=2,seq_q=37,seq_kv=41,head_dim=6,head_dim_v=11,has_kv_lens=1,has_lse=1", .kv = {41, 0, 7}},
        {"num_heads=2,seq_q=45,seq_kv=41,head_dim=6,head_dim_v=11,is_causal=1,has_lse=1"},
        {"num_heads=4,num_kv_heads=2,seq_q=37,seq_kv=60,head_dim=6,head_dim_v=11,window_left=5,window_right=3"},
        {"batch=3,num_heads=2,seq_q=37,seq_kv=41,head_dim=6,head_dim_v=11,has_kv_lens=1,is_causal=1,"
         "causal_align=bottom_right",
         .kv = {41, 0, 7}},
        {"dtype=bf16,num_heads=2,seq_q=16,seq_kv=6,head_dim=6,head_dim_v=12,window_right=4"},
        {"dtype=bf16,num_heads=2,seq_q=37,seq_kv=41,head_dim=6,head_dim_v=12,is_causal=1,window_left=7"},
        {"num_heads=2,seq_q=60,seq_kv=60,head_dim=140,head_dim_v=11,reproducible=1,is_causal=1,has_lse=1"},
    };
    const at_target *target = at_target_find("avx512_bf16");
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        sample_call rows, columns;
        attune_problem canonical;
        sample_call_open(&rows, &problems[i], ON_THE_HEAP);
        sample_call_open(&columns, &problems[i], ON_THE_HEAP);
        canonical_of(&rows, &canonical);
        mha_schedule s = chosen_schedule(&rows, target);
        s.kv_tile = canonical.reproducible ? mha_reproducible_kv_tile(&canonical) : 2 * s.score_keys;
        s.lanes = 16;
        assert_false(mha_variant_of(&canonical, &s, target).may_go_by_rows);
        interpret(&columns, &s, target);
        s.lanes = 8;
        s.value_by = MHA_VALUE_BY_ROWS;
        const mha_variant variant = mha_variant_of(&canonical, &s, target);
        assert_true(variant.may_keep_rows && variant.values != MHA_VALUES_WHOLE);
        interpret(&rows, &s, target);
        assert_true(sample_calls_agree(&rows, &columns));
        sample_call_close(&rows);
        sample_call_close(&columns);
    }
}

/* Whether the last register tile of 8 keys begins earlier. */
static bool overlaps(const char *problem, int32_t kv_tile) {
    mha_schedule s = {0};
    const attune_problem canonical = problem_canonical(problem);
    s.lanes = s.score_keys = 8;
    s.score_row_vectors = 1;
    s.kv_tile = kv_tile;
    return mha_variant_of(&canonical, &s, at_target_find("avx2")).score_tiles_overlap;
}

static void test_score_tiles_overlap(void **state) {
    (void)state;
    assert_true(overlaps("seq_q=30,seq_kv=25,head_dim=64", 32));
    assert_true(overlaps("seq_q=30,seq_kv=30,head_dim=64,is_causal=1,window_left=9", 16));
    /* whole tiles; a tile of fewer keys than a register tile; a diagonal of its own; lengths that the run tells */
    assert_false(overlaps("seq_q=30,seq_kv=24,head_dim=64", 24));
    assert_false(overlaps("seq_q=30,seq_kv=7,head_dim=64", 8));
    assert_false(overlaps("seq_q=30,seq_kv=25,head_dim=64", 24));
    assert_false(overlaps("seq_q=17,seq_kv=17,head_dim=64,is_causal=1", 24));
    assert_false(overlaps("seq_q=30,seq_kv=dynamic,head_dim=64", 32));
    assert_false(overlaps("seq_q=30,seq_kv=25,head_dim=64,has_kv_lens=1", 32));
    assert_false(overlaps("seq_q=30,seq_kv=25,head_dim=64,page_size=16,has_kv_lens=1", 32));
    /* what is laid out from the first key on that a stripe sees */
    assert_false(overlaps("seq_q=30,seq_kv=25,head_dim=64,attn_bias_dims=qk", 32));
    assert_false(overlaps("seq_q=30,seq_kv=25,head_dim=64,score_mod=\"score + kv - q\"", 32));
}

/* Scores that two register tiles compute have the bits of those that one does, whatever hides them. */
static void test_overlapping_tiles_have_the_same_bits(void **state) {
    (void)state;
    static const sample problems[] = {
        {"num_heads=2,seq_q=37,seq_kv=29,head_dim=12,has_lse=1"},
        {"num_heads=2,seq_q=29,seq_kv=29,head_dim=40,is_causal=1,has_alibi_slopes=1,logits_soft_cap=2"},
        {"num_heads=4,num_kv_heads=2,seq_q=31,seq_kv=47,head_dim=10,window_left=3,window_right=2"},
        {"num_heads=2,seq_q=47,seq_kv=47,head_dim=8,is_causal=1,window_left=4,global_tokens=3"},
        {"dtype=bf16,num_heads=2,seq_q=31,seq_kv=45,head_dim=12,is_causal=1,causal_align=bottom_right,has_lse=1"},
        {"num_heads=2,seq_q=31,seq_kv=45,head_dim=12,dtype=f64,is_causal=1,has_sinks=1"},
        {"num_heads=2,seq_q=20,seq_kv=45,head_dim=16,kv_dtype=i8,kv_scales=token"},
        {"num_heads=2,seq_q=20,seq_kv=45,head_dim=16,integer=scores"},
        /* what is copied of the keys begins where the window does */
        {"num_heads=1,seq_q=95,seq_kv=93,head_dim=8,dtype=f16,is_causal=1,window_left=0"},
        {"num_heads=1,seq_q=95,seq_kv=93,head_dim=8,kv_dtype=i8,is_causal=1,window_left=2"},
    };
    static const char *const targets[] = {"avx2", "avx512_bf16"};
    for (size_t i = 0; i < 4 * (sizeof problems / sizeof *problems); i++) {
        const at_target *target = at_target_find(targets[i % 2]);
        sample_call a, b;
        attune_problem canonical;
        sample_call_open(&a, &problems[i / 4], ON_THE_HEAP);
        sample_call_open(&b, &problems[i / 4], ON_THE_HEAP);
        canonical_of(&a, &canonical);
        mha_schedule one = chosen_schedule(&a, target);
        one.strategy = MHA_Q_LANES;
        one.score_keys = one.score_row_vectors = one.value_row_vectors = one.task_row_vectors = 1;
        one.kv_tile = i / 2 % 2 ? 16 : 48; /* some tiles of keys, or one */
        mha_schedule other = one;
        other.score_keys = canonical.seq_kv % 16 > 8 ? 8 : 4;
        assert_true(mha_variant_of(&canonical, &other, target).score_tiles_overlap);
        interpret(&a, &one, target);
        interpret(&b, &other, target);
        assert_true(sample_calls_agree(&a, &b));
        sample_call_close(&a);
        sample_call_close(&b);
    }
}

static int64_t rest_of(const char *problem, int32_t lanes, int32_t vectors) {
    mha_schedule s = {0};
    const attune_problem canonical = problem_canonical(problem);
    s.lanes = lanes;
    s.score_row_vectors = vectors;
    return mha_variant_of(&canonical, &s, at_target_find("avx512_bf16")).rest_rows;
}

static void test_few_rows_go_by_columns(void **state) {
    (void)state;
    assert_int_equal(rest_of("seq_q=17,seq_kv=17,head_dim=64", 16, 1), 1);
    assert_int_equal(rest_of("seq_q=51,seq_kv=17,head_dim=64", 16, 4), 3);
    assert_int_equal(rest_of("num_heads=3,num_kv_heads=1,seq_q=11,seq_kv=17,head_dim=64", 8, 5), 1);
    /* too many; too few columns; not one stripe; none left over; nothing before them */
    assert_int_equal(rest_of("seq_q=22,seq_kv=17,head_dim=64", 16, 1), 0);
    assert_int_equal(rest_of("seq_q=17,seq_kv=17,head_dim=8", 16, 1), 0);
    assert_int_equal(rest_of("seq_q=65,seq_kv=17,head_dim=64", 16, 2), 0);
    assert_int_equal(rest_of("seq_q=32,seq_kv=17,head_dim=64", 16, 1), 0);
    assert_int_equal(rest_of("seq_q=1,seq_kv=17,head_dim=64", 16, 1), 0);
    /* sums in an order that is promised, or of pairs; a number that only the run tells */
    assert_int_equal(rest_of("seq_q=17,seq_kv=17,head_dim=64,reproducible=1", 16, 1), 0);
    assert_int_equal(rest_of("seq_q=17,seq_kv=17,head_dim=64,dtype=bf16", 16, 1), 0);
    assert_int_equal(rest_of("seq_q=dynamic,seq_kv=17,head_dim=64", 16, 1), 0);
}

/* In half vectors: whether scores of all rows go by columns, and whether what is hidden on a diagonal is left out. */
static int by_columns(const char *problem, const char *target_name) {
    const at_target *target = at_target_find(target_name);
    mha_schedule s = {0};
    const attune_problem canonical = problem_canonical(problem);
    s.lanes = s.score_keys = 8;
    s.score_row_vectors = 1;
    s.kv_tile = 32;
    const mha_variant variant = mha_variant_of(&canonical, &s, target);
    return variant.scores_by_columns + variant.is_square;
}

static void test_short_problems_go_by_columns(void **state) {
    (void)state;
    static const char wide[] = "avx512_bf16";
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=64,is_causal=1", wide), 2);
    assert_int_equal(by_columns("seq_q=12,seq_kv=30,head_dim=72,is_causal=1,causal_align=top_left,window_left=4,"
                                "has_alibi_slopes=1",
                                wide),
                     2);
    /* no square: nothing is hidden; not at its place; rows of several heads; more than one tile; an end of its own */
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=64", wide), 1);
    assert_int_equal(by_columns("seq_q=12,seq_kv=30,head_dim=64,is_causal=1", wide), 1);
    assert_int_equal(by_columns("seq_q=17,seq_kv=12,head_dim=64,is_causal=1", wide), 1);
    assert_int_equal(by_columns("num_heads=2,num_kv_heads=1,seq_q=17,seq_kv=17,head_dim=64,is_causal=1", wide), 1);
    assert_int_equal(by_columns("seq_q=40,seq_kv=40,head_dim=64,is_causal=1", wide), 1);
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=64,is_causal=1,has_kv_lens=1", wide), 1);
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=64,is_causal=1,causal_offset=2", wide), 1);
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=64,is_causal=1,has_causal_offsets=1", wide), 1);
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=64,is_causal=1,page_size=16,has_kv_lens=1", wide), 1);
    /* too many rows; too few columns; promised or other sums; a number that only the run tells */
    assert_int_equal(by_columns("seq_q=65,seq_kv=17,head_dim=64", wide), 0);
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=32,is_causal=1", wide), 0);
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=64,is_causal=1,reproducible=1", wide), 0);
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=64,is_causal=1,dtype=bf16", wide), 0);
    assert_int_equal(by_columns("seq_q=dynamic,seq_kv=17,head_dim=64,is_causal=1", wide), 0);
    /* 16 registers: only where there is a diagonal, and fewer rows and columns */
    assert_int_equal(by_columns("seq_q=24,seq_kv=24,head_dim=48,is_causal=1", "avx2"), 2);
    assert_int_equal(by_columns("seq_q=32,seq_kv=32,head_dim=96,is_causal=1", "avx2"), 2);
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=64", "avx2"), 0);
    assert_int_equal(by_columns("num_heads=2,num_kv_heads=1,seq_q=9,seq_kv=9,head_dim=64,is_causal=1", "avx2"), 0);
    assert_int_equal(by_columns("seq_q=25,seq_kv=25,head_dim=64,is_causal=1", "avx2"), 0);
    assert_int_equal(by_columns("seq_q=33,seq_kv=33,head_dim=128,is_causal=1", "avx2"), 0);
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=40,is_causal=1", "avx2"), 0);
    assert_int_equal(by_columns("seq_q=17,seq_kv=17,head_dim=64,is_causal=1", "x86-64"), 0);
}

/* Rows whose scores go by columns in the schedule that is chosen, -1 for all, -2 for d-lanes. */
static int64_t chosen_columns(const char *problem, int heads, int batch, const at_target *target) {
    char text[200];
    mha_schedule s;
    snprintf(text, sizeof text, "%s,num_heads=%d,batch=%d", problem, heads, batch);
    const attune_problem canonical = problem_canonical(text);
    mha_choose(mha_read(&canonical), target, at_description_of("zen4", false), &s);
    if (s.strategy == MHA_D_LANES) return -2;
    const mha_variant variant = mha_variant_of(&canonical, &s, target);
    return variant.scores_by_columns ? -1 : variant.rest_rows;
}

/* The order of a row's sums is the same in every batch, though the schedule may be another. */
static void test_columns_do_not_depend_on_the_batch(void **state) {
    (void)state;
    static const char *const more[] = {"is_causal=1", "is_causal=1,logits_soft_cap=5", "is_causal=0",
                                       "is_causal=1,has_kv_lens=1"};
    static const int dims[] = {32, 40, 64, 80, 128, 256};
    static const char *const targets[] = {"avx512", "avx2"};
    for (int i = 0; i < 2 * 4 * 6 * 72; i++) {
        const at_target *target = at_target_find(targets[i % 2]);
        const int rows = 2 + i / 48;
        char text[160];
        snprintf(text, sizeof text, "seq_q=%d,seq_kv=%d,head_dim=%d,%s", rows, rows, dims[i / 8 % 6], more[i / 2 % 4]);
        const int64_t one = chosen_columns(text, 12, 1, target);
        if (chosen_columns(text, 12, 24, target) != one || chosen_columns(text, 12, 512, target) != one ||
            chosen_columns(text, 1, 1, target) != one)
            fail_msg("%s: rows by columns depend on the batch for %s", text, targets[i % 2]);
    }
}

/* Every number of rows after the last vector of them, with and without a diagonal. */
static void test_scores_by_columns_are_right(void **state) {
    (void)state;
    static const char *const more[] = {
        "is_causal=1,has_lse=1",
        "is_causal=1,has_alibi_slopes=1,window_left=9,seq_kv=40",
        "has_kv_lens=1,is_causal=1,seq_kv=33",
        "num_kv_heads=1,seq_kv=21,softmax_scale=-0.2",
        "is_causal=1,causal_offset=2,seq_kv=21",
    };
    const at_target *target = at_target_find("avx512_bf16");
    for (int rows = 9; rows <= 17; rows++)
        for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
            char text[200];
            sample_call call;
            snprintf(text, sizeof text, "num_heads=2,head_dim=40,seq_q=%d,%s", rows, more[i]);
            const sample one = {text, .kv = {19}};
            sample_call_open(&call, &one, ON_THE_HEAP);
            mha_schedule s = chosen_schedule(&call, target);
            s.strategy = MHA_Q_LANES;
            s.lanes = s.score_keys = 8;
            s.score_row_vectors = s.value_row_vectors = s.task_row_vectors = 1;
            s.kv_tile = 40;
            check(&call, &s, target);
            sample_call_close(&call);
        }
}

/* Puts NaN and infinity wherever the reference does not look. */
static void spoil(const sample_call *call, const char *name, const unsigned char *seen) {
    const attune_tensor *t = sample_call_tensor(call, name);
    const size_t i = (size_t)(t - call->tensors), bytes = ref_dtype_bytes(t->dtype);
    for (size_t at = 0; at < call->memory[i].bytes / bytes; at++)
        if (!seen[at]) ref_store(t->dtype, call->memory[i].data, (int64_t)at, at % 2 ? (long double)NAN : -HUGE_VALL);
}

static void spoil_unseen(const sample_call *call) {
    const ref_call asked = {
        .problem = &call->problem, .arguments = &call->arguments, .tensors = call->tensors, .count = call->count};
    const attune_tensor *v = sample_call_tensor(call, "v");
    const size_t k_bytes = call->memory[sample_call_tensor(call, "k") - call->tensors].bytes;
    const size_t v_bytes = v ? call->memory[v - call->tensors].bytes : 0;
    const ref_seen seen = {.k = calloc(k_bytes + 1, 1), .v = calloc(v_bytes + 1, 1)};
    ref_mark_seen(&asked, &seen);
    spoil(call, "k", seen.k);
    if (v) spoil(call, "v", seen.v);
    free(seen.k);
    free(seen.v);
}

/* NaN and infinity in keys that no row sees, or that some rows do not see, must not change a bit of the others. */
static void test_hidden_keys_do_not_leak(void **state) {
    (void)state;
    for (int i = 0; i < NUM_PREFILL; i++) {
        sample_call clean, spoilt;
        sample_call_open(&clean, &attend_prefill[i], ON_THE_HEAP);
        sample_call_open(&spoilt, &attend_prefill[i], ON_THE_HEAP);
        spoil_unseen(&spoilt);
        for (const at_target *target = at_targets(); target->name; target++) {
            const mha_schedule schedule = chosen_schedule(&clean, target);
            interpret(&clean, &schedule, target);
            interpret(&spoilt, &schedule, target);
            assert_true(sample_calls_agree(&clean, &spoilt));
        }
        sample_call_close(&clean);
        sample_call_close(&spoilt);
    }
}

typedef struct hiding {
    sample problem; /* of one head and 30 queries and keys */
    int left, right, globals;
} hiding;

static const hiding hidings[] = {
    /* 16 columns and more: values by rows, where vectors have 16 lanes */
    {{"seq_q=30,head_dim=19,is_causal=1"}, 30, 0, 0},
    {{"seq_q=30,head_dim=9,window_left=4,window_right=3"}, 4, 3, 0},
    {{"seq_q=30,head_dim=19,window_left=4,window_right=27"}, 4, 27, 0},
    {{"seq_q=30,head_dim=19,window_left=4,window_right=3,global_tokens=2"}, 4, 3, 2},
    {{"seq_q=30,head_dim=19,attn_mask_dims=qk"}, 30, 30, 0},
    {{"dtype=bf16,seq_q=30,head_dim=18,is_causal=1"}, 30, 0, 0},
    {{"dtype=bf16,seq_q=30,head_dim=18,window_left=4,window_right=3"}, 4, 3, 0},
    {{"dtype=bf16,seq_q=30,head_dim=10,window_left=4,window_right=3,global_tokens=2"}, 4, 3, 2},
    {{"dtype=bf16,seq_q=30,head_dim=18,attn_mask_dims=qk"}, 30, 30, 0},
};
enum { NUM_HIDINGS = sizeof hidings / sizeof *hidings };

static void check_hiding(const hiding *h, int hidden, const sample_call *clean, const sample_call *spoilt) {
    const void *good = sample_call_data(clean, "out"), *got = sample_call_data(spoilt, "out");
    const unsigned char *mask = sample_call_tensor(clean, "attn_mask") ? sample_call_data(clean, "attn_mask") : NULL;
    const attune_dtype dtype = sample_call_tensor(clean, "out")->dtype;
    const int64_t dim = sample_call_tensor(clean, "out")->dims[3];
    for (int i = 0; i < 30; i++) {
        const bool in_window = i - h->left <= hidden && hidden <= i + h->right;
        const bool sees = mask ? mask[i * 30 + hidden] != 0 : in_window || i < h->globals;
        for (int64_t at = i * dim; at < (i + 1) * dim; at++)
            if (sees)
                assert_true(isnan(ref_load(dtype, got, at)));
            else
                assert_true(ref_load(dtype, got, at) == ref_load(dtype, good, at));
    }
}

/* Puts NaN and infinities into a row of a tensor whose rows lie one after the other. */
static void spoil_row(const sample_call *call, const char *name, int row) {
    const attune_tensor *t = sample_call_tensor(call, name);
    for (int64_t d = 0; d < t->dims[3]; d++)
        ref_store(t->dtype, sample_call_data(call, name), row * t->dims[3] + d, d % 2 ? (long double)NAN : -HUGE_VALL);
}

/* One key is not a number: rows that see it are not either, and the others do not notice. */
static void test_nan_reaches_who_sees_it(void **state) {
    (void)state;
    for (int n = 0; n < 2 * NUM_HIDINGS; n++)
        for (const at_target *target = at_targets(); target->name; target++) {
            const hiding *h = &hidings[n / 2];
            const int hidden = 20 + n % 2; /* either key of a pair */
            sample_call clean, spoilt;
            sample_call_open(&clean, &h->problem, ON_THE_HEAP);
            sample_call_open(&spoilt, &h->problem, ON_THE_HEAP);
            mha_schedule schedule = chosen_schedule(&clean, target);
            schedule.kv_tile = 24 / schedule.score_keys * schedule.score_keys; /* the key's tile is not the last */
            spoil_row(&spoilt, "k", hidden);
            spoil_row(&spoilt, "v", hidden);
            interpret(&clean, &schedule, target);
            interpret(&spoilt, &schedule, target);
            check_hiding(h, hidden, &clean, &spoilt);
            sample_call_close(&clean);
            sample_call_close(&spoilt);
        }
}

/* With `reproducible` the first rows and the first keys of a larger problem give the bits of the smaller one. */
static void test_reproducible_rows(void **state) {
    (void)state;
    static const sample sizes[] = {
        {"num_heads=2,seq_q=33,seq_kv=170,head_dim=64,reproducible=1,has_kv_lens=1", .kv = {101}},
        {"num_heads=2,seq_q=33,seq_kv=101,head_dim=64,reproducible=1,has_kv_lens=1", .kv = {101}},
        {"num_heads=2,seq_q=7,seq_kv=101,head_dim=64,reproducible=1"},
    };
    for (const at_target *target = at_targets(); target->name; target++) {
        sample_call calls[3];
        for (int i = 0; i < 3; i++) sample_call_open(&calls[i], &sizes[i], ON_THE_HEAP);
        for (int i = 0; i < 3; i++) { /* head 0 alone is compared: its rows and keys begin every tensor */
            float *const q = sample_call_data(&calls[i], "q");
            assert_true(calls[0].memory[0].bytes >= calls[i].memory[0].bytes);
            memcpy(q, sample_call_data(&calls[0], "q"), 7 * 64 * sizeof *q);
            memcpy(sample_call_data(&calls[i], "k"), sample_call_data(&calls[0], "k"), 101 * 64 * sizeof *q);
            memcpy(sample_call_data(&calls[i], "v"), sample_call_data(&calls[0], "v"), 101 * 64 * sizeof *q);
            mha_schedule schedule = chosen_schedule(&calls[i], target);
            if (i) schedule.score_keys = 1;
            if (i) schedule.value_keys = 3;
            interpret(&calls[i], &schedule, target);
            assert_memory_equal(sample_call_data(&calls[i], "out"), sample_call_data(&calls[0], "out"),
                                7 * 64 * sizeof *q);
        }
        for (int i = 0; i < 3; i++) sample_call_close(&calls[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chosen_schedules),
        cmocka_unit_test(test_random_schedules),
        cmocka_unit_test(test_sinks_that_are_no_numbers),
        cmocka_unit_test(test_bits_do_not_depend_on_tasks),
        cmocka_unit_test(test_bits_do_not_depend_on_who_keeps_them),
        cmocka_unit_test(test_score_tiles_overlap),
        cmocka_unit_test(test_overlapping_tiles_have_the_same_bits),
        cmocka_unit_test(test_few_rows_go_by_columns),
        cmocka_unit_test(test_short_problems_go_by_columns),
        cmocka_unit_test(test_columns_do_not_depend_on_the_batch),
        cmocka_unit_test(test_scores_by_columns_are_right),
        cmocka_unit_test(test_hidden_keys_do_not_leak),
        cmocka_unit_test(test_nan_reaches_who_sees_it),
        cmocka_unit_test(test_reproducible_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
